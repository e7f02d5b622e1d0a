# SPDX-License-Identifier: Apache-2.0
"""The decision of every hospital of one federation, from one training.

Question 1: is a shared model better than the hospital's own (U and J)? Question 2: if it is, must the hospital join for
it (D)? U and J share nearly all of their noise, so that D is not read from their two intervals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fairflare.decision import regression, validation
from fairflare.decision.estimands import Estimate, Folds, estimates, margin, net_benefit_difference
from fairflare.decision.heterogeneity import MIN_HOSPITALS, WITH_SIZE, Between, between, posteriors
from fairflare.decision.regression import MEMBER, OUTSIDE, OWN, Array, Hospital, Others, Rows, Training
from fairflare.decision.verdicts import (
    JOIN,
    LEVEL,
    UNTOLD,
    USE,
    USE_OR_JOIN,
    Distribution,
    Verdict,
    reversed_slope,
    too_few,
    verdict,
    withheld,
)
from fairflare.functional import decision as hierarchical
from fairflare.functional import slopes
from fairflare.functional.exchange import Deployed, Known, in_place
from fairflare.functional.exchange import Hospital as OutOfFold
from fairflare.functional.slopes import sigmoid

NEEDED_NET_BENEFIT = {USE: ("U",), JOIN: ("J",), USE_OR_JOIN: ("U", "J")}
THRESHOLDS = np.linspace(0.05, 0.95, 19)
"""Of decision curves."""


@dataclass(frozen=True)
class Assessment:
    """What is estimated at one hospital.

    Attributes:
        models: model -> (P,) coefficients as deployed, of all the hospital's patients.
        risks: model -> (R, N) out of fold.
        estimates: estimand -> estimate from this hospital's own patients.
        net_benefits: U, J and D in net benefit at the clinic's threshold, if there is one.
        outside: (P,) the others' model before any update.
        share: the hospital's rows among all.
    """

    hospital: Hospital
    models: Mapping[str, Array]
    risks: Mapping[str, Array]
    estimates: Mapping[str, Estimate]
    net_benefits: Mapping[str, Estimate]
    outside: Array
    share: float


@dataclass(frozen=True)
class Decision:
    """The answers.

    Attributes:
        training: the one federated training.
        assessments: hospital -> what is estimated there; those with too few patients have none.
        by_outcomes: estimand -> hospital -> its true value's distribution; posteriors from four hospitals on.
        by_regression: hospital -> estimand U or J -> its distribution, where it can be had.
        net_benefits: the same of net benefits.
        verdicts: hospital -> verdict, of all hospitals.
        averages: estimand -> mean over hospitals, tau, and a further hospital's value; empty below four hospitals.
        internal_external: hospital -> calibration of the others' model there, without an update.
    """

    design: Folds
    training: Training
    assessments: Mapping[str, Assessment]
    by_outcomes: Mapping[str, Mapping[str, Any]]
    by_regression: Mapping[str, Mapping[str, hierarchical.Normals]]
    net_benefits: Mapping[str, Mapping[str, Any]]
    verdicts: Mapping[str, Verdict]
    averages: Mapping[str, Between] = field(default_factory=dict)
    internal_external: Mapping[str, validation.Calibration] = field(default_factory=dict)

    def distribution(self, estimand: str, hospital: str) -> Any:
        """As the verdict takes it: by the hospital's regression, else by outcomes."""
        return self.by_regression.get(hospital, {}).get(estimand, self.by_outcomes[estimand][hospital])

    @property
    def expected_false(self) -> float:
        """The expected number of false verdicts among those given, at most."""
        return sum(one.p_false for one in self.verdicts.values() if one.answer != UNTOLD)


def decide(
    hospitals: Mapping[str, Hospital],
    folds: Mapping[str, Rows],
    *,
    threshold: float | None = None,
    worthwhile: float = 0.0,
    columns: Mapping[int, str] | None = None,
    regression_route: bool = True,
) -> Decision:
    """Train once, then answer every hospital.

    Args:
        hospitals: name -> rows; all take part in the training, whatever their size.
        folds: name -> (R, N) numbers from 0 to K - 1, all rows of a patient alike; of hospitals that are assessed.
        threshold: the risk from which on the clinic treats; None: no net benefit.
        worthwhile: the smallest net benefit per patient that matters.
        columns: as of ``verdicts.never_measured``.
        regression_route: read U and J of question 1 by each hospital's regression where it can be had.
    """
    training = regression.train(list(hospitals.values()))
    reasons = {name: too_few(one) for name, one in hospitals.items()}
    design = _design(folds)
    found = _assessments(
        hospitals, {name: folds[name] for name, why in reasons.items() if not why}, training, threshold
    )
    pooled = len(found) >= MIN_HOSPITALS
    by_outcomes = _over_hospitals({name: one.estimates for name, one in found.items()}, pooled)
    odd = any(reversed_slope(one.hospital, one.outside) for one in found.values())  # its slopes would speak for others
    by_regression = _by_regression(found, design) if pooled and regression_route and not odd else {}
    net_benefits = _over_hospitals({name: one.net_benefits for name, one in found.items()}, pooled)
    averages = {key: between(*_column(found, key)) for key in by_outcomes} if pooled else {}
    external = {name: validation.calibration(one.hospital, one.hospital.x @ one.outside) for name, one in found.items()}
    verdicts = {name: Verdict(UNTOLD, UNTOLD, reason=why) for name, why in reasons.items()}
    decision = Decision(design, training, found, by_outcomes, by_regression, net_benefits, verdicts, averages, external)
    for name in found:
        verdicts[name] = _verdict(decision, name, hospitals, worthwhile, columns)
    return decision


def decide_outside(
    training: Training,
    rows: int,
    hospital: Hospital,
    folds: Rows,
    *,
    threshold: float | None = None,
    worthwhile: float = 0.0,
) -> Decision:
    """Answer a hospital that took no part, at the hospital: ``training`` is all that it needs of the others.

    Its own patients alone speak (``verdicts.verdict``, not pooled). ``rows``: of all who trained; ``folds``: (R, N).
    """
    design, name = _design({"": folds}), "outside"
    others = Others(training.coefficients, training.coefficients, training.hessian)
    own = regression.own_models(hospital, masks := _training_rows(folds, design), training.coefficients)
    share = len(hospital.y) / (len(hospital.y) + rows)
    found = {name: _assessment(hospital, others, masks, own, folds, design, share, threshold)}
    external = {name: validation.calibration(hospital, hospital.x @ training.coefficients)}
    values, net = (_over_hospitals({name: of}, False) for of in (found[name].estimates, found[name].net_benefits))
    verdicts = {name: Verdict(UNTOLD, UNTOLD)}
    decision = Decision(design, training, found, values, {}, net, verdicts, {}, external)
    verdicts[name] = _verdict(decision, name, {}, worthwhile, {})
    return decision


def _design(folds: Mapping[str, Rows]) -> Folds:
    first = next(iter(folds.values()), np.ones((1, 1), dtype=np.int64))
    return Folds(int(first.max()) + 1, len(first))


def _assessments(
    hospitals: Mapping[str, Hospital], folds: Mapping[str, Rows], training: Training, threshold: float | None
) -> dict[str, Assessment]:
    """Of each hospital with ``folds``."""
    everyone, design = sum(len(one.y) for one in hospitals.values()), _design(folds)
    masks = {name: _training_rows(dealt, design) for name, dealt in folds.items()}
    own = {name: regression.own_models(hospitals[name], mask, training.coefficients) for name, mask in masks.items()}
    rows = {name: len(hospitals[name].y) for name in folds}
    total = sum((rows[name] * own[name][-1] for name in folds), np.zeros(len(training.coefficients)))
    found = {}
    for name, mask in masks.items():
        one, share = hospitals[name], rows[name] / everyone
        centre, precision = training.others(one)
        outside = centre
        if share > regression.REFIT_SHARE:
            outside = regression.train([other for key, other in hospitals.items() if key != name]).coefficients
        elsewhere = total - rows[name] * own[name][-1], sum(rows.values()) - rows[name]
        others = Others(outside, centre, precision, elsewhere)
        found[name] = _assessment(one, others, mask, own[name], folds[name], design, share, threshold)
    return found


def _assessment(
    hospital: Hospital,
    others: Others,
    masks: Array,
    own: Array,
    folds: Rows,
    design: Folds,
    share: float,
    threshold: float | None,
) -> Assessment:
    """Its models for every fold and of all its patients, and what they are worth out of fold."""
    models = {OWN: own, **regression.shared_models(hospital, others, masks, own)}
    risks = {key: _out_of_fold(hospital, each, folds) for key, each in models.items()}
    of = estimates(hospital, risks, design, share)
    pairs = {"U": (OWN, OUTSIDE), "J": (OWN, MEMBER), "D": (OUTSIDE, MEMBER)} if threshold is not None else {}
    net = {key: net_benefit_difference(hospital, risks[a], risks[b], threshold or 0) for key, (a, b) in pairs.items()}
    return Assessment(hospital, {key: each[-1] for key, each in models.items()}, risks, of, net, others.outside, share)


def _column(found: Mapping[str, Assessment], estimand: str) -> tuple[list[float], list[float]]:
    """Values and squared standard errors over hospitals, without what folds have in common."""
    each = [one.estimates[estimand] for one in found.values()]
    return [one.value for one in each], [one.variance / one.n for one in each]


def _verdict(
    decision: Decision,
    name: str,
    hospitals: Mapping[str, Hospital],
    worthwhile: float,
    columns: Mapping[int, str] | None,
) -> Verdict:
    """By the rules, unless a detector or the net benefit speaks against it."""
    one = decision.assessments[name]
    others = [other for key, other in hospitals.items() if key != name]
    if why := withheld(one.hospital, others, one.outside, one.estimates, columns):
        return Verdict(UNTOLD, UNTOLD, reason=why)
    u, j, d = (decision.distribution(key, name) for key in ("U", "J", "D"))
    answer = verdict(u, j, d, margin(one.hospital.prevalence), bool(decision.averages))
    needed = NEEDED_NET_BENEFIT.get(answer.answer, ()) if decision.net_benefits else ()
    if all(float(decision.net_benefits[key][name].below(-worthwhile)) < LEVEL for key in needed):
        return answer
    return Verdict(UNTOLD, answer.participation, reason="net benefit at the threshold may be worse")


def _training_rows(folds: Rows, design: Folds) -> Array:
    """(R K + 1, N): rows that train, for each deal and fold; the last are all."""
    each = [deal != fold for deal in folds for fold in range(design.folds)]
    return np.vstack([*each, np.ones(folds.shape[1], dtype=bool)]).astype(np.float64)


def _out_of_fold(hospital: Hospital, models: Array, folds: Rows) -> Array:
    """(R, N) risks, each by the model that was fitted without the row's fold."""
    risks = sigmoid(models[:-1] @ hospital.x.T).reshape(len(folds), -1, folds.shape[1])
    return np.take_along_axis(risks, folds[:, None], axis=1)[:, 0]


def _over_hospitals(each: Mapping[str, Mapping[str, Estimate]], pooled: bool) -> dict[str, dict[str, Distribution]]:
    """Estimand -> hospital -> distribution: the posterior of all, or the hospital's own estimate."""
    keys = next(iter(each.values()), {})
    values = {key: {name: one[key] for name, one in each.items()} for key in keys}
    return {key: dict(posteriors(of, key in WITH_SIZE) if pooled else of) for key, of in values.items()}


def _by_regression(found: Mapping[str, Assessment], design: Folds) -> dict[str, dict[str, hierarchical.Normals]]:
    """Hospital -> U and J by its regression, whose slopes are drawn towards the others' (``functional.slopes``).

    It takes rows for patients, so that a hospital with several rows of a patient has none.
    """
    everyone = {}
    for name, one in found.items():
        names = (OWN, OUTSIDE, MEMBER)
        x, y = one.hospital.x, one.hospital.y
        single = one.hospital.n == len(y)
        deployed = Deployed(x, y, np.stack([sigmoid(x @ one.models[key]) for key in names])) if single else None
        labels = np.broadcast_to(y, one.risks[OWN].shape)
        patients = None if single else np.broadcast_to(one.hospital.patient, labels.shape)
        everyone[name] = OutOfFold(labels, np.stack([one.risks[key] for key in names]), deployed, True, patients)
    width = next(iter(found.values())).hospital.x.shape[1]
    known = in_place(everyone.values(), Known(2, hierarchical.Design(design.folds, design.deals), width))
    corrected = {name: one.corrected(known)[:-1] for name, one in everyone.items()}  # without the common direction
    gains = {name: [slopes.gain(of, part.q) for part, of in each] for name, each in corrected.items()}
    return {name: dict(zip(("U", "J"), each, strict=False)) for name, each in gains.items() if each}
