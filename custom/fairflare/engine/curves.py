# SPDX-License-Identifier: Apache-2.0
"""Survival curves of a site's test patients and of groups of them: what leaves the site, and the checks of it.

A curve is told at times that were agreed before training, and at those of them alone at which at least ``min_count``
patients have left the risk set since the last one and as many remain: no time of a patient leaves, and every step is
of enough patients. Groups are told at times at which this holds for each of them, and for everyone else together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fairflare.core.types import MOST_EXAMPLES, Number
from fairflare.engine.checks import Refused
from fairflare.engine.clinical import DIGITS, ClinicalAtSite, Numbers, View
from fairflare.engine.evaluation import Cases, Chosen
from fairflare.functional import survival as maths
from fairflare.functional.intervals import Array
from fairflare.privacy.counts import released

LEFT, OBSERVED, EXPECTED = "left", "observed", "expected"
"""Before the number of a step: patients that remain, Kaplan and Meier's survival, and the mean predicted one."""


@dataclass(frozen=True)
class Curves(View):
    """What server and sites know alike of a run about times; ``event`` and ``threshold`` mean nothing.

    ``ends`` are the times at which a curve may be told, rising.
    """

    section: ClassVar[str] = "curves"

    ends: tuple[float, ...] = ()

    def numbers(self) -> tuple[Number, ...]:
        many, steps = float(MOST_EXAMPLES), range(len(self.ends))
        found = [
            Number("n", 0.0, many, "patients"),
            *(Number(f"{LEFT}{k}", 0.0, many, "patients that remain after a time") for k in steps),
            *(Number(f"{OBSERVED}{k}", 0.0, 1.0, "share without event (Kaplan and Meier)") for k in steps),
            *(Number(f"{EXPECTED}{k}", 0.0, 1.0, "mean predicted share without event") for k in steps),
        ]
        return (*found, *(number.in_group(cell) for cell in self.cells for number in found))

    def described(self, classes: Sequence[str]) -> dict[str, Any]:
        return {self.section: {"ends": list(self.ends)}}

    def check_part(self, known: Numbers, where: str, least: int) -> None:
        """Raise Refused unless every step is whole, of enough patients who left and who remain, and does not rise."""
        before, height = known.get(f"n{where}", 0.0), 1.0
        if f"n{where}" in known and before < least:
            raise Refused("count_mismatch", "curves: of too few patients")
        for k in range(len(self.ends)):
            left, observed, expected = (known.get(f"{name}{k}{where}") for name in (LEFT, OBSERVED, EXPECTED))
            if left is None or observed is None:
                if not left is observed is expected:
                    raise Refused("count_mismatch", "curves: a step that is not whole")
                continue
            if left != int(left) or min(before - left, left) < least or observed > height:
                raise Refused("count_mismatch", "curves: a step of too few patients, or one that no patients have")
            before, height = left, observed


@dataclass(frozen=True)
class CurvesAtSite(ClinicalAtSite):
    """A site's part; ``kind`` is a ``tasks.kinds.survival.Survival``, which says what an output predicts."""

    view: Curves
    kind: Any = None

    def of_model(self, cases: Cases) -> Numbers:
        """Kaplan and Meier's and the mean predicted survival, in [0, 1], by name, of all cases and of each group.

        Nothing leaves of fewer than ``min_count`` cases, of groups whose size may not leave, of a model that has
        diverged, and with secure sums.

        Args:
            cases: outputs (N, ...) and targets of the test split, in the task's unit of time.
        """
        least = max(self.min_count or 0, 1)
        if self.min_count is None or cases.n < least or not cases.finite or self.view.secure:
            return {}
        known = self.kind.cases(cases.outputs, cases.targets, ())
        times, events, survival = known.times, known.events, known.survival
        members = cases.members.numpy()
        of_group = np.array(self.view.of_group, dtype=int)
        rows = [np.isin(members, np.flatnonzero(of_group == cell)) for cell in range(len(self.view.cells))]
        sizes = [int(row.sum()) for row in rows]
        free = released(sizes, self.min_count, unknown=cases.n - sum(sizes))
        named = zip(self.view.cells, rows, free, strict=True)
        shown = {name: row for name, row, may in named if may and row.sum() >= least}
        rest = ~np.any([np.zeros(cases.n, dtype=bool), *shown.values()], axis=0)
        everyone = np.ones(cases.n, dtype=bool)
        steps = self._steps(times, [everyone], range(len(self.view.ends)))
        found = self._told("", times, events, survival, everyone, steps)
        if shown:
            parts = [*shown.values(), *([rest] if rest.any() else [])]
            steps = self._steps(times, parts, steps)
            for name, row in shown.items():
                found |= self._told(f"/{name}", times, events, survival, row, steps)
        return found

    def after(self, cases: Cases, changed: Array | None, threshold: float | None) -> Numbers:
        """Nothing: no step after the last round is of times."""
        return {}

    def _steps(self, times: Array, parts: Sequence[Chosen], among: Sequence[int]) -> list[int]:
        """Numbers of the ends at which enough of every part have left since the last one, and enough remain."""
        least, steps, before = max(self.min_count or 0, 1), list[int](), [int(part.sum()) for part in parts]
        for k in among:
            left = [int((part & (times > self.view.ends[k])).sum()) for part in parts]
            if all(min(was - now, now) >= least for was, now in zip(before, left, strict=True)):
                steps.append(k)
                before = left
        return steps

    def _told(
        self, where: str, times: Array, events: Array, survival: Array | None, chosen: Chosen, steps: Sequence[int]
    ) -> Numbers:
        ends, once = np.array(self.view.ends), np.ones((1, int(chosen.sum())))
        observed = maths.curve_at(*maths.kaplan_meier(times[chosen], events[chosen], once), ends)[0]
        found = {f"n{where}": float(chosen.sum())}
        for k in steps:
            found[f"{LEFT}{k}{where}"] = float((times[chosen] > ends[k]).sum())
            found[f"{OBSERVED}{k}{where}"] = round(float(observed[k]), DIGITS)
            if survival is not None and not np.isnan(survival[chosen, k]).any():
                found[f"{EXPECTED}{k}{where}"] = round(float(survival[chosen, k].mean()), DIGITS)
        return found
