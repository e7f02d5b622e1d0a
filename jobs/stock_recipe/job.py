# SPDX-License-Identifier: Apache-2.0
"""FLARE's own FedAvgRecipe with a fair rule in it: `cd jobs/stock_recipe`, `python job.py` runs in the simulator."""

import argparse
import signal

from network import Network
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

from fairflare.flare.aggregator import FairAggregator


def main() -> None:
    """Build the recipe and run or export it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # FLARE ends its processes on Ctrl-C only
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workspace", default="runs")
    options = parser.parse_args()
    recipe = FedAvgRecipe(
        name="stock_recipe",
        model=Network(),
        min_clients=3,
        num_rounds=options.rounds,
        train_script="client.py",
        aggregator=FairAggregator("fedism"),
        params_transfer_type="DIFF",
        key_metric="loss",
        key_metric_mode="min",
    )
    recipe.execute(SimEnv(num_clients=3, workspace_root=options.workspace))


if __name__ == "__main__":
    main()
