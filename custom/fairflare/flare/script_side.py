# SPDX-License-Identifier: Apache-2.0
"""The script's side of FLARE's Client API, behind ``fairflare.client``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nvflare.client as flare
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from fairflare.core.errors import UserError
from fairflare.core.findings import packed
from fairflare.core.manifest import all_versions
from fairflare.core.metric import finite
from fairflare.core.schema import SPLITS, Answer, Instruction
from fairflare.core.types import Round, StateDict
from fairflare.engine.exchanges.train import difference
from fairflare.flare.wire import answer_to_model, instruction_from_model
from fairflare.functional.perturbation import rho_at

Evaluate = Callable[[nn.Module, str], Mapping[str, float]]
Compare = Callable[[nn.Module, StateDict], Mapping[str, float]]
SIZE = "n"
"""What ``evaluate`` calls the number of a split's examples."""


@dataclass(frozen=True)
class Here:
    """What a script may know of the run and of its site."""

    site: str
    folder: Path
    settings: Mapping[str, Any]
    training: Mapping[str, Any]
    groups: tuple[str, ...]
    min_count: int | None
    wanted: Sequence[str]
    threads: int = 1


here: Here | None = None
"""Set by the site's executor, which runs the script in its own process."""


def where() -> Here:
    """What the executor has said; raises UserError in a process that is no site's."""
    if here is None:
        hint = "`fairflare run METHOD --script FILE --data DIR` starts it; the loop stands under if __name__ == ..."
        raise UserError(f"fairflare.client: this is no site of a federation; {hint}")
    return here


@dataclass
class Work:
    """One round at this site.

    Attributes:
        network: the script's own, which holds the received model.
        round: t and T.
        received: w^t as the server sent it.
        orders: numbers from the rule for this site alone.
        n_examples: of the training split.
        metrics: what ``evaluate`` said of the received model on the validation split.
        steps: optimizer steps so far.
    """

    network: nn.Module
    round: Round
    received: StateDict
    orders: Mapping[str, float]
    n_examples: int
    metrics: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    reported: bool = False

    training = property(lambda self: where().training)
    """The task's local training settings: lr, epochs, batch_size ...; whether they are used is the script's."""
    settings = property(lambda self: where().settings)
    """The method's settings by full name."""
    groups = property(lambda self: where().groups)
    """Names of the run's groups."""
    min_count = property(lambda self: where().min_count)
    """The fewest examples of a group whose numbers may leave this site."""
    wanted = property(lambda self: where().wanted)
    """Numbers without which the rule leaves this site out of the round."""

    @property
    def rho(self) -> float:
        """The radius of the method's sharpness probe in this round; 0 where it has none."""
        rho_max, rho_tau = (self.settings.get(f"probe.sharpness.{name}", 0.0) for name in ("rho_max", "rho_tau"))
        return rho_at(self.round, rho_max, rho_tau)

    def report(
        self, numbers: Mapping[str, float] | None = None, *, train_loss: float | None = None, steps: int | None = None
    ) -> None:
        """Send the difference that training has made to ``network``, with the numbers that the rule weighs by.

        Args:
            numbers: name -> value; others than the method's parts declare do not leave the site.
            train_loss: the mean training loss, for the report.
            steps: optimizer steps; counted by itself for torch's optimizers.

        Raises:
            UserError: reported twice.
        """
        if self.reported:
            raise UserError("fairflare.client: report: expected once in a round")
        loss = {} if train_loss is None else {"train_loss": float(train_loss)}
        self.reported = True
        _send(
            Answer(
                site=where().site,
                round=self.round.number,
                update=difference(self.network, self.received),
                n_examples=self.n_examples,
                scalars={name: float(value) for name, value in (numbers or {}).items()},
                steps=self.steps if steps is None else steps,
                metrics=finite(self.metrics | loss),
                seconds={"train": time.monotonic() - self._begun},
            )
        )

    def __post_init__(self) -> None:
        self._begun = time.monotonic()


def rounds(
    network: nn.Module, n_examples: int, evaluate: Evaluate | None = None, compare: Compare | None = None
) -> Iterator[Work]:
    """Each round that this site trains in; everything else that it is asked for is answered on the way.

    Args:
        network: receives every model.
        n_examples: of the training split, the same in all rounds.
        evaluate: network and split ("val" or "test") -> metrics from 0 to 1 or called a loss, and the split's size as
            "n"; empty where there is no such split.
        compare: network, holding the model trained in the round, and the rule's anchor -> numbers, for methods with a
            second exchange: Fed-LWR.

    Raises:
        UserError: no site, or a round that the loop's body has not reported.
    """
    site = Site(network, n_examples, evaluate or (lambda network, split: {}), compare)
    torch.set_num_threads(where().threads)  # of this thread: the executor has done so for its own
    flare.init()
    while flare.is_running():
        work = site.next()
        if work is None:
            continue
        with _counted(work):
            yield work
        if not work.reported:
            raise UserError(f"fairflare.client: round {work.round.number} was not reported; call work.report()")
        site.trained = {key: value.detach().clone() for key, value in network.state_dict().items()}


@dataclass
class Site:
    """What a script answers by itself, round by round."""

    network: nn.Module
    n_examples: int
    evaluate: Evaluate
    compare: Compare | None
    trained: StateDict = field(default_factory=dict)

    def next(self) -> Work | None:
        """The round that comes next; None where something else was asked and has been answered."""
        instruction = instruction_from_model(flare.get_task_name(), flare.receive())
        others = {"preflight": self._preflight, "compare": self._compare, "evaluate": self._evaluate}
        if instruction.task != "train":
            if instruction.task not in others:
                raise UserError(f"fairflare.client: {instruction.task}: expected no such exchange with a script")
            _send(others[instruction.task](instruction))
            return None
        self.network.load_state_dict(instruction.model)
        work = Work(self.network, instruction.round, instruction.model, instruction.orders, self.n_examples)
        work.metrics, _ = self._scores("val")
        self.network.train()
        return work

    def _preflight(self, instruction: Instruction) -> Answer:
        statement = {"findings": packed([], where().min_count), "versions": all_versions()}
        return self._answer(instruction, n_examples=self.n_examples, metrics=statement)

    def _evaluate(self, instruction: Instruction) -> Answer:
        self.network.load_state_dict(instruction.model)
        found: dict[str, Any] = {"n": {}, "groups": {split: {} for split in SPLITS}}
        for split in SPLITS:
            found[split], size = self._scores(split)
            found["n"] |= {} if size is None else {split: float(size)}
        return self._answer(instruction, n_examples=self.n_examples, metrics=found)

    def _compare(self, instruction: Instruction) -> Answer:
        if self.compare is None:
            raise UserError("fairflare.client: the method has a second exchange: rounds(..., compare=...)")
        self.network.load_state_dict(self.trained)
        found = self.compare(self.network, instruction.model)
        return self._answer(instruction, scalars={name: float(value) for name, value in found.items()})

    def _scores(self, split: str) -> tuple[dict[str, float], float | None]:
        """Metrics of the network as it stands, and the split's size where it is said."""
        self.network.eval()
        found = {name: float(value) for name, value in self.evaluate(self.network, split).items()}
        size = found.pop(SIZE, None)
        return finite(found), size

    def _answer(self, instruction: Instruction, **more: Any) -> Answer:
        return Answer(site=where().site, round=instruction.round.number, **more)


def _send(answer: Answer) -> None:
    flare.send(answer_to_model(answer))


@contextmanager
def _counted(work: Work) -> Iterator[None]:
    """Within: steps of torch's optimizers on the work's network are counted."""
    own = {id(p) for p in work.network.parameters()}

    def saw(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
            work.steps += 1

    hook = register_optimizer_step_post_hook(saw)
    try:
        yield
    finally:
        hook.remove()
