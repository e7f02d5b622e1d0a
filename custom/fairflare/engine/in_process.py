# SPDX-License-Identifier: Apache-2.0
"""The transports on one machine: sites called in this process, or living in worker processes; no polling, no sockets.

A site in a worker process is there with its data and its memory for the run. It does what it does in ``InProcess``,
from the same seeds and with the same number of threads, so that the models are the same bits; only the order of the
answers is not the sites'.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fairflare.core.errors import RunFailed
from fairflare.core.findings import Finding
from fairflare.core.schema import Answer, Instruction
from fairflare.core.types import Batch, LocalWork, Objective, StateDict
from fairflare.core.validation import some
from fairflare.core.workers import Channel, StartMethod, Worker, pack, portable, raise_here, ready, stop
from fairflare.engine.site import Site
from fairflare.trainers.base import PLACE, Optimizer, PlainTrainer, Trainer

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


Together = Callable[["Sequence[LocalWork]", "Sequence[Trainer]"], "list[Trained]"]
LOCKSTEP: ContextVar[Callable[[str, Sequence[LocalWork], Trainer, Together], list[Trained]] | None] = ContextVar(
    "LOCKSTEP", default=None
)
"""Called where other runs train with these sites: with what is equal for trainers of one call, the sites' works, their
trainer, and what trains them."""


@dataclass(frozen=True)
class Replay(Trainer):
    """Puts in place what a batched call has trained; ``of`` trains where there is nothing.

    ``done``: the site's seed of a round -> what was trained, and the memory that it left.
    """

    of: Trainer = field(default_factory=PlainTrainer)
    done: dict[int, tuple[Trained, LocalWork]] = field(default_factory=dict)

    def train(self, work: LocalWork) -> float:
        if work.seed not in self.done:
            return self.of.train(work)
        trained, planned = self.done.pop(work.seed)
        work.network.load_state_dict(trained.model)
        work.steps = trained.steps
        if PLACE in planned.memory:
            work.memory[PLACE] = planned.memory[PLACE]
        return trained.loss

    def step(self, work: LocalWork, optimizer: Optimizer, objective: Objective, batch: Batch) -> Tensor:
        return self.of.step(work, optimizer, objective, batch)


AT_ONCE = 4096
"""Rows of a table that a perceptron's evaluation takes at once: of small batches each costs more than its rows."""


class Stacked(InProcess):
    """Sites whose network and trainer ``vmap_training.unstackable`` has nothing against.

    Each site still validates, measures, checks and answers by itself; only its steps are computed with the others'.
    """

    def __init__(self, sites: Mapping[str, Site]) -> None:
        from fairflare.trainers import vmap_training  # in runs that ask for it alone

        super().__init__(sites)
        self._together = vmap_training
        self._replays = {name: Replay(site.trainer) for name, site in self._sites.items()}
        for name, site in self._sites.items():
            if vmap_training.are_products(site.network, site.family, site.training):
                site.at_once = AT_ONCE
            site.trainer = self._replays[name]

    def exchange(self, instructions: Mapping[str, Instruction]) -> Iterator[Answer]:
        asked = sorted(name for name, instruction in instructions.items() if instruction.task == "train")
        if asked:
            works = [self._sites[name].planned(instructions[name]) for name in asked]
            for name, work, trained in zip(asked, works, self._train(works, self._replays[asked[0]].of)):
                self._replays[name].done.clear()
                self._replays[name].done[work.seed] = trained, work
        if solo := sorted(name for name, instruction in instructions.items() if instruction.task == "solo"):
            self._train_alone({name: instructions[name].model for name in solo})
        yield from super().exchange(instructions)

    def _train(self, works: Sequence[LocalWork], trainer: Trainer) -> list[Trained]:
        lockstep, train = LOCKSTEP.get(), self._together.train_together
        return lockstep(self._together.alike(trainer), works, trainer, train) if lockstep else train(works, trainer)

    def _train_alone(self, first: Mapping[str, StateDict]) -> None:
        """Every site's own model, from ``first``: when the sites answer, they find it trained."""
        halves = {name: self._sites[name].exchanges["benefit"] for name in first}
        for name, half in halves.items():
            half.alone.begin(first[name])
        sites = {name: half.by_itself(self._sites[name]) for name, half in halves.items()}
        while waiting := [name for name, half in halves.items() if half.alone.done < half.alone.rounds]:
            works = [sites[name].planned(halves[name].alone.instruction) for name in waiting]
            for name, work, trained in zip(waiting, works, self._train(works, sites[waiting[0]].trainer)):
                if work.memory:
                    sites[name].memory.keep(work.round.number, work.memory)
                halves[name].alone.take(trained.model)


Announce = Callable[[str], None]
Tell = Callable[[str, Finding], None]
Builder = Callable[[Sequence[str], Announce, Tell], Mapping[str, Site]]
"""Makes the sites of these names; calls back with each site before its data are read, and with what is found there."""


class InWorkers:
    """Sites in worker processes, which are asked side by side; as a context it ends them.

    Args:
        count: how many processes, at most one per site.
        build: makes sites, in the process where they live; "spawn" pickles it.
    """

    def __init__(
        self,
        names: Sequence[str],
        count: int,
        build: Builder,
        method: StartMethod,
        threads: int = 1,
        announce: Announce = lambda name: None,
        tell: Tell = lambda name, finding: None,
    ) -> None:
        self._names, self._number = sorted(names), 0
        self._announce, self._tell = announce, tell
        self._workers: list[_SiteWorker] = []
        try:
            for share in shares(self._names, count):
                before = [worker.process for worker in self._workers]
                process = Worker(serve, share, build, threads, method=method, siblings=before)
                self._workers.append(_SiteWorker(process, share))
        except BaseException:
            self.close()
            raise
        self._worker_of = {name: worker for worker in self._workers for name in worker.names}

    def __enter__(self) -> InWorkers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes; a site that is writing a file leaves the old one or the new one."""
        stop(worker.process for worker in self._workers)

    @property
    def processes(self) -> int:
        """How many there are."""
        return len(self._workers)

    def sites(self) -> list[str]:
        return list(self._names)

    def exchange(self, instructions: Mapping[str, Instruction]) -> Iterator[Answer]:
        """One answer per instruction, as they come; a site's exception is raised here, as ``InProcess`` does.

        Raises:
            RunFailed: a worker has ended; its sites are named.
        """
        self._number += 1
        packed: dict[int, bytes] = {}
        for worker in self._workers:
            worker.waiting.clear()
        for name in sorted(instructions):
            self._worker_of[name].waiting.append((name, instructions[name]))
        for worker in self._workers:
            worker.feed(self._number, packed)
        missing = len(instructions)
        while missing:
            for process in ready([worker.process for worker in self._workers if worker.busy]):
                worker = next(worker for worker in self._workers if worker.process is process)
                answer = self._heard(worker)
                worker.feed(self._number, packed)  # before the server looks at the answer
                if answer is not None:
                    missing -= 1
                    yield answer

    def _heard(self, worker: _SiteWorker) -> Answer | None:
        """What a worker says next: an answer of this exchange, or None for anything else."""
        kind, *content = worker.receive()
        if kind == "announce":
            self._announce(*content)
        elif kind == "tell":
            self._tell(*content)
        elif kind == "failed":
            raise_here(*content)
        else:
            worker.busy = False
            number, answer = content
            return answer if number == self._number else None  # of an exchange that was broken off
        return None


class _SiteWorker:
    """The server's side of one worker: what it has yet to be sent (``waiting``), whether it owes an answer (``busy``).

    It is sent nothing while it owes one: both sides would wait for the other to read.
    """

    def __init__(self, process: Worker, names: Sequence[str]) -> None:
        self.process, self.names = process, names
        self.waiting: deque[tuple[str, Instruction]] = deque()
        self.busy = False
        self._model = (0, 0)

    def feed(self, number: int, packed: dict[int, bytes]) -> None:
        """Send what comes next, unless it is busy; ``packed``: the exchange's models by identity."""
        if self.waiting and not self.busy:
            name, instruction = self.waiting.popleft()
            with contextlib.suppress(ConnectionError):  # it has ended: what it said last is still there to be received
                self._send(number, name, instruction, packed)
            self.busy = True

    def _send(self, number: int, name: str, instruction: Instruction, packed: dict[int, bytes]) -> None:
        model = instruction.model
        if model and self._model != (number, id(model)):
            if id(model) not in packed:
                packed[id(model)] = pack(("model", model))
            self.process.channel.send_packed(packed[id(model)])
            self._model = (number, id(model))
        rest = dataclasses.replace(instruction, model={})
        self.process.channel.send(("ask", number, name, rest, bool(model)))

    def receive(self) -> Any:
        """The worker's next message; RunFailed when it has ended."""
        try:
            return self.process.channel.receive()
        except EOFError:
            whose, how = some(self.names), self.process.how_it_ended()
            raise RunFailed(f"the worker process of {whose} ended early ({how}); the run can be resumed") from None


def serve(channel: Channel, names: Sequence[str], build: Builder, threads: int) -> None:
    """What a worker does: makes its sites, then answers for them until the channel closes."""
    torch.set_num_threads(threads)
    model: StateDict = {}

    def announce(name: str) -> None:
        channel.send(("announce", name))

    def tell(name: str, finding: Finding) -> None:
        channel.send(("tell", name, finding))

    try:
        sites = build(names, announce, tell)
        while True:
            kind, *content = channel.receive()
            if kind == "model":
                (model,) = content
                continue
            number, name, instruction, has_model = content
            asked = dataclasses.replace(instruction, model=model if has_model else {})
            channel.send(("answer", number, sites[name].handle(asked)))
    except (EOFError, ConnectionError):
        raise
    except Exception as error:  # the server's process raises it, as it would a site's of its own
        channel.send(("failed", *portable(error)))


def shares(names: Sequence[str], count: int) -> list[list[str]]:
    """The sites of each of ``count`` workers, in name order.

    Dealt to and fro (0, 1, 1, 0, 0, ...): where sites become smaller from one to the next the shares stay alike.
    """
    count = max(1, min(count, len(names)))
    rows = [range(count), range(count - 1, -1, -1)]
    dealt = [rows[k // count % 2][k % count] for k in range(len(names))]
    return [[name for name, place in zip(names, dealt, strict=True) if place == worker] for worker in range(count)]
