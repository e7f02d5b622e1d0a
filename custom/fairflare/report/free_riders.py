# SPDX-License-Identifier: Apache-2.0
"""Free riders: which sites some detectors mark in a run, how often they find a rider and how often they accuse another.

A detector sees what the server sees: the updates' norms and directions round by round, the weights, the rule's notes.
None of them proves anything: a site with little or unusual data may look like a rider, which is what the false-positive
rate is for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from fairflare.report.table_files import Cell, Column, Row, Table

Json = dict[str, Any]
DETECTORS = {
    "rule": "the method's own note marks it (FedCE's free-rider score)",
    "weight": "its mean weight is below a third of its share of the examples",
    "norm": "its updates' norm is zero, or far from the other sites' (3.5 robust standard deviations of the log)",
    "copy": "its updates point where another site's do (median cosine above .99)",
    "stale": "its updates point where the last global step went (median cosine above .99)",
    "gate": "more than half of its updates were rejected",
}
LOWERED, FAR, ALIKE = 1 / 3, 3.5, 0.99
KINDS = {
    "none": "nobody rides",
    "zeros": "the rider sends an update of zeros",
    "noise": "the rider sends Gaussian noise, as long as the last global step",
    "stale": "the rider sends the last global step again",
    "copied": "the rider sends what another site sends",
    "repeated": "the rider trains with one image of its own, again and again",
}


def marked(run: Mapping[str, Any], seen: Sequence[Mapping[str, Any]]) -> dict[str, list[str] | None]:
    """Detector -> the sites that it marks in one run; None for "rule" where the method has no such note.

    Args:
        run: the summary of the run (the "detail" of report.json).
        seen: per round norms, nearest (largest cosine to another site's update) and last_step (cosine to the last
            global step), site -> number or None.
    """
    rows = run["sites"]
    notes = [note for note in run.get("notes") or () if note.get("mark_above")]
    named = {row["name"] for note in notes for row in note.get("rows") or () if row.get("marked")}
    return {
        "rule": sorted(named) if notes else None,
        "weight": [
            row["site"]
            for row in rows
            if row["weight_mean"] is not None and row["data_share"] and row["weight_mean"] < LOWERED * row["data_share"]
        ],
        "norm": _unusual(seen),
        "copy": [site for site, value in _medians(seen, "nearest").items() if value > ALIKE],
        "stale": [site for site, value in _medians(seen, "last_step").items() if value > ALIKE],
        "gate": [row["site"] for row in rows if 2 * row["rejected"] > row["expected"]],
    }


def rates(runs: Sequence[Mapping[str, Any]]) -> Json:
    """Detector -> how often it found the rider and accused others, over the runs of one method and one kind.

    Args:
        runs: sites (names), rider (one of them, or None) and marked (see there).

    Returns:
        detector -> found, accused: {"count", "of", "rate", "low", "high"}, the interval Wilson's with 95 %; None rates
        where there was nothing to find.
    """
    return {name: _rates(name, runs) for name in DETECTORS}


def rate(count: int, of: int) -> Json:
    from scipy.stats import binomtest

    if not of:
        return {"count": 0, "of": 0, "rate": None, "low": None, "high": None}
    interval = binomtest(count, of).proportion_ci(method="wilson")
    return {"count": count, "of": of, "rate": count / of, "low": float(interval.low), "high": float(interval.high)}


def rider_tables(found: Mapping[str, Any]) -> list[Table]:
    return [_table(place, method) for place, method in enumerate(found["methods"], 1)]


def _rates(detector: str, runs: Sequence[Mapping[str, Any]]) -> Json:
    runs = [run for run in runs if run["marked"][detector] is not None]
    riding = [run for run in runs if run["rider"] is not None]
    found = sum(run["rider"] in run["marked"][detector] for run in riding)
    honest = [(run, site) for run in runs for site in run["sites"] if site != run["rider"]]
    accused = sum(site in run["marked"][detector] for run, site in honest)
    return {"found": rate(found, len(riding)), "accused": rate(accused, len(honest))}


def _table(place: int, method: Mapping[str, Any]) -> Table:
    columns = [
        Column(f"{name}-{what}", title, group=name, words=True)
        for name in DETECTORS
        for what, title in (("found", "Found"), ("accused", "Accused"))
    ]
    rows = []
    for kind, one in method["kinds"].items():
        cells = {column.key: _share(one["detectors"], column.key) for column in columns}
        cells["score"] = Cell.of(one["score"])
        rows.append(Row(kind, kind, cells))
    score = Column("score", "Mean over sites", better="higher")
    notes = tuple(f"{name}: {words}." for name, words in DETECTORS.items())
    caption = (
        "Found: runs in which the detector marks the rider. Accused: sites that are no riders and are marked, over all "
        "runs. Counts; JSON has the rates with Wilson's 95 % interval."
    )
    title = f"Free riders under {method['label']}"
    return Table(f"riders-{place}", title, (score, *columns), tuple(rows), "Kind of rider", caption, notes)


def _share(detectors: Mapping[str, Any], key: str) -> Cell:
    name, _, what = key.rpartition("-")
    found = detectors[name][what]
    return Cell.text(f"{found['count']} of {found['of']}" if found["of"] else "\N{EN DASH}")


def _unusual(seen: Sequence[Mapping[str, Any]]) -> list[str]:
    """The sites whose median norm is zero, or whose median log norm is far from the others' median."""
    norms = _medians(seen, "norms")
    logs = {site: math.log(value) for site, value in norms.items() if value > 0}
    if not logs:
        return sorted(norms)
    centre = median(logs.values())
    spread = 1.4826 * median(abs(value - centre) for value in logs.values())
    far = [site for site, value in logs.items() if spread > 0 and abs(value - centre) > FAR * spread]
    return sorted({*far, *(site for site in norms if site not in logs)})


def _medians(seen: Sequence[Mapping[str, Any]], key: str) -> dict[str, float]:
    """Site -> median over the rounds in which it has a value."""
    values: dict[str, list[float]] = {}
    for one in seen:
        for site, value in one[key].items():
            if value is not None:
                values.setdefault(site, []).append(value)
    return {site: median(found) for site, found in sorted(values.items())}
