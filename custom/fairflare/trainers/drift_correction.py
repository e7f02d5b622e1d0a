# SPDX-License-Identifier: Apache-2.0
"""Corrections of client drift that sites and server keep between rounds (SCAFFOLD, FedDyn).

SCAFFOLD: control variates, estimates of sites' gradients and of their mean, take each site's drift out of its steps.

FedDyn: at a site a regulariser that moves with the site's own history, at the server the drift of all sites.

start       w = wbar^t + drift, as the server sends them
minimise    F_k(w) - <g_k, w> + alpha_k / 2 ||w - w^t||^2      w^t that start, g_k = -alpha_k sum of the site's past
keep        g_k <- g_k - alpha_k (w_k - w^t)                    (w_k - w^t), kept here as that sum

The rule makes wbar^{t+1}, in FedDyn itself the mean of the sites' models: what is evaluated, reported and saved. The
server half, under any rule:

h          <- h - alpha / N sum over S of (w_k - w^t)         N known sites, S those of the round
w^{t+1}     = wbar^{t+1} - h / alpha               where the sites start; -h / alpha, the drift, is sent beside wbar
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch

from fairflare.core.execution import no_grad
from fairflare.core.registry import method
from fairflare.core.types import Info, LocalWork, Reply, StateDict, TensorSpec, Training
from fairflare.core.validation import Range, within
from fairflare.functional.blocks import parameters
from fairflare.trainers.base import PlainTrainer, ServerState

CONTROL = TensorSpec("control", parameters, "the server's control variate c")
CHANGE = TensorSpec("control_change", parameters, "change of the site's control variate, c_i+ - c_i")


def steps_taken(steps: int, momentum: float = 0.0) -> float:
    """By how many learning rates K steps of SGD along one constant gradient move the model.

    K without momentum m; with it the j-th last gradient counts (1 - m^j) / (1 - m) times, so that K becomes the sum of
    that over j = 1..K. The optimizer starts without velocity. K >= 1, m in [0, 1].
    """
    if momentum == 1:
        return steps * (steps + 1) / 2
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def mean_gradients(start: Mapping[str, torch.Tensor], end: Mapping[str, torch.Tensor], length: float) -> StateDict:
    """Entry -> (w^t - y) / length: the (weighted) mean of the directions that SGD has gone from w^t to y = ``end``.

    ``length`` is the learning rate times ``steps_taken``.
    """
    return {key: (start[key] - y.detach()) / length for key, y in end.items()}


OWN = "control"
"""Key of a site's memory: c_i."""


@method(
    "scaffold",
    title="SCAFFOLD",
    summary="Control variates take each site's own drift out of its local steps; for SGD and many local steps.",
    settings={"weighting": "uniform"},
    shared={"weighting": ("rule.weighting", "trainer.weighting")},
    paper="Karimireddy et al.: SCAFFOLD: Stochastic Controlled Averaging for Federated Learning. ICML 2020. "
    "https://arxiv.org/abs/1910.06378",
)
@dataclass(frozen=True)
class Scaffold(PlainTrainer):
    """Each step goes along g(y) - c_i + c; c_i+ estimates the site's gradient, c follows the mean of the c_i.

    c += |S|/N sum_k p_k (c_k+ - c_k) over the sites S of a round, of N known ones (Karimireddy et al., Algorithm 1).

    Args:
        estimate: "steps": c_i+ = c_i - c + (w^t - y) / (K eta), option II, which holds for SGD alone; with momentum
            K is the sum of ``steps_taken``. "gradient": c_i+ = grad F_i(w^t) over the whole training split in
            evaluation mode, option I, under any optimizer, for one more pass.
        weighting: "uniform" for p_k = 1/|S| as published; "examples" for p_k = n_k / n, as FLamby has it.
    """

    sends: ClassVar[tuple[TensorSpec, ...]] = (CHANGE,)
    receives: ClassVar[tuple[TensorSpec, ...]] = (CONTROL,)
    estimate: Literal["steps", "gradient"] = "steps"
    weighting: Literal["uniform", "examples"] = "uniform"

    def unsuited_to(self, training: Training) -> str:
        """Option II divides by the steps' length, which Adam's and a carried velocity's are not."""
        if self.estimate == "gradient":
            return ""
        if training.optimizer != "sgd":
            return f"SCAFFOLD expects optimizer=sgd, got {training.optimizer}; any other with trainer.estimate=gradient"
        if training.keep_optimizer and training.momentum:
            return "SCAFFOLD expects keep_optimizer=false with momentum, or trainer.estimate=gradient"
        return ""

    def collect(self, model: StateDict, replies: Sequence[Reply], state: ServerState, info: Info) -> ServerState:
        """The next c, within what a site takes; what a site has not sent counts as no change."""
        n = sum(reply.n_examples for reply in replies)
        here = len(replies) / max(info.known_sites, len(replies))
        c = dict(state.get(CONTROL.name, {}))
        for reply in replies:
            share = 1 / len(replies) if self.weighting == "uniform" else reply.n_examples / n
            for key, change in reply.tensors.get(CHANGE.name, {}).items():
                c[key] = change * (here * share) + c.get(key, 0)
        return {CONTROL.name: {key: value.clamp(-CONTROL.bound, CONTROL.bound) for key, value in c.items()}}

    def setup(self, work: LocalWork) -> None:
        work.scratch["c"] = _filled(work, work.tensors.get(CONTROL.name, {}))
        work.scratch["own"] = _filled(work, work.memory.get(OWN, {}))
        if self.estimate == "gradient":
            work.scratch["fresh"] = self._whole_gradient(work)

    def correct_gradients(self, work: LocalWork) -> None:
        for key, parameter in work.network.named_parameters():
            if parameter.grad is not None:
                parameter.grad += work.scratch["c"][key] - work.scratch["own"][key]

    def finish(self, work: LocalWork) -> None:
        c, own, training = work.scratch["c"], work.scratch["own"], work.training
        if self.estimate == "gradient":
            change = {key: fresh - own[key] for key, fresh in work.scratch["fresh"].items()}
        else:
            length = training.lr * steps_taken(work.steps, training.momentum)
            ends = dict(work.network.named_parameters())
            start = {key: work.received[key].to(y) for key, y in ends.items()}
            change = {key: mean - c[key] for key, mean in mean_gradients(start, ends, length).items()}
        work.send_tensors[CHANGE.name] = change
        work.memory[OWN] = {key: own[key] + change[key] for key in change}

    def _whole_gradient(self, work: LocalWork) -> StateDict:
        """grad F_i(w^t) over the training split, zero for frozen parameters; leaves the network in training mode."""
        objective, n = self.objective(work), work.data.size("train")
        total = _filled(work, {})
        work.network.eval()
        for batch in work.data.fixed("train", work.training.batch_size):
            work.network.zero_grad(set_to_none=True)
            self.backward(work, objective, batch.to(work.device))
            for key, parameter in work.network.named_parameters():
                if parameter.grad is not None:
                    total[key].add_(parameter.grad, alpha=len(batch.targets) / n)
        work.network.zero_grad(set_to_none=True)
        work.network.train()
        return total


def _filled(work: LocalWork, found: Mapping[str, Any]) -> StateDict:
    """``found`` on the device, zero for parameters that it lacks."""
    return {k: found[k].to(p) if k in found else torch.zeros_like(p) for k, p in work.network.named_parameters()}


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
