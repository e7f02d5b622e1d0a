# SPDX-License-Identifier: Apache-2.0
"""Commands that use the model of a run: ``predict``, ``evaluate`` and ``export-model``."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from fairflare.cli.choices import run_options
from fairflare.cli.options import PATH, Told, as_json, exported, listed_text, option
from fairflare.core.errors import UserError

if TYPE_CHECKING:
    from fairflare.engine.setup.config import RunConfig
    from fairflare.inference.loaded_run import Opened

site_option = click.option("--site", default="", metavar="NAME", help="Whose model, scaling and thresholds are used.")
site_files_option = click.option(
    "--site-files", type=PATH, metavar="DIR", help="Where the site keeps its own files; RUN/sites by default."
)
which_option = click.option(
    "--which",
    type=click.Choice(("final", "best")),
    callback=lambda ctx, param, value: value or "",
    help="The last round's model, or the one chosen on validation data; by default that whose results the run shows.",
)
plain_option = click.option("--plain", is_flag=True, help="Neither recalibration nor thresholds.")
baseline_option = click.option(
    "--baseline",
    type=PATH,
    metavar="TABLE",
    help="Of a Cox model: a hospital's patients with times and events, whose hazard makes probabilities.",
)
mapping_option = click.option(
    "--mapping", type=PATH, metavar="FILE", help="The mapping of `init`, where tables have several rows a patient."
)
site_config_option = click.option(
    "--site-config", type=PATH, metavar="FILE", help="The hospital's file whose scale, shift, recode convert the table."
)
code_option = click.option("--code", type=PATH, multiple=True, metavar="FILE", help="Your own file that RUN needs.")
SPLITS = ("all", "test", "val")
REFIT = ("intercept", "slope")
FORMATS = ("bundle", "torchscript", "onnx", "state-dict")


@click.command()
@click.argument("run", type=PATH)
@click.argument("inputs", type=PATH, nargs=-1, required=True, metavar="FILES|DIR|CSV")
@which_option
@site_option
@site_files_option
@plain_option
@baseline_option
@code_option
@mapping_option
@site_config_option
@click.option("--out", type=PATH, metavar="DIR", help="Where results go; RUN-predictions here by default.")
@click.option("--force", is_flag=True, help="Replace --out if it holds earlier predictions.")
@as_json
def predict(
    run: Path,
    inputs: tuple[Path, ...],
    code: Any,
    baseline: Path | None,
    mapping: Path | None,
    site_config: Path | None,
    out: Path | None,
    force: bool,
    **how: Any,
) -> Told:
    """Predict images or the rows of a table with the model of the run in the folder RUN.

    Inputs are prepared as the training's were; no training data are needed. Classes and probabilities go to
    DIR/predictions.csv, masks to DIR/masks in the size, spacing and affine of their image. Lines on the screen name
    what is unlike the training. With --mapping rows.csv says which patient and date a row is. docs/using-a-model.md
    """
    from fairflare.core import user_code
    from fairflare.data.site_config import read_site_config
    from fairflare.inference.atomic_output import check, whole_folder
    from fairflare.inference.external import with_baseline
    from fairflare.inference.mix import open_model
    from fairflare.inference.predict import about, predict
    from fairflare.report.values import plural
    from fairflare.studies import display

    user_code.use(code)
    folder = out or Path(f"{run.resolve().name}-predictions")
    check(folder, "predictions", force)
    opened = with_baseline(open_model(run, **how), baseline)
    with ExitStack() as stack:
        if mapping:
            if len(inputs) > 1:
                raise UserError(f"predict: --mapping: expected one folder or table, got {len(inputs)}")
            inputs = (stack.enter_context(_by_mapping(inputs[0], mapping, labelled=False)),)
        scratch = stack.enter_context(whole_folder(folder, "predictions", force=force))
        stack.enter_context(display.busy("predicting"))
        found = predict(opened, inputs, scratch, read_site_config(site_config) if site_config else None)
        if mapping:
            shutil.copyfile(inputs[0], scratch / "rows.csv")
    for line in found.unlike:
        display.note(line)
    whose = f"the {opened.whose} model" + (f" of {opened.site}" if opened.whose != "shared" else "")
    adjusted = f", {opened.adjustment.words} of {opened.site}" if opened.adjustment else ""
    content = {"folder": str(folder), **about(opened), "cases": len(found.rows), "unlike": found.unlike}
    return content, f"{plural(len(found.rows), 'case')} by {whose}{adjusted}\nresults: {folder}"


@click.command()
@click.argument("run", type=PATH)
@click.argument("data", type=PATH, required=False)
@click.option("--name", default="", metavar="NAME", help="What the hospital is called, or which of several is meant.")
@option(
    "--split",
    type=click.Choice(SPLITS),
    default="all",
    help="Which labelled cases; test is what a hospital that trained may be asked for.",
)
@click.option("--label", default="", metavar="COLUMN", help="A table's column with the label; the run's by default.")
@click.option("--group-by", default="", metavar="A+B", help="Groups of patients; what the run knows by default.")
@click.option("--min-count", type=click.IntRange(1), metavar="N", help="No number of fewer patients; the run's.")
@click.option("--site", default="", metavar="NAME", help="Whose model of RUN, where its sites have their own.")
@click.option("--own", type=PATH, metavar="RUN2", help="The hospital's own model: another run, on the same cases.")
@click.option("--own-site", default="", metavar="NAME", help="Whose model of RUN2, where its sites have their own.")
@click.option(
    "--recalibrate",
    type=click.Choice(REFIT),
    is_flag=False,
    flag_value="slope",
    callback=lambda ctx, param, value: value or "",
    help="Also with an intercept (and slope) fitted to the other half of the patients.",
)
@which_option
@site_files_option
@baseline_option
@code_option
@mapping_option
@site_config_option
@listed_text("--sites", metavar="A,B", help="A job's sites, each with labelled data of its own.")
@click.option("--export", "job", type=PATH, metavar="JOBDIR", help="Write the FLARE job that evaluates, and no more.")
@run_options
@click.option("--out", type=PATH, metavar="DIR", help="Where results go; RUN/evaluation-NAME by default.")
@click.option("--force", is_flag=True, help="Replace --out if it holds an earlier evaluation.")
@as_json
def evaluate(
    run: Path,
    data: Path | None,
    name: str,
    site: str,
    own: Path | None,
    own_site: str,
    which: str,
    site_files: Path | None,
    baseline: Path | None,
    code: tuple[Path, ...],
    mapping: Path | None,
    site_config: Path | None,
    sites: str | None,
    out: Path | None,
    env: str,
    job: Path | None,
    deployment: dict[str, Any] | None,
    force: bool,
    **asked: Any,
) -> Told:
    """Evaluate the model of the run in RUN on labelled data of a hospital that did not train it.

    DATA is a folder that `fairflare init` has written lists for, a folder of lists, one hospital's configuration, one
    list, or one table with the label. Discrimination, calibration and groups of patients, with intervals, go to
    DIR/evaluation.json and DIR/evaluation.html.

    With --env poc or prod, or as the job that --export writes, the model goes to --sites A,B, which hold DATA of their
    own: what leaves them is what leaves a site after a training run's last round. docs/using-a-model.md
    """
    from fairflare.cli import results
    from fairflare.core import user_code
    from fairflare.data.site_config import read_site_config
    from fairflare.inference.atomic_output import whole_folder
    from fairflare.inference.external import ALL, Asked, with_baseline
    from fairflare.inference.external import evaluate as evaluated
    from fairflare.inference.loaded_run import hospitals, refuse_trained
    from fairflare.inference.mix import MIXED, open_model
    from fairflare.studies import display
    from fairflare.studies.folders import EVALUATION

    user_code.use(code)
    with display.busy("reading the run"):
        opened = open_model(run, site, which=which, site_files=None if own else site_files, plain=True)
        other = open_model(own, own_site, site_files=site_files, plain=True) if own else None
    everything = asked["split"] == ALL
    if job or env != "local":
        choices = {"name": name, "site": site, "split": not everything, "label": asked["label"]}
        choices |= {"own": own, "recalibrate": asked["recalibrate"], "baseline": baseline}
        choices |= {"mapping": mapping, "site-config": site_config}
        if given := [key for key, value in choices.items() if value]:
            raise UserError(f"--{given[0]}: is for data in this process, not for a job")
        if data is None and env == "sim":
            raise UserError("DATA: expected a folder with the lists of all sites with --env sim")
        with TemporaryDirectory() as whole:
            chosen = {key: asked[key] for key in ("group_by", "min_count")}
            config = results.job_config(opened, sites or "", data, chosen, Path(whole))
            return _run_job(opened, config, job, env, deployment, out or run / f"{EVALUATION}{env}", force)
    if data is None:
        raise UserError("DATA: expected a hospital's labelled data")
    if own and baseline:
        raise UserError("--baseline: expected no --own RUN2 beside it, whose log risks have another baseline")
    opened = with_baseline(opened, baseline)
    with ExitStack() as stack:
        if mapping:
            data = stack.enter_context(_by_mapping(data, mapping, labelled=True))
        found = hospitals(opened, data, name, read_site_config(site_config) if site_config else None)
        if everything:
            refuse_trained(opened, found)
        elif opened.whose == MIXED:
            raise UserError("--split: expected all of new patients; a mix was trained on all that its hospitals had")
        folder = out or run / f"{EVALUATION}{name or (next(iter(found)) if len(found) == 1 else data.resolve().name)}"
        scratch = stack.enter_context(whole_folder(folder, "evaluation", force=force))
        stack.enter_context(display.busy("evaluating"))
        content, remarks = evaluated(opened, found, Asked(**asked, own=other))
        results.write(content, scratch)
    for line in remarks:
        display.note(line)
    return _told(content, folder)


@contextmanager
def _by_mapping(data: Path, mapping: Path, *, labelled: bool) -> Iterator[Path]:
    """Within: the path of a table with one row for each event, whose patients a reader knows where it is ``labelled``.

    UserError where the mapping has no outcome, and one is needed.
    """
    from fairflare.data.readers.datalist import PATIENTS
    from fairflare.import_data.patient_rows import as_table, checked
    from fairflare.studies.plain_yaml import read_yaml

    rules = checked(read_yaml(mapping, "mapping"), mapping.name)
    if labelled and not rules.outcome:
        raise UserError(f"mapping {mapping.name}: outcome: expected one to evaluate against, got none")
    if not labelled:
        rules = rules.model_copy(update={"outcome": None})
    with as_table(data, rules, patient=PATIENTS[0] if labelled else "") as (table, _):
        yield table


def _run_job(
    opened: Opened,
    config: RunConfig,
    job: Path | None,
    env: str,
    deployment: dict[str, Any] | None,
    folder: Path,
    force: bool,
) -> Told:
    """Write the job, or run it and tell what came of it."""
    from fairflare.cli import results
    from fairflare.cli.jobs import export_job
    from fairflare.studies.runs import execute, execute_deployed

    if job is not None:
        export_job(config, job, name=f"evaluate_{config.task}".replace("-", "_"), simulation=False, force=force)
        return exported(job)
    if deployment:
        execute_deployed(config, folder, force=force, **deployment)
    else:
        execute(config, folder, env=env, force=force)
    return _told(results.of_job(opened, config, folder), folder)


def _told(content: dict[str, Any], folder: Path) -> Told:
    from fairflare.cli import results

    return {"folder": str(folder), "evaluation": content}, partial(results.show, content, folder)


@click.command("export-model")
@click.argument("run", type=PATH)
@click.option("--format", "form", type=click.Choice(FORMATS), required=True, help="What is written.")
@which_option
@site_option
@site_files_option
@plain_option
@baseline_option
@code_option
@click.option("--out", type=PATH, metavar="DIR", help="Where it goes; RUN-FORMAT here by default.")
@click.option("--force", is_flag=True, help="Replace --out if it holds an earlier export.")
@as_json
def export_model(
    run: Path, form: str, code: tuple[Path, ...], baseline: Path | None, out: Path | None, force: bool, **how: Any
) -> Told:
    """Write the model of the run in the folder RUN for other programs, with its preprocessing and a model card.

    bundle runs with `python -m monai.bundle run`; torchscript and onnx take batches of any size; state-dict holds the
    network's entries alone. torchscript and onnx are compared with the run's own model first. docs/using-a-model.md
    """
    from fairflare.core import user_code
    from fairflare.inference.atomic_output import check, whole_folder
    from fairflare.inference.export import export_model
    from fairflare.inference.external import with_baseline
    from fairflare.inference.mix import open_model
    from fairflare.inference.predict import about
    from fairflare.studies import display

    user_code.use(code)
    folder = out or Path(f"{run.resolve().name}-{form}")
    check(folder, "model", force)
    opened = with_baseline(open_model(run, **how), baseline)
    with whole_folder(folder, "model", force=force) as scratch, display.busy(f"writing {form}"):
        remarks = export_model(opened, form, scratch)
    for line in remarks:
        display.note(line)
    content = {"folder": str(folder), "format": form, **about(opened), "remarks": remarks}
    return content, f"{form} of the {opened.whose} model: {folder}"
