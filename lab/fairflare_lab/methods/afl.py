# SPDX-License-Identifier: Apache-2.0
"""AFL: the sites' weights climb towards those with larger losses, and stay on the simplex by projection.

w^{t+1}  = w^t + sum_k lambda_k D_k
lambda  <- Projection(lambda + step F_k(w^t)),   lambda starts at 1 / K
The guarantees are those of the mean of w^1 ... w^T, which a run shows beside w^T.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from fairflare.aggregators.base import Outcome, Rule, State, add_weighted, limited, shares
from fairflare.core.notes import Note
from fairflare.core.registry import method
from fairflare.core.types import Info, Reply, StateDict, Weights
from fairflare.core.validation import Range
from fairflare.functional.simplex import of_largest
from fairflare_lab.functional.terms import projected, projected_reference, with_newcomers


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
    def ends_apart(self) -> bool:  # type: ignore[override]  # the same
        """The mean is of models before a server optimizer's steps, and what it steps from is no such mean."""
        return self.average == "final"

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
