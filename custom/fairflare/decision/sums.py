# SPDX-License-Identifier: Apache-2.0
"""What hospitals add up, one sum after the other, so that each can make its own decision.

Each sum needs those before it. A server that sees the sums alone sees no hospital's estimate. In place, over FLARE and
under secure sums the same sums are made, so that the decision is the same.

    Newton's steps    gradients and Hessians of everybody's regression, see ``regression``
    EM's steps        how much hospitals' slopes differ, see ``functional.slopes``; at four hospitals or more
    refits            Newton's steps without a hospital that has more than ``REFIT_SHARE`` of all rows; in the clear
    folds             Newton's steps without each fold of everybody, where patients are at several hospitals
    MODELS            own coefficients, for one exchange; powers of the features, for columns that were never measured;
                      how each hospital moves the model of all, for what it gives to others; in the clear
    MOMENTS           estimates and their variances
    SCALES            precisions of smoothed variances; terms of averages
    POSTERIORS        terms of each estimand's distribution over hospitals, see ``heterogeneity``
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from fairflare.decision.estimands import ESTIMANDS, Folds
from fairflare.decision.heterogeneity import MIN_HOSPITALS, Between
from fairflare.decision.own import RIDGE
from fairflare.decision.regression import REFIT_SHARE, Array, Training
from fairflare.functional import decision, slopes
from fairflare.functional.decision import Average, Hospitals

EM_AT, REFITS_AT, MAX_REFITS = slopes.STEPS, slopes.STEPS + slopes.EM_STEPS, 3
FOLDS_AT = REFITS_AT + MAX_REFITS * slopes.STEPS
MODELS = FOLDS_AT + slopes.STEPS
MOMENTS, SCALES, POSTERIORS, PLACES = MODELS + 1, MODELS + 2, MODELS + 3, MODELS + 4
"""Places of the sums; Newton's steps begin at 0, EM's at ``EM_AT``, each refit's ``STEPS`` places after the other."""
CLOSE = 1e-6
MAX_RESIDUAL = 8.0
"""Of log variances of U and J about their line, where outcomes are as rare as 3 % up to 4: beyond it hospitals are too
unlike, and a smoothed variance tells of none."""
MIN_GIVEN = 2
"""Other hospitals, from which on their mean does not tell of one alone."""
PATIENTS_PER_COEFFICIENT = 10
"""Patients of all hospitals for each coefficient, from which on U and J are read from regressions."""
POWERS = 4
CALIBRATION = ("intercept", "slope", "log_ratio")
AVERAGED = (*ESTIMANDS, *CALIBRATION)
NET = "net benefit "
"""Before U, J and D in net benefit."""
IN_NET_BENEFIT = tuple(NET + key for key in ("U", "J", "D"))
UPPER = np.triu_indices(3)
TERMS = (decision.POINTS, 7)
Blocks = Mapping[str, Array]
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Plan:
    """What is asked.

    Attributes:
        folds, deals: K >= 2 and R >= 1.
        threshold: the risk from which on the clinic treats; None: no net benefit.
        worthwhile: the smallest net benefit per patient that matters.
        own_model: what a hospital has alone, see ``own``.
        shared_patients: some patients are at several hospitals, so that folds are of the whole federation.
    """

    folds: int = 5
    deals: int = 10
    threshold: float | None = None
    worthwhile: float = 0.0
    own_model: str = RIDGE
    shared_patients: bool = False

    @property
    def design(self) -> Folds:
        return Folds(self.folds, self.deals, self.shared_patients)

    @property
    def trainings(self) -> int:
        """Federated trainings without a fold."""
        return self.folds * self.deals if self.shared_patients else 0

    @property
    def estimands(self) -> tuple[str, ...]:
        return (*ESTIMANDS, *(IN_NET_BENEFIT if self.threshold is not None else ()))


def added(sums: Iterable[Sequence[float]]) -> list[float]:
    """Term by term, correctly rounded, whatever the order: as sums in secret are."""
    return [math.fsum(column) for column in zip(*sums, strict=True)]


def symmetric(upper: Array, n: int) -> Array:
    """(n, n) of its upper triangle, row by row."""
    found = np.zeros((n, n))
    found[np.triu_indices(n)] = upper
    return np.asarray(found + np.triu(found, 1).T)


@dataclass(frozen=True)
class Known:
    """What everyone knows once the sums that came so far are told.

    Attributes:
        start: (P,) coefficients at which Newton's method begins.
        names: hospitals whose rows the sums tell apart, in the clear; empty: none, and nobody's outside model is refit.
        sums: place -> total, as ``packed``.
    """

    plan: Plan
    start: tuple[float, ...]
    names: tuple[str, ...] = ()
    sums: Mapping[int, tuple[float, ...]] = field(default_factory=dict)

    def shapes(self, place: int) -> Shapes:
        """Name of a block -> its shape, of one of the sums."""
        p, estimands, averaged = len(self.start), len(self.plan.estimands), len(AVERAGED)
        trainings, giving = self.plan.trainings, len(self.giving)
        newton: Shapes = {"gradient": (p,), "hessian": (p * (p + 1) // 2,)}
        if place < EM_AT:
            return {"rows": (), "regressed": (), "regressed_patients": (), "rows_of": (len(self.names),), **newton}
        if place < REFITS_AT:
            return {"pulls": (len(slopes.PULLS),)}
        if place < FOLDS_AT:
            return newton
        if place < MODELS:
            return {key: (trainings, *shape) for key, shape in newton.items()}
        later: list[Shapes] = [
            {"rows": (trainings + 1, 1), "own": (trainings + 1, p), "powers": (POWERS, p), "moves": (giving, p)},
            {
                "assessed": (),
                "given": (giving, 4),
                "reversed": (),
                "moments": (estimands, 6),
                "values": (averaged, 4),
                "right": (),
                "misfits": (2, 2),
            },
            {"precisions": (estimands,), "averages": (averaged, *TERMS), "right": TERMS},
            {"terms": (estimands, *TERMS)},
        ]
        return later[place - MODELS]

    def length(self, place: int) -> int:
        """Numbers of a sum."""
        return 2 * sum(math.prod(shape) for shape in self.shapes(place).values())

    def packed(self, found: Mapping[str, Array | float]) -> list[float]:
        """A hospital's blocks of the next sum, zeros where it has none, as numbers of at least 0.

        The positive and the negative parts, one after the other: what is summed in secret is never below 0.
        """
        shapes = self.shapes(self.next)
        values = [np.broadcast_to(np.asarray(found.get(name, 0.0)), shape) for name, shape in shapes.items()]
        flat = np.concatenate([value.ravel() for value in values])
        return [float(value) for value in (*np.maximum(flat, 0.0), *np.maximum(-flat, 0.0))]

    def after(self, total: Sequence[float]) -> Known:
        """With one more sum."""
        return Known(self.plan, self.start, self.names, {**self.sums, self.next: tuple(total)})

    def total(self, place: int) -> Blocks:
        """The blocks of a sum that is known."""
        return self._blocks(place, self.sums[place])

    def counts_itself(self, part: Sequence[float], name: str, rows: int) -> bool:
        """Whether the hospital ``name`` of at most so many rows may add these counts to the first sum: its own alone.

        Else a hospital that lies would have any of the others left out of refits.
        """
        blocks, own = self._blocks(0, part), np.array([one == name for one in self.names], dtype=bool)
        counts = [blocks["rows"], blocks["regressed"], blocks["regressed_patients"], *blocks["rows_of"][own]]
        return not blocks["rows_of"][~own].any() and all(0 <= count <= rows for count in counts)

    def is_plausible(self, part: Sequence[float], rows: int) -> bool:
        """Whether a hospital of so many rows may add these numbers to the next sum.

        Terms of a distribution must be those of one value, with no more weight than so many patients have. Else a
        hospital that lies in its range would speak for all others.
        """
        blocks, spread = self._blocks(self.next, part), decision.spreads() ** 2
        least = [min(self.noise(k, n) for n in (1, rows)) for k in range(len(self.plan.estimands))]
        limits = 1 / np.array(least) if self.next == SCALES else np.zeros(0)
        if self.next == SCALES and (blocks["precisions"] > (1 + CLOSE) * limits).any():
            return False
        for name in blocks.keys() & {"averages", "right", "terms"}:
            one = blocks[name].reshape(-1, *TERMS)
            floors = [v / self.scale(k) ** 2 for k, v in enumerate(least)] if name == "terms" else [0.0] * len(one)
            for terms, floor in zip(one, floors, strict=True):
                w, wx, wxx, wz, wxz, wzz, logs = terms.T
                if terms.any() and not (
                    ((w > 0) & (w <= (1 + CLOSE) / (floor + spread))).all()
                    and np.allclose([w * wxx, w * wzz, w * wxz, np.exp(logs)], [wx**2, wz**2, wx * wz, w], CLOSE, 1e-9)
                ):
                    return False
        return True

    def _blocks(self, place: int, numbers: Sequence[float]) -> Blocks:
        above, below = np.split(np.array(numbers), 2)
        found, at = {}, 0
        for name, shape in self.shapes(place).items():
            size = math.prod(shape)
            found[name] = (above - below)[at : at + size].reshape(shape)
            at += size
        return found

    @cached_property
    def next(self) -> int:
        """The place of the next sum; ``PLACES``: there is none."""
        last = max(self.sums, default=-1)
        if last < EM_AT and not self._newton[2]:
            return last + 1
        if last < REFITS_AT - 1 and self.regressed:
            return max(last + 1, EM_AT)
        if last < MODELS:
            waiting = (first for first in map(self._refit_at, self.refits) if not self._steps(first)[2])
            first = next(waiting, MODELS if self._fold_steps[1] else FOLDS_AT)
            return first + sum(first <= place < first + slopes.STEPS for place in self.sums)
        return PLACES if last == MOMENTS and not self.pooled else last + 1

    # Newton's steps.

    def _steps(self, first: int) -> tuple[Array, Array, bool]:
        """Coefficients after the steps so far, the Hessian at the last ones, and whether no step is left."""
        p = len(self.start)
        at, hessian, done = np.array(self.start), np.zeros((p, p)), False
        for place in range(first, first + slopes.STEPS):
            if place in self.sums:
                total = self.total(place)
                at, hessian, done = slopes.stepped(at, total["gradient"], symmetric(total["hessian"], p))
        return at, hessian, done or first + slopes.STEPS - 1 in self.sums

    @cached_property
    def _newton(self) -> tuple[Array, Array, bool]:
        return self._steps(0)

    @property
    def training(self) -> Training:
        """The federated training, so far."""
        return Training(*self._newton[:2])

    @cached_property
    def _fold_steps(self) -> tuple[list[Training], bool]:
        found = [Training(self._newton[0], np.zeros((0, 0)))] * self.plan.trainings
        done = not found
        for place in range(FOLDS_AT, MODELS):
            if place in self.sums:
                total, n = self.total(place), len(self.start)
                sums = zip(found, total["gradient"], total["hessian"], strict=True)
                each = [slopes.stepped(one.coefficients, g, symmetric(h, n)) for one, g, h in sums]
                found = [Training(at, hessian) for at, hessian, _ in each]
                done = all(ended for *_, ended in each) or place == MODELS - 1
        return found, done

    @property
    def without_folds(self) -> list[Training]:
        """The federated trainings without each deal's folds, so far; empty unless patients are at several hospitals."""
        return self._fold_steps[0]

    @cached_property
    def _first(self) -> Blocks:
        return self.total(0)

    @property
    def rows(self) -> float:
        """Of all hospitals that train."""
        return float(self._first["rows"])

    @property
    def regressed(self) -> int:
        """Hospitals that are told by their regression; 0: they or their patients are too few."""
        sites, patients = (float(self._first[name]) for name in ("regressed", "regressed_patients"))
        enough = sites >= MIN_HOSPITALS and patients >= PATIENTS_PER_COEFFICIENT * len(self.start)
        return round(sites) if enough else 0

    @cached_property
    def refits(self) -> tuple[str, ...]:
        """The hospitals without which the others train once more; nobody with folds of the whole federation."""
        return tuple(
            name
            for name, rows in zip(self.names, self._first["rows_of"], strict=True)
            if rows > REFIT_SHARE * self.rows and not self.plan.trainings
        )

    def _refit_at(self, name: str) -> int:
        return REFITS_AT + self.refits.index(name) * slopes.STEPS

    def outside(self, name: str) -> Array:
        """(P,) the refit of all but this one of ``refits``, so far."""
        return self._steps(self._refit_at(name))[0]

    def left_out(self, place: int) -> str:
        """Who adds nothing to a sum of a refit."""
        return self.refits[(place - REFITS_AT) // slopes.STEPS]

    @property
    def giving(self) -> tuple[str, ...]:
        """Hospitals of which it may be said what their patients give to others."""
        return self.names if len(self.names) > MIN_GIVEN else ()

    # How much slopes differ.

    @cached_property
    def pulls(self) -> Array:
        """(M,) prior weights of ``slopes.PULLS``, so far."""
        last = max((place for place in self.sums if EM_AT <= place < REFITS_AT), default=None)
        if last is None:
            return np.full(len(slopes.PULLS), 1 / len(slopes.PULLS))
        return slopes.em_step(self.total(last)["pulls"], self.regressed)

    # What hospitals have in common.

    @cached_property
    def _moments(self) -> Blocks:
        return self.total(MOMENTS)

    @property
    def assessed(self) -> int:
        return round(float(self._moments["assessed"]))

    @property
    def pooled(self) -> bool:
        """Whether hospitals are read together: enough of them, whose variances can be smoothed."""
        variances = (self._smoothed(k).residual for k in range(2))  # of U and J
        return self.assessed >= MIN_HOSPITALS and max(variances) < MAX_RESIDUAL

    @property
    def by_regression(self) -> bool:
        """Whether U and J are; a reversed hospital's slopes would speak for others."""
        return self.pooled and bool(self.regressed) and not self._moments["reversed"]

    def misfit(self, k: int) -> tuple[float, float]:
        """By how much regressions misjudge U (0) or J (1): mean and variance."""
        return slopes.misfit(self._moments["misfits"][k])

    def noise(self, k: int, n: int) -> float:
        """V of the ``k``-th estimand at a hospital of n patients, smoothed over hospitals."""
        return self._smoothed(k).at([n]) / n

    def _smoothed(self, k: int) -> decision.Smoothed:
        return decision.Smoothed(symmetric(self._moments["moments"][k], 3))

    def average_scale(self, k: int) -> float:
        return decision.scale(self.assessed, float(self._moments["values"][k, 0]))

    @property
    def right_scale(self) -> float:
        return decision.scale(self.assessed, float(self._moments["right"]))

    @cached_property
    def _scales(self) -> Blocks:
        return self.total(SCALES)

    def scale(self, k: int) -> float:
        return decision.scale(self.assessed, float(self._scales["precisions"][k]))

    @property
    def right(self) -> Hospitals:
        """Of the part of the member model's move that is right."""
        return Hospitals(self.right_scale, self._scales["right"])

    def hospitals(self, k: int) -> Hospitals:
        """Of the ``k``-th estimand."""
        return Hospitals(self.scale(k), self.total(POSTERIORS)["terms"][k])

    def gives(self, name: str) -> Average | None:
        """G: the mean over the other hospitals of what this one's patients gain them, in Brier score.

        None where fewer than ``MIN_GIVEN`` others are assessed, and under secure sums.
        """
        total = self._moments["given"][self.giving.index(name)] if name in self.giving else (0.0,)
        return decision.average(total) if round(total[0]) >= MIN_GIVEN else None

    def averages(self) -> dict[str, Between]:
        """Of ``AVERAGED``, every hospital counting once; empty below ``MIN_HOSPITALS``.

        The prediction interval is widened as few hospitals are known: Student's quantile with max(S - 2, 3) degrees of
        freedom (Higgins et al., JRSS A 172, 2009).
        """
        found = {}
        for k, key in enumerate(AVERAGED if self.pooled else ()):
            everyone = Hospitals(self.average_scale(k), self._scales["averages"][k])
            _, first, second, variances = map(float, self._moments["values"][k])
            average = decision.average((self.assessed, first, second, variances))
            prediction = everyone.new(0.0).interval(stretch=decision.stretch(self.assessed))
            found[key] = Between(average, everyone.spread, prediction)
        return found
