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

from fairflare.decision import own as own_kinds
from fairflare.decision import regression, sums, validation
from fairflare.decision import verdicts as rules
from fairflare.decision.estimands import (
    Estimate,
    estimates,
    loss_difference,
    margin,
    mean_over_patients,
    net_benefit_difference,
)
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
    is_reversed,
    powers,
    too_few,
    verdict,
    withheld,
)
from fairflare.functional import decision as hierarchical
from fairflare.functional import slopes
from fairflare.functional.decision import Average, Normals
from fairflare.functional.slopes import Regressed, Right, sigmoid

NEEDED_NET_BENEFIT = {USE: ("U",), JOIN: ("J",), USE_OR_JOIN: ("U", "J")}
THRESHOLDS = np.linspace(0.05, 0.95, 19)
"""Of decision curves."""
RARE = 0.05
"""Share of an outcome below which U and J are not read from a hospital's regression: those intervals held 90 %."""
REGRESSED = {"U": OUTSIDE, "J": MEMBER}
"""Estimand that a hospital's regression tells -> the model that it compares with the own one."""


@dataclass(frozen=True)
class Assessment:
    """What is estimated at one hospital.

    Attributes:
        models: model -> (P,) coefficients as deployed, of all the hospital's patients; of "own" the ridge regression.
        risks: model -> (R, N) out of fold.
        estimates: estimand -> estimate from this hospital's own patients; in net benefit too, at a threshold.
        outside: (P,) the others' model before any update.
        logits: (N,) of that model; out of fold where patients are at several hospitals.
        calibration: of these logits.
        share: the hospital's rows among all.
    """

    hospital: Hospital
    models: Mapping[str, Array]
    risks: Mapping[str, Array]
    estimates: Mapping[str, Estimate]
    outside: Array
    logits: Array
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
        gives: as of ``Known.gives``.
    """

    hospital: Hospital
    verdict: Verdict
    assessment: Assessment | None = None
    by_outcomes: Mapping[str, Distribution] = field(default_factory=dict)
    by_regression: Mapping[str, Normals] = field(default_factory=dict)
    mix: Mix = NO_MIX
    strict_mix: Mix = NO_MIX
    columns: Mapping[int, str] | None = None
    gives: Average | None = None

    def distribution(self, estimand: str) -> Any:
        """As the verdict takes it: by the hospital's regression, else by outcomes."""
        return self.by_regression.get(estimand, self.by_outcomes[estimand])


@dataclass
class Site:
    """A hospital in a decision, with its patients at hand.

    Attributes:
        plan: what is asked.
        folds: (R, N) numbers from 0 to K - 1, all rows of a patient alike; None: nothing is estimated here.
        columns: as of ``verdicts.never_measured``.
        trains: whether its rows are in the sums.
    """

    name: str
    hospital: Hospital
    plan: Plan
    folds: Rows | None
    columns: Mapping[int, str] | None = None
    trains: bool = True
    _own: list[Array] = field(default_factory=list, init=False, repr=False)
    _regression: list[slopes.Fitted] = field(default_factory=list, init=False, repr=False)
    _assessment: list[Assessment] = field(default_factory=list, init=False, repr=False)

    @cached_property
    def assessed(self) -> bool:
        return self.trains and self.folds is not None and too_few(self.hospital) is None

    @property
    def regressed(self) -> bool:
        """A regression takes rows for patients, the own model for a regression, and its error for a normal one."""
        of_rows = self.plan.own_model == own_kinds.RIDGE and self.hospital.n == len(self.hospital.y)
        return self.assessed and of_rows and RARE <= self.hospital.prevalence <= 1 - RARE

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
        elif place < sums.FOLDS_AT:
            name = known.left_out(place)
            found = self._derivatives(known.outside(name)) if self.trains and name != self.name else {}
        elif place < sums.MODELS:
            found = self._of_folds(known) if self.trains else {}
        elif self.trains and place == sums.MODELS:
            mine = np.array([float(name == self.name) for name in known.giving])[:, None]
            found = {
                "powers": powers(self.hospital),
                "moves": mine * (self._outside(known) - known.training.coefficients),
            }
            if self.assessed:
                found |= dict(zip(("own", "rows"), self._exchanged(known), strict=True))
        elif self.assessed:
            one = self.assessment(known)
            make = {sums.MOMENTS: self._moments, sums.SCALES: self._scales, sums.POSTERIORS: self._posteriors}
            found = make[place](known, one)
        return known.packed(found)

    def support(self, known: Known) -> list[dict[str, Array]]:
        """Kind of sum -> (N,) weight of each row, for ``privacy.referee``, of what the next sums tell.

        Of Newton's steps alone. Those without a fold tell of this fold, by their difference from those of all.
        """
        place, models, rows = known.next, list[Array](), np.ones((1, len(self.hospital.y)))
        if place < sums.EM_AT:
            models = [known.training.coefficients]
        elif sums.REFITS_AT <= place < sums.FOLDS_AT:
            models = [known.outside(known.left_out(place))]
        elif sums.FOLDS_AT <= place < sums.MODELS:
            models, rows = [one.coefficients for one in known.without_folds], 1 - self._masks[:-1]
        each = [(mask, sigmoid(self.hospital.x @ at)) for mask, at in zip(rows, models, strict=False)]
        return [{"score": m * (self.hospital.y - risks), "information": m * risks * (1 - risks)} for m, risks in each]

    def _derivatives(self, at: Array) -> dict[str, Any]:
        gradient, hessian = slopes.derivatives(self.hospital.x, self.hospital.y, at)
        return {"gradient": gradient, "hessian": hessian[np.triu_indices(len(at))]}

    def _of_folds(self, known: Known) -> dict[str, Array]:
        """As ``_derivatives``, of each federated training without a fold."""
        x, upper = self.hospital.x, np.triu_indices(len(known.start))
        risks = sigmoid(np.stack([one.coefficients for one in known.without_folds]) @ x.T)
        masks, products = self._masks[:-1], x[:, upper[0]] * x[:, upper[1]]
        return {
            "gradient": (masks * (self.hospital.y - risks)) @ x,
            "hessian": (masks * risks * (1 - risks)) @ products,
        }

    def own_models(self, start: Array) -> Array:
        """(R K + 1, P) of every fold and of all; ``start`` only saves steps."""
        if not self._own:
            self._own.append(regression.own_models(self.hospital, self._masks, start))
        return self._own[0]

    @cached_property
    def _masks(self) -> Array:
        """(R K + 1, N): rows that train, for each deal and fold; the last are all."""
        assert self.folds is not None
        each = [deal != fold for deal in self.folds for fold in range(self.plan.folds)]
        return np.vstack([*each, np.ones(self.folds.shape[1], dtype=bool)]).astype(np.float64)

    def _exchanged(self, known: Known) -> tuple[Array, Array]:
        """Own coefficients times rows, and rows: of each federated training without a fold, and of all."""
        own, rows = self.own_models(known.training.coefficients), self._masks.sum(axis=1, keepdims=True)
        first = 0 if known.plan.trainings else -1
        return (rows * own)[first:], rows[first:]

    def _outside(self, known: Known) -> Array:
        """(P,) the others' model."""
        return known.outside(self.name) if self.name in known.refits else known.training.others(self.hospital)[0]

    def assessment(self, known: Known) -> Assessment:
        """Once all models are known."""
        if not self._assessment:
            one, models, outside = self.hospital, known.total(sums.MODELS), self._outside(known)
            own, rows = self._exchanged(known)
            others = Others(
                outside, *known.training.others(one), own_models=(models["own"] - own, models["rows"] - rows)
            )
            if trainings := known.without_folds:
                each = [t.others(one, rows > 0)[0] for t, rows in zip(trainings, self._masks, strict=False)]
                members = np.stack([t.coefficients for t in (*trainings, known.training)])
                others = dataclasses.replace(others, outside=np.stack([*each, outside]), members=members)
            self._assessment.append(self.assess(others, known.training.coefficients, len(one.y) / known.rows))
        return self._assessment[0]

    @property
    def counted(self) -> set[int]:
        """Patients with each outcome whom a model flags at the threshold or does not: what a net benefit tells."""
        if (threshold := self.plan.threshold) is None or not self.assessed:
            return set()
        one, found = self.hospital, self._assessment[0]
        risks = [sigmoid(found.logits), *(each for key in (OWN, OUTSIDE, MEMBER) for each in found.risks[key])]
        kinds = [(one.y > 0.5) * 2 + (each >= threshold) for each in risks]
        return {len(np.unique(one.patient[kind == k])) for kind in kinds for k in range(4)}

    def assess(self, others: Others, start: Array, share: float) -> Assessment:
        """Its models for every fold and of all its patients, and what they are worth out of fold."""
        one, own = self.hospital, self.own_models(start)
        models = {OWN: own, **regression.shared_models(one, others, self._masks, own)}
        risks = {key: self._out_of_fold(sigmoid(each @ one.x.T)) for key, each in models.items()}
        if (kind := self.plan.own_model) != own_kinds.RIDGE:
            brought = own_kinds.risks(one, self._masks, own_kinds.maker(kind))
            risks |= {own_kinds.RIDGE: risks[OWN], OWN: self._out_of_fold(brought)}
        found = estimates(one, risks, self.plan.design, share)
        if self.plan.threshold is not None:
            for key, pair in {"U": (OWN, OUTSIDE), "J": (OWN, MEMBER), "D": (OUTSIDE, MEMBER)}.items():
                found[NET + key] = net_benefit_difference(one, risks[pair[0]], risks[pair[1]], self.plan.threshold)
        logits = np.broadcast_to(others.outside, own.shape) @ one.x.T
        logits = self._out_of_fold(logits).mean(axis=0)
        deployed = {key: each[-1] for key, each in models.items()}
        outside = others.outside.reshape(-1, own.shape[1])[-1]
        return Assessment(one, deployed, risks, found, outside, logits, validation.calibration(one, logits), share)

    def _out_of_fold(self, each: Array) -> Array:
        """(R, N), each by the model that was fitted without the row's fold, of (R K + 1, N) by all."""
        assert self.folds is not None
        dealt = each[:-1].reshape(len(self.folds), -1, self.folds.shape[1])
        return np.take_along_axis(dealt, self.folds[:, None], axis=1)[:, 0]

    def _given(self, known: Known) -> Array:
        """(H, 4) of every other hospital: 1, e, e^2 and V of what its patients gain this one, in one deal."""
        assert self.folds is not None
        one, rows, found = self.hospital, self._masks[: self.plan.folds], np.zeros((len(known.giving), 4))
        if not len(found):
            return found
        centre, precision = known.training.others(one)
        some = [t.coefficients for t in known.without_folds[: self.plan.folds]]
        others = Others(centre, centre, precision, members=np.stack(some) if some else None)
        member = regression.members(one, others, rows)

        def risks(models: Array, place: Rows = self.folds[:1]) -> Array:
            of_all = sigmoid(regression.updated(one.x, one.y, rows, models) @ one.x.T)
            return np.take_along_axis(of_all, place, axis=0)

        joined = risks(member)
        for k, move in enumerate(known.total(sums.MODELS)["moves"]):
            if move.any() and known.giving[k] != self.name:
                without = loss_difference(one.y, risks(member + move), joined)
                e = mean_over_patients(without, one, self.plan.design.factor)
                found[k] = 1, e.value, e.value**2, e.variance / e.n
        return found

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
            "given": self._given(known),
            "reversed": is_reversed(one.calibration.slope),
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
        return right_part(self.hospital, one.risks[OWN], one.risks[REGRESSED[estimand]], self.plan.design)

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
        more = self.columns, known.gives(self.name)
        found = Answer(self.hospital, Verdict(UNTOLD, UNTOLD), one, by_outcomes, by_regression, mix, strict, *more)
        return self.judged(found, others_features, known.pooled)

    def _posterior_right(self, known: Known, one: Assessment) -> Normals:
        part, f = self._right(one, "J"), known.plan.design.factor
        if not known.pooled:
            return Normals(np.ones(1), np.array([part.a]), np.array([np.sqrt(f * part.variance)]))
        x = hierarchical.of_size(part.n) if known.assessed >= slopes.SITES_FOR_SIZE else 0.0
        others = known.right.without(self._right_terms(known, one))
        return others.given(part.a, part.variance, x, (f - 1) * part.variance, slopes.UNLIKE)

    def judged(self, found: Answer, others: rules.Others | None, pooled: bool) -> Answer:
        """By the rules, unless a detector or the net benefit speaks against it; ``others``: as of ``withheld``."""
        one, plan = found.assessment, self.plan
        assert one is not None
        if why := withheld(self.hospital, others, one.calibration.slope, one.estimates, self.columns):
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
    plan: Plan,
    *,
    columns: Mapping[int, str] | None = None,
    tell_apart: bool = True,
) -> Decision:
    """All of it in place: one training, then an answer for every hospital.

    Args:
        hospitals: name -> rows; all take part in the training, whatever their size.
        folds: name -> (R, N) numbers from 0 to K - 1, all rows of a patient alike; of hospitals that are assessed, and
            of all where patients are at several hospitals.
        plan: what is asked.
        columns: as of ``verdicts.never_measured``.
        tell_apart: False: as under secure sums, where nobody's outside model is refit.
    """
    sites = [Site(n, one, plan, folds.get(n), columns) for n, one in hospitals.items()]
    start = (0.0,) * sites[0].hospital.x.shape[1]
    known = Known(plan, start, tuple(hospitals) if tell_apart else ())
    while known.next < PLACES:
        known = known.after(added(site.terms(known) for site in sites))
    return Decision(known, {site.name: site.answer(known) for site in sites})


def decide_outside(training: Training, rows: int, hospital: Hospital, folds: Rows, plan: Plan) -> Answer:
    """Answer a hospital that took no part, at the hospital: ``training`` is all that it needs of the others.

    Its own patients alone speak (``verdicts.verdict``, not pooled). ``rows``: of all who trained; ``folds``: (R, N).
    """
    site = Site("outside", hospital, plan, folds)
    others = Others(training.coefficients, training.coefficients, training.hessian)
    one = site.assess(others, training.coefficients, len(hospital.y) / (len(hospital.y) + rows))
    return site.judged(Answer(hospital, Verdict(UNTOLD, UNTOLD), one, dict(one.estimates)), None, False)
