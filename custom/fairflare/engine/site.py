# SPDX-License-Identifier: Apache-2.0
"""A site: receives instructions, has the exchange that they are of do the work, and lets out what may leave.

The same object serves every transport.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fairflare.core.errors import EgressRefused
from fairflare.core.execution import Execution, memory_findings
from fairflare.core.findings import Finding, merged, packed
from fairflare.core.manifest import all_versions
from fairflare.core.schema import Answer, Instruction, Slot, nested
from fairflare.core.seeds import derive, seed_everything
from fairflare.core.types import (
    Ledger,
    LocalWork,
    Objective,
    Round,
    SiteData,
    SplitName,
    StateDict,
    Training,
    local_objective,
)
from fairflare.engine.answers import PlainAtSite, SitePart
from fairflare.engine.checks import check_received
from fairflare.engine.evaluation import Condense, Predictions, predict
from fairflare.engine.exchanges.compare import CompareAtSite
from fairflare.engine.exchanges.evaluate import EvaluateAtSite
from fairflare.engine.exchanges.train import TrainAtSite
from fairflare.engine.hashes import model_hash
from fairflare.engine.memory import Asked, SiteMemory, check_last
from fairflare.functional.intervals import Owners
from fairflare.privacy.disclosure import Budget, disclosed
from fairflare.privacy.egress import Egress
from fairflare.privacy.referee import Referee
from fairflare.probes.base import Probe
from fairflare.trainers.base import Trainer

if TYPE_CHECKING:
    from fairflare.engine.exchanges.base import Work
    from fairflare.privacy.differential_privacy import RecordBudget
    from fairflare.tasks.base import Task

UNUSABLE = "data: this site's data cannot be used; its own preflight has the reasons"
IN_ROUNDS = ("train", "compare", "sum", "weigh", "reveal")
"""The exchanges of a round."""


@dataclass
class Site:
    """One hospital's side of a federation.

    Attributes:
        data: its data; None: what ``look`` finds when they are first needed.
        network: overwritten by every received model; sites in one process may share it.
        probes: what it measures, each at its own time (``Probe.when``).
        min_count: the fewest examples of a group whose numbers leave the site; None: none leave.
        egress: what may leave the site; None checks nothing.
        script: does the work in place of trainer and probes, on data of its own; what it answers is checked as any
            answer is.
        look: looks for what is wrong with the site's data; returns the findings and, without errors, the data.
        tell: called with every finding, whose text is for the people at the site.
        receives: "name/entry" -> slot of the tensors that its parts receive beside the model.
        exchanges: name -> the site's half of each exchange that the run has, those of every run among them.
        asked: what it was asked for after the last round, which is answered once.
        referee: looks at how many patients sums rest on; None: nothing leaves.
        ledger: what a private trainer has spent.
        budget: whom the run's privacy budget protects; then what leaves is what ``privacy.disclosure`` lists.
        records: makes the noised numbers of a budget of records; None in any other run.
        exchange: of the entries of an update that train.
        at_once: examples of a pass that evaluates, where they are more than a training batch; it rounds otherwise.
    """

    name: str
    data: SiteData | None
    network: nn.Module
    trainer: Trainer
    probes: Sequence[Probe]
    training: Training
    scoring: Task
    seed: int
    execution: Execution = field(default_factory=Execution)
    stop_if_aborted: Callable[[], None] = field(default=lambda: None)
    objective: Callable[[Tensor, float], Objective] = local_objective
    groups: tuple[str, ...] = ()
    min_count: int | None = 10
    memory: SiteMemory = field(default_factory=SiteMemory)
    egress: Egress | None = None
    script: Callable[[Instruction], Answer] | None = None
    look: Callable[[], tuple[list[Finding], SiteData | None]] = lambda: ([], None)
    tell: Callable[[Finding], None] = lambda finding: None
    aggregation: SitePart = field(default_factory=PlainAtSite)
    receives: Mapping[str, Slot] = field(default_factory=dict)
    exchanges: dict[str, Any] = field(default_factory=dict)
    asked: Asked = field(default_factory=Asked)
    family: str = "bernoulli"
    ledger: Ledger | None = None
    referee: Referee | None = None
    budget: Budget = ""
    records: RecordBudget | None = None
    exchange: torch.dtype = torch.float32
    at_once: int = 0

    def __post_init__(self) -> None:
        always = {"train": TrainAtSite(), "compare": CompareAtSite(), "evaluate": EvaluateAtSite()}
        self.exchanges = {**always, **self.exchanges}
        self._findings: list[Finding] = []
        self._prepared: tuple[SiteData, SiteData] | None = None

    def handle(self, instruction: Instruction) -> Answer:
        """Do what the instruction says; the answer may leave as it is: checked and, with secure sums, masked.

        Errors go to the caller, which turns them into codes.
        """
        return self.finish(instruction, self.prepare(instruction))

    def prepare(self, instruction: Instruction) -> Answer:
        """The checked answer, whose update is not yet masked: ``finish`` must see it before it leaves.

        For FLARE alone, where a site's own privacy filters look at the update between the two.
        """
        try:
            answer = self._answer(instruction)
            if self.egress is not None:
                self.egress.check(instruction.task, answer)
        except EgressRefused as refusal:
            return self._refused(instruction, refusal)
        return answer

    def planned(self, instruction: Instruction) -> LocalWork:
        """The work that an instruction to train will be, for a transport that computes the steps of several sites."""
        check_received(instruction, self.receives)
        if self._find_data():
            raise RuntimeError(f"site {self.name}: its data have errors; see preflight")
        return self.work(instruction, self.kept(instruction, instruction.round.number))

    def _seed_of(self, instruction: Instruction) -> int:
        return derive(self.seed, instruction.task, self.name, instruction.round.number)

    def finish(self, instruction: Instruction, answer: Answer) -> Answer:
        """What ``prepare`` returned as it may leave."""
        final = self.aggregation.final(answer)
        try:
            if self.egress is not None:
                self.egress.check_final(final)
        except EgressRefused as refusal:
            return self._refused(instruction, refusal)
        return final

    def _refused(self, instruction: Instruction, refusal: EgressRefused) -> Answer:
        """No answer but why; the round goes on without the site, which keeps nothing of it."""
        if instruction.task in IN_ROUNDS:
            self.memory.discard(instruction.round.number)
        return Answer(site=self.name, round=instruction.round.number, error=f"egress: {refusal}")

    def _answer(self, instruction: Instruction) -> Answer:
        work: dict[str, Work] = {"preflight": lambda site, asked: site._preflight(asked)}
        for one in (*self.exchanges.values(), self.aggregation):
            work |= one.tasks
        if instruction.task not in work:
            raise ValueError(f"unknown task {instruction.task!r}; known: {', '.join(work)}")
        check_received(instruction, self.receives)
        seed_everything(self._seed_of(instruction))
        if self.script is not None:
            return self.script(instruction)
        if instruction.task != "preflight" and self._find_data():
            raise RuntimeError(f"site {self.name}: its data have errors; see preflight")
        self.execution.place(self.network)
        return work[instruction.task](self, instruction)

    def _find_data(self) -> list[Finding]:
        """Look for the data unless they are there; what is wrong when they cannot be used."""
        if self.data is not None:
            return []
        found, self.data = self.look()
        for finding in merged(found):
            self.tell(finding)
        self._findings = found
        return found if self.data is None else []

    def _preflight(self, instruction: Instruction) -> Answer:
        """Look at the data, and on a GPU whether a batch fits."""
        self._find_data()
        found = list(self._findings)
        if self.data is not None and self.execution.on_gpu:
            batch = next(iter(self.examples.training(self.training.batch_size, 0))).to(self.execution.device)
            counts = self.examples.class_counts.to(self.execution.device)
            objective = self.objective(counts, self.training.logit_tau)
            for finding in memory_findings(self.execution, self.network, batch, objective):
                found.append(finding)
                self.tell(finding)
        n = None if self.data is None else self.count(self.data)
        metrics = {"findings": packed(found, self.min_count), "versions": all_versions()}
        sealed = self.aggregation.statement()
        answer = Answer(self.name, instruction.round.number, n_examples=n, metrics=metrics, sealed=sealed)
        if self.budget and self.data is None:
            return Answer(self.name, instruction.round.number, error=UNUSABLE)
        return disclosed(answer, "preflight", self.budget)

    @property
    def examples(self) -> SiteData:
        """The data, which ``_answer`` has looked for, as the trainer's network takes them."""
        if self.data is None:
            raise RuntimeError(f"site {self.name}: its data are not there")
        if self._prepared is None or self._prepared[0] is not self.data:
            self._prepared = self.data, self.trainer.site_data(self.data)
        return self._prepared[1]

    def count(self, data: SiteData) -> int:
        """Training examples, with noise under a budget of records; of a site that only evaluates, cases."""
        n = data.size("train") or data.size("test")
        return n if self.records is None else self.records.count(n)

    def question(self, instruction: Instruction) -> tuple[str, tuple[str, ...]]:
        """Hash of the model that this site uses, which is loaded, and the sites of a sealed sum."""
        check_last(instruction.round, self.training.rounds)
        own = self.personal(instruction)
        model = instruction.model if own is None else own
        self.network.load_state_dict(model)
        return model_hash(model), tuple(instruction.sealed.get("statements", ()))

    def personal(self, instruction: Instruction) -> StateDict | None:
        """The personal model that goes with the run's final model; None for any other, which would spoil its file."""
        keeps = self.trainer.keeps_personal_model or self.trainer.personal_entries(instruction.model)
        if not self.is_final(instruction.round) or not keeps:
            return None
        return self.trainer.personal_model(instruction.model, self.kept(instruction, instruction.round.number + 1))

    def is_final(self, round: Round) -> bool:
        return round == Round(self.training.rounds, self.training.rounds)

    def work(self, instruction: Instruction, memory: dict[str, Any]) -> LocalWork:
        return LocalWork(
            network=self.network,
            data=self.examples,
            training=self.training,
            round=instruction.round,
            seed=self._seed_of(instruction),
            orders=instruction.orders,
            tensors=nested(instruction.tensors),
            execution=self.execution,
            stop_if_aborted=self.stop_if_aborted,
            memory=memory,
            received=self.trainer.site_model(instruction.model, memory),
            objective=self.objective,
            evaluate=self.score,
            headline=self.scoring.headline,
            groups=self.groups,
            min_count=self.min_count,
            family=self.family,
            ledger=self.ledger,
        )

    def kept(self, instruction: Instruction, round: int) -> dict[str, Any]:
        """What the site starts ``round`` from: what it kept in the last that counted, where the server says which."""
        if instruction.counted is not None and self.aggregation.goes_back:
            self.memory.go_back(instruction.counted, round)
        return self.memory.before(round)

    def score(self, split: SplitName) -> dict[str, float]:
        return self.scoring.evaluate(*self.predict(split)[:2]) if self.examples.size(split) else {}

    def patients(self, split: SplitName) -> Owners | None:
        """(N,) whose each example is; None: each is another patient's, or nobody says so."""
        known: Callable[[SplitName], Owners | None] = getattr(self.examples, "patients", lambda split: None)
        return known(split)

    def predict(self, split: SplitName, condense: Condense | None = None) -> Predictions:
        size = max(self.training.batch_size, self.at_once)
        batches, way = self.examples.fixed(split, size), condense or self.scoring.condense
        return predict(self.network, batches, self.execution.device, way, self.stop_if_aborted)
