# SPDX-License-Identifier: Apache-2.0
"""The round loop: one for every method and every transport."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from fairflare.aggregators.base import Outcome, Rule
from fairflare.core.errors import NO_SPACE, RunFailed, UserError, is_full
from fairflare.core.manifest import all_versions
from fairflare.core.schema import IN_USE, Answer, Instruction, Transport, flat
from fairflare.core.types import CLINICAL, PERSONAL, Info, Reply, Round, StateDict
from fairflare.engine import files, history
from fairflare.engine.audit import AuditLog
from fairflare.engine.best import Best, Choice, check_files
from fairflare.engine.checkpoint import Checkpoint, save_checkpoint
from fairflare.engine.checks import Rejection, silent
from fairflare.engine.combination import Aggregation, Plain, Trained
from fairflare.engine.countersigned import Countersigned
from fairflare.engine.exchanges.base import AtServer, Ended
from fairflare.engine.files import save_tensors
from fairflare.engine.gate import Gate, Verdict, by_site, inspect_evaluation, round_entry, steps_of, too_few, usable
from fairflare.engine.hashes import model_hash
from fairflare.engine.norms import remembered
from fairflare.engine.preflight import Statement, inspect_preflight, refusal, too_small, turned_away
from fairflare.engine.straggler_policy import EarlyEnd, Participation
from fairflare.engine.traffic import Traffic
from fairflare.participation import All, Selector
from fairflare.privacy.identity import Identity
from fairflare.server_optimizers.base import Add, ServerOptimizer
from fairflare.trainers.base import PlainTrainer, ServerState, Trainer

T = TypeVar("T")
LAST = 5
"""Rounds that a mean in the FedISM+ tables is over."""
Score = Callable[[StateDict, bool], dict[str, Any]]
"""(A model, whether it is the final one) -> test set -> metrics."""
NOT_CONNECTED = "is named and was not connected at the start: the next segment takes it up"


class Observer(Protocol):
    """Someone who watches a federation: a progress bar, TensorBoard."""

    def saw(self, entry: Mapping[str, Any]) -> None:
        """Called with every audit entry after it was written."""


@dataclass
class Federation:
    """Runs rounds until the last one and leaves checkpoint, audit log and, at the end, the model in ``folder``.

    Attributes:
        rounds: T; 0 trains nothing: the initial model is evaluated.
        horizon: rounds over which what grows with t / T does, where that is more than T.
        configure: writes what the header says of the configuration, where a segment begins.
        min_sites: the run stops, keeping its last good model, when fewer sites are accepted in a round.
        named: the sites that the run names to train, whether they are there or not; empty: those that are.
        require: how many of them must be there before the first round; 0: as many as a round needs.
        folder: where everything is written; a checkpoint found there is continued from.
        header: what the audit log's first entry says about the run (method, task, seed, versions ...).
        lr: local learning rate of the sites, which rules may use; 0: not known.
        leave_out: a site that trains nothing and is only evaluated at the end; empty: none.
        score: metrics on the task's shared test sets, asked for the model of each of the last rounds; None: there are
            none.
        scored_rounds: how many the last rounds are.
        accept: codes of preflight's errors that count as warnings in this run.
        selector: says which of the training sites that are there take part in a round; min_sites is judged among them.
        early_end: when the transport ends a round's training exchange; who is missing then is late and not absent.
        trainer: the sites', for its server half.
        exchanges: what is asked after the last round, in this order.
        signer: signs the log's heads and checks the sites' signatures; None: there are no certificates.
    """

    rule: Rule
    gate: Gate
    transport: Transport
    rounds: int
    min_sites: int
    folder: Path
    header: Mapping[str, Any] = field(default_factory=dict)
    observers: Sequence[Observer] = ()
    groups: tuple[str, ...] = ()
    lr: float = 0.0
    leave_out: str = ""
    score: Score | None = None
    scored_rounds: int = LAST
    aggregation: Aggregation = field(default_factory=Plain)
    accept: Sequence[str] = ()
    selector: Selector = field(default_factory=All)
    server_optimizer: ServerOptimizer = field(default_factory=Add)
    seed: int = 0
    early_end: EarlyEnd = field(default_factory=EarlyEnd)
    trainer: Trainer = field(default_factory=PlainTrainer)
    choice: Choice = field(default_factory=Choice)
    exchanges: Sequence[AtServer] = ()
    signer: Identity | None = None
    named: Sequence[str] = ()
    require: int | Literal["all"] = 0
    configure: Callable[[], object] = dict
    horizon: int = 0

    def __post_init__(self) -> None:
        self.counts: Callable[[Answer], bool] = _any
        """Whether an answer to the exchange under way may be accepted, for a transport that ends it early."""

    def run(self, initial: StateDict) -> StateDict:
        """Train from ``initial`` (or the folder's checkpoint) and return the final model.

        Raises:
            RunFailed: too few accepted sites; the last good model has been saved and the audit log says why.
        """
        follower = history.Follower()
        self._audit = AuditLog(self.folder / files.AUDIT, follower.saw)
        self._signed = Countersigned(self.transport, self.signer, lambda: self._audit.head()) if self.signer else None
        self._traffic = Traffic(self._signed or self.transport)
        self._best = Best(self.folder, self.choice)
        standing = [self._open(initial, follower)]
        self._first = initial if any(one.needs_first for one in self.exchanges) else {}
        del initial, follower  # the next model takes its place in memory
        return self._run(standing.pop()).model

    def countersign(self) -> None:
        """Send the sites that are there the head of the log, reports included, and log who signed it; once, last.

        Without certificates nothing is sent.
        """
        if self._signed is None:
            return
        self._audit = AuditLog(self.folder / files.AUDIT)  # a report's line was written since
        present, _ = self._participation.of(self.transport.sites())
        told = dict.fromkeys(present, Instruction("preflight", self._end, {}))
        for _ in self._signed.exchange(told, last=True):
            pass
        self._audit.append(
            history.COUNTERSIGNED, **{"of": self._audit.head()["hash"], "signed": {}, **self._signed.taken()}
        )

    @property
    def _end(self) -> Round:
        """What sites are told after the last round; of none, one."""
        return Round(max(self.rounds, 1), max(self.rounds, 1))

    def _run(self, standing: Checkpoint) -> Checkpoint:
        try:
            self._log_scores(standing)
            for number in range(standing.round + 1, self.rounds + 1):
                standing = self._round(standing, Round(number, max(self.rounds, self.horizon)))
                self._log_scores(standing)
            chosen = self._choose(standing, self._evaluate(standing))
            for exchange in self.exchanges:
                self._ask(exchange, standing, chosen)
        except RunFailed as failure:
            self._close(standing, "failed", str(failure))
            raise
        except Exception as error:
            reason = NO_SPACE if is_full(error) else f"internal error: {type(error).__name__}"
            self._close(standing, "failed", reason)
            raise
        self._close(standing, history.COMPLETED, "")
        return standing

    def _open(self, initial: StateDict, follower: history.Follower) -> Checkpoint:
        """Where the federation stands; of a run that has begun nothing is changed before all of it fits together."""
        standing, self._owed = Checkpoint(round=0, model=initial), False
        run_history, entries = self._run_history(follower), self._audit.entries
        if run_history is not None:
            begun = Checkpoint(round=0, model=initial, declared=run_history.start["declared"])
            standing = history.read_standing(self.folder, run_history) or begun
            history.read_final(self.folder, run_history)
            check_files(self.folder, run_history, entries, self.choice, standing.round, ended=False)
            if standing is begun and model_hash(initial) != run_history.start["model_sha256"]:
                raise UserError(f"{files.AUDIT}: begins with another initial model than this configuration makes here")
            (self.folder / files.MODEL).unlink(missing_ok=True)
            self._best.go_on(entries, standing.round)
            rounds = (entry for entry in entries if entry["event"] == "round" and entry["round"] <= standing.round)
            self.aggregation.go_on(sorted(entry["accepted"]) for entry in rounds)
            self._owed = standing.round in run_history.unscored
            if lost := [number for number in run_history.unscored if number < standing.round]:
                raise UserError(f"{files.AUDIT}: the scores of round {lost[0]} are owed, whose model nobody has")
        self._sha256, self._known = model_hash(standing.model), set(standing.declared)
        self._counted = run_history.counted_until(standing.round) if run_history is not None else {}
        return self._preflight(standing)

    def _run_history(self, follower: history.Follower) -> history.RunHistory | None:
        """What the log says so far, None before its first line.

        Raises:
            UserError: it is of another run, does not hold together, or lies beside files that it says nothing of.
        """
        self._event = "start"
        if not self._audit.first:
            for name in (files.CHECKPOINT, files.MODEL, files.BEST, files.BEST_MODELS):
                if files.is_there(self.folder / name):
                    raise UserError(f"{name}: lies there without the {files.AUDIT} that it belongs to")
            return None
        run_history = follower.history
        now, before, own = self.header, run_history.segment, ("config_sha256", "config_json_sha256")
        anew = before.get(own[0]) != now.get(own[0]) and run_history.start.get("lineage", "") == now.get("lineage")
        if anew and self.rounds < run_history.standing.round:
            done = run_history.standing.round
            raise UserError(f"rounds: expected at least {done}, which are finished, got {self.rounds}")
        self._event = "segment" if anew else "resume"
        if not anew and any(before.get(key) != now.get(key) for key in own):
            raise UserError(f"{self.folder}: holds a run of another configuration, which cannot be continued")
        return run_history

    def _preflight(self, standing: Checkpoint) -> Checkpoint:
        """Ask every site what is wrong with its data and how many examples it has: no later answer may claim more.

        Raises:
            RunFailed: a site has errors, or differs in this package's version, or too few are there. The audit log says
                which.
        """
        asked = {site: Instruction("preflight", Round(1, self._end.total), {}) for site in self.transport.sites()}
        answers = list(self._traffic.exchange(asked))
        statements, rejections, standing = self._read_statements(answers, standing)
        small = too_small(statements)
        rejections += [*silent(asked, answers), *small.values()]
        self._participation = Participation(set(statements) - set(small), small)
        found = {site: statement.to_json() for site, statement in statements.items()}
        away = [Rejection(site, "absent", NOT_CONNECTED) for site in self.named if site not in asked]
        shared = {"preflight": found, "rejected": by_site(rejections + away), **history.left_behind(standing)}
        since = {} if self._event == "start" else {"from_round": standing.round}
        if self._event == "resume":
            self._log("resume", **since, **shared)
        else:
            notes = [note.to_json() for note in self.rule.notes]
            about = {**self.header, "rounds": self.rounds, "sites": self._training_sites(), "declared_notes": notes}
            if self._event == "segment":
                self.configure()
            self._log(self._event, log_format=history.FORMAT, **about, **since, **shared)
        refused = refusal(statements, [one for one in rejections if one.site not in small], small)
        if reason := refused or self._too_few(statements):
            self._close(standing, "failed", reason)
            raise RunFailed(reason)
        return standing

    def _too_few(self, there: Collection[str]) -> str:
        """Why the run does not begin with these sites; empty where as many are there as it requires."""
        least = len(self.named) if self.require == "all" else self.require
        missing = [site for site in self.named if site not in there]
        if len(self.named) - len(missing) >= least:
            return ""
        return f"{len(self.named) - len(missing)} sites are there, {least} required; missing: {', '.join(missing)}"

    def _read_statements(
        self, answers: Sequence[Answer], standing: Checkpoint
    ) -> tuple[dict[str, Statement], list[Rejection], Checkpoint]:
        """What sites say in preflight, whom that rejects, and the checkpoint with their numbers of examples."""
        statements, rejections = inspect_preflight(answers, all_versions(), standing.declared, self.accept)
        rejections += self.aggregation.learn(answers)
        sizes = {site: s.n_examples for site, s in statements.items() if s.n_examples and site != self.leave_out}
        # The first word counts.
        return statements, rejections, dataclasses.replace(standing, declared={**sizes, **standing.declared})

    def _close(self, standing: Checkpoint, status: str, reason: str) -> None:
        """Say how the run ended and leave the last good model as a plain file.

        In this order a model without the log's last line is never what a kill leaves.
        """
        if standing.round and not files.LASTING.get():
            save_checkpoint(self.folder / files.CHECKPOINT, standing)
        scores = {} if status == history.COMPLETED else self._last_scores(standing)
        self._log("finish", status=status, reason=reason, model_sha256=self._sha256, test_sets=scores)
        save_tensors(self.folder / files.MODEL, standing.model)

    def _last_scores(self, standing: Checkpoint) -> dict[str, Any]:
        """The last good model's scores on all test sets, of a run that failed between two rounds."""
        if self.score is None or not 0 < standing.round < self.rounds:
            return {}
        try:
            return self.score(standing.model, True)
        except Exception:  # whatever it is, the line that says why the run failed must be written
            return {}

    def _round(self, standing: Checkpoint, round: Round) -> Checkpoint:
        started = time.monotonic()
        selected = self._select(round)
        present, _ = self._participation.of(self._training_sites())
        selection = {} if set(present) <= set(selected) else {"selected": list(selected)}
        answers, missing, standing = self._train(standing, round, selected)
        info, quorum = partial(self._info, standing, round), partial(self._require_quorum, round)
        missed = partial(self._participation.missed, round.number)
        of = (self.rule, self.gate, self._traffic, standing, round)
        combined = self.aggregation.combine(Trained(*of, answers, missing, info, quorum, missed))
        verdict, exchanged = combined.verdict, combined.exchanged
        outcome, trainer = self._for_trainer(standing, round, verdict, combined.outcome)
        step = self.server_optimizer.step
        model, server = step(standing.model, outcome.model, standing.server, self.gate.trainable)
        outcome = usable(dataclasses.replace(outcome, model=model), standing.model, round)
        del model  # the usable one takes its place in memory
        declared = {r.site: r.n_examples for r in verdict.replies} | dict(standing.declared)
        sizes = remembered(standing.history, verdict.norms, verdict.tensors)
        models = {**standing.models, **outcome.models}
        kept: dict[str, Any] = {"server": server, "models": models, "trainer": trainer}
        after = Checkpoint(round.number, outcome.model, outcome.state, declared, sizes, **kept)
        left = history.left_behind(after)
        seconds = {"exchange": exchanged - started, "aggregate": time.monotonic() - exchanged}
        entry = round_entry(round, verdict, outcome, combined.answers) | selection | {"rounds": self.rounds}
        owed = self.score is not None and round.number > self.rounds - self.scored_rounds
        later = {"unscored": True} if owed else {}
        line = self._log("round", **entry, **later, seconds=seconds, bytes=self._traffic.taken(), **left)
        self._best.challenge(standing.round, standing.model, self._sha256, line)
        after = dataclasses.replace(after, entry=line["hash"])
        if standing.round and set(after.declared) - self._known:
            # A site has joined since the checkpoint that is there, and it may leave again.
            files.private_folder(self.folder / files.JOINED)
            shutil.copyfile(
                self.folder / files.CHECKPOINT, self.folder / files.JOINED / f"{standing.round}{files.SUFFIX}"
            )
        self._known = set(after.declared)
        if files.LASTING.get():
            save_checkpoint(self.folder / files.CHECKPOINT, after)
        self._best.settle()
        self._sha256, self._owed = left["model_sha256"], owed
        self._counted |= dict.fromkeys(line["accepted"], round.number)
        return after

    def _log_scores(self, standing: Checkpoint) -> None:
        """Score the round's model where that is owed; after a kill the run that goes on does, from the checkpoint."""
        if not self._owed or self.score is None:
            return
        started = time.monotonic()
        found = self.score(standing.model, standing.round == self.rounds)
        seconds = {"score": time.monotonic() - started}
        about = {"round": standing.round, "model_sha256": self._sha256}
        self._log("scores", **about, test_sets=found, seconds=seconds)
        self._owed = False

    def _for_trainer(
        self, standing: Checkpoint, round: Round, verdict: Verdict, outcome: Outcome
    ) -> tuple[Outcome, ServerState]:
        """The outcome as the trainer's server half corrects it, and that half's next state."""
        if not self.trainer.has_server_half:
            return outcome, standing.trainer
        info = self._info(standing, round, verdict.replies)
        heard = self.rule.heard(verdict.replies, standing.state, info)
        state = self.trainer.collect(standing.model, heard, standing.trainer, info)
        model = self.trainer.correct(standing.model, outcome.model, state, info)
        return dataclasses.replace(outcome, model=model), state

    def _info(self, standing: Checkpoint, round: Round, replies: Sequence[Reply] = ()) -> Info:
        members = (site for site in standing.declared if site in self.named or not self.named)
        taking_part = self.selector.ever(sorted(members))
        declared = {site: n for site, n in standing.declared.items() if site in taking_part}
        return Info(round, self.lr, steps_of(replies), len(declared), standing.models, declared)

    def _select(self, round: Round, everyone: bool = False) -> tuple[str, ...]:
        """The sites that take part: of those that are there, or of everyone if all were there."""
        present, away = self._participation.of(self._training_sites())
        sites = present + away if everyone else present
        return self.selector.select(sites, round, self.seed, self.min_sites) if sites else ()

    def _train(
        self, standing: Checkpoint, round: Round, selected: Sequence[str]
    ) -> tuple[list[Answer], list[Rejection], Checkpoint]:
        """Ask the sites that are there to train, and invite those that are not back."""
        _, away = self._participation.of(self._training_sites())
        wanted = self._select(round, everyone=True)
        info = self._info(standing, round)
        models = {site: standing.models.get(site, standing.model) for site in selected}
        sent = {site: self._sent_to(site, standing, info) for site in selected}
        instructions = {site: Instruction("train", round, model, **sent[site]) for site, model in models.items()}
        invited = {site: Instruction("preflight", round, {}) for site in away}
        if isinstance(self.aggregation, Plain):
            self.counts = partial(self.gate.may_count, models, round.number, standing.declared)
        answered = list(self._traffic.exchange(instructions | invited))
        self.counts = _any  # it holds the round's model
        answers = [answer for answer in answered if answer.site in instructions]
        statements, refused, standing = self._read_statements([a for a in answered if a.site in invited], standing)
        barred = turned_away(statements, refused)
        passed = set(statements) - set(barred)
        late = self.early_end.late(selected, answers)
        missing = self._participation.note(round.number, selected, answers, away, passed, barred, late)
        return answers, [r for r in missing if r.code != "absent" or r.site in wanted], standing

    def _sent_to(self, site: str, standing: Checkpoint, info: Info) -> dict[str, Any]:
        rule, trainer, state, own = self.rule, self.trainer, standing.state, standing.trainer
        orders = rule.orders(state, site, info), trainer.orders(own, site, info)
        tensors = rule.tensors_for(state, site, info), trainer.tensors_for(own, site, info)
        counted = self._counted.get(site, 0)
        return {"orders": _joined(*orders), "tensors": flat(_joined(*tensors)), "counted": counted}

    def _training_sites(self) -> list[str]:
        return [site for site in self.transport.sites() if site != self.leave_out]

    def _require_quorum(self, round: Round, verdict: Verdict) -> None:
        if len(verdict.replies) < self.min_sites:
            rejected = by_site(verdict.rejections)
            self._log("round_failed", round=round.number, rejected=rejected, model_sha256=self._sha256)
            raise RunFailed(too_few(round.number, len(verdict.replies), self.min_sites, verdict.rejections))

    def _evaluate(self, standing: Checkpoint) -> dict[str, dict[str, Any]]:
        """Ask every site that is there how the final model does on its own splits, and its own one if it has such."""
        present, away = self._participation.of(self.transport.sites())
        used = standing.models if self.rule.counts_own else {}
        # What a site says of one model alone is asked of the chosen one where that is what the run is about.
        shared = set[str]() if self._shows_chosen() else set(present) - set(used)
        sites, rejections = self._results(standing, dict.fromkeys(present, standing.model), shared)
        models = {site: standing.models[site] for site in sites if site in standing.models}
        own, more = self._results(standing, models, used)
        for site, found in own.items():
            sites[site][PERSONAL] = found.get(PERSONAL, found)
            if CLINICAL in found:
                sites[site][CLINICAL] = found.pop(CLINICAL)
        rejected = by_site(more + rejections + self._participation.absent(away))
        self._log("evaluation", sites=sites, rejected=rejected, model_sha256=self._sha256)
        return sites

    def _choose(self, standing: Checkpoint, evaluated: Mapping[str, Mapping[str, Any]]) -> StateDict:
        """The model that the run's results are of: the best of the rounds where one is chosen.

        If that is not the last one's, sites say how it does as well.
        """
        if not self.choice.chooses:
            return standing.model
        last = self.choice.last(standing.round, self._sha256, evaluated)
        best = self.choice.final(self._best.found, last)
        model, sites, rejections = standing.model, dict[str, dict[str, Any]](), list[Rejection]()
        shows = self._shows_chosen()
        if best is not last or shows:
            model = standing.model if best is last else self._best.model()
            present, _ = self._participation.of(self.transport.sites())
            sites, rejections = self._results(standing, dict.fromkeys(present, model), present if shows else ())
        shown = {"weight": self.choice.weight, "metric": self.choice.metric, "higher": self.choice.higher}
        values = {"best": dict(best.values), "last": dict(last.values)}
        found = {"round": best.round, "values": values, "sites": sites, "rejected": by_site(rejections)}
        self._log("best", by=self.choice.by, **shown, **found, model_sha256=best.model_sha256)
        self._best.save(model)
        return model if shows else standing.model

    def _shows_chosen(self) -> bool:
        """Whether the run's results, and what follows them, are of the chosen model."""
        return self.choice.chooses and self.choice.shown

    def _ask(self, exchange: AtServer, standing: Checkpoint, chosen: StateDict) -> None:
        """One exchange with the sites that are there; it leaves model and state as they are."""
        present, away = self._participation.of(
            self._training_sites() if exchange.of_training_sites else self.transport.sites()
        )
        models = self.rule.in_use(chosen, standing.models, present)
        # The run may go on where this configuration makes another initial model than the one that it began with.
        other = exchange.needs_first and self._audit.first.get("model_sha256") not in (None, model_hash(self._first))
        first = None if other else self._first
        ended = Ended(self._traffic, self.aggregation, models, first, self._end, standing.declared)
        content, rejections = exchange.run(ended)
        rejected = by_site(rejections + self._participation.absent(away))
        self._log(exchange.event, **content, rejected=rejected, model_sha256=self._sha256)

    def _results(
        self, standing: Checkpoint, models: Mapping[str, StateDict], used: Collection[str] = ()
    ) -> tuple[dict[str, dict[str, Any]], list[Rejection]]:
        """Site -> its accepted results of the model that it is sent, and the rejections.

        Args:
            used: the sites that use what they are sent, or their own version of it.
        """
        last = self._end
        orders: dict[str, dict[str, float]] = {site: {IN_USE: 1.0} if site in used else {} for site in models}
        asked = {
            site: Instruction("evaluate", last, model, orders[site], counted=self._counted.get(site, 0))
            for site, model in models.items()
        }
        answers = list(self._traffic.exchange(asked)) if asked else []
        gate = self.gate
        known = (self.groups, gate.metrics, gate.personal_results, gate.view, standing.declared)
        sites, rejections = inspect_evaluation(answers, last.number, *known)
        return sites, rejections + silent(asked, answers)

    def _log(self, event: str, **content: Any) -> dict[str, Any]:
        signed = self._signed.taken() if self._signed is not None else {}
        entry = self._audit.append(event, **content, **signed)
        for observer in self.observers:
            observer.saw(entry)
        return entry


def _any(answer: Answer) -> bool:
    return True


def _joined(of_rule: Mapping[str, T], of_trainer: Mapping[str, T]) -> dict[str, T]:
    """Both; raises RuntimeError where they say the same name."""
    if both := sorted(set(of_rule) & set(of_trainer)):
        raise RuntimeError(f"rule and trainer both send {both[0]!r}")
    return {**of_rule, **of_trainer}
