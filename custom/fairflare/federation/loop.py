# SPDX-License-Identifier: Apache-2.0
"""The round loop: one for every method and every transport."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from fairflare.contracts import Reply, Round, StateDict
from fairflare.errors import RunFailed, UserError
from fairflare.federation.attendance import Attendance
from fairflare.federation.audit import AuditLog, model_hash
from fairflare.federation.checks import Rejection, checked_metrics, silent
from fairflare.federation.gate import Gate, Verdict, inspect_evaluation
from fairflare.federation.messages import Answer, Instruction, Transport
from fairflare.federation.preflight import Statement, inspect_preflight, refusal, turned_away
from fairflare.federation.state import Checkpoint, load_checkpoint, save_checkpoint, save_model
from fairflare.federation.sums import ServerSums
from fairflare.rules.base import Outcome, Rule, added_whole
from fairflare.versions import all_versions

CHECKPOINT = "checkpoint.pt"
MODEL = "model.pt"
AUDIT = "audit.jsonl"
LAST = 5
SAME = 1e-12


class Observer(Protocol):
    """Someone who watches a federation: a progress bar, TensorBoard."""

    def saw(self, entry: Mapping[str, Any]) -> None:
        """Called with every audit entry after it was written."""


@dataclass
class Federation:
    """Runs rounds until the last one and leaves checkpoint, audit log and, at the end, the model in ``folder``.

    Attributes:
        rule: turns accepted replies into the next model.
        gate: decides which answers become replies.
        transport: reaches the sites.
        rounds: T.
        min_sites: the run stops, keeping its last good model, when fewer sites are accepted in a round.
        folder: where everything is written; a checkpoint found there is continued from.
        header: what the audit log's first entry says about the run (method, task, seed, versions ...).
        observers: told of every audit entry.
        groups: names of the groups that sites report values of at the end.
        leave_out: a site that trains nothing and is only evaluated at the end; empty: none.
        score: test set -> metrics of a model on the task's shared test sets, asked for after each of the last five
            rounds (the FedISM+ tables are means over these).
        sums: adds what sites seal and mask; None: sites say their numbers, and the rule weighs.
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
    leave_out: str = ""
    score: Callable[[StateDict], dict[str, Any]] = lambda model: {}
    sums: ServerSums | None = None

    def run(self, initial: StateDict) -> StateDict:
        """Train from ``initial`` (or the folder's checkpoint) and return the final model.

        Raises:
            RunFailed: too few accepted sites; the last good model has been saved and the audit log says why.
        """
        self._audit = AuditLog(self.folder / AUDIT)
        standing = self._open(initial)
        try:
            for number in range(standing.round + 1, self.rounds + 1):
                standing = self._round(standing, Round(number, self.rounds))
            self._evaluate(standing.model)
        except RunFailed as failure:
            self._close(standing, "failed", str(failure))
            raise
        except Exception as error:
            self._close(standing, "failed", f"internal error: {type(error).__name__}")
            raise
        self._close(standing, "completed", "")
        return standing.model

    def _open(self, initial: StateDict) -> Checkpoint:
        path, begun = self.folder / CHECKPOINT, self._audit.first
        if begun and begun.get("config_sha256") != self.header.get("config_sha256"):
            raise UserError(f"{self.folder}: holds a run of another configuration, which cannot be continued")
        if path.exists():
            standing = load_checkpoint(path)
            (self.folder / MODEL).unlink(missing_ok=True)
        elif begun:
            # Killed in the first round: the log has begun, and no checkpoint had been written.
            standing = Checkpoint(round=0, model=initial, declared=begun.get("declared", {}))
        else:
            standing = Checkpoint(round=0, model=initial)
        self._sha256 = model_hash(standing.model)
        return self._preflight(standing, resumed=bool(begun) or path.exists())

    def _preflight(self, standing: Checkpoint, *, resumed: bool) -> Checkpoint:
        """Ask every site what is wrong with its data and how many examples it has: no later answer may claim more.

        Raises:
            RunFailed: a site has errors, or differs in this package's version. The audit log says which.
        """
        asked = {site: Instruction("preflight", Round(1, self.rounds), {}) for site in self.transport.sites()}
        answers = list(self.transport.exchange(asked))
        statements, rejections, standing = self._hear_statements(answers, standing)
        rejections += silent(asked, answers)
        self._attendance = Attendance(statements)
        found = {site: statement.to_json() for site, statement in statements.items()}
        shared = {"preflight": found, "rejected": _by_site(rejections), "model_sha256": self._sha256}
        if resumed:
            self._log("resume", from_round=standing.round, **shared)
        else:
            about = {**self.header, "rounds": self.rounds, "sites": self._training_sites()}
            self._log("start", **about, declared=dict(standing.declared), **shared)
        if reason := refusal(statements, rejections):
            self._close(standing, "failed", reason)
            raise RunFailed(reason)
        return standing

    def _hear_statements(
        self, answers: Sequence[Answer], standing: Checkpoint
    ) -> tuple[dict[str, Statement], list[Rejection], Checkpoint]:
        """What sites say in preflight, whom that rejects, and the checkpoint with their numbers of examples."""
        statements, rejections = inspect_preflight(answers, all_versions())
        if self.sums is not None:
            rejections += self.sums.learn(answers)
        told = {site: s.n_examples for site, s in statements.items() if s.n_examples and site != self.leave_out}
        # The first word counts.
        return statements, rejections, dataclasses.replace(standing, declared={**told, **standing.declared})

    def _close(self, standing: Checkpoint, status: str, reason: str) -> None:
        """Leave the last good model as a plain file and say how the run ended."""
        save_model(self.folder / MODEL, standing.model)
        self._log("finish", status=status, reason=reason, model_sha256=self._sha256)

    def _round(self, standing: Checkpoint, round: Round) -> Checkpoint:
        started = time.monotonic()
        answers, missing, standing = self._train(standing, round)
        weigh = self._weigh if self.sums is None else self._weighed_at_sites
        verdict, outcome, answers, exchanged = weigh(standing, round, answers, missing)
        if not all(bool(torch.isfinite(value).all()) for value in outcome.model.values()):
            raise RunFailed(f"round {round.number}: the rule's model is not finite; the one before it was kept")
        declared = {r.site: r.n_examples for r in verdict.replies} | dict(standing.declared)
        after = Checkpoint(round.number, outcome.model, outcome.state, declared)
        self._sha256 = model_hash(outcome.model)
        seconds = {"exchange": exchanged - started, "aggregate": time.monotonic() - exchanged}
        entry = _round_entry(round, verdict, outcome, answers)
        scores = self.score(outcome.model) if round.number > round.total - LAST else {}
        self._log("round", **entry, test_sets=scores, seconds=seconds, model_sha256=self._sha256)
        save_checkpoint(self.folder / CHECKPOINT, after)
        return after

    def _weigh(
        self, standing: Checkpoint, round: Round, answers: list[Answer], missing: list[Rejection]
    ) -> tuple[Verdict, Outcome, list[Answer], float]:
        """Gate and rule, with a second exchange where the rule has an anchor; the time when the sites were done."""
        exchanged = time.monotonic()
        verdict = self.gate.inspect(answers, standing.model, round.number, standing.declared)
        verdict = dataclasses.replace(verdict, rejections=verdict.rejections + missing)
        self._require_quorum(round, verdict)
        anchor = self.rule.anchor(standing.model, verdict.replies, standing.state, round)
        if anchor is not None:
            replies, second, refused = self._second_exchange(anchor, verdict.replies, round)
            verdict = dataclasses.replace(verdict, replies=replies, rejections=verdict.rejections + refused)
            answers = answers + second
            self._require_quorum(round, verdict)
            exchanged = time.monotonic()
        return verdict, self.rule.aggregate(standing.model, verdict.replies, standing.state, round), answers, exchanged

    def _weighed_at_sites(
        self, standing: Checkpoint, round: Round, answers: list[Answer], missing: list[Rejection]
    ) -> tuple[Verdict, Outcome, list[Answer], float]:
        """Secure sums: the sites weigh their updates themselves, and only their sum is known here."""
        summed = self.sums.round(self.transport, answers, round, standing.declared, standing.model)
        exchanged = time.monotonic()
        self._attendance.missed(round.number, [r.site for r in summed.rejections if r.code == "no_answer"])
        verdict = Verdict(summed.replies, summed.rejections + missing, {})
        self._require_quorum(round, verdict)
        return verdict, added_whole(standing.model, summed.total, standing.state), summed.answers, exchanged

    def _train(self, standing: Checkpoint, round: Round) -> tuple[list[Answer], list[Rejection], Checkpoint]:
        """Ask the sites that are there to train, and knock at those that are not."""
        present, away = self._attendance.of(self._training_sites())
        instructions = {
            site: Instruction("train", round, standing.model, self.rule.orders(standing.state, site, round))
            for site in present
        }
        knocking = {site: Instruction("preflight", round, {}) for site in away}
        heard = list(self.transport.exchange(instructions | knocking))
        answers = [answer for answer in heard if answer.site in instructions]
        statements, refused, standing = self._hear_statements([a for a in heard if a.site in knocking], standing)
        barred = turned_away(statements, refused)
        missing = self._attendance.note(round.number, present, answers, away, set(statements) - set(barred), barred)
        return answers, missing, standing

    def _training_sites(self) -> list[str]:
        return [site for site in self.transport.sites() if site != self.leave_out]

    def _require_quorum(self, round: Round, verdict: Verdict) -> None:
        if len(verdict.replies) < self.min_sites:
            rejected = _by_site(verdict.rejections)
            self._log("round_failed", round=round.number, rejected=rejected, model_sha256=self._sha256)
            raise RunFailed(_too_few(round.number, len(verdict.replies), self.min_sites, verdict.rejections))

    def _second_exchange(
        self, anchor: StateDict, replies: Sequence[Reply], round: Round
    ) -> tuple[list[Reply], list[Answer], list[Rejection]]:
        """Show the anchor to the accepted sites; a site counts in the round once it has answered both times."""
        asked = {reply.site: Instruction("compare", round, anchor) for reply in replies}
        answers = list(self.transport.exchange(asked))
        missing = silent(asked, answers)
        self._attendance.missed(round.number, [rejection.site for rejection in missing])
        found, refused = self.gate.inspect_second(answers, round.number)
        complete = [
            dataclasses.replace(reply, scalars={**reply.scalars, **found[reply.site]})
            for reply in replies
            if reply.site in found
        ]
        return complete, answers, refused + missing

    def _evaluate(self, model: StateDict) -> None:
        """Ask every site that is there how the final model does on its own validation and test splits."""
        last = Round(self.rounds, self.rounds)
        present, away = self._attendance.of(self.transport.sites())
        asked = {site: Instruction("evaluate", last, model) for site in present}
        answers = list(self.transport.exchange(asked))
        sites, rejections = inspect_evaluation(answers, last.number, self.groups)
        rejected = _by_site(rejections + silent(asked, answers) + self._attendance.absent(away))
        self._log("evaluation", sites=sites, rejected=rejected, model_sha256=self._sha256)

    def _log(self, event: str, **content: Any) -> None:
        entry = self._audit.append(event, **content)
        for observer in self.observers:
            observer.saw(entry)


def load_model(folder: Path) -> StateDict:
    """The model of a run's folder: ``model.pt`` of a run that ended, else the one of its last finished round.

    Raises:
        FileNotFoundError: no round was finished.
    """
    if (folder / MODEL).is_file():
        return torch.load(folder / MODEL, map_location="cpu", weights_only=True)
    return dict(load_checkpoint(folder / CHECKPOINT).model)


def _round_entry(round: Round, verdict: Verdict, outcome: Outcome, answers: Sequence[Answer]) -> dict[str, Any]:
    notes = dict(outcome.notes)
    if len(outcome.weights) > 1 and max(outcome.weights.values()) - min(outcome.weights.values()) < SAME:
        notes["weights"] = "uniform"
    return {
        "round": round.number,
        "rounds": round.total,
        "accepted": {
            r.site: {"n_examples": r.n_examples, "scalars": dict(r.scalars), "metrics": dict(r.metrics)}
            for r in verdict.replies
        },
        "rejected": _by_site(verdict.rejections),
        "flags": verdict.flags,
        "weights": dict(outcome.weights),
        "notes": notes,
        "site_seconds": _seconds(answers),
    }


def _seconds(answers: Sequence[Answer]) -> dict[str, dict[str, float]]:
    """Site -> phase -> seconds over the round's exchanges."""
    seconds: dict[str, dict[str, float]] = {}
    for answer in answers:
        seconds.setdefault(answer.site, {}).update(checked_metrics(answer.seconds))
    return seconds


def _by_site(rejections: Sequence[Rejection]) -> dict[str, dict[str, str]]:
    return {r.site: {"code": r.code, "detail": r.detail} for r in rejections}


def _too_few(round: int, accepted: int, needed: int, rejections: Sequence[Rejection]) -> str:
    reasons = "; ".join(f"{r.site}: {r.code} ({r.detail})" for r in rejections)
    return f"round {round}: {accepted} accepted sites, {needed} needed; {reasons or 'no other site'}"
