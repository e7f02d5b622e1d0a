# SPDX-License-Identifier: Apache-2.0
"""Calibration and clinical use of the model that each site uses, from the sums that the sites released."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from math import ceil, floor
from typing import Any

import numpy as np

from fairflare.engine.clinical import BIN, CLINICAL, bins_of
from fairflare.functional import calibration as maths
from fairflare.functional.calibration import GRID, Array, Bins
from fairflare.functional.recalibration import limited
from fairflare.report import svg
from fairflare.report.audit_reader import SUMMARISED, Entry, Trail
from fairflare.report.fairness import absolute, weighted
from fairflare.report.section import Quantity, Section
from fairflare.report.values import class_words, number, rendered, signed

Json = dict[str, Any]
Numbers = Mapping[str, float]
MEANS = ("brier", "calibration", "ece", "intercept", "slope")
COUNTS = ("positives", "flagged", "true_positives")
BEFORE, AFTER = "before", "after"
FAR = 6.0
"""Beyond it recalibration limits logits, see ``engine.after.recalibrate``."""
LEAST_CLASSES = 2


def clinical_section(trail: Trail, config: Json, about: Json, sites: Sequence[str]) -> Json | None:
    """What the sites' released sums say; None where no site has released any, or the run is about times.

    Args:
        config: config.json, whose ``after`` names the step that is a part of the run, if one is.
        about: of the task: classes, and what ``clinical`` says of event and threshold.

    Returns:
        event (a class; None: that the likeliest class is the right one), threshold, min_count, step (that changed the
        risks or the threshold; None: none), in_use ("after" where that step is the run's own, else "before"); stages:
        those that there are; rows: site, evaluated (False: not asked, or no answer) and, for each stage, a view;
        groups: group, n, sites and for each stage a view of all sites' sums that could be told; cells: group, site and
        a view per stage; summary: stage -> of ``SUMMARISED`` mean, worst and worst_site of the absolute values. A view
        holds n, positives, ``MEANS`` (value, low, high), threshold, rates (sensitivity, specificity, ppv, npv: value,
        low, high, n), curve (risk, share, low, high, n of each bin), decisions (threshold, net_benefit, low, high, all)
        and flagged.
    """
    if about.get("curves"):
        return None
    said = about.get("clinical") or {}
    classes = about.get("classes") or []
    second = str(classes[1]) if len(classes) == LEAST_CLASSES else None
    event, threshold = said.get("event", second), number(said.get("threshold")) or 0.5
    record = _step(trail)
    sent: Mapping[str, Any] = trail.evaluation.get("sites") or {}
    before = {site: _numbers(sent.get(site), CLINICAL) for site in sites}
    after = {site: _numbers(record.get(CLINICAL), site) for site in sites}
    found = {BEFORE: before} | ({AFTER: after} if any(after.values()) else {})
    if not any(any(numbers.values()) for numbers in found.values()):
        return None
    names = _cells(numbers for stage in found.values() for numbers in stage.values())

    def view(stage: str, site: str, cell: str = "") -> Json | None:
        fitted = (record.get("sites") or {}).get(site) or {} if stage == AFTER else {}
        flagged_from: float | None = threshold
        if "shared.threshold" in fitted:  # the site's own, by conformal risk control
            own = number(fitted.get("own.threshold"))
            flagged_from = None if own is None else 1.0 - own
        return _view(found[stage][site], cell, fitted, flagged_from)

    rows: list[Json] = [
        {"site": site, "evaluated": site in sent, **{stage: view(stage, site) for stage in found}} for site in sites
    ]
    cells = [
        {"group": name, "site": site, **{stage: view(stage, site, name) for stage in found}}
        for name in names
        for site in sites
        if any(f"n/{name}" in numbers[site] for numbers in found.values())
    ]
    summary: Json = {stage: {} for stage in found}
    for stage, name in product(found, SUMMARISED):
        values = {row["site"]: row[stage][name]["value"] for row in rows if row[stage]}
        summary[stage][name] = {**absolute(values), "sites": sum(value is not None for value in values.values())}
    return {
        "event": event,
        "threshold": threshold,
        "min_count": config.get("min_count"),
        "step": record.get("step") if AFTER in found else None,
        "in_use": AFTER if AFTER in found and config.get("after") == record.get("step") else BEFORE,
        "stages": list(found),
        "rows": rows,
        "groups": [_pooled(name, [cell for cell in cells if cell["group"] == name], list(found)) for name in names],
        "cells": cells,
        "summary": summary,
    }


def views(numbers: Numbers, threshold: float) -> dict[str, Json]:
    """ "" and group -> a view, as ``clinical_section`` has them, of what one site has released of one model."""
    found = {cell: _view(numbers, cell, {}, threshold) for cell in ("", *_cells([numbers]))}
    return {cell: view for cell, view in found.items() if view}


def _step(trail: Trail) -> Entry:
    records = [record for record in trail.after.values() if record.get(CLINICAL)]
    records.sort(key=lambda record: record.get("step") == "recalibrate")
    return records[-1] if records else {}


def _numbers(content: Any, key: str) -> dict[str, float]:
    held = (content or {}).get(key) if isinstance(content, Mapping) else None
    return {name: value for name, value in (held or {}).items() if number(value) is not None}


def _cells(many: Iterable[Numbers]) -> list[str]:
    """The groups that some site names, in the order of their first appearance sorted by name."""
    return sorted({name[2:] for numbers in many for name in numbers if name.startswith("n/")})


def _view(numbers: Numbers, cell: str, fitted: Numbers, threshold: float | None) -> Json | None:
    where = f"/{cell}" if cell else ""
    if f"n{where}" not in numbers:
        return None
    keys = {"value": "", "low": ".low", "high": ".high"}
    means = {m: {key: number(numbers.get(f"{m}{end}{where}")) for key, end in keys.items()} for m in MEANS}
    counts = {name: number(numbers.get(f"{name}{where}")) for name in COUNTS}
    bins = None if cell or not any(name.startswith(BIN) for name in numbers) else bins_of(numbers)
    n = numbers[f"n{where}"]
    more = {"rates": _rates(n, counts), "curve": _curve(bins), "decisions": _decisions(bins, fitted)}
    return {"n": n, **counts, **means, "threshold": threshold, **more}


def _rates(n: float, counts: Mapping[str, float | None]) -> Json:
    """Shares with Wilson's interval; {} without the counts."""
    positives, flagged, right = (counts[name] for name in COUNTS)
    if positives is None or flagged is None or right is None:
        return {}
    negatives, left = n - positives, n - flagged
    wrong = flagged - right
    parts = {"sensitivity": (right, positives), "specificity": (negatives - wrong, negatives)}
    parts |= {"ppv": (right, flagged), "npv": (left - (positives - right), left)}
    return {name: _share(part, whole) for name, (part, whole) in parts.items()}


def _share(part: float, whole: float) -> Json:
    low, high = wilson(part, whole)
    return {"value": part / whole if whole else None, "low": low, "high": high, "n": whole}


def _curve(bins: Bins | None) -> list[Json]:
    if bins is None:
        return []
    coarse = maths.coarser(bins)
    rows = zip(coarse.n.tolist(), coarse.positives.tolist(), coarse.risk.tolist(), strict=True)
    found = ((risk / n, _share(positives, n)) for n, positives, risk in rows)
    return [{"risk": risk, "share": one.pop("value"), **one} for risk, one in found]


def net_benefit(bins: Bins, thresholds: Array) -> tuple[Array, Array, Array]:
    """Of treating whoever's risk is at least t (Vickers and Elkin 2006); a row is counted as a patient.

    Bin b holds those from thresholds[b] to the next, (B,) in [0, 1). t, TP / n - FP / n * t / (1 - t), and its standard
    error from the same counts; thresholds of 0 and less than two outcomes are left out.
    """
    n = bins.n.sum()
    treated = np.cumsum(bins.positives[::-1])[::-1], np.cumsum((bins.n - bins.positives)[::-1])[::-1]
    inside = (thresholds > 0) & (thresholds < 1)
    t, right, wrong = thresholds[inside], treated[0][inside] / n, treated[1][inside] / n
    cost = t / (1 - t)
    mean = right - wrong * cost
    return t, mean, np.sqrt(np.maximum(right + wrong * cost**2 - mean**2, 0.0) / n)


def _decisions(bins: Bins | None, fitted: Numbers) -> list[Json]:
    """Net benefit at the edges of the bins, as they lie after a site's line."""
    if bins is None or len(bins.n) < LEAST_CLASSES:
        return []
    edges = GRID[bins.starts]
    line = [number(fitted.get(f"own.{name}")) for name in ("intercept", "slope")]
    if fitted and "shared.threshold" not in fitted:
        if line[0] is None or line[1] is None or line[1] <= 0:
            return []
        inside = edges > 0  # the line moves every risk but 0
        z = np.log(edges[inside]) - np.log1p(-edges[inside])
        edges[inside] = 1 / (1 + np.exp(-(line[0] + line[1] * limited(z, FAR))))
    thresholds, values, errors = net_benefit(bins, edges)
    share = float(bins.positives.sum() / bins.n.sum())
    everyone = share - (1 - share) * thresholds / (1 - thresholds)
    return [
        {"threshold": t, "net_benefit": value, "low": value - maths.Z * se, "high": value + maths.Z * se, "all": of_all}
        for t, value, se, of_all in zip(*(a.tolist() for a in (thresholds, values, errors, everyone)), strict=True)
    ]


def _pooled(group: str, cells: Sequence[Json], stages: Sequence[str]) -> Json:
    row: Json = {
        "group": group,
        "n": sum(cell[stages[0]]["n"] for cell in cells if cell[stages[0]]),
        "sites": len(cells),
    }
    for stage in stages:
        views = [cell[stage] for cell in cells if cell[stage]]
        means = {name: weighted((view["n"], view[name]["value"]) for view in views) for name in SUMMARISED[:2]}
        known = [view for view in views if view["rates"]]
        counts = {name: sum(view[name] for view in known) for name in COUNTS}
        row[stage] = {**means, "rates": _rates(sum(view["n"] for view in known), counts) if known else {}}
    return row


def wilson(successes: float, n: float) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion (JASA 22, 1927); (0, 1) without cases."""
    if n <= 0:
        return 0.0, 1.0
    share, spread = successes / n, maths.Z * maths.Z / n
    centre = (share + spread / 2) / (1 + spread)
    half = maths.Z * math.sqrt(share * (1 - share) / n + spread / (4 * n)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


MOST_SITES = 24
"""Sites that are drawn; the table has all of them."""
STAGES: Mapping[str, dict[str, Any]] = {
    "before": {"colour": svg.BLUE, "marker": "o", "label": "the model"},
    "after": {"colour": svg.ORANGE, "marker": "D", "label": "after the step"},
}
Line = tuple[str, str, Sequence[tuple[float, float]]]
"""Colour, name and points."""


def clinical_figures(section: Json) -> list[str]:
    rows = [row for row in section["rows"] if any((row[stage] or {}).get("curve") for stage in section["stages"])]

    def off(row: Json) -> float:
        return abs(((row[section["stages"][0]] or {}).get("calibration") or {}).get("value") or 0.0)

    rows.sort(key=lambda row: (-off(row), row["site"]))
    return [_of_site(place, row, section["stages"]) for place, row in enumerate(rows[:MOST_SITES])]


def _of_site(place: int, row: Json, stages: Sequence[str]) -> str:
    """By a template: these are most of a run's figures, and matplotlib's axes take a hundred times as long.

    Share of outcomes over mean risk of each bin, with Wilson's interval, where the diagonal is perfect; net benefit at
    the edges of the bins, beside treating everyone and nobody.
    """
    shown = {stage: row[stage] for stage in stages if (row[stage] or {}).get("curve")}
    first, decides = next(iter(shown.values())), any(view["decisions"] for view in shown.values())
    rate, width = first["positives"] / first["n"], 112  # as high: on the diagonal the risks are right
    names = "mean predicted risk", "share that it came true of"
    panels = [_panel(width, 0, 1, [(svg.GREY, "", [(0, 0), (1, 1)])], shown, ("curve", "risk", "share"), names)]
    if decides:
        everyone = [(step / 100, rate - (1 - rate) * step / (100 - step)) for step in range(96)]
        low, high = -0.15 * rate - 0.02, rate * 1.15 + 0.02
        lines: list[Line] = [(svg.DARK, "treat nobody", [(0, 0), (1, 0)])]
        lines.append((svg.GREY, "treat all", [one for one in everyone if one[1] > low]))
        keys, names = ("decisions", "threshold", "net_benefit"), ("threshold of the risk", "net benefit")
        panels.append(_panel(width, low, high, lines, shown, keys, names))
    off = ", then ".join(signed(view["calibration"]["value"]) for view in shown.values())
    named = {line["label"]: line for panel in panels for line in panel["lines"] if line["label"]}
    title = f"{svg.short(row['site'])}: risk off by {off}"
    return rendered("clinical", place=place, title=title, width=width, panels=panels, legend=named.values())


def _panel(
    width: int, low: float, high: float, beside: Sequence[Line], shown: Json, keys: Sequence[str], names: Sequence[str]
) -> Json:
    """Axes from 0 to 1 and ``low`` to ``high``, ``width`` x 112 units: lines, and each stage's points and intervals."""
    part, x, y = keys
    low = min([low, *(one[y] for view in shown.values() for one in view[part])])

    def to(*points: tuple[float, float]) -> str:
        return "L".join(f"{a * width:.1f},{(high - max(b, low)) / (high - low) * 112:.1f}" for a, b in points)

    lines: list[Json] = [{"colour": colour, "label": label, "path": to(*points)} for colour, label, points in beside]
    for stage, points in ((stage, view[part]) for stage, view in shown.items() if view[part]):
        ends = [to((one[x], one["low"]), (one[x], min(one["high"], high))) for one in points]
        places = [to((one[x], one[y])) for one in points]
        lines.append({**STAGES[stage], "path": "L".join(places), "bars": "M".join(ends), "places": places})
    step = next((one for one in (0.005, 0.01, 0.02, 0.05, 0.1) if (high - low) / one < 6), 0.2)
    values = [round(k * step, 3) for k in range(ceil(low / step), floor(high / step) + 1)]
    return {"lines": lines, "ticks": [(f"{v:g}", (high - v) / (high - low) * 112) for v in values], "names": names}


def _of(name: str, over: str) -> Callable[[Json], Any]:
    """run -> the mean over sites, or the worst, of what its summary in use has of ``name``."""

    def value(run: Json) -> Any:
        found = run.get("clinical") or {}
        return (((found.get("summary") or {}).get(found.get("in_use")) or {}).get(name) or {}).get(over)

    return value


WORDS = {
    "calibration": ("worst site's calibration in the large, absolute", "Worst site: calibration in the large", 1),
    "brier": ("worst site's Brier score", "Worst site: Brier score", 2),
    "ece": ("worst site's expected calibration error", "Worst site: ECE", 1),
}
"""Label, heading and largest value."""
QUANTITIES = (
    *(Quantity(f"{k}_worst", w, _of(k, "worst"), "lower", (0, m), short) for k, (w, short, m) in WORDS.items()),
    Quantity("calibration_mean", "mean over sites of calibration in the large, absolute",
             _of("calibration", "mean"), "lower", (0, 1)),
    Quantity("brier_mean", "mean over sites of the Brier score", _of("brier", "mean"), "lower", (0, 2)),
    Quantity("ece_mean", "mean over sites of the expected calibration error", _of("ece", "mean"), "lower", (0, 1)),
)  # fmt: skip


def per_thousand(run: Json) -> str:
    """Natural frequencies at the threshold, over the test patients of the sites that may say so; "" where none may."""
    found = run.get("clinical") or {"event": None}
    asked = [row for row in found["rows"] if row.get("evaluated", True)] if found["event"] is not None else []
    views = [row[found["in_use"]] for row in asked]
    known = [view for view in views if view and view["rates"]]
    if not known or found["in_use"] == AFTER:  # after a step sites may have thresholds of their own
        return ""
    n = sum(view["n"] for view in known)
    ill, flagged, right = (round(1000 * sum(view[key] for view in known) / n) for key in COUNTS)
    event = class_words(found["event"], run)
    where = "" if len(known) == len(views) else f" (of {len(known)} of {len(views)} sites; the others have too few)"
    return (
        f"Of 1,000 test patients{where} {ill} have the outcome ({event}). A risk of {found['threshold']:.2f} or more "
        f"flags {right} of them and {flagged - right} others: {1000 - ill - flagged + 2 * right} are classified right."
    )


SECTION = Section(
    "clinical",
    "Calibration and clinical use",
    ("clinical", "rows"),
    figure=lambda run: clinical_figures(run["clinical"]) if run.get("clinical") else [],
)
