# SPDX-License-Identifier: Apache-2.0
"""Calibration and clinical use of the model that a site uses: the sums that leave the site, and the checks of them.

After the last round alone, and of one model: means over a split and over groups of it that are large enough, a line
fitted to the risks, how many were flagged at a threshold, and counts per bin of the predicted risk. No number is of
fewer patients than the site's minimum, and no case's risk leaves. ``ClinicalAtSite`` makes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from fairflare.core.seeds import derive
from fairflare.core.types import CLINICAL as CLINICAL
from fairflare.core.types import MOST_EXAMPLES, Number
from fairflare.engine.checks import Refused, checked_scalars
from fairflare.engine.evaluation import Cases, Chosen
from fairflare.functional import calibration as maths
from fairflare.functional.calibration import CELLS, Array, Bins, Ints, Owners
from fairflare.privacy.counts import released, released_unions

FAR = 1e3
"""Largest end of an interval of intercept or slope."""
MEANS: Mapping[str, tuple[float, float, str]] = {
    "brier": (0.0, 1.0, "mean squared difference of risk and outcome"),
    "calibration": (-1.0, 1.0, "mean risk less the share that it came true of"),
    "ece": (0.0, 1.0, "expected calibration error"),
    "intercept": (-FAR, FAR, "calibration intercept, beside the slope"),
    "slope": (-FAR, FAR, "calibration slope"),
}
ENDS = (".low", ".high")
"""Of the 95 % interval of each."""
COUNTS: Mapping[str, str] = {
    "positives": "patients that it came true of",
    "flagged": "patients whose risk is at least the threshold",
    "true_positives": "those of them that it came true of",
}
OF_BIN: Mapping[str, str] = {
    "n": "patients of a bin",
    "positives": "those of them that it came true of",
    "risk": "their summed risks",
}
BIN = "bin."
DIGITS, RISK_DIGITS = 5, 2
"""Decimals of means and of summed risks that leave: more would be a fingerprint of who the patients are."""
ROUNDING = 0.006
"""How far a summed risk may be from what its patients can have."""
Numbers = dict[str, float]


@dataclass(frozen=True)
class View:
    """What server and sites know alike of a run.

    Attributes:
        event: index of the class whose risk is looked at; None: whether the likeliest class is the right one.
        threshold: a patient with at least this risk is flagged.
        cells: names of the groups of patients, none of them by outcome.
        of_group: index of a group of the run -> that of the cell that it is a part of.
        secure: whether the run has secure sums: then no count but that of the patients leaves.
    """

    section: ClassVar[str] = CLINICAL

    event: int | None = 1
    threshold: float = 0.5
    cells: tuple[str, ...] = ()
    of_group: tuple[int, ...] = ()
    secure: bool = False

    def numbers(self) -> tuple[Number, ...]:
        return _numbers(self.cells, self.secure)

    def described(self, classes: Sequence[str]) -> dict[str, Any]:
        """What a report is told of it, under the name of its section."""
        event = None if self.event is None else classes[self.event]
        return {CLINICAL: {"event": event, "threshold": self.threshold}}

    def checked(self, found: Any, most: float = MOST_EXAMPLES, least: int = 0, *, as_binned: bool = True) -> Numbers:
        """The numbers of one site as they are accepted.

        Args:
            as_binned: whether a bin's risks lie between its edges; False once they were changed.

        Raises:
            Refused: a number that no site sends, or numbers that no patients have.
        """
        if not isinstance(found, Mapping):
            raise Refused("clinical", f"{self.section}: expected numbers by name")
        known = checked_scalars(found, self.numbers())
        sizes = [known.get(f"n/{cell}", 0.0) for cell in self.cells]
        if known.get("n", 0.0) > most or sum(sizes) > known.get("n", 0.0):
            raise Refused("count_mismatch", f"{self.section}: more patients than there can be")
        for where in ("", *(f"/{cell}" for cell in self.cells)):
            self.check_part(known, where, max(least, 1))
        _check_bins(known, max(least, 1), as_binned)
        return known

    def check_part(self, known: Numbers, where: str, least: int) -> None:
        """Raise Refused unless the counts of all, or of a cell, are such as patients have, and none is of too few."""
        n = known.get(f"n{where}")
        given = {name: known[name + where] for name in (*MEANS, *COUNTS) if name + where in known}
        if n is None:
            if given:
                raise Refused("count_mismatch", "clinical: numbers of nobody")
            return
        sides = [n, *_sides(n, given)]
        if any(side != int(side) for side in sides) or min(sides) < least:
            raise Refused("count_mismatch", "clinical: counts that no patients have, or of too few")


@dataclass(frozen=True)
class Nothing(View):
    """Of a run whose sites say nothing of it."""

    def numbers(self) -> tuple[Number, ...]:
        return ()

    def described(self, classes: Sequence[str]) -> dict[str, Any]:
        return {}


NOTHING = Nothing()


@lru_cache(maxsize=64)
def _numbers(cells: tuple[str, ...], secure: bool) -> tuple[Number, ...]:
    """Of a view with these cells; site and server ask for them at every answer."""
    many = float(MOST_EXAMPLES)
    found = [Number("n", 0.0, many, "patients")]
    for name, (low, high, meaning) in MEANS.items():
        found.append(Number(name, low, high, meaning))
        found += [Number(name + end, low, high, f"{meaning}: end of its interval") for end in ENDS]
    if not secure:
        found += [Number(name, 0.0, many, meaning) for name, meaning in COUNTS.items()]
    in_cells = [number.in_group(cell) for cell in cells for number in found]
    places = () if secure else range(CELLS)
    bins = [Number(f"{BIN}{k}.{name}", 0.0, many, meaning) for k in places for name, meaning in OF_BIN.items()]
    return (*found, *in_cells, *bins)


def bins_of(numbers: Mapping[str, float]) -> Bins | None:
    """The bins among a site's numbers; None where it sent none."""
    starts = sorted(int(name[len(BIN) : -2]) for name in numbers if name.startswith(BIN) and name.endswith(".n"))
    if not starts:
        return None
    rows = (np.array([numbers.get(f"{BIN}{k}.{name}", np.nan) for k in starts]) for name in OF_BIN)
    return Bins(np.array(starts, dtype=np.int64), *rows)


def _sides(n: float, given: Numbers) -> list[float]:
    """Patients of either outcome, and on either side of the threshold; raises Refused where they do not fit."""
    positives, flagged, right = (given.get(name) for name in COUNTS)
    if positives is None:
        if flagged is not None or right is not None:
            raise Refused("count_mismatch", "clinical: decisions without outcomes")
        return []
    if flagged is None or right is None:
        if flagged is not right:
            raise Refused("count_mismatch", "clinical: one half of the decisions")
        return [positives, n - positives]
    if right != int(right) or right > min(positives, flagged) or flagged - right > n - positives:
        raise Refused("count_mismatch", "clinical: decisions that no patients have")
    return [positives, n - positives, flagged, n - flagged]


def _check_bins(known: Numbers, least: int, as_binned: bool) -> None:
    """Raise Refused unless the bins hold every patient once, with risks that fit, and none too few."""
    names = [name for name in known if name.startswith(BIN)]
    if not names:
        return
    bins = bins_of(known)
    if bins is None or bins.starts[0] != 0 or len(names) != len(OF_BIN) * len(bins.n):
        raise Refused("count_mismatch", "clinical: bins that are not whole")
    edges = bins.edges
    low, high = (edges[:-1], edges[1:]) if as_binned else (0.0, 1.0)
    fits = (
        (np.floor(bins.n) == bins.n).all(),
        (np.floor(bins.positives) == bins.positives).all(),
        (np.minimum(bins.positives, bins.n - bins.positives) >= least).all(),
        (bins.risk >= low * bins.n - ROUNDING).all(),
        (bins.risk <= high * bins.n + ROUNDING).all(),
        bins.n.sum() == known.get("n"),
        bins.positives.sum() == known.get("positives"),
    )
    if not all(fits):
        raise Refused("count_mismatch", "clinical: bins that no patients have, or of too few")


LINE = ("intercept", "slope")
RESAMPLES = 400
"""Samples of a split's patients that the intervals of means are from."""


@dataclass(frozen=True)
class ClinicalAtSite:
    """A site's part; no number of fewer than ``min_count`` patients leaves, None: none does; ``seed``: of resamples."""

    tasks: ClassVar[Mapping[str, Any]] = {}

    view: View
    min_count: int | None = 10
    seed: int = 0
    name: str = ""

    def of_model(self, cases: Cases) -> Numbers:
        risks, outcomes = self._looked_at(cases, None)
        return self._all(cases, risks, risks, outcomes, self.view.threshold)

    def after(self, cases: Cases, changed: Array | None, threshold: float | None) -> Numbers:
        """What leaves once a step has changed the risks, or the threshold.

        Bins hold the patients that they held before: only their risks are new.

        Args:
            changed: (N, C) probabilities after the step; None: they stay.
            threshold: the site's own; None: the run's.
        """
        if changed is None and (threshold is None or self.view.event is None):
            return {}
        before, outcomes = self._looked_at(cases, None)
        risks = before if changed is None else self._looked_at(cases, changed)[0]
        own = self.view.threshold if threshold is None else threshold
        found = self._all(cases, before, risks, outcomes, own)
        # With the lines before and after a step its parameters would be known, which secure sums leave at the site.
        return {k: v for k, v in found.items() if not (self.view.secure and k.startswith(LINE))}

    @property
    def _least(self) -> int:
        return max(self.min_count or 0, 1)

    def _looked_at(self, cases: Cases, changed: Array | None) -> tuple[Array, Array]:
        """(N,) risks and (N,) what came true, 0 or 1."""
        from scipy.special import softmax

        if not cases.n or not cases.finite:
            return np.full(cases.n, np.nan), np.full(cases.n, np.nan)
        plain = softmax(cases.outputs.numpy(), axis=1)
        probabilities = plain if changed is None else changed
        rows, labels = np.arange(cases.n), cases.targets.numpy()
        column = plain.argmax(axis=1) if self.view.event is None else np.full(cases.n, self.view.event)
        return probabilities[rows, column], (labels == column).astype(np.float64)

    def _all(self, cases: Cases, before: Array, risks: Array, outcomes: Array, threshold: float) -> Numbers:
        if self.min_count is None or cases.n < self._least or not cases.finite or not np.isfinite(risks).all():
            return {}
        everyone, ones = np.ones(cases.n, dtype=bool), outcomes == 1
        flags, was = risks >= threshold, before >= self.view.threshold
        moved = [side & kind for side in (flags & ~was, was & ~flags) for kind in (ones, ~ones)]
        apart = not any(part.any() for part in moved) or self._apart(before, outcomes, flags, moved)
        found: Numbers = {}
        for where, chosen, means, classes, decided in self._free(cases, ones, flags, moved, apart):
            if not means:
                continue
            label = f"/{where}" if where else ""
            pick = everyone if chosen is None else chosen
            whose = None if cases.patients is None else cases.patients[pick]
            found |= self._means(label, before[pick], risks[pick], outcomes[pick], classes, whose)
            if classes and not self.view.secure:
                found[f"positives{label}"] = float(outcomes[pick].sum())
                if decided and self.view.event is not None:
                    found[f"flagged{label}"] = float(flags[pick].sum())
                    found[f"true_positives{label}"] = float((flags & ones)[pick].sum())
                if chosen is None:
                    found |= self._bins(before, risks, outcomes)
        return found

    def _starts(self, before: Array, outcomes: Array) -> Ints:
        """Where bins begin: by the model's own risks, and beside its own decisions where they leave."""
        flags = before >= self.view.threshold
        if self.view.event is None or min(flags.sum(), (~flags).sum()) < self._least:
            return maths.merged(before, outcomes, self._least)
        return maths.merged_beside(before, outcomes, self._least, flags)

    def _apart(self, before: Array, outcomes: Array, flags: Chosen, moved: Sequence[Chosen]) -> bool:
        """Whether decisions after a step tell of no few patients, beside those before it and what bins hold.

        Args:
            before: risks that the bins are of.
            moved: patients of one outcome who crossed the threshold one way.
        """
        bins = np.searchsorted(self._starts(before, outcomes), maths.cell_of(before), side="right")
        parts = [(bins == place) & (outcomes == of) for place in np.unique(bins) for of in (0, 1)]
        decided = [part & side for part in parts for side in (flags, ~flags)]
        return all(self._none_or_enough(part) for part in (*moved, *decided))

    def _none_or_enough(self, chosen: Chosen) -> bool:
        return not 0 < int(chosen.sum()) < self._least

    def _free(
        self, cases: Cases, ones: Chosen, flags: Chosen, moved: Sequence[Chosen], apart: bool
    ) -> list[tuple[str, Chosen | None, bool, bool, bool]]:
        """Name and patients of all and of each cell, and whether their means, classes and decisions may leave.

        Args:
            moved: those who crossed it by a step, by way and outcome.
            apart: whether decisions about all may leave beside those before the step.
        """
        everyone = np.ones(cases.n, dtype=bool)
        sides = [(everyone,), (ones, ~ones), (flags, ~flags)]
        enough = [all(int(side.sum()) >= self._least for side in pair) for pair in sides]
        decisions = all(enough) and apart
        found: list[tuple[str, Chosen | None, bool, bool, bool]] = [("", None, enough[0], enough[1], decisions)]
        members = cases.members.numpy()
        rows = [members == g for g in range(len(self.view.of_group))]
        if not rows:
            return found
        verdicts = [np.all([self._cells_free(rows, side) for side in pair], axis=0) for pair in sides]
        crossed = np.all([self._cells_free(rows, part) for part in moved], axis=0)
        for cell, name in enumerate(self.view.cells):
            chosen = np.isin(members, [g for g, of in enumerate(self.view.of_group) if of == cell])
            sizes = [int((chosen & side).sum()) for side in (ones, ~ones, flags, ~flags)]
            means = bool(verdicts[0][cell]) and int(chosen.sum()) >= self._least
            classes = means and enough[1] and bool(verdicts[1][cell]) and min(sizes[:2]) >= self._least
            decided = classes and decisions and bool(verdicts[2][cell]) and min(sizes) >= self._least
            decided = decided and bool(crossed[cell]) and all(self._none_or_enough(chosen & part) for part in moved)
            found.append((name, chosen, means, classes, decided))
        return found

    def _cells_free(self, rows: Sequence[Chosen], kind: Chosen) -> list[bool]:
        """Whether each cell's number of this kind of patients may leave, beside what leaves of the run's groups."""
        shown = released([int(row.sum()) for row in rows], self.min_count, unknown=len(kind) - sum(map(np.sum, rows)))
        sizes = [int((row & kind).sum()) for row in rows]
        unknown = int(kind.sum()) - sum(sizes)
        return released_unions(sizes, self.view.of_group, shown, self.min_count, unknown)

    def _means(
        self, where: str, before: Array, risks: Array, outcomes: Array, classes: bool, whose: Owners | None
    ) -> Numbers:
        """Number of patients, and means with their intervals; the line where there are enough of either outcome."""
        starts, cells = maths.crowded(before, self._least), maths.cell_of(before)
        bins = maths.binned(risks, outcomes, starts, cells)
        places: Ints = np.searchsorted(starts, cells, side="right") - 1
        residuals = risks - outcomes
        seed = derive(self.seed, "clinical", self.name, where)
        samples = maths.resampled(residuals**2, residuals, places, seed, RESAMPLES, whose)
        values = {"brier": float((residuals**2).mean()), "calibration": float(residuals.mean())}
        values |= {"ece": maths.calibration_error(bins)}
        found = {f"n{where}": float(len(risks))}
        for (name, value), sample in zip(values.items(), samples):
            low, high = maths.middle(sample)  # resamples have a larger ECE than the patients: the value stays within
            found |= _with_ends(name, value, (min(low, value), max(high, value)), where)
        return found | (self._line(where, risks, outcomes, whose) if classes else {})

    def _line(self, where: str, risks: Array, outcomes: Array, whose: Owners | None) -> Numbers:
        fitted = maths.line_with_interval(risks, outcomes, whose)
        if fitted is None:
            return {}
        line, errors = fitted
        found: Numbers = {}
        for name, value, error in zip(LINE, (line.intercept, line.slope), errors):
            ends = (max(-FAR, value - maths.Z * error), min(FAR, value + maths.Z * error))
            found |= _with_ends(name, value, ends, where)
        return found

    def _bins(self, before: Array, risks: Array, outcomes: Array) -> Numbers:
        starts = self._starts(before, outcomes)
        bins = maths.binned(risks, outcomes, starts, maths.cell_of(before))
        rows = ((name, zip(starts, getattr(bins, name), strict=True)) for name in OF_BIN)
        return {f"{BIN}{k}.{name}": round(float(value), RISK_DIGITS) for name, row in rows for k, value in row}


def _with_ends(name: str, value: float, ends: tuple[float, float], where: str) -> Numbers:
    at = {name + where: value, **{f"{name}{end}{where}": at for end, at in zip(ENDS, ends, strict=True)}}
    return {name: round(value, DIGITS) for name, value in at.items()}
