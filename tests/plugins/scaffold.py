# SPDX-License-Identifier: Apache-2.0
"""SCAFFOLD: control variates take each site's own drift out of its local steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, optim, zeros_like

from fairflare.core.errors import UserError
from fairflare.core.objectives import Objective
from fairflare.core.registry import method, trainer
from fairflare.core.types import Batch, Info, LocalWork, Outline, Paper, Reply, StateDict, TensorSpec, Weights
from fairflare.rules.base import State, WeighingRule, uniform
from fairflare.trainers.base import Trainer

TITLE = "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning"
PAPER = Paper("Karimireddy et al.", TITLE, "ICML", 2020, "https://arxiv.org/abs/1910.06378")
CONTROL, CHANGE = "control", "control_change"


def parameters(outline: Outline) -> dict[str, tuple[int, ...]]:
    """Shapes of the model's parameters: its floating-point entries but running statistics."""
    return {k: tuple(v.shape) for k, v in outline.model.items() if v.is_floating_point() and "running_" not in k}


def filled(work: LocalWork, found: Mapping[str, Tensor]) -> StateDict:
    """``found`` on the device, zero for parameters that it lacks."""
    return {k: found[k].to(p) if k in found else zeros_like(p) for k, p in work.network.named_parameters()}


@trainer("scaffold")
@dataclass(frozen=True)
class ScaffoldTrainer(Trainer):
    """y -= eta (g(y) - c_i + c); c_i+ = c_i - c + (w^t - y) / (K eta) after K steps (Algorithm 1, option II)."""

    sends = (TensorSpec(CHANGE, parameters, "change of the site's control variate, c_i+ - c_i"),)
    receives = (TensorSpec(CONTROL, parameters, "the server's control variate c"),)

    def setup(self, work: LocalWork) -> None:
        """c and c_i, zero before the first round; (w^t - y) / (K eta) is a gradient under plain SGD alone."""
        if work.training.optimizer != "sgd" or work.training.momentum:
            raise UserError(f"scaffold: expected optimizer=sgd and momentum=0, got {work.training.optimizer}")
        work.scratch["c"] = filled(work, work.tensors.get(CONTROL, {}))
        work.scratch["own"] = filled(work, work.memory.get(CONTROL, {}))

    def step(self, work: LocalWork, optimizer: optim.Optimizer, objective: Objective, batch: Batch) -> Tensor:
        """One corrected step; returns the batch's loss."""
        optimizer.zero_grad(set_to_none=True)
        loss = self.backward(work, objective, batch)
        for key, parameter in work.network.named_parameters():
            if parameter.grad is not None:
                parameter.grad += work.scratch["c"][key] - work.scratch["own"][key]
        optimizer.step()
        return loss

    def finish(self, work: LocalWork) -> None:
        """Keep c_i+ and send its change."""
        c, own, scale = work.scratch["c"], work.scratch["own"], 1 / (work.steps * work.training.lr)
        change = {k: (work.received[k].to(y) - y.detach()) * scale - c[k] for k, y in work.network.named_parameters()}
        work.send_tensors[CHANGE] = change
        work.memory[CONTROL] = {key: own[key] + change[key] for key in change}


@method("scaffold", title="SCAFFOLD", summary="Control variates against client drift.", paper=PAPER, trainer="scaffold")
@dataclass(frozen=True)
class Scaffold(WeighingRule):
    """w += 1/|S| sum_i D_i and c += 1/N sum_i (c_i+ - c_i) over the sites S of the round, of N known ones."""

    wanted = (CHANGE,)

    def weigh(self, replies: Sequence[Reply], state: State, info: Info) -> tuple[Weights, State]:
        """1/|S| each; the state is c."""
        n, c = max(info.known_sites, len(replies)), dict(state.get(CONTROL, {}))
        for key in replies[0].tensors[CHANGE]:
            c[key] = sum((reply.tensors[CHANGE][key] / n for reply in replies), c.get(key, 0))
        return uniform([reply.site for reply in replies]), {CONTROL: c}

    def tensors_for(self, state: State, site: str, info: Info) -> dict[str, StateDict]:
        """c, the same for every site; nothing before the first round."""
        return dict(state)
