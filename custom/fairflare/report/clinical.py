# SPDX-License-Identifier: Apache-2.0
"""Calibration and clinical use of the model that each site uses, from the sums that the sites released.

External validation says the same of a run's model at hospitals that did not train it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from fairflare.core.metric import named
from fairflare.core.types import INTERVALS, TRIVIAL
from fairflare.engine.benefit import FEDERATED, HIGH, LOW, SOLO
from fairflare.engine.clinical import BIN, CLINICAL, bins_of
from fairflare.functional import calibration as maths
from fairflare.functional.calibration import GRID, Array, Bins
from fairflare.functional.recalibration import limited
from fairflare.report.audit_reader import SUMMARISED, Entry, Trail
from fairflare.report.fairness import absolute, weighted
from fairflare.report.values import class_words, drawn, in_order, json_value, label, number, plural, rendered

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
        those that there are; rows: site and, for each stage, a view; groups: group, n, sites and for each stage a
        view of all sites' sums that could be told; cells: group, site and a view per stage; summary: stage -> of
        ``SUMMARISED`` mean, worst and worst_site of the absolute values. A view holds n, positives, ``MEANS`` (value,
        low, high), threshold, rates (sensitivity, specificity, ppv, npv: value, low, high, n), curve (risk, share, low,
        high, n of each bin), decisions (threshold, net_benefit, low, high, all) and flagged.
    """
    if about.get("curves"):
        return None
    said = about.get("clinical") or {}
    classes = about.get("classes") or []
    second = str(classes[1]) if len(classes) == LEAST_CLASSES else None
    event, threshold = said.get("event", second), number(said.get("threshold")) or 0.5
    record = _step(trail)
    before = {site: _numbers((trail.evaluation.get("sites") or {}).get(site), CLINICAL) for site in sites}
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

    rows: list[Json] = [{"site": site, **{stage: view(stage, site) for stage in found}} for site in sites]
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
    records.sort(key=lambda record: record.get("step") in ("recalibrate", "shares"))
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


NO_STEP = dict.fromkeys(("time", "left", "observed", "low", "high", "expected", "difference"))


def curves_section(trail: Trail, config: Json, about: Json, sites: Sequence[str]) -> Json | None:
    """What the sites' released steps say; None where the run is not about times, or no site has released any.

    Returns:
        horizon, min_count; rows: site, group ("": all of the site's test patients), n, steps (time, left, observed,
        low, high, expected, difference of the last two), and the last of them (all None where there is none).
    """
    ends = [end for end in (about.get("curves") or {}).get("ends", ()) if number(end) is not None]
    if not ends:
        return None
    rows = []
    for site in sites:
        sent = ((trail.evaluation.get("sites") or {}).get(site) or {}).get(CLINICAL) or {}
        known = {name: value for name, value in sent.items() if number(value) is not None}
        groups = sorted(name[2:] for name in known if name.startswith("n/"))
        for group in ("", *groups) if "n" in known else ():
            where = f"/{group}" if group else ""
            steps = steps_of(known, ends, where)
            about_it = {"site": site, "group": group, "n": known[f"n{where}"]}
            rows.append({**about_it, "steps": steps, "last": (steps or [NO_STEP])[-1]})
    if not rows:
        return None
    return {"horizon": ends[-1], "min_count": config.get("min_count"), "rows": rows}


def steps_of(known: Mapping[str, Any], ends: Sequence[float], where: str = "") -> list[Json]:
    """The steps with 95 % intervals on the scale of log(-log S), with Greenwood's variance.

    All that is known of a step is who remains after it: taken for the patients at risk in it, that makes intervals too
    wide rather than too narrow.
    """
    found, before, spread = [], 1.0, 0.0
    for k, end in enumerate(ends):
        left, observed = known.get(f"left{k}{where}"), known.get(f"observed{k}{where}")
        if left is None or observed is None:
            continue
        spread += (before / observed - 1) / left if observed > 0 else math.inf
        before = observed
        low = high = None
        if 0 < observed < 1 and math.isfinite(spread):  # there was an event, and someone is left without one
            half = maths.Z * math.sqrt(spread) / abs(math.log(observed))
            low, high = observed ** math.exp(half), observed ** math.exp(-half)
        expected = known.get(f"expected{k}{where}")
        off = None if expected is None else expected - observed
        values = (end, left, observed, low, high, expected, off)
        found.append(dict(zip(NO_STEP, values, strict=True)))
    return found


FORMAT = 1
TEST = "test"
TWO = 2
ONE_CLASS = "all labelled cases are of one class"


def evaluation(about: Json, sites: Mapping[str, Mapping[str, Any]], beside: Mapping[str, Json] | None = None) -> Json:
    """The content of ``evaluation.json``.

    Args:
        about: what ``config.json`` says of the task under "about", and model, min_count, level, group_by and split.
        sites: name -> what the site released, as the log of a federation has it after its final evaluation.
        beside: name -> further entries of a site: own, recalibration.

    Returns:
        format, model (which run, method, hash), headline, metrics (in words), classes, min_count, level, split, by and
        sites, one for each name in natural order: see ``of_site``; and rejected: name -> why there is nothing of it.
    """
    more = {"own": None, "recalibration": None}
    shown = {name: {**of_site(sites[name], about), **more, **(beside or {}).get(name, {})} for name in in_order(sites)}
    kept = ["headline", "classes", "real", "title", "metrics", "group_metric", "clinical"]
    kept += ["model", "min_count", "level", "split", "by", "outcome"]
    told = {"format": FORMAT, **{key: about[key] for key in kept if key in about}}
    return dict(json_value({**told, "sites": shown, "rejected": about.get("rejected") or {}}))


def of_site(found: Mapping[str, Any], about: Json) -> Json:
    """What one site released.

    Returns:
        n; metrics: name -> value, low, high (None where there is no interval), trivial (of the best answer that is the
        same for everybody) and why ("": defined); calibration: a view, see ``report.clinical``, None where none left;
        trivial_brier: of the constant risk that is right on average; groups: group, n, value (of ``group_metric``) and
        calibration, of those that are large enough.
    """
    values, ends = found.get(TEST) or {}, found.get(INTERVALS) or {}
    trivial, n = (found.get(TRIVIAL) or {}).get(TEST) or {}, number((found.get("n") or {}).get(TEST))
    needs = {name: one.get("needs") for name, one in about["metrics"].items()}
    reasons = {m: f"it needs {n}" if n else ONE_CLASS if named(m).of_classes else "" for m, n in needs.items()}
    unasked = about.get("group_metric") if about.get("group_metric") != about.get("headline") else None
    names = [name for name, reason in reasons.items() if name in values or (reason and name != unasked)]
    metrics = {}
    for name in names:
        interval = {end: number((ends.get(name) or {}).get(end)) for end in ("low", "high")}
        why = "" if name in values else f"not defined: {reasons[name]}"
        told = {"value": number(values.get(name)), **interval, "trivial": number(trivial.get(name))}
        metrics[name] = {**told, "why": why}
    threshold = number((about.get("clinical") or {}).get("threshold")) or 0.5
    seen = {} if about.get("curves") else views(found.get(CLINICAL) or {}, threshold)  # of times there are no risks
    whole = seen.pop("", None)
    known = whole if whole and whole["positives"] is not None and whole["n"] else None
    share = float(known["positives"] / known["n"]) if known else None
    few = f"none leaves of {plural(int(n or 0), 'case')}, with a minimum of {about.get('min_count')}"
    return {
        "n": n,
        "metrics": metrics,
        "calibration": whole,
        "calibration_why": "" if whole or not about.get("clinical") else few,
        "trivial_brier": None if share is None else share * (1 - share),
        "survival": steps_of(found.get(CLINICAL) or {}, (about.get("curves") or {}).get("ends", ())),
        "groups": _groups((found.get("groups") or {}).get(TEST) or {}, seen, about),
    }


def _groups(cells: Mapping[str, Any], seen: Mapping[str, Json], about: Json) -> list[Json]:
    rows = []
    for name in (name for name in about["groups"] if name in cells or name in seen):
        cell, view = cells.get(name) or {}, seen.get(name)
        n = number(cell.get("n")) or number((view or {}).get("n"))
        rows.append({"group": name, "n": n, "value": number(cell.get("value")), "calibration": view})
    return rows


def paired(numbers: Mapping[str, float], name: str, metrics: Mapping[str, str]) -> Json:
    """The run's model beside the hospital's own, from ``engine.benefit``.

    Returns:
        model: that name; metrics: name -> label, model, own, difference (the first less the second), low and high of
        its interval.
    """
    found = {}
    for metric, words in metrics.items():
        ours, theirs, low, high = (number(numbers.get(f"{kind}.{metric}")) for kind in (FEDERATED, SOLO, LOW, HIGH))
        if ours is not None and theirs is not None:
            both = {"label": words, "model": ours, "own": theirs, "difference": ours - theirs}
            found[metric] = {**both, "low": low, "high": high}
    return {"model": name, "metrics": found}


def discrimination(site: Json, found: Json) -> list[tuple[str, Json]]:
    """Label and figures of a site's metrics, each quantity once.

    Of two classes both averages of the AUC are the AUC; Brier score and calibration stand beside the slope.
    """
    said: tuple[str, ...] = ("brier_loss", "calibration_error") if site["calibration"] else ()
    two = len(found["classes"]) == TWO and "auc_ovo" in site["metrics"]
    said += ("auc_ovr",) if two else ()
    shown = ((name, one) for name, one in site["metrics"].items() if name not in said)
    return [("AUC" if two and name == "auc_ovo" else label(name, found), one) for name, one in shown]


def render(found: Json) -> str:
    from fairflare.report.figures import clinical_figures as site_figures

    rows, stages = [], ["before"]
    for name, site in found["sites"].items():
        after = (site.get("recalibration") or {}).get("calibration")
        stages = ["before", "after"] if after else stages
        rows.append({"site": name, "before": site["calibration"], "after": after})
    figures = drawn(site_figures({"rows": rows, "stages": stages}))
    event, task = (found.get("clinical") or {}).get("event"), {"classes": found.get("classes")}
    event = event and class_words(event, {"task": {**task, "options": {"label": found.get("outcome")}}})
    about = {"found": found, "figures": figures, "event": event}
    return rendered("external", {"label": label, "discrimination": discrimination}, **about)


def wilson(successes: float, n: float) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion (JASA 22, 1927); (0, 1) without cases."""
    if n <= 0:
        return 0.0, 1.0
    share, spread = successes / n, maths.Z * maths.Z / n
    centre = (share + spread / 2) / (1 + spread)
    half = maths.Z * math.sqrt(share * (1 - share) / n + spread / (4 * n)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)
