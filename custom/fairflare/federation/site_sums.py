# SPDX-License-Identifier: Apache-2.0
"""A site's part in secure sums: it keeps its answer back until it knows its own weight, weighs and masks its update."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from fairflare.contracts import Scalar, StateDict
from fairflare.federation.memory import SiteMemory
from fairflare.federation.messages import Answer, Instruction
from fairflare.privacy.egress import TELLTALE, check_scalars
from fairflare.privacy.masks import mask_update
from fairflare.privacy.pairs import PairwiseKeys
from fairflare.privacy.sums import NumberScheme, Rosters, Sealed, SumOrder, SumRefused
from fairflare.rules.base import SummedRule

KEPT = "secure_sum"
"""Key of the site's memory under which the rule's number for the rounds to come lies."""


class SiteSums:
    """What happens to a site's answer between training and sending.

    Args:
        rule: computes terms and weight from the site's own numbers.
        scheme: seals the terms.
        keys: mask the update.
        memory: the site's; the rule's number is kept in it from round to round.
        scalars: the probes' numbers with their ranges, which nobody else can check.
        least: sites that a sum must have.
    """

    def __init__(
        self,
        rule: SummedRule,
        scheme: NumberScheme,
        keys: PairwiseKeys,
        memory: SiteMemory,
        scalars: Sequence[Scalar],
        least: int,
    ) -> None:
        self._rule, self._scheme, self._keys, self._memory, self._scalars = rule, scheme, keys, memory, scalars
        self._sums, self._updates = Rosters(keys.site, least), Rosters(keys.site, least)
        self._held: Answer | None = None
        self._terms: tuple[float, ...] = ()
        self._sealed: tuple[int, tuple[float, ...]] | None = None
        self._opened: tuple[int, Any] | None = None
        self._weighted: Answer | None = None

    def statement(self) -> Sealed:
        """What the other sites need to know of this one."""
        return self._keys.statement()

    def withhold(self, answer: Answer) -> Answer:
        """Keep the answer to "train"; what is sent says only that the site is ready.

        Raises:
            EgressRefused: a number is out of its range.
        """
        check_scalars(answer.scalars, self._scalars)
        self._held = answer
        self._terms = self._rule.terms(answer.scalars, answer.n_examples, self._kept(answer.round))
        return Answer(site=answer.site, round=answer.round, n_examples=answer.n_examples)

    def seal(self, instruction: Instruction) -> Answer:
        """The answer to "sum"; raises SumRefused, for other numbers in a round too: their masks could be the same."""
        held, order = self._answer_of(instruction), _order(instruction)
        if self._sealed is not None and self._sealed[0] == held.round and self._sealed[1] != self._terms:
            raise SumRefused("a second training in one round")
        if self._opened is not None and self._opened[0] == held.round:
            raise SumRefused("a second sum of one round")
        self._keys.check(order)
        self._sums.admit(order)
        self._sealed = (held.round, self._terms)
        return Answer(site=held.site, round=held.round, sealed=self._scheme.seal(self._terms, order))

    def weigh(self, instruction: Instruction) -> Answer:
        """The withheld answer with p_k D_k in place of D_k, and without the numbers behind p_k; still to be masked."""
        held, order = self._answer_of(instruction), _order(instruction)
        if self._sealed != (held.round, self._terms):
            raise SumRefused("no sum of this round's numbers")
        summed = self._sums.last
        if summed is None or not set(order.roster) <= set(summed.roster):
            raise SumRefused("sites that were not in the sum")
        if order == self._updates.last:
            raise SumRefused("a second update with the same masks")
        self._keys.check(order)
        self._updates.admit(order)
        if self._weighted is None or self._weighted.round != held.round:
            self._weighted = self._weigh(held, instruction.sealed["sums"])
        elif self._opened != (held.round, instruction.sealed["sums"]):
            raise SumRefused("a second sum of one round")  # two weighted updates would tell their weights' ratio
        return self._weighted

    def mask(self, update: Mapping[str, Any]) -> StateDict:
        """The update of ``weigh``, or what the site's own filters made of it, as only everyone's sum shows it."""
        if self._updates.last is None:
            raise SumRefused("nothing was weighed")
        return mask_update(self._keys, update, self._updates.last)

    def _weigh(self, held: Answer, total: Any) -> Answer:
        if self._opened is not None and self._opened[0] == held.round:
            raise SumRefused("a second sum of one round")
        self._opened = (held.round, total)
        sums = self._scheme.open(total, len(self._terms))
        weight, keep = self._rule.own_weight(self._terms, self._kept(held.round), sums)
        so_far = self._memory.at(held.round) or self._memory.before(held.round)
        self._memory.keep(held.round, {**so_far, KEPT: keep})
        return dataclasses.replace(
            held,
            update={key: value * weight for key, value in held.update.items()},
            scalars={},
            metrics={name: value for name, value in held.metrics.items() if name not in TELLTALE},
        )

    def _kept(self, round: int) -> Any:
        return self._memory.before(round).get(KEPT)

    def _answer_of(self, instruction: Instruction) -> Answer:
        if self._held is None or self._held.round != instruction.round.number:
            raise SumRefused("nothing was trained in this round")
        return self._held


def _order(instruction: Instruction) -> SumOrder:
    told = instruction.sealed
    return SumOrder(instruction.round.number, int(told["attempt"]), dict(told["statements"]))
