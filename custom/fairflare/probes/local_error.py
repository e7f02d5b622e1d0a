# SPDX-License-Identifier: Apache-2.0
"""How well a site's model does at home before and after local training; free riders move it little or oddly.

Jiang et al. (FedCE), CVPR 2023, arXiv:2303.16520, Section 4.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fairflare.core.registry import probe
from fairflare.core.types import Cost, LocalWork, Number, Offer
from fairflare.probes.base import Probe
from fairflare.probes.leave_one_out import error_of, missing_metric


@probe("local-error")
@dataclass(frozen=True)
class LocalError(Probe):
    """Errors of the received and of the trained model on the validation split: one more forward pass over it.

    Args:
        score_metric: as in ``LeaveOneOut``.
    """

    cost: ClassVar[Cost] = Cost()
    reports: ClassVar[tuple[Number, ...]] = (
        Number("received_error", 0.0, 1.0, "error of the received model on the site's own validation data"),
        Number("trained_error", 0.0, 1.0, "error of the site's trained model on its own validation data"),
    )
    when = "trained"

    score_metric: str = "headline"

    def measure(self, work: LocalWork) -> dict[str, float]:
        before = error_of(work.received_metrics, self.score_metric, work.headline, "received_error")
        return before | error_of(work.evaluate("val"), self.score_metric, work.headline, "trained_error")

    def missing(self, offer: Offer) -> str:
        """The metric, where the task has none of that name."""
        return missing_metric(self.score_metric, offer)
