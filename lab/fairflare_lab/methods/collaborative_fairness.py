# SPDX-License-Identifier: Apache-2.0
"""Collaborative fairness: who contributes more downloads more of the aggregate (CFFL, CGSV).

CFFL: sites whose models do well at home earn reputation, and download as much of the aggregate as they have earned.

c_k <- 0.8 c_k + 0.2 a_k / sum_j a_j       a_k: score of site k's trained model, sums over the sites R that still count
c_k <- sinh(alpha_t c_k), normalised       alpha_t = alpha (1 + (t - 1) / T)
c_k is at least threshold / |R|, normalised again;  with remove=true R loses who has less, for good
u    = sum_k p_k h_k                       h_k: the top theta of D_k, entries clipped;  p = n_k / n over R
v_k <- v_k + D_k + top f_k of u - p_k h_k  f_k = c_k / max c  n_k / max n;  v_k: site k's own model

CGSV: reputations from cosines with the aggregate, and for each site the part of the aggregate that it has earned.

  u_k = Gamma D_k / ||D_k||        u = sum_k r_k u_k            r = n_k / n in the first round
  r_k <- alpha r_k + (1 - alpha) cos(u_k, u), at least 0.001, normalised
  q_k = tanh(beta r_k) / max_j tanh(beta r_j)
  v_k <- v_k + top q_k of each layer of u      v_k: site k's own model, which its own update does not move
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch

from fairflare.aggregators.base import Outcome, Rule, State, add_weighted, example_shares, filled, shares, uniform
from fairflare.aggregators.own import View, from_shared, moved
from fairflare.core.notes import Note
from fairflare.core.registry import method
from fairflare.core.types import Info, Need, Reply, StateDict, Weights
from fairflare.core.validation import Range, within
from fairflare.functional.blocks import gram


def bounds(sizes: np.ndarray, counts: Sequence[int]) -> list[float]:
    """For each count in [0, N] the size of that many-th largest of N finite magnitudes; infinite for a count of 0.

    Ties keep more than the count.
    """
    places = sorted({len(sizes) - count for count in counts if count})
    ordered = np.partition(sizes, places) if places else sizes
    return [float(ordered[len(sizes) - count]) if count else math.inf for count in counts]


def layer_bounds(update: torch.Tensor, fractions: Sequence[float], always_drop: bool = False) -> list[float]:
    """For each fraction q in [0, 1] the bound that keeps the ceil(q N) largest of one layer's N entries.

    With ``always_drop`` N - 1 at most, as in the code of CGSV and CFFL, but for layers of one entry, on which it fails.
    """
    sizes = _magnitudes(update)
    most = max(len(sizes) - always_drop, 1)
    return bounds(sizes, [min(math.ceil(len(sizes) * q), most) if len(sizes) else 0 for q in fractions])


def whole_bounds(update: Mapping[str, torch.Tensor], keys: Collection[str], fractions: Sequence[float]) -> list[float]:
    """For each fraction q the bound that keeps the floor(q N) largest of all N entries under ``keys``."""
    sizes = np.concatenate([_magnitudes(update[key]) for key in keys])
    return bounds(sizes, [int(len(sizes) * q) for q in fractions])


def at_least(update: torch.Tensor, bound: float) -> torch.Tensor:
    return torch.where(update.abs() >= bound, update, torch.zeros_like(update))


def _magnitudes(update: torch.Tensor) -> np.ndarray:
    """(N,), in float32 or wider."""
    return np.asarray(update.detach().to(torch.promote_types(update.dtype, torch.float32)).reshape(-1).abs())


FADE = 0.8
"""Share of the past in a reputation."""
FEWEST = 4
"""Validation examples from which on an error says something of a site."""


@method(
    "cffl",
    title="CFFL",
    summary="A model per site; sites whose models do well at home download more of the others' updates.",
    paper="Lyu et al.: Collaborative Fairness in Federated Learning. Federated Learning, LNCS 12500 2020. "
    "https://arxiv.org/abs/2008.12161",
    probes=("local-error",),
)
@dataclass(frozen=True)
class CFFL(Rule):
    """Collaborative fairness by reputation (Lyu et al., arXiv:2008.12161); a model for each site.

    The paper scores updates at the server, on data that it holds. Here each site reports the error of the model that it
    has just trained on its own validation data.

    Args:
        alpha: of the first round, > 0: how far apart reputations are driven.
        threshold: a reputation is at least this many times 1 / |R|, in [0, 1).
        remove: a site whose reputation falls below that is removed for good (paper and code). With scores that sites
            give themselves, one that overstates its own removes all others.
        theta: share of an update that counts, its largest entries, in (0, 1].
        clip: the largest size of an entry that counts; 0: any.
        aggregation: "mean" by n_k, or the "sum" of what counts.
    """

    notes: ClassVar[tuple[Note, ...]] = (
        Note("reputation", "Reputation", "fraction", shares=True, meaning="c_k after the round; 0 once removed."),
        Note("received", "Received share of the aggregate", "fraction", meaning="f_k, the part of u that is received."),
    )
    own_models = counts_own = True
    useful = ("trained_error",)
    needs = (Need("val", FEWEST, "a site's reputation is made of its error on it", both_classes=True),)
    alpha: Annotated[float, Range(0, 100)] = 5.0
    threshold: Annotated[float, Range(0, 1)] = 1 / 3
    remove: bool = False
    theta: Annotated[float, Range(0, 1)] = 1.0
    clip: Annotated[float, Range(0, 1e6)] = 0.0
    aggregation: Literal["mean", "sum"] = "mean"

    def __post_init__(self) -> None:
        within(self, alpha="(0, 100]", threshold="[0, 1)", theta="(0, 1]", clip="[0, inf)")

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> Outcome:
        """The shared model plus u, each present site's own, and the reputations; a removed site weighs 0."""
        reputation = self._earned(replies, state, info)
        counting = [r for r in replies if reputation[r.site] > 0]
        mean = example_shares(counting) if counting else {}
        p = dict.fromkeys(mean, 1.0) if self.aggregation == "sum" else mean
        heard = [self._heard(r) for r in counting]
        keys = [key for key in model if key in replies[0].trainable]
        step = add_weighted({key: torch.zeros_like(model[key]) for key in keys}, heard, p)
        received = _received(counting, reputation)
        limits = dict(zip(received, whole_bounds(step, keys, list(received.values())))) if received else {}
        counted = {r.site: r.update for r in heard}

        def change(reply: Reply, key: str) -> torch.Tensor:
            """What the site's own model moves by; who is removed goes on with what it has trained."""
            site = reply.site
            if site not in counted:
                return reply.update[key]
            return reply.update[key] + at_least(step[key], limits[site]) - p[site] * counted[site][key]

        own = {r.site: moved(r, model, info, partial(change, r)) for r in replies}
        weights = {r.site: mean.get(r.site, 0.0) for r in replies} if counting else uniform([r.site for r in replies])
        rest = {key: value for key, value in model.items() if key not in step}
        after = add_weighted(rest, [from_shared(r, model, info) for r in replies], weights)
        after |= {key: model[key] + change for key, change in step.items()}
        notes: dict[str, Any] = {"received": {r.site: received.get(r.site, 0.0) for r in replies}}
        if counting:
            notes["reputation"] = shares(reputation)
        following = {"reputation": {**state.get("reputation", {}), **reputation}}
        return Outcome({key: after[key] for key in model}, weights, following, notes, own)

    def _earned(self, replies: Sequence[Reply], state: State, info: Info) -> dict[str, float]:
        """c of the sites that are here, 0 for removed ones; together they keep what they had together."""
        before = state.get("reputation", {})
        lasting = [c for c in before.values() if c > 0]
        newcomer = sum(lasting) / len(lasting) if lasting else 0.0
        old = {r.site: before.get(r.site, newcomer) for r in replies}
        standing = [r for r in replies if r.site not in before or before[r.site] > 0]
        if not standing:
            return old
        score = shares(filled({r.site: _score(r) for r in standing}))
        mass = sum(old[r.site] for r in standing) or 1.0
        alpha = self.alpha * (1 + (info.round.number - 1) / info.round.total)
        raised = {s: math.sinh(alpha * (FADE * old[s] / mass + (1 - FADE) * a)) for s, a in score.items()}
        least = self.threshold / len(standing)
        if self.remove:
            kept = {site: share for site, share in shares(raised).items() if share >= least}
        else:
            kept = {site: max(share, least) for site, share in shares(raised).items()}
        return dict.fromkeys(old, 0.0) | {site: mass * share for site, share in shares(kept).items()}

    def _heard(self, reply: Reply) -> Reply:
        """What counts of a site's update."""
        clipped = reply.update
        if self.clip:
            clipped = View(reply.update, lambda key, change: change.clamp(-self.clip, self.clip))
        if self.theta == 1:
            return replace(reply, update=clipped)
        (bound,) = whole_bounds(clipped, sorted(reply.trainable & set(reply.update)), [self.theta])
        return replace(reply, update=View(clipped, lambda key, change: at_least(change, bound)))


def _score(reply: Reply) -> float | None:
    error = reply.scalars.get("trained_error")
    return None if error is None else 1 - error


def _received(replies: Sequence[Reply], reputation: Mapping[str, float]) -> Weights:
    """f of the sites that count."""
    if not replies:
        return {}
    best, most = max(reputation.values()), max(r.n_examples for r in replies)
    return {r.site: reputation[r.site] / best * r.n_examples / most for r in replies}


FLOOR = 1e-3
"""Least reputation before it is normalised."""
TINY = 1e-7


@method(
    "cgsv",
    title="CGSV",
    summary="A model per site; sites whose updates agree with the aggregate receive more of it.",
    paper="Xu et al.: Gradient Driven Rewards to Guarantee Fairness in Collaborative Machine Learning. NeurIPS 2021. "
    "https://proceedings.neurips.cc/paper/2021/hash/8682cc30db9c025ecd3fee433f8ab54c-Abstract.html",
)
@dataclass(frozen=True)
class CGSV(Rule):
    """Gradient-driven rewards (Xu et al., NeurIPS 2021, Eq. 1 to 5); a model for each site.

    Updates are compared and masked over trainable parameters; a site's running statistics stay its own. The shared
    model, which no site is sent once it has one of its own, takes all of u.

    Args:
        alpha: share of the past in the reputations, in [0, 1).
        beta: how evenly rewards are spread, > 0: the larger, the more even.
        step: Gamma > 0, the length of every u_k; the size of a site's update has no effect.
        variant: "reference" is the authors' mask, which drops at least one entry of each layer, at q = 1 too.
    """

    notes: ClassVar[tuple[Note, ...]] = (
        Note("reputation", "Reputation", "fraction", shares=True, meaning="r_k after the round."),
        Note("cosine", "Cosine with the aggregate", chart="table", meaning="cos(u_k, u), the estimated contribution."),
        Note("received", "Received share of the aggregate", "fraction", meaning="q_k, the part of each layer of u."),
    )
    own_models = counts_own = True
    alpha: Annotated[float, Range(0, 1)] = 0.95
    beta: Annotated[float, Range(0, 1e6)] = 1.0
    step: Annotated[float, Range(0, 1e6)] = 0.5
    variant: Literal["paper", "reference"] = "paper"

    def __post_init__(self) -> None:
        within(self, alpha="[0, 1)", beta="(0, inf)", step="(0, inf)")

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> Outcome:
        """As above; the weights are r before the round. State: "reputation", site -> r > 0."""
        before = state.get("reputation", {})
        # r over the sites that are here; n_k / n in the first round, and the others' mean for who is new later.
        known = filled({r.site: before.get(r.site) for r in replies})
        weights = shares(known) if before else example_shares(replies)
        factors, cosines = self._compared(replies, weights)
        reputation = self._earned(before, cosines)
        received = self._received(reputation)
        zeros = {key: torch.zeros_like(value) for key, value in model.items() if key in replies[0].trainable}
        step = add_weighted(zeros, replies, factors)
        fractions = [received[r.site] for r in replies]
        limits = {key: layer_bounds(change, fractions, self.variant == "reference") for key, change in step.items()}

        def part(k: int, key: str) -> torch.Tensor:
            return at_least(step[key], limits[key][k])

        own = {r.site: moved(r, model, info, partial(part, k)) for k, r in enumerate(replies)}
        rest = {key: value for key, value in model.items() if key not in step}
        local = [from_shared(r, model, info) for r in replies]
        after = add_weighted(rest, local, weights) | {key: model[key] + change for key, change in step.items()}
        notes = {"reputation": shares(reputation), "cosine": cosines, "received": received}
        following = {"reputation": {**before, **reputation}}
        return Outcome({key: after[key] for key in model}, weights, following, notes, own)

    def _compared(self, replies: Sequence[Reply], weights: Weights) -> tuple[Weights, dict[str, float]]:
        """What each update is multiplied by in u, and its cosine with u; 0 for an update of zero."""
        products = gram(replies)
        lengths = np.sqrt(np.maximum(np.diag(products), 0))
        factors = np.array([weights[r.site] for r in replies]) * self.step / (lengths + TINY)
        whole = math.sqrt(max(float(factors @ products @ factors), 0.0))
        scale = lengths * whole
        cosines = np.divide(products @ factors, scale, out=np.zeros_like(scale), where=scale > 0)
        sites = [r.site for r in replies]
        return dict(zip(sites, factors.tolist())), dict(zip(sites, np.clip(cosines, -1, 1).tolist()))

    def _earned(self, before: Mapping[str, float], cosines: Mapping[str, float]) -> dict[str, float]:
        """r of the sites that are here; together they keep what they had together."""
        old = filled({site: before.get(site) for site in cosines}) if before else dict.fromkeys(cosines, 0.0)
        new = {site: max(self.alpha * old[site] + (1 - self.alpha) * c, FLOOR) for site, c in cosines.items()}
        mass = sum(old.values()) or 1.0
        return {site: mass * share for site, share in shares(new).items()}

    def _received(self, reputation: Mapping[str, float]) -> dict[str, float]:
        earned = {site: math.tanh(self.beta * r) for site, r in reputation.items()}
        most = max(earned.values())
        return {site: value / most if most > 0 else 1.0 for site, value in earned.items()}
