# SPDX-License-Identifier: Apache-2.0
"""How a round's answers become the next model: the interface, one part at the server and one at every site.

The aggregation in the clear, where the gate sees every update and the rule weighs them; and a site's part in secure
sums: it keeps its answer back until it knows its own weight, weighs and masks its update. Loop and sites know no other.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from fairflare.aggregators.base import Outcome, Rule, SummedRule
from fairflare.core.schema import (
    MASKED,
    Answer,
    Instruction,
    SiteModels,
    Transport,
    first_with_secure_sums,
    rest_with_secure_sums,
)
from fairflare.core.types import Info, Number, Reply, Round, StateDict
from fairflare.engine.checks import Rejection, first_good, left_out, silent
from fairflare.engine.hashes import model_hash
from fairflare.engine.memory import SiteMemory
from fairflare.privacy.egress import check_scalars
from fairflare.privacy.referee import Referee
from fairflare.privacy.secure_sums import MaskedSums, Ring, Scale, mask_update
from fairflare.privacy.sum_keys import PairwiseKeys, SelfMasks, self_masked, stream_of
from fairflare.privacy.sum_protocol import NumberScheme, Rosters, Sealed, SumOrder, SumRefused, fingerprint

if TYPE_CHECKING:  # a site has no gate
    from fairflare.engine.files import Checkpoint
    from fairflare.engine.gate import Gate, Verdict
    from fairflare.engine.server_sums import ServerSums
    from fairflare.privacy.differential_privacy import SiteNoise


CheckSums = Callable[[Answer], list[float]]
"""The sums of an answer in the clear, as they may be added; raises Refused."""
Aggregation: TypeAlias = "Plain | ServerSums"
SitePart: TypeAlias = "PlainAtSite | SiteSums"
"""The server's part, and a site's."""


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

    def go_on(self, sets: Sequence[Sequence[str]]) -> None:
        """Take the accepted sites of every round of a run that goes on."""

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
            replies, second, refused = _second_exchange(trained, *shown, verdict.replies)
            del shown  # the next model takes its place in memory
            verdict = dataclasses.replace(verdict, replies=replies, rejections=verdict.rejections + refused)
            answers = answers + second
            trained.require_quorum(verdict)
            exchanged = time.monotonic()
        outcome = rule.aggregate(standing.model, verdict.replies, standing.state, trained.info(verdict.replies))
        return Combined(verdict, outcome, answers, exchanged)

    def total(self, transport: Transport, models: SiteModels, round: Round, check: CheckSums, terms: int) -> Total:
        """Ask for sums over calibration cases ("calibrate") and add them exactly, rounded once, as in secret."""
        asked = {site: Instruction("calibrate", round, model) for site, model in models.items()}
        answers = list(transport.exchange(asked))
        found, refused, _ = first_good(answers, check, round.number)
        sums = {str(i): math.fsum(own[i] for own in found.values()) for i in range(terms)}
        return Total(sorted(found), {"orders": sums}, left_out(refused, found) + silent(asked, answers))


class PlainAtSite:
    """A site's part in the clear: what is done with answers before they leave. ``SiteSums`` has the same methods."""

    goes_back: ClassVar[bool] = True
    """Whether the site forgets what it kept of rounds of which the server says that they did not count."""

    @property
    def tasks(self) -> Mapping[str, Callable[[Instruction], Answer]]:
        """Exchanges of the aggregation's own -> what answers them."""
        return {}

    def statement(self) -> Mapping[str, Any]:
        """What goes with the answer to "preflight"."""
        return {}

    def trained(self, answer: Answer, instruction: Instruction) -> Answer:
        """What leaves of a complete answer to "train"."""
        return answer

    def summed(self, sums: list[float], instruction: Instruction) -> Mapping[str, Any]:
        """The fields of the answer to "calibrate" that hold a site's sums; raises SumRefused."""
        return {"sums": sums}

    def total(self, instruction: Instruction, terms: int) -> list[float]:
        """The sums of all sites that "adjust" tells; raises SumRefused or ValueError."""
        if set(instruction.orders) != {str(i) for i in range(terms)}:
            raise ValueError(f"adjust: expected {terms} sums")
        return [float(instruction.orders[str(i)]) for i in range(terms)]

    def masks(self, answer: Answer) -> bool:
        """Whether the update in ``answer`` must not leave before ``final`` has masked it."""
        return False

    def final(self, answer: Answer) -> Answer:
        """The answer as it leaves; raises SumRefused where it cannot be masked."""
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


KEPT = "secure_sum"
"""Key of the site's memory under which the rule's number for the rounds to come lies."""


class SiteSums:
    """A site's part in secure sums: what happens to its answer between training and sending.

    Args:
        rule: computes terms and weight from the site's own numbers.
        memory: the site's; the rule's number is kept in it from round to round.
        scalars: the probes' numbers with their ranges, which nobody else can check.
        noise: what is done to the weighted update before it is masked; None: nothing.
        referee: what the site agrees to over rounds and jobs; None: it has answered nothing before.
    """

    goes_back: ClassVar[bool] = False
    """A server could have one site alone forget its number: what the sums then lack would be that site's."""

    def __init__(
        self,
        rule: SummedRule,
        scheme: NumberScheme,
        keys: PairwiseKeys,
        memory: SiteMemory,
        scalars: Sequence[Number],
        least: int,
        federation: str = "",
        ring: Ring | None = None,
        noise: SiteNoise | None = None,
        referee: Referee | None = None,
    ) -> None:
        self._rule, self._scheme, self._keys, self._memory, self._scalars = rule, scheme, keys, memory, scalars
        self._sums, self._updates = Rosters(keys.site, least), Rosters(keys.site, least)
        self._counts, self._counted = MaskedSums(keys), Rosters(keys.site, least)
        self._self_masks = {purpose: SelfMasks(keys, purpose) for purpose in ("numbers", "update")}
        self._seed, self._first = b"", (0, 0)
        self._federation, self._ring, self._noise = federation, ring or Ring(), noise
        self._referee = referee or Referee()
        self._scales: dict[str, Scale] = {}
        self._weight = 0.0
        self._held: Answer | None = None
        self._received = b""
        self._terms: tuple[float, ...] = ()
        self._sealed: tuple[int, tuple[float, ...]] | None = None
        self._opened: tuple[int, Any] | None = None
        self._weighted: Answer | None = None

    def statement(self) -> Sealed:
        return self._keys.statement()

    @property
    def tasks(self) -> Mapping[str, Callable[[Instruction], Answer]]:
        return {"sum": self.seal, "weigh": self.weigh, "reveal": self.reveal}

    def trained(self, answer: Answer, instruction: Instruction) -> Answer:
        """Keep the answer to "train"; what is sent says only that the site is ready.

        What the site was sent is kept as a fingerprint, on which the masks will depend: sites that were sent different
        models, orders or rounds have no masks in common.

        Raises:
            EgressRefused: a number is out of its range.
        """
        check_scalars(answer.scalars, self._scalars)
        if self._noise is not None:
            self._noise.check()
        self._held, self._weighted = answer, None
        self._scales = self._ring.scales(instruction.model)
        sha256, trainable = model_hash(instruction.model), self._ring.parameters or instruction.model.keys()
        shared = sorted(trainable & answer.update.keys())
        own = ({key: content[key] for key in shared} for content in (instruction.model, answer.update))
        self._referee.received(sha256, *own)
        sent = (sha256, instruction.orders, answer.round, instruction.round.total)
        self._received = fingerprint(self._federation, *sent)
        self._terms = self._rule.terms(answer.scalars, answer.n_examples, self._kept(answer.round))
        return first_with_secure_sums(answer)

    def seal(self, instruction: Instruction) -> Answer:
        """The answer to "sum"; raises SumRefused, for other numbers in a round too: their masks could be the same."""
        held, order = self._answer_of(instruction), _order(instruction, self._received)
        if self._sealed is not None and self._sealed[0] == held.round and self._sealed[1] != self._terms:
            raise SumRefused("a second training in one round")
        if self._opened is not None and self._opened[0] == held.round:
            raise SumRefused("a second sum of one round")
        self._keys.check(order)
        self._sums.admit(order)
        if self._first[0] != held.round:
            self._first = held.round, len(order.roster)
        seed, shares = self._self_masks["numbers"].draw(order, self._first[1])
        self._sealed = (held.round, self._terms)
        sealed = self_masked(self._scheme.seal(self._terms, order)["sum"], seed)
        return Answer(site=held.site, round=held.round, sealed={"sum": sealed, "cover": shares})

    def reveal(self, instruction: Instruction) -> Answer:
        """Shares of what masks the sum that this site took part in last, which can then be read.

        Raises:
            SumRefused: this site has no part in the sum.
            EgressRefused: the referee has something against it.
        """
        sealed = instruction.sealed
        order = {"numbers": self._sums, "update": self._updates}[sealed["of"]].last
        if order is None or (order.round, order.attempt) != (instruction.round.number, sealed["attempt"]):
            raise SumRefused("shares of a sum that this site has no part in")
        if self._sums.last is None or self._sums.last.bound != self._received:  # the referee would keep another model
            raise SumRefused("shares of a sum of another model than the last one")
        self._referee.admit(sealed["of"], order.round, order.roster)
        shares = self._self_masks[sealed["of"]].hand_out(order, sealed["covers"])
        return Answer(site=self._keys.site, round=order.round, sealed={"shares": shares})

    def weigh(self, instruction: Instruction) -> Answer:
        """The withheld answer with p_k D_k in place of D_k, and without the numbers behind p_k; still to be masked."""
        held, sealed = self._answer_of(instruction), instruction.sealed["sums"]
        summed = self._sums.last
        if summed is None or self._sealed != (held.round, self._terms) or summed.bound != self._received:
            raise SumRefused("no sum of this round's numbers")
        order = _order(instruction, fingerprint(summed.digest(""), sealed))
        if not set(order.roster) <= set(summed.roster):
            raise SumRefused("sites that were not in the sum")
        if order == self._updates.last:
            raise SumRefused("a second update with the same masks")
        self._keys.check(order)
        if self._noise is not None:
            self._noise.charge()
        self._updates.admit(order)
        self._seed, shares = self._self_masks["update"].draw(order, self._first[1])
        if self._weighted is None:
            self._weighted = self._weigh(held, sealed)
            self._held = dataclasses.replace(held, update={})  # D_k is needed no more
        elif self._opened != (held.round, sealed):
            raise SumRefused("a second sum of one round")  # two weighted updates would tell their weights' ratio
        return dataclasses.replace(self._weighted, sealed={"cover": shares})

    def summed(self, sums: list[float], instruction: Instruction) -> Mapping[str, Any]:
        """The sums behind masks that depend on the model: one sum, of one model and all sites of the last round.

        Two sums would differ by a site, and a site that is silent costs everyone the sum.

        Raises:
            SumRefused: another model or other sites than the first time, or sites of the last round are missing.
        """
        content = (self._federation, model_hash(instruction.model), instruction.round.total)
        order = _order(instruction, fingerprint("calibrate", *content))
        if self._counted.last is not None and self._counted.last.bound != order.bound:
            raise SumRefused("a second model to calibrate")
        if self._counted.last not in (None, order):
            raise SumRefused("a second sum after the last round")
        trained = self._updates.last
        if trained is not None and trained.round == order.round and not set(trained.roster) <= set(order.roster):
            raise SumRefused("a sum without all sites of the last round")
        self._keys.check(order)
        self._counted.admit(order)
        return {"sealed": self._counts.seal(sums, order)}

    def total(self, instruction: Instruction, terms: int) -> list[float]:
        return self._counts.open(instruction.sealed["sums"], terms)

    def masks(self, answer: Answer) -> bool:
        return answer.update is not None

    def final(self, answer: Answer) -> Answer:
        if not self.masks(answer):
            return answer
        return dataclasses.replace(answer, update=self.mask(answer.update), update_kind=MASKED)

    def mask(self, update: Mapping[str, Any]) -> StateDict:
        """The update of ``weigh``, or what the site's own filters made of it, as only everyone's sum shows it."""
        if self._updates.last is None:
            raise SumRefused("nothing was weighed")
        if self._noise is not None:
            update = self._noise.applied(update, len(self._updates.last.roster))
        self_mask = stream_of(self._seed)
        return mask_update(self._keys, update, self._updates.last, self._scales, self._weight, self_mask)

    def _weigh(self, held: Answer, total: Any) -> Answer:
        if self._opened is not None and self._opened[0] == held.round:
            raise SumRefused("a second sum of one round")
        self._opened = (held.round, total)
        sums = self._scheme.open(total, len(self._terms))
        self._check_count(sums)
        self._weight, keep = self._rule.own_weight(self._terms, self._kept(held.round), sums)
        so_far = self._memory.at(held.round) or self._memory.before(held.round)
        self._memory.keep(held.round, {**so_far, KEPT: keep})
        weighted = {key: value * self._weight for key, value in held.update.items()}
        return dataclasses.replace(rest_with_secure_sums(held), update=weighted)

    def _check_count(self, sums: Sequence[float]) -> None:
        """Where a term is 1 at every site its sum is known; a refusal says nothing of the site's own numbers."""
        counted, summed = self._rule.counted, self._sums.last
        if counted is not None and summed is not None and not abs(sums[counted] - len(summed.roster)) < 0.5:
            raise SumRefused("sums over another number of sites")

    def _kept(self, round: int) -> Any:
        return self._memory.before(round).get(KEPT)

    def _answer_of(self, instruction: Instruction) -> Answer:
        if self._held is None or self._held.round != instruction.round.number:
            raise SumRefused("nothing was trained in this round")
        return self._held


def _order(instruction: Instruction, bound: bytes) -> SumOrder:
    sealed = instruction.sealed
    return SumOrder(instruction.round.number, int(sealed["attempt"]), dict(sealed["statements"]), bound)
