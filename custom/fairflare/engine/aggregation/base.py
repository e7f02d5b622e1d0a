# SPDX-License-Identifier: Apache-2.0
"""The interface of an aggregation: one part at the server, one at every site. The loop and the sites know no other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from fairflare.aggregators.base import Outcome, Rule
from fairflare.core.schema import Answer, Instruction
from fairflare.core.types import Info, Reply, Round, StateDict
from fairflare.engine.checks import Rejection
from fairflare.engine.messages import Transport

if TYPE_CHECKING:  # a site has no gate
    from fairflare.engine.gate import Gate, Verdict
    from fairflare.engine.state import Checkpoint


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
        sites: those in the sum, sorted.
        told: fields of the instruction that tells each of them the sum.
        rejections: of the others that were asked.
    """

    sites: list[str]
    told: Mapping[str, Any]
    rejections: list[Rejection]


class Aggregation(Protocol):
    """The server's part."""

    def learn(self, answers: Sequence[Answer]) -> list[Rejection]:
        """Take what sites say of themselves in preflight; the rejections of those that cannot take part."""

    def combine(self, trained: Trained) -> Combined:
        """Check and combine a round's answers, with further exchanges where they are needed.

        Raises:
            RunFailed: too few accepted sites.
        """

    def total(
        self,
        transport: Transport,
        models: Mapping[str, StateDict],
        round: Round,
        check: Callable[[Answer], list[float]],
        terms: int,
    ) -> Total:
        """Ask for sums over calibration cases ("calibrate") and add them.

        Args:
            check: the sums of an answer in the clear, as they may be added; raises Refused.
        """


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
