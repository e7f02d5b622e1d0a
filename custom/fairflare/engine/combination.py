# SPDX-License-Identifier: Apache-2.0
"""How the server makes a round's answers the next model: in the clear the gate sees every update and the rule weighs
them. ``server_sums.ServerSums`` has the same methods; the loop knows no other."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from fairflare.aggregators.base import Outcome, Rule
from fairflare.core.schema import Answer, Instruction, SiteModels, Transport
from fairflare.core.types import Info, Reply, Round
from fairflare.engine.checkpoint import Checkpoint
from fairflare.engine.checks import Refused, Rejection, first_good, left_out, silent
from fairflare.engine.exchanges.compare import second_exchange
from fairflare.engine.gate import Gate, Verdict

if TYPE_CHECKING:
    from fairflare.engine.server_sums import ServerSums


LARGEST_PART = 1e200
"""Of a sum in the clear: no number of patients makes more, and two such parts still have a finite sum."""
CheckSums = Callable[[Answer], list[float]]
"""The sums of an answer in the clear, as they may be added; raises Refused."""
Aggregation: TypeAlias = "Plain | ServerSums"


@dataclass(frozen=True)
class Trained:
    """A round once its sites have trained.

    Attributes:
        answers: to "train", unchecked.
        rejections: of the sites that were asked and did not answer.
        info: accepted replies -> what the rule knows of the round.
        require_quorum: raises RunFailed where a verdict accepts too few sites.
        missed: called with the sites that let a later exchange of the round pass.
    """

    rule: Rule
    gate: Gate
    transport: Transport
    standing: Checkpoint
    round: Round
    answers: list[Answer]
    rejections: list[Rejection]
    info: Callable[[Sequence[Reply]], Info]
    require_quorum: Callable[[Verdict], None]
    missed: Callable[[Sequence[str]], None]


@dataclass(frozen=True)
class Combined:
    """What became of a round: the gate's verdict, the rule's outcome, all answers, and when the sites were done."""

    verdict: Verdict
    outcome: Outcome
    answers: list[Answer]
    exchanged: float


@dataclass(frozen=True)
class Total:
    """Numbers summed over sites; ``told`` are the fields of the instruction that tells each of them the sum."""

    sites: list[str]
    told: Mapping[str, Any]
    rejections: list[Rejection]


class Plain:
    """The server's part in the clear: gate and rule, with a further exchange for every anchor of the rule.

    ``server_sums.ServerSums`` has the same methods.
    """

    def learn(self, answers: Sequence[Answer]) -> list[Rejection]:
        """Take what sites say of themselves in preflight; the rejections of those that cannot take part."""
        return []

    def go_on(self, sets: Iterable[Sequence[str]]) -> None:
        """Take the accepted sites of every round of a run that goes on, read as they are needed: a log may be long."""

    def combine(self, trained: Trained) -> Combined:
        """Check and combine a round's answers; raises RunFailed where an exchange has fewer sites than ``min_sites``.

        The gate's verdict comes first, then the aggregator's further exchanges, then its step.
        """
        rule, standing, answers, exchanged = trained.rule, trained.standing, trained.answers, time.monotonic()
        known = (standing.declared, standing.history, standing.models)
        verdict = trained.gate.inspect(answers, standing.model, trained.round.number, *known)
        verdict = dataclasses.replace(verdict, rejections=verdict.rejections + trained.rejections)
        trained.require_quorum(verdict)
        info = trained.info(verdict.replies)
        anchors = rule.anchors(standing.model, verdict.replies, standing.state, info)
        while (shown := next(anchors, None)) is not None:
            replies, second, refused = second_exchange(trained, *shown, verdict.replies)
            del shown  # the next model takes its place in memory
            verdict = dataclasses.replace(verdict, replies=replies, rejections=verdict.rejections + refused)
            answers = answers + second
            trained.require_quorum(verdict)
            exchanged = time.monotonic()
        outcome = rule.aggregate(standing.model, verdict.replies, standing.state, trained.info(verdict.replies))
        return Combined(verdict, outcome, answers, exchanged)

    def total(
        self,
        transport: Transport,
        models: SiteModels,
        round: Round,
        check: CheckSums,
        terms: int,
        task: str = "calibrate",
        orders: Mapping[str, float] | None = None,
    ) -> Total:
        """Ask for sums over sites' cases and add them exactly, rounded once, as in secret."""
        asked = {site: Instruction(task, round, model, orders or {}) for site, model in models.items()}
        answers = list(transport.exchange(asked))

        def checked(answer: Answer) -> list[float]:
            part = check(answer)
            if any(abs(value) > LARGEST_PART for value in part):
                raise Refused("sums", f"sums: expected numbers of at most {LARGEST_PART:g}")
            return part

        found, refused, _ = first_good(answers, checked, round.number)
        sums = {str(i): math.fsum(own[i] for own in found.values()) for i in range(terms)}
        return Total(sorted(found), {"orders": sums}, left_out(refused, found) + silent(asked, answers))

    def read(self, told: Mapping[str, Any], terms: int) -> list[float]:
        """The numbers of a ``Total``."""
        return [told["orders"][str(i)] for i in range(terms)]
