# SPDX-License-Identifier: Apache-2.0
"""Weights by fairness to patient groups (FairFed, FairFedAvg).

FairFed: sites whose local fairness is close to the federation's weigh more.

M    = rate of group A - rate of group B, of the received model: of a site from its counts, of all from summed counts
d_k  = |M - M_k|, or |Acc - Acc_k| where M_k is undefined
w~_k <- w~_k - beta (d_k - mean d),   w~ starts at n_k / n;   p_k = w~_k / sum_j w~_j

FairFedAvg: sites that the model treats more evenly get a larger part, in every round anew.

p_k ~ n_k / n + beta (max_j m_j - m_k)        m_k how uneven the received model's decisions are among the site's groups
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Annotated, Any, ClassVar, Literal

from fairflare.aggregators.base import (
    Outcome,
    State,
    WeighingRule,
    add_factors,
    convex,
    example_shares,
    limited,
    shares,
)
from fairflare.core.notes import Note
from fairflare.core.registry import method
from fairflare.core.types import Info, Reply, StateDict, Weights
from fairflare.core.validation import Names, Range
from fairflare.functional.group_rates import CORRECT, FAMILIES, SEEN, Counts, Rate, counts_of, rates, share, summed
from fairflare.functional.simplex import softmax

RATES: dict[str, Rate] = {"eo": "tpr", "dp": "selected"}
"""Setting ``metric`` -> the rate whose gap is taken."""


@method(
    "fairfed",
    title="FairFed",
    summary="Weighs sites whose gap between groups is close to the federation's; for demographic groups.",
    paper="Ezzeldin et al.: FairFed: Enabling Group Fairness in Federated Learning. AAAI 2023. "
    "https://arxiv.org/abs/2110.00857",
    probes=("fairness-counts",),
    reference={"metric": "accuracy"},
)
@dataclass(frozen=True)
class FairFed(WeighingRule):
    """Weights from how a site's fairness deviates (Ezzeldin et al., AAAI 2023, https://arxiv.org/abs/2110.00857).

    Args:
        metric: "eo", the gap of true-positive rates (equal opportunity); "dp", that of the shares that are called
            positive (demographic parity); "accuracy", |Acc - Acc_k| everywhere.
        beta: >= 0; 0 leaves every site at n_k / n.
        groups: "A,B", the two groups of the gap; empty: those with the highest and the lowest rate over all sites.
        form: "additive" as above; "exponential" is p_k ~ n_k exp(-beta d_k), without a memory.
        clip: w~ is at least 0; false carries it as it is, so that a site may get a negative part.
        variant: "reference" is FFL4MIA's branch, |Acc_k n_k / n - Acc_k| from the second round on, with a w~ that is
            normalised before it is carried; "fedufo" is FedUFO's code, ||M_k| - |M_K| n_K / n| with the last site K.
    """

    notes: ClassVar[tuple[Note, ...]] = (
        Note("deviation", "Deviation from the federation", meaning="How far a site's fairness or accuracy is off."),
        Note("gap", "Gap of the two groups", per="round", meaning="M, from the counts of all sites."),
        Note("factor", "Factor of the update", chart="table", meaning="What the update is multiplied with."),
    )
    wanted = (CORRECT, SEEN)
    metric: Literal["eo", "dp", "accuracy"] = "eo"
    beta: Annotated[float, Range(0, 1e3)] = 1.0
    groups: Names = ""
    form: Literal["additive", "exponential"] = "additive"
    clip: bool = True
    variant: Literal["paper", "reference", "fedufo"] = "paper"

    def __post_init__(self) -> None:
        if self.groups and len(set(self._pair())) != 2:
            raise ValueError(f"groups: expected two names, as A,B, got {self.groups!r}")

    @property
    def useful(self) -> tuple[str, ...]:
        return () if self.metric == "accuracy" or self.variant == "reference" else FAMILIES

    def weigh(self, replies: Sequence[Reply], state: State, info: Info) -> tuple[Weights, State]:
        factors, following, _ = self._weighed(replies, state)
        return convex(factors, replies), following

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> Outcome:
        factors, following, notes = self._weighed(replies, state)
        weights = convex(factors, replies)
        if self.caps:
            factors = weights = limited(weights, info.cap)
        return Outcome(add_factors(model, replies, factors, weights), weights, following, notes | {"factor": factors})

    def moved(self, carried: Mapping[str, float], deviations: Mapping[str, float]) -> dict[str, float]:
        """w~ after a round: w~_k - beta (d_k - mean d) for the sites that have a deviation, clipped at 0 or not."""
        mean = sum(deviations.values()) / len(deviations)
        low = 0.0 if self.caps else -math.inf
        fresh = {site: carried[site] - self.beta * (d - mean) for site, d in deviations.items()}
        return {**carried, **{site: max(value, low) for site, value in fresh.items()}}

    @property
    def caps(self) -> bool:  # type: ignore[override]  # depends on options
        """Where w~ is clipped at 0."""
        return self.clip and self.variant != "fedufo"

    def _weighed(self, replies: Sequence[Reply], state: State) -> tuple[dict[str, float], State, dict[str, Any]]:
        """Factors over the present sites, the next state, and notes."""
        deviations, gap = self._deviations(replies)
        notes: dict[str, Any] = {"deviation": deviations} | ({} if gap is None else {"gap": gap})
        if self.form == "exponential":
            logs = {r.site: math.log(r.n_examples) - self.beta * deviations[r.site] for r in replies}
            return dict(softmax(logs)), state, notes
        carried = _joined(state.get("weights", {}), replies)
        if self.variant != "reference":
            carried = self.moved(carried, deviations)
        elif state.get("weights"):
            carried = shares(self.moved(carried, deviations))
        here = {r.site: carried[r.site] for r in replies}
        total = sum(here.values())
        factors = {site: value / total for site, value in here.items()} if total > 0 else example_shares(replies)
        return factors, {"weights": carried}, notes

    def _deviations(self, replies: Sequence[Reply]) -> tuple[dict[str, float], float | None]:
        """Site -> d_k, and M."""
        if self.variant == "reference":
            parts = example_shares(replies)
            return {r.site: abs(_accuracy([r]) * parts[r.site] - _accuracy([r])) for r in replies}, None
        overall = _accuracy(replies)
        deviations = {r.site: abs(overall - _accuracy([r])) for r in replies}
        counts = {r.site: counts_of(r.scalars) for r in replies} if self.metric != "accuracy" else {}
        total = rates(summed(counts.values()), RATES.get(self.metric, "tpr"))
        pair = self._pair() or _extremes(total)
        if not pair or not set(pair) <= total.keys():
            return deviations, None
        gap = total[pair[0]] - total[pair[1]]
        local = {site: found for site, own in counts.items() if (found := self._local(own, pair)) is not None}
        if self.variant == "fedufo":
            return _authors(replies, local), gap
        return deviations | {site: abs(gap - found) for site, found in local.items()}, gap

    def _local(self, counts: Mapping[str, Counts], pair: Sequence[str]) -> float | None:
        """M_k; None where the site lacks either rate."""
        own = rates(counts, RATES[self.metric])
        return own[pair[0]] - own[pair[1]] if set(pair) <= own.keys() else None

    def _pair(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.groups.split(",") if name.strip())


def _authors(replies: Sequence[Reply], local: Mapping[str, float]) -> dict[str, float]:
    """||M_k| - c|: the loop that should sum the federation's M keeps the last site's summand alone."""
    last = replies[-1].site
    kept = abs(local.get(last, 0.0)) * example_shares(replies)[last]
    return {r.site: abs(abs(local.get(r.site, 0.0)) - kept) for r in replies}


def _accuracy(replies: Sequence[Reply]) -> float:
    """Right answers over examples, of all of these sites together."""
    found = share(sum(r.scalars[CORRECT] for r in replies), sum(r.scalars[SEEN] for r in replies))
    return 0.0 if found is None else found


def _extremes(total: Mapping[str, float]) -> tuple[str, ...]:
    """The groups with the highest and the lowest rate; () where there are not two. Ties go by name."""
    if len(total) < 2:
        return ()
    ordered = sorted(total, key=lambda group: (-total[group], group))
    return ordered[0], ordered[-1]


def _joined(carried: Mapping[str, float], replies: Sequence[Reply]) -> dict[str, float]:
    """w~ of all known sites; a new one joins with n_k / n of this round's sites, and the others make room for it."""
    examples = example_shares(replies)
    new = {site: part for site, part in examples.items() if site not in carried}
    rest = 1 - sum(new.values()) if carried else 0.0
    return {site: value * rest for site, value in carried.items()} | new


Metric = Literal["worst-tpr", "eo-sd", "ap-sd", "eo-gap"]


@method(
    "fairfedavg",
    title="FairFedAvg",
    summary="Weighs sites by their examples and by how evenly the model decides among their groups.",
    paper="Poulain et al.: Improving Fairness in AI Models on Electronic Health Records: The Case for Federated "
    "Learning Methods. FAccT 2023. https://arxiv.org/abs/2305.11386",
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

    def round_notes(
        self, weights: Weights, replies: Sequence[Reply], before: State, after: State, info: Info
    ) -> Mapping[str, Any]:
        return {"unfairness": _unfairness(replies, self.metric)}

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
