# SPDX-License-Identifier: Apache-2.0
"""What a ``job.py`` runs: one method on one task as a FLARE recipe, in the simulator or as a job folder."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence

from nvflare.recipe import SimEnv

from fairflare.engine.setup.config import make_config
from fairflare.flare.recipe import FairRecipe


def main(method: str, task: str, name: str, *, arguments: Sequence[str] | None = None, **values: object) -> None:
    """Run the recipe in FLARE's simulator; with FLARE's ``--export --export-dir D``, write the job folder ``D/name``.

    Args:
        task: the task, with a preset after a colon where it has several.
        arguments: the command line after the script's name; the process's own when None.
        values: settings of the run that differ from their defaults, as for ``make_config``.

    Raises:
        UserError: unknown method, task or setting, or a value that does not fit.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # FLARE ends its processes on Ctrl-C only
    parser = argparse.ArgumentParser(description="Run in FLARE's simulator; --export --export-dir D writes the job.")
    parser.add_argument("--rounds", type=int, help="communication rounds; the preset's by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--production", action="store_true", help="FLARE's own polling intervals")
    parser.add_argument("--workspace", default=f"runs/{name}")
    options = parser.parse_args(arguments)
    config = make_config(method, task, rounds=options.rounds, seed=options.seed, values=values)
    recipe = FairRecipe(config, name=name, simulation=not options.production)
    recipe.execute(SimEnv(clients=recipe.sites, workspace_root=options.workspace))
