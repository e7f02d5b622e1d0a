# SPDX-License-Identifier: Apache-2.0
"""Which round's model a run has chosen by validation, and what it and the last round's do on the test splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairflare.report.audit_reader import PERSONAL, Trail
from fairflare.report.fairness import describe
from fairflare.report.values import number

Json = dict[str, Any]
CAVEAT = (
    "The results shown first are those of the model that validation chose, as the configuration asks; those of the "
    "last round's model stand beside them."
)
BY = {"mean": "the mean over sites", "worst": "the worst site", "trade-off": "mean minus w times (mean minus worst)"}


def chosen_section(
    trail: Trail, config: Mapping[str, Any], sites: Sequence[str], headline: str, higher: bool
) -> Json | None:
    """Both models side by side; None where the run chooses none, or has not yet.

    Args:
        trail: the run's records, with the last model's results as the evaluation.
        config: config.json.
        sites: names, in the order of the rows.
        headline: the metric.
        higher: whether its higher values are better.

    Returns:
        by, words, weight (of a trade-off, else None), metric, round, rounds, is_last, headline ("final" or "best",
        which of them is shown first), model_sha256; compared: how many sites scored both; val and test, each "best" and
        "last": what ``fairness.describe`` says (val over the sites compared); rows: site, best_val, last_val, best,
        last and difference (best minus last) on the test split. Where layers stay at the sites all values are of each
        site's own model.
    """
    line = trail.best
    if not line:
        return None
    val = {kind: (line["values"].get(kind) or {}) for kind in ("best", "last")}
    both = [site for site in sites if all(number(val[kind].get(site)) is not None for kind in val)]
    last = trail.evaluation.get("sites") or {}
    results = {"best": line["sites"] or last, "last": last}
    test = {
        kind: {site: _tested(found.get(site), headline, line["own"]) for site in sites}
        for kind, found in results.items()
    }
    rows = [_row(site, val, test) for site in sites]
    return {
        "by": line["by"],
        "words": BY.get(line["by"], line["by"]),
        "weight": line["weight"] if line["by"] == "trade-off" else None,
        "metric": headline,
        "round": line["round"],
        "rounds": trail.start.get("rounds"),
        "is_last": line["round"] == trail.start.get("rounds"),
        "headline": config.get("headline") or "final",
        "model_sha256": line["model_sha256"],
        "compared": len(both),
        "val": {kind: describe({site: number(val[kind][site]) for site in both}, higher) for kind in val},
        "test": {kind: describe(values, higher) for kind, values in test.items()},
        "rows": rows,
    }


def _row(site: str, val: Mapping[str, Mapping[str, Any]], test: Mapping[str, Mapping[str, float | None]]) -> Json:
    best, last = test["best"][site], test["last"][site]
    return {
        "site": site,
        **{f"{kind}_val": number(val[kind].get(site)) for kind in val},
        "best": best,
        "last": last,
        "difference": None if best is None or last is None else best - last,
    }


def _tested(results: Mapping[str, Any] | None, headline: str, own: bool) -> float | None:
    found = (results or {}).get(PERSONAL) if own else results
    return number(((found or {}).get("test") or {}).get(headline))
