# SPDX-License-Identifier: Apache-2.0
"""The command line: thin. Errors are one line; exit code 2 for a user's mistake, 1 for a failed run."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairflare import __version__
from fairflare.app.arguments import (
    KINDS,
    comparison_name,
    contribution_name,
    on_grid,
    own_names,
    parse_pairs,
    parse_pareto,
    parse_seeds,
)
from fairflare.app.failures import explained
from fairflare.app.options import (
    PATH,
    AnyPath,
    accept_option,
    as_json,
    cache_option,
    config_options,
    env_option,
    force_option,
    out_option,
    parts_option,
    rounds_option,
    run_options,
    set_option,
    sites_option,
    task_option,
    threads_option,
    weights_option,
    with_accepted,
    workers_option,
)
from fairflare.core.errors import RunFailed, UserError
from fairflare.core.processes import ends_by_signal
from fairflare.core.validation import CONTROL, JOB_NAME, shown

if TYPE_CHECKING:
    from fairflare.build.config import RunConfig


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="fairflare")
def cli() -> None:
    """Fair federated learning for hospitals, as NVIDIA FLARE jobs."""


@cli.command("list")
@click.option("--parts", is_flag=True, help="The parts instead: selectors, trainers, probes, rules, server optimizers.")
@as_json
def list_methods(parts: bool, as_json: bool) -> None:
    """Methods: what they are for, what they cost, and their parameters with defaults."""
    from fairflare.app import console
    from fairflare.app.catalogue import method_rows, part_rows

    rows, show = (part_rows(), console.parts) if parts else (method_rows(), console.methods)
    console.dump(rows) if as_json else show(rows)


@cli.command("tasks")
@as_json
def list_tasks(as_json: bool) -> None:
    """Tasks and presets: sites, sizes, metrics, what is real and what is simulated."""
    from fairflare.app import console
    from fairflare.app.catalogue import task_rows

    rows = task_rows()
    console.dump(rows) if as_json else console.tasks(rows)


@cli.command()
@config_options
@click.option("--solo", is_flag=True, help="Beside it every site alone: --out holds both runs and their comparison.")
@click.option("--pooled", is_flag=True, help="Beside it one model on all sites' data, where these may be pooled.")
@run_options
@threads_option
@workers_option
@cache_option
@out_option
@force_option
@as_json
def run(
    config: RunConfig,
    solo: bool,
    pooled: bool,
    env: str,
    deployment: dict[str, Any] | None,
    sim_threads: int | None,
    workers: int | None,
    out: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Run one federation of METHOD and write its report.

    With --solo or --pooled DIR holds a folder for this run and one for each reference, with their comparison, site by
    site; the same command goes on with what is missing.
    """
    from fairflare.app import console
    from fairflare.app.deployment import execute_deployed
    from fairflare.app.runs import default_folder, execute

    folder = out or default_folder(config)
    if names := [name for name, wanted in (("solo", solo), ("pooled", pooled)) if wanted]:
        if deployment:
            raise UserError(f"--{names[0]}: expected --env local or --env sim, got --env {env}")
        from fairflare.app.references import with_references
        from fairflare.app.runs import compare_all

        folder = out or folder.with_name(f"{folder.name}-with-{'-'.join(names)}")
        arms = with_references(config, names)
        comparison = compare_all(arms, folder, env=env, force=force, sim_threads=sim_threads, workers=workers)
        console.dump(comparison) if as_json else console.comparison(comparison, folder)
        return
    if deployment:
        summary = execute_deployed(config, folder, force=force, **deployment)
    else:
        summary = execute(config, folder, env=env, force=force, sim_threads=sim_threads, workers=workers)
    console.dump({"folder": str(folder), "report": summary}) if as_json else console.run_result(summary, folder)


@cli.command()
@click.argument("methods", nargs=-1, required=True, metavar="METHOD METHOD...")
@task_option
@click.option("--seeds", default="0", show_default=True, metavar="0,1,2", help="Seeds, matched across methods.")
@rounds_option
@sites_option
@parts_option
@set_option
@accept_option
@click.option(
    "--grid", multiple=True, metavar="KEY=A,B,C", help="Every METHOD that has KEY, at each value; repeatable."
)
@click.option("--fixed-data", is_flag=True, help="The same data for every seed, where a task draws them.")
@weights_option
@env_option
@threads_option
@workers_option
@cache_option
@out_option
@click.option("--tables", type=PATH, metavar="DIR", help="Also write CSV, Markdown, LaTeX and JSON here.")
@click.option(
    "--pareto",
    default="mean,worst",
    show_default=True,
    metavar="X,Y",
    help="Two quantities; dominated methods are marked.",
)
@click.option(
    "--resample",
    type=click.IntRange(0, 10_000),
    default=0,
    metavar="N",
    help="Also intervals over seeds and, N times for each, over resampled test patients; 200 will do.",
)
@click.option(
    "--test-on",
    multiple=True,
    metavar="KEY=VALUE,...",
    help="Also score the final models on the test patients as these options of the task deal them; repeatable.",
)
@force_option
@as_json
@click.pass_obj
def compare(
    command: str | None,
    methods: tuple[str, ...],
    task: str,
    seeds: str,
    rounds: int | None,
    sites: int | None,
    pairs: tuple[str, ...],
    accept: tuple[str, ...],
    grid: tuple[str, ...],
    fixed_data: bool,
    pretrained_weights: str | None,
    env: str,
    sim_threads: int | None,
    workers: int | None,
    out: Path | None,
    tables: Path | None,
    pareto: str,
    resample: int,
    test_on: tuple[str, ...],
    force: bool,
    as_json: bool,
) -> None:
    """Run methods on the same data, the same initial models and matched seeds, and compare them.

    Each seed draws the data anew where a task draws them (not with --fixed-data or --set data_seed=N). A METHOD may
    carry settings of its own: fedism-plus:state=L,q=1. --grid sweeps them: --grid radius=0,0.1,1 --grid beta=0,0.5,1
    runs fedufo nine times and fedavg once. Finished runs found in --out are reused. docs/comparing.md says what each
    number means; --test-on alpha=1 is FedUFO's training with one skew and testing with another.
    """
    from fairflare.app import console
    from fairflare.app.comparison import arms
    from fairflare.app.runs import check_tables, compare_all, write_tables
    from fairflare.app.second_look import check_elsewhere, look_again, parse_options

    shared: dict[str, Any] = {
        "rounds": rounds,
        "sites": sites,
        "values": parse_pairs(with_accepted(pairs, accept), pretrained_weights),
        "fixed_data": fixed_data,
    }
    configs = arms(on_grid(methods, grid), task, parse_seeds(seeds), **shared)
    folder = out or Path("runs") / comparison_name(task, {**shared, "env": env})
    front, options = parse_pareto(pareto), parse_options(test_on)
    for one in options:
        check_elsewhere(configs[0][1], one)
    if tables:
        check_tables(tables)
    comparison = compare_all(
        configs,
        folder,
        env=env,
        force=force,
        sim_threads=sim_threads,
        workers=workers,
        pareto=front,
        again=partial(look_again, resamples=resample, options=options),
    )
    if tables:
        write_tables(comparison, tables, command or "fairflare compare")
    console.dump(comparison) if as_json else console.comparison(comparison, folder)


@cli.command()
@click.argument("methods", nargs=-1, required=True, metavar="METHOD [METHOD...]")
@task_option
@click.option("--seeds", "--seed", default="0", show_default=True, metavar="0,1,2", help="Each with data of its own.")
@rounds_option
@sites_option
@parts_option
@set_option
@accept_option
@click.option("--shapley", is_flag=True, help="Also train coalitions: all up to 6 sites, else those of drawn orders.")
@click.option(
    "--permutations",
    type=click.IntRange(2, 1000),
    default=10,
    show_default=True,
    metavar="N",
    help="Orders in which more than 6 sites join.",
)
@click.option("--fixed-data", is_flag=True, help="The same data for every seed, where a task draws them.")
@weights_option
@workers_option
@cache_option
@out_option
@force_option
@as_json
def contribution(
    methods: tuple[str, ...],
    task: str,
    seeds: str,
    rounds: int | None,
    sites: int | None,
    pairs: tuple[str, ...],
    accept: tuple[str, ...],
    shapley: bool,
    permutations: int,
    fixed_data: bool,
    pretrained_weights: str | None,
    workers: int | None,
    out: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Measure each site's contribution: METHOD once with all sites and once without each of them.

    With several seeds each site's drop has an interval and a p value. Every further METHOD is run with all
    sites, and its weights are compared with what sites contribute, as those of the first one are. Finished runs found
    in --out are reused, so that an interrupted measurement goes on where it stopped.
    """
    from fairflare.app import console
    from fairflare.app.contribution import Question, measure_contribution

    values = parse_pairs(with_accepted(pairs, accept), pretrained_weights)
    choices = {"rounds": rounds, "sites": sites, "values": values}
    chosen, others = tuple(parse_seeds(seeds)), tuple(on_grid(methods, ())[1:])
    found = Question(methods[0], task, chosen, others, shapley, permutations, fixed_data, choices)
    folder = out or Path("runs") / contribution_name(methods[0], task, chosen)
    result = measure_contribution(found, folder, force=force, workers=workers)
    console.dump(result) if as_json else console.contribution(result, folder)


@cli.command()
@click.argument("name", required=False)
@click.option("--seeds", metavar="0,1,2", help="Seeds; the table's own by default.")
@rounds_option
@click.option(
    "--preset", "presets", multiple=True, metavar="T:PRESET", help="Another preset of task T; repeat for more."
)
@click.option("--data", multiple=True, metavar="KEY", help="Only this data set of a table of several; repeatable.")
@click.option("--stand-in", is_flag=True, help="Measure on the embedded tasks, whatever data are there.")
@set_option
@workers_option
@cache_option
@click.option("--out", type=PATH, default=Path("runs"), show_default=True, metavar="DIR", help="Where the runs go.")
@as_json
@click.pass_obj
def paper(
    command: str | None,
    name: str | None,
    seeds: str | None,
    rounds: int | None,
    presets: tuple[str, ...],
    data: tuple[str, ...],
    stand_in: bool,
    pairs: tuple[str, ...],
    workers: int | None,
    out: Path,
    as_json: bool,
) -> None:
    """Make table or figure NAME of a paper, e.g. fedheal-5; without NAME, list them all with time and data.

    The paper's data are read from the folder that FAIRFLARE_DATA names; where they are not there, an embedded task
    stands for them, and the caption says so. Runs lie in --out as those of compare; what is finished is reused, and
    the same command goes on after an interruption. Tables are written to --out/papers as Markdown, CSV, LaTeX, HTML
    and JSON, figures as SVG beside them.
    """
    from fairflare.app import console
    from fairflare.app.paper_list import paper_rows, preset_pairs, show_papers, show_written

    if name is None:
        rows = paper_rows(out)
        console.dump(rows) if as_json else show_papers(rows)
        return
    from fairflare.app.paper import Choices, make_exhibit
    from fairflare.papers.index import named

    chosen = Choices(
        seeds=tuple(parse_seeds(seeds)) if seeds is not None else None,
        rounds=rounds,
        values=parse_pairs(pairs),
        presets=preset_pairs(presets),
        stand_in=stand_in,
        data=data,
    )
    found = make_exhibit(named(name), out, chosen, command=command or f"fairflare paper {name}", workers=workers)
    console.dump(found) if as_json else show_written(found)


@cli.command()
@click.argument("methods", nargs=-1, required=True, metavar="METHOD [METHOD...]")
@task_option
@click.option("--seeds", default="0", show_default=True, metavar="0,1,2", help="Each with data and a rider of its own.")
@click.option("--kinds", default="zeros,noise,stale,copied", show_default=True, metavar="A,B", help="Also: repeated.")
@rounds_option
@sites_option
@parts_option
@set_option
@accept_option
@click.option("--fixed-data", is_flag=True, help="The same data for every seed, where a task draws them.")
@weights_option
@workers_option
@cache_option
@out_option
@force_option
@as_json
def riders(
    methods: tuple[str, ...],
    task: str,
    seeds: str,
    kinds: str,
    rounds: int | None,
    sites: int | None,
    pairs: tuple[str, ...],
    accept: tuple[str, ...],
    fixed_data: bool,
    pretrained_weights: str | None,
    workers: int | None,
    out: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Simulate free riders under each METHOD: who finds them, and who is accused instead.

    One site, another for each seed, sends zeros, noise, the last global step, another site's update, or trains with one
    image again and again. Detectors see what the server sees. docs/comparing.md says what each of them marks.
    """
    from fairflare.app import console
    from fairflare.app.contribution import Question
    from fairflare.app.riders import measure_riders

    values = parse_pairs(with_accepted(pairs, accept), pretrained_weights)
    choices = {"rounds": rounds, "sites": sites, "values": values}
    others = tuple(on_grid(methods, ())[1:])
    question = Question(methods[0], task, tuple(parse_seeds(seeds)), others, fixed_data=fixed_data, choices=choices)
    folder = out or Path("runs") / comparison_name(task, {**choices, "fixed_data": fixed_data}).replace(
        "compare", "riders", 1
    )
    wanted = [kind.strip() for kind in kinds.split(",")]
    found = measure_riders(question, wanted, folder, force=force, workers=workers)
    console.dump(found) if as_json else console.riders(found, folder)


@cli.command()
@config_options
@click.option("--out", type=PATH, required=True, metavar="DIR", help="The job folder to write.")
@click.option("--name", help="The job's name; made of method and task by default.")
@click.option("--simulation", is_flag=True, help="Short polling intervals, for the simulator only.")
@click.option("--preinstalled", is_flag=True, help="Without code, for sites that have this package.")
@force_option
def export(
    config: RunConfig,
    out: Path,
    name: str | None,
    simulation: bool,
    preinstalled: bool,
    force: bool,
) -> None:
    """Write a deployable FLARE job folder: meta.json, app/config and app/custom with this package."""
    from fairflare.app import console
    from fairflare.app.runs import export_job

    if name is not None and not JOB_NAME.fullmatch(name):
        raise UserError(f"--name: expected letters, digits, ., - and _, at most 64, got {shown(name)}")
    export_job(config, out, name=name, simulation=simulation, force=force, preinstalled=preinstalled)
    console.say(f"job folder: {out}\nsubmit it:  nvflare job submit -j {out}")


@cli.command()
@click.argument("site_config", type=PATH)
@click.option("--kind", type=click.Choice(KINDS), help="What the data are, where they have a datalist.")
@click.option("--task", metavar="T[:PRESET]", help="Another task that reads files, e.g. prostate:paper.")
@click.option("--classes", metavar="N", help="Classes or structures: a number, or names A,B,C.")
@click.option("--site", metavar="NAME", help="The site's name in the task; the configuration file's by default.")
@click.option("--method", metavar="METHOD", help="The method that the data are for: what only it needs is an error.")
@accept_option
@set_option
@as_json
def preflight(
    site_config: Path,
    kind: str | None,
    task: str | None,
    classes: str | None,
    site: str | None,
    method: str | None,
    accept: tuple[str, ...],
    pairs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Look for what is wrong with a site's data; exit code 1 when a run would be refused.

    Run it at the hospital: its lines may name files. With --json it prints what may leave the site: no counts but
    the bands they lie in.
    """
    from fairflare.app import console
    from fairflare.app.preflight import check_site, leaving
    from fairflare.core.findings import accepted_codes

    chosen = kind or task
    if chosen is None or (kind and task):
        raise UserError("preflight: expected either --kind or --task")
    values, accepted = own_names(parse_pairs(pairs), "task", "run"), accepted_codes(list(accept))
    findings = check_site(site_config, chosen, classes, values, site, method, accepted)
    console.dump(leaving(site_config, findings)) if as_json else console.findings(findings)
    if any(f.level == "error" for f in findings):
        raise RunFailed("preflight: the data have errors, no run can start")


@cli.command()
@click.argument("folder", type=PATH)
@threads_option
@cache_option
@workers_option
@as_json
def resume(folder: Path, sim_threads: int | None, workers: int | None, as_json: bool) -> None:
    """Continue the interrupted or failed run in FOLDER after its last finished round."""
    from fairflare.app import console
    from fairflare.app.runs import resume as resume_run

    summary = resume_run(folder, sim_threads=sim_threads, workers=workers)
    console.dump({"folder": str(folder), "report": summary}) if as_json else console.run_result(summary, folder)


@cli.command()
@click.argument("dataset")
@click.argument("source", type=AnyPath(path_type=Path, exists=True, file_okay=False))
@click.argument("dest", type=PATH)
@set_option
@as_json
def prepare(dataset: str, source: Path, dest: Path, pairs: tuple[str, ...], as_json: bool) -> None:
    """Write DATASET, which lies below SOURCE, to DEST as images of one size with a datalist per site.

    DATASET is a task that reads images from disk, e.g. rsna-ich or prostate:paper; --set changes its options. Corrupted
    images that it lacks are made, once and seeded. Nothing is downloaded.
    """
    from fairflare.app import console
    from fairflare.app.preparation import prepare_dataset

    with console.Counter(f"preparing {dataset}") as counter:
        found = prepare_dataset(dataset, source, dest, own_names(parse_pairs(pairs), "task"), counter.saw)
    console.dump(found) if as_json else console.prepared(found, dest)


@cli.command()
@click.argument("kind", type=click.Choice(("rule", "trainer", "probe")))
@click.argument("name")
@click.option("--out", type=PATH, default=Path(), metavar="DIR", help="Where to write; the current folder by default.")
@as_json
def new(kind: str, name: str, out: Path, as_json: bool) -> None:
    """Write a working rule, trainer or probe NAME as a plugin of one file, with its test and its card.

    No file is overwritten. The example is a method of its own at once: run it, then change it.
    """
    from fairflare.app import console
    from fairflare.app.scaffold import write_part

    files = write_part(kind, name, out)
    console.dump({"files": [str(path) for path in files]}) if as_json else console.written(files, name)


@cli.command()
@click.argument("folder", type=PATH)
@click.option("--step", type=click.Choice(("recalibrate", "conformal")), required=True, help="What is done.")
@set_option
@as_json
def after(folder: Path, step: str, pairs: tuple[str, ...], as_json: bool) -> None:
    """Recalibrate the model of the finished run in FOLDER, or set thresholds, for each site or group.

    The sites' data must be on this machine; a deployed run takes the step itself, with --set after=STEP. The model
    stays as it is; the report shows what came of it, and each site keeps its own in sites/SITE.after.json.
    """
    from fairflare.app import console
    from fairflare.app.after import take_step

    found = take_step(folder, step, parse_pairs(pairs))
    console.dump({"folder": str(folder), "report": found}) if as_json else console.run_result(found, folder)


@cli.command()
@click.argument("folder", type=PATH)
@as_json
def report(folder: Path, as_json: bool) -> None:
    """(Re)write report.html and report.json of the run in FOLDER."""
    from fairflare.app import console
    from fairflare.app.runs import report_again

    with console.busy("scoring the final model"):
        summary = report_again(folder)
    console.dump(summary) if as_json else console.run_result(summary, folder)


@cli.command()
@click.argument("folder", type=PATH)
@click.option("--head", default="", metavar="HASH", help="A head that was kept: the log must hold that line.")
@as_json
def verify(folder: Path, head: str, as_json: bool) -> None:
    """Check that audit log, model, checkpoint, configuration and reports of the run in FOLDER fit together.

    Says what is absent: "not ended" of a run that was cut short, "no report". Exits with 1 when a completed run lacks
    its report.
    """
    from fairflare.app import console
    from fairflare.federation.history import events
    from fairflare.report.write import absent, verified_run

    run_history, entries = verified_run(folder, head)
    happened, lacks = events(entries), absent(folder, run_history)
    whole = not (run_history.completed and lacks)
    head, status = happened[-1]["hash"], run_history.finish.get("status")
    if as_json:
        found = {"entries": len(happened), "head": head, "verified": whole}
        console.dump({**found, "ended": bool(run_history.finish), "status": status, "absent": lacks})
    else:
        words = "verified" if whole else "NOT verified"
        console.say("; ".join([f"{words}: {len(happened)} entries, chain head {head}", *lacks]))
    if not whole:
        click.get_current_context().exit(1)


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the console script."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        for word in given:
            if CONTROL.search(word):
                raise UserError(f"expected arguments that are text without control characters, got {shown(word)}")
        command = shlex.join(["fairflare", *given])
        with ends_by_signal():
            code = cli.main(given, standalone_mode=False, obj=command) or 0
    except click.exceptions.NoArgsIsHelpError as help:
        click.echo(help.format_message())
        code = 0
    except (KeyboardInterrupt, Exception) as error:
        code = explained(error)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
