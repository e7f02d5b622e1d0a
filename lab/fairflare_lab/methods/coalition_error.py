# SPDX-License-Identifier: Apache-2.0
"""FedCI's probe: the error of a coalition's model on the site's validation split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fairflare.core.registry import probe
from fairflare.core.types import LocalWork, Need, Number
from fairflare.probes.base import showing
from fairflare.probes.loss import FEWEST, ErrorProbe


@probe("coalition-error")
@dataclass(frozen=True)
class CoalitionError(ErrorProbe):
    """Error of a coalition's model (FedCI), which the server shows in a further exchange: one forward pass for each."""

    reports: ClassVar[tuple[Number, ...]] = (
        Number("coalition_error", 0.0, 1.0, "error of a coalition's model on the site's own validation data"),
    )
    when = "anchored"
    needs = (Need("val", FEWEST, "the method weighs sites by errors on it", both_classes=True),)

    def measure(self, work: LocalWork) -> dict[str, float]:
        with showing(work):
            return self.error_of(work.evaluate("val"), work, "coalition_error")
