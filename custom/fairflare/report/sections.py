# SPDX-License-Identifier: Apache-2.0
"""The parts of a report that only some runs have: groups of patients, contributions of sites, weights of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from fairflare.findings import CODES
from fairflare.report import groups
from fairflare.report.agreement import agreement
from fairflare.report.fairness import best, finite, gap, mean, worst
from fairflare.report.trail import Trail
from fairflare.report.values import in_order, number

Json = dict[str, Any]
SPLIT = "test"
NONE = "none"
RADII = (0.05, 0.1, 0.5)
"""Of the balls in which ``unseen`` looks for the worst mixture of groups; 0.5 is FedUFO's default in this package."""
FLAG_FACTOR = 3.0
"""A site is marked when its usual free-rider score exceeds this many times that of the median site."""


def preflight_section(trail: Trail) -> list[Json]:
    """What preflight found: rows of site, level, split, count and meaning, errors first; the last look counts."""
    told = (trail.resumes[-1] if trail.resumes else trail.start).get("preflight") or {}
    rows = [
        {"site": site, **{key: f.get(key) for key in ("level", "split", "count", "code")}, "meaning": _meaning(f)}
        for site in in_order(told)
        for f in (told[site] or {}).get("findings") or ()
    ]
    return sorted(rows, key=lambda row: row["level"] != "error")


def _meaning(finding: Mapping[str, Any]) -> str:
    return CODES.get(str(finding.get("code")), "not known to this version")


def group_section(trail: Trail, config: Json, facts: Json) -> Json | None:
    """How the final model does in the groups that the run tells apart, on the sites' own test splits.

    Args:
        trail: the run's records.
        config: config.json, of which ``group_by`` and ``min_count`` are read.
        facts: of the task: classes, groups (every name, in order) and group_metric, where known.

    Returns:
        by, min_count, split, metric, rows (group, n, value, sites and the lowest and highest site), n and overall of
        all groups, disparity {"sample", "population"}, levels (sample disparity over sites and over groups, and both
        "harmonic" forms of the two), gap, worst {"group", "value"}, cells {"expected", "told"},
        equal_opportunity (None unless the grouping joins label and attributes), uniform (mean over groups) and unseen
        (``groups.unseen`` for each of ``RADII``). None where the run tells no groups apart or its log holds nothing.
    """
    by = config.get("group_by") or NONE
    told = _told(trail)
    if by == NONE or not told:
        return None
    names = list(dict.fromkeys([*(facts.get("groups") or ()), *(name for cells in told.values() for name in cells)]))
    found = groups.pooled(told)
    values = {name: found[name]["value"] for name in names if name in found}
    lowest, value = worst(values)
    keys, classes = [key.strip() for key in by.split("+")], facts.get("classes") or []
    return {
        "by": by,
        "min_count": config.get("min_count"),
        "split": SPLIT,
        "metric": facts.get("group_metric") or "accuracy",
        "rows": [_group_row(name, found, told) for name in names],
        "n": sum(cell["n"] for cell in found.values()),
        "overall": groups.mixture_value(values, _sizes(found)),
        "disparity": {"sample": groups.disparity(values), "population": groups.disparity(values, ddof=0)},
        "levels": _levels(values, told),
        "gap": gap(values),
        "worst": {"group": lowest, "value": value},
        "cells": {"expected": len(told) * len(names), "told": sum(len(groups.known_cells(c)) for c in told.values())},
        "equal_opportunity": _opportunity(values, names, keys, classes),
        "uniform": mean(values),
        "unseen": [groups.unseen(values, rho) for rho in RADII] if len(values) > 1 else [],
    }


def _levels(values: Mapping[str, float], told: Mapping[str, Json]) -> Json:
    """FedUFO's two disparities, over sites and over groups, and what its Table 5 and its text call their harmonic."""
    of_sites = {}
    for site, cells in told.items():
        known = groups.known_cells(cells)
        if total := sum(n for n, _ in known.values()):
            of_sites[site] = sum(n * value for n, value in known.values()) / total
    pair = groups.disparity(of_sites), groups.disparity(values)
    both = None not in pair
    return {
        "sites": pair[0],
        "groups": pair[1],
        "harmonic": groups.harmonic(*pair) if both else None,
        "harmonic_printed": groups.harmonic_printed(*pair) if both else None,
    }


def contribution_section(trail: Trail, data_shares: Mapping[str, float | None]) -> Json | None:
    """What the method's notes say each site contributed, and the free-rider score with its two factors.

    Args:
        trail: the run's records; FedCE's notes hold "contribution", "novelty", "error_gap" and "free_rider_score".
        data_shares: site -> n_k / n.

    Returns:
        rounds (with a contribution); rows: site, share_first, share_mean, share_last, data_share and the medians over
        rounds novelty, error_gap and score, ratio (score over ``usual_score``) and flagged; usual_score, the median of
        the sites' scores; factor; agreement of the last shares with the data shares. None where no round has a
        contribution.
    """
    shares = _over_rounds(trail, "contribution")
    if not shares:
        return None
    parts = {key: _over_rounds(trail, key) for key in ("novelty", "error_gap", "free_rider_score")}
    rows = [_contribution_row(site, shares[site], parts, data_shares.get(site)) for site in in_order(shares)]
    scores = [row["score"] for row in rows if row["score"] is not None]
    usual = median(scores) if scores else None
    for row in rows:
        row["ratio"] = row["score"] / usual if usual and row["score"] is not None else None
        row["flagged"] = row["ratio"] is not None and row["ratio"] > FLAG_FACTOR
    return {
        "rounds": max(map(len, shares.values())),
        "rows": rows,
        "usual_score": usual,
        "factor": FLAG_FACTOR,
        "agreement": _agreement(rows),
    }


def layer_section(trail: Trail) -> dict[str, dict[str, float]] | None:
    """Layer -> site -> weight, mean over the rounds in which the site was part (Fed-LWR); None without such notes."""
    totals: dict[str, dict[str, list[float]]] = {}
    for record in trail.rounds:
        for layer, weights in _note(record, "layer_weights").items():
            for site, value in finite(weights if isinstance(weights, Mapping) else {}).items():
                totals.setdefault(layer, {}).setdefault(site, []).append(value)
    means = {layer: {site: sum(v) / len(v) for site, v in sites.items()} for layer, sites in totals.items()}
    return means or None


def _told(trail: Trail) -> dict[str, Mapping[str, Any]]:
    """Site -> group -> cell, for the sites whose evaluation says what it has to say of groups."""
    sites = trail.evaluation.get("sites") or {}
    answers = {site: (splits or {}).get("groups") or {} for site, splits in sites.items()}
    return {site: answers[site][SPLIT] or {} for site in in_order(answers) if SPLIT in answers[site]}


def _sizes(found: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    total = sum(cell["n"] for cell in found.values())
    return {name: cell["n"] / total for name, cell in found.items()}


def _group_row(name: str, found: Mapping[str, Json], told: Mapping[str, Any]) -> Json:
    cells = {site: groups.known_cells(cells).get(name) for site, cells in told.items()}
    by_site = {site: cell[1] for site, cell in cells.items() if cell is not None}
    pooled = found.get(name, {"n": None, "value": None})
    return {
        "group": name,
        **pooled,
        "sites": len(by_site),
        "lowest": dict(zip(("site", "value"), worst(by_site), strict=True)),
        "highest": dict(zip(("site", "value"), best(by_site), strict=True)),
    }


def _opportunity(
    values: Mapping[str, float], names: Sequence[str], keys: Sequence[str], classes: Sequence[str]
) -> Json | None:
    """Per class the rates, gap and worst rate; on top those of the positive class, or over all classes beyond two."""
    every = groups.true_positive_rates(dict.fromkeys(names, 0.0), keys, classes)
    if not every:
        return None
    rates = groups.true_positive_rates(values, keys, classes)
    rows = [
        {
            "class": name,
            "rates": rates.get(name, {}),
            "missing": [value for value in attributes if value not in rates.get(name, {})],
            **groups.equal_opportunity(rates.get(name, {})),
        }
        for name, attributes in every.items()
    ]
    positive = classes[1] if len(classes) == 2 else None
    chosen = [row for row in rows if positive in (None, row["class"])]
    gaps = [row["gap"] for row in chosen if row["gap"] is not None]
    lowest = [row["worst"]["value"] for row in chosen if row["worst"]["value"] is not None]
    return {
        "positive": positive,
        "gap": max(gaps, default=None),
        "worst_tpr": min(lowest, default=None),
        "classes": rows,
    }


def _note(record: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = (record.get("notes") or {}).get(key)
    return found if isinstance(found, Mapping) else {}


def _over_rounds(trail: Trail, key: str) -> dict[str, list[float]]:
    """Site -> its finite numbers under ``key`` in the notes, round after round."""
    found: dict[str, list[float]] = {}
    for record in trail.rounds:
        for site, value in finite(_note(record, key)).items():
            found.setdefault(site, []).append(value)
    return found


def _contribution_row(
    site: str, shares: Sequence[float], parts: Mapping[str, Mapping[str, Sequence[float]]], data_share: float | None
) -> Json:
    medians = {key: median(values[site]) if site in values else None for key, values in parts.items()}
    return {
        "site": site,
        "share_first": shares[0],
        "share_mean": sum(shares) / len(shares),
        "share_last": shares[-1],
        "data_share": number(data_share),
        "novelty": medians["novelty"],
        "error_gap": medians["error_gap"],
        "score": medians["free_rider_score"],
    }


def _agreement(rows: Sequence[Json]) -> Json:
    known = [row for row in rows if row["data_share"] is not None]
    last, data = ({row["site"]: row[key] for row in known} for key in ("share_last", "data_share"))
    return {"of": "share_last", "with": "data_share", **agreement(last, data)}
