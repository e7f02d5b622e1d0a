# SPDX-License-Identifier: Apache-2.0
"""What each site is worth, measured: the same federation once with all sites and once without each of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fairflare.app.folders import CONTRIBUTION as RESULT
from fairflare.app.folders import check_collection, created, opened
from fairflare.app.parallel import budget, run_all
from fairflare.app.runs import run_once
from fairflare.build.config import RunConfig, checked_config
from fairflare.core.errors import UserError
from fairflare.federation.state import save_json
from fairflare.report.agreement import agreement, leave_one_out_shares
from fairflare.report.fairness import mean

ALL, WITHOUT = "all-sites", "without-"


def measure_contribution(
    config: RunConfig, sites: list[str], folder: Path, *, force: bool = False, workers: int | None = 1
) -> dict[str, Any]:
    """Run K + 1 federations in process and compare the method's weights with what leaving sites out costs.

    A site's drop is the score with all sites minus the score without it; the score is the mean over all K sites' own
    test splits, the left-out site's too, of the task's headline metric. Shares are drops over their sum, gains as 0
    (Jiang et al., FedCE, arXiv:2303.16520, supplement). Runs that are found finished in ``folder`` are not run again,
    and one that was cut short goes on.

    Args:
        config: the run with all sites.
        sites: their names, at least three.
        folder: gets a folder per run and ``contribution.json``.
        force: runs everything again.
        workers: processes that compute side by side, see ``parallel.budget``.

    Returns:
        method, task, seed, metric, score; sites: one row each with score_without, drop, share, weight (of the last
        round with all sites) and data_share; agreement of "weights" and "examples" with the shares (Pearson x 100,
        Euclidean distance, cosine).

    Raises:
        UserError: fewer than three sites, or a folder that holds something else.
    """
    if len(sites) < 3:
        raise UserError(f"contribution: expected at least 3 sites, got {len(sites)}")
    if config.leave_out:
        raise UserError("leave_out: is what this command varies; do not set it")
    runs = {ALL: config}
    fewer = min(config.min_sites, len(sites) - 1)
    runs |= {
        f"{WITHOUT}{site}": checked_config(dataclasses.replace(config, leave_out=site, min_sites=fewer))
        for site in sites
    }
    check_collection(folder, lambda name: name == ALL or name.startswith(WITHOUT))
    at_once = budget(workers, "local", list(runs.items()))
    with created(folder), opened(folder):
        reports = run_all(list(runs.items()), folder, partial(run_once, force=force), at_once)
        result = contribution_of(dict(zip(runs, reports, strict=True)), sites)
        save_json(folder / RESULT, result)
    return result


def contribution_of(reports: Mapping[str, Any], sites: list[str]) -> dict[str, Any]:
    """The result from the report.json of each run, by the run's name."""
    full = reports[ALL]
    metric = full["fairness"]["metric"]
    score = _score(full, metric)
    without = {site: _score(reports[f"{WITHOUT}{site}"], metric) for site in sites}
    drops = {site: score - without[site] for site in sites}
    shares = leave_one_out_shares(drops)
    weights = {site: full["sites"][site]["weight"][-1] or 0.0 for site in sites}
    total = sum(full["sites"][site]["n_train"] for site in sites)
    examples = {site: full["sites"][site]["n_train"] / total for site in sites}
    rows = [
        {
            "site": site,
            "score_without": without[site],
            "drop": drops[site],
            "share": shares[site],
            "weight": weights[site],
            "data_share": examples[site],
        }
        for site in sites
    ]
    keys = ("method", "task", "seed")
    return {
        **{key: full[key] for key in keys},
        "metric": metric,
        "score": score,
        "sites": rows,
        "agreement": {"weights": agreement(weights, shares), "examples": agreement(examples, shares)},
    }


def _score(report: dict[str, Any], metric: str) -> float:
    value = mean({site: row["metrics"].get(metric) for site, row in report["sites"].items()})
    if value is None:
        raise UserError(f"contribution: no site has {metric} on its test split")
    return value
