# SPDX-License-Identifier: Apache-2.0
"""q-FedAvg: sites with a larger loss weigh more, and the step is as long as the losses' curvature allows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from fairflare.core.errors import UserError
from fairflare.core.notes import Note
from fairflare.core.registry import method
from fairflare.core.types import Info, Paper, Reply, StateDict
from fairflare.core.validation import Range
from fairflare.functional.blocks import blocks_of, square_of
from fairflare.rules.base import Outcome, Rule, State, add_weighted, shares

URL = "https://arxiv.org/abs/1905.10497"


@method(
    "qfedavg",
    title="q-FedAvg",
    summary="Weighs sites by their loss to the power q, with a step that shrinks where the losses are steep.",
    paper=Paper("Li et al.", "Fair Resource Allocation in Federated Learning", "ICLR", 2020, URL),
    probes=("group-loss",),
)
@dataclass(frozen=True)
class QFedAvg(Rule):
    """w -= sum_k Delta_k / sum_k h_k with Delta_k = F_k^q L_k (w - w_k) (Li et al., ICLR 2020, Algorithm 2).

    h_k = q F_k^(q-1) ||L_k (w - w_k)||^2 + L_k F_k^q over the parameters; F_k is the received model's loss. Computed
    with F_k / max F, which leaves the quotient as it is. Buffers are averaged with the weights alone.

    Args:
        q: fairness, >= 0; 0 is the uniform mean of the local models, a large q follows the worst site in short steps.
        lipschitz: L > 0; 0 takes 1 / (the run's local learning rate), which assumes SGD.
        per_step: L_k = L / (local steps of site k).
        loss_floor: > 0, added to every loss: with 0 < q < 1 a site whose loss is 0 stops everything otherwise.
    """

    notes: ClassVar[tuple[Note, ...]] = (
        Note("step", "Length of the step", "times the mean update", "round", meaning="1 at q = 0, then below 1."),
    )
    q: Annotated[float, Range(0, 1e3)] = 1.0
    lipschitz: Annotated[float, Range(0, 1e9)] = 0.0
    per_step: bool = False
    loss_floor: Annotated[float, Range(1e-12, 1)] = 1e-10

    @property
    def wanted(self) -> tuple[str, ...]:
        """F_k, the received model's loss."""
        return ("loss",)

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> Outcome:
        """The weights are the sites' shares of sum Delta, and "step" how far the model goes along their mean."""
        worst = max(r.scalars["loss"] for r in replies) + self.loss_floor
        mass, height, bounds = {}, 0.0, self._bounds(replies, info)
        for k, (reply, bound) in enumerate(zip(replies, bounds)):
            scaled = (reply.scalars["loss"] + self.loss_floor) / worst
            slope = self.q / worst * scaled ** (self.q - 1) if self.q else 0.0
            mass[reply.site] = bound * scaled**self.q
            height += slope * bound**2 * _square(replies, k) + mass[reply.site]
        step, weights = sum(mass.values()) / height, shares(mass)
        parameters = {key: value for key, value in model.items() if key in replies[0].trainable}
        moved = add_weighted(parameters, replies, {site: step * weight for site, weight in weights.items()})
        return Outcome({**add_weighted(model, replies, weights), **moved}, weights, state, {"step": step})

    def _bounds(self, replies: Sequence[Reply], info: Info) -> list[float]:
        steps = [info.steps.get(r.site, 0) if self.per_step else 1 for r in replies]
        if not (self.lipschitz or info.lr) or not all(steps):
            raise UserError("q-FedAvg: expected a local learning rate, and with per_step every site's steps, got none")
        return [(self.lipschitz or 1 / info.lr) / n for n in steps]


def _square(replies: Sequence[Reply], k: int) -> float:
    """||D_k||^2 over the parameters."""
    return sum(square_of(updates[k]) for key in sorted(replies[k].trainable) for _, updates in blocks_of(replies, key))
