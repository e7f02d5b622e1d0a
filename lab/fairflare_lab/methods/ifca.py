# SPDX-License-Identifier: Apache-2.0
"""IFCA: as many models as there are clusters of sites; each site works on the one with the least loss on its data.

theta_j   <- mean of w_k over the sites of cluster j             w_k: what site k made of the theta_j that it was sent
cluster_k <- argmin_j F_k(theta_j)                               measured by the site in a further exchange
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from fairflare.aggregators.base import Outcome, Rule, State, add_weighted, example_shares, uniform
from fairflare.aggregators.own import from_shared
from fairflare.core.notes import Note
from fairflare.core.registry import method
from fairflare.core.types import Info, Reply, StateDict, Weights
from fairflare.core.validation import Range
from fairflare.functional.robust import distances

LOSS = "cluster_loss"


@method(
    "ifca",
    title="IFCA",
    summary="Clusters of sites, each with a model of its own; a site joins the cluster whose model fits it best.",
    probes=("cluster-loss",),
    paper="Ghosh et al.: An Efficient Framework for Clustered Federated Learning. NeurIPS 2020. "
    "https://arxiv.org/abs/2006.04088",
)
@dataclass(frozen=True)
class IFCA(Rule):
    """Iterative clustering (Ghosh et al., NeurIPS 2020, https://arxiv.org/abs/2006.04088, Algorithm 1, option II).

    The first round has one model; its updates are grouped around sites that are far apart, and that is where the
    clusters begin. A cluster without a site in a round keeps its model, and a site that is away its cluster.

    Args:
        clusters: k >= 1; 1 is FedAvg.
        weighting: of the sites within a cluster: "uniform" (the paper), or "examples" for n_k / n.
    """

    notes: ClassVar[tuple[Note, ...]] = (
        Note("cluster", "Cluster", chart="table", meaning="The cluster whose model the site is sent next, from 0."),
    )
    own_models = counts_own = True
    useful = (LOSS,)
    clusters: Annotated[int, Range(1, 50)] = 2
    weighting: Literal["uniform", "examples"] = "uniform"

    def anchors(
        self, model: StateDict, replies: Sequence[Reply], state: State, info: Info
    ) -> Iterator[tuple[str, StateDict]]:
        yield from self._averaged(model, replies, state, info).items()

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> Outcome:
        found = self._averaged(model, replies, state, info)
        chosen = {r.site: min(found, key=lambda j: r.scalars.get(f"{LOSS}/{j}", float("inf"))) for r in replies}
        place = {site: j for site, j in {**state.get("place", {}), **chosen}.items() if j in found}
        weights = self._shares(replies)
        after = add_weighted(model, [from_shared(r, model, info) for r in replies], weights)
        notes = {"cluster": {site: int(j) for site, j in chosen.items()}}
        own = {site: found[j] for site, j in place.items()}
        return Outcome(after, weights, {"clusters": found, "place": place}, notes, own)

    def _averaged(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> dict[str, StateDict]:
        """Cluster -> its next model."""
        local = [from_shared(r, model, info) for r in replies]
        if "clusters" not in state:
            place: Mapping[str, str] = self._begun(local)
            found = {j: model for j in sorted(set(place.values()))}
        else:
            place, found = state["place"], dict(state["clusters"])
        for j in found:
            if members := [r for r in local if place.get(r.site) == j]:
                found[j] = add_weighted(model, members, self._shares(members))
        return found

    def _begun(self, replies: Sequence[Reply]) -> dict[str, str]:
        """Site -> the nearest of ``clusters`` sites, the first nearest to the rest, each next farthest from them."""
        apart = distances(replies)
        centres = [int(apart.sum(1).argmin())]
        while len(centres) < self.clusters and apart[:, centres].min(1).max() > 0:
            centres.append(int(apart[:, centres].min(1).argmax()))
        return {r.site: str(j) for r, j in zip(replies, np.argmin(apart[:, centres], axis=1), strict=True)}

    def _shares(self, replies: Sequence[Reply]) -> Weights:
        return uniform([r.site for r in replies]) if self.weighting == "uniform" else example_shares(replies)
