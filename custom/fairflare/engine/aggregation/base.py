# SPDX-License-Identifier: Apache-2.0
"""How a round's answers become the next model: the interface, one part at the server and one at every site, and the
aggregation in the clear, where the gate sees every update and the rule weighs them. Loop and sites know no other.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from fairflare.aggregators.base import Outcome, Rule
from fairflare.core.schema import Answer, Instruction
from fairflare.core.types import Info, Reply, Round, StateDict
from fairflare.engine.checks import Rejection, first_good, left_out, silent
from fairflare.engine.messages import SiteModels, Transport

if TYPE_CHECKING:  # a site has no gate
    from fairflare.engine.gate import Gate, Verdict
    from fairflare.engine.state import Checkpoint

CheckSums = Callable[[Answer], list[float]]
"""The sums of an answer in the clear, as they may be added; raises Refused."""


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
    """Numbers summed over sites.

    Attributes:
        told: fields of the instruction that tells each of them the sum.
    """

    sites: list[str]
    told: Mapping[str, Any]
    rejections: list[Rejection]


class Aggregation(Protocol):
    """The server's part."""

    def learn(self, answers: Sequence[Answer]) -> list[Rejection]:
        """Take what sites say of themselves in preflight; the rejections of those that cannot take part."""

    def combine(self, trained: Trained) -> Combined:
        """Check and combine a round's answers; raises RunFailed where too few sites are accepted."""

    def total(self, transport: Transport, models: SiteModels, round: Round, check: CheckSums, terms: int) -> Total:
        """Ask for sums over calibration cases ("calibrate") and add them."""


class SitePart(Protocol):
    """A site's part: what is done with its answers before they leave.

    Attributes:
        goes_back: whether the site forgets what it kept of rounds of which the server says that they did not count.
    """

    goes_back: ClassVar[bool]

    @property
    def tasks(self) -> Mapping[str, Callable[[Instruction], Answer]]:
        """Exchanges of the aggregation's own -> what answers them."""

    def statement(self) -> Mapping[str, Any]:
        """What goes with the answer to "preflight"."""

    def trained(self, answer: Answer, instruction: Instruction) -> Answer:
        """What leaves of a complete answer to "train"."""

    def summed(self, sums: list[float], instruction: Instruction) -> Mapping[str, Any]:
        """The fields of the answer to "calibrate" that hold a site's sums; raises SumRefused."""

    def total(self, instruction: Instruction, terms: int) -> list[float]:
        """The sums of all sites that "adjust" tells; raises SumRefused or ValueError."""

    def masks(self, answer: Answer) -> bool:
        """Whether the update in ``answer`` must not leave before ``final`` has masked it."""

    def final(self, answer: Answer) -> Answer:
        """The answer as it leaves; raises SumRefused where it cannot be masked."""


class Plain:
    """The server's part: gate and rule, with a further exchange for every anchor of the rule."""

    def learn(self, answers: Sequence[Answer]) -> list[Rejection]:
        return []

    def combine(self, trained: Trained) -> Combined:
        """The gate's verdict, the aggregator's further exchanges and its step, in this order.

        Raises:
            RunFailed: fewer sites than ``min_sites`` are accepted, at first or in a further exchange.
        """
        rule, standing, answers, exchanged = trained.rule, trained.standing, trained.answers, time.monotonic()
        known = (standing.declared, standing.history, standing.models)
        verdict = trained.gate.inspect(answers, standing.model, trained.round.number, *known)
        verdict = dataclasses.replace(verdict, rejections=verdict.rejections + trained.rejections)
        trained.require_quorum(verdict)
        info = trained.info(verdict.replies)
        anchors = rule.anchors(standing.model, verdict.replies, standing.state, info)
        while (shown := next(anchors, None)) is not None:
            replies, second, refused = _second_exchange(trained, *shown, verdict.replies)
            del shown  # the next model takes its place in memory
            verdict = dataclasses.replace(verdict, replies=replies, rejections=verdict.rejections + refused)
            answers = answers + second
            trained.require_quorum(verdict)
            exchanged = time.monotonic()
        outcome = rule.aggregate(standing.model, verdict.replies, standing.state, trained.info(verdict.replies))
        return Combined(verdict, outcome, answers, exchanged)

    def total(self, transport: Transport, models: SiteModels, round: Round, check: CheckSums, terms: int) -> Total:
        """Each site's sums in the clear, added exactly and rounded once, as sums in secret are."""
        asked = {site: Instruction("calibrate", round, model) for site, model in models.items()}
        answers = list(transport.exchange(asked))
        found, refused, _ = first_good(answers, check, round.number)
        sums = {str(i): math.fsum(own[i] for own in found.values()) for i in range(terms)}
        return Total(sorted(found), {"orders": sums}, left_out(refused, found) + silent(asked, answers))


class PlainAtSite:
    """A site's part: its answers leave as they are."""

    goes_back: ClassVar[bool] = True

    @property
    def tasks(self) -> Mapping[str, Callable[[Instruction], Answer]]:
        return {}

    def statement(self) -> Mapping[str, Any]:
        return {}

    def trained(self, answer: Answer, instruction: Instruction) -> Answer:
        return answer

    def summed(self, sums: list[float], instruction: Instruction) -> Mapping[str, Any]:
        return {"sums": sums}

    def total(self, instruction: Instruction, terms: int) -> list[float]:
        if set(instruction.orders) != {str(i) for i in range(terms)}:
            raise ValueError(f"adjust: expected {terms} sums")
        return [float(instruction.orders[str(i)]) for i in range(terms)]

    def masks(self, answer: Answer) -> bool:
        return False

    def final(self, answer: Answer) -> Answer:
        return answer


def _second_exchange(
    trained: Trained, label: str, anchor: StateDict, replies: Sequence[Reply]
) -> tuple[list[Reply], list[Answer], list[Rejection]]:
    """Show an anchor to the accepted sites; a site counts in the round once it has answered every time."""
    asked = {reply.site: Instruction("compare", trained.round, anchor) for reply in replies}
    answers = list(trained.transport.exchange(asked))
    missing = silent(asked, answers)
    trained.missed([rejection.site for rejection in missing])
    found, refused = trained.gate.inspect_second(answers, trained.round.number)
    named = {s: {f"{name}/{label}" if label else name: v for name, v in own.items()} for s, own in found.items()}
    complete = [dataclasses.replace(r, scalars={**r.scalars, **named[r.site]}) for r in replies if r.site in found]
    return complete, answers, refused + missing
