# SPDX-License-Identifier: Apache-2.0
"""The model that validation chose, beside that of the last round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairflare.report.audit_reader import Trail
from fairflare.report.fairness import describe
from fairflare.report.section import Section
from fairflare.report.values import less, number

Json = dict[str, Any]

CHOSEN_CAVEAT = (
    "The results shown first are those of the model that validation chose, as the configuration asks; those of the "
    "last round's model stand beside them."
)
CHOSEN_BY = {"mean": "the mean over sites", "worst": "the worst site"}
CHOSEN_BY |= {"trade-off": "mean minus w times (mean minus worst)"}


def chosen_section(
    trail: Trail, config: Mapping[str, Any], sites: Sequence[str], headline: str, higher: bool
) -> Json | None:
    """Both models side by side; None where the run chooses none, or has not yet.

    Args:
        trail: the run's records, with the last model's results as the evaluation.

    Returns:
        by, words, weight (of a trade-off, else None), metric, round, rounds, is_last, headline ("final" or "best",
        which of them is shown first), model_sha256; compared: how many sites scored both; val and test, each "best" and
        "last": what ``fairness.describe`` says (val over the sites compared); rows: site, best_val, last_val, best,
        last and difference (best minus last) on the test split.
    """
    line = trail.best
    if not line:
        return None
    val = {kind: (line["values"].get(kind) or {}) for kind in ("best", "last")}
    both = [site for site in sites if all(number(val[kind].get(site)) is not None for kind in val)]
    last = trail.evaluation.get("sites") or {}
    test: dict[str, dict[str, float | None]] = {"best": {}, "last": {}}
    rows = []
    for site in sites:
        row: Json = {"site": site, **{f"{kind}_val": number(val[kind].get(site)) for kind in val}}
        for kind, results in (("best", line["sites"] or last), ("last", last)):
            found = results.get(site) or {}
            row[kind] = test[kind][site] = number((found.get("test") or {}).get(headline))
        rows.append({**row, "difference": less(row["best"], row["last"])})
    return {
        "by": line["by"],
        "words": CHOSEN_BY.get(line["by"], line["by"]),
        "weight": line["weight"] if line["by"] == "trade-off" else None,
        "metric": headline,
        "round": line["round"],
        "rounds": trail.segment.get("rounds"),
        "is_last": line["round"] == trail.segment.get("rounds"),
        "headline": config.get("headline") or "final",
        "model_sha256": line["model_sha256"],
        "compared": len(both),
        "val": {kind: describe({site: number(val[kind][site]) for site in both}, higher) for kind in val},
        "test": {kind: describe(values, higher) for kind, values in test.items()},
        "rows": rows,
    }


SECTION = Section("chosen", "The model that validation chose", ("chosen", "rows"))
