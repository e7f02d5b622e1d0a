# SPDX-License-Identifier: Apache-2.0
"""The server's part of the step after the last round: two exchanges, and what the log says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairflare.core.schema import Answer, Instruction
from fairflare.core.types import MOST_EXAMPLES, Round, StateDict
from fairflare.federation.after.base import AfterStep, Shape
from fairflare.federation.aggregation.base import Aggregation
from fairflare.federation.checks import Refused, Rejection, check_tag, first_good, left_out, silent
from fairflare.federation.field_checks import checked_numbers
from fairflare.federation.messages import Transport

TIMES = 10
"""So many times the training examples that it declared a site may have calibration cases."""


@dataclass(frozen=True)
class After:
    """Sums the sites' calibration cases, tells them the sums, and takes what came of it.

    Attributes:
        name: of the step.
        step: what is done.
        shape: of the task.
        secure: whether the run has secure sums.
        remark: what a reader must know of the calibration cases.
    """

    name: str
    step: AfterStep
    shape: Shape
    secure: bool = False
    remark: str = ""

    def run(
        self,
        transport: Transport,
        aggregation: Aggregation,
        models: Mapping[str, StateDict],
        round: Round,
        declared: Mapping[str, int],
    ) -> tuple[dict[str, Any], list[Rejection]]:
        """What the log says of the step, and the rejections.

        Args:
            transport: reaches the sites.
            aggregation: sums in the clear or in secret.
            models: site -> the model that it is to be done for.
            round: the run's last one.
            declared: site -> training examples that it declared.
        """
        check = {site: _most(declared.get(site)) for site in models}

        def checked(answer: Answer) -> list[float]:
            try:
                return self.step.checked(answer.sums, self.shape, check.get(answer.site, MOST_EXAMPLES))
            except ValueError as error:
                raise Refused("sums", f"sums: {error}") from None

        total = aggregation.total(transport, models, round, checked, self.step.terms(self.shape))
        asked = {site: Instruction("adjust", round, models[site], **total.told) for site in total.sites}
        answers = list(transport.exchange(asked)) if asked else []
        found, rejections = self._inspect(answers, round)
        content = {"step": self.name, "by": self.step.by, "split": self.step.split, "needs": self.step.needs}
        return {**content, "remark": self.remark, "sites": found}, total.rejections + rejections + silent(
            asked, answers
        )

    def _inspect(self, answers: Sequence[Answer], round: Round) -> tuple[dict[str, Any], list[Rejection]]:
        known = self.step.reports(self.shape, secure=self.secure)

        def check(answer: Answer) -> dict[str, float]:
            check_tag(answer, round.number)
            return checked_numbers(answer.adjusted, known)

        found, refused, _ = first_good(answers, check)
        return {site: found[site] for site in sorted(found)}, left_out(refused, found)


def _most(declared: int | None) -> int:
    return MOST_EXAMPLES if declared is None else TIMES * declared
