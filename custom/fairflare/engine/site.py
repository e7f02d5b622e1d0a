# SPDX-License-Identifier: Apache-2.0
"""A site: receives a model, measures, trains, measures again and answers. The same object serves every transport."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fairflare.core.errors import EgressRefused
from fairflare.core.execution import Execution, memory_findings, plainly
from fairflare.core.findings import Finding, merged, packed
from fairflare.core.manifest import all_versions
from fairflare.core.metric import finite
from fairflare.core.schema import IN_USE, Answer, Instruction, Slot, flat, nested
from fairflare.core.seeds import derive, seed_everything
from fairflare.core.types import (
    TRIVIAL,
    Batch,
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
from fairflare.engine.after.base import Cases, plain
from fairflare.engine.aggregation import PlainAtSite, SitePart
from fairflare.engine.alone import Alone
from fairflare.engine.benefit import ROUNDS, Pair, against_trees, measured
from fairflare.engine.checks import check_received
from fairflare.engine.clinical import ClinicalAtSite
from fairflare.engine.evaluation import Condense, Predictions, answered, joined, over_patients, predict, results
from fairflare.engine.hashes import model_hash
from fairflare.engine.memory import Asked, AskedAgain, SiteMemory, check_last, is_finite
from fairflare.privacy.disclosure import Budget, disclosed
from fairflare.privacy.egress import Egress
from fairflare.privacy.referee import Referee
from fairflare.probes.base import Probe
from fairflare.trainers.base import Trainer

if TYPE_CHECKING:
    from fairflare.engine.after.site import AfterAtSite
    from fairflare.privacy.differential_privacy import RecordBudget
    from fairflare.tasks.base import Task

TRAINED = "trained model"
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
        after: what it does after the last round; None: nothing.
        asked: what it was asked for then, which is answered once.
        keeps_best: whether the run chooses the best model of its rounds: the site's personal one then stays too.
        describe: what it keeps of its training inputs, for new ones, with the final model.
        alone: the model that it trains by itself; None: the run does not ask for the benefit of joining.
        clinical: says how well calibrated the model is that it uses; None: it does not.
        trees: its data -> answers of gradient boosting on its rows, for the benefit; None where there are none.
        referee: looks at how many patients sums rest on; None: nothing leaves.
        trivial: its data -> split -> metrics of an answer that needs no network, to read the final model's beside.
        ledger: what a private trainer has spent.
        budget: whom the run's privacy budget protects; then what leaves is what ``privacy.disclosure`` lists.
        records: makes the noised numbers of a budget of records; None in any other run.
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
    after: AfterAtSite | None = None
    asked: Asked = field(default_factory=Asked)
    keeps_best: bool = False
    describe: Callable[[SiteData], Mapping[str, Any]] = lambda data: {}
    alone: Alone | None = None
    clinical: ClinicalAtSite | None = None
    trees: Callable[[SiteData], Callable[[Tensor], Tensor] | None] = lambda data: None
    trivial: Callable[[SiteData], Mapping[str, Mapping[str, float]]] = lambda data: {}
    family: str = "bernoulli"
    ledger: Ledger | None = None
    referee: Referee | None = None
    budget: Budget = ""
    records: RecordBudget | None = None

    def __post_init__(self) -> None:
        self._findings: list[Finding] = []
        self._beside: dict[str, Any] | None = None
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
        return self._work(instruction, self._kept(instruction))

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
        work: dict[str, Callable[[Instruction], Answer]] = {
            "preflight": self._preflight,
            "train": self._train,
            "compare": self._compare,
            "evaluate": self._evaluate,
            **({"calibrate": self._calibrate, "adjust": self._adjust} if self.after is not None else {}),
            **({"solo": self._solo, "benefit": self._benefit} if self.alone is not None else {}),
            **self.aggregation.tasks,
        }
        if instruction.task not in work:
            raise ValueError(f"unknown task {instruction.task!r}; known: {', '.join(work)}")
        check_received(instruction, self.receives)
        seed = self._seed_of(instruction)
        seed_everything(seed)
        if self.script is not None:
            return self.script(instruction)
        if instruction.task != "preflight" and self._find_data():
            raise RuntimeError(f"site {self.name}: its data have errors; see preflight")
        self.execution.place(self.network)
        if instruction.task == "train" and self.execution.is_undecided:
            batch, objective = self._trial()
            self.execution.compare_layouts(
                self.network, batch.inputs, lambda outputs, rows: objective(outputs, batch.targets[rows])
            )
            seed_everything(seed)
        return work[instruction.task](instruction)

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
            for finding in memory_findings(self.execution, self.network, *self._trial()):
                found.append(finding)
                self.tell(finding)
        n = self._count(self.data) if self.data is not None else None
        metrics = {"findings": packed(found, self.min_count), "versions": all_versions()}
        sealed = self.aggregation.statement()
        answer = Answer(self.name, instruction.round.number, n_examples=n, metrics=metrics, sealed=sealed)
        if self.budget and self.data is None:
            return Answer(self.name, instruction.round.number, error=UNUSABLE)
        return disclosed(answer, "preflight", self.budget)

    @property
    def _examples(self) -> SiteData:
        """The data, which ``_answer`` has looked for, as the trainer's network takes them."""
        if self.data is None:
            raise RuntimeError(f"site {self.name}: its data are not there")
        if self._prepared is None or self._prepared[0] is not self.data:
            self._prepared = self.data, self.trainer.site_data(self.data)
        return self._prepared[1]

    def _count(self, data: SiteData) -> int:
        """Training examples, with noise under a budget of records; of a site that only evaluates, cases."""
        n = data.size("train") or data.size("test")
        return n if self.records is None else self.records.count(n)

    def _trial(self) -> tuple[Batch, Objective]:
        batch = next(iter(self._examples.training(self.training.batch_size, 0))).to(self.execution.device)
        return batch, self.objective(self._examples.class_counts.to(self.execution.device), self.training.logit_tau)

    def _train(self, instruction: Instruction) -> Answer:
        work = self._work(instruction, self._kept(instruction))
        if reason := self.trainer.halted(work):
            raise EgressRefused(reason)
        self.network.load_state_dict(work.received)
        clock = _Clock()
        work.received_metrics = metrics = self._score("val")
        clock.lap("validate")
        scalars = self._measure(work, "received")
        clock.lap("probe")
        train_loss = self.trainer.train(work)
        if self.referee is not None:
            self.referee.check_support(work.support)
        clock.lap("train")
        scalars |= work.send_numbers | self._measure(work, "trained")
        update = difference(self.network, instruction.model, self.trainer.personal_entries(instruction.model))
        self._keep(work, instruction, update)
        clock.lap("report")
        answer = Answer(
            site=self.name,
            round=instruction.round.number,
            update=update,
            n_examples=self._count(self._examples),
            scalars=scalars,
            steps=work.steps,
            tensors={key: plainly(value) for key, value in flat(work.send_tensors).items()},
            **work.measured,
            metrics=finite(metrics | {"train_loss": train_loss}),
            seconds=clock.laps,
        )
        return self.aggregation.trained(disclosed(answer, "train", self.budget), instruction)

    def _compare(self, instruction: Instruction) -> Answer:
        """The second exchange: measure the model that this round trained against the rule's anchor."""
        memory = self.memory.at(instruction.round.number)
        if TRAINED not in memory:
            raise RuntimeError(f"no model of round {instruction.round.number} was kept")
        self.network.load_state_dict(memory[TRAINED])
        clock = _Clock()
        scalars = self._measure(self._work(instruction, memory), "anchored")
        clock.lap("compare")
        return Answer(site=self.name, round=instruction.round.number, scalars=scalars, seconds=clock.laps)

    def _evaluate(self, instruction: Instruction) -> Answer:
        """The results of the shared model, and at the end of the run those of the site's personal one beside them."""
        shared, cases = self._results(instruction.model, instruction)
        own, personal = self._personal(instruction), dict[str, Any]()
        if own is not None:
            personal, cases = self._results(own, instruction)
            # Not before both models have proved to be some.
            self.memory.save_personal(own, best=instruction.round.number < instruction.round.total)
        if self.data is not None and self._is_final(instruction.round):
            self.memory.save_inputs(self.describe(self.data))
        used, clinical = instruction.model if own is None else own, dict[str, float]()
        if self.clinical is not None and cases is not None and self.asked.is_of(model_hash(used)):
            clinical = self.clinical.of_model(cases)
        n, metrics = self._count(self._examples), shared | self._trivial(instruction)
        found: dict[str, Any] = {"n_examples": n, "metrics": metrics, "personal": personal, "clinical": clinical}
        if self.budget:
            self.memory.save_results({name: one for name, one in found.items() if name != "n_examples"})
            found["metrics"] = self._noised(instruction)
        return disclosed(Answer(self.name, instruction.round.number, **found), "evaluate", self.budget)

    def _noised(self, instruction: Instruction) -> dict[str, Any]:
        """What the budget releases of the results of the model that the site uses after the last round."""
        if self.records is None or not self._is_final(instruction.round) or not instruction.orders.get(IN_USE):
            return {}
        self.network.load_state_dict(instruction.model)
        outputs, targets, _ = self._predict("test")
        return self.records.results(model_hash(instruction.model), self.scoring, outputs, targets)

    def _calibrate(self, instruction: Instruction) -> Answer:
        """Sums over calibration cases, in the clear or sealed; raises AskedAgain."""
        assert self.after is not None  # else the task is unknown
        question = self._question(instruction)
        self.asked.check(*question)
        leaves = self.aggregation.summed(self.after.sums(self._cases), instruction)
        self.asked.keep(*question)
        return Answer(site=self.name, round=instruction.round.number, **leaves)

    def _adjust(self, instruction: Instruction) -> Answer:
        """Fit with the sums of all sites, and say what came of it; raises AskedAgain."""
        assert self.after is not None
        model, sites = self._question(instruction)
        total = self.aggregation.total(instruction, self.after.step.terms(self.after.shape))
        self.asked.check(model, sites, total)
        self.asked.keep(model, sites, total)
        found = self.after.adjust(total, self._cases, model)
        clinical = dict[str, float]()
        if self.clinical is not None:
            changes = self.after.changes(self._cases("test"))
            clinical = self.clinical.after(Cases(*self._predict("test", plain)), *changes)
        return Answer(site=self.name, round=instruction.round.number, adjusted=found, clinical=clinical)

    def _solo(self, instruction: Instruction) -> Answer:
        """Train alone from the initial model as far as the time allows; raises AskedAgain."""
        assert self.alone is not None  # else the task is unknown
        check_last(instruction.round, self.training.rounds)
        self.asked.once("solo", model_hash(instruction.model))
        rounds = self.alone.advance(instruction.model, self._by_itself(self.alone).handle)
        return Answer(site=self.name, round=instruction.round.number, benefit={ROUNDS: float(rounds)})

    def _by_itself(self, alone: Alone) -> Site:
        """This site as it would be in a run of the method ``solo``: nothing that it answers leaves."""
        return dataclasses.replace(
            self,
            trainer=alone.trainer,
            memory=alone.memory,
            probes=(),
            aggregation=PlainAtSite(),
            receives={},
            egress=None,
            after=None,
            clinical=None,
            alone=None,
            keeps_best=False,
            referee=None,
        )

    def _benefit(self, instruction: Instruction) -> Answer:
        """Both models on the site's own test cases; raises AskedAgain."""
        assert self.alone is not None
        model, _ = self._question(instruction)
        if self.alone.done < self.training.rounds:
            raise AskedAgain("before the site has trained alone")
        self.asked.once("benefit", model)
        federated, by_itself = self._predict("test"), self._by_itself(self.alone)
        self.network.load_state_dict(self.alone.model)
        pair = Pair(federated, by_itself._predict("test"))
        found = measured(pair, self.scoring, self.groups, self.min_count, self.seed, self.name)
        if self.data is not None and (answers := self.trees(self.data)) is not None:
            grown = answered(answers, self.data.fixed("test", self.training.batch_size), self.scoring.condense)
            found |= against_trees(federated, grown, self.scoring, self.min_count, self.seed, self.name)
        return Answer(site=self.name, round=instruction.round.number, benefit=found)

    def _question(self, instruction: Instruction) -> tuple[str, tuple[str, ...]]:
        """Hash of the model that this site uses, which is loaded, and the sites of a sealed sum."""
        check_last(instruction.round, self.training.rounds)
        own = self._personal(instruction)
        model = instruction.model if own is None else own
        self.network.load_state_dict(model)
        return model_hash(model), tuple(instruction.sealed.get("statements", ()))

    def _cases(self, split: SplitName) -> Cases:
        assert self.after is not None
        return Cases(*self._predict(split, self.after.step.condense))

    def _trivial(self, instruction: Instruction) -> dict[str, Any]:
        """What needs no network, beside the results of the run's final model; computed once."""
        if not self._is_final(instruction.round) or self.data is None:
            return {}
        if self._beside is None:
            self._beside = dict(self.trivial(self.data))
        return {TRIVIAL: self._beside} if self._beside else {}

    def _personal(self, instruction: Instruction) -> StateDict | None:
        """The personal model that goes with the run's final model, or the best one; None for any other.

        Any other would spoil their files.
        """
        keeps = self.trainer.keeps_personal_model or self.trainer.personal_entries(instruction.model)
        if not self._is_shown(instruction.round) or not keeps:
            return None
        return self.trainer.personal_model(instruction.model, self.memory.before(instruction.round.number + 1))

    def _is_final(self, round: Round) -> bool:
        return round == Round(self.training.rounds, self.training.rounds)

    def _is_shown(self, round: Round) -> bool:
        """Whether the run's results are of the model of ``round``: the final one, or the best one."""
        return self._is_final(round) or (self.keeps_best and round.total == self.training.rounds)

    def _results(self, model: StateDict, instruction: Instruction) -> tuple[dict[str, dict[str, Any]], Cases | None]:
        """What ``model`` does on the site's own splits, with intervals over its test cases, and these cases.

        Args:
            model: a state dict, which stays loaded. Of one that the site does not use no cases are kept.
        """
        self.network.load_state_dict(model)
        kept: list[Predictions] = []
        shows = self._is_shown(instruction.round)

        def both(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            """What is kept of a batch; beside it, of the same pass, what calibration is of."""
            kept.append((*plain(outputs, targets), targets))
            return self.scoring.condense(outputs, targets)

        keeps = shows and bool(instruction.orders.get(IN_USE)) and self.clinical is not None
        found: dict[SplitName, Predictions] = {"val": self._predict("val")}
        found["test"] = self._predict("test", both if keeps else None)
        shown = results(found, self._examples, self.scoring, self.groups, self.min_count)
        if shows:
            shown |= over_patients(found["test"], self.scoring, self.min_count, shown["test"])
        return shown, Cases(*joined(kept)[:2], members=found["test"][-1]) if keeps else None

    def _work(self, instruction: Instruction, memory: dict[str, Any]) -> LocalWork:
        return LocalWork(
            network=self.network,
            data=self._examples,
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
            evaluate=self._score,
            headline=self.scoring.headline,
            groups=self.groups,
            min_count=self.min_count,
            family=self.family,
            ledger=self.ledger,
        )

    def _measure(self, work: LocalWork, when: str) -> dict[str, float]:
        numbers: dict[str, float] = {}
        for probe in self.probes:
            if probe.when == when:
                numbers |= probe.measure(work)
        return numbers

    def _kept(self, instruction: Instruction) -> dict[str, Any]:
        """What the site starts a round from: what it kept in the last one that counted, where the server says which."""
        round = instruction.round.number
        if instruction.counted is not None and self.aggregation.goes_back:
            self.memory.go_back(instruction.counted, round)
        return self.memory.before(round)

    def _keep(self, work: LocalWork, instruction: Instruction, update: StateDict) -> None:
        """Keep the round's memory and the personal model, unless anything of the round is not finite.

        A later round then starts from what was kept before: one bad model does not stay with the site.
        """
        own = self._personal_model(work, instruction.model)
        for probe in self.probes:
            probe.remember(work)
        if any(probe.when == "anchored" for probe in self.probes):
            work.memory[TRAINED] = self.network.state_dict()
        if not is_finite([work.memory, update]):
            return
        if own is not None:
            self.memory.save_personal(own)
        if work.memory:
            self.memory.keep(work.round.number, work.memory, instruction.best)

    def _personal_model(self, work: LocalWork, received: StateDict) -> StateDict | None:
        """What is the site's own after training; raises RuntimeError where the trainer has left none that it keeps."""
        if entries := self.trainer.personal_entries(received):
            work.personal = {key: value for key, value in self.network.state_dict().items() if key in entries}
        if self.trainer.keeps_personal_model and work.personal.keys() != received.keys():
            raise RuntimeError(f"trainer {type(self.trainer).__name__}: expected a whole model in work.personal")
        return self.trainer.personal_model(received, work.memory)

    def _score(self, split: SplitName) -> dict[str, float]:
        return self.scoring.evaluate(*self._predict(split)[:2]) if self._examples.size(split) else {}

    def _predict(self, split: SplitName, condense: Condense | None = None) -> Predictions:
        batches, way = self._examples.fixed(split, self.training.batch_size), condense or self.scoring.condense
        return predict(self.network, batches, self.execution.device, way, self.stop_if_aborted)


def difference(network: nn.Module, received: StateDict, personal: frozenset[str] = frozenset()) -> StateDict:
    """D_k = w_k - w^t on the CPU for every shared floating-point entry; integer buffers and ``personal`` ones stay."""
    found = {k: v for k, v in network.state_dict().items() if v.is_floating_point() and k not in personal}
    return {key: plainly(value).sub_(received[key].cpu()) for key, value in found.items()}


class _Clock:
    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name], self._last = now - self._last, now
