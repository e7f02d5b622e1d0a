# SPDX-License-Identifier: Apache-2.0
"""FedCI: sites weigh by their Shapley values, measured in every round.

w_S    = w^t + sum_{k in S} n_k D_k / n_S                      the model of coalition S; w^t for nobody
v(S)   = sum_k n_k (1 - error of w_S on k's validation data) / n
SV_k   = sum_S |S|! (K - |S| - 1)! / K! (v(S + k) - v(S))      from permutations where there are many sites
p_k    = sum over the rounds so far of SV_k, those below 0 counted as 0, normalised
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

from fairflare.aggregators.base import Notes, State, WeighingRule, add_weighted, convex, example_shares, filled, uniform
from fairflare.core.notes import Note
from fairflare.core.registry import method
from fairflare.core.types import Info, Reply, StateDict, Weights
from fairflare.core.validation import Range
from fairflare_lab.functional.shapley import Coalition, coalitions, exact, prefixes, sampled

ERROR = "coalition_error"
MOST_EXACT = 10
"""Sites for whose 2^K - 1 = 1023 coalitions anyone could wait."""


@method(
    "fedci",
    title="FedCI",
    summary="Weighs sites by Shapley values that all sites measure in every round; up to 2^K - 1 models are sent.",
    paper="Jiang et al.: Fair Federated Medical Image Segmentation via Client Contribution Estimation. CVPR 2023. "
    "https://arxiv.org/abs/2303.16520",
    probes=("local-error", "coalition-error"),
    shared={"score_metric": ("probe.local-error.score_metric", "probe.coalition-error.score_metric")},
)
@dataclass(frozen=True)
class FedCI(WeighingRule):
    """Aggregation by Shapley values, as Jiang et al. (arXiv:2303.16520) extend FedCI for their comparison.

    Every coalition's model is sent to every site, in an exchange of its own.

    Args:
        exact_up_to: sites up to which all 2^K - 1 coalitions are evaluated, at most 10.
        permutations: that are sampled where there are more, at most K coalitions each.
        utility: a coalition's is the sites' mean score, weighed by "examples" (n_k) or "uniform".
        accumulate: False weighs by this round's values alone.
    """

    caps: ClassVar[bool] = True
    notes: ClassVar[tuple[Note, ...]] = (
        Note("contribution", "Estimated contribution", "fraction", shares=True, meaning="The site's weight."),
        Note("shapley", "Shapley value", meaning="What the site's update adds to the score, mean over coalitions."),
        Note("evaluated", "Coalitions evaluated", per="round", chart="none", meaning="Models sent beyond the round's."),
    )
    useful = ("received_error", ERROR)
    exact_up_to: Annotated[int, Range(0, MOST_EXACT)] = 6
    permutations: Annotated[int, Range(1, 1000)] = 10
    utility: Literal["examples", "uniform"] = "examples"
    accumulate: bool = True

    def anchors(
        self, model: StateDict, replies: Sequence[Reply], state: State, info: Info
    ) -> Iterator[tuple[str, StateDict]]:
        if len(replies) < 2:
            return
        for coalition in self._coalitions([r.site for r in replies], info):
            members = [r for r in replies if r.site in coalition]
            yield label(coalition), add_weighted(model, members, example_shares(members))

    def weigh(self, replies: Sequence[Reply], state: State, info: Info) -> tuple[Weights, State]:
        values = self._values(replies, info)
        before = state.get("sums", {}) if self.accumulate else {}
        sums = {site: before.get(site, 0.0) + value for site, value in values.items()}
        weights = convex({r.site: sums[r.site] for r in replies}, replies)
        return weights, {"sums": {**before, **sums}} if self.accumulate else dict(state)

    def round_notes(self, weights: Weights, replies: Sequence[Reply], before: State, after: State, info: Info) -> Notes:
        evaluated = {name for r in replies for name in r.scalars if name.startswith(f"{ERROR}/")}
        return {"contribution": weights, "shapley": self._values(replies, info), "evaluated": len(evaluated)}

    def _coalitions(self, sites: Sequence[str], info: Info) -> list[Coalition]:
        """Those that are evaluated."""
        if len(sites) <= self.exact_up_to:
            return list(coalitions(sites))
        return prefixes(self._orders(sites, info))

    def _orders(self, sites: Sequence[str], info: Info) -> list[list[str]]:
        """The round's permutations; a site that is left out later leaves the others' order as it was."""
        drawn = (f"{info.round.number} {number} " for number in range(self.permutations))
        return [sorted(sites, key=partial(_place, at)) for at in drawn]

    def _values(self, replies: Sequence[Reply], info: Info) -> dict[str, float]:
        """This round's Shapley values; 0 for all where utilities are not known."""
        sites = [r.site for r in replies]
        known = self._utilities(replies, info)
        everything = {frozenset[str](), *coalitions(sites)} if len(sites) <= MOST_EXACT else set()
        if everything and everything <= set(known):
            return exact(sites, known)
        found = sampled(self._orders(sites, info), known)
        return filled({site: found.get(site) for site in sites}) if found else dict.fromkeys(sites, 0.0)

    def _utilities(self, replies: Sequence[Reply], info: Info) -> dict[Coalition, float]:
        """v of nobody, and of every coalition of these sites that all of them have evaluated."""
        sites = [r.site for r in replies]
        names = {frozenset[str](): "received_error"}
        names |= {c: f"{ERROR}/{label(c)}" for c in self._coalitions(sites, info)}
        weights = example_shares(replies) if self.utility == "examples" else uniform(sites)
        return {c: v for c, name in names.items() if (v := _score(replies, weights, name)) is not None}


def _place(order: str, site: str) -> bytes:
    """Where a site stands in one order: it does not depend on who else is there."""
    return hashlib.sha256((order + site).encode()).digest()


def label(coalition: Coalition) -> str:
    """A short name of the coalition, which does not depend on who else is there."""
    return hashlib.sha256("\n".join(sorted(coalition)).encode()).hexdigest()[:12]


def _score(replies: Sequence[Reply], weights: Mapping[str, float], name: str) -> float | None:
    """The mean of 1 - error over the sites that can say it; None where none can."""
    known = {r.site: 1 - r.scalars[name] for r in replies if name in r.scalars}
    total = sum(weights[site] for site in known)
    return sum(weights[site] * value for site, value in known.items()) / total if total > 0 else None
