# SPDX-License-Identifier: Apache-2.0
"""A site's part in secure sums: it keeps its answer back until it knows its weight, and sends the update weighted."""

from __future__ import annotations

import dataclasses
from typing import Any

from fairflare.federation.memory import SiteMemory
from fairflare.federation.messages import Answer, Instruction
from fairflare.privacy.sums import Sealed, SiteScheme, SumOrder, SumRefused
from fairflare.rules.base import SummedRule

KEPT = "secure_sum"
"""Key of the site's memory under which the rule's number for the rounds to come lies."""
TELLTALE = ("loss", "train_loss")
"""Metrics of a round that say much the same as the numbers which the sum hides."""


class SiteSums:
    """What happens to a site's answer between training and sending.

    Args:
        rule: computes terms and weight from the site's own numbers.
        scheme: seals the terms.
        memory: the site's; the rule's number is kept in it from round to round.
    """

    def __init__(self, rule: SummedRule, scheme: SiteScheme, memory: SiteMemory) -> None:
        self._rule, self._scheme, self._memory = rule, scheme, memory
        self._held: Answer | None = None
        self._terms: tuple[float, ...] = ()
        self._sealed: tuple[int, tuple[float, ...]] | None = None
        self._opened: tuple[int, Any] | None = None

    def statement(self) -> Sealed:
        """What the other sites need to know of this one."""
        return self._scheme.statement()

    def withhold(self, answer: Answer) -> Answer:
        """Keep the answer to "train"; what is sent says only that the site is ready."""
        self._held = answer
        self._terms = self._rule.terms(answer.scalars, answer.n_examples, self._kept(answer.round))
        return Answer(site=answer.site, round=answer.round, n_examples=answer.n_examples)

    def seal(self, instruction: Instruction) -> Answer:
        """The answer to "sum"; raises SumRefused, for other numbers in a round too: their masks could be the same."""
        held = self._answer_of(instruction)
        told = instruction.sealed
        order = SumOrder(instruction.round.number, int(told["attempt"]), dict(told["statements"]))
        if self._sealed is not None and self._sealed[0] == held.round and self._sealed[1] != self._terms:
            raise SumRefused("a second training in one round")
        sealed = self._scheme.seal(self._terms, order)
        self._sealed = (held.round, self._terms)
        return Answer(site=held.site, round=held.round, sealed=sealed)

    def weigh(self, instruction: Instruction) -> Answer:
        """The answer to "weigh": the withheld one with p_k D_k in place of D_k, and without the numbers behind p_k."""
        held, total = self._answer_of(instruction), instruction.sealed["sums"]
        if self._sealed != (held.round, self._terms):
            raise SumRefused("no sum of this round's numbers")
        if self._opened is not None and self._opened[0] == held.round and self._opened[1] != total:
            raise SumRefused("a second sum of one round")  # two weighted updates would tell their weights' ratio
        sums = self._scheme.open(total, len(self._terms))
        weight, keep = self._rule.own_weight(self._terms, self._kept(held.round), sums)
        self._opened = (held.round, total)
        kept_already = self._memory.at(held.round) or self._memory.before(held.round)
        self._memory.keep(held.round, {**kept_already, KEPT: keep})
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
