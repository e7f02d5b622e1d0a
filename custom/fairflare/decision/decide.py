# SPDX-License-Identifier: Apache-2.0
"""A hospital's part in a decision: what it adds to each sum, and the decision that it makes of all of them.

Question 1: is a shared model better than the hospital's own (U and J)? Question 2: if it is, must the hospital join for
it (D)? U and J share nearly all of their noise, so that D is not read from their two intervals.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from fairflare.decision import regression, sums, validation
from fairflare.decision import verdicts as rules
from fairflare.decision.estimands import Estimate, Folds, estimates, margin, net_benefit_difference
from fairflare.decision.heterogeneity import Between, size
from fairflare.decision.mix import NO_MIX, Mix, right_part, safe_mix
from fairflare.decision.regression import MEMBER, OUTSIDE, OWN, Array, Hospital, Others, Rows, Training
from fairflare.decision.sums import AVERAGED, CALIBRATION, NET, PLACES, UPPER, Known, Plan, added
from fairflare.decision.verdicts import (
    JOIN,
    LEVEL,
    UNTOLD,
    USE,
    USE_OR_JOIN,
    Distribution,
    Reason,
    Verdict,
    powers,
    reversed_slope,
    too_few,
    verdict,
    withheld,
)
from fairflare.functional import decision as hierarchical
from fairflare.functional import slopes
from fairflare.functional.decision import Normals
from fairflare.functional.slopes import Regressed, Right, sigmoid

NEEDED_NET_BENEFIT = {USE: ("U",), JOIN: ("J",), USE_OR_JOIN: ("U", "J")}
THRESHOLDS = np.linspace(0.05, 0.95, 19)
"""Of decision curves."""
REGRESSED = {"U": OUTSIDE, "J": MEMBER}
"""Estimand that a hospital's regression tells -> the model that it compares with the own one."""


@dataclass(frozen=True)
class Assessment:
    """What is estimated at one hospital.

    Attributes:
        models: model -> (P,) coefficients as deployed, of all the hospital's patients.
        risks: model -> (R, N) out of fold.
        estimates: estimand -> estimate from this hospital's own patients; in net benefit too, at a threshold.
        outside: (P,) the others' model before any update.
        calibration: of that model at this hospital, and the same without an update.
        share: the hospital's rows among all.
    """

    hospital: Hospital
    models: Mapping[str, Array]
    risks: Mapping[str, Array]
    estimates: Mapping[str, Estimate]
    outside: Array
    calibration: validation.Calibration
    share: float


@dataclass(frozen=True)
class Answer:
    """What one hospital makes of all sums.

    Attributes:
        assessment: None: it has too few patients.
        by_outcomes: estimand -> its true value's distribution; posteriors from four hospitals on.
        by_regression: U and J, where they can be read from regressions.
        mix, strict_mix: the safe share of the member model, for a loss of the margin at most, and for none.
        columns: as of ``verdicts.never_measured``.
    """

    hospital: Hospital
    verdict: Verdict
    assessment: Assessment | None = None
    by_outcomes: Mapping[str, Distribution] = field(default_factory=dict)
    by_regression: Mapping[str, Normals] = field(default_factory=dict)
    mix: Mix = NO_MIX
    strict_mix: Mix = NO_MIX
    columns: Mapping[int, str] | None = None

    def distribution(self, estimand: str) -> Any:
        """As the verdict takes it: by the hospital's regression, else by outcomes."""
        return self.by_regression.get(estimand, self.by_outcomes[estimand])


@dataclass
class Site:
    """A hospital in a decision, with its patients at hand.

    Attributes:
        folds: (R, N) numbers from 0 to K - 1, all rows of a patient alike; None: nothing is estimated here.
        columns: as of ``verdicts.never_measured``.
        trains: whether its rows are in the sums.
        regression_route: whether U and J are read from its regression where they can be.
    """

    name: str
    hospital: Hospital
    folds: Rows | None
    columns: Mapping[int, str] | None = None
    trains: bool = True
    regression_route: bool = True
    _own: list[Array] = field(default_factory=list, init=False, repr=False)
    _regression: list[slopes.Fitted] = field(default_factory=list, init=False, repr=False)
    _assessment: list[Assessment] = field(default_factory=list, init=False, repr=False)

    @property
    def assessed(self) -> bool:
        return self.trains and self.folds is not None

    @property
    def regressed(self) -> bool:
        """A regression takes rows for patients."""
        return self.assessed and self.regression_route and self.hospital.n == len(self.hospital.y)

    def terms(self, known: Known) -> list[float]:
        """What it adds to the next sum."""
        place, found = known.next, dict[str, Any]()
        if self.trains and place < sums.EM_AT:
            found = self._derivatives(known.training.coefficients)
            found |= {"rows": len(self.hospital.y), "rows_of": [name == self.name for name in known.names]}
            found["rows_of"] = np.multiply(found["rows_of"], len(self.hospital.y))
            found |= {"regressed": self.regressed, "regressed_patients": self.regressed * self.hospital.n}
        elif place < sums.REFITS_AT:
            found = {"pulls": slopes.shares(self._fit(known).evidence, known.pulls)} if self.regressed else {}
        elif place < sums.MODELS:
            name = known.left_out(place)
            found = self._derivatives(known.outside(name)) if self.trains and name != self.name else {}
        elif self.trains and place == sums.MODELS:
            found = {"powers": powers(self.hospital)}
            if self.assessed:
                rows = len(self.hospital.y)
                found |= {"rows": rows, "own": rows * self.own_models(known.training.coefficients)[-1]}
        elif self.assessed:
            one = self.assessment(known)
            make = {sums.MOMENTS: self._moments, sums.SCALES: self._scales, sums.POSTERIORS: self._posteriors}
            found = make[place](known, one)
        return known.packed(found)

    def support(self, known: Known) -> dict[str, Array]:
        """Kind of sum -> (N,) weight of each row in the next one, for ``privacy.referee``; of Newton's steps alone."""
        place = known.next
        if place < sums.EM_AT:
            at = known.training.coefficients
        elif sums.REFITS_AT <= place < sums.MODELS:
            at = known.outside(known.left_out(place))
        else:
            return {}
        risks = sigmoid(self.hospital.x @ at)
        return {"score": self.hospital.y - risks, "information": risks * (1 - risks)}

    def _derivatives(self, at: Array) -> dict[str, Any]:
        gradient, hessian = slopes.derivatives(self.hospital.x, self.hospital.y, at)
        return {"gradient": gradient, "hessian": hessian[np.triu_indices(len(at))]}

    def own_models(self, start: Array) -> Array:
        """(R K + 1, P) of every fold and of all; ``start`` only saves steps."""
        if not self._own:
            self._own.append(regression.own_models(self.hospital, self._masks, start))
        return self._own[0]

    @cached_property
    def _masks(self) -> Array:
        """(R K + 1, N): rows that train, for each deal and fold; the last are all."""
        assert self.folds is not None
        each = [deal != fold for deal in self.folds for fold in range(int(self.folds.max()) + 1)]
        return np.vstack([*each, np.ones(self.folds.shape[1], dtype=bool)]).astype(np.float64)

    def assessment(self, known: Known) -> Assessment:
        """Once all models are known."""
        if not self._assessment:
            one, training = self.hospital, known.training
            centre, precision = training.others(one)
            outside = known.outside(self.name) if self.name in known.refits else centre
            models = known.total(sums.MODELS)
            rows, own = len(one.y), self.own_models(training.coefficients)
            elsewhere = models["own"] - rows * own[-1], round(float(models["rows"])) - rows
            others = Others(outside, centre, precision, elsewhere)
            self._assessment.append(self.assess(others, own, known.plan, rows / known.rows))
        return self._assessment[0]

    def assess(self, others: Others, own: Array, plan: Plan, share: float) -> Assessment:
        """Its models for every fold and of all its patients, and what they are worth out of fold."""
        assert self.folds is not None
        one, design = self.hospital, plan.design
        models = {OWN: own, **regression.shared_models(one, others, self._masks, own)}
        risks = {key: _out_of_fold(one, each, self.folds) for key, each in models.items()}
        found = estimates(one, risks, design, share)
        if plan.threshold is not None:
            for key, pair in {"U": (OWN, OUTSIDE), "J": (OWN, MEMBER), "D": (OUTSIDE, MEMBER)}.items():
                found[NET + key] = net_benefit_difference(one, risks[pair[0]], risks[pair[1]], plan.threshold)
        calibration = validation.calibration(one, one.x @ others.outside)
        deployed = {key: each[-1] for key, each in models.items()}
        return Assessment(one, deployed, risks, found, others.outside, calibration, share)

    # What it adds once its estimates are there.

    def _values(self, one: Assessment) -> list[tuple[float, float]]:
        """Of ``AVERAGED``: value and squared standard error, without what folds have in common."""
        found = {key: (of.value, of.variance / of.n) for key, of in one.estimates.items()}
        found |= {key: getattr(one.calibration, key) for key in CALIBRATION}
        return [(found[key][0], max(found[key][1], 1e-12)) for key in AVERAGED]

    def _moments(self, known: Known, one: Assessment) -> dict[str, Any]:
        n = self.hospital.n
        moments = [
            hierarchical.moments(max(one.estimates[key].variance, 1e-12), [n])[UPPER] for key in known.plan.estimands
        ]
        found = {
            "assessed": 1,
            "reversed": reversed_slope(self.hospital, one.outside) < 0,
            "moments": moments,
            "values": [(1 / v, e, e**2, v) for e, v in self._values(one)],
            "right": 1 / self._right(one, "J").variance,
        }
        if self.regressed and known.regressed:
            design = known.plan.design
            parts = {key: self._right(one, key) for key in REGRESSED}
            means = {key: self._by_regression(known, one, key).of.mean for key in REGRESSED}
            found["misfits"] = [slopes.misfit_terms(parts[key], means[key], design.factor) for key in REGRESSED]
        return found

    def _scales(self, known: Known, one: Assessment) -> dict[str, Any]:
        n, estimands = self.hospital.n, known.plan.estimands
        each = enumerate(self._values(one))
        return {
            "precisions": [1 / known.noise(k, n) for k in range(len(estimands))],
            "averages": [hierarchical.terms(e, v, 0.0, known.average_scale(k)) for k, (e, v) in each],
            "right": self._right_terms(known, one),
        }

    def _right_terms(self, known: Known, one: Assessment) -> Array:
        part = self._right(one, "J")
        x = hierarchical.of_size(part.n) if known.assessed >= slopes.SITES_FOR_SIZE else 0.0
        return hierarchical.terms(part.a, part.variance, x, known.right_scale)

    def _posteriors(self, known: Known, one: Assessment) -> dict[str, Any]:
        return {"terms": [self._terms(known, one, k) for k in range(len(known.plan.estimands))]}

    def _terms(self, known: Known, one: Assessment, k: int) -> Array:
        """Of the ``k``-th estimand."""
        key, n = known.plan.estimands[k], self.hospital.n
        return hierarchical.terms(one.estimates[key].value, known.noise(k, n), size(key, n), known.scale(k))

    # What its regression says.

    def _fit(self, known: Known) -> slopes.Fitted:
        if not self._regression:  # the same at every later sum
            one, training = self.hospital, known.training
            others = slopes.Others.of_all(training.coefficients, training.hessian, known.regressed, one.x, one.y)
            self._regression.append(slopes.fitted(one.x, one.y, others))
        return self._regression[0]

    def _right(self, one: Assessment, estimand: str) -> Right:
        """By outcomes."""
        assert self.folds is not None
        return right_part(self.hospital, one.risks[OWN], one.risks[REGRESSED[estimand]], _design(self.folds))

    def _by_regression(self, known: Known, one: Assessment, estimand: str) -> Regressed:
        of, x = slopes.Slopes.of(self._fit(known), known.pulls), self.hospital.x
        own, moved = (sigmoid(x @ one.models[key]) for key in (OWN, REGRESSED[estimand]))
        return Regressed.of_models(of, x, own, moved, self._right(one, estimand).q)

    # Its decision.

    def answer(self, known: Known) -> Answer:
        """After the last sum."""
        if not self.assessed:
            why = too_few(self.hospital) or Reason("few_patients", self.hospital.n)
            return Answer(self.hospital, Verdict(UNTOLD, UNTOLD, reason=why), columns=self.columns)
        one, n = self.assessment(known), self.hospital.n
        by_outcomes: dict[str, Distribution] = dict(one.estimates)
        for k, key in enumerate(known.plan.estimands if known.pooled else ()):
            own, noise = one.estimates[key], known.noise(k, n)
            others = known.hospitals(k).without(self._terms(known, one, k))
            by_outcomes[key] = others.given(own.value, noise, size(key, n), (own.factor - 1) * noise)
        parts = {}
        if known.by_regression and self.regressed:
            for k, key in enumerate(REGRESSED):
                parts[key] = self._by_regression(known, one, key).widened(*known.misfit(k))
        by_regression = {key: slopes.gain(part.of, part.q) for key, part in parts.items()}
        right = parts["J"].of if "J" in parts else self._posterior_right(known, one)
        q, limits = self._right(one, "J").q, (margin(self.hospital.prevalence), 0.0)
        mix, strict = (safe_mix(q, right, limit) for limit in limits)
        models = known.total(sums.MODELS)
        others_features = rules.Others(known.rows - len(self.hospital.y), models["powers"] - powers(self.hospital))
        found = Answer(
            self.hospital, Verdict(UNTOLD, UNTOLD), one, by_outcomes, by_regression, mix, strict, self.columns
        )
        return self.judged(found, known.plan, others_features, known.pooled)

    def _posterior_right(self, known: Known, one: Assessment) -> Normals:
        part, f = self._right(one, "J"), known.plan.design.factor
        if not known.pooled:
            return Normals(np.ones(1), np.array([part.a]), np.array([np.sqrt(f * part.variance)]))
        x = hierarchical.of_size(part.n) if known.assessed >= slopes.SITES_FOR_SIZE else 0.0
        others = known.right.without(self._right_terms(known, one))
        return others.given(part.a, part.variance, x, (f - 1) * part.variance, slopes.UNLIKE)

    def judged(self, found: Answer, plan: Plan, others: rules.Others | None, pooled: bool) -> Answer:
        """By the rules, unless a detector or the net benefit speaks against it; ``others``: as of ``withheld``."""
        one = found.assessment
        assert one is not None
        if why := withheld(self.hospital, others, one.outside, one.estimates, self.columns):
            given = Verdict(UNTOLD, UNTOLD, reason=why)
        else:
            u, j, d = (found.distribution(key) for key in ("U", "J", "D"))
            given = verdict(u, j, d, margin(self.hospital.prevalence), pooled)
            needed = NEEDED_NET_BENEFIT.get(given.answer, ()) if plan.threshold is not None else ()
            if any(float(found.by_outcomes[NET + key].below(-plan.worthwhile)) >= LEVEL for key in needed):
                given = Verdict(UNTOLD, given.participation, reason=Reason("net_benefit"))
        return dataclasses.replace(found, verdict=given)


@dataclass(frozen=True)
class Decision:
    """The answers of all hospitals of a federation, and what they have in common."""

    known: Known
    answers: Mapping[str, Answer]

    @property
    def training(self) -> Training:
        return self.known.training

    @cached_property
    def averages(self) -> dict[str, Between]:
        """Estimand, or number of a calibration -> mean over hospitals; empty below four hospitals."""
        return self.known.averages()


def decide(
    hospitals: Mapping[str, Hospital],
    folds: Mapping[str, Rows],
    *,
    threshold: float | None = None,
    worthwhile: float = 0.0,
    columns: Mapping[int, str] | None = None,
    regression_route: bool = True,
    tell_apart: bool = True,
) -> Decision:
    """All of it in place: one training, then an answer for every hospital.

    Args:
        hospitals: name -> rows; all take part in the training, whatever their size.
        folds: name -> (R, N) numbers from 0 to K - 1, all rows of a patient alike; of hospitals that are assessed.
        threshold: the risk from which on the clinic treats; None: no net benefit.
        worthwhile: the smallest net benefit per patient that matters.
        columns: as of ``verdicts.never_measured``.
        regression_route: read U and J of question 1 by each hospital's regression where it can be had.
        tell_apart: False: as under secure sums, where nobody's outside model is refit.
    """
    places = {name: None if too_few(one) else folds[name] for name, one in hospitals.items()}
    sites = [Site(n, one, places[n], columns, regression_route=regression_route) for n, one in hospitals.items()]
    design = _design(next((one for one in places.values() if one is not None), np.ones((1, 1), dtype=np.int64)))
    plan = Plan(design.folds, design.deals, threshold, worthwhile)
    start = (0.0,) * sites[0].hospital.x.shape[1]
    known = Known(plan, start, tuple(hospitals) if tell_apart else ())
    while known.next < PLACES:
        known = known.after(added(site.terms(known) for site in sites))
    return Decision(known, {site.name: site.answer(known) for site in sites})


def decide_outside(
    training: Training,
    rows: int,
    hospital: Hospital,
    folds: Rows,
    *,
    threshold: float | None = None,
    worthwhile: float = 0.0,
) -> Answer:
    """Answer a hospital that took no part, at the hospital: ``training`` is all that it needs of the others.

    Its own patients alone speak (``verdicts.verdict``, not pooled). ``rows``: of all who trained; ``folds``: (R, N).
    """
    design, site = _design(folds), Site("outside", hospital, folds)
    plan = Plan(design.folds, design.deals, threshold, worthwhile)
    others = Others(training.coefficients, training.coefficients, training.hessian)
    own, share = site.own_models(training.coefficients), len(hospital.y) / (len(hospital.y) + rows)
    one = site.assess(others, own, plan, share)
    found = Answer(hospital, Verdict(UNTOLD, UNTOLD), one, dict(one.estimates))
    return site.judged(found, plan, None, False)


def _design(folds: Rows) -> Folds:
    return Folds(int(folds.max()) + 1, len(folds))


def _out_of_fold(hospital: Hospital, models: Array, folds: Rows) -> Array:
    """(R, N) risks, each by the model that was fitted without the row's fold."""
    risks = sigmoid(models[:-1] @ hospital.x.T).reshape(len(folds), -1, folds.shape[1])
    return np.take_along_axis(risks, folds[:, None], axis=1)[:, 0]
