# SPDX-License-Identifier: Apache-2.0
"""The command line: thin. Errors are one line; exit code 2 for a user's mistake, 1 for a failed run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairflare import __version__
from fairflare.arguments import KINDS, on_grid, parse_pairs, parse_seeds, split_method
from fairflare.errors import FairFlareError, MissingData, RunFailed, UserError
from fairflare.options import (
    as_json,
    config_options,
    env_option,
    force_option,
    out_option,
    rounds_option,
    run_options,
    set_option,
    sites_option,
    task_option,
    threads_option,
    weights_option,
)

if TYPE_CHECKING:
    from fairflare.config import RunConfig


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="fairflare")
def cli() -> None:
    """Fair federated learning for hospitals, as NVIDIA FLARE jobs."""


@cli.command("list")
@as_json
def list_methods(as_json: bool) -> None:
    """Methods: what they are for, what they cost, and their parameters with defaults."""
    from fairflare import console
    from fairflare.describe import method_rows

    rows = method_rows()
    console.dump(rows) if as_json else console.methods(rows)


@cli.command("tasks")
@as_json
def list_tasks(as_json: bool) -> None:
    """Tasks and presets: sites, sizes, metrics, what is real and what is simulated."""
    from fairflare import console
    from fairflare.describe import task_rows

    rows = task_rows()
    console.dump(rows) if as_json else console.tasks(rows)


@cli.command()
@config_options
@run_options
@threads_option
@out_option
@force_option
@as_json
def run(
    config: RunConfig,
    env: str,
    deployment: dict[str, Any] | None,
    sim_threads: int | None,
    out: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Run one federation of METHOD and write its report."""
    from fairflare import console
    from fairflare.deployment import execute_deployed
    from fairflare.runs import default_folder, execute

    folder = out or default_folder(config)
    if deployment:
        summary = execute_deployed(config, folder, force=force, **deployment)
    else:
        summary = execute(config, folder, env=env, force=force, sim_threads=sim_threads)
    console.dump({"folder": str(folder), "report": summary}) if as_json else console.run_result(summary, folder)


@cli.command()
@click.argument("methods", nargs=-1, required=True, metavar="METHOD METHOD...")
@task_option
@click.option("--seeds", default="0", show_default=True, metavar="0,1,2", help="Seeds, matched across methods.")
@rounds_option
@sites_option
@set_option
@click.option(
    "--grid", multiple=True, metavar="KEY=A,B,C", help="Every METHOD that has KEY, at each value; repeatable."
)
@weights_option
@env_option
@threads_option
@out_option
@force_option
@as_json
def compare(
    methods: tuple[str, ...],
    task: str,
    seeds: str,
    rounds: int | None,
    sites: int | None,
    pairs: tuple[str, ...],
    grid: tuple[str, ...],
    pretrained_weights: str | None,
    env: str,
    sim_threads: int | None,
    out: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Run methods on the same data, the same initial models and matched seeds, and compare them.

    A METHOD may carry settings of its own: fedism-plus:state=L,q=1. --grid sweeps settings: --grid radius=0,0.1,1
    --grid beta=0,0.5,1 runs fedufo nine times and fedavg once. Finished runs found in --out are reused, so that an
    interrupted comparison goes on where it stopped.
    """
    from fairflare import console
    from fairflare.config import make_config
    from fairflare.runs import compare_all

    shared = parse_pairs(pairs, pretrained_weights)
    configs = []
    for label in on_grid(methods, grid):
        name, own = split_method(label)
        for seed in parse_seeds(seeds):
            config = make_config(name, task, rounds=rounds, sites=sites, seed=seed, values=shared | own)
            configs.append((f"{label.replace(':', '-').replace(',', '-')}-seed{config.seed}", config))
    folder = out or Path("runs") / f"compare-{task.replace(':', '-')}"
    comparison = compare_all(configs, folder, env=env, force=force, sim_threads=sim_threads)
    console.dump(comparison) if as_json else console.comparison(comparison, folder)


@cli.command()
@config_options
@out_option
@force_option
@as_json
def contribution(
    config: RunConfig,
    out: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Measure each site's contribution: METHOD once with all sites and once without each of them.

    Finished runs found in --out are reused, so that an interrupted measurement goes on where it stopped.
    """
    from fairflare import console
    from fairflare.assembly import site_names
    from fairflare.contribution import measure_contribution

    folder = out or Path("runs") / f"contribution-{config.method}-{config.task}-{config.preset}-seed{config.seed}"
    found = measure_contribution(config, site_names(config), folder, force=force)
    console.dump(found) if as_json else console.contribution(found, folder)


@cli.command()
@config_options
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="The job folder to write.")
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
    from fairflare import console
    from fairflare.runs import export_job

    export_job(config, out, name=name, simulation=simulation, force=force, preinstalled=preinstalled)
    console.say(f"job folder: {out}\nsubmit it:  nvflare job submit -j {out}")


@cli.command()
@click.argument("site_config", type=click.Path(path_type=Path))
@click.option("--kind", type=click.Choice(KINDS), help="What the data are, where they have a datalist.")
@click.option("--task", metavar="T[:PRESET]", help="Another task that reads files, e.g. prostate:paper.")
@click.option("--classes", metavar="N", help="Classes or structures: a number, or names A,B,C.")
@click.option("--site", metavar="NAME", help="The site's name in the task; the configuration file's by default.")
@set_option
@as_json
def preflight(
    site_config: Path,
    kind: str | None,
    task: str | None,
    classes: str | None,
    site: str | None,
    pairs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Look for what is wrong with a site's data; exit code 1 when a run would be refused.

    Run it at the hospital: its lines may name files. With --json it prints what may leave the site.
    """
    from fairflare import console
    from fairflare.preflight import check_site

    if (kind is None) == (task is None):
        raise UserError("preflight: expected either --kind or --task")
    findings = check_site(site_config, kind or task, classes, parse_pairs(pairs), site)
    console.dump([f.public for f in findings]) if as_json else console.findings(findings)
    if any(f.level == "error" for f in findings):
        raise RunFailed("preflight: the data have errors, no run can start")


@cli.command()
@click.argument("folder", type=click.Path(path_type=Path))
@threads_option
@as_json
def resume(folder: Path, sim_threads: int | None, as_json: bool) -> None:
    """Continue the interrupted or failed run in FOLDER after its last finished round."""
    from fairflare import console
    from fairflare.runs import resume as resume_run

    summary = resume_run(folder, sim_threads=sim_threads)
    console.dump({"folder": str(folder), "report": summary}) if as_json else console.run_result(summary, folder)


@cli.command()
@click.argument("dataset")
@click.argument("source", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("dest", type=click.Path(path_type=Path))
@set_option
@as_json
def prepare(dataset: str, source: Path, dest: Path, pairs: tuple[str, ...], as_json: bool) -> None:
    """Write DATASET, which lies below SOURCE, to DEST as images of one size with a datalist per site.

    DATASET is a task that reads images from disk, e.g. rsna-ich or prostate:paper; --set changes its options. Corrupted
    images that it lacks are made, once and seeded. Nothing is downloaded.
    """
    from fairflare import console
    from fairflare.preparation import prepare_dataset

    with console.Counter(f"preparing {dataset}") as counter:
        found = prepare_dataset(dataset, source, dest, parse_pairs(pairs), counter.saw)
    console.dump(found) if as_json else console.prepared(found, dest)


@cli.command()
@click.argument("folder", type=click.Path(path_type=Path))
@as_json
def report(folder: Path, as_json: bool) -> None:
    """(Re)write report.html and report.json of the run in FOLDER."""
    from fairflare import console
    from fairflare.report.write import write_report

    with console.busy("scoring the final model"):
        summary = write_report(folder)
    console.dump(summary) if as_json else console.run_result(summary, folder)


@cli.command()
@click.argument("folder", type=click.Path(path_type=Path))
@as_json
def verify(folder: Path, as_json: bool) -> None:
    """Check the audit chain of the run in FOLDER, and that model.pt is the model it ends with."""
    from fairflare import console
    from fairflare.report.write import verify_run

    entries = verify_run(folder)
    head = entries[-1]["hash"] if entries else ""
    if as_json:
        console.dump({"entries": len(entries), "head": head, "verified": True})
    else:
        console.say(f"verified: {len(entries)} entries, chain head {head}")


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the console script."""
    try:
        code = cli.main(arguments, standalone_mode=False) or 0
    except click.exceptions.NoArgsIsHelpError as help:
        click.echo(help.format_message())
        code = 0
    except click.ClickException as error:
        code = _complain(" ".join(error.format_message().split()), 2)
    except FairFlareError as error:
        code = _complain(" ".join(str(error).split()), error.exit_code)
        if isinstance(error, MissingData):
            click.echo(error.tree, err=True)
    except (KeyboardInterrupt, click.Abort):
        code = _complain("interrupted", 130)
    except Exception as error:
        if os.environ.get("FAIRFLARE_DEBUG"):
            raise
        words = " ".join(f"{type(error).__name__}: {error}".split())
        code = _complain(f"internal error: {words} (FAIRFLARE_DEBUG=1 shows where)", 1)
    sys.exit(code if isinstance(code, int) else 0)


def _complain(text: str, code: int) -> int:
    click.echo(f"fairflare: {text}", err=True)
    return code


if __name__ == "__main__":
    main()
