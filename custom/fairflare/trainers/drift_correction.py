# SPDX-License-Identifier: Apache-2.0
"""SCAFFOLD: control variates, estimates of the sites' gradients and of their mean, correct each site's client drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from fairflare.core.registry import method
from fairflare.core.types import Info, LocalWork, Reply, StateDict, TensorSpec, Training
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
