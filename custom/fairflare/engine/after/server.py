# SPDX-License-Identifier: Apache-2.0
"""The server's part of what follows the last round: the step after it, and the benefit of joining for each site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fairflare.core.schema import Answer, Declared, Instruction, SiteModels, Transport
from fairflare.core.types import MOST_EXAMPLES, Number, Round, StateDict
from fairflare.engine.after.base import AfterStep, Shape
from fairflare.engine.aggregation import Aggregation
from fairflare.engine.benefit import DRAWS, HIGH, LEVEL, LOW, ROUNDS, N
from fairflare.engine.checks import Refused, Rejection, checked_scalars, first_good, left_out, silent
from fairflare.engine.clinical import CLINICAL, NOTHING, View
from fairflare.engine.straggler_policy import LATE, EarlyEnd

TIMES = 10
"""So many times the training examples that it declared a site may have calibration or test cases."""


@dataclass(frozen=True)
class After:
    """Sums the sites' calibration cases, tells them the sums, and takes what came of it; ``remark`` is for readers."""

    name: str
    step: AfterStep
    shape: Shape
    secure: bool = False
    remark: str = ""
    view: View = NOTHING

    def run(
        self, transport: Transport, aggregation: Aggregation, models: SiteModels, round: Round, declared: Declared
    ) -> tuple[dict[str, Any], list[Rejection]]:
        """What the log says of the step, and the rejections."""
        check = {site: TIMES * declared[site] if site in declared else MOST_EXAMPLES for site in models}

        def checked(answer: Answer) -> list[float]:
            try:
                return self.step.checked(answer.sums, self.shape, check.get(answer.site, MOST_EXAMPLES))
            except ValueError as error:
                raise Refused("sums", f"sums: {error}") from None

        total = aggregation.total(transport, models, round, checked, self.step.terms(self.shape))
        asked = {site: Instruction("adjust", round, models[site], **total.told) for site in total.sites}
        answers = list(transport.exchange(asked)) if asked else []
        found, clinical, rejections = self._inspect(answers, round, check)
        content = {"step": self.name, "by": self.step.by, "split": self.step.split, "needs": self.step.needs}
        content |= {"remark": self.remark, "shared": self._shared(total.told) if asked else {}, "sites": found}
        content |= {CLINICAL: clinical} if clinical else {}
        return content, total.rejections + rejections + silent(asked, answers)

    def _shared(self, told: Mapping[str, Any]) -> dict[str, float]:
        """What follows for all from the sums that the sites were told; nothing where the server cannot read them."""
        if self.secure:
            return {}
        sums = [told["orders"][str(i)] for i in range(self.step.terms(self.shape))]
        return self.step.of_all(np.array(sums).reshape(-1, self.step.length(self.shape)), self.shape)

    def _inspect(
        self, answers: Sequence[Answer], round: Round, most: Mapping[str, int]
    ) -> tuple[dict[str, Any], dict[str, Any], list[Rejection]]:
        """Site -> its numbers, site -> those of calibration and decisions, and the rejections."""
        known = self.step.reports(self.shape, secure=self.secure)

        def check(answer: Answer) -> tuple[dict[str, float], dict[str, float]]:
            numbers, many = checked_scalars(answer.adjusted, known), most.get(answer.site, MOST_EXAMPLES)
            self._check_counts(numbers, many)
            return numbers, self.view.checked(answer.clinical, numbers.get("n", many), as_binned=False)

        found, refused, _ = first_good(answers, check, round.number)
        clinical = {site: found[site][1] for site in sorted(found) if found[site][1]}
        return {site: found[site][0] for site in sorted(found)}, clinical, left_out(refused, found)

    def _check_counts(self, numbers: Mapping[str, float], most: int) -> None:
        """Groups are parts of a split, and cases that have a metric parts of both; raises Refused."""
        counts = {name: value for name, value in numbers.items() if name.startswith("n")}
        n = counts.get("n", 0.0)
        groups = [value for name, value in counts.items() if name.startswith("n/")]
        parts = [
            counts[name] <= counts.get("n" + where, 0.0)
            for metric in self.step.partial
            for where in ("", *(f"/{group}" for group in self.shape.groups))
            if (name := f"n_{metric}{where}") in counts
        ]
        sizes = [n, counts.get("n_calibration", 0.0)]
        if any(v != int(v) for v in counts.values()) or max(sizes) > most or sum(groups) > n or not all(parts):
            raise Refused("count_mismatch", f"n: expected whole numbers of at most {most}, and of parts no more in all")


@dataclass(frozen=True)
class Benefit:
    """Asks every site to train alone, and what the federation's model gives it beyond that."""

    numbers: tuple[Number, ...]
    trainer: str
    metrics: tuple[str, ...] = ()
    group_metrics: tuple[str, ...] = ()
    early_end: EarlyEnd = field(default_factory=EarlyEnd)

    def run(
        self, transport: Transport, first: StateDict, models: SiteModels, round: Round, declared: Declared
    ) -> tuple[dict[str, Any], list[Rejection]]:
        """What the log says, and the rejections."""
        ready, rejections = self._trained(transport, first, list(models), round)
        asked = {site: Instruction("benefit", round, models[site]) for site in ready}
        answers = list(transport.exchange(asked)) if asked else []
        most = {site: TIMES * declared[site] for site in declared}

        def check(answer: Answer) -> dict[str, float]:
            return self._checked(answer, round, most.get(answer.site, MOST_EXAMPLES))

        found, refused, _ = first_good(answers, check, round.number)
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
            found, refused, _ = first_good(answers, lambda one: self._checked(one, round, MOST_EXAMPLES), round.number)
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
        numbers = checked_scalars(answer.benefit, self.numbers)
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
