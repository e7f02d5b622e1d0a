# SPDX-License-Identifier: Apache-2.0
"""The server's part in secure sums: it passes statements on, adds what it cannot read, and returns the sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairflare.contracts import Round
from fairflare.federation.checks import (
    Refused,
    Rejection,
    check_tag,
    checked_count,
    first_good,
    left_out,
    silent,
)
from fairflare.federation.messages import Answer, Instruction, Transport
from fairflare.privacy.sums import ATTEMPTS, LEAST, Sealed, SumRefused


@dataclass
class ServerSums:
    """One sum per round over the sites that have trained; then they are asked for their weighted updates.

    Attributes:
        combine: adds sealed numbers.
        vouched: (site, statement) -> whether the statement is the site's own.
    """

    combine: Callable[[Sequence[bytes]], Any]
    vouched: Callable[[str, Sealed], bool] = lambda site, statement: True
    statements: dict[str, Sealed] = field(default_factory=dict)

    def learn(self, answers: Sequence[Answer]) -> list[Rejection]:
        """Take the statements of answers to "preflight"; the rejections of sites without a good one."""
        refused = []
        for answer in answers:
            if answer.error:
                continue
            if isinstance(answer.sealed, Mapping) and self.vouched(answer.site, answer.sealed):
                self.statements[answer.site] = dict(answer.sealed)
            else:
                refused.append(Rejection(answer.site, "key", "its key for secure sums is not vouched for"))
        return refused

    def weighted(
        self, transport: Transport, answers: Sequence[Answer], round: Round, declared: Mapping[str, int]
    ) -> tuple[list[Answer], list[Rejection]]:
        """The weighted updates of the sites whose ``answers`` say that they have trained, and the rejections.

        No update at all where no sum came about; the rejections say why.
        """
        ready, refused, _ = first_good(answers, lambda answer: self._check_ready(answer, round, declared))
        rejections = left_out(refused, ready)
        total, roster, lost = self._sum(transport, sorted(ready), round)
        rejections += lost
        if total is None:
            return [], rejections
        sealed = {"sums": total}
        asked = {site: Instruction("weigh", round, {}, sealed=sealed) for site in roster}
        weighed = list(transport.exchange(asked))
        return weighed, rejections + silent(asked, weighed)

    def _check_ready(self, answer: Answer, round: Round, declared: Mapping[str, int]) -> bool:
        check_tag(answer, round.number)
        checked_count(answer.n_examples, declared.get(answer.site))
        if answer.update is not None or answer.scalars:
            raise Refused("not_secret", "numbers or weights before the secure sum")
        if answer.site not in self.statements:
            raise Refused("key", "its key for secure sums is not known")
        return True

    def _sum(self, transport: Transport, roster: list[str], round: Round) -> tuple[Any, list[str], list[Rejection]]:
        """The sum, the sites in it, and the rejections of those that fell silent on the way."""
        rejections: list[Rejection] = []
        for attempt in range(ATTEMPTS):
            if len(roster) < LEAST:
                break
            sealed = {"attempt": attempt, "statements": {site: self.statements[site] for site in roster}}
            asked = {site: Instruction("sum", round, {}, sealed=sealed) for site in roster}
            answers = list(transport.exchange(asked))
            found, refused, _ = first_good(answers, lambda answer: _sealed(answer, round))
            rejections += left_out(refused, found) + silent(asked, answers)
            if len(found) == len(roster):
                try:
                    return self.combine([found[site] for site in roster]), roster, rejections
                except (SumRefused, ValueError) as error:
                    # Whose fault it is cannot be seen: that is what the masks are for.
                    return None, [], rejections + [Rejection(site, "sum", str(error)) for site in roster]
            roster = sorted(found)
        few = f"{len(roster)} sites are left for a secure sum, {LEAST} needed"
        return None, [], rejections + [Rejection(site, "sum", few) for site in roster]


def _sealed(answer: Answer, round: Round) -> bytes:
    check_tag(answer, round.number)
    sealed = answer.sealed.get("sum") if isinstance(answer.sealed, Mapping) else None
    if not isinstance(sealed, bytes):
        raise Refused("malformed", "sum: expected sealed numbers")
    return sealed
