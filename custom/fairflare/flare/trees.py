# SPDX-License-Identifier: Apache-2.0
"""FLARE's own federation of XGBoost (bagging) in its simulator; ``python -m fairflare.flare.trees`` is its child.

In every round each site grows a tree on what the model of the round before leaves, and the model gets them all, each
with the learning rate divided by the number of sites. XGBoost is an extra: ``pip install fairflare[trees]``.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xgboost
from nvflare.app_opt.xgboost.data_loader import XGBDataLoader
from nvflare.app_opt.xgboost.recipes import XGBBaggingRecipe
from nvflare.app_opt.xgboost.tree_based.executor import FedXGBTreeExecutor

from fairflare.core.errors import RunFailed
from fairflare.core.processes import SCRATCH

NAME = "trees"
MODEL = f"{NAME}/server/simulate_job/app_server/xgboost_model.json"
ROWS = ".npz"
DEPTH, RATE = 6, 0.3
"""XGBoost's own defaults; nothing is tuned."""
INTERCEPT = 0.5
"""A probability."""


class SiteRows(XGBDataLoader):
    """A site's training rows, from the file that ``grown`` has written."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def load_data(self) -> tuple[xgboost.DMatrix, xgboost.DMatrix]:
        found = np.load(Path(self.folder) / f"{self.client_id}{ROWS}")
        rows = xgboost.DMatrix(found["x"], found["y"])
        return rows, rows  # FLARE's second one is for a line in its log


class SameIntercept(FedXGBTreeExecutor):
    """FLARE's executor with one intercept at all sites.

    Without it XGBoost takes each site's own share of 1 for the intercept, the sites' trees are fitted to what different
    intercepts leave, and the model has that of the site that answers first: a risk of 1 where all its outcomes are 1.
    """

    def _get_xgb_train_params(self) -> dict[str, Any]:
        return {**super()._get_xgb_train_params(), "base_score": INTERCEPT}


class Bagging(XGBBaggingRecipe):
    """FLARE's recipe with ``SameIntercept``."""

    def _add_client_components(self, job: Any, site_name: str, site_config: dict[str, Any]) -> None:
        executor = SameIntercept(
            data_loader_id=self.data_loader_id,
            training_mode=self.training_mode,
            num_client_bagging=self.num_client_bagging,
            local_subsample=self.local_subsample,
            learning_rate=self.learning_rate,
            max_depth=self.max_depth,
            nthread=self.nthread,
            lr_scale=1.0,
        )
        job.to(executor, site_name, id="xgb_tree_executor")
        job.to(site_config["data_loader"], site_name, id=self.data_loader_id)


def grown(rows: Mapping[str, tuple[np.ndarray, np.ndarray]], rounds: int) -> xgboost.Booster:
    """The federated trees.

    Args:
        rows: site -> inputs (N, F) and outcomes (N,) of 0 and 1, N at least 1; two sites or more.
        rounds: >= 1; each adds a tree per site.

    Raises:
        RunFailed: FLARE's simulator has left no model; quotes its log.
    """
    with tempfile.TemporaryDirectory(prefix=SCRATCH, ignore_cleanup_errors=True) as scratch:
        for place, (x, y) in enumerate(rows.values(), start=1):
            np.savez(Path(scratch) / f"site-{place}{ROWS}", x=x, y=y)  # FLARE reads a site's rank from such a name
        command = [sys.executable, "-m", __spec__.name, scratch, str(len(rows)), str(rounds)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        model = Path(scratch) / MODEL
        if done.returncode or not model.is_file():
            raise RunFailed(f"FLARE's trees ended with code {done.returncode}: {done.stdout.strip()[-300:]}")
        return xgboost.Booster(model_file=model)


def main(folder: str, n_sites: int, rounds: int) -> None:
    """The simulator's run, as ``grown`` starts it."""
    from nvflare.recipe import SimEnv, set_per_site_config

    sites = [f"site-{place}" for place in range(1, n_sites + 1)]
    recipe = Bagging(NAME, n_sites, num_rounds=rounds, learning_rate=RATE, max_depth=DEPTH, nthread=1)
    set_per_site_config(recipe, {site: {"data_loader": SiteRows(folder)} for site in sites})
    recipe.execute(SimEnv(clients=sites, workspace_root=folder))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
