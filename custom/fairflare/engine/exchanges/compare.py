# SPDX-License-Identifier: Apache-2.0
"""A round's further exchanges: the sites measure the models that they have trained against an anchor of the rule's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fairflare.core.schema import Answer, Instruction
from fairflare.core.types import Reply, StateDict
from fairflare.engine.checks import Rejection, silent
from fairflare.engine.exchanges.train import TRAINED, Clock, measured

if TYPE_CHECKING:
    from fairflare.engine.combination import Trained
    from fairflare.engine.exchanges.base import Work
    from fairflare.engine.site import Site


class CompareAtSite:
    """The site's half, of the model that this round has trained."""

    @property
    def tasks(self) -> Mapping[str, Work]:
        return {"compare": self.compare}

    def compare(self, site: Site, instruction: Instruction) -> Answer:
        """The numbers of the probes that need an anchor."""
        memory = site.memory.at(instruction.round.number)
        if TRAINED not in memory:
            raise RuntimeError(f"no model of round {instruction.round.number} was kept")
        site.network.load_state_dict(memory[TRAINED])
        clock = Clock()
        scalars = measured(site.probes, site.work(instruction, memory), "anchored")
        clock.lap("compare")
        return Answer(site=site.name, round=instruction.round.number, scalars=scalars, seconds=clock.laps)


def second_exchange(
    trained: Trained, label: str, anchor: StateDict, replies: Sequence[Reply]
) -> tuple[list[Reply], list[Answer], list[Rejection]]:
    """Show an anchor to the accepted sites; a site counts in the round once it has answered every time."""
    asked = {reply.site: Instruction("compare", trained.round, anchor) for reply in replies}
    answers = list(trained.transport.exchange(asked))
    missing = silent(asked, answers)
    trained.missed([rejection.site for rejection in missing])
    found, refused = trained.gate.inspect_second(answers, trained.round.number)
    named = {s: {f"{name}/{label}" if label else name: v for name, v in own.items()} for s, own in found.items()}
    complete = [dataclasses.replace(r, scalars={**r.scalars, **named[r.site]}) for r in replies if r.site in found]
    return complete, answers, refused + missing
