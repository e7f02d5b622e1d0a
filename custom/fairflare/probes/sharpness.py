# SPDX-License-Identifier: Apache-2.0
"""The state of convergence that FedISM+ matches: loss, perturbed loss and sharpness on all of a site's training data.

    F = F_k(w), g = grad F_k(w), L = F_k(w + rho(t) g / (||g||_2 + 1e-12)), S = L - F

Wu et al., arXiv:2503.09587, Eq. 9 to 12. Loss and gradient share a pass, so the probe costs two forward passes and one
backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from fairflare.core.registry import probe
from fairflare.core.seeds import derive
from fairflare.core.types import LARGEST_LOSS, Batch, Cost, LocalWork, Number, Objective
from fairflare.core.validation import Few, within
from fairflare.functional.perturbation import TINY, global_norm, rho_at
from fairflare.probes.base import Probe


@probe("sharpness")
@dataclass(frozen=True)
class Sharpness(Probe):
    """Loss, perturbed loss and sharpness in evaluation mode, over the complete training split, in float32 or wider.

    Args:
        rho_max: radius at the last round, >= 0; 0 makes the sharpness zero.
        rho_tau: exponent of (t / T), >= 0.
        probe_model: "received" w^t (the authors' code) or the site's own "trained" model.
        probe_transform: "eval" transforms, or "train" ones drawn anew for each pass (the authors' code; noisy).
        probe_loss: plain "ce", or the "logit_adjusted" training loss.
    """

    cost: ClassVar[Cost] = Cost(forward=2, backward=1)
    reports: ClassVar[tuple[Number, ...]] = (
        Number("loss", 0.0, LARGEST_LOSS, "mean loss F_k of the measured model on the training split"),
        Number("perturbed_loss", 0.0, LARGEST_LOSS, "mean loss after the ascent step of radius rho(t)"),
        Number("sharpness", -LARGEST_LOSS, LARGEST_LOSS, "perturbed loss minus loss"),
    )

    rho_max: float = 0.1
    rho_tau: float = 0.5
    probe_model: Literal["received", "trained"] = "received"
    probe_transform: Literal["eval", "train"] = "eval"
    probe_loss: Literal["ce", "logit_adjusted"] = "ce"
    probe_batch: Few = 64

    def __post_init__(self) -> None:
        within(self, rho_max="[0, inf)", rho_tau="[0, inf)")
        super().__post_init__()

    @property
    def when(self) -> Literal["received", "trained"]:
        return self.probe_model

    def measure(self, work: LocalWork) -> dict[str, float]:
        """F, L and S as above, means over examples in units of the loss; parameters are put back bit for bit."""
        network = work.network.eval()
        tau = work.training.logit_tau if self.probe_loss == "logit_adjusted" else 0.0
        objective = work.loss(tau)
        parameters = [p for p in network.parameters() if p.requires_grad]
        saved = [p.detach().clone() for p in parameters]
        try:
            network.zero_grad(set_to_none=True)
            loss = self._loss(work, objective, "first pass")
            with torch.no_grad():
                self._ascend(parameters, rho_at(work.round, self.rho_max, self.rho_tau))
                perturbed_loss = self._loss(work, objective, "second pass")
        finally:
            network.zero_grad(set_to_none=True)
            with torch.no_grad():
                torch._foreach_copy_([p for p in network.parameters() if p.requires_grad], saved)
        return {"loss": loss, "perturbed_loss": perturbed_loss, "sharpness": perturbed_loss - loss}

    def _ascend(self, parameters: Sequence[torch.Tensor], rho: float) -> None:
        moving, gradients = zip(*((p, p.grad) for p in parameters if p.grad is not None))
        torch._foreach_add_(moving, gradients, alpha=rho / (float(global_norm(gradients)) + TINY))

    def _loss(self, work: LocalWork, objective: Objective, label: str) -> float:
        """The mean loss; with gradients on, the summed loss's, whose direction is all that matters, is in ``grad``.

        The sum is read once, at its end: reading it after every batch would hold a GPU up.
        """
        total, seen = torch.zeros((), dtype=torch.float64, device=work.device), 0
        for inputs, targets, _ in self._batches(work, label):
            losses = objective(work.network(inputs), targets, reduction="none")
            if losses.requires_grad:
                losses.sum().backward()
            total, seen = total + losses.detach().double().sum(), seen + len(targets)
        return float(total) / seen

    def _batches(self, work: LocalWork, label: str) -> Iterator[Batch]:
        if self.probe_transform == "train":
            batches = work.data.training(self.probe_batch, derive(work.seed, "probe", label))
        else:
            batches = work.data.fixed("train", self.probe_batch)
        for batch in batches:
            work.stop_if_aborted()
            yield batch.to(work.device)
