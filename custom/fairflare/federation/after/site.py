# SPDX-License-Identifier: Apache-2.0
"""A site's part of the step after the last round: its sums, what it fits, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fairflare.core.types import SplitName
from fairflare.federation.after.base import AfterStep, Array, Cases, Chosen, Fit, Shape
from fairflare.federation.state import save_json
from fairflare.privacy.counts import released

ENDING = ".after.json"
CasesOf = Callable[[SplitName], Cases]


def after_file(memory: Path) -> Path:
    """Where a site keeps what it has fitted, beside its memory: "site-1.after.json" beside "site-1.pt"."""
    return memory.with_name(memory.stem + ENDING)


@dataclass
class AfterAtSite:
    """Computes a site's sums and what follows for it.

    Attributes:
        step: what is done.
        shape: of the task.
        min_count: the fewest cases whose sums leave the site; None: none leave.
        path: where what was fitted is kept; None: nowhere.
        secure: whether the run has secure sums: then the site's own parameters stay here.
    """

    step: AfterStep
    shape: Shape
    min_count: int | None = 10
    path: Path | None = None
    secure: bool = False
    model: str = field(default="", init=False)

    def sums(self, cases_of: CasesOf) -> list[float]:
        """All rows of sums, one after the other; of too few cases zeros."""
        cases = self._cases(cases_of, self.step.split)
        rows = [self._row(cases, chosen, free) for chosen, free in self._chosen(cases)]
        return [float(value) for value in np.concatenate(rows)]

    def adjust(self, total: Sequence[float], cases_of: CasesOf, model: str) -> dict[str, float]:
        """Fit, keep what was fitted in the site's file, and return what may leave.

        Args:
            total: the sums over all sites.
            cases_of: a split -> its cases under the model.
            model: hash of the model, for the file.
        """
        rows = np.asarray(total, dtype=np.float64).reshape(-1, self.step.length(self.shape))
        names = self.step.rows(self.shape)
        shared = {name: dict(self.step.shared(row, self.shape)) for name, row in zip(names, rows, strict=True)}
        cases = self._cases(cases_of, self.step.split)
        everyone = np.ones(cases.n, dtype=bool)
        own, remark = self.step.own(cases, everyone, rows[0], self.shape) if self.step.by == "site" else ({}, "")
        fits = self._fits(own, shared)
        self._keep(own, shared, remark, model)
        found = self._parameters(shared, own, rows, cases.n)
        return found | self._results(self._cases(cases_of, "test"), {"own": fits, "shared": {-1: shared[""]}})

    def _cases(self, cases_of: CasesOf, split: SplitName) -> Cases:
        found = cases_of(split)
        n = found.n
        return Cases(found.outputs[:n], found.targets[:n], found.members[:n])

    def _chosen(self, cases: Cases) -> list[tuple[Chosen, bool]]:
        """For every row of sums: which cases, and whether so many may leave."""
        members = cases.members.numpy()
        everyone = np.ones(cases.n, dtype=bool)
        enough = self.min_count is not None and cases.n >= self.min_count
        if self.step.by == "site":
            return [(everyone, enough)]
        groups = [members == g for g in range(len(self.shape.groups))]
        return [(everyone, enough), *zip(groups, self._free(groups, cases.n))]

    def _free(self, groups: Sequence[Chosen], n: int) -> list[bool]:
        counts = [int(group.sum()) for group in groups]
        return released(counts, self.min_count, unknown=n - sum(counts))

    def _row(self, cases: Cases, chosen: Chosen, free: bool) -> Array:
        row = self.step.sums(cases, chosen, self.shape) if free and chosen.any() else None
        if row is None or row[0] < (self.min_count or 0):
            return np.zeros(self.step.length(self.shape))
        return row

    def _fits(self, own: Fit, shared: Mapping[str, Fit]) -> dict[int, Fit]:
        """Group's index -> what holds for its cases: by site one for all of them."""
        if self.step.by == "site":
            return {-1: own}
        return {-1: shared[""], **{g: shared[name] for g, name in enumerate(self.shape.groups)}}

    def _keep(self, own: Fit, shared: Mapping[str, Fit], remark: str, model: str) -> None:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            said: dict[str, Any] = {"step": type(self.step).__name__.lower(), "by": self.step.by, "model": model}
            save_json(self.path, {**said, "own": dict(own), "shared": dict(shared), "remark": remark})

    def _parameters(self, shared: Mapping[str, Fit], own: Fit, rows: Array, n: int) -> dict[str, float]:
        found = {
            f"shared.{name}" + (f"/{row}" if row else ""): value
            for row, fit in shared.items()
            for name, value in fit.items()
        }
        found |= {"n_all" + (f"/{name}" if name else ""): float(rows[i, 0]) for i, name in enumerate(shared)}
        if not self.secure and self.min_count is not None and n >= self.min_count:
            found |= {f"own.{name}": float(value) for name, value in own.items()} | {"n_calibration": float(n)}
        return found

    def _results(self, cases: Cases, fits: Mapping[str, Mapping[int, Fit]]) -> dict[str, float]:
        """Means over the test split, and over its groups where so few may leave."""
        found = {"n": float(cases.n)}
        members = cases.members.numpy()
        groups = [members == g for g in range(len(self.shape.groups))]
        free = self._free(groups, cases.n)
        shown = [(name, group) for name, group, may in zip(self.shape.groups, groups, free) if may and group.any()]
        found |= {f"n/{name}": float(group.sum()) for name, group in shown}
        for stage in self.step.stages if cases.n else ():
            values = self.step.values(cases, stage, fits.get(stage, {}), self.shape)
            for metric, each in values.items():
                found |= self._means(stage, metric, each, "", 1)
                for name, group in shown:
                    found |= self._means(stage, metric, each[group], f"/{name}", self.min_count or 1)
        return found

    def _means(self, stage: str, metric: str, values: Array, where: str, least: int) -> dict[str, float]:
        """The mean of the cases that have a value, where they are enough, and how many if that is not all."""
        known = values[~np.isnan(values)]
        if len(known) < max(least, 1):
            return {}
        counted = {f"n_{metric}{where}": float(len(known))} if metric in self.step.partial else {}
        return {f"{stage}.{metric}{where}": float(known.mean()), **counted}
