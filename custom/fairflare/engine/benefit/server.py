# SPDX-License-Identifier: Apache-2.0
"""The server's part: the sites train alone, then hold the federation's model against what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairflare.core.schema import Answer, Instruction
from fairflare.core.types import MOST_EXAMPLES, Number, Round, StateDict
from fairflare.engine.attendance import LATE
from fairflare.engine.benefit.measured import DRAWS, HIGH, LEVEL, LOW, ROUNDS, N
from fairflare.engine.checks import Refused, Rejection, check_tag, checked_numbers, first_good, left_out, silent
from fairflare.engine.messages import Transport
from fairflare.engine.straggler_policy import EarlyEnd

TIMES = 10
"""So many times the training examples that it declared a site may have test cases."""


@dataclass(frozen=True)
class Benefit:
    """Asks every site to train alone, and what the federation's model gives it beyond that.

    Attributes:
        early_end: when the transport ends an exchange; who is missing then is late.
    """

    numbers: tuple[Number, ...]
    trainer: str
    metrics: tuple[str, ...] = ()
    group_metrics: tuple[str, ...] = ()
    early_end: EarlyEnd = field(default_factory=EarlyEnd)

    def run(
        self,
        transport: Transport,
        first: StateDict,
        models: Mapping[str, StateDict],
        round: Round,
        declared: Mapping[str, int],
    ) -> tuple[dict[str, Any], list[Rejection]]:
        """What the log says, and the rejections.

        Args:
            first: w^0, from which they train alone.
            models: site -> the model that it uses now, or what it makes its own from.
        """
        ready, rejections = self._trained(transport, first, list(models), round)
        asked = {site: Instruction("benefit", round, models[site]) for site in ready}
        answers = list(transport.exchange(asked)) if asked else []
        most = {site: TIMES * declared[site] for site in declared}

        def check(answer: Answer) -> dict[str, float]:
            return self._checked(answer, round, most.get(answer.site, MOST_EXAMPLES))

        found, refused, _ = first_good(answers, check)
        about = {"metrics": list(self.metrics), "group_metrics": list(self.group_metrics)}
        content = {"trainer": self.trainer, "draws": DRAWS, "level": LEVEL, **about}
        sites = {site: found[site] for site in sorted(found)}
        return {**content, "sites": sites}, rejections + left_out(refused, found) + self._missing(asked, answers, round)

    def _trained(
        self, transport: Transport, first: StateDict, sites: Sequence[str], round: Round
    ) -> tuple[list[str], list[Rejection]]:
        """The sites whose own model is done; one that needs longer is asked again while it gets on."""
        done, rejections, waiting = dict.fromkeys(sites, 0.0), list[Rejection](), sorted(sites)
        while waiting:
            asked = {site: Instruction("solo", round, first) for site in waiting}
            answers = list(transport.exchange(asked))
            found, refused, _ = first_good(answers, lambda answer: self._checked(answer, round, MOST_EXAMPLES))
            rejections += left_out(refused, found) + self._missing(asked, answers, round)
            rounds = {site: numbers.get(ROUNDS, 0.0) for site, numbers in found.items()}
            stuck = [site for site in sorted(rounds) if rounds[site] <= done[site]]
            rejections += [Rejection(site, "no_progress", "trains alone and gets no further") for site in stuck]
            done |= rounds
            waiting = [site for site in sorted(rounds) if site not in stuck and rounds[site] < round.total]
        left = {rejection.site for rejection in rejections}
        return [site for site in sorted(sites) if site not in left], rejections

    def _missing(self, asked: Mapping[str, Instruction], answers: Sequence[Answer], round: Round) -> list[Rejection]:
        """The rejections of sites of which nothing came: late where the exchange ended without them."""
        rules = {one.task: self.early_end.of(one.task, round.total) for one in asked.values()}
        late = {site for rule in rules.values() for site in rule.late(asked, answers)}
        ended = f"the question ended with the answers of {len(asked) - len(late)} of {len(asked)} sites"
        missing = silent(asked, answers)
        return [Rejection(one.site, LATE, ended) if one.site in late else one for one in missing]

    def _checked(self, answer: Answer, round: Round, most: int) -> dict[str, float]:
        check_tag(answer, round.number)
        numbers = checked_numbers(answer.benefit, self.numbers)
        counts = {name: value for name, value in numbers.items() if name.partition("/")[0] in (N, ROUNDS)}
        sizes = [value for name, value in counts.items() if name.startswith(f"{N}/")]
        if any(value != int(value) for value in counts.values()) or counts.get(ROUNDS, 0.0) > round.total:
            raise Refused("count_mismatch", f"{N}, {ROUNDS}: expected whole numbers")
        if counts.get(N, 0.0) > most or sum(sizes) > counts.get(N, 0.0):
            raise Refused("count_mismatch", f"{N}: expected at most {most}, and of groups no more in all")
        for name, low in numbers.items():
            kind, _, rest = name.partition(".")
            if kind == LOW and not low <= numbers.get(f"{HIGH}.{rest}", -2.0):
                raise Refused("scalar_range", f"scalar {name!r}: expected the lower end of an interval")
        return numbers
