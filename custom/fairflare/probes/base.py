# SPDX-License-Identifier: Apache-2.0
"""What every probe is: a measurement at a site, reported as a few named numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

from fairflare.contracts import Cost, LocalWork, Scalar


class Probe(ABC):
    """A measurement: a frozen dataclass of parameters; leaves the network's weights and buffers as it found them."""

    cost: ClassVar[Cost]
    reports: ClassVar[tuple[Scalar, ...]]
    """Every number that ``measure`` returns, with its range; a number outside it never reaches a rule."""

    @property
    def when(self) -> Literal["received", "trained"]:
        """Which model it measures: the received w^t or the site's own after training."""
        return "received"

    @abstractmethod
    def measure(self, work: LocalWork) -> dict[str, float]:
        """The numbers named in ``reports``, measured on ``work.network``."""
