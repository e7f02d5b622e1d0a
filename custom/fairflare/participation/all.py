# SPDX-License-Identifier: Apache-2.0
"""Full participation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fairflare.core.registry import selector
from fairflare.core.types import Round
from fairflare.participation.base import Selector


@selector("all")
@dataclass(frozen=True)
class All(Selector):
    """Every training site takes part in every round."""

    def select(self, sites: Sequence[str], round: Round, seed: int, least: int) -> tuple[str, ...]:
        """``sites``."""
        return tuple(sites)
