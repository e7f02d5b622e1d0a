# SPDX-License-Identifier: Apache-2.0
"""Commands that make one run, or the job of one, from options or a YAML file; what is given beside the file wins."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairflare.cli import options
from fairflare.cli.choices import RunCommand, config_options, run_options
from fairflare.core.errors import UserError

if TYPE_CHECKING:
    from fairflare.engine.setup.config import RunConfig


@click.command(cls=RunCommand)
@config_options
@click.option(
    "--solo/--no-solo",
    default=None,
    help="Each site also trains alone, and reports its benefit of joining; by default on tables and your own data.",
)
@click.option(
    "--advise", is_flag=True, help="FedAvg also measures which other method may gain: docs/which-method-when.md."
)
@run_options
@options.workers_option
@options.cache_option
@options.out_option
@options.force_option
@options.as_json
def run(
    config: RunConfig,
    continued: Path | None,
    solo: bool | None,
    advise: bool,
    env: str,
    deployment: dict[str, Any] | None,
    out: Path | None,
    **how: Any,
) -> options.Told:
    """Run one federation of METHOD and write its report.

    METHOD may be a YAML file whose keys are these options: docs/python.md. What is given beside it wins.
    """
    from fairflare.studies.runs import default_folder, execute, execute_deployed, resumable
    from fairflare.studies.runs import resume as resume_run

    folder = out or continued or default_folder(config)
    _refuse_other(continued, config, solo, env)
    config = config if continued else with_solo(config, solo, env)
    if deployment:
        summary = execute_deployed(config, folder, force=how["force"] or folder == continued, **deployment)
    elif continued:
        if folder != continued or how.pop("force"):
            raise UserError("--continue: the run's folder goes on, without --out and --force")
        with resumable(folder):
            summary = resume_run(folder, config, **how)
    else:
        with resumable(folder):
            summary = execute(config, folder, env=env, **how)
    from fairflare.cli import results  # and with it the report's modules, which no run waits for
    from fairflare.report.advice import advice_on, signs_of

    advice = {"advice": advice_on(signs_of(folder))} if advise else {}
    told = partial(results.run_result, summary, folder, **advice)
    return {"folder": str(folder), "report": summary, **advice}, told


def _refuse_other(continued: Path | None, config: RunConfig, solo: bool | None, env: str) -> None:
    """Refuse a next segment that takes place elsewhere than the run before, or with another answer to ``solo``."""
    if continued is None:
        return
    from fairflare.engine.files import CONFIG, read_json

    if solo not in (None, config.solo):
        raise UserError(f"--continue {continued}: goes on with the run's own solo")
    where = read_json(continued / CONFIG).get("env")
    if env not in ("local", where) and not (env in ("poc", "prod") and config.federation):
        raise UserError(f"--continue {continued}: goes on where it ran, in env {where}, got {env}")


def with_solo(config: RunConfig, solo: bool | None, env: str) -> RunConfig:
    """``config`` with what ``--solo`` or ``--no-solo`` says, else with ``--set solo=...``, else as it goes by itself.

    ``solo``: None where neither was given. A deployed federation has to be asked.
    """
    from fairflare.engine.setup.config import asks_by_itself, with_benefit

    if solo is None:
        given = {pair.partition("=")[0].strip() for pair in click.get_current_context().params["values"]}
        by_itself = env in ("local", "sim") and asks_by_itself(config)
        solo = config.solo if given & {"solo", "run.solo"} else by_itself
    return with_benefit(config, solo)


@click.command()
@click.argument("folder", type=options.PATH)
@options.cache_option
@options.workers_option
@options.as_json
def resume(folder: Path, **how: Any) -> options.Told:
    """Continue the interrupted or failed run in FOLDER after its last finished round."""
    from fairflare.cli import results
    from fairflare.studies.runs import resumable
    from fairflare.studies.runs import resume as resume_run

    with resumable(folder):
        summary = resume_run(folder, **how)
    return {"folder": str(folder), "report": summary}, partial(results.run_result, summary, folder)


@click.command(cls=RunCommand)
@config_options
@click.option("--out", type=options.PATH, required=True, metavar="DIR", help="The job folder to write.")
@click.option("--name", help="The job's name; made of method and task by default.")
@click.option("--solo/--no-solo", default=None, help="Each site also trains alone, and reports its benefit of joining.")
@click.option("--simulation", is_flag=True, help="Short polling intervals, for the simulator only.")
@click.option("--preinstalled", is_flag=True, help="Without code, for sites that have this package.")
@options.force_option
@options.as_json
def export(config: RunConfig, continued: Path | None, out: Path, solo: bool | None, **how: Any) -> options.Told:
    """Write a deployable FLARE job folder: meta.json, and an app each for server and sites with what of this package
    they run, see `fairflare inspect`.

    METHOD may be a YAML file as `fairflare run` takes it, whose keys on where and how it runs are left aside.
    """
    from fairflare.cli.jobs import export_job
    from fairflare.engine.setup.config import with_benefit

    _refuse_other(continued, config, solo, "prod")
    config = with_benefit(config, config.solo if solo is None else solo)
    export_job(config, out, **how)
    return options.exported(out)
