# SPDX-License-Identifier: Apache-2.0
"""What hospitals tell of their patients' risks out of fold, so that each can be told whether it gains by joining.

A hospital's ``Row`` holds means over all its patients and repetitions, to four significant digits. Everything else
follows from it and from three sums over hospitals (``first``, ``second``, ``third``), each of which needs those before:
a server that sees these sums alone sees no hospital's benefit, and each hospital makes its own answer of them. The
formulas are those of ``decision`` and ``combination``; docs/join.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fairflare.functional import combination, decision
from fairflare.functional.combination import Right
from fairflare.functional.decision import Array, Benefit, Design, Hospitals, Normals

DIGITS = 4
"""Significant digits of every number that a hospital tells."""
LEAST_PATIENTS = 30
LEAST_SITES = 4
"""Hospitals from which on they are read together; with fewer each speaks for itself."""
MOMENTS = np.triu_indices(3)
TERMS = decision.POINTS * 7
Json = dict[str, Any]


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
        products = np.zeros((c, c))
        products[np.triu_indices(c)] = values[2 + c : -3 * c]
        products = products + np.triu(products, 1).T
        seconds = values[-3 * c :].reshape(c, 3)
        row = cls(int(values[0]), float(values[1]), values[2 : 2 + c], products, seconds)
        squares = [row.own, *np.diag(products), *seconds[:, 0], *seconds[:, 2]]
        if row.n != values[0] or row.n < LEAST_PATIENTS or min(squares) < 0 or (np.abs(values[1:]) > 2).any():
            raise ValueError("expected means over patients")
        return row


def many(candidates: int) -> int:
    """Numbers of a ``Row``."""
    return 2 + candidates + candidates * (candidates + 1) // 2 + 3 * candidates


def rounded(values: Array) -> Array:
    """To ``DIGITS`` significant digits."""
    return np.array([float(f"{value:.{DIGITS - 1}e}") for value in np.ravel(values)]).reshape(np.shape(values))


def row_of(labels: Array, risks: Array) -> Row:
    """A hospital's own.

    Args:
        labels: (R, n) 0 or 1.
        risks: (1 + C, R, n) out of fold: the own model's, then the candidates'.
    """
    r, move = labels - risks[0], risks[1:] - risks[0]
    products = np.einsum("arn,brn->ab", move, move) / labels.size
    seconds = np.stack([_seconds(r * one, one**2) for one in move])
    right, own = (r * move).mean(axis=(1, 2)), rounded((r**2).mean())
    return Row(labels.shape[1], float(own), rounded(right), rounded(products), rounded(seconds))


def mix_seconds(labels: Array, risks: Array, weights: Array) -> Array:
    """(3,) as ``Row.seconds`` of the common direction; arguments as of ``row_of``, and (C,) weights."""
    move = np.tensordot(weights, risks[1:], 1) - risks[0]
    return rounded(_seconds((labels - risks[0]) * move, move**2))


def _seconds(right: Array, square: Array) -> Array:
    found = [np.cov(a, b, ddof=1) for a, b in zip(right, square, strict=True)]
    mean: Array = np.mean([(c[0, 0], c[0, 1], c[1, 1]) for c in found], axis=0)
    return mean


class Direction(NamedTuple):
    """One direction at one hospital: E[r D], E[D^2] and second moments, see ``Row``."""

    n: int
    right: float
    square: float
    seconds: Array

    @classmethod
    def along(cls, row: Row, weights: Array, seconds: Array) -> Direction:
        return cls(row.n, float(weights @ row.right), max(float(weights @ row.products @ weights), 0.0), seconds)

    def variance(self, of_right: float, of_square: float) -> float:
        """Of a patient's ``of_right`` r D + ``of_square`` D^2."""
        a, b, c = (float(value) for value in self.seconds)
        return max(of_right**2 * a + 2 * of_right * of_square * b + of_square**2 * c, 0.0)

    def benefit(self, design: Design) -> Benefit:
        """As ``decision.brier_benefit``."""
        by = 2 - design.kappa
        return Benefit(self.n, by * self.right - self.square, self.variance(by, -1.0), self.square)

    def part_right(self, design: Design) -> Right:
        """As ``combination.part_right``."""
        kappa, square = design.kappa, max(self.square, decision.LEAST_DISAGREEMENT)
        q = max(square - kappa * self.right, square / 2)
        a = (1 - kappa) * self.right / q
        spread = max(self.variance(1 - kappa + a * kappa, -a), combination.LEAST_SPREAD * q)
        return Right(self.n, a, spread / (self.n * q * q), q)


def signed(values: Sequence[float] | Array) -> list[float]:
    """The positive and the negative parts, one after the other: what is summed in secret is never below 0."""
    found = np.asarray(values, dtype=np.float64)
    return [float(value) for value in (*np.maximum(found, 0.0), *np.maximum(-found, 0.0))]


def added(sums: Iterable[Sequence[float]]) -> list[float]:
    """Term by term, correctly rounded, whatever the order: as sums in secret are."""
    return [math.fsum(column) for column in zip(*sums, strict=True)]


@dataclass(frozen=True)
class Known:
    """What everyone knows once the sums over hospitals that came so far are told.

    Attributes:
        candidates: how many, C.
        design: how patients were tested.
        sums: the totals so far, as ``signed``; up to three.
    """

    candidates: int
    design: Design
    sums: tuple[tuple[float, ...], ...] = ()

    def lengths(self) -> tuple[int, int, int]:
        """Numbers in each of the three sums."""
        c = self.candidates
        return 2 * (1 + c * (c + 1) // 2 + 9 * c), 2 * (c * (2 + TERMS) + 1), 2 * (c + 1) * TERMS

    def after(self, total: Sequence[float]) -> Known:
        """With one more sum."""
        return Known(self.candidates, self.design, (*self.sums, tuple(total)))

    def terms(self, row: Row | None, seconds: Array | None = None) -> list[float]:
        """What a hospital adds to the next sum; zeros where it is not tested, or hospitals are too few.

        Args:
            row: its own; None: it is not tested.
            seconds: its ``mix_seconds``, from the second sum on.
        """
        place = len(self.sums)
        if row is None or (place and self.sites < LEAST_SITES):
            return [0.0] * self.lengths()[place]
        if not place:
            return signed(self._first(row))
        assert seconds is not None
        return signed((self._second if place == 1 else self._third)(row, seconds))

    def _first(self, row: Row) -> list[float]:
        errors = row.products - row.right - row.right[:, None] + row.own
        found = [1.0, *errors[np.triu_indices(self.candidates)]]
        for one in self._directions(row):
            benefit = one.benefit(self.design)
            smoothed = decision.moments(benefit.variance, [row.n])[MOMENTS]
            found += [benefit.mean, benefit.mean**2, *smoothed, 1 / one.part_right(self.design).variance]
        return found

    def _second(self, row: Row, seconds: Array) -> list[float]:
        found: list[float] = []
        for c, one in enumerate(self._directions(row)):
            noise = self.noise(c, row.n)
            found += [1 / noise, self.design.factor * noise]
            found += self._terms(one.part_right(self.design), self._of_first(c)[8]).ravel().tolist()
        return [*found, 1 / self.mixed(row, seconds).variance]

    def _third(self, row: Row, seconds: Array) -> list[float]:
        found = []
        for c, one in enumerate(self._directions(row)):
            found += list(self._benefit_terms(c, one.benefit(self.design)).ravel())
        return [*found, *self._terms(self.mixed(row, seconds), self._mix_precision).ravel()]

    # What follows from the first sum.

    def _total(self, place: int) -> Array:
        values = np.array(self.sums[place])
        half = len(values) // 2
        found: Array = values[:half] - values[half:]
        return found

    @cached_property
    def sites(self) -> int:
        """Hospitals that are tested."""
        return round(float(self._total(0)[0]))

    @cached_property
    def weights(self) -> Array:
        """(C,) the candidates' weights in the common direction."""
        c, total = self.candidates, self._total(0)
        products = np.zeros((c, c))
        products[np.triu_indices(c)] = total[1 : 1 + c * (c + 1) // 2] / self.sites
        return combination.common_weights(products + np.triu(products, 1).T)

    def _of_first(self, c: int) -> Array:
        rows: Array = self._total(0)[1 + self.candidates * (self.candidates + 1) // 2 :].reshape(-1, 9)[c]
        return rows

    def _directions(self, row: Row) -> list[Direction]:
        units = np.eye(self.candidates)
        return [Direction.along(row, unit, seconds) for unit, seconds in zip(units, row.seconds, strict=True)]

    def mixed(self, row: Row, seconds: Array) -> Right:
        """Of the common direction."""
        return Direction.along(row, self.weights, seconds).part_right(self.design)

    def noise(self, c: int, n: float) -> float:
        """V of a benefit's noise at a hospital of n patients, smoothed over hospitals."""
        table = np.zeros((3, 3))
        table[MOMENTS] = self._of_first(c)[2:8]
        return decision.Smoothed(table + np.triu(table, 1).T).at([n]) / n

    def _x(self, right: Right) -> float:
        return right.x if self.sites >= combination.SITES_FOR_SIZE else 0.0

    def _terms(self, right: Right, precision: float) -> Array:
        return decision.terms(right.a, right.variance, self._x(right), decision.scale(self.sites, float(precision)))

    # What follows from the second.

    def _of_second(self, c: int) -> Array:
        rows: Array = self._total(1)[:-1].reshape(self.candidates, -1)[c]
        return rows

    @cached_property
    def _mix_precision(self) -> float:
        return float(self._total(1)[-1])

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
        return Hospitals(self._s0(c), self._total(2)[:-TERMS].reshape(self.candidates, decision.POINTS, 7)[c])

    def answer(self, row: Row, seconds: Array, names: Sequence[str], margin: float) -> Json:
        """n, candidates and mix of one hospital, which it alone can make where sums are secret."""
        each = {name: self._answer(c, one) for c, (name, one) in enumerate(zip(names, self._directions(row)))}
        part = self.mixed(row, seconds)
        total = self._total(2)[-TERMS:].reshape(decision.POINTS, 7)
        of = self._posterior(part, total, self._mix_precision if self.sites >= LEAST_SITES else 0.0)
        return {"n": row.n, "candidates": each, "mix": safe_mix(part, of, margin)}

    def _answer(self, c: int, one: Direction) -> Json:
        benefit, part = one.benefit(self.design), one.part_right(self.design)
        ends, f = benefit.interval(self.design), self.design.factor
        if self.sites < LEAST_SITES:
            from scipy.special import stdtr

            sd = max(math.sqrt(f * benefit.variance / benefit.n), 1e-9)
            of = Normals(np.ones(1), np.array([benefit.mean]), np.array([sd]))
            p_harm = float(stdtr(benefit.n - 1, -benefit.mean / sd))
            return _told(benefit, ends, of, p_harm, benefit.variance, self.design) | {"low": ends[0], "high": ends[1]}
        noise, x = self.noise(c, benefit.n), decision.of_size(benefit.n)
        others = self._hospitals(c).without(self._benefit_terms(c, benefit))
        of = others.given(benefit.mean, noise, x, (f - 1) * noise)
        right = self._posterior(part, self._of_second(c)[2:].reshape(decision.POINTS, 7), self._of_first(c)[8])
        return _told(benefit, ends, of, combination.harm(right, part.q), noise * benefit.n, self.design)

    def _posterior(self, part: Right, total: Array, precision: float) -> Normals:
        """Of the part that is right at a hospital."""
        f = self.design.factor
        if self.sites < LEAST_SITES:
            return Normals(np.ones(1), np.array([part.a]), np.array([math.sqrt(f * part.variance)]))
        everyone = Hospitals(decision.scale(self.sites, float(precision)), total)
        others, luck = everyone.without(self._terms(part, precision)), (f - 1) * part.variance
        return others.given(part.a, part.variance, self._x(part), luck, combination.UNLIKE)


def _told(own: Benefit, ends: tuple[float, float], of: Normals, p_harm: float, variance: float, design: Design) -> Json:
    """A hospital's row of one candidate."""
    low, high = of.interval()
    needed = decision.patients_needed(of.mean, variance, design) - own.n
    return {
        "benefit": own.mean,
        "own_low": ends[0],
        "own_high": ends[1],
        "shrunken": of.mean,
        "low": low,
        "high": high,
        "p_harm": p_harm,
        "verdict": decision.verdict(p_harm, low, high),
        "more_patients": int(max(needed, 0)) if math.isfinite(needed) else None,
    }


def safe_mix(part: Right, of: Normals, margin: float) -> Json:
    """The safe share of a direction at a hospital, its gain with an interval, and the probability of harm.

    Args:
        part: which part of the direction is right there.
        of: its posterior.
        margin: the loss that does not matter; 0: strict.
    """
    share = combination.safe_share(of, part.q, margin)
    if not share:
        return {"share": 0.0, "p_harm": 0.0, "benefit": 0.0, "low": 0.0, "high": 0.0}
    gain = part.benefit(share, of)
    low, high = gain.interval()
    harm = combination.harm(of, part.q, share, margin)
    return {"share": share, "p_harm": harm, "benefit": gain.mean, "low": low, "high": high}
