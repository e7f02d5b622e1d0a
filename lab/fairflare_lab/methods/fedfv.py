# SPDX-License-Identifier: Apache-2.0
"""FedFV: updates that point against each other are projected before they are averaged.

With g_k = -D_k, the sites in ascending order of F_k(w^t):

    keep      the last sites of that order, a share alpha of them, as they are
    others    g_k <- g_k - (g_k . g_j / ||g_j||^2) g_j    for each j in that order with g_k . g_j < 0
    g         mean of these; then the same against the summed last updates of sites that are away, round by round
    step      g ||mean raw g|| / ||g||

Every g is a combination of updates, so that all of it happens in one matrix of inner products.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch

from fairflare.aggregators.base import Outcome, Rule, State, add_weighted, shares, uniform
from fairflare.core.notes import Note
from fairflare.core.registry import method
from fairflare.core.types import Info, Reply, StateDict
from fairflare.core.validation import Range, within
from fairflare.functional.blocks import gram


@method(
    "fedfv",
    title="FedFV",
    summary="Removes from each update what points against the others' before averaging; badly served sites come last.",
    paper="Wang et al.: Federated Learning with Fair Averaging. IJCAI 2021. https://arxiv.org/abs/2104.14937",
    probes=("group-loss",),
)
@dataclass(frozen=True)
class FedFV(Rule):
    """Fair averaging by projected gradients (Wang et al., arXiv:2104.14937, Algorithms 1 to 4); n_k plays no part.

    Running statistics are averaged uniformly and take part in no product.

    Args:
        alpha: share of the sites, those with the largest losses, whose updates are kept as they are, in [0, 1]; 0:
            none.
        tau: rounds that a site's last update counts for after it was here, >= 0; 0 stores no updates.
        variant: "reference" is the authors' code: from round tau on, the updates of the last tau rounds count, this
            round's own ones among them.
    """

    notes: ClassVar[tuple[Note, ...]] = (
        Note("conflicts", "Conflicting sites", "sites", meaning="Sites whose update points against the site's own."),
    )
    wanted = ("loss",)
    alpha: Annotated[float, Range(0, 1)] = 0.1
    tau: Annotated[int, Range(0, 1000)] = 1
    variant: Literal["paper", "reference"] = "paper"

    def __post_init__(self) -> None:
        within(self, alpha="[0, 1]", tau="[0, inf)")

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> Outcome:
        """w^{t+1} = w^t - g; the weights are the sites' own factors in g, none below 0, normalised.

        State: "last" (site -> trainable entries of its last update) and "round" (site -> when that was).
        """
        here = [r.site for r in replies]
        gone = {site: kept for site, kept in state.get("last", {}).items() if site not in here}
        away = [Reply(site, kept, 1, trainable=replies[0].trainable) for site, kept in gone.items()]
        products = gram([*replies, *away])
        ages = [0] * len(here) + [info.round.number - int(state["round"][r.site]) for r in away]
        factors = dict(zip(here + [r.site for r in away], self._factors(replies, products, ages, info).tolist()))
        trained = {key: value for key, value in model.items() if key in replies[0].trainable}
        rest = {key: value for key, value in model.items() if key not in trained}
        moved = add_weighted(trained, [*replies, *away], factors) | add_weighted(rest, replies, uniform(here))
        weights = shares({site: max(factors[site], 0.0) for site in here})
        conflicts = (products[: len(here), : len(here)] < 0).sum(1)
        notes = {"conflicts": dict(zip(here, map(int, conflicts)))}
        return Outcome({key: moved[key] for key in model}, weights, self._after(replies, state, info), notes)

    def _factors(self, replies: Sequence[Reply], products: np.ndarray, ages: Sequence[int], info: Info) -> np.ndarray:
        """(K + M,): what each update is multiplied by; K of this round and M stored ones."""
        order = sorted(range(len(replies)), key=lambda k: (replies[k].scalars["loss"], replies[k].site))
        first_kept = math.ceil((len(order) - 1) * (1 - self.alpha)) if self.alpha > 0 else len(order)
        everyone = np.eye(len(replies), len(products))
        for i in sorted(order[:first_kept]):
            for j in order:
                if j != i:
                    everyone[i] = _without(everyone[i], np.eye(len(products))[j], products)
        mean = everyone.mean(0)
        for age in self._ages(info):
            against = [k for k, old in enumerate(ages) if old == age and mean @ products[:, k] < 0]
            mean = _without(mean, np.eye(len(products))[against].sum(0), products)
        raw = np.eye(len(replies), len(products)).mean(0)
        size, length = (math.sqrt(max(float(v @ products @ v), 0.0)) for v in (raw, mean))
        return mean * (size / length) if length > 0 else np.zeros_like(mean)

    def _ages(self, info: Info) -> range:
        """Ages in rounds of the updates that count from outside, the oldest first; this round's have age 0."""
        if self.variant == "paper":
            return range(self.tau, 0, -1)
        return range(self.tau - 1, -1, -1) if info.round.number >= self.tau else range(0)

    def _after(self, replies: Sequence[Reply], state: State, info: Info) -> dict[str, Any]:
        """The last update of every site that may count in the next round."""
        oldest = info.round.number + 1 - (self.tau if self.variant == "paper" else self.tau - 1)
        rounds = {**state.get("round", {}), **{r.site: float(info.round.number) for r in replies}}
        rounds = {site: rounds[site] for site in sorted(rounds) if rounds[site] >= oldest}
        new = {r.site: r for r in replies}
        last = {s: _trained(new[s]) if s in new else dict(state["last"][s]) for s in rounds}
        return {"last": last, "round": rounds}


def _without(vector: np.ndarray, other: np.ndarray, products: np.ndarray) -> np.ndarray:
    """``vector`` without its part along ``other`` if that part points against it; both as factors of the updates."""
    square, dot = float(other @ products @ other), float(vector @ products @ other)
    return vector - other * (dot / square) if dot < 0 < square else vector


def _trained(reply: Reply) -> Mapping[str, torch.Tensor]:
    """The trainable entries of an update, in memory of their own."""
    return {key: reply.update[key].clone() for key in sorted(reply.trainable & set(reply.update))}
