# SPDX-License-Identifier: Apache-2.0
"""Fed-LWR: each layer is averaged with weights of its own, larger for sites whose features moved further.

w_G       = (1/K) sum_k w_k                                       the anchor, sent in a second exchange
delta_k^m = similarity of layer m's features under w_k and w_G on data of site k
rho_k^m   = (1 - delta_k^m) / sum_j (1 - delta_j^m)
w^{t+1},m = sum_k rho_k^m w_k^m
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from fairflare.aggregators.base import Outcome, Rule, State, add_weighted, filled, limited, shares, uniform
from fairflare.core.notes import Note
from fairflare.core.registry import method
from fairflare.core.types import Info, Reply, StateDict, Weights
from fairflare.functional.blocks import LAST_ENCODER, SIMILARITY, Group, layers_of

LOW, HIGH = 1e-4, 0.99
"""Similarities are kept between these, so that no site has weight 0 in a layer (the authors' code)."""
OFFSET = 1e-9
RHO = "The weight rho of each site in each layer."


@method(
    "fedlwr",
    title="Fed-LWR",
    summary="Weighs every layer by how far each site's features moved; for feature shift between scanners.",
    paper="Yan et al.: A New Perspective to Boost Performance Fairness for Medical Federated Learning. MICCAI 2024. "
    "https://arxiv.org/abs/2410.19765",
    probes=("layer-similarity",),
    shared={
        "scope": ("rule.scope", "probe.layer-similarity.scope"),
        "group": ("rule.group", "probe.layer-similarity.group"),
    },
    reference={"cka_split": "val", "cka_examples": 0, "keep_optimizer": True, "adam_beta2": 0.99},
)
@dataclass(frozen=True)
class FedLWR(Rule):
    """Layer-wise reweighting (Yan et al., arXiv:2410.19765, Eq. 2 to 5); n_k plays no part.

    A layer's buffers share its weights. Entries that belong to no layer, and layers of which no site knows a
    similarity, are averaged uniformly; a site that does not know one stands at the other sites' mean in that layer.

    Args:
        scope: "layers", or "last_encoder": one similarity weighs the whole model (v2).
        group: what a layer is: "leaf", "conv_bn" (a normalisation goes with its convolution) or "block".
        clip: keeps similarities within [0.0001, 0.99]; without it they may be anything in [-1, 1].
        variant: "reference" adds 1e-9 to the sum of the weights, as the authors' code does.
    """

    caps: ClassVar[bool] = True
    notes = (Note("layer_weights", "Layer weights", "fraction", "layer", "map", RHO, shares=True, over="mean"),)
    useful = (SIMILARITY,)
    scope: Literal["layers", "last_encoder"] = "layers"
    group: Group = "leaf"
    clip: bool = True
    variant: Literal["paper", "reference"] = "paper"

    def anchor(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> StateDict:
        return add_weighted(model, replies, uniform([r.site for r in replies]))

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> Outcome:
        layers = {n: (keys, limited(rho, info.cap)) for n, (keys, rho) in self._layer_weights(replies).items()}
        result = {key: value.clone() for key, value in model.items() if not value.is_floating_point()}
        for keys, weights in layers.values():
            result |= add_weighted({key: model[key] for key in keys}, replies, weights)
        notes = {"layer_weights": {name: rho for name, (_, rho) in layers.items() if name}}
        return Outcome({key: result[key] for key in model}, _averaged(layers, replies), state, notes)

    def _layer_weights(self, replies: Sequence[Reply]) -> dict[str, tuple[list[str], Weights]]:
        """Layer -> (its keys, rho); "" holds the entries that are in no layer."""
        update = replies[0].update
        if self.scope == "last_encoder":
            return {LAST_ENCODER: (list(update), self._rho(LAST_ENCODER, replies))}
        layers = layers_of(update, self.group)
        outside = sorted(set(update) - {key for keys in layers.values() for key in keys})
        found = {name: (keys, self._rho(name, replies)) for name, keys in layers.items()}
        return found | ({"": (outside, uniform([r.site for r in replies]))} if outside else {})

    def _rho(self, layer: str, replies: Sequence[Reply]) -> Weights:
        deltas = {r.site: r.scalars.get(f"{SIMILARITY}/{layer}") for r in replies}
        if all(delta is None for delta in deltas.values()):
            return uniform(deltas)
        low, high = (LOW, HIGH) if self.clip else (-1.0, 1.0)
        distances = {site: 1 - min(max(delta, low), high) for site, delta in filled(deltas).items()}
        if self.variant == "reference":
            total = sum(distances.values()) + OFFSET
            return {site: distance / total for site, distance in distances.items()}
        return shares(distances)


def _averaged(layers: Mapping[str, tuple[list[str], Weights]], replies: Sequence[Reply]) -> Weights:
    """The layers' weights, each counted by the number of its entries."""
    totals = dict.fromkeys([r.site for r in replies], 0.0)
    for keys, weights in layers.values():
        size = sum(replies[0].update[key].numel() for key in keys)
        totals = {site: total + size * weights[site] for site, total in totals.items()}
    return shares(totals)
