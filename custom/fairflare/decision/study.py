# SPDX-License-Identifier: Apache-2.0
"""From a task's patients to the content of ``decision.json``: plain numbers, and a sentence for each hospital."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np

from fairflare.core.errors import UserError
from fairflare.core.settings import nested
from fairflare.core.types import MOST_EXAMPLES, Number
from fairflare.data.tensors import Split
from fairflare.decision import validation
from fairflare.decision.decide import THRESHOLDS, Answer, Assessment, Decision, decide, decide_outside
from fairflare.decision.estimands import ESTIMANDS, Estimate, margin
from fairflare.decision.heterogeneity import MIN_HOSPITALS, Between
from fairflare.decision.mix import Mix
from fairflare.decision.own import RIDGE
from fairflare.decision.regression import ENSEMBLE, MEMBER, OUTSIDE, OWN, Array, Hospital, Training
from fairflare.decision.sums import CALIBRATION, NET, PATIENTS_PER_COEFFICIENT, Known, Plan
from fairflare.decision.verdicts import (
    ADDS,
    ALONE,
    COSTS,
    JOIN,
    REASONS,
    SAME,
    TOO_FEW,
    UNTOLD,
    USE,
    USE_OR_JOIN,
    Reason,
    too_few,
)
from fairflare.functional.decision import LEAST_DISAGREEMENT, Average
from fairflare.functional.slopes import sigmoid
from fairflare.tasks.base import Task
from fairflare.tasks.folds import dealt, dealt_alike, everyone
from fairflare.tasks.metrics import auc

Json = dict[str, Any]
ANSWERS = {
    ALONE: "stay alone: neither using nor joining gains what matters",
    USE: "use the others' model with your own calibration: joining adds nothing that matters",
    JOIN: "join",
    USE_OR_JOIN: "use or join: between them there is no difference that matters to you",
    UNTOLD: "not clear whether to share",
}
PARTICIPATION = {
    ADDS: "joining adds to using",
    SAME: "joining adds nothing that matters to using",
    COSTS: "joining costs, compared with using",
    UNTOLD: "not clear whether joining adds",
}
MAX_COLUMNS, COMPONENTS = 200, 50
"""Features beyond which the decision is made on principal components, at most so many: Hessians would be too large."""
ASSUMED_AUC = 0.8
"""Before the first round, where none is known."""
MIN_AUC = 0.55
"""Below it no sample size is worth naming."""


def hospital_of(patients: Split, event: int) -> Hospital:
    """Its rows, the outcome being the class ``event``."""
    x = np.asarray(patients.inputs.cpu(), dtype=np.float64)
    y = (patients.labels.cpu().numpy() == event).astype(np.float64)
    return Hospital.of(np.hstack([np.ones((len(x), 1)), x]), y, patients.patients, patients.identities)


def hospital_at(data: Any, event: int) -> Hospital:
    """A site's rows, of all its splits; UserError where they are not in memory."""
    return hospital_of(everyone(data), event)


def on_components(hospitals: Mapping[str, Hospital]) -> tuple[dict[str, Hospital], int, Callable[[Array], Array]]:
    """Hospitals of more than ``MAX_COLUMNS`` features on principal components, how many these are, and what moves rows.

    They come from sums over hospitals of features and their products; no outcome is in them. They are scaled alike, to
    a mean square of 1. 0: the hospitals as they are.
    """
    each = [one.x[:, 1:] for one in hospitals.values()]
    n, width = sum(map(len, each)), each[0].shape[1]
    if width <= MAX_COLUMNS:
        return dict(hospitals), 0, lambda x: x
    centre = np.sum([x.sum(axis=0) for x in each], axis=0) / n
    count = max(1, min(COMPONENTS, n // PATIENTS_PER_COEFFICIENT))
    products = np.sum([x.T @ x for x in each], axis=0) / n - np.outer(centre, centre)
    sizes, axes = (part[..., -count:] for part in np.linalg.eigh(products))
    axes = axes / max(float(sizes.mean()), LEAST_DISAGREEMENT) ** 0.5

    def moved(x: Array) -> Array:
        return np.hstack([x[:, :1], (x[:, 1:] - centre) @ axes])

    return {name: dataclasses.replace(one, x=moved(one.x)) for name, one in hospitals.items()}, count, moved


def smallest_sample(hospitals: Mapping[str, Hospital]) -> str:
    """Before the first round: whether patients suffice for a model of these columns, at a hospital and elsewhere."""
    everybody = sum(one.n for one in hospitals.values())
    share = sum(one.y.sum() for one in hospitals.values()) / sum(len(one.y) for one in hospitals.values())
    columns = next(iter(hospitals.values())).x.shape[1]
    columns = columns if columns <= MAX_COLUMNS + 1 else COMPONENTS + 1
    needed = validation.minimum_patients(ASSUMED_AUC, min(max(float(share), 0.001), 0.999), columns)
    alone = ", ".join(name for name, one in hospitals.items() if one.n >= needed) or "none"
    least = everybody - max(one.n for one in hospitals.values())
    return (
        f"{columns} coefficients, {share:.0%} with the outcome: at an AUC of {ASSUMED_AUC} a model needs {needed:,} "
        f"patients (Riley); enough of their own: {alone}; the others of each together: {least:,} or more"
    )


def folds_of(name: str, one: Hospital, plan: Plan) -> Any:
    """(R, N), see ``Site``; None: nothing is estimated, and everybody trains.

    Raises UserError: patients at several hospitals, and no column says who they are.
    """
    if plan.shared_patients:
        if one.identities is None:
            raise UserError(f"--shared-patients: {name}: expected a table with the column patient, got none")
        return np.stack([dealt_alike(one.identities, plan.folds, deal) for deal in range(plan.deals)])
    labels, patients = one.y.astype(np.int64), one.patient if one.n < len(one.y) else None
    deals = range(0 if too_few(one) else plan.deals)
    return np.stack([dealt(labels, plan.folds, deal, name, patients) for deal in deals]) if deals else None


def decision_of(hospitals: Mapping[str, Hospital], plan: Plan, columns: Mapping[int, str] | None) -> Decision:
    """As ``decide``, with each hospital's patients dealt into folds."""
    return decide(
        hospitals, {name: folds_of(name, one, plan) for name, one in hospitals.items()}, plan, columns=columns
    )


def measurements(task: Task) -> dict[int, str] | None:
    """Place in a row, from 1 on -> name, of the table's measurements, as of ``verdicts.never_measured``."""
    table = task.table_inputs()
    features = () if table is None else (*table.numbers, *table.plain)
    return {1 + k: f.column for k, f in enumerate(features) if not (f.values or f.missing or f.other)}


def outside_decision_of(
    patients: Split, event: int, training: Training, rows: int, threshold: float | None, worthwhile: float
) -> Json:
    """Of a hospital that took no part, in 5 folds dealt 10 times; ``rows``: of all who did."""
    one, plan = hospital_of(patients, event), Plan(5, 10, threshold, worthwhile)
    answer = decide_outside(training, rows, one, folds_of("outside", one, plan), plan)
    return content(plan, {"outside": row_of(answer, plan)})


def content(plan: Plan, rows: Mapping[str, Json], known: Known | None = None, components: int = 0) -> Json:
    """The content of ``decision.json``.

    Args:
        rows: hospital -> ``row_of``.
        known: all sums; None: each hospital speaks for itself.
        components: as of ``on_components``.
    """
    averages = known.averages() if known else {}
    pooled = bool(averages)
    few = f"fewer than {MIN_HOSPITALS} hospitals, or too unlike ones: each is answered from its own patients alone"
    return {
        "score": "brier",
        **dataclasses.asdict(plan),
        "factor": plan.design.factor,
        "refits": list(known.refits) if known else [],
        "pooled": pooled,
        "components": components,
        "note": "" if pooled else few,
        "sites": dict(rows),
        "averages": {key: _between(averages[key]) for key in averages if key in ESTIMANDS},
        "calibration": {key: _between(averages[key]) for key in averages if key in CALIBRATION},
        "expected_false": expected_false(rows),
        "thresholds": THRESHOLDS.tolist(),
    }


def expected_false(rows: Mapping[str, Json]) -> float:
    """The expected number of false verdicts among those given, at most."""
    return float(sum(one["p_false"] for one in rows.values() if one["verdict"] != UNTOLD))


def left_aside(why: str) -> Json:
    """Of a hospital whose patients are too few to be read."""
    none = {"patients": 0, "margin": 0.0, "p_false": 0.0, "verdict": UNTOLD, "participation": UNTOLD}
    return {**none, "reason_code": "too_few", "reason": why, "sentence": why}


def row_of(answer: Answer, plan: Plan) -> Json:
    """What is said of one hospital."""
    one, given = answer.hospital, answer.verdict
    row: Json = {
        "patients": one.n,
        "rows": len(one.y),
        "events": float(one.y.sum()),
        "patients_named": one.grouped,
        "margin": margin(one.prevalence),
        **_told(given.answer, given.participation, given.reason, answer.columns),
        "p_false": given.p_false,
    }
    if (assessed := answer.assessment) is None:
        return row
    row["question_1_by"] = "regression" if answer.by_regression else "outcomes"
    each = {key: _interval(one, answer.distribution(key)) for key, one in assessed.estimates.items()}
    row["estimands"] = {key: each[key] for key in ESTIMANDS if key in each}
    row["net_benefit"] = {key.removeprefix(NET): of for key, of in each.items() if key.startswith(NET)}
    row |= {} if answer.gives is None else {"gives": answer.gives._asdict()}
    row["mix"], row["strict_mix"] = answer.mix._asdict(), answer.strict_mix._asdict()
    row["minimum_patients"] = _minimum_patients(assessed)
    row["outside"] = _outside(assessed, plan.threshold)
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


def _told(answer: str, participation: str, reason: Reason | None, columns: Mapping[int, str] | None) -> Json:
    why = reason.words(columns) if reason else ""
    code, value = (reason.code, reason.value) if reason else ("", 0.0)
    words = {"verdict": answer, "participation": participation, "reason": why, "reason_code": code}
    return {**words, "reason_value": float(value), "sentence": sentence(answer, participation, why)}


def _interval(own: Estimate, of: Any) -> Json:
    """The hospital's own estimate, and what is known with the others' help; the same where nothing is."""
    ends, mine = of.interval(), own.interval()
    value = own.value if isinstance(of, Estimate) else of.mean
    about = {"own": own.value, "own_low": mine[0], "own_high": mine[1], "value": value, "low": ends[0], "high": ends[1]}
    return {key: float(number) for key, number in {**about, "p_below_zero": of.below(0.0)}.items()}


def _between(one: Between) -> Json:
    about = {"mean": one.average.mean, "low": one.average.low, "high": one.average.high, "tau": one.tau}
    return {**about, "next_low": one.prediction[0], "next_high": one.prediction[1]}


def _outside(one: Assessment, threshold: float | None) -> Json:
    """Internal-external validation: the others' model at this hospital, without an update."""
    y, risks = one.hospital.y, sigmoid(one.logits)
    row: Json = {"brier": float(((risks - y) ** 2).mean()), "auc": auc(risks, y > 0.5)}
    for key in CALIBRATION:
        value, variance = getattr(one.calibration, key)
        row[key] = {"mean": value, "low": value - 1.96 * variance**0.5, "high": value + 1.96 * variance**0.5}
    if threshold is not None:
        row["net_benefit"] = float(validation.decision_curve(y, risks[None], np.array([threshold]))[0])
    return row


def _minimum_patients(assessed: Assessment) -> Json:
    """Patients that a model of these columns needs, given the AUC of the member model; 0: no model is worth one."""
    one = assessed.hospital
    area = float(np.mean([auc(deal, one.y > 0.5) for deal in assessed.risks[MEMBER]]))
    varying = int((np.ptp(one.x, axis=0) > 0).sum())
    needed = validation.minimum_patients(area, one.prevalence, varying) if MIN_AUC < area < 1 else 0
    return {"needed": needed, "auc": area, "parameters": varying}


def sentence(answer: str, participation: str, reason: str = "") -> str:
    """ "not clear whether to share (why); joining adds to using"."""
    if reason.startswith(TOO_FEW):
        return reason
    why = f" ({reason})" if reason else ""
    more = "" if answer in (USE, USE_OR_JOIN, ALONE) else f"; {PARTICIPATION[participation]}"
    return f"{ANSWERS[answer]}{why}{more}"


# What of a row a hospital tells in the clear: numbers alone, each within its range.

COUNTS = ("patients", "rows", "events", "reason_value")
OF_FEW = ("events", "reason_value", "models", "outside", "minimum_patients", "net_benefit")
"""What is not told of a hospital with fewer patients than leave it, and with fewer of one of the outcomes."""
NET_BENEFIT = ("net_benefit", "outside.net_benefit")
"""What is not told where it would tell of too few patients who are flagged, or are not."""
VERDICTS, PARTICIPATIONS, CODES = tuple(ANSWERS), tuple(PARTICIPATION), ("", *REASONS)
COUNT, RATE, DIFFERENCE = (0.0, float(MOST_EXAMPLES)), (0.0, 1.0), (-1.0, 1.0)
FAR = 100.0
"""The largest number of a calibration that is told."""
OF_INTERVAL = ("own", "own_low", "own_high", "value", "low", "high")


def numbers(plan: Plan) -> tuple[Number, ...]:
    """What a hospital may tell of its row."""
    return tuple(Number(name, *bounds, meaning) for name, bounds, meaning in _numbers(plan))


def _numbers(plan: Plan) -> Iterator[tuple[str, tuple[float, float], str]]:
    for name in ("patients", "rows", "events"):
        yield name, COUNT, f"the hospital's {name}"
    yield "patients_named", RATE, "1 where the table names patients"
    yield "p_false", RATE, "probability that the verdict is false"
    for name, known in (("verdict", VERDICTS), ("participation", PARTICIPATIONS), ("reason_code", CODES)):
        yield name, (0.0, len(known) - 1.0), f"{name}: its place in the list of all"
    yield "reason_value", (-FAR, float(MOST_EXAMPLES)), "number of the reason, or a column's place"
    yield "by_regression", RATE, "1 where U and J are read from the hospital's regression"
    nets = ("U", "J", "D") if plan.threshold is not None else ()
    for kind, keys in (("estimands", tuple(ESTIMANDS)), ("net_benefit", nets)):
        for key in keys:
            for part in OF_INTERVAL:
                yield f"{kind}.{key}.{part}", (-FAR, FAR), f"{kind}: {key}, {part}"
            yield f"{kind}.{key}.p_below_zero", RATE, f"{kind}: probability that {key} is below 0"
    for part in Average._fields:
        yield f"gives.{part}", DIFFERENCE, f"gain in Brier score of the other hospitals by this one's patients: {part}"
    for kind in ("mix", "strict_mix"):
        for name in Mix._fields:
            yield f"{kind}.{name}", DIFFERENCE, f"safe share of the member model: {name}"
    yield "minimum_patients.needed", (0.0, float(MOST_EXAMPLES)), "patients that a model of these columns needs"
    yield "minimum_patients.auc", RATE, "AUC of the member model out of fold"
    yield "minimum_patients.parameters", COUNT, "columns that vary"
    for name in ("brier", "auc"):
        yield f"outside.{name}", RATE, f"{name} of the others' model, without an update"
    for key in CALIBRATION:
        for part in ("mean", "low", "high"):
            yield f"outside.{key}.{part}", (-FAR, FAR), f"the same, calibration: {key}, {part}"
    if plan.threshold is not None:
        yield "outside.net_benefit", (-FAR, 1.0), "the same, net benefit at the threshold"
    for model in (OWN, OUTSIDE, MEMBER, ENSEMBLE, RIDGE):
        for name in ("brier", "auc"):
            yield f"models.{model}.{name}", RATE, f"{name} of the model {model!r} out of fold"


def told(row: Json, plan: Plan, hidden: Collection[str] = ()) -> dict[str, float]:
    """The numbers of a row, see ``numbers``, but for those that ``hidden`` has, or their first name."""
    flat: dict[str, Any] = {
        **row,
        "verdict": VERDICTS.index(row["verdict"]),
        "participation": PARTICIPATIONS.index(row["participation"]),
        "reason_code": CODES.index(row["reason_code"]),
        "by_regression": row.get("question_1_by") == "regression",
    }
    found = {}
    for name, (low, high), _ in _numbers(plan):
        if name in hidden or name.partition(".")[0] in hidden:
            continue
        value: Any = flat
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            found[name] = min(max(float(value), low), high)
    return found


def row_from(numbers: Mapping[str, float], columns: Mapping[int, str] | None) -> Json:
    """The row that a hospital's numbers tell; ValueError where they are not those of one."""
    row = nested(numbers)
    try:
        answer, participation = VERDICTS[int(row["verdict"])], PARTICIPATIONS[int(row["participation"])]
        code = CODES[int(row.pop("reason_code"))]
        reason = Reason(code, row.pop("reason_value", 0.0)) if code else None
    except (KeyError, IndexError) as error:
        raise ValueError(f"expected the numbers of a decision, {error} is missing") from None
    by = row.pop("by_regression", 0.0)
    row.setdefault("net_benefit", {})
    if "estimands" in row:
        row["question_1_by"] = "regression" if by else "outcomes"
    whole = {key: int(row.get(key, 0)) for key in ("patients", "rows")}
    share = row["events"] / whole["rows"] if whole["rows"] and "events" in row else 0.0
    return {**row, **whole, **_told(answer, participation, reason, columns), "margin": margin(share)}


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
    false = f"verdicts: {told}, expected to be false: {found['expected_false']:.1f} or fewer" if told else "no verdict"
    return [*said, f"{about}; {false}"]
