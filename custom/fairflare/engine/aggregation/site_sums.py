# SPDX-License-Identifier: Apache-2.0
"""A site's part in secure sums: it keeps its answer back until it knows its own weight, weighs and masks its update."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from fairflare.aggregators.base import SummedRule
from fairflare.core.schema import MASKED, Answer, Instruction, first_with_secure_sums, rest_with_secure_sums
from fairflare.core.types import Number, StateDict
from fairflare.engine.hashes import model_hash
from fairflare.engine.memory import SiteMemory
from fairflare.privacy.egress import check_scalars
from fairflare.privacy.secure_sum.cover import Covers, stream_of, uncovered
from fairflare.privacy.secure_sum.keys import PairwiseKeys
from fairflare.privacy.secure_sum.pairwise import MaskedSums, mask_update
from fairflare.privacy.secure_sum.protocol import NumberScheme, Rosters, Sealed, SumOrder, SumRefused, fingerprint
from fairflare.privacy.secure_sum.ring import Ring, Scale

KEPT = "secure_sum"
"""Key of the site's memory under which the rule's number for the rounds to come lies."""


class Noise(Protocol):
    """``privacy.site_noise.SiteNoise``, which only jobs that ask for it carry."""

    def check(self) -> None:
        """Raise EgressRefused unless one more sum keeps to the budget."""

    def charge(self) -> None:
        """Count a sum; raises EgressRefused."""

    def applied(self, update: Mapping[str, Any], sites: int) -> StateDict:
        """The weighted update as it is masked for a sum over so many sites."""


class SiteSums:
    """What happens to a site's answer between training and sending.

    Args:
        rule: computes terms and weight from the site's own numbers.
        memory: the site's; the rule's number is kept in it from round to round.
        scalars: the probes' numbers with their ranges, which nobody else can check.
        federation: its id, the same at all sites of a run.
        noise: what is done to the weighted update before it is masked; None: nothing.
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
        noise: Noise | None = None,
    ) -> None:
        self._rule, self._scheme, self._keys, self._memory, self._scalars = rule, scheme, keys, memory, scalars
        self._sums, self._updates = Rosters(keys.site, least), Rosters(keys.site, least)
        self._counts, self._counted = MaskedSums(keys), Rosters(keys.site, least)
        self._covers = {purpose: Covers(keys, purpose) for purpose in ("numbers", "update")}
        self._seed, self._first = b"", (0, 0)
        self._federation, self._ring, self._noise = federation, ring or Ring(), noise
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
        sent = (model_hash(instruction.model), instruction.orders, answer.round, instruction.round.total)
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
        seed, shares = self._covers["numbers"].cover(order, self._first[1])
        self._sealed = (held.round, self._terms)
        sealed = uncovered(self._scheme.seal(self._terms, order)["sum"], seed)
        return Answer(site=held.site, round=held.round, sealed={"sum": sealed, "cover": shares})

    def reveal(self, instruction: Instruction) -> Answer:
        """Shares of what covers the sum that this site took part in last; raises SumRefused for any other."""
        sealed = instruction.sealed
        order = {"numbers": self._sums, "update": self._updates}[sealed["of"]].last
        if order is None or (order.round, order.attempt) != (instruction.round.number, sealed["attempt"]):
            raise SumRefused("shares of a sum that this site has no part in")
        shares = self._covers[sealed["of"]].hand_out(order, sealed["covers"])
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
        self._seed, shares = self._covers["update"].cover(order, self._first[1])
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
        cover = stream_of(self._seed)
        return mask_update(self._keys, update, self._updates.last, self._scales, self._weight, cover)

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
