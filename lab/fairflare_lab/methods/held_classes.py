# SPDX-License-Identifier: Apache-2.0
"""ShapFed's probe: which classes a site's training split holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fairflare.core import types
from fairflare.core.registry import probe
from fairflare.probes.base import Probe


@probe("held-classes")
@dataclass(frozen=True)
class HeldClasses(Probe):
    """Per class 1 where the training split has examples of it, at least the site's minimum count, and 0 where not.

    A class of fewer examples looks like one that is not there. A site that lets no group's numbers leave says nothing.
    """

    cost: ClassVar[types.Cost] = types.Cost()

    def scalars(self, outline: types.Outline) -> tuple[types.Number, ...]:
        meaning = "1 if the site's training split holds the class, 0 if not"
        return tuple(types.Number(f"{types.HELD}/{c}", 0.0, 1.0, meaning) for c in range(outline.classes))

    def measure(self, work: types.LocalWork) -> dict[str, float]:
        if work.min_count is None:
            return {}
        least = max(work.min_count, 1)
        return {f"{types.HELD}/{c}": float(n >= least) for c, n in enumerate(work.data.class_counts.tolist())}
