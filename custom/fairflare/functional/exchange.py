# SPDX-License-Identifier: Apache-2.0
"""What hospitals tell of their patients' risks out of fold, so that each can be told whether it gains by joining.

Sums over hospitals, one after the other, each of which needs those before: Newton's steps of the regression of all
hospitals and EM's steps of how much they differ (``slopes``), left out where nobody asks; then three of what a
hospital's ``Row`` holds, means over its patients and repetitions. A server that sees these sums alone sees no
hospital's benefit, and each hospital makes its own answer of them. In place the same sums are made of all hospitals at
hand. The formulas are those of ``decision`` and ``slopes``; docs/join.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fairflare.functional import decision, slopes
from fairflare.functional.decision import Array, Benefit, Design, Hospitals, Normals, Owners, by_patient
from fairflare.functional.slopes import Right

DIGITS = 4
"""Significant digits of every number that a hospital tells."""
LEAST_PATIENTS = 30
LEAST_SITES = 4
"""Hospitals from which on they are read together; with fewer each speaks for itself."""
MIX_KEYS = ("share", "p_harm", "benefit", "low", "high")
MOMENTS = np.triu_indices(3)
TERMS = decision.POINTS * 7
Json = dict[str, Any]
PULLS_AT, FIRST = slopes.STEPS, slopes.STEPS + slopes.EM_STEPS
SECOND, THIRD, PLACES = FIRST + 1, FIRST + 2, FIRST + 3
"""Places of the sums: Newton's steps from 0, EM's from ``PULLS_AT``, then the three others."""
LEAST_PATIENTS_EACH = 10
"""Patients of all hospitals for each coefficient, from which on a regression is asked."""


@dataclass(frozen=True)
class Row:
    """Means over a hospital's patients and repetitions, with r = label - own risk and D = candidate - own risk.

    Attributes:
        n: patients.
        own: E[r^2].
        right: (C,) E[r D].
        products: (C, C) E[D D'].
        seconds: (C, 3) var(r D), cov(r D, D^2) and var(D^2), each the mean over repetitions.
    """

    n: int
    own: float
    right: Array
    products: Array
    seconds: Array

    def numbers(self) -> list[float]:
        """What a hospital tells in the first round: ``many`` numbers."""
        upper = self.products[np.triu_indices(len(self.right))]
        return [float(self.n), self.own, *map(float, (*self.right, *upper, *self.seconds.ravel()))]

    @classmethod
    def of(cls, numbers: Sequence[float], candidates: int) -> Row:
        """Read ``numbers`` back; raises ValueError unless they could be a hospital's."""
        if len(numbers) != many(candidates):
            raise ValueError(f"expected {many(candidates)} numbers")
        values, c = np.array(numbers, dtype=np.float64), candidates
        if not np.isfinite(values).all() or (rounded(values[1:]) != values[1:]).any():
            raise ValueError(f"expected finite numbers of {DIGITS} digits")
        products = symmetric(values[2 + c : -3 * c], c)
        seconds = values[-3 * c :].reshape(c, 3)
        row = cls(int(values[0]), float(values[1]), values[2 : 2 + c], products, seconds)
        squares = [row.own, *np.diag(products), *seconds[:, 0], *seconds[:, 2]]
        if row.n != values[0] or row.n < LEAST_PATIENTS or min(squares) < 0 or (np.abs(values[1:]) > 2).any():
            raise ValueError("expected means over patients")
        return row


def many(candidates: int) -> int:
    """Numbers of a ``Row``."""
    return 2 + candidates + candidates * (candidates + 1) // 2 + 3 * candidates


def many_by_regression(candidates: int) -> int:
    """Numbers that a hospital tells in the clear to be answered by its regression, beside terms of Newton's steps."""
    return many(candidates) + 3 + 2 + candidates + 4 * candidates + 5 + len(slopes.PULLS)


def symmetric(upper: Array, n: int) -> Array:
    """(n, n) of its upper triangle, row by row."""
    found = np.zeros((n, n))
    found[np.triu_indices(n)] = upper
    return np.asarray(found + np.triu(found, 1).T)


def rounded(values: Array) -> Array:
    """To ``DIGITS`` significant digits."""
    return np.array([float(f"{value:.{DIGITS - 1}e}") for value in np.ravel(values)]).reshape(np.shape(values))


def row_of(labels: Array, risks: Array, patients: Owners | None = None) -> Row:
    """A hospital's own; arguments as of ``Hospital``."""
    r, move = labels - risks[0], risks[1:] - risks[0]
    products = np.einsum("arn,brn->ab", move, move) / labels.size
    seconds = np.stack([_seconds(r * one, one**2, patients) for one in move])
    n = labels.shape[1] if patients is None else len(np.unique(patients[0]))
    return Row(n, float((r**2).mean()), (r * move).mean(axis=(1, 2)), products, seconds)


def mix_seconds(labels: Array, risks: Array, weights: Array, patients: Owners | None = None) -> Array:
    """(3,) as ``Row.seconds`` of the common direction; arguments as of ``row_of``, and (C,) weights."""
    move = np.tensordot(weights, risks[1:], 1) - risks[0]
    return _seconds((labels - risks[0]) * move, move**2, patients)


def _seconds(right: Array, square: Array, patients: Owners | None) -> Array:
    each = (by_patient(values, patients) for values in (right, square))
    found = [np.cov(a, b, ddof=1) for a, b in zip(*each, strict=True)]
    return np.asarray(np.mean([(c[0, 0], c[0, 1], c[1, 1]) for c in found], axis=0))


class Direction(NamedTuple):
    """One direction at one hospital: E[r D], E[D^2], second moments and the own model's loss, see ``Row``."""

    n: int
    right: float
    square: float
    seconds: Array
    own: float

    @property
    def margin(self) -> float:
        """The loss that does not matter; the outcome's share, of which it might be made, does not leave."""
        return decision.MATTERS * self.own

    @classmethod
    def along(cls, row: Row, weights: Array, seconds: Array) -> Direction:
        square = max(float(weights @ row.products @ weights), 0.0)
        return cls(row.n, float(weights @ row.right), square, seconds, row.own)

    def variance(self, of_right: float, of_square: float) -> float:
        """Of a patient's ``of_right`` r D + ``of_square`` D^2."""
        a, b, c = (float(value) for value in self.seconds)
        return max(of_right**2 * a + 2 * of_right * of_square * b + of_square**2 * c, 0.0)

    def benefit(self, design: Design) -> Benefit:
        """As ``decision.brier_benefit``."""
        by = 2 - design.kappa
        return Benefit(self.n, by * self.right - self.square, self.variance(by, -1.0), self.square)

    def part_right(self, design: Design) -> Right:
        """The part that is right by outcomes, with the variance of a ratio of means."""
        kappa, square = design.kappa, max(self.square, decision.LEAST_DISAGREEMENT)
        q = max(square - kappa * self.right, square / 2)
        a = (1 - kappa) * self.right / q
        spread = max(self.variance(1 - kappa + a * kappa, -a), slopes.LEAST_SPREAD * q)
        return Right(self.n, a, spread / (self.n * q * q), q)


def signed(values: Sequence[float] | Array) -> list[float]:
    """The positive and the negative parts, one after the other: what is summed in secret is never below 0."""
    found = np.asarray(values, dtype=np.float64)
    return [float(value) for value in (*np.maximum(found, 0.0), *np.maximum(-found, 0.0))]


def added(sums: Iterable[Sequence[float]]) -> list[float]:
    """Term by term, correctly rounded, whatever the order: as sums in secret are."""
    return [math.fsum(column) for column in zip(*sums, strict=True)]


@dataclass(frozen=True)
class Deployed:
    """A hospital's patients, as the models see them that are trained with all of them.

    Attributes:
        x: (n, P) features with a constant in front.
        y: (n,) 0 or 1.
        risks: (1 + C, n): the own model's, then those of the candidates.
    """

    x: Array
    y: Array
    risks: Array


@dataclass(frozen=True)
class Told:
    """What a hospital's terms are made of; in the clear it tells no more.

    Attributes:
        row: its own.
        seconds: its ``mix_seconds``, from the second sum on.
        means: (C + 1,) the part that is right of each direction by its regression; None: its outcomes speak alone.
    """

    row: Row
    seconds: Array | None = None
    means: Array | None = None


@dataclass(frozen=True)
class Hospital:
    """A hospital with its patients at hand.

    Attributes:
        labels: (R, N) 0 or 1, of each row.
        risks: (1 + C, R, N) out of fold: the own model's, then those of the candidates.
        deployed: with it its regression says how far models are from the true risks, not its outcomes alone. It takes
            rows for patients, so that a hospital with several rows of a patient has none.
        exact: whether numbers are as they are, not rounded to be told.
        patients: (R, N) whose row each is; None: each row is another patient.
    """

    labels: Array
    risks: Array
    deployed: Deployed | None = None
    exact: bool = False
    patients: Owners | None = None
    _fits: list[slopes.Fitted] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.patients is not None:
            object.__setattr__(self, "deployed", None)

    def _round(self, values: Array) -> Array:
        return values if self.exact else rounded(values)

    @cached_property
    def row(self) -> Row:
        found = row_of(self.labels, self.risks, self.patients)
        own = float(self._round(np.array(found.own)))
        return Row(found.n, own, *map(self._round, (found.right, found.products, found.seconds)))

    def told(self, known: Known) -> Told:
        """What it tells for the next sum."""
        if known.next == FIRST:
            return Told(self.row)
        seconds = self._round(mix_seconds(self.labels, self.risks, known.weights, self.patients))
        if self.deployed is None or not known.regressed:
            return Told(self.row, seconds)
        means = [one.of.mean for one in self._right(known, Told(self.row, seconds))]
        return Told(self.row, seconds, self._round(np.array(means)))

    def terms(self, known: Known) -> list[float]:
        """What it adds to the next sum."""
        if known.next >= FIRST:
            return known.terms(self.told(known))
        if self.deployed is None:
            return known.terms(None)
        x, y = self.deployed.x, self.deployed.y
        if known.next >= PULLS_AT:
            return signed(slopes.shares(self._fit(known).evidence, known.pulls))
        gradient, hessian = slopes.derivatives(x, y, known.centre)
        return signed([1.0, len(y), *gradient, *hessian[np.triu_indices(len(gradient))]])

    def by_regression(self, known: Known, margin: float) -> Array | None:
        """(4 C + 5,) what its regression says once the second sum is told; None: nothing.

        For each candidate the expected benefit, the ends of its interval and the probability of harm; of the mix its
        share, probability of harm, benefit and ends.
        """
        if not (found := self.corrected(known)):
            return None
        numbers: list[float] = []
        for part, of in found[:-1]:
            gain = slopes.gain(of, part.q)
            numbers += [gain.mean, *gain.interval(), slopes.harm(of, part.q)]
        return self._round(np.array([*numbers, *safe_mix(*found[-1], margin).values()]))

    def corrected(self, known: Known) -> list[tuple[Right, Normals]]:
        """Of each candidate's direction and the common one: by outcomes, and by regression less its misfit."""
        if self.deployed is None or not known.regressed:
            return []
        parts = known.parts(told := self.told(known))
        each = zip(parts, self._right(known, told), known.misfits, strict=True)
        return [(part, one.widened(*slopes.misfit(total)).of) for part, one, total in each]

    def _fit(self, known: Known) -> slopes.Fitted:
        if not self._fits:  # the same at every later sum
            assert (own := self.deployed)
            others = slopes.Others.of_all(known.centre, known.hessian, known.regressed, own.x, own.y)
            self._fits.append(slopes.fitted(own.x, own.y, others))
        return self._fits[0]

    def _right(self, known: Known, told: Told) -> list[slopes.Regressed]:
        """Of each candidate's direction and the common one."""
        assert (own := self.deployed)
        of = slopes.Slopes.of(self._fit(known), known.pulls)
        return [
            slopes.Regressed.of_models(of, own.x, own.risks[0], weights @ own.risks[1:], part.q)
            for weights, part in zip((*np.eye(known.candidates), known.weights), known.parts(told), strict=True)
        ]


@dataclass(frozen=True)
class Known:
    """What everyone knows once the sums over hospitals that came so far are told.

    Attributes:
        design: how patients were tested.
        coefficients: P of the regression; 0: none is asked.
        sums: place -> the total, as ``signed``.
    """

    candidates: int
    design: Design
    coefficients: int = 0
    sums: Mapping[int, tuple[float, ...]] = field(default_factory=dict)

    def length(self, place: int) -> int:
        """Numbers of a sum."""
        c, p = self.candidates, self.coefficients
        if place < FIRST:
            return 2 * (len(slopes.PULLS) if place >= PULLS_AT else 2 + p + p * (p + 1) // 2)
        return 2 * (1 + c * (c + 1) // 2 + 9 * c, c * (2 + TERMS) + 1 + 2 * (c + 1), (c + 1) * TERMS)[place - FIRST]

    @property
    def next(self) -> int:
        """The place of the next sum; ``PLACES``: there is none."""
        last = max(self.sums, default=-1)
        if not self.coefficients or (last >= 0 and not self.regressed):
            return max(last + 1, FIRST)
        return PULLS_AT if 0 <= last < PULLS_AT and self._newton[2] else last + 1

    def after(self, total: Sequence[float]) -> Known:
        """With one more sum."""
        return Known(self.candidates, self.design, self.coefficients, {**self.sums, self.next: tuple(total)})

    def terms(self, told: Told | None) -> list[float]:
        """What a hospital adds to the next sum; zeros where it is not tested (None), or hospitals are too few."""
        place = self.next
        if told is None or (place > FIRST and self.sites < LEAST_SITES):
            return [0.0] * self.length(place)
        if place == FIRST:
            return signed(self._first(told.row))
        assert told.seconds is not None
        if place == SECOND:
            return signed(self._second(told))
        directions = enumerate(self._directions(told.row))
        terms = [self._benefit_terms(c, one.benefit(self.design)) for c, one in directions]
        return signed(np.ravel([*terms, self._terms(self.mixed(told.row, told.seconds), self._mix_precision)]))

    def _first(self, row: Row) -> list[float]:
        errors = row.products - row.right - row.right[:, None] + row.own
        found = [1.0, *errors[np.triu_indices(self.candidates)]]
        for one in self._directions(row):
            benefit = one.benefit(self.design)
            smoothed = decision.moments(benefit.variance, [row.n])[MOMENTS]
            found += [benefit.mean, benefit.mean**2, *smoothed, 1 / one.part_right(self.design).variance]
        return found

    def _second(self, told: Told) -> list[float]:
        found: list[float] = []
        for c, one in enumerate(self._directions(told.row)):
            noise = self.noise(c, told.row.n)
            found += [1 / noise, noise]
            found += self._terms(one.part_right(self.design), self._of_first(c)[8]).ravel().tolist()
        parts = self.parts(told)
        misfits = np.zeros(2 * len(parts))
        if told.means is not None:
            pairs = zip(parts, told.means, strict=True)
            misfits = np.ravel([slopes.misfit_terms(part, mean, self.design) for part, mean in pairs])
        return [*found, 1 / parts[-1].variance, *misfits]

    # What follows from the regression's sums.

    @cached_property
    def regressed(self) -> int:
        """Hospitals that are told by their regression; 0 where all have too few patients for it."""
        sites, patients = self._total(0)[:2] if self.sums.get(0) else (0.0, 0.0)
        enough = sites >= LEAST_SITES and patients >= LEAST_PATIENTS_EACH * self.coefficients
        return round(float(sites)) if enough else 0

    @cached_property
    def _newton(self) -> tuple[Array, Array, bool]:
        """The coefficients after the steps so far, the Hessian at the last ones, and whether no step is left."""
        p = self.coefficients
        at, hessian, done = np.zeros(p), np.zeros((p, p)), False
        for place in range(PULLS_AT):
            if place in self.sums:
                total = self._total(place)[2:]
                at, hessian, done = slopes.stepped(at, total[:p], symmetric(total[p:], p))
        return at, hessian, done or PULLS_AT - 1 in self.sums

    @property
    def centre(self) -> Array:
        """(P,) coefficients of all hospitals' regression, so far."""
        return self._newton[0]

    @property
    def hessian(self) -> Array:
        """(P, P) penalty included."""
        return self._newton[1]

    @cached_property
    def pulls(self) -> Array:
        """(M,) prior weights of ``slopes.PULLS``, so far."""
        last = max((place for place in self.sums if PULLS_AT <= place < FIRST), default=None)
        if last is None:
            return np.full(len(slopes.PULLS), 1 / len(slopes.PULLS))
        return slopes.em_step(self._total(last), self.regressed)

    @cached_property
    def misfits(self) -> Array:
        """(C + 1, 2) totals of ``slopes.misfit_terms``."""
        return self._total(SECOND)[-2 * (self.candidates + 1) :].reshape(-1, 2)

    # What follows from the first sum.

    def _total(self, place: int) -> Array:
        above, below = np.split(np.array(self.sums[place]), 2)
        return np.asarray(above - below)

    @cached_property
    def sites(self) -> int:
        """Hospitals that are tested."""
        return round(float(self._total(FIRST)[0]))

    @cached_property
    def weights(self) -> Array:
        """(C,) the candidates' weights in the common direction."""
        c, total = self.candidates, self._total(FIRST)
        return slopes.common_weights(symmetric(total[1 : 1 + c * (c + 1) // 2] / self.sites, c))

    def _of_first(self, c: int) -> Array:
        return np.asarray(self._total(FIRST)[1 + self.candidates * (self.candidates + 1) // 2 :].reshape(-1, 9)[c])

    def _directions(self, row: Row) -> list[Direction]:
        units = np.eye(self.candidates)
        return [Direction.along(row, unit, seconds) for unit, seconds in zip(units, row.seconds, strict=True)]

    def parts(self, told: Told) -> list[Right]:
        """Of each candidate's direction and the common one."""
        assert told.seconds is not None
        own = [one.part_right(self.design) for one in self._directions(told.row)]
        return [*own, self.mixed(told.row, told.seconds)]

    def mixed(self, row: Row, seconds: Array) -> Right:
        """Of the common direction."""
        return Direction.along(row, self.weights, seconds).part_right(self.design)

    def noise(self, c: int, n: float) -> float:
        """V of a benefit's noise at a hospital of n patients, smoothed over hospitals."""
        return decision.Smoothed(symmetric(self._of_first(c)[2:8], 3)).at([n]) / n

    def _x(self, right: Right) -> float:
        return decision.of_size(right.n) if self.sites >= slopes.SITES_FOR_SIZE else 0.0

    def _terms(self, right: Right, precision: float) -> Array:
        return decision.terms(right.a, right.variance, self._x(right), decision.scale(self.sites, float(precision)))

    # What follows from the second.

    def _of_second(self, c: int) -> Array:
        return np.asarray(self._total(SECOND)[: self.candidates * (2 + TERMS)].reshape(self.candidates, -1)[c])

    @cached_property
    def _mix_precision(self) -> float:
        return float(self._total(SECOND)[self.candidates * (2 + TERMS)])

    def _s0(self, c: int) -> float:
        return decision.scale(self.sites, float(self._of_second(c)[0]))

    def _benefit_terms(self, c: int, one: Benefit) -> Array:
        return decision.terms(one.mean, self.noise(c, one.n), decision.of_size(one.n), self._s0(c))

    # The answers.

    def together(self, names: Sequence[str], new_size: int) -> Json:
        """Candidate -> average, between_sd and new_hospital; empty ones where hospitals are too few."""
        return {name: self._together(c, new_size) if self.sites >= LEAST_SITES else {} for c, name in enumerate(names)}

    def _together(self, c: int, new_size: int) -> Json:
        everyone, first = self._hospitals(c), self._of_first(c)
        new = everyone.new(decision.of_size(new_size), (self.design.factor - 1) * self.noise(c, new_size))
        low, high = new.interval(stretch=decision.stretch(self.sites))
        about = {"n": new_size, "benefit": new.mean, "low": low, "high": high, "p_gain": 1 - float(new.below(0.0))}
        sums = (self.sites, float(first[0]), float(first[1]), float(self._of_second(c)[1]))
        average = decision.average(sums)._asdict()
        return {"average": average, "between_sd": everyone.spread, "new_hospital": about}

    def _hospitals(self, c: int) -> Hospitals:
        return Hospitals(self._s0(c), self._total(THIRD)[:-TERMS].reshape(self.candidates, decision.POINTS, 7)[c])

    def answer(self, told: Told, names: Sequence[str], margin: float, regression: Array | None = None) -> Json:
        """n, by, candidates and mix of one hospital, which it alone can make where sums are secret.

        ``margin``: see ``safe_mix``; ``regression``: see ``Hospital.by_regression``.
        """
        directions = self._directions(told.row)
        if regression is not None:
            rows = regression[:-5].reshape(-1, 4).tolist()
            each = [self._row(c, one, *row) for c, (one, row) in enumerate(zip(directions, rows, strict=True))]
            mix = dict(zip(MIX_KEYS, regression[-5:].tolist(), strict=True))
        else:
            each = [self._answer(c, one) for c, one in enumerate(directions)]
            part, total = self.parts(told)[-1], self._total(THIRD)[-TERMS:].reshape(decision.POINTS, 7)
            of = self._posterior(part, total, self._mix_precision if self.sites >= LEAST_SITES else 0.0)
            mix = safe_mix(part, of, margin)
        by = "outcomes" if regression is None else "regression"
        return {"n": told.row.n, "by": by, "candidates": dict(zip(names, each, strict=True)), "mix": mix}

    def _answer(self, c: int, one: Direction) -> Json:
        benefit, f = one.benefit(self.design), self.design.factor
        if self.sites < LEAST_SITES:
            return answered_alone(benefit, self.design, one.margin)
        noise, x, part = self.noise(c, benefit.n), decision.of_size(benefit.n), one.part_right(self.design)
        others = self._hospitals(c).without(self._benefit_terms(c, benefit))
        of = others.given(benefit.mean, noise, x, (f - 1) * noise)
        right = self._posterior(part, self._of_second(c)[2:].reshape(decision.POINTS, 7), self._of_first(c)[8])
        return self._row(c, one, of.mean, *of.interval(), slopes.harm(right, part.q))

    def _row(self, c: int, one: Direction, mean: float, low: float, high: float, p_harm: float) -> Json:
        """Of one candidate, with its benefit by this hospital alone and by all."""
        benefit = one.benefit(self.design)
        variance = self.noise(c, one.n) * one.n if self.sites >= LEAST_SITES else benefit.variance
        words = decision.verdict(p_harm, low, high, one.margin)
        return _told(benefit, self.design, mean, (low, high), p_harm, variance, words)

    def _posterior(self, part: Right, total: Array, precision: float) -> Normals:
        """Of the part that is right at a hospital."""
        f = self.design.factor
        if self.sites < LEAST_SITES:
            return Normals(np.ones(1), np.array([part.a]), np.array([math.sqrt(f * part.variance)]))
        everyone = Hospitals(decision.scale(self.sites, float(precision)), total)
        others, luck = everyone.without(self._terms(part, precision)), (f - 1) * part.variance
        return others.given(part.a, part.variance, self._x(part), luck, slopes.UNLIKE)


def in_place(hospitals: Iterable[Hospital], known: Known) -> Known:
    """``known`` with all sums, of hospitals at hand."""
    everyone = list(hospitals)
    while known.next < PLACES:
        known = known.after(added(one.terms(known) for one in everyone))
    return known


def answered_alone(one: Benefit, design: Design, margin: float, limit: float = 0.05) -> Json:
    """A hospital's answer of one candidate from its own patients alone; ``margin``, ``limit``: of ``verdict``."""
    from scipy.special import stdtr

    sd = max(math.sqrt(design.factor * one.variance / one.n), 1e-9)
    p_harm, ends = float(stdtr(one.n - 1, -one.mean / sd)), one.interval(design)
    return _told(one, design, one.mean, ends, p_harm, one.variance, decision.verdict(p_harm, *ends, margin, limit))


def _told(
    own: Benefit, design: Design, mean: float, ends: tuple[float, float], p_harm: float, variance: float, verdict: str
) -> Json:
    """An answer's row: the benefit by its own patients, and as it is told with its interval."""
    (own_low, own_high), needed = own.interval(design), decision.patients_needed(mean, variance, design) - own.n
    return {
        "benefit": own.mean,
        "own_low": own_low,
        "own_high": own_high,
        "shrunken": mean,
        "low": ends[0],
        "high": ends[1],
        "p_harm": p_harm,
        "verdict": verdict,
        "more_patients": int(max(needed, 0)) if math.isfinite(needed) else None,
    }


def safe_mix(part: Right, of: Normals, margin: float) -> Json:
    """The safe share of a direction at a hospital, its gain with an interval, and the probability of harm.

    ``of`` is the posterior of the part that is right; ``margin`` the loss that does not matter, 0: strict.
    """
    share = slopes.safe_share(of, part.q, margin)
    if not share:
        return dict.fromkeys(MIX_KEYS, 0.0)
    gain = slopes.gain(of, part.q, share)
    low, high = gain.interval()
    harm = slopes.harm(of, part.q, share, margin)
    return dict(zip(MIX_KEYS, (share, harm, gain.mean, low, high), strict=True))
