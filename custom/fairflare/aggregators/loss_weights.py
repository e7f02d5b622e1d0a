# SPDX-License-Identifier: Apache-2.0
"""Weights by losses: sites on which the model does worse, or which it can still win, count more (AFL, q-FedAvg, MaxFL).

AFL: the sites' weights climb towards those with larger losses, and stay on the simplex by projection.

w^{t+1}  = w^t + sum_k lambda_k D_k
lambda  <- Projection(lambda + step F_k(w^t)),   lambda starts at 1 / K
The guarantees are those of the mean of w^1 ... w^T, which a run shows beside w^T.

q-FedAvg: sites with a larger loss weigh more, and the step is as long as the losses' curvature allows.

Delta_k = F_k^q L_k (w - w_k),   h_k = q F_k^{q-1} ||L_k (w - w_k)||^2 + L_k F_k^q,   w -= sum_k Delta_k / sum_k h_k

q-FFL as weights: p_k = n_k F_k^q / sum_j n_j F_j^q, the weights of the gradient of the same objective
sum_k (n_k / n) F_k^{q+1} / (q + 1), computed as a softmax of log n_k + q log F_k, so that no power leaves the doubles.

MaxFL: weigh most the sites for which the shared model is about as good as what they require of it.

q_k = s (1 - s),  s = sigmoid(F_k(w^t) - rho_k)      rho_k: the loss that site k requires, see ``probes/loss.py``
p_k = q_k / sum_j q_j
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from fairflare.aggregators.base import Outcome, Rule, State, SummedRule, add_scaled, add_weighted, limited, shares
from fairflare.core.errors import UserError
from fairflare.core.notes import Note
from fairflare.core.registry import method
from fairflare.core.types import Info, Reply, StateDict, Training, Weights
from fairflare.core.validation import Range
from fairflare.functional.blocks import blocks_of, square_of
from fairflare.functional.simplex import of_largest, projected, projected_reference, softmax, with_newcomers


@method(
    "afl",
    title="AFL",
    summary="Weighs sites for the worst mixture of them: weights climb with the losses, projected on the simplex.",
    paper="Mohri et al.: Agnostic Federated Learning. ICML 2019. https://arxiv.org/abs/1902.00146",
    probes=("loss",),
)
@dataclass(frozen=True)
class AFL(Rule):
    """Agnostic federated learning (Mohri et al., ICML 2019, https://arxiv.org/abs/1902.00146, Algorithm 1).

    Local training in place of one stochastic step; the losses are those of the received model.

    Args:
        step: of lambda, >= 0; 0 is the uniform mean.
        average: where the mean of w^1 ... w^T goes at the end: "beside" the last model, as every site's own one; in its
            place ("final"); "none" keeps none.
        argmax: true gives each round to the sites with the largest loss, without a lambda.
        variant: "reference" projects as fair_flearn's code does, whose lambda may sum to more than 1.
    """

    caps: ClassVar[bool] = True
    notes: ClassVar[tuple[Note, ...]] = (
        Note("site_lambda", "Next weights of the sites", "fraction", shares=True, meaning="Next round's weights."),
    )
    wanted = ("loss",)
    step: Annotated[float, Range(0, 1e6)] = 0.1
    average: Literal["beside", "final", "none"] = "beside"
    argmax: bool = False
    variant: Literal["paper", "reference"] = "paper"

    @property
    def own_models(self) -> bool:  # type: ignore[override]  # what is constant of other rules is an option here
        """Sites are given the average in the last round, which is then evaluated beside the shared model."""
        return self.average == "beside"

    @property
    def weighs_sums(self) -> bool:  # type: ignore[override]  # the same
        """A mean over the rounds' models would average sums."""
        return self.average == "none"

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> Outcome:
        """As above; the weights are lambda of the sites that are here, normalised.

        State: "lambda" (site -> number >= 0, 1 together with variant=paper), and unless average=none the mean "average"
        of the "averaged" models w^1 ... w^t.
        """
        weights, following = self._weighed(replies, state)
        weights = limited(weights, info.cap)
        after = add_weighted(model, replies, weights)
        notes = {"site_lambda": shares(following["lambda"])}
        if self.average == "none":
            return Outcome(after, weights, following, notes)
        if "lambda" in state:
            following = {**following, "average": _averaged(model, state), "averaged": state.get("averaged", 0) + 1}
        if info.round.number < info.round.total:
            return Outcome(after, weights, following, notes)
        mean = _averaged(after, following)
        if self.average == "final":
            return Outcome(mean, weights, following, notes)
        return Outcome(after, weights, following, notes, dict.fromkeys(sorted(following["lambda"]), mean))

    def _weighed(self, replies: Sequence[Reply], state: State) -> tuple[Weights, State]:
        """lambda of the sites that are here, normalised; absent sites keep theirs."""
        losses = {r.site: r.scalars["loss"] for r in replies}
        current = with_newcomers(state.get("lambda", {}), losses)
        here = {site: current[site] for site in losses}
        if self.argmax:
            return of_largest(losses), {**state, "lambda": current}
        mass, moved = sum(here.values()), {site: value + self.step * losses[site] for site, value in here.items()}
        if self.variant == "reference":
            climbed = projected_reference(moved)
        else:  # the present sites share what they had
            climbed = projected(moved, mass) if mass > 0 else here
        return shares(here), {**state, "lambda": current | climbed}


def _averaged(model: StateDict, state: State) -> StateDict:
    """The running mean with one more model; what is no floating-point number is the last model's."""
    before, count = state.get("average", {}), int(state.get("averaged", 0)) + 1
    return {
        key: before[key] + (value - before[key]) / count if count > 1 and value.is_floating_point() else value.clone()
        for key, value in model.items()
    }


FLOOR = 1e-10
"""What is added to every loss, the authors' number; or the least loss."""
RELATIVE_FLOOR = 1e-3
"""With 0 < q < 1, of the largest loss: F^{q-1} of a loss near 0 would fill the denominator and stop every step."""
LONGEST = 1e4
"""The longest step of ``static``, in mean updates: a loss is a site's word."""
MOST_Q = 30
"""(1e-10)^30 and (1e6)^30 times any number of examples are doubles."""
WORST_ONLY = 100.0
"""From this q on the reference takes the site with the largest loss alone."""
PAPER = "Li et al.: Fair Resource Allocation in Federated Learning. ICLR 2020. https://arxiv.org/abs/1905.10497"


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


def _square(replies: Sequence[Reply], k: int) -> float:
    """||D_k||^2 over the parameters."""
    return sum(square_of(updates[k]) for key in sorted(replies[k].trainable) for _, updates in blocks_of(replies, key))


APPEAL = "appeal"


@method(
    "maxfl",
    title="MaxFL",
    summary="Weighs most the sites that the shared model is about to win or to lose against their own; for its appeal.",
    probes=("appeal",),
    paper="Cho et al.: Maximizing Global Model Appeal in Federated Learning. TMLR 2024. "
    "https://arxiv.org/abs/2205.14840",
)
@dataclass(frozen=True)
class MaxFL(SummedRule):
    """The gradient's weights of sum_k sigmoid(F_k(w) - rho_k), a smooth count of the sites that the model fails.

    Cho et al., TMLR 2024, https://arxiv.org/abs/2205.14840, Algorithm 1. Sites count alike, whatever their n_k, and
    each reports a number in [0, 1/4]. Where all of them are 0 the weights are uniform.
    """

    n_terms, counted = 2, 1
    wanted = (APPEAL,)

    def weigh(self, replies: Sequence[Reply], state: State, info: Info) -> tuple[Weights, State]:
        return shares({r.site: r.scalars[APPEAL] for r in replies}), state

    def terms(self, scalars: Mapping[str, float], n_examples: int, kept: float | None) -> tuple[float, ...]:
        return scalars[APPEAL], 1.0
