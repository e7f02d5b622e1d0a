# SPDX-License-Identifier: Apache-2.0
"""The round loop: one for every method and every transport."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from fairflare.contracts import Reply, Round, StateDict
from fairflare.errors import RunFailed
from fairflare.federation.audit import AuditLog, model_hash
from fairflare.federation.gate import Gate, Rejection, checked_metrics
from fairflare.federation.messages import Answer, Instruction, Transport
from fairflare.federation.state import Checkpoint, load_checkpoint, save_checkpoint, save_model
from fairflare.rules.base import Outcome, Rule

CHECKPOINT = "checkpoint.pt"
MODEL = "model.pt"
AUDIT = "audit.jsonl"


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
    """

    rule: Rule
    gate: Gate
    transport: Transport
    rounds: int
    min_sites: int
    folder: Path
    header: Mapping[str, Any] = field(default_factory=dict)
    observers: Sequence[Observer] = ()

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
        self._close(standing, "completed", "")
        return standing.model

    def _open(self, initial: StateDict) -> Checkpoint:
        path = self.folder / CHECKPOINT
        if path.exists():
            standing = load_checkpoint(path)
            self._sha256 = model_hash(standing.model)
            (self.folder / MODEL).unlink(missing_ok=True)
            self._log("resume", from_round=standing.round, model_sha256=self._sha256)
            return standing
        self._sha256 = model_hash(initial)
        if self._audit.entries:
            # Killed in the first round: the log has begun, and no checkpoint had been written.
            self._log("resume", from_round=0, model_sha256=self._sha256)
            return Checkpoint(round=0, model=initial)
        sites = self.transport.sites()
        self._log("start", **self.header, rounds=self.rounds, sites=sites, model_sha256=self._sha256)
        return Checkpoint(round=0, model=initial)

    def _close(self, standing: Checkpoint, status: str, reason: str) -> None:
        """Leave the last good model as a plain file and say how the run ended."""
        save_model(self.folder / MODEL, standing.model)
        self._log("finish", status=status, reason=reason, model_sha256=self._sha256)

    def _round(self, standing: Checkpoint, round: Round) -> Checkpoint:
        started = time.monotonic()
        instructions = {
            site: Instruction("train", round, standing.model, self.rule.orders(standing.state, site, round))
            for site in self.transport.sites()
        }
        answers = list(self.transport.exchange(instructions))
        exchanged = time.monotonic()
        replies, rejections = self.gate.inspect(answers, standing.model, round.number, standing.declared)
        rejections += _silent(instructions, answers)
        if len(replies) < self.min_sites:
            raise RunFailed(_too_few(round.number, len(replies), self.min_sites, rejections))
        outcome = self.rule.combine(standing.model, replies, standing.state, round)
        declared = {r.site: r.n_examples for r in replies} | dict(standing.declared)
        after = Checkpoint(round.number, outcome.model, outcome.state, declared)
        self._sha256 = model_hash(outcome.model)
        seconds = {"exchange": exchanged - started, "aggregate": time.monotonic() - exchanged}
        entry = _round_entry(round, replies, rejections, outcome, answers, seconds)
        self._log("round", **entry, model_sha256=self._sha256)
        save_checkpoint(self.folder / CHECKPOINT, after)
        return after

    def _evaluate(self, model: StateDict) -> None:
        """Ask every site how the final model does on its own validation and test splits."""
        last = Round(self.rounds, self.rounds)
        answers = self.transport.exchange({s: Instruction("evaluate", last, model) for s in self.transport.sites()})
        sites = {a.site: _split_metrics(a) for a in sorted(answers, key=lambda a: a.site)}
        self._log("evaluation", sites=sites, model_sha256=self._sha256)

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


def _round_entry(
    round: Round,
    replies: Sequence[Reply],
    rejections: Sequence[Rejection],
    outcome: Outcome,
    answers: Sequence[Answer],
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    site_seconds = {a.site: checked_metrics(a.seconds) for a in answers}
    return {
        "round": round.number,
        "rounds": round.total,
        "accepted": {
            r.site: {"n_examples": r.n_examples, "scalars": dict(r.scalars), "metrics": dict(r.metrics)}
            for r in replies
        },
        "rejected": {r.site: {"code": r.code, "detail": r.detail} for r in rejections},
        "weights": dict(outcome.weights),
        "notes": dict(outcome.notes),
        "seconds": dict(seconds),
        "site_seconds": site_seconds,
    }


def _silent(asked: Mapping[str, Instruction], answers: Sequence[Answer]) -> list[Rejection]:
    heard = {a.site for a in answers}
    return [Rejection(s, "no_answer", "no answer in time") for s in sorted(asked) if s not in heard]


def _too_few(round: int, accepted: int, needed: int, rejections: Sequence[Rejection]) -> str:
    reasons = "; ".join(f"{r.site}: {r.code} ({r.detail})" for r in rejections)
    return f"round {round}: {accepted} accepted sites, {needed} needed; {reasons or 'no other site'}"


def _split_metrics(answer: Answer) -> dict[str, dict[str, float]]:
    if answer.error or not isinstance(answer.metrics, Mapping):
        return {}
    return {split: checked_metrics(answer.metrics.get(split)) for split in ("val", "test")}
