# SPDX-License-Identifier: Apache-2.0
"""How well a coalition's model, which the server shows in a further exchange, does on a site's validation split.

What a Shapley value is made of (FedCI; see ``aggregators/fedci.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fairflare.core.registry import probe
from fairflare.core.types import Cost, LocalWork, Need, Number, Offer
from fairflare.probes.base import Probe, showing
from fairflare.probes.leave_one_out import FEWEST, error_of, missing_metric


@probe("coalition-error")
@dataclass(frozen=True)
class CoalitionError(Probe):
    """Error of the model that is shown on the site's own validation data: one forward pass over them per coalition.

    Args:
        score_metric: as in ``LeaveOneOut``.
    """

    cost: ClassVar[Cost] = Cost()
    reports: ClassVar[tuple[Number, ...]] = (
        Number("coalition_error", 0.0, 1.0, "error of a coalition's model on the site's own validation data"),
    )
    when = "anchored"
    needs = (Need("val", FEWEST, "the method weighs sites by errors on it", both_classes=True),)

    score_metric: str = "headline"

    def measure(self, work: LocalWork) -> dict[str, float]:
        """1 - score of the received model; the network holds the site's trained one before and after."""
        with showing(work):
            return error_of(work.evaluate("val"), self.score_metric, work.headline, "coalition_error")

    def missing(self, offer: Offer) -> str:
        """The metric, where the task has none of that name."""
        return missing_metric(self.score_metric, offer)
