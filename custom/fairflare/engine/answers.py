# SPDX-License-Identifier: Apache-2.0
"""What a site does with its answers before they leave; ``exchanges.sums.SiteSums`` does the same with secure sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from fairflare.core.schema import Answer, Instruction

if TYPE_CHECKING:
    from fairflare.engine.exchanges.base import Work
    from fairflare.engine.exchanges.sums import SiteSums

SitePart: TypeAlias = "PlainAtSite | SiteSums"


class PlainAtSite:
    """In the clear: answers leave as they are."""

    goes_back: ClassVar[bool] = True
    """Whether the site forgets what it kept of rounds of which the server says that they did not count."""

    @property
    def tasks(self) -> Mapping[str, Work]:
        """Exchanges of the aggregation's own -> what answers them."""
        return {}

    def statement(self) -> Mapping[str, Any]:
        """What goes with the answer to "preflight"."""
        return {}

    def trained(self, answer: Answer, instruction: Instruction) -> Answer:
        """What leaves of a complete answer to "train"."""
        return answer

    def summed(self, sums: list[float], instruction: Instruction) -> Mapping[str, Any]:
        """The fields of the answer to "calibrate" that hold a site's sums; raises SumRefused."""
        return {"sums": sums}

    def total(self, instruction: Instruction, terms: int) -> list[float]:
        """The sums of all sites that "adjust" tells; raises SumRefused or ValueError."""
        if set(instruction.orders) != {str(i) for i in range(terms)}:
            raise ValueError(f"adjust: expected {terms} sums")
        return [float(instruction.orders[str(i)]) for i in range(terms)]

    def further(self, sums: list[float], instruction: Instruction, *about: Any) -> Mapping[str, Any]:
        """The fields of the answer that hold a site's part of one of an exchange's sums; raises SumRefused.

        ``about``: what the sum depends on, beside run and sites.
        """
        return {"sums": sums}

    def further_total(self, instruction: Instruction, terms: int) -> list[float]:
        """The total of the last such sum; raises SumRefused or ValueError."""
        return self.total(instruction, terms)

    def masks(self, answer: Answer) -> bool:
        """Whether the update in ``answer`` must not leave before ``final`` has masked it."""
        return False

    def final(self, answer: Answer) -> Answer:
        """The answer as it leaves; raises SumRefused where it cannot be masked."""
        return answer
