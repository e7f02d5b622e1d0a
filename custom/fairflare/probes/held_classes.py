# SPDX-License-Identifier: Apache-2.0
"""Which classes a site holds enough training examples of, for rules that score sites class by class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fairflare.core.registry import probe
from fairflare.core.types import HELD, Cost, LocalWork, Number, Outline
from fairflare.probes.base import Probe


@probe("held-classes")
@dataclass(frozen=True)
class HeldClasses(Probe):
    """Per class 1 where the training split has examples of it, at least the site's minimum count, and 0 where not.

    A class of fewer examples looks like one that is not there. A site that lets no group's numbers leave says nothing.
    """

    cost: ClassVar[Cost] = Cost()

    def scalars(self, outline: Outline) -> tuple[Number, ...]:
        meaning = "1 if the site's training split holds the class, 0 if not"
        return tuple(Number(f"{HELD}/{c}", 0.0, 1.0, meaning) for c in range(outline.classes))

    def measure(self, work: LocalWork) -> dict[str, float]:
        if work.min_count is None:
            return {}
        least = max(work.min_count, 1)
        return {f"{HELD}/{c}": float(n >= least) for c, n in enumerate(work.data.class_counts.tolist())}
