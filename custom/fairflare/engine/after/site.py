# SPDX-License-Identifier: Apache-2.0
"""A site's part of the step after the last round: its sums, what it fits, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairflare.core.types import SplitName
from fairflare.engine.after.base import AfterStep, Array, Cases, Chosen, Fit, Shape
from fairflare.engine.files import save_json
from fairflare.privacy.counts import released

CasesOf = Callable[[SplitName], Cases]


@dataclass
class AfterAtSite:
    """Computes a site's sums and what follows for it.

    Attributes:
        min_count: the fewest cases whose sums leave the site; None: none leave.
        path: where what was fitted is kept; None: nowhere.
        secure: whether the run has secure sums: then the site's own parameters stay here.
    """

    step: AfterStep
    shape: Shape
    min_count: int | None = 10
    path: Path | None = None
    secure: bool = False

    def __post_init__(self) -> None:
        self._in_use: dict[int, Fit] = {}

    def sums(self, cases_of: CasesOf) -> list[float]:
        """All rows of sums, one after the other; of too few cases zeros."""
        cases = cases_of(self.step.split)
        rows = [self._row(cases, chosen, free) for chosen, free in self._chosen(cases)]
        return [float(value) for value in np.concatenate(rows)]

    def adjust(self, total: Sequence[float], cases_of: CasesOf, model: str) -> dict[str, float]:
        """Fit, keep what was fitted in the site's file, and return what may leave."""
        rows = np.asarray(total, dtype=np.float64).reshape(-1, self.step.length(self.shape))
        names = self.step.rows(self.shape)
        shared = {name: dict(self.step.shared(row, self.shape)) for name, row in zip(names, rows, strict=True)}
        cases = cases_of(self.step.split)
        everyone = np.full(cases.n, cases.finite)
        own, remark = self.step.own(cases, everyone, rows[0], self.shape) if self.step.by == "site" else ({}, "")
        fits = {-1: own}
        if self.step.by != "site":
            fits = {-1: shared[""], **{g: shared[name] for g, name in enumerate(self.shape.groups)}}
        self._keep(own, shared, remark, model)
        self._in_use = fits
        found = self._parameters(shared, own, rows, cases)
        return found | self._results(cases_of("test"), {"own": fits, "shared": {-1: shared[""]}})

    def changes(self, cases: Cases) -> tuple[Array | None, float | None]:
        """What ``adjust`` came to: (N, C) probabilities of class labels, and the site's threshold; None: as before."""
        if not self.shape.has_classes or not any(self._in_use.values()):
            return None, None
        own = self._in_use.get(-1, {}) if self.step.by == "site" else {}
        return self.step.changed(cases, self._in_use, self.shape), self.step.threshold(own)

    def _chosen(self, cases: Cases) -> list[tuple[Chosen, bool]]:
        """For every row of sums: which cases, and whether so many may leave."""
        everyone = np.ones(cases.n, dtype=bool)
        # Of a sum over sites nobody knows what is of whom.
        kinds = (everyone,) if self.secure else (everyone, *self.step.kinds(cases, self.shape))
        every = (everyone, self._enough(*kinds))
        if self.step.by == "site":
            return [every]
        groups = self._groups(cases)
        return [every, *zip(groups, self._free(groups, *kinds))]

    def _groups(self, cases: Cases) -> list[Chosen]:
        members = cases.members.numpy()
        return [members == g for g in range(len(self.shape.groups))]

    def _counted(self, cases: Cases) -> tuple[Chosen, Chosen, Chosen]:
        """All cases, those that the step counts, and the others, whose number follows from the two."""
        counts = self.step.counts(cases, self.shape)
        return np.ones(cases.n, dtype=bool), counts, ~counts

    def _enough(self, *kinds: Chosen) -> bool:
        """Whether numbers of a split may leave that tell how many cases of each kind there are."""
        counts, least = [int(kind.sum()) for kind in kinds], self.min_count
        return least is not None and counts[0] >= least and all(not n or n >= least for n in counts)

    def _free(self, groups: Sequence[Chosen], *kinds: Chosen) -> list[bool]:
        """Which groups' numbers may leave: the count of each kind must be free to, see ``released``."""
        verdicts = []
        for kind in kinds:
            counts = [int((group & kind).sum()) for group in groups]
            verdicts.append(released(counts, self.min_count, unknown=int(kind.sum()) - sum(counts)))
        return [all(verdict) for verdict in zip(*verdicts)]

    def _row(self, cases: Cases, chosen: Chosen, free: bool) -> Array:
        """Sums over the chosen cases, and where others see the site's own row, none that is of few of them."""
        row = self.step.sums(cases, chosen, self.shape) if free and chosen.any() and cases.finite else None
        if row is None or row[0] < (self.min_count or 0):
            return np.zeros(self.step.length(self.shape))
        return row if self.secure else self.step.coarse(row, self.shape, self.min_count or 1)

    def _keep(self, own: Fit, shared: Mapping[str, Fit], remark: str, model: str) -> None:
        if self.path is not None:
            said: dict[str, Any] = {"step": type(self.step).__name__.lower(), "by": self.step.by, "model": model}
            said["settings"] = {key: value for key, value in asdict(self.step).items() if key != "by"}
            save_json(self.path, {**said, "own": dict(own), "shared": dict(shared), "remark": remark})

    def _parameters(self, shared: Mapping[str, Fit], own: Fit, rows: Array, cases: Cases) -> dict[str, float]:
        found = self.step.of_all(rows, self.shape, shared)
        if self.secure or self.min_count is None or cases.n < self.min_count:
            return found
        if self._enough(*self._counted(cases)[1:]):
            found |= {f"own.{name}": float(value) for name, value in own.items()}
        return found | {"n_calibration": float(cases.n)}

    def _results(self, cases: Cases, fits: Mapping[str, Mapping[int, Fit]]) -> dict[str, float]:
        """Means over the test split, and over its groups where so few may leave; none of a model that has diverged."""
        found = {"n": float(cases.n)}
        groups, kinds = self._groups(cases), self._counted(cases)
        some = {name: group for name, group in zip(self.shape.groups, groups) if group.any()}
        may = [dict(zip(self.shape.groups, self._free(groups, *of))) for of in (kinds[:1], kinds)]
        whole, partial = ({name for name in some if free[name]} for free in may)
        found |= {f"n/{name}": float(some[name].sum()) for name in sorted(whole)}
        for stage in self.step.stages if cases.n and cases.finite else ():
            values = self.step.values(cases, stage, fits.get(stage, {}), self.shape)
            for metric, each in values.items():
                is_partial = metric in self.step.partial
                shown = {"": kinds[0]} if not is_partial or self._enough(*kinds[1:]) else {}
                shown |= {f"/{name}": some[name] for name in sorted(partial if is_partial else whole)}
                for where, chosen in shown.items():
                    found |= self._means(stage, metric, each[chosen], kinds[is_partial][chosen], where)
        return found

    def _means(self, stage: str, metric: str, values: Array, expected: Chosen, where: str) -> dict[str, float]:
        """The mean where all expected cases have a value, and how many they are if they need not be all."""
        known = ~np.isnan(values)
        if not known.any() or (known != expected).any():
            return {}
        counted = {f"n_{metric}{where}": float(known.sum())} if metric in self.step.partial else {}
        return {f"{stage}.{metric}{where}": float(values[known].mean()), **counted}
