# SPDX-License-Identifier: Apache-2.0
"""A round at a site: it validates the received model, measures, trains, measures again and answers with an update."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fairflare.core.errors import EgressRefused
from fairflare.core.execution import plainly
from fairflare.core.metric import finite
from fairflare.core.schema import Answer, Instruction, flat
from fairflare.core.types import LocalWork, StateDict
from fairflare.engine.memory import is_finite
from fairflare.privacy.disclosure import disclosed
from fairflare.probes.base import Probe

if TYPE_CHECKING:
    from fairflare.engine.exchanges.base import Work
    from fairflare.engine.site import Site

TRAINED = "trained model"
"""Key of a site's memory under which the round's model lies for ``compare``."""


@dataclass
class TrainAtSite:
    """The site's half; the server's is the round itself, see ``engine.loop`` and ``engine.combination``.

    Attributes:
        validates: whether it measures the received model first.
    """

    validates: bool = True

    @property
    def tasks(self) -> Mapping[str, Work]:
        return {"train": self.train}

    def train(self, site: Site, instruction: Instruction) -> Answer:
        """The update D_k = w_k - w^t with its numbers; raises EgressRefused where the trainer may not go on."""
        work = site.work(instruction, site.kept(instruction, instruction.round.number))
        if reason := site.trainer.halted(work):
            raise EgressRefused(reason)
        site.network.load_state_dict(work.received)
        clock = Clock()
        work.received_metrics = metrics = site.score("val") if self.validates else {}
        clock.lap("validate")
        scalars = measured(site.probes, work, "received")
        clock.lap("probe")
        train_loss = site.trainer.train(work)
        if site.referee is not None:
            site.referee.check_support(work.support)
        clock.lap("train")
        scalars |= work.send_numbers | measured(site.probes, work, "trained")
        update = difference(site.network, instruction.model, site.trainer.personal_entries(instruction.model))
        if site.exchange is not torch.float32:
            trained = {name for name, _ in site.network.named_parameters()}
            update = shortened(update, trained, work.memory, site.exchange)
        keep(site, work, instruction, update)
        clock.lap("report")
        answer = Answer(
            site=site.name,
            round=instruction.round.number,
            update=update,
            n_examples=site.count(site.examples),
            scalars=scalars,
            steps=work.steps,
            tensors={key: plainly(value) for key, value in flat(work.send_tensors).items()},
            **work.measured,
            metrics=finite(metrics | {"train_loss": train_loss}),
            seconds=clock.laps,
        )
        return site.aggregation.trained(disclosed(answer, "train", site.budget), instruction)


def measured(probes: Sequence[Probe], work: LocalWork, when: str) -> dict[str, float]:
    """The numbers of the probes that measure then, see ``Probe.when``."""
    numbers: dict[str, float] = {}
    for probe in probes:
        if probe.when == when:
            numbers |= probe.measure(work)
    return numbers


def keep(site: Site, work: LocalWork, instruction: Instruction, update: StateDict) -> None:
    """Keep the round's memory and the personal model, unless anything of the round is not finite.

    A later round then starts from what was kept before: one bad model does not stay with the site.
    """
    if entries := site.trainer.personal_entries(instruction.model):
        work.personal = {key: value for key, value in site.network.state_dict().items() if key in entries}
    if site.trainer.keeps_personal_model and work.personal.keys() != instruction.model.keys():
        raise RuntimeError(f"trainer {type(site.trainer).__name__}: expected a whole model in work.personal")
    own = site.trainer.personal_model(instruction.model, work.memory)
    for probe in site.probes:
        probe.remember(work)
    if any(probe.when == "anchored" for probe in site.probes):
        work.memory[TRAINED] = site.network.state_dict()
    if not is_finite([work.memory, update]):
        return
    if own is not None:
        site.memory.save_personal(own)
    if work.memory:
        site.memory.keep(work.round.number, work.memory)


def difference(network: nn.Module, received: StateDict, personal: frozenset[str] = frozenset()) -> StateDict:
    """D_k = w_k - w^t on the CPU for every shared floating-point entry; integer buffers and ``personal`` ones stay."""
    found = {k: v for k, v in network.state_dict().items() if v.is_floating_point() and k not in personal}
    return {key: plainly(value).sub_(received[key].cpu()) for key, value in found.items()}


REST = "not sent yet"
"""Key of a site's memory: what rounding has left of its updates."""


def shortened(
    update: StateDict, names: Collection[str], memory: MutableMapping[str, Any], dtype: torch.dtype
) -> StateDict:
    """``update`` with the entries ``names`` in 16 bits; what rounding leaves is added to the next one.

    Error feedback: Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019, arXiv:1901.09847, algorithm 1.
    Statistics of normalisation keep their 32 bits.
    """
    rest, most = memory.get(REST, {}), torch.finfo(dtype).max
    whole = {name: value + rest[name] if name in rest else value for name, value in update.items() if name in names}
    sent = {name: value.clamp(-most, most).to(dtype) for name, value in whole.items()}
    memory[REST] = {name: value - sent[name].float() for name, value in whole.items()}
    return update | sent


class Clock:
    """Seconds by phase: ``lap`` notes those since the last one."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        """The phase ``name`` has ended."""
        now = time.monotonic()
        self.laps[name], self._last = now - self._last, now
