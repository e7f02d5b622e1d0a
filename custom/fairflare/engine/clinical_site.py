# SPDX-License-Identifier: Apache-2.0
"""A site's part of what ``clinical`` says of its model: which numbers may leave, and the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairflare.core.seeds import derive
from fairflare.engine.after.base import Cases, Chosen
from fairflare.engine.clinical import BIN, DIGITS, ENDS, FAR, OF_BIN, RISK_DIGITS, Numbers, View
from fairflare.functional import calibration as maths
from fairflare.functional.calibration import Array, Ints
from fairflare.privacy.counts import released, released_unions

LINE = ("intercept", "slope")
RESAMPLES = 400
"""Samples of a split's patients that the intervals of means are from."""


@dataclass(frozen=True)
class ClinicalAtSite:
    """A site's part.

    Attributes:
        min_count: the fewest patients whose numbers leave the site; None: none leave.
        seed: the run's, of what intervals resample.
    """

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
            found |= self._means(label, before[pick], risks[pick], outcomes[pick], classes)
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
            outcomes: what came true.
            flags: the decisions after the step.
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

    def _means(self, where: str, before: Array, risks: Array, outcomes: Array, classes: bool) -> Numbers:
        """Number of patients, and means with their intervals; the line where there are enough of either outcome."""
        starts, cells = maths.crowded(before, self._least), maths.cell_of(before)
        bins = maths.binned(risks, outcomes, starts, cells)
        places: Ints = np.searchsorted(starts, cells, side="right") - 1
        residuals = risks - outcomes
        generator = np.random.default_rng(derive(self.seed, "clinical", self.name, where))
        samples = maths.resampled(residuals**2, residuals, places, generator, RESAMPLES)
        values = {"brier": float((residuals**2).mean()), "calibration": float(residuals.mean())}
        values |= {"ece": maths.calibration_error(bins)}
        found = {f"n{where}": float(len(risks))}
        for (name, value), sample in zip(values.items(), samples):
            found |= _with_ends(name, value, maths.middle(sample), where)
        return found | (self._line(where, risks, outcomes) if classes else {})

    def _line(self, where: str, risks: Array, outcomes: Array) -> Numbers:
        fitted = maths.line_with_interval(risks, outcomes)
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
