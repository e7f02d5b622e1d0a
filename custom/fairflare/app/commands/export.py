# SPDX-License-Identifier: Apache-2.0
"""`fairflare export`: a deployable job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairflare.app.options import PATH, config_options, force_option
from fairflare.app.run_file import OF_A_RUN, RunCommand

if TYPE_CHECKING:
    from fairflare.engine.setup.config import RunConfig


@click.command(cls=RunCommand, skips=OF_A_RUN)
@config_options
@click.option("--out", type=PATH, required=True, metavar="DIR", help="The job folder to write.")
@click.option("--name", help="The job's name; made of method and task by default.")
@click.option("--solo/--no-solo", default=None, help="Each site also trains alone, and says what joining gives it.")
@click.option("--simulation", is_flag=True, help="Short polling intervals, for the simulator only.")
@click.option("--preinstalled", is_flag=True, help="Without code, for sites that have this package.")
@force_option
def export(
    config: RunConfig,
    out: Path,
    name: str | None,
    solo: bool | None,
    simulation: bool,
    preinstalled: bool,
    force: bool,
) -> None:
    """Write a deployable FLARE job folder: meta.json, and an app each for server and sites with what of this package
    they run, see `fairflare inspect`.

    METHOD may be a YAML file as `fairflare run` takes it, whose keys on where and how it runs are left aside.
    """
    from fairflare.app import console
    from fairflare.app.job_folders import export_job
    from fairflare.engine.setup.config import with_benefit

    config = with_benefit(config, config.solo if solo is None else solo)
    export_job(config, out, name=name, simulation=simulation, force=force, preinstalled=preinstalled)
    console.say(f"job folder: {out}\nsubmit it:  nvflare job submit -j {out}")
