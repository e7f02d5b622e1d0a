# SPDX-License-Identifier: Apache-2.0
"""FedCE: sites weigh by what they contribute, estimated in gradient space and in data space.

c_i   = 1 - cos(u_i, sum_{j != i} p_j u_j)          novelty of this round's update, p = the weights before
e_i   = 1 - score of (w - p_i w_i) / (1 - p_i)      error of the leave-one-out model on the site's validation data
s_i   = c_i / sum c + e_i / sum e   ("sum"),   c_i e_i / (sum c sum e)   ("multi")
rho_i = sum over the rounds so far of s_i, normalised over sites;   w <- sum_i rho_i w_i
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from fairflare.aggregators.base import Outcome, State, WeighingRule, add_weighted, filled, limited, shares, uniform
from fairflare.aggregators.own import View
from fairflare.core.notes import Note
from fairflare.core.registry import method
from fairflare.core.types import Info, Reply, StateDict, Weights
from fairflare.functional.novelty import novelty

FLOOR = 1e-6
"""Least term and weight of FLARE's own aggregator."""
OLD_FLOOR = 1e-3
ALONE = 0.999
"""From this weight on the other sites' share of a model is lost in rounding."""
FREE_RIDER = 3.0
"""A site is marked when its usual free-rider score exceeds this many times that of the median site."""
SCORE = "Novelty times error gap. Score and limit are this package's interpretation of the FedCE paper."


@method(
    "fedce",
    title="FedCE",
    summary="Weighs sites by estimated contribution: novel updates, and loss of accuracy without them.",
    paper="Jiang et al.: Fair Federated Medical Image Segmentation via Client Contribution Estimation. CVPR 2023. "
    "https://arxiv.org/abs/2303.16520",
    probes=("leave-one-out", "local-error"),
    shared={"score_metric": ("probe.leave-one-out.score_metric", "probe.local-error.score_metric")},
)
@dataclass(frozen=True)
class FedCE(WeighingRule):
    """Contribution-weighted aggregation (Jiang et al., arXiv:2303.16520, Eq. 2 to 6, without the k in Eq. 5's Z_k).

    Args:
        combine: "sum" or "multi", how the two normalised terms are put together.
        terms: "both", or one of them alone: "cosine" (no leave-one-out model is evaluated) or "error".
        variant: "paper" as above. "flare" is FLARE 2.9's ``FedCEModelAggregator``: cosines and scores are averaged over
            the rounds before they are normalised (the score of the first round counts as 0), nothing is accumulated.
            "reference" is the authors' first code: like "flare", with the prior p = 1 / K for ever and weights of at
            least 0.001. "ffl4mia" is the code behind FedISM+'s tables: weights averaged over the rounds are used.
    """

    caps: ClassVar[bool] = True
    notes: ClassVar[tuple[Note, ...]] = (
        Note("contribution", "Estimated contribution", "fraction", shares=True, meaning="The site's weight."),
        Note("novelty", "Novelty", chart="table", meaning="1 minus the update's cosine with the other sites' update."),
        Note("error_gap", "Error gap", chart="table", meaning="How far training moved the site's validation error."),
        Note("free_rider_score", "Free-rider score", mark_above=FREE_RIDER, meaning=SCORE),
    )
    combine: Literal["sum", "multi"] = "sum"
    terms: Literal["both", "cosine", "error"] = "both"
    variant: Literal["paper", "flare", "reference", "ffl4mia"] = "paper"

    @property
    def useful(self) -> tuple[str, ...]:
        return ("received_error", "trained_error") + (() if self.terms == "cosine" else ("minus_error",))

    def orders(self, state: State, site: str, info: Info) -> dict[str, float]:
        """The weight that the site's last model has in the model it receives; none when it has no part in it, or where
        bounds have shortened or mixed the update, so that the model holds another one."""
        weight = state.get("last", {}).get(site)
        return {} if weight is None or weight > ALONE else {"coefficient": weight}

    def weigh(self, replies: Sequence[Reply], state: State, info: Info) -> tuple[Weights, State]:
        weights, _, next_state = self._weighed(replies, state, info)
        return weights, next_state

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> Outcome:
        weights, fresh, next_state = self._weighed(replies, state, info)
        errors = {r.site: (r.scalars.get("received_error"), r.scalars.get("trained_error")) for r in replies}
        gaps = {site: abs(a - b) for site, (a, b) in errors.items() if a is not None and b is not None}
        scores = {site: fresh[site] * gap for site, gap in gaps.items()}
        notes = {"contribution": weights, "novelty": fresh, "error_gap": gaps, "free_rider_score": scores}
        return Outcome(add_weighted(model, replies, weights), weights, next_state, notes)

    def _weighed(
        self, replies: Sequence[Reply], state: State, info: Info
    ) -> tuple[Weights, dict[str, float], dict[str, Any]]:
        known = {} if self.variant == "reference" else state.get("weights", {})
        prior = filled({r.site: known.get(r.site) for r in replies})  # a site that is new stands at their mean
        fresh = novelty(replies, prior, of_nothing=1.0 if self.variant == "flare" else 0.0)
        if len(replies) == 1:
            weights = uniform([replies[0].site])
            return weights, fresh, {**state, "last": weights}
        rule = self._accumulated if self.variant == "paper" else self._averaged
        weights, next_state = rule(replies, fresh, state)
        weights = limited(weights, info.cap)
        last = {r.site: weights[r.site] for r in replies if not isinstance(r.update, View)}
        return weights, fresh, {**next_state, "last": last}

    def _accumulated(
        self, replies: Sequence[Reply], fresh: Mapping[str, float], state: State
    ) -> tuple[Weights, dict[str, Any]]:
        """The paper's rule: this round's combined terms are added to those of the rounds before."""
        errors = filled({r.site: r.scalars.get("minus_error") for r in replies}, default=1.0)
        combined = self._combined(shares(fresh), shares(errors))
        before = state.get("sums", {})
        # A site that joins late starts level with the others, not at nothing.
        start = filled({site: before.get(site) for site in combined}, default=0.0)
        sums = {site: start[site] + combined[site] for site in combined}
        weights = shares(sums)
        return weights, {"sums": {**before, **sums}, "weights": {**state.get("weights", {}), **weights}}

    def _averaged(
        self, replies: Sequence[Reply], fresh: Mapping[str, float], state: State
    ) -> tuple[Weights, dict[str, Any]]:
        """The code's rules: terms are averaged over the rounds, then normalised."""
        cosines, scores = dict(state.get("cosines", {})), dict(state.get("scores", {}))
        for reply in replies:
            cosines[reply.site] = _appended(cosines.get(reply.site), 1.0 - fresh[reply.site])
            error = reply.scalars.get("minus_error")
            if error is not None or reply.site not in scores:
                # A site's first round counts as a score of 0; after an absence there is nothing to add.
                scores[reply.site] = _appended(scores.get(reply.site), 0.0 if error is None else 1.0 - error)
        here = [r.site for r in replies]
        floor = FLOOR if self.variant == "flare" else 0.0
        terms = (_floored({s: 1.0 - _mean(history[s]) for s in here}, floor) for history in (cosines, scores))
        weights = _floored(self._combined(*terms), floor)
        kept = {"cosines": cosines, "scores": scores}
        if self.variant == "reference":
            weights = {site: max(w, OLD_FLOOR) for site, w in weights.items()}
        if self.variant == "ffl4mia":
            past = dict(state.get("coefficients", {}))
            past |= {site: _appended(past.get(site), w) for site, w in weights.items()}
            kept["coefficients"] = past
            weights = {site: _mean(past[site]) for site in here}
        weights = shares(weights)
        return weights, {**kept, "weights": {**state.get("weights", {}), **weights}}

    def _combined(self, cosine: Weights, error: Weights) -> dict[str, float]:
        if self.terms != "both":
            return dict(cosine if self.terms == "cosine" else error)
        if self.combine == "sum":
            return {site: cosine[site] + error[site] for site in cosine}
        return {site: cosine[site] * error[site] for site in cosine}


def _floored(values: Mapping[str, float], floor: float) -> Weights:
    return shares({site: max(value, floor) for site, value in values.items()})


def _appended(running: Mapping[str, float] | None, value: float) -> dict[str, float]:
    """A running sum and count with ``value`` added."""
    running = running or {"sum": 0.0, "count": 0.0}
    return {"sum": running["sum"] + value, "count": running["count"] + 1}


def _mean(running: Mapping[str, float]) -> float:
    return running["sum"] / running["count"]
