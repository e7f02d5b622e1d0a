# SPDX-License-Identifier: Apache-2.0
"""The parts of a report that only some runs have: findings of preflight and groups of patients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairflare.core.findings import CODES, LEVELS
from fairflare.report import groups
from fairflare.report.audit_reader import Trail
from fairflare.report.fairness import best, gap, mean, worst
from fairflare.report.values import in_order

Json = dict[str, Any]
SPLIT = "test"
NONE = "none"
RADII = (0.05, 0.1, 0.5)
"""Of the balls in which ``unseen`` looks for the worst mixture of groups; 0.5 is FedUFO's default in this package."""


def preflight_section(trail: Trail) -> list[Json]:
    """What preflight found: rows of site, level, split, count and meaning, errors first; the last look counts."""
    looked = (trail.resumes[-1] if trail.resumes else trail.start).get("preflight") or {}
    rows = [
        {"site": site, **{key: f.get(key) for key in ("level", "split", "count", "code")}, "meaning": _meaning(f)}
        for site in in_order(looked)
        for f in (looked[site] or {}).get("findings") or ()
    ]
    return sorted(rows, key=lambda row: LEVELS.index(row["level"]) if row["level"] in LEVELS else len(LEVELS))


def _meaning(finding: Mapping[str, Any]) -> str:
    return CODES.get(str(finding.get("code")), "not known to this version")


def group_section(trail: Trail, config: Json, about: Json) -> Json | None:
    """How the final model does in the groups of the run, on the sites' own test splits.

    Args:
        trail: the run's records.
        config: config.json, of which ``group_by`` and ``min_count`` are read.
        about: of the task: classes, groups (every name, in order) and group_metric, where known.

    Returns:
        by, min_count, split, metric, rows (group, n, value, sites and the lowest and highest site), n and overall of
        all groups, disparity {"sample", "population"}, levels (sample disparity over sites and over groups, and both
        "harmonic" forms of the two), gap, worst {"group", "value"}, cells {"expected", "sent"},
        equal_opportunity (None unless the grouping joins label and attributes), uniform (mean over groups) and unseen
        (``groups.unseen`` for each of ``RADII``). None where the run has no groups or its log holds nothing.
    """
    by = config.get("group_by") or NONE
    sent = _sent(trail)
    if by == NONE or not sent:
        return None
    names = list(dict.fromkeys([*(about.get("groups") or ()), *(name for cells in sent.values() for name in cells)]))
    found = groups.pooled(sent)
    values = {name: found[name]["value"] for name in names if name in found}
    lowest, value = worst(values)
    keys, classes = [key.strip() for key in by.split("+")], about.get("classes") or []
    return {
        "by": by,
        "min_count": config.get("min_count"),
        "split": SPLIT,
        "metric": about.get("group_metric") or "accuracy",
        "rows": [_group_row(name, found, sent) for name in names],
        "n": sum(cell["n"] for cell in found.values()),
        "overall": groups.mixture_value(values, _sizes(found)),
        "disparity": {"sample": groups.disparity(values), "population": groups.disparity(values, ddof=0)},
        "levels": _levels(values, sent),
        "gap": gap(values),
        "worst": {"group": lowest, "value": value},
        "cells": {"expected": len(sent) * len(names), "sent": sum(len(groups.known_cells(c)) for c in sent.values())},
        "equal_opportunity": _opportunity(values, names, keys, classes),
        "uniform": mean(values),
        "unseen": [groups.unseen(values, rho) for rho in RADII] if len(values) > 1 else [],
    }


def _levels(values: Mapping[str, float], sent: Mapping[str, groups.Cells]) -> Json:
    """FedUFO's two disparities, over sites and over groups, and what its Table 5 and its text call their harmonic."""
    of_sites = {}
    for site, cells in sent.items():
        known = groups.known_cells(cells)
        if total := sum(n for n, _ in known.values()):
            of_sites[site] = sum(n * value for n, value in known.values()) / total
    sites, among = groups.disparity(of_sites), groups.disparity(values)
    found = {"sites": sites, "groups": among}
    if sites is None or among is None:
        return {**found, "harmonic": None, "harmonic_printed": None}
    return {
        **found,
        "harmonic": groups.harmonic(sites, among),
        "harmonic_printed": groups.harmonic_printed(sites, among),
    }


def _sent(trail: Trail) -> dict[str, Mapping[str, Any]]:
    """Site -> group -> cell, for the sites whose evaluation says what it has to say of groups."""
    sites = trail.evaluation.get("sites") or {}
    answers = {site: (splits or {}).get("groups") or {} for site, splits in sites.items()}
    return {site: answers[site][SPLIT] or {} for site in in_order(answers) if SPLIT in answers[site]}


def _sizes(found: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    total = sum(cell["n"] for cell in found.values())
    return {name: cell["n"] / total for name, cell in found.items()}


def _group_row(name: str, found: Mapping[str, Json], sent: Mapping[str, Any]) -> Json:
    cells = {site: groups.known_cells(cells).get(name) for site, cells in sent.items()}
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
