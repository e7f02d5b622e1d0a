# SPDX-License-Identifier: Apache-2.0
"""External validation: a run's model at hospitals that did not train it, as a file and a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairflare.core.metric import named
from fairflare.core.types import INTERVALS, TRIVIAL
from fairflare.engine.benefit import FEDERATED, HIGH, LOW, SOLO
from fairflare.engine.clinical import CLINICAL
from fairflare.report.clinical import clinical_figures, views
from fairflare.report.survival import steps_of
from fairflare.report.values import class_words, drawn, in_order, json_value, label, number, plural, rendered

Json = dict[str, Any]
FORMAT = 1
TEST = "test"
TWO = 2
ONE_CLASS = "all labelled cases are of one class"


def evaluation(about: Json, sites: Mapping[str, Mapping[str, Any]], beside: Mapping[str, Json] | None = None) -> Json:
    """The content of ``evaluation.json``.

    Args:
        about: what ``config.json`` says of the task under "about", and model, min_count, level, group_by and split.
        sites: name -> what the site released, as the log of a federation has it after its final evaluation.
        beside: name -> further entries of a site: own, recalibration, trained (where most cases trained the model).

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
    rows, stages = [], ["before"]
    for name, site in found["sites"].items():
        after = (site.get("recalibration") or {}).get("calibration")
        stages = ["before", "after"] if after else stages
        rows.append({"site": name, "before": site["calibration"], "after": after})
    figures = drawn(clinical_figures({"rows": rows, "stages": stages}))
    event, task = (found.get("clinical") or {}).get("event"), {"classes": found.get("classes")}
    event = event and class_words(event, {"task": {**task, "options": {"label": found.get("outcome")}}})
    about = {"found": found, "figures": figures, "event": event}
    return rendered("external", {"label": label, "discrimination": discrimination}, **about)
