# SPDX-License-Identifier: Apache-2.0
"""Aggregation by secure sums: the sites weigh their updates themselves, and the server learns their sum alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fairflare.aggregators.base import added_whole
from fairflare.core.schema import Answer
from fairflare.core.types import Round, StateDict
from fairflare.engine.aggregation.base import Combined, Total, Trained
from fairflare.engine.aggregation.server_sums import ServerSums, Summed
from fairflare.engine.checks import Rejection
from fairflare.engine.gate import Verdict
from fairflare.engine.messages import Transport
from fairflare.engine.norms import SUM, norms_of


@dataclass(frozen=True)
class Secure:
    """The server's part; a site's is ``site_sums.SiteSums``."""

    sums: ServerSums

    def learn(self, answers: Sequence[Answer]) -> list[Rejection]:
        return self.sums.learn(answers)

    def combine(self, trained: Trained) -> Combined:
        standing, gate = trained.standing, trained.gate
        model = gate.shared(standing.model)
        summed = self.sums.round(trained.transport, trained.answers, trained.round, standing.declared, model)
        exchanged = time.monotonic()
        trained.missed([r.site for r in summed.rejections if r.code == "no_answer"])
        verdict = _verdict(summed, trained)
        trained.require_quorum(verdict)
        assert summed.total is not None  # without a sum nobody is accepted, and that is no quorum
        return Combined(verdict, added_whole(standing.model, summed.total, standing.state), summed.answers, exchanged)

    def total(
        self,
        transport: Transport,
        models: Mapping[str, StateDict],
        round: Round,
        check: Callable[[Answer], list[float]],
        terms: int,
    ) -> Total:
        return self.sums.numbers(transport, models, round, terms)


def _verdict(summed: Summed, trained: Trained) -> Verdict:
    """What the gate makes of a sum: whose fault a wrong one is cannot be seen, so it is everyone's."""
    rejections, gate, standing = summed.rejections + trained.rejections, trained.gate, trained.standing
    if summed.total is None:
        return Verdict(summed.replies, rejections, {})
    if reason := gate.implausible(summed.total, standing.model, standing.history):
        return Verdict([], rejections + [Rejection(r.site, "sum", reason) for r in summed.replies], {})
    return Verdict(summed.replies, rejections, {}, {SUM: norms_of(summed.total, gate.trainable)})
