# SPDX-License-Identifier: Apache-2.0
"""FedDyn's half at the server: the mean of the sites' models, and the drift that their next training starts with.

wbar^{t+1}  = 1/|S| sum over S of w_k              the model: what is evaluated, reported and saved
h          <- h - alpha / N sum over S of (w_k - w^t)         N known sites, S those of the round
w^{t+1}     = wbar^{t+1} - h / alpha               where the sites start; -h / alpha, the drift, is sent beside wbar
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fairflare.core.registry import rule
from fairflare.core.types import Info, Reply, StateDict, Weights
from fairflare.rules.base import State, WeighingRule, uniform

DRIFT = "drift"


@rule("feddyn")
@dataclass(frozen=True)
class FedDyn(WeighingRule):
    """Dynamic regularisation (Acar et al., ICLR 2021, https://arxiv.org/abs/2111.04263, Algorithm 1).

    Only trainable parameters drift; running statistics are averaged. alpha is the trainer's: the state is -h / alpha,
    the mean over the known sites of all that they have moved.
    """

    @property
    def wanted(self) -> tuple[str, ...]:
        """What the trainer of the method sends: under another one the drift would grow without bound."""
        return ("dynamic_alpha",)

    def weigh(self, replies: Sequence[Reply], state: State, info: Info) -> tuple[Weights, State]:
        """1/|S| each, and the drift after this round: a site started at wbar + drift, so that it moved D_k - drift."""
        n, drift = max(info.known_sites, len(replies)), state.get(DRIFT, {})
        after = {}
        for key in sorted(replies[0].trainable):
            total = sum((reply.update[key] for reply in replies[1:]), replies[0].update[key].clone())
            after[key] = _moved(total, drift.get(key), len(replies), n)
        return uniform([reply.site for reply in replies]), {DRIFT: {**drift, **after}}

    def orders(self, state: State, site: str, info: Info) -> dict[str, float]:
        """n / (K n_k), by which the authors' code scales alpha (``variant=reference`` of the trainer)."""
        own, everyone = info.examples.get(site, 0), info.examples.values()
        return {"alpha_scale": sum(everyone) / len(everyone) / own} if own else {}

    def tensors_for(self, state: State, site: str, info: Info) -> dict[str, StateDict]:
        """The drift, the same for every site; nothing before the first round."""
        return dict(state)


def _moved(total: Tensor, drift: Tensor | None, here: int, known: int) -> Tensor:
    """drift + 1/N sum over S of (D_k - drift), in the update's type or float32 if that is wider."""
    total = total.to(torch.promote_types(total.dtype, torch.float32))
    return total / known if drift is None else drift + (total - here * drift) / known
