# SPDX-License-Identifier: Apache-2.0
"""`fairflare run` and `fairflare resume`: one federation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairflare.app.options import (
    PATH,
    as_json,
    cache_option,
    config_options,
    force_option,
    out_option,
    run_options,
    threads_option,
    workers_option,
)
from fairflare.app.run_file import RunCommand
from fairflare.core.errors import UserError

if TYPE_CHECKING:
    from fairflare.engine.setup.config import RunConfig


@click.command(cls=RunCommand)
@config_options
@click.option(
    "--solo/--no-solo",
    default=None,
    help="Each site also trains alone, and says what joining gives it; by default on tables and your own data.",
)
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
    solo: bool | None,
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

    METHOD may be a YAML file whose keys are these options: docs/python.md. What is given beside it wins.

    With --pooled DIR holds a folder for this run and one for the pooled one, with their comparison, site by site; the
    same command goes on with what is missing.
    """
    from fairflare.app import console, results
    from fairflare.app.deployment import execute_deployed
    from fairflare.app.runs import default_folder, execute

    folder = out or default_folder(config)
    config = with_solo(config, solo, env)
    if pooled:
        if deployment:
            raise UserError(f"--pooled: expected --env local or --env sim, got --env {env}")
        from fairflare.app.comparison import compare_all
        from fairflare.app.references import with_references

        folder = out or folder.with_name(f"{folder.name}-with-pooled")
        arms = with_references(config, ["pooled"])
        comparison = compare_all(arms, folder, env=env, force=force, sim_threads=sim_threads, workers=workers)
        console.dump(comparison) if as_json else results.comparison(comparison, folder)
        return
    if deployment:
        summary = execute_deployed(config, folder, force=force, **deployment)
    else:
        summary = execute(config, folder, env=env, force=force, sim_threads=sim_threads, workers=workers)
    console.dump({"folder": str(folder), "report": summary}) if as_json else results.run_result(summary, folder)


def with_solo(config: RunConfig, solo: bool | None, env: str) -> RunConfig:
    """``config`` with what ``--solo`` or ``--no-solo`` says, else with ``--set solo=...``, else as it goes by itself.

    Args:
        config: the run.
        solo: None: neither was given.
        env: where it runs; a deployed federation has to be asked.
    """
    from fairflare.engine.setup.config import asks_by_itself, with_benefit

    if solo is None:
        given = {pair.partition("=")[0].strip() for pair in click.get_current_context().params["pairs"]}
        by_itself = env in ("local", "sim") and asks_by_itself(config)
        solo = config.solo if given & {"solo", "run.solo"} else by_itself
    return with_benefit(config, solo)


@click.command()
@click.argument("folder", type=PATH)
@threads_option
@cache_option
@workers_option
@as_json
def resume(folder: Path, sim_threads: int | None, workers: int | None, as_json: bool) -> None:
    """Continue the interrupted or failed run in FOLDER after its last finished round."""
    from fairflare.app import console, results
    from fairflare.app.runs import resume as resume_run

    summary = resume_run(folder, sim_threads=sim_threads, workers=workers)
    console.dump({"folder": str(folder), "report": summary}) if as_json else results.run_result(summary, folder)
