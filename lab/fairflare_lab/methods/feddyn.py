# SPDX-License-Identifier: Apache-2.0
"""FedDyn: at a site a regulariser that moves with the site's own history, at the server the drift of all sites.

start       w = wbar^t + drift, as the server sends them
minimise    F_k(w) - <g_k, w> + alpha_k / 2 ||w - w^t||^2      w^t that start, g_k = -alpha_k sum of the site's past
keep        g_k <- g_k - alpha_k (w_k - w^t)                    (w_k - w^t), kept here as that sum

The rule makes wbar^{t+1}, in FedDyn itself the mean of the sites' models: what is evaluated, reported and saved. The
server half, under any rule:

h          <- h - alpha / N sum over S of (w_k - w^t)         N known sites, S those of the round
w^{t+1}     = wbar^{t+1} - h / alpha               where the sites start; -h / alpha, the drift, is sent beside wbar
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch

from fairflare.core.execution import no_grad
from fairflare.core.registry import method
from fairflare.core.types import Info, LocalWork, Reply, StateDict, TensorSpec
from fairflare.core.validation import Range, within
from fairflare.functional.blocks import parameters
from fairflare.trainers.base import PlainTrainer, ServerState

DRIFT = "drift"


HISTORY = "feddyn history"
"""Key of a site's memory: the sum of w_k - w^t over its rounds, -g_k / alpha_k."""


MOST_NORM = 10.0
"""To which the authors' code clips a step's gradient."""


@method(
    "feddyn",
    title="FedDyn",
    summary="Each site's objective is corrected by its own history, so that all sites' optima agree.",
    settings={"rule.weighting": "uniform"},
    paper="Acar et al.: Federated Learning Based on Dynamic Regularization. ICLR 2021. "
    "https://arxiv.org/abs/2111.04263",
)
@dataclass(frozen=True)
class FedDynTrainer(PlainTrainer):
    """Dynamic regularisation (Acar et al., ICLR 2021, Algorithm 1), with the task's optimizer.

    A site that misses rounds keeps its g_k. Only trainable parameters drift; running statistics are the rule's. alpha
    is the sites' alone: the server keeps -h / alpha, the mean over the known sites of all that they have moved.

    Args:
        alpha: > 0; the authors choose among 0.1, 0.01 and 0.001.
        variant: "reference" as the authors' code: alpha_k = alpha n / (K n_k) where the rule says so, and a gradient
            of norm above 10, taken without the terms that are linear in w, is scaled down to it.
    """

    receives: ClassVar[tuple[TensorSpec, ...]] = (
        TensorSpec(DRIFT, parameters, "from the mean of the sites' models to where their training starts, -h / alpha"),
    )
    corrects = True
    alpha: Annotated[float, Range(1e-9, 1e6)] = 0.01
    variant: Literal["paper", "reference"] = "paper"

    def __post_init__(self) -> None:
        within(self, alpha="(0, inf)")

    def orders(self, state: ServerState, site: str, info: Info) -> dict[str, float]:
        """n / (K n_k), by which the authors' code scales alpha (``variant=reference``)."""
        own, everyone = info.examples.get(site, 0), info.examples.values()
        return {"alpha_scale": sum(everyone) / len(everyone) / own} if own else {}

    def collect(self, model: StateDict, replies: Sequence[Reply], state: ServerState, info: Info) -> ServerState:
        """The drift after this round: a site started at the model + drift, so that it moved D_k - drift."""
        n, drift = max(info.known_sites, len(replies)), state.get(DRIFT, {})
        after = {}
        for key in sorted(replies[0].trainable):
            total = sum((reply.update[key] for reply in replies[1:]), replies[0].update[key].clone())
            after[key] = _moved(total, drift.get(key), len(replies), n)
        return {DRIFT: {**drift, **after}}

    @no_grad
    def setup(self, work: LocalWork) -> None:
        """Move to the start of the round, and take up the history."""
        drift, history = work.tensors.get(DRIFT, {}), work.memory.get(HISTORY, {})
        trained = _trained(work)
        for key, w in trained.items():
            if key in drift:
                w += drift[key].to(w)
        anchor = {key: w.detach().clone() for key, w in trained.items()}
        past = {k: history[k].to(w) if k in history else torch.zeros_like(w) for k, w in trained.items()}
        scale = work.orders.get("alpha_scale", 1.0) if self.variant == "reference" else 1.0
        work.scratch.update(anchor=anchor, past=past, alpha=min(self.alpha * max(scale, 0.0), 1e9))

    def correct_gradients(self, work: LocalWork) -> None:
        """grad F + alpha (sum of past updates) + alpha (w - w^t); the step returns F."""
        alpha, past, anchor = (work.scratch[name] for name in ("alpha", "past", "anchor"))
        moved: dict[str, Any] = {key: w for key, w in _trained(work).items() if w.grad is not None}
        for key, w in moved.items():
            w.grad.add_(past[key] - anchor[key], alpha=alpha)
        if self.variant == "reference":
            torch.nn.utils.clip_grad_norm_(moved.values(), MOST_NORM)
        for w in moved.values():
            w.grad.add_(w.detach(), alpha=alpha)

    @no_grad
    def finish(self, work: LocalWork) -> None:
        past, anchor = work.scratch["past"], work.scratch["anchor"]
        work.memory[HISTORY] = {key: past[key] + (w - anchor[key]) for key, w in _trained(work).items()}


def _trained(work: LocalWork) -> StateDict:
    """Name -> parameter, of those that training moves."""
    return {key: parameter for key, parameter in work.network.named_parameters() if parameter.requires_grad}


def _moved(total: torch.Tensor, drift: torch.Tensor | None, here: int, known: int) -> torch.Tensor:
    """drift + 1/N sum over S of (D_k - drift), in the update's type or float32 if that is wider."""
    total = total.to(torch.promote_types(total.dtype, torch.float32))
    return total / known if drift is None else drift + (total - here * drift) / known
