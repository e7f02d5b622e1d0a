# SPDX-License-Identifier: Apache-2.0
"""FLARE recipe: `python job.py` runs in the simulator, `--export --export-dir D` writes the job folder."""

import argparse

from nvflare.recipe import SimEnv

from fairflare.config import make_config
from fairflare.flare.recipe import FairRecipe


def main() -> None:
    """Build the recipe and run or export it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, help="communication rounds; the preset's by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--production", action="store_true", help="FLARE's own polling intervals")
    parser.add_argument("--workspace", default="runs/fedufo_support2")
    options = parser.parse_args()
    config = make_config(
        "fedufo", "support2", rounds=options.rounds, seed=options.seed, values={"group_by": "label+sex"}
    )
    recipe = FairRecipe(config, name="fedufo_support2", simulation=not options.production)
    recipe.execute(SimEnv(clients=recipe.sites, workspace_root=options.workspace))


if __name__ == "__main__":
    main()
