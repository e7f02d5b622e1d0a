# SPDX-License-Identifier: Apache-2.0
"""FedProx: local training that a proximal term keeps near the received model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fairflare.core.registry import method
from fairflare.core.types import LocalWork, Paper
from fairflare.core.validation import Range
from fairflare.trainers.base import PlainTrainer, add_proximal


@method(
    "fedprox",
    title="FedProx",
    summary="FedAvg whose sites stay near the received model: a proximal term on top of the local objective.",
    paper=Paper.cited(
        "Li et al.: Federated Optimization in Heterogeneous Networks. MLSys 2020. https://arxiv.org/abs/1812.06127"
    ),
)
@dataclass(frozen=True)
class FedProx(PlainTrainer):
    """Each step minimises f(w) + mu/2 ||w - w^t||^2 over the parameters, with the task's optimizer.

    Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, https://arxiv.org/abs/1812.06127, Eq. 2.

    Args:
        mu: weight of the proximal term, >= 0; 0 is plain training. The authors try 0.001, 0.01, 0.1 and 1.
    """

    mu: Annotated[float, Range(0, 1e6)] = 0.01

    def setup(self, work: LocalWork) -> None:
        """Keep the parameters that the round starts from, w^t, on the device."""
        work.scratch["anchor"] = [p.detach().clone() for p in work.network.parameters()]

    def correct_gradients(self, work: LocalWork) -> None:
        """grad f(w) + mu (w - w^t); the step returns f(w), without the term."""
        add_proximal(list(work.network.parameters()), work.scratch["anchor"], self.mu)
