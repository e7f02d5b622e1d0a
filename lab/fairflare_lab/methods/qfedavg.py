# SPDX-License-Identifier: Apache-2.0
"""q-FedAvg: sites with a larger loss weigh more, and the step is as long as the losses' curvature allows.

Delta_k = F_k^q L_k (w - w_k),   h_k = q F_k^{q-1} ||L_k (w - w_k)||^2 + L_k F_k^q,   w -= sum_k Delta_k / sum_k h_k
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from fairflare.aggregators.base import Outcome, Rule, State, add_scaled, limited, shares
from fairflare.aggregators.qffl import FLOOR, PAPER
from fairflare.core.errors import UserError
from fairflare.core.notes import Note
from fairflare.core.registry import method
from fairflare.core.types import Info, Reply, StateDict, Training
from fairflare.core.validation import Range
from fairflare.functional.blocks import blocks_of, square_of

RELATIVE_FLOOR = 1e-3
"""With 0 < q < 1, of the largest loss: F^{q-1} of a loss near 0 would fill the denominator and stop every step."""


LONGEST = 1e4
"""The longest step of ``static``, in mean updates: a loss is a site's word."""


@method(
    "qfedavg",
    title="q-FedAvg",
    summary="Weighs sites by their loss to the power q, with a step that shrinks where the losses are steep.",
    paper=PAPER,
    probes=("loss",),
)
@dataclass(frozen=True)
class QFedAvg(Rule):
    """w -= sum_k Delta_k / sum_k h_k (Li et al., ICLR 2020, https://arxiv.org/abs/1905.10497, Algorithm 2).

    Norms are over the parameters; F_k is the received model's loss. Computed with F_k / max F, which leaves the
    quotient as it is. Buffers are averaged with the weights alone. With one local step of plain SGD, L (w - w_k) is the
    gradient, and this is q-FedSGD (Algorithm 1).

    Args:
        q: fairness, >= 0; 0 is the uniform mean of the local models, a large q follows the worst site in short steps.
        lipschitz: L > 0; 0 takes 1 / (the run's local learning rate), which assumes SGD.
        per_step: L_k = L / (local steps of site k).
        loss_floor: added to every loss, >= 0; none is 1e-10, and with 0 < q < 1 a thousandth of the largest loss.
        static: h_k = L_k, the authors' ``static_step_size``: the step is F^q times as long, up to 10,000 times.
    """

    caps: ClassVar[bool] = True
    notes: ClassVar[tuple[Note, ...]] = (
        Note("step", "Length of the step", "times the mean update", "round", meaning="1 at q = 0, then below 1."),
    )
    wanted = ("loss",)
    q: Annotated[float, Range(0, 1e3)] = 1.0
    lipschitz: Annotated[float, Range(0, 1e9)] = 0.0
    per_step: bool = False
    loss_floor: Annotated[float, Range(0, 1)] | None = None
    static: bool = False

    def caution(self, training: Training) -> str:
        if self.lipschitz or (training.optimizer == "sgd" and not training.momentum):
            return ""
        return "L = 1 / lr is that of plain SGD: with momentum or Adam set lipschitz, or choose q by the step's length"

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> Outcome:
        """The weights are the sites' shares of sum Delta, and "step" how far the model goes along their mean."""
        losses, bounds = self._losses(replies), self._bounds(replies, info)
        worst = max(losses)
        scaled = [loss / worst for loss in losses]
        mass = {r.site: bound * f**self.q for r, bound, f in zip(replies, bounds, scaled)}
        weights = limited(shares(mass), info.cap)
        if self.static:
            step = sum(mass.values()) / sum(bounds) * math.exp(min(self.q * math.log(worst), math.log(LONGEST)))
        else:
            step = sum(mass.values()) / self._height(replies, scaled, bounds, worst)
        after = add_scaled(model, replies, weights, step)
        return Outcome(after, weights, state, {"step": step})

    def _losses(self, replies: Sequence[Reply]) -> list[float]:
        losses = [r.scalars["loss"] for r in replies]
        floor = self.loss_floor
        if floor is None:
            floor = max(RELATIVE_FLOOR * max(losses), FLOOR) if 0 < self.q < 1 else FLOOR
        return [max(loss + floor, FLOOR) for loss in losses]

    def _bounds(self, replies: Sequence[Reply], info: Info) -> list[float]:
        steps = [info.steps.get(r.site, 0) if self.per_step else 1 for r in replies]
        if not (self.lipschitz or info.lr) or not all(steps):
            raise UserError("q-FedAvg: expected a local learning rate, and with per_step every site's steps, got none")
        return [(self.lipschitz or 1 / info.lr) / n for n in steps]

    def _height(self, replies: Sequence[Reply], scaled: list[float], bounds: list[float], worst: float) -> float:
        """sum_k h_k / worst^q."""
        total = 0.0
        for k, (f, bound) in enumerate(zip(scaled, bounds)):
            slope = self.q / worst * f ** (self.q - 1) if self.q else 0.0
            total += slope * bound**2 * _square(replies, k) + bound * f**self.q
        return total


def _square(replies: Sequence[Reply], k: int) -> float:
    """||D_k||^2 over the parameters."""
    return sum(square_of(updates[k]) for key in sorted(replies[k].trainable) for _, updates in blocks_of(replies, key))
