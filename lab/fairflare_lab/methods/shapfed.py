# SPDX-License-Identifier: Apache-2.0
"""ShapFed: what a site contributes, class by class, read from the updates of the last layer.

D_k[c]    site k's update of class c's row of the last layer, its bias included
B_k[c]    D_k[c], no longer than the lower median of the sites' rows that are not zero
s_{k,c}   cos(D_k[c], sum_j max(gamma_j, 0) B_j[c])     gamma of the round before (equal at first)
gamma_k   moving average over the rounds of the mean over classes of s_{k,c}
w^{t+1}   w^t + sum_k p_k D_k,  p from gamma;   a site's own model, if sites are rewarded: (1 - f_k) w_k + f_k w^{t+1}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch

from fairflare.aggregators import base
from fairflare.aggregators.own import from_shared
from fairflare.core.errors import RunFailed
from fairflare.core.notes import Note
from fairflare.core.registry import method
from fairflare.core.types import HELD, Info, Offer, Reply, StateDict, Weights
from fairflare.core.validation import Range, within
from fairflare_lab.functional.terms import head_of


@method(
    "shapfed",
    title="ShapFed",
    summary="Weighs sites by how their last layer's update agrees with the sum, class by class; can reward sites.",
    paper="Tastan et al.: Redefining Contributions: Shapley-Driven Federated Learning. IJCAI 2024. "
    "https://arxiv.org/abs/2406.00569",
    probes=("held-classes",),
)
@dataclass(frozen=True)
class ShapFed(base.Rule):
    """Class-wise contributions (Tastan et al., arXiv:2406.00569); despite its name no Shapley value.

    Args:
        mu: share of the past in the moving average of the contributions, in [0, 1).
        weighting: p from the contributions, or "examples" (n_k / n), or "uniform".
        clip: True counts a negative contribution as 0, in p and in f; False (paper and code) lets p_k be negative, in
            trainable entries alone.
        direction: "bounded" as above, by which the direction is that of most sites and not of the longest update; "sum"
            (paper and code) takes sum_j gamma_j D_j[c]. Where contributions cancel, that is add up to nothing above 0
            or would make a factor larger than 1, "bounded" keeps the factors of the round before (at first uniform);
            "sum" is uniform in the first case and has no bound in the second.
        rewards: True gives each site a model of its own.
        receive: f_k of these: "max" is gamma_k / max gamma, "gamma" gamma_k itself (the paper), "share" gamma_k / sum
            gamma (the code).
        classes: "all", or "held": a site is scored on the classes that it says it holds.
        head: the last layer's name; empty: the last trainable matrix of the model.
    """

    notes: ClassVar[tuple[Note, ...]] = (
        Note("gamma", "Contribution", meaning="Moving average of the cosine with the sum, over classes."),
        Note("received", "Received share of the shared model", "fraction", chart="table", meaning="f_k."),
        Note("class_similarity", "Class-wise similarity", per="cell", chart="map", over="mean", meaning="s, by class."),
    )
    mu: Annotated[float, Range(0, 1)] = 0.9
    weighting: Literal["contribution", "examples", "uniform"] = "contribution"
    clip: bool = True
    direction: Literal["bounded", "sum"] = "bounded"
    rewards: bool = False
    receive: Literal["max", "gamma", "share"] = "max"
    classes: Literal["all", "held"] = "all"
    head: str = ""

    def __post_init__(self) -> None:
        within(self, mu="[0, 1)")

    @property
    def own_models(self) -> bool:  # type: ignore[override]  # what other rules say of their class depends on a setting
        """Whether sites are rewarded."""
        return self.rewards

    @property
    def counts_own(self) -> bool:  # type: ignore[override]  # as ``own_models``
        """Whether sites are rewarded: then they use what they were given."""
        return self.rewards

    @property
    def useful(self) -> tuple[str, ...]:
        return (HELD,) if self.classes == "held" else ()

    def missing(self, offer: Offer) -> str:
        if self.classes == "held" and not offer.has_classes:
            return "classes=held needs examples with one class label each; set classes=all"
        return ""

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: base.State, info: Info) -> base.Outcome:
        """As above; the weights are p, none below 0, normalised.

        State: "gamma" (site -> number in [-1, 1]) and with direction=bounded "factors" (site -> p_k).
        """
        scores = self._scores(model, replies, state)
        gamma = self._averaged(scores, state)
        factors = self._factors(replies, gamma, state)
        weights = base.shares({site: max(factor, 0.0) for site, factor in factors.items()})
        gone = [from_shared(r, model, info) for r in replies]
        after = base.add_factors(model, gone, factors, weights)
        received = self._received(gamma) if self.rewards else {}
        own = {r.site: _mixed(model, r, after, received[r.site]) for r in gone if r.site in received}
        by_class = {site: {str(c): s for c, s in row.items()} for site, row in scores.items()}
        notes: dict[str, Any] = {"gamma": gamma, "class_similarity": by_class}
        if received:
            notes["received"] = received
        following = {"gamma": {**state.get("gamma", {}), **gamma}}
        if self.direction == "bounded":
            following["factors"] = {**state.get("factors", {}), **factors}
        return base.Outcome(after, weights, following, notes, own)

    def _scores(self, model: StateDict, replies: Sequence[Reply], state: base.State) -> dict[str, dict[int, float]]:
        """Site -> class -> s; a row of zeros scores 0, a class that the site lacks is left out."""
        try:
            keys = head_of(model, replies[0].trainable, self.head)
        except ValueError as error:
            raise RunFailed(str(error)) from None
        heads = np.stack([_rows(r, keys) for r in replies])
        known = base.filled({r.site: state.get("gamma", {}).get(r.site) for r in replies})
        gamma = np.array([known[r.site] for r in replies])
        counted = heads
        if self.direction == "bounded":
            gamma, counted = np.maximum(gamma, 0.0), _bounded(heads)
        if gamma.sum() <= 0:
            gamma = np.ones(len(replies))
        total = np.einsum("k,kcf->cf", gamma, counted)
        lengths = np.linalg.norm(heads, axis=2) * np.linalg.norm(total, axis=1)
        products = np.einsum("kcf,cf->kc", heads, total)
        cosines = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
        return {
            r.site: {c: float(s) for c, s in enumerate(row) if len(row) == 1 or self._counts(r, c)}
            for r, row in zip(replies, np.clip(cosines, -1, 1))
        }

    def _counts(self, reply: Reply, c: int) -> bool:
        return self.classes == "all" or reply.scalars.get(f"{HELD}/{c}", 1.0) > 0

    def _averaged(self, scores: Mapping[str, Mapping[int, float]], state: base.State) -> dict[str, float]:
        """gamma of the sites that are here; who is new, or has no class to be scored on, keeps what there is."""
        before, found = state.get("gamma", {}), {}
        for site, row in scores.items():
            old = before.get(site)
            now = float(np.mean(list(row.values()))) if row else (old or 0.0)
            found[site] = now if old is None else self.mu * old + (1 - self.mu) * now
        return found

    def _factors(self, replies: Sequence[Reply], gamma: Mapping[str, float], state: base.State) -> Weights:
        """What the updates are multiplied by; they sum to 1."""
        if self.weighting == "examples":
            return base.example_shares(replies)
        total, bounded = sum(gamma.values()), self.direction == "bounded"
        if self.weighting == "uniform" or (total <= 0 and not bounded):
            return base.uniform(gamma)
        if total <= 0 or (bounded and not self.clip and max(gamma.values()) > total):
            before = base.filled({site: state.get("factors", {}).get(site) for site in gamma})
            return base.shares({site: max(value, 0.0) for site, value in before.items()})
        if self.clip:
            return base.shares({site: max(value, 0.0) for site, value in gamma.items()})
        return {site: value / total for site, value in gamma.items()}

    def _received(self, gamma: Mapping[str, float]) -> dict[str, float]:
        """f_k."""
        whole = {"max": max(gamma.values()), "gamma": 1.0, "share": sum(gamma.values())}[self.receive]
        found = {site: value / whole if whole > 0 else 1.0 for site, value in gamma.items()}
        return {site: min(max(f, 0.0), 1.0) for site, f in found.items()} if self.clip else found


def _rows(reply: Reply, keys: Sequence[str]) -> np.ndarray:
    """float64 (C, F): the head's update, a row per class."""
    parts = [reply.update[key].double() for key in keys]
    return torch.cat([part.reshape(len(part), -1) for part in parts], dim=1).numpy()


def _bounded(heads: np.ndarray) -> np.ndarray:
    """(K, C, F) rows, none longer than the lower median of its class's rows that are not zero."""
    lengths = np.linalg.norm(heads, axis=2)
    order = np.sort(np.where(lengths > 0, lengths, np.inf), axis=0)
    middle = np.maximum((lengths > 0).sum(0) - 1, 0) // 2
    most = np.take_along_axis(order, middle[None], 0)
    scale = np.divide(most, lengths, out=np.ones_like(lengths), where=lengths > most)
    bounded: np.ndarray = heads * scale[:, :, None]
    return bounded


def _mixed(model: StateDict, reply: Reply, shared: StateDict, received: float) -> StateDict:
    """(1 - f) w_k + f w, with f within [0, 1] for running statistics."""
    own, convex = base.add_weighted(model, [reply], {reply.site: 1.0}), min(max(received, 0.0), 1.0)
    return {
        key: torch.lerp(own[key], value, received if key in reply.trainable else convex)
        if value.is_floating_point()
        else value.clone()
        for key, value in shared.items()
    }
