# SPDX-License-Identifier: Apache-2.0
"""Training with differential privacy for every record of a site's training split.

    each step   S: every record with chance q = B / n, by itself
                g = (1 / B) (sum over S of g_i min(1, C / |g_i|) + sigma C N(0, 1))
                the task's optimizer steps along g

Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, https://arxiv.org/abs/1607.00133, Algorithm 1, with
Opacus's gradients per example. n is the number of training examples with noise, which is charged to the same budget:
chance, steps and the site's weight follow from it. What else leaves the site ``privacy.disclosure`` lists.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch

from fairflare.core.errors import UserError
from fairflare.core.registry import trainer
from fairflare.core.seeds import derive
from fairflare.core.types import FROZEN, Cost, Ledger, LocalWork, Number, Offer, Training
from fairflare.core.validation import Range
from fairflare.privacy.differential_privacy import RECORDS_SPENT, Draws, Mechanism, RecordBudget, epsilon_of, noise_for
from fairflare.trainers.base import Trainer, make_optimizer

COX = "cox"
SPLITS = ("train", "val", "test")


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
                if hasattr(module, FROZEN):
                    continue  # it computes as in evaluation, and has nothing to take a gradient for
                keeps = [buffer for buffer in module.buffers(recurse=False) if buffer.is_floating_point()]
                leaf = next(module.children(), None) is None
                if keeps or (leaf and ModuleValidator.validate(module)):
                    return f"layer {name or 'network'} ({type(module).__name__}) has no gradients per example"
        finally:
            network.train(was)
        return ""

    def halted(self, work: LocalWork) -> str:
        """Charge the round to the site's ledger, before it begins; why the site has no part in it, or ""."""
        budget = self._budget(work)
        return "" if budget is None or budget.charge(self.planned(work)) else RECORDS_SPENT

    def budget(self, ledger: Ledger, seed: int) -> RecordBudget:
        """What this trainer's runs release of a site whose ledger and seed these are."""
        system = self.draws == "system"
        return RecordBudget(
            self.epsilon, self.delta, ledger, lambda purpose: Draws(None if system else derive(seed, purpose))
        )

    def _budget(self, work: LocalWork) -> RecordBudget | None:
        return None if work.ledger is None else self.budget(work.ledger, work.seed)

    def planned(self, work: LocalWork) -> Mechanism:
        """What a round at the site is: a function of public and noised values alone.

        Raises:
            UserError: records are not patients, but patients are known.
        """
        budget, training = self._budget(work), work.training
        whose: Any = getattr(work.data, "patients", lambda split: None)
        if any(whose(split) is not None and len(np.unique(whose(split))) < len(whose(split)) for split in SPLITS):
            raise UserError("trainer dp-sgd: a budget protects a row: expected one of each patient, got several")
        n = work.data.size("train") if budget is None else budget.count(work.data.size("train"))
        each = training.steps(n) or training.epochs * -(-n // training.batch_size)
        rate = min(1.0, training.batch_size / n)
        counted = () if budget is None else tuple(budget.spent()[:1])
        noise = self.noise or noise_for(self.epsilon, self.delta, rate, each * training.rounds, counted)
        return Mechanism(noise, rate, each)

    def _train(self, work: LocalWork) -> torch.Tensor:
        """As the module says; the loss, which no noise covers, is not told: NaN.

        Raises:
            UserError: the data cannot be read by record, or make several examples of one, each of which moves the sum.
        """
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
                        if len(batch.inputs) != len(part):
                            raise UserError("trainer dp-sgd: a budget protects a row: expected one example of each")
                        batch = batch.to(work.device)
                        objective(wrapped(batch.inputs), batch.targets, reduction="none").sum().backward()
                    else:
                        for parameter in optimizer.params:
                            parameter.grad_sample = parameter.new_zeros((0, *parameter.shape))
                    _without_broken(optimizer.params)
                    optimizer.step()
                    optimizer.zero_grad()
        finally:
            wrapped.to_standard_module()
        work.steps = plan.steps
        if training.keep_optimizer:
            work.memory["optimizer"] = inner.state_dict()
        budget = self._budget(work)
        work.send_numbers["epsilon"] = epsilon_of(budget.spent() if budget else [plan], self.delta)
        return torch.tensor(float("nan"))

    def step(self, work: Any, optimizer: Any, objective: Any, batch: Any) -> torch.Tensor:
        raise NotImplementedError


def _without_broken(parameters: Sequence[torch.nn.Parameter]) -> None:
    """Leave out the records whose gradient is not finite: one alone would show in every entry of the update."""
    each = [parameter.grad_sample.flatten(1) for parameter in parameters]  # type: ignore[attr-defined]  # Opacus's
    broken = ~torch.stack([one.isfinite().all(1) for one in each]).all(0)
    if bool(broken.any()):
        for parameter in parameters:
            parameter.grad_sample[broken] = 0.0  # type: ignore[attr-defined]  # Opacus adds it
