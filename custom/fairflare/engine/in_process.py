# SPDX-License-Identifier: Apache-2.0
"""The transport that calls the sites in this process: no processes, no polling, no sockets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fairflare.core.types import LocalWork
from fairflare.engine.messages import Answer, Instruction
from fairflare.engine.site import Site
from fairflare.trainers.base import PLACE, PlainTrainer

if TYPE_CHECKING:
    from fairflare.trainers.vmap_training import Trained


class InProcess:
    """Sites as plain objects, asked one after the other in name order.

    Another way to have the sites of a run do their work is another class with these two methods: ``InWorkers`` keeps
    them in worker processes. It yields each answer as soon as it is there, in any order: nothing in the loop may depend
    on the order. ``engine.setup.local.LocalSites`` chooses between them.
    """

    def __init__(self, sites: Mapping[str, Site]) -> None:
        self._sites = dict(sorted(sites.items()))

    def sites(self) -> list[str]:
        return list(self._sites)

    def members(self) -> list[Site]:
        """The sites' objects, for who changes what they have before a run."""
        return list(self._sites.values())

    def exchange(self, instructions: Mapping[str, Instruction]) -> Iterator[Answer]:
        """One answer per instruction; a site's exception is a bug here, not a fault of a network, and is raised."""
        for name in sorted(instructions):
            yield self._sites[name].handle(instructions[name])


@dataclass(frozen=True)
class Replay(PlainTrainer):
    """Puts in place what a batched call has trained; trains by itself where there is nothing.

    Attributes:
        done: the site's seed of a round -> what was trained, and the memory that it left.
    """

    done: dict[int, tuple[Trained, LocalWork]] = field(default_factory=dict)

    def train(self, work: LocalWork) -> float:
        if work.seed not in self.done:
            return super().train(work)
        trained, planned = self.done.pop(work.seed)
        work.network.load_state_dict(trained.model)
        work.steps = trained.steps
        if PLACE in planned.memory:
            work.memory[PLACE] = planned.memory[PLACE]
        return trained.loss


class Stacked(InProcess):
    """Sites whose network and trainer ``vmap_training.unstackable`` has nothing against.

    Each site still validates, measures, checks and answers by itself; only its steps are computed with the others'.
    """

    def __init__(self, sites: Mapping[str, Site]) -> None:
        super().__init__(sites)
        self._replays = {name: Replay() for name in self._sites}
        for name, site in self._sites.items():
            site.trainer = self._replays[name]

    def exchange(self, instructions: Mapping[str, Instruction]) -> Iterator[Answer]:
        asked = sorted(name for name, instruction in instructions.items() if instruction.task == "train")
        if asked:
            from fairflare.trainers.vmap_training import train_together  # in runs that ask for it alone

            works = [self._sites[name].planned(instructions[name]) for name in asked]
            for name, work, trained in zip(asked, works, train_together(works)):
                self._replays[name].done.clear()
                self._replays[name].done[work.seed] = trained, work
        yield from super().exchange(instructions)
