# SPDX-License-Identifier: Apache-2.0
"""Training with differential privacy for every record of a site's training split.

    each step   S: every record with chance q = B / n, by itself
                g = (1 / B) (sum over S of g_i min(1, C / |g_i|) + sigma C N(0, 1))
                the task's optimizer steps along g

Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, https://arxiv.org/abs/1607.00133, Algorithm 1, with
Opacus's gradients per example. What leaves the site beside the model is n, the number of steps, epsilon, times, and
metrics of splits that the model was not trained on.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch

from fairflare.core.errors import UserError
from fairflare.core.registry import trainer
from fairflare.core.seeds import derive
from fairflare.core.types import Cost, LocalWork, Number, Offer, Training
from fairflare.core.validation import Range
from fairflare.privacy.differential_privacy import Draws, Mechanism, epsilon_of, noise_for
from fairflare.trainers.base import Trainer, make_optimizer

SPENT = "privacy budget spent: this site takes no further part"
COX = "cox"
PATIENTS = ("patient_id", "patient")
"""Attributes that tell whose a record is."""


@trainer("dp-sgd")
@dataclass(frozen=True)
class PrivateTrainer(Trainer):
    """DP-SGD: gradients clipped record by record, Poisson samples, Gaussian noise, and a budget that ends training.

    Args:
        noise: sigma, the noise's standard deviation over ``clip``; 0: the least with which the run's rounds keep to
            the budget at this site.
        clip: C, the largest norm of a record's gradient.
        epsilon: the site's budget over the run.
        delta: the chance that goes with it; choose it well below 1 over the number of records.
        physical: the most records whose gradients are held at once; changes memory, not the result but for rounding.
        draws: "system" takes samples and noise from the operating system; "seed" from the run's seed, which protects
            nobody: for simulations that are to be repeated. Sites refuse it on data of their own.
    """

    cost: ClassVar[Cost] = Cost(forward=1, backward=1)
    private: ClassVar[bool] = True
    sends: ClassVar[tuple[Number, ...]] = (
        Number("epsilon", 0.0, 1e6, "epsilon that the site has spent in this run, at the run's delta"),
    )

    noise: Annotated[float, Range(0, 1e6)] = 0.0
    clip: Annotated[float, Range(1e-9, 1e9)] = 1.0
    epsilon: Annotated[float, Range(1e-6, 1e6)] = 8.0
    delta: Annotated[float, Range(1e-15, 0.1)] = 1e-5
    physical: Annotated[int, Range(1, 65_536)] = 256
    draws: Literal["system", "seed"] = "system"

    def missing(self, offer: Offer) -> str:
        if offer.family == COX:
            return "trainer dp-sgd: the loss of one patient depends on the others at risk (choose model hazards)"
        return ""

    def unsuited_to(self, training: Training) -> str:
        """Why not: the adjustment of logits tells how many records each class has."""
        return "trainer dp-sgd: expected logit_tau=0, for class counts are not covered" if training.logit_tau else ""

    def unsuited(self, network: torch.nn.Module) -> str:
        """Why Opacus has no gradients per example of ``network``: the first layer that mixes examples or keeps them."""
        try:
            from opacus.validators import ModuleValidator
        except ImportError:
            raise UserError("trainer dp-sgd needs Opacus: pip install 'fairflare[privacy]'") from None

        was = network.training
        network.train()
        try:
            for name, module in network.named_modules():
                keeps = [buffer for buffer in module.buffers(recurse=False) if buffer.is_floating_point()]
                leaf = next(module.children(), None) is None
                if keeps or (leaf and ModuleValidator.validate(module)):
                    return f"layer {name or 'network'} ({type(module).__name__}) has no gradients per example"
        finally:
            network.train(was)
        return ""

    def halted(self, work: LocalWork) -> str:
        """Charge the round to the site's ledger, before it begins; why the site has no part in it, or ""."""
        if work.ledger is None:
            return ""
        spent = [*_spent(work), self.planned(work)]
        if (now := epsilon_of(spent, self.delta)) > self.epsilon:
            return SPENT
        rows = [[one.noise, one.rate, one.steps] for one in spent]
        work.ledger.write({"epsilon": now, "budget": self.epsilon, "delta": self.delta, "spent": rows})
        return ""

    def planned(self, work: LocalWork) -> Mechanism:
        """What a round at the site is; UserError where records are not patients, but patients are known."""
        n, training = work.data.size("train"), work.training
        attributes: Any = getattr(work.data, "attributes", lambda split: {})("train")
        for name in PATIENTS:
            ids = [one for one in attributes.get(name, ()) if one]
            if len(set(ids)) < len(ids):
                raise UserError(f"trainer dp-sgd: expected one training record per patient ({name}), got several")
        each = training.steps(n) or training.epochs * -(-n // training.batch_size)
        rate = min(1.0, training.batch_size / n)
        noise = self.noise or noise_for(self.epsilon, self.delta, rate, each * training.rounds)
        return Mechanism(noise, rate, each)

    def _train(self, work: LocalWork) -> torch.Tensor:
        """As the module says; the loss, which no noise covers, is not told: NaN."""
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

        plan, training = self.planned(work), work.training
        data: Any = work.data
        if not hasattr(data, "picked"):  # as ``data.tensors.TensorData`` has it
            raise UserError(f"trainer dp-sgd: expected data that are read by record, got {type(data).__name__}")
        n = data.size("train")
        draws = Draws(None if self.draws == "system" else derive(work.seed, "noise"))
        work.network.train()
        inner = make_optimizer(work.network, training)
        if training.keep_optimizer and "optimizer" in work.memory:
            inner.load_state_dict(work.memory["optimizer"])
        objective, size = self.objective(work), training.batch_size
        wrapped = GradSampleModule(work.network, loss_reduction="sum")
        # Opacus adds its noise from a generator whose state can be computed from its output: ours comes in its hook.
        optimizer = DPOptimizer(inner, noise_multiplier=0.0, max_grad_norm=self.clip, expected_batch_size=size)

        def add_noise(done: Any) -> None:
            for parameter in done.params:
                parameter.grad += draws.normal(parameter.grad) * (plan.noise * self.clip / size)

        optimizer.attach_step_hook(add_noise)
        try:
            warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)  # inputs need no gradient
            for step in range(plan.steps):
                work.stop_if_aborted()
                rows = torch.from_numpy(np.flatnonzero(draws.uniform(n) < plan.rate))
                parts = rows.split(self.physical)
                optimizer.zero_grad()
                for number, part in enumerate(parts, 1):
                    optimizer.signal_skip_step(number < len(parts))
                    if len(part):
                        (batch,) = data.picked([part], derive(work.seed, "picked", step, number))
                        batch = batch.to(work.device)
                        objective(wrapped(batch.inputs), batch.targets, reduction="none").sum().backward()
                    else:
                        for parameter in optimizer.params:
                            parameter.grad_sample = parameter.new_zeros((0, *parameter.shape))
                    optimizer.step()
                    optimizer.zero_grad()
        finally:
            wrapped.to_standard_module()
        work.steps = plan.steps
        if training.keep_optimizer:
            work.memory["optimizer"] = inner.state_dict()
        work.send_numbers["epsilon"] = epsilon_of(_spent(work) if work.ledger else [plan], self.delta)
        return torch.tensor(float("nan"))

    def step(self, work: Any, optimizer: Any, objective: Any, batch: Any) -> torch.Tensor:
        raise NotImplementedError


def _spent(work: LocalWork) -> list[Mechanism]:
    """What this run's rounds were so far, those included that were asked for again."""
    assert work.ledger is not None
    rows = work.ledger.read().get("spent", ())
    return [Mechanism(float(noise), float(rate), int(steps)) for noise, rate, steps in rows]
