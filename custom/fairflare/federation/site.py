# SPDX-License-Identifier: Apache-2.0
"""A site: receives a model, measures, trains, measures again and answers. The same object serves every transport."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from fairflare.contracts import Batch, LocalWork, SiteData, SplitName, StateDict, Training
from fairflare.execution import Execution, memory_findings
from fairflare.federation.memory import SiteMemory
from fairflare.federation.messages import Answer, Instruction
from fairflare.federation.site_sums import SiteSums
from fairflare.findings import Finding, packed
from fairflare.objectives import Objective, local_objective
from fairflare.privacy.counts import released
from fairflare.privacy.egress import Egress, EgressRefused
from fairflare.probes.base import Probe
from fairflare.seeds import derive, seed_everything
from fairflare.trainers.base import Trainer
from fairflare.versions import all_versions

TRAINED = "trained model"


class Scoring(Protocol):
    """How a task scores a model's outputs; a task's own methods."""

    headline: str

    def condense(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """What is kept of one batch of outputs (N, ...) and targets until all batches are seen; first axis N."""

    def evaluate(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """The metrics that are defined on condensed examples."""

    def hits(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """float64 (N,) in [0, 1]: how right each condensed example is."""


@dataclass
class Site:
    """One hospital's side of a federation.

    Attributes:
        name: the site's name.
        data: its data; None: what ``look`` finds when they are first needed.
        network: overwritten by every received model; sites in one process may share it.
        trainer: how it trains.
        probes: what it measures, each at its own time (``Probe.when``).
        training: local training settings.
        scoring: how the task scores outputs.
        seed: the run's seed.
        execution: where and how it computes.
        stop_if_aborted: called once per batch.
        objective: see ``LocalWork``.
        groups: names of the groups that ``data`` tells apart.
        min_count: the fewest examples of a group whose numbers leave the site; None: none leave.
        memory: what it keeps from round to round.
        egress: what may leave the site; None checks nothing.
        look: looks for what is wrong with the site's data; returns the findings and, without errors, the data.
        tell: called with every finding, whose text is for the people at the site.
        sums: its part in secure sums; None: it says its numbers.
    """

    name: str
    data: SiteData | None
    network: nn.Module
    trainer: Trainer
    probes: Sequence[Probe]
    training: Training
    scoring: Scoring
    seed: int
    execution: Execution = field(default_factory=Execution)
    stop_if_aborted: Callable[[], None] = field(default=lambda: None)
    objective: Callable[[Tensor, float], Objective] = local_objective
    groups: tuple[str, ...] = ()
    min_count: int | None = 10
    memory: SiteMemory = field(default_factory=SiteMemory)
    egress: Egress | None = None
    look: Callable[[], tuple[list[Finding], SiteData | None]] = lambda: ([], None)
    tell: Callable[[Finding], None] = lambda finding: None
    sums: SiteSums | None = None

    def __post_init__(self) -> None:
        self._findings: list[Finding] = []

    def handle(self, instruction: Instruction) -> Answer:
        """Do what the instruction says; errors go to the caller, which turns them into codes."""
        try:
            answer = self._answer(instruction)
            if self.egress is not None:
                parts = ("update", "n_examples", "scalars", "metrics", "seconds", "sealed")
                self.egress.check(instruction.task, **{part: getattr(answer, part) for part in parts})
        except EgressRefused as refusal:
            return Answer(site=self.name, round=instruction.round.number, error=f"egress: {refusal}")
        return answer

    def masked(self, answer: Answer) -> Answer:
        """The answer as it may leave: with secure sums an update goes masked."""
        if self.sums is None or answer.update is None:
            return answer
        return dataclasses.replace(answer, update=self.sums.mask(answer.update), update_kind="masked")

    def _answer(self, instruction: Instruction) -> Answer:
        work = {
            "preflight": self._preflight,
            "train": self._train,
            "compare": self._compare,
            "evaluate": self._evaluate,
        }
        if self.sums is not None:
            work |= {"sum": self._seal, "weigh": self._weigh}
        if instruction.task not in work:
            raise ValueError(f"unknown task {instruction.task!r}; known: {', '.join(work)}")
        seed = derive(self.seed, instruction.task, self.name, instruction.round.number)
        seed_everything(seed)
        if instruction.task != "preflight" and self._find_data():
            raise RuntimeError(f"site {self.name}: its data have errors; see preflight")
        self.execution.place(self.network)
        return work[instruction.task](instruction, seed)

    def _find_data(self) -> list[Finding]:
        """Look for the data unless they are there; what is wrong when they cannot be used."""
        if self.data is not None:
            return []
        found, self.data = self.look()
        for finding in found:
            self.tell(finding)
        self._findings = found
        return found if self.data is None else []

    def _preflight(self, instruction: Instruction, seed: int) -> Answer:
        """Look at the data, and on a GPU whether a batch fits."""
        self._find_data()
        found = list(self._findings)
        if self.data is not None and self.execution.on_gpu:
            for finding in self._memory_findings():
                found.append(finding)
                self.tell(finding)
        return Answer(
            site=self.name,
            round=instruction.round.number,
            n_examples=self.data.size("train") if self.data is not None else None,
            metrics={"findings": packed(found), "versions": all_versions()},
            sealed=self.sums.statement() if self.sums else {},
        )

    def _memory_findings(self) -> list[Finding]:
        batch = next(iter(self.data.training(self.training.batch_size, 0))).to(self.execution.device)
        objective = self.objective(self.data.class_counts.to(self.execution.device), self.training.logit_tau)
        return memory_findings(self.execution, self.network, batch, objective)

    def _train(self, instruction: Instruction, seed: int) -> Answer:
        self.network.load_state_dict(instruction.model)
        work = self._work(instruction, seed, self.memory.before(instruction.round.number))
        clock = _Clock()
        work.received_metrics = metrics = self._score("val")
        clock.lap("validate")
        scalars = self._measure(work, "received")
        clock.lap("probe")
        train_loss = self.trainer.train(work)
        clock.lap("train")
        scalars |= self._measure(work, "trained")
        self._keep(work)
        update = difference(self.network, instruction.model)
        clock.lap("report")
        answer = Answer(
            site=self.name,
            round=instruction.round.number,
            update=update,
            n_examples=self.data.size("train"),
            scalars=scalars,
            metrics=_finite(metrics | {"train_loss": train_loss}),
            seconds=clock.laps,
        )
        return self.sums.withhold(answer) if self.sums else answer

    def _seal(self, instruction: Instruction, seed: int) -> Answer:
        return self.sums.seal(instruction)

    def _weigh(self, instruction: Instruction, seed: int) -> Answer:
        return self.sums.weigh(instruction)

    def _compare(self, instruction: Instruction, seed: int) -> Answer:
        """The second exchange: measure the model that this round trained against the rule's anchor."""
        memory = self.memory.at(instruction.round.number)
        if TRAINED not in memory:
            raise RuntimeError(f"no model of round {instruction.round.number} was kept")
        self.network.load_state_dict(memory[TRAINED])
        clock = _Clock()
        scalars = self._measure(self._work(instruction, seed, memory), "anchored")
        clock.lap("compare")
        return Answer(site=self.name, round=instruction.round.number, scalars=scalars, seconds=clock.laps)

    def _evaluate(self, instruction: Instruction, seed: int) -> Answer:
        self.network.load_state_dict(instruction.model)
        splits: dict[str, dict] = {"groups": {}}
        for split in ("val", "test"):
            outputs, targets, groups = self._predict(split)
            splits[split] = _finite(self.scoring.evaluate(outputs, targets))
            splits["groups"][split] = self._group_values(outputs, targets, groups)
        splits["n"] = {split: float(self.data.size(split)) for split in ("val", "test")}
        return Answer(
            site=self.name, round=instruction.round.number, n_examples=self.data.size("train"), metrics=splits
        )

    def _work(self, instruction: Instruction, seed: int, memory: dict) -> LocalWork:
        return LocalWork(
            network=self.network,
            data=self.data,
            training=self.training,
            round=instruction.round,
            seed=seed,
            orders=instruction.orders,
            execution=self.execution,
            stop_if_aborted=self.stop_if_aborted,
            memory=memory,
            received=instruction.model,
            objective=self.objective,
            evaluate=self._score,
            headline=self.scoring.headline,
            groups=self.groups,
            min_count=self.min_count,
        )

    def _measure(self, work: LocalWork, when: str) -> dict[str, float]:
        numbers: dict[str, float] = {}
        for probe in self.probes:
            if probe.when == when:
                numbers |= probe.measure(work)
        return numbers

    def _keep(self, work: LocalWork) -> None:
        for probe in self.probes:
            probe.remember(work)
        if any(probe.when == "anchored" for probe in self.probes):
            work.memory[TRAINED] = self.network.state_dict()
        if work.memory:
            self.memory.keep(work.round.number, work.memory)

    def _score(self, split: SplitName) -> dict[str, float]:
        return self.scoring.evaluate(*self._predict(split)[:2]) if self.data.size(split) else {}

    def _predict(self, split: SplitName) -> tuple[Tensor, Tensor, Tensor]:
        batches = self.data.fixed(split, self.training.batch_size)
        return predict(self.network, batches, self.execution.device, self.scoring.condense, self.stop_if_aborted)

    def _group_values(self, outputs: Tensor, targets: Tensor, groups: Tensor) -> dict[str, dict[str, float]]:
        """Size and mean of hits of every group whose count may leave the site."""
        hits = self.scoring.hits(outputs, targets)
        rows = [groups == g for g in range(len(self.groups))]
        counts = [int(row.sum()) for row in rows]
        may_leave = released(counts, self.min_count, unknown=len(groups) - sum(counts))
        return {
            name: {"n": float(n), "value": float(hits[row].mean())}
            for name, row, n, free in zip(self.groups, rows, counts, may_leave)
            if free and n
        }


@torch.no_grad()
def predict(
    network: nn.Module,
    batches: Iterable[Batch],
    device: torch.device,
    condense: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = lambda outputs, targets: (outputs, targets),
    stop_if_aborted: Callable[[], None] = lambda: None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Condensed outputs and targets and the groups (N,) of all ``batches``, in evaluation mode, on the CPU."""
    network.eval()
    found = []
    for batch in batches:
        stop_if_aborted()
        outputs, targets = condense(network(batch.inputs.to(device)).float(), batch.targets.to(device))
        found.append((outputs.cpu(), targets.cpu(), batch.groups))
    if not found:
        return torch.empty(0), torch.empty(0), torch.empty(0)
    return tuple(torch.cat(parts) for parts in zip(*found))


def difference(network: nn.Module, received: StateDict) -> StateDict:
    """D_k = w_k - w^t on the CPU for every floating-point entry; integer buffers stay at the site."""
    return {
        key: value.detach().cpu() - received[key].cpu()
        for key, value in network.state_dict().items()
        if value.is_floating_point()
    }


def _finite(metrics: dict[str, float]) -> dict[str, float]:
    """A diverged model has no loss to tell of; its update is the gate's affair."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


class _Clock:
    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name], self._last = now - self._last, now
