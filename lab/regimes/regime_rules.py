# SPDX-License-Identifier: Apache-2.0
"""Controls as server rules: weights fixed by who knows the truth (ceilings), and weights of another run replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fairflare.aggregators.base import Outcome, Rule, State, add_weighted, shares, uniform
from fairflare.aggregators.fedufo import FedUFO
from fairflare.core.registry import method, rule
from fairflare.core.seeds import derive
from fairflare.core.types import GROUP_COUNT, Info, Paper, Reply, StateDict, Weights
from fairflare.functional.blocks import layers_of

METHOD = Paper("The FairFLARE authors", "Bench of regimes", "benchmarks", 2026, "lab/regimes")
RECORDS: dict[str, list[dict[str, dict[str, float]]]] = {}
"""Name of a run -> its rounds: "" -> weights of the sites, layer -> the same, "groups" -> weights of the groups."""


def dealt(weights: Mapping[str, float], seed: int) -> dict[str, float]:
    """The weights at other names, the same way throughout a run."""
    names = sorted(weights)
    order = np.random.default_rng(derive(0, "dealt", seed)).permutation(len(names))
    return {name: weights[names[k]] for name, k in zip(names, order)}


@rule("regime-fixed")
@dataclass(frozen=True)
class Fixed(Rule):
    """A ceiling: ``chosen`` sites weigh ``share`` together, the others the rest, evenly.

    Args:
        chosen: names of sites with + between them.
        share: in (0, 1).
    """

    chosen: str = ""
    share: float = 0.5

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> Outcome:
        chosen, here = self.chosen.split("+"), [r.site for r in replies]
        n = sum(site in chosen for site in here)
        weights = {s: self.share / n if s in chosen else (1 - self.share) / (len(here) - n) for s in here}
        return Outcome(add_weighted(model, replies, weights), weights, state)


@rule("regime-replayed")
@dataclass(frozen=True)
class Replayed(Rule):
    """Plain training under the weights of another run: of its last round throughout, or round by round at other sites.

    The first tells weights from training, the second is a placebo. Layers that have weights of their own keep them.

    Args:
        run: key of ``RECORDS``.
        deal: seed of the placebo; -1: the last round's weights at their own sites.
    """

    run: str = ""
    deal: int = -1

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> Outcome:
        rounds, here = RECORDS[self.run], [r.site for r in replies]
        record = rounds[-1] if self.deal < 0 else rounds[min(info.round.number, len(rounds)) - 1]

        def weights_of(key: str) -> Weights:
            weights = record.get(key) or uniform(here)
            return weights if self.deal < 0 else dealt(weights, self.deal)

        weights = weights_of("")
        made = add_weighted(model, replies, weights)
        for layer, keys in layers_of(replies[0].update).items():
            if layer in record:
                made |= add_weighted({key: model[key] for key in keys}, replies, weights_of(layer))
        return Outcome({key: made[key] for key in model}, weights, state)


@rule("regime-replayed-groups")
@dataclass(frozen=True)
class ReplayedGroups(FedUFO):
    """FedUFO's or group DRO's weights of groups from another run, as ``Replayed`` takes those of sites; or even ones.

    Args:
        run: key of ``RECORDS``; "": a group's examples weigh the inverse of its size, a ceiling of its recall.
    """

    run: str = ""
    deal: int = -1

    def weigh(self, replies: Sequence[Reply], state: State, info: Info) -> tuple[Weights, State]:
        weights, following = super().weigh(replies, state, info)
        groups = following.get("groups", {})
        if not groups:
            return weights, following
        if not self.run:
            n = {name: sum(r.scalars.get(f"{GROUP_COUNT}/{name}", 0.0) for r in replies) for name in groups}
            return weights, {**following, "groups": shares({name: 1 / max(n[name], 1.0) for name in groups})}
        rounds = RECORDS[self.run]
        record = rounds[-1] if self.deal < 0 else rounds[min(info.round.number, len(rounds)) - 1]
        kept = record["groups"] if self.deal < 0 else dealt(record["groups"], self.deal)
        return weights, {**following, "groups": kept}


for _id, _trainer, _probes in (
    ("regime-fixed", "sgd", ()),
    ("regime-replayed", "sgd", ()),
    ("regime-replayed-groups", "weighted", ("group-loss",)),
):
    method(_id, title=_id, summary="Of the bench of regimes.", rule=_id, trainer=_trainer, probes=_probes, paper=METHOD)
