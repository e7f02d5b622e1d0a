# SPDX-License-Identifier: Apache-2.0
"""q-FFL as weights: sites weigh by their loss to the power q, and the model moves by the weighted mean.

p_k = n_k F_k^q / sum_j n_j F_j^q with F_k the received model's loss: the weights of the gradient of q-FFL's objective
sum_k (n_k / n) F_k^{q+1} / (q + 1). Computed as a softmax of log n_k + q log F_k, so that no power leaves the doubles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from fairflare.aggregators.base import State, SummedRule
from fairflare.core.registry import method, rule
from fairflare.core.types import Info, Paper, Reply, Weights
from fairflare.core.validation import Range
from fairflare.functional.simplex import of_largest, softmax

FLOOR = 1e-10
"""A loss below this counts as this."""
MOST_Q = 30
"""(1e-10)^30 and (1e6)^30 times any number of examples are doubles."""
WORST_ONLY = 100.0
"""From this q on the reference takes the site with the largest loss alone."""


@rule("qffl")
@dataclass(frozen=True)
class QFFL(SummedRule):
    """Weights from losses (Li et al., ICLR 2020, https://arxiv.org/abs/1905.10497, Eq. 2).

    Args:
        q: fairness, >= 0; 0 gives the prior weights, a large q the site with the largest loss.
        prior: "examples" multiplies by n_k, as the objective does; "none" does not.
        variant: "reference" is FFL4MIA's code: it adds 1e-10 to every loss in place of a least loss of 1e-10, and from
            q = 100 on takes the site with the largest loss alone.
    """

    n_terms: ClassVar[int] = 2
    counted: ClassVar[int | None] = 1
    q: Annotated[float, Range(0, 1e6)] = 1.0
    prior: Literal["examples", "none"] = "examples"
    variant: Literal["paper", "reference"] = "paper"

    @property
    def wanted(self) -> tuple[str, ...]:
        """F_k, the received model's loss."""
        return ("loss",)

    def weigh(self, replies: Sequence[Reply], state: State, info: Info) -> tuple[Weights, State]:
        """The weights depend on this round's losses alone."""
        losses = {r.site: self._floored(r.scalars["loss"]) for r in replies}
        if self.variant == "reference" and self.q >= WORST_ONLY:
            return of_largest(losses), state
        priors = {r.site: float(r.n_examples) if self.prior == "examples" else 1.0 for r in replies}
        return softmax({site: math.log(priors[site]) + self.q * math.log(f) for site, f in losses.items()}), state

    def terms(self, scalars: Mapping[str, float], n_examples: int, kept: float | None) -> tuple[float, ...]:
        """n_k F_k^q, and 1."""
        amount = self._floored(scalars["loss"]) ** self.q
        return amount * (n_examples if self.prior == "examples" else 1), 1.0

    def own_weight(self, terms: Sequence[float], kept: float | None, sums: Sequence[float]) -> tuple[float, float]:
        """See ``weigh``; nothing has to be kept."""
        return terms[0] / max(sums[0], terms[0]), 0.0

    def unsummable(self) -> str:
        """Powers must stay within doubles, and the largest of all is no sum."""
        return f"q={self.q:g} is above {MOST_Q}, where F^q leaves the range of doubles" if self.q > MOST_Q else ""

    def _floored(self, loss: float) -> float:
        return loss + FLOOR if self.variant == "reference" else max(loss, FLOOR)


QFFL_PAPER = Paper(
    authors="Li et al.",
    title="Fair Resource Allocation in Federated Learning",
    venue="ICLR",
    year=2020,
    url="https://arxiv.org/abs/1905.10497",
)

method(
    "qffl",
    title="q-FFL (weights)",
    summary="Weighs sites by their number of examples and their loss to the power q.",
    rule="qffl",
    paper=QFFL_PAPER,
    probes=("loss",),
    reference={"prior": "none"},
)
