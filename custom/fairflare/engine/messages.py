# SPDX-License-Identifier: Apache-2.0
"""The port to the sites; what travels through it is described in ``core.schema``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from fairflare.core.schema import Answer, Instruction, TaskName
from fairflare.core.types import StateDict

__all__ = ["Answer", "Declared", "Instruction", "SiteModels", "TaskName", "Transport"]

SiteModels = Mapping[str, StateDict]
"""Site -> the model that it is sent."""
Declared = Mapping[str, int]
"""Site -> training examples that it has declared."""


class Transport(Protocol):
    """The port to the sites; one adapter calls them in this process, another goes through FLARE."""

    def sites(self) -> list[str]:
        """Names of the sites that can be asked now, sorted."""

    def exchange(self, instructions: Mapping[str, Instruction]) -> Iterable[Answer]:
        """Send each site its instruction and yield what comes back, in any order, until all answered or time is up.

        "preflight" beside other tasks asks whether an absent site is back: nobody waits for its answer. "train" may end
        early, see ``early_end``: an answer that comes later than the end is dropped, and its site stops.
        """
