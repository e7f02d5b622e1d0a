# SPDX-License-Identifier: Apache-2.0
"""FedUFO: an adversary raises the weight of whoever has the larger loss: sites, groups of patients, or both.

    v_i, v_k, v_ik    mean loss of the received model: of site i, of group k over all sites, of group k at site i
    lambda <- Ball(lambda e^{gamma E v} / Z)              per vector, around uniform weights
    s_ik   =  beta N lambda_i + (1 - beta) M lambda_k     ("client": beta = 1, "attribute": beta = 0)
    s_ik   =  N M lambda_ik                               ("unknown")

s_ik weighs an example of group k at site i. Training splits it: a site trains with s_ik relative to its own mean
s_i, and the server weighs the site's update by s_i, so that the weights act whatever the local optimizer; a factor in
the loss alone is invisible to Adam.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeVar

from fairflare.aggregators.base import Notes, State, WeighingRule, shares, uniform
from fairflare.core.notes import Note
from fairflare.core.registry import method
from fairflare.core.types import GROUP_COUNT, GROUP_LOSS, Info, Offer, Reply, Training, Weights, of_family
from fairflare.core.validation import Range, within
from fairflare.functional.simplex import Ball, ascended, in_ball, in_ball_reference

Cell = tuple[str, str]
Key = TypeVar("Key", str, Cell)

LAMBDA = "The adversary's weight in the next round."


@method(
    "fedufo",
    title="FedUFO",
    summary="Raises the weight of sites and groups of patients with larger losses; for subpopulations.",
    paper="Zhang et al.: Unified fair federated learning for digital healthcare. Patterns 2024. "
    "https://doi.org/10.1016/j.patter.2023.100907",
    trainer="weighted",
    probes=("group-loss",),
    reference={"apply": "local", "weight_sum": "batch", "radius": 0.0, "keep_optimizer": True},
)
@dataclass(frozen=True)
class FedUFO(WeighingRule):
    """Distributionally robust weights at three levels (Zhang et al., Patterns 5, 2024, Algorithm 1).

    Uniform lambda is the unweighted FedAvg (1/K per site).

    Args:
        level: "client" (sites), "attribute" (groups over all sites), "multi" (both) or "unknown" (groups within sites,
            for a test population that may mix them in any way).
        gamma: step size >= 0 of the adversary; 0 keeps lambda uniform.
        steps: E >= 1 in the exponent, local epochs between two exchanges.
        radius: of the ball around uniform weights, in the divergence (n sum lambda^2 - 1) / 2, at most (n - 1) / 2;
            0 keeps lambda uniform, none leaves it free. Of two sites or groups each lambda stays within sqrt(radius /
            2) of .5: .5 +- .0071 at the paper's 1e-4.
        ball: "chi-square" or "kl".
        beta: the sites' share at level "multi", in [0, 1].
        mixing: at level "multi" the "mean" s_ik of both weights, or "sampled": each step draws one of them for each
            group, the site's with probability beta (line 7). Both have the same expectation.
        share_radius: False gives sites beta and groups 1 - beta of the radius (the paper's definition); True gives
            both all of it (its Algorithm 1).
        group_losses: "mean" over all examples of a group (its empirical risk) or the "sum" of sites' means (line 16).
        apply: "split" as above, or "local": s_ik multiplies the local loss and the server takes the plain mean, which
            needs SGD.
        variant: "reference" uses the authors' projection, which leaves small balls, takes radius 0 for none, and at
            level "unknown" projects each site's row by itself.
    """

    caps: ClassVar[bool] = True
    notes: ClassVar[tuple[Note, ...]] = (
        Note("group_loss", "Loss of the groups", "nats", "group", meaning="Mean over a group's examples at all sites."),
        Note("client_lambda", "Weights of the sites", "fraction", "site", shares=True, meaning=LAMBDA),
        Note("group_lambda", "Weights of the groups", "fraction", "group", shares=True, meaning=LAMBDA),
        Note("cell_lambda", "Weights of groups within sites", "fraction", "cell", "map", LAMBDA, shares=True),
    )
    level: Literal["client", "attribute", "multi", "unknown"] = "multi"
    gamma: float = 0.5
    steps: Annotated[int, Range(1, 1000)] = 1
    radius: float | None = 0.5
    ball: Ball = "chi-square"
    beta: float = 0.5
    mixing: Literal["mean", "sampled"] = "mean"
    share_radius: bool = False
    group_losses: Literal["mean", "sum"] = "mean"
    apply: Literal["split", "local"] = "split"
    variant: Literal["paper", "reference"] = "paper"

    def __post_init__(self) -> None:
        within(self, gamma="[0, inf)", radius="[0, inf)", beta="[0, 1]", steps="[1, inf)")

    @property
    def wanted(self) -> tuple[str, ...]:
        return ("loss",) if self.level in ("client", "multi") else ()

    @property
    def weighs_sums(self) -> bool:  # type: ignore[override]  # depends on options
        """Weights of patients within a site would have to stand in its sums."""
        return self.level == "client" and self.apply == "split"

    @property
    def useful(self) -> tuple[str, ...]:
        return () if self.level == "client" else (GROUP_LOSS, GROUP_COUNT)

    @property
    def heeded(self) -> tuple[str, ...]:
        weight = () if self.level == "client" and self.apply == "split" else ("weight",)
        return (*weight, "sampled") if self._is_sampled else weight

    def missing(self, offer: Offer) -> str:
        if self.level == "client" or len(offer.groups) > 1:
            return ""
        return f"level={self.level} needs at least two groups of examples: set group_by to what patients differ in"

    def caution(self, training: Training) -> str:
        if self.apply == "split" or training.optimizer != "adam":
            return ""
        return "apply=local under optimizer=adam: the weight of a whole site has no effect; use sgd or apply=split"

    def orders(self, state: State, site: str, info: Info) -> dict[str, float]:
        """The weights of this site's examples: "weight" for all of them and "weight/GROUP" to be added.

        "relative" asks the site to divide them by their mean.
        """
        weights = self._example_weights(state, site)
        if weights and self._is_sampled:
            weights["sampled"] = self.beta
        return {**weights, "relative": 1.0} if weights and self.apply == "split" else weights

    def _example_weights(self, state: State, site: str) -> dict[str, float]:
        if self.level == "unknown":
            cells = state.get("cells", {})
            row = cells.get(site, {})
            size = sum(map(len, cells.values()))
            return {f"weight/{group}": size * value for group, value in row.items()} | ({"weight": 0.0} if row else {})
        groups = state.get("groups", {})
        own = {f"weight/{g}": (1 - self._sites_share) * len(groups) * value for g, value in groups.items()}
        clients = state.get("clients", {})
        lambda_i = len(clients) * clients[site] if site in clients else 1.0  # times N; 1 for a site that has none yet
        return {**own, "weight": self._sites_share * lambda_i} if state else {}

    def weigh(self, replies: Sequence[Reply], state: State, info: Info) -> tuple[Weights, State]:
        if self.level == "unknown":
            return self._weights(replies, state), {**state, "cells": self._next_cells(replies, state)}
        following = dict(state)
        if self._sites_share > 0:
            losses = {r.site: r.scalars["loss"] for r in replies}
            following["clients"] = self._next(state.get("clients", {}), losses, self._radius(self._sites_share))
        risks = _group_risks(replies, self.group_losses) if self._sites_share < 1 else {}
        if risks:
            following["groups"] = self._next(state.get("groups", {}), risks, self._radius(1 - self._sites_share))
        return self._weights(replies, state), following

    def round_notes(self, weights: Weights, replies: Sequence[Reply], before: State, after: State, info: Info) -> Notes:
        names = [name for name in ("client", "group", "cell") if f"{name}s" in after]
        return {"group_loss": _group_risks(replies, "mean"), **{f"{name}_lambda": after[f"{name}s"] for name in names}}

    @property
    def _sites_share(self) -> float:
        """beta: 1 weighs sites alone, 0 groups alone."""
        return {"client": 1.0, "attribute": 0.0}.get(self.level, self.beta)

    @property
    def _is_sampled(self) -> bool:
        return self.mixing == "sampled" and 0 < self._sites_share < 1

    def _radius(self, share: float) -> float | None:
        return self.radius if self.radius is None or self.share_radius else share * self.radius

    def _weights(self, replies: Sequence[Reply], state: State) -> Weights:
        """p_i proportional to s_i, the mean of s_ik over the site's examples as far as their groups are known."""
        if self.apply == "local":
            return uniform([r.site for r in replies])
        return shares({r.site: self._mean_weight(r, self._example_weights(state, r.site)) for r in replies})

    def _mean_weight(self, reply: Reply, orders: Mapping[str, float]) -> float:
        if not orders:
            return 1.0
        counts = of_family(reply.scalars, GROUP_COUNT)
        known = {g: n for g, n in counts.items() if f"weight/{g}" in orders and n}
        # Where no group's size may leave the site, its patients count as spread evenly over the groups.
        known = known or {name.partition("/")[2]: 1.0 for name in orders if name != "weight"}
        spread = sum(n * orders[f"weight/{g}"] for g, n in known.items()) / sum(known.values()) if known else 0.0
        return orders["weight"] + spread

    def _next(
        self, current: Mapping[Key, float], losses: Mapping[Key, float], radius: float | None
    ) -> dict[Key, float]:
        """One step on ``losses``; keys without a loss keep their weight, and the others share the rest among them."""
        start = _with_newcomers(current, losses)
        rest = {k: w for k, w in start.items() if k not in losses}
        mass = 1 - sum(rest.values())
        moved = {k: mass * w for k, w in ascended(start, losses, self.gamma * self.steps).items()}
        everyone = {k: rest.get(k, moved.get(k, 0.0)) for k in start}
        if self.variant == "reference":
            return in_ball_reference(everyone, radius) if radius else everyone
        return in_ball(everyone, radius, self.ball)

    def _next_cells(self, replies: Sequence[Reply], state: State) -> dict[str, dict[str, float]]:
        """lambda over (site, group): one simplex, or in the authors' code one per row after each step."""
        current: dict[Cell, float] = {(s, g): w for s, row in state.get("cells", {}).items() for g, w in row.items()}
        losses: dict[Cell, float] = {
            (r.site, g): v for r in replies for g, v in of_family(r.scalars, GROUP_LOSS).items()
        }
        if not losses:
            return dict(state.get("cells", {}))
        if self.variant == "reference":
            cells = _rows(ascended(_with_newcomers(current, losses), losses, self.gamma * self.steps))
            return {s: in_ball_reference(row, self.radius) for s, row in cells.items()} if self.radius else cells
        return _rows(self._next(current, losses, self.radius))


def _with_newcomers(current: Mapping[Key, float], losses: Mapping[Key, float]) -> dict[Key, float]:
    """``current`` with uniform shares for keys that are new among ``losses``."""
    new = [k for k in losses if k not in current]
    if not new:
        return dict(current)
    share = 1 / (len(current) + len(new))
    kept = {k: w * (1 - len(new) * share) for k, w in current.items()}
    return kept | dict.fromkeys(new, share)


def _rows(cells: Mapping[Cell, float]) -> dict[str, dict[str, float]]:
    rows: dict[str, dict[str, float]] = {}
    for (site, group), value in cells.items():
        rows.setdefault(site, {})[group] = value
    return rows


def _group_risks(replies: Sequence[Reply], form: Literal["mean", "sum"]) -> dict[str, float]:
    """Group -> mean loss over the examples that sites report, or the sum of the sites' mean losses."""
    totals: dict[str, float] = {}
    sizes: dict[str, float] = {}
    for reply in replies:
        counts = of_family(reply.scalars, GROUP_COUNT)
        for group, loss in of_family(reply.scalars, GROUP_LOSS).items():
            n = counts.get(group, 0.0) if form == "mean" else 1.0
            totals[group] = totals.get(group, 0.0) + n * loss
            sizes[group] = sizes.get(group, 0.0) + n
    return {g: totals[g] / (sizes[g] if form == "mean" else 1.0) for g in sorted(totals) if sizes[g]}
