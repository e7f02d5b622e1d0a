# SPDX-License-Identifier: Apache-2.0
"""What every selector is: it says which of the training sites take part in a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fairflare.core.registry import selector
from fairflare.core.types import Round


class Selector(ABC):
    """A frozen dataclass of parameters whose ``select`` is a pure function of its arguments.

    A site that is not selected trains nothing in that round and is neither absent nor rejected; the rule sees it as a
    site that is away. Preflight and the final evaluation ask every site.
    """

    pools: ClassVar[bool] = False
    """Whether the sites that it selects train on the training data of all sites; in process, on data that may be."""

    @abstractmethod
    def select(self, sites: Sequence[str], round: Round, seed: int, least: int) -> tuple[str, ...]:
        """The sites that take part, in the order of ``sites``.

        Args:
            sites: the training sites that are there, at least one.
            round: t and T.
            seed: the run's.
            least: fewest accepted sites that the round needs; no fewer are selected where that many are there.
        """

    def ever(self, sites: Sequence[str]) -> tuple[str, ...]:
        """Those of the training sites ``sites`` that it may select in some round, in their order.

        What rules and trainers know of the federation, as its number of sites, is of these: a site that never trains
        is no part of it.
        """
        return tuple(sites)

    def missing(self, sites: Sequence[str]) -> str:
        """What is wrong with this selector on a run's training sites, in one line; empty when nothing is."""
        return ""


@selector("all")
@dataclass(frozen=True)
class All(Selector):
    """Every training site takes part in every round."""

    def select(self, sites: Sequence[str], round: Round, seed: int, least: int) -> tuple[str, ...]:
        return tuple(sites)
