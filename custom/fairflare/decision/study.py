# SPDX-License-Identifier: Apache-2.0
"""From a task's patients to the content of ``decision.json``: plain numbers, and a sentence for each hospital."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fairflare.data.tensors import Split
from fairflare.decision import validation
from fairflare.decision.decide import THRESHOLDS, Assessment, Decision, decide, decide_outside
from fairflare.decision.estimands import Estimate, margin
from fairflare.decision.heterogeneity import MIN_HOSPITALS, Between, between
from fairflare.decision.regression import MEMBER, REFIT_SHARE, Hospital, Training
from fairflare.decision.verdicts import ADDS, ALONE, COSTS, JOIN, SAME, UNTOLD, USE, USE_OR_JOIN, Verdict, too_few
from fairflare.functional.slopes import sigmoid
from fairflare.tasks.folds import dealt
from fairflare.tasks.metrics import auc

Json = dict[str, Any]
ANSWERS = {
    ALONE: "stay alone: neither using nor joining gains what matters",
    USE: "use the others' model with your own calibration: joining adds nothing that matters",
    JOIN: "join",
    USE_OR_JOIN: "use or join: between them there is no difference that matters to you",
    UNTOLD: "cannot be told whether to share",
}
PARTICIPATION = {
    ADDS: "joining adds to using",
    SAME: "joining adds nothing that matters to using",
    COSTS: "joining costs, compared with using",
    UNTOLD: "what joining adds cannot be told",
}
MAX_COLUMNS = 200
"""Features beyond which the Hessians of all folds are too large for one machine."""
MIN_AUC = 0.55
"""Below it no sample size is worth naming."""


def hospital_of(patients: Split, event: int) -> Hospital:
    """Its rows, the outcome being the class ``event``."""
    x = np.asarray(patients.inputs, dtype=np.float64)
    y = (patients.labels.numpy() == event).astype(np.float64)
    return Hospital.of(np.hstack([np.ones((len(x), 1)), x]), y, patients.patients)


def decision_of(
    everybody: Mapping[str, Split],
    event: int,
    columns: Mapping[int, str] | None,
    folds: int,
    deals: int,
    threshold: float | None = None,
    worthwhile: float = 0.0,
) -> tuple[Json, Decision]:
    """The content of ``decision.json``, and what it is made of.

    Args:
        everybody: hospital -> all of its patients; those with too few train, and are not answered.
        event: the class whose risk is asked for.
        columns: place in a row, from 1 on -> name, of measurements.
        folds, deals: K and R.
        threshold: the risk from which on the clinic treats, in (0, 1).
        worthwhile: the smallest net benefit per patient that matters.
    """
    hospitals = {name: hospital_of(one, event) for name, one in everybody.items()}
    places = {
        name: np.stack([dealt(one.y.astype(np.int64), folds, deal, name, _named(one)) for deal in range(deals)])
        for name, one in hospitals.items()
        if not too_few(one)
    }
    found = decide(hospitals, places, threshold=threshold, worthwhile=worthwhile, columns=columns)
    return _content(hospitals, found, threshold, worthwhile), found


def outside_decision_of(
    patients: Split, event: int, training: Training, rows: int, threshold: float | None, worthwhile: float
) -> Json:
    """The same of a hospital that took no part, in 5 folds dealt 10 times; ``rows``: of all who did."""
    one = hospital_of(patients, event)
    places = np.stack([dealt(one.y.astype(np.int64), 5, deal, "outside", _named(one)) for deal in range(10)])
    found = decide_outside(training, rows, one, places, threshold=threshold, worthwhile=worthwhile)
    return _content({"outside": one}, found, threshold, worthwhile)


def _content(hospitals: Mapping[str, Hospital], found: Decision, threshold: float | None, worthwhile: float) -> Json:
    pooled = bool(found.averages)
    sites = {name: _site(name, one, found) for name, one in hospitals.items()}
    return {
        "score": "brier",
        "folds": found.design.folds,
        "deals": found.design.deals,
        "factor": found.design.factor,
        "threshold": threshold,
        "worthwhile": worthwhile,
        "refits": [name for name, one in found.assessments.items() if one.share > REFIT_SHARE],
        "pooled": pooled,
        "note": "" if pooled else f"fewer than {MIN_HOSPITALS} hospitals: each is answered from its own patients alone",
        "sites": sites,
        "averages": {key: _between(one) for key, one in found.averages.items()},
        "internal_external": _internal_external(found, threshold),
        "expected_false": found.expected_false,
        "thresholds": THRESHOLDS.tolist(),
    }


def left_aside(why: str) -> Json:
    """Of a hospital whose patients are too few to be read."""
    return {"patients": 0, "margin": 0.0, "verdict": UNTOLD, "participation": UNTOLD, "reason": why, "sentence": why}


def _named(one: Hospital) -> Any:
    return one.patient if one.grouped else None


def _site(name: str, one: Hospital, found: Decision) -> Json:
    answer = found.verdicts[name]
    row: Json = {
        "patients": one.n,
        "rows": len(one.y),
        "events": float(one.y.sum()),
        "patients_named": one.grouped,
        "margin": margin(one.prevalence),
        "verdict": answer.answer,
        "participation": answer.participation,
        "p_false": answer.p_false,
        "reason": answer.reason,
        "sentence": sentence(answer),
    }
    if name not in found.assessments:
        return row
    assessed = found.assessments[name]
    row["question_1_by"] = "regression" if name in found.by_regression else "outcomes"
    row["estimands"] = {
        key: _interval(assessed.estimates[key], found.distribution(key, name)) for key in assessed.estimates
    }
    row["net_benefit"] = {
        key: _interval(one, found.net_benefits[key][name]) for key, one in assessed.net_benefits.items()
    }
    row["minimum_patients"] = _minimum_patients(assessed)
    y = assessed.hospital.y
    row["models"] = {
        key: {
            "brier": float(((risks - y) ** 2).mean()),
            "auc": float(np.mean([auc(deal, y > 0.5) for deal in risks])),
            "net_benefit_curve": validation.decision_curve(y, risks, THRESHOLDS).tolist(),
        }
        for key, risks in assessed.risks.items()
    }
    treated = validation.decision_curve(y, np.ones((1, len(y))), THRESHOLDS)
    row["models"]["treat all"] = {"net_benefit_curve": treated.tolist()}
    return row


def _interval(own: Estimate, of: Any) -> Json:
    """The hospital's own estimate, and what is known with the others' help; the same where nothing is."""
    ends, mine = of.interval(), own.interval()
    value = own.value if isinstance(of, Estimate) else of.mean
    about = {"own": own.value, "own_low": mine[0], "own_high": mine[1], "value": value, "low": ends[0], "high": ends[1]}
    return {key: float(number) for key, number in {**about, "p_below_zero": of.below(0.0)}.items()}


def _between(one: Between) -> Json:
    about = {"mean": one.average.mean, "low": one.average.low, "high": one.average.high, "tau": one.tau}
    return {**about, "next_low": one.prediction[0], "next_high": one.prediction[1]}


def _internal_external(found: Decision, threshold: float | None) -> Json:
    """Each hospital's calibration of the others' model without an update, and what a further hospital may see."""
    rows, each = {}, dict[str, list[tuple[float, float]]]()
    for name, one in found.internal_external.items():
        assessed = found.assessments[name]
        y, risks = assessed.hospital.y, sigmoid(assessed.hospital.x @ assessed.outside)
        row: Json = {"patients": assessed.hospital.n, "events": float(y.sum())}
        for key in ("intercept", "slope", "log_ratio"):
            value, variance = getattr(one, key)
            each.setdefault(key, []).append((value, variance))
            row[key] = {"mean": value, "low": value - 1.96 * variance**0.5, "high": value + 1.96 * variance**0.5}
        row |= {"brier": float(((risks - y) ** 2).mean()), "auc": auc(risks, y > 0.5)}
        if threshold is not None:
            row["net_benefit"] = float(validation.decision_curve(y, risks[None], np.array([threshold]))[0])
        rows[name] = row
    pooled = {key: _between(between(*zip(*pairs, strict=True))) for key, pairs in each.items() if found.averages}
    return {"sites": rows, "hospitals": pooled}


def _minimum_patients(assessed: Assessment) -> Json:
    """Patients that a model of these columns needs, given the AUC of the member model, and those that there are."""
    one = assessed.hospital
    area = float(np.mean([auc(deal, one.y > 0.5) for deal in assessed.risks[MEMBER]]))
    varying = int((np.ptp(one.x, axis=0) > 0).sum())
    if not MIN_AUC < area < 1:
        return {"needed": None, "auc": area, "parameters": varying}
    needed = validation.minimum_patients(area, one.prevalence, varying)
    return {"needed": needed, "auc": area, "parameters": varying}


def sentence(answer: Verdict) -> str:
    """ "cannot be told whether to share (why); joining adds to using"."""
    if answer.reason.startswith("too few"):
        return answer.reason
    why = f" ({answer.reason})" if answer.reason else ""
    more = "" if answer.answer in (USE, USE_OR_JOIN, ALONE) else f"; {PARTICIPATION[answer.participation]}"
    return f"{ANSWERS[answer.answer]}{why}{more}"


def lines(found: Mapping[str, Any]) -> list[str]:
    """What a terminal shows: a line for each hospital, U, J and D in thousandths of the Brier score."""
    said = []
    for name, one in found["sites"].items():
        numbers = ""
        if "estimands" in one:
            of = {key: one["estimands"][key] for key in ("U", "J", "D")}
            each = (
                f"{k} {1e3 * v['value']:+.1f} [{1e3 * v['low']:+.1f}, {1e3 * v['high']:+.1f}]" for k, v in of.items()
            )
            numbers = f"  {', '.join(each)}"
        said.append(f"{name} (n {one['patients']}): {one['sentence']}{numbers}")
    for key, one in found["averages"].items():
        if key in ("U", "J", "D"):
            said.append(f"average {key} {1e3 * one['mean']:+.2f} [{1e3 * one['low']:+.2f}, {1e3 * one['high']:+.2f}]")
    told = sum(one["verdict"] != UNTOLD for one in found["sites"].values())
    about = "U: using minus own, J: joining minus own, D: joining minus using; gain in Brier score x 1,000"
    return [
        *said,
        f"{about}; {told} verdicts, of which {found['expected_false']:.1f} or fewer are expected to be false",
    ]
