# SPDX-License-Identifier: Apache-2.0
"""q-FFL: sites with a larger loss get a larger aggregation weight.

p_k = n_k F_k^q / sum_j n_j F_j^q, the weights of the gradient of sum_k (n_k / n) F_k^{q+1} / (q + 1), computed as a
softmax of log n_k + q log F_k, so that no power leaves the doubles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from fairflare.aggregators.base import State, SummedRule
from fairflare.core.registry import method
from fairflare.core.types import Info, Reply, Weights
from fairflare.core.validation import Range
from fairflare.functional.simplex import of_largest, softmax

FLOOR = 1e-10
"""What is added to every loss, the authors' number; or the least loss."""
MOST_Q = 30
"""(1e-10)^30 and (1e6)^30 times any number of examples are doubles."""
WORST_ONLY = 100.0
"""From this q on the reference takes the site with the largest loss alone."""
PAPER = "Li et al.: Fair Resource Allocation in Federated Learning. ICLR 2020. https://arxiv.org/abs/1905.10497"


@method(
    "qffl",
    title="q-FFL (weights)",
    summary="Weighs sites by their number of examples and their loss to the power q.",
    paper=PAPER,
    probes=("loss",),
    reference={"prior": "none"},
)
@dataclass(frozen=True)
class QFFL(SummedRule):
    """Weights from losses (Li et al., ICLR 2020, https://arxiv.org/abs/1905.10497, Eq. 2).

    Args:
        q: fairness, >= 0; 0 gives the prior weights, a large q the site with the largest loss.
        prior: "examples" multiplies by n_k, as the objective does; "none" does not.
        variant: "reference" is FFL4MIA's code: it adds 1e-10 to every loss in place of a least loss of 1e-10, and from
            q = 100 on takes the site with the largest loss alone.
    """

    n_terms, counted = 2, 1
    wanted = ("loss",)
    q: Annotated[float, Range(0, 1e6)] = 1.0
    prior: Literal["examples", "none"] = "examples"
    variant: Literal["paper", "reference"] = "paper"

    def weigh(self, replies: Sequence[Reply], state: State, info: Info) -> tuple[Weights, State]:
        losses = {r.site: self._floored(r.scalars["loss"]) for r in replies}
        if self.variant == "reference" and self.q >= WORST_ONLY:
            return of_largest(losses), state
        priors = {r.site: float(r.n_examples) if self.prior == "examples" else 1.0 for r in replies}
        return softmax({site: math.log(priors[site]) + self.q * math.log(f) for site, f in losses.items()}), state

    def terms(self, scalars: Mapping[str, float], n_examples: int, kept: float | None) -> tuple[float, ...]:
        amount = self._floored(scalars["loss"]) ** self.q
        return amount * (n_examples if self.prior == "examples" else 1), 1.0

    def unsummable(self) -> str:
        """Powers must stay within doubles, and the largest of all is no sum."""
        return f"q={self.q:g} is above {MOST_Q}, where F^q leaves the range of doubles" if self.q > MOST_Q else ""

    def _floored(self, loss: float) -> float:
        return loss + FLOOR if self.variant == "reference" else max(loss, FLOOR)
