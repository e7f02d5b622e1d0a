# SPDX-License-Identifier: Apache-2.0
"""FairFedAvg: sites that the model treats more evenly get a larger part, in every round anew.

p_k ~ n_k / n + beta (max_j m_j - m_k)        m_k how uneven the received model's decisions are among the site's groups
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Annotated, Any, ClassVar, Literal

from fairflare.aggregators.base import Outcome, State, WeighingRule, add_weighted, example_shares, limited, shares
from fairflare.core.notes import Note
from fairflare.core.registry import method
from fairflare.core.types import Info, Paper, Reply, StateDict, Weights
from fairflare.core.validation import Range
from fairflare.functional.group_rates import CORRECT, FAMILIES, SEEN, Counts, counts_of, rates

Metric = Literal["worst-tpr", "eo-sd", "ap-sd", "eo-gap"]


@method(
    "fairfedavg",
    title="FairFedAvg",
    summary="Weighs sites by their examples and by how evenly the model decides among their groups.",
    paper=Paper.cited(
        "Poulain et al.: Improving Fairness in AI Models on Electronic Health Records: The Case for Federated Learning "
        "Methods. FAccT 2023. https://arxiv.org/abs/2305.11386"
    ),
    probes=("fairness-counts",),
)
@dataclass(frozen=True)
class FairFedAvg(WeighingRule):
    """Weights from local unfairness (Poulain et al., FAccT 2023, https://arxiv.org/abs/2305.11386).

    Args:
        metric: m_k: "worst-tpr", 1 minus the lowest true-positive rate of a group; "eo-sd", the sample standard
            deviation of these rates; "ap-sd", that of the groups' accuracies; "eo-gap", the highest minus the lowest.
        beta: >= 0; 0 is FedAvg.
        variant: "fedufo" is the form that FedUFO's code calls DIPOLE: what is added is kept and grows over the rounds;
            to be used with ``metric=eo-gap``.
    """

    caps: ClassVar[bool] = True
    notes: ClassVar[tuple[Note, ...]] = (
        Note("unfairness", "Unfairness at the site", meaning="m_k, where it is defined and could leave the site."),
    )
    wanted = (CORRECT, SEEN)
    useful = FAMILIES
    metric: Metric = "worst-tpr"
    beta: Annotated[float, Range(0, 1e3)] = 1.0
    variant: Literal["paper", "fedufo"] = "paper"

    def weigh(self, replies: Sequence[Reply], state: State, info: Info) -> tuple[Weights, State]:
        return self.weighed(_unfairness(replies, self.metric), replies, state)

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> Outcome:
        found = _unfairness(replies, self.metric)
        weights, following = self.weighed(found, replies, state)
        weights = limited(weights, info.cap)
        return Outcome(add_weighted(model, replies, weights), weights, following, {"unfairness": found})

    def weighed(self, found: Mapping[str, float], replies: Sequence[Reply], state: State) -> tuple[Weights, State]:
        """Weights and next state from m_k, where that is known.

        A site without an m_k, or with one of 0 (the authors' code), has the mean of those that are known.
        """
        added = self._added(found, [r.site for r in replies])
        examples, carried = example_shares(replies), state.get("carried", {})
        if self.variant == "paper":
            return shares({site: part + added[site] for site, part in examples.items()}), state
        sums = {site: carried.get(site, part) + added[site] for site, part in examples.items()}
        return shares(sums), {"carried": {**carried, **sums}}

    def _added(self, found: Mapping[str, float], sites: Sequence[str]) -> dict[str, float]:
        """beta (max m - m_k)."""
        if not found:
            return dict.fromkeys(sites, 0.0)
        mean = sum(found.values()) / len(found)
        kept = {site: mean if self.variant == "paper" and value <= 0 else value for site, value in found.items()}
        m = {site: kept.get(site, mean) for site in sites}
        return {site: self.beta * (max(m.values()) - value) for site, value in m.items()}


def _unfairness(replies: Sequence[Reply], metric: Metric) -> dict[str, float]:
    """Site -> m_k, where it is defined."""
    found = {r.site: _uneven(counts_of(r.scalars), metric) for r in replies}
    return {site: value for site, value in found.items() if value is not None}


def _uneven(counts: Mapping[str, Counts], metric: Metric) -> float | None:
    values: list[Any] = list(rates(counts, "accuracy" if metric == "ap-sd" else "tpr").values())
    if len(values) < (1 if metric == "worst-tpr" else 2):
        return None
    if metric == "worst-tpr":
        return 1.0 - float(min(values))
    return float(max(values) - min(values) if metric == "eo-gap" else stdev(values))
