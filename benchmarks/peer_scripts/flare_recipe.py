# SPDX-License-Identifier: Apache-2.0
"""FLARE's own FedAvgRecipe in FLARE's simulator: ``flare_recipe.py ROUNDS SITES WORKSPACE``."""

import sys

from common import Network
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

if __name__ == "__main__":
    rounds, sites, workspace = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    recipe = FedAvgRecipe(
        name="peer", model=Network(), min_clients=sites, num_rounds=rounds, train_script="flare_site.py"
    )
    recipe.execute(SimEnv(num_clients=sites, num_threads=sites, workspace_root=workspace))
