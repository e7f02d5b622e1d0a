# SPDX-License-Identifier: Apache-2.0
"""The probes as plain functions of a model and a loader, for a training loop of the user's own.

They are the package's probes, run on the batches of a loader in its order: equal data give equal numbers.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import torch

from fairflare.core.errors import UserError
from fairflare.core.execution import Execution, no_grad
from fairflare.core.types import Batch, LocalWork, Round, SplitName, StateDict, Training
from fairflare.functional.blocks import Group
from fairflare.probes.cka import LayerSimilarity, _features
from fairflare.probes.groups import GroupLoss
from fairflare.probes.sharpness import Sharpness

Loss: TypeAlias = "Callable[..., torch.Tensor]"
"""Outputs and targets -> the mean loss; where it takes ``reduction="none"``, or has it, losses of single examples."""
Loader = Iterable[Any]
"""Gives batches (inputs, targets) or (inputs, targets, groups) in the same order whenever it is gone through."""


def sharpness(model: torch.nn.Module, loader: Loader, loss: Loss, rho: float) -> dict[str, float]:
    """Loss F, perturbed loss L = F(w + rho g / ||g||) and sharpness S = L - F of ``model``, in evaluation mode.

    Wu et al., arXiv:2503.09587, Eq. 9 to 11. Two forward passes and one backward pass over all training examples; the
    model is left as it was. ``rho`` >= 0 is the radius, ``work.rho`` that of the run's round. Returns "loss",
    "perturbed_loss" and "sharpness", as FedISM and FedISM+ take them.
    """
    return Sharpness(rho_max=rho, rho_tau=0.0).measure(_work(model, loader, loss))


def layer_similarity(model: torch.nn.Module, anchor: StateDict, loader: Loader, **settings: Any) -> dict[str, float]:
    """How alike each layer's features are under ``model`` and under the weights ``anchor``: linear CKA.

    Yan et al., arXiv:2410.19765, Eq. 2; two forward passes of at least four examples per batch, and the site's own
    trained ``model`` is left as it was. ``anchor`` is what Fed-LWR's second exchange brings; ``settings`` are the
    probe's, e.g. ``estimator="biased"`` or ``group="block"``. Returns "similarity/LAYER" -> from -1 to 1.
    """
    work = _work(model, loader, torch.nn.functional.cross_entropy)
    work.received = anchor
    return LayerSimilarity(**{"cka_examples": 0, **settings}).measure(work)


@no_grad
def layer_features(model: torch.nn.Module, loader: Loader, group: Group = "leaf") -> dict[str, torch.Tensor]:
    """Each layer's output (N, ...) on all of a small loader's examples, in evaluation mode, kept on the CPU.

    ``group`` says what a layer is, see ``functional.blocks``.
    """
    work, probe = _work(model, loader, torch.nn.functional.cross_entropy), LayerSimilarity(group=group)
    points, found = probe._points(model.eval()), dict[str, list[torch.Tensor]]()
    for batch in work.data.fixed("train", 0):
        for name, features in _features(work, points, batch.to(work.device)).items():
            found.setdefault(name, []).append(features.cpu())
    return {name: torch.cat(parts) for name, parts in found.items()}


def group_losses(
    model: torch.nn.Module, loader: Loader, loss: Loss, groups: Sequence[str], *, min_count: int | None = 10
) -> dict[str, float]:
    """The site's mean loss and, of each group that is large enough, its size and mean loss.

    Zhang et al. (FedUFO), Patterns 5, 2024. What is left out is what the package's own sites leave out: groups below
    ``min_count`` examples, all where it is None, and as many more as hide them. Batches have a third part: each
    example's index among ``groups``, -1 in none; ``loss`` gives losses of single examples. Returns "loss",
    "group_loss/NAME" and "group_count/NAME".
    """
    if _single(loss) is None:
        raise UserError("group_losses: expected a loss that takes reduction='none', as torch.nn.functional's do")
    work = _work(model, loader, loss, len(groups))
    work.groups, work.min_count = tuple(groups), min_count
    return GroupLoss().measure(work)


def _work(model: torch.nn.Module, loader: Loader, loss: Loss, n_groups: int = 0) -> LocalWork:
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    single = _single(loss)

    def objective(logits: torch.Tensor, targets: torch.Tensor, *, reduction: str = "mean") -> torch.Tensor:
        if reduction == "mean":
            return loss(logits, targets)
        if single is not None:
            losses = single(logits, targets)
            return losses.flatten(1).mean(1) if losses.dim() > 1 else losses
        mean = loss(logits, targets)
        return mean.expand(len(targets))  # their sum is right, which is all that a mean over a split needs

    return LocalWork(
        network=model,
        data=LoaderData(loader, n_groups),
        training=Training(),
        round=Round(1, 1),
        seed=0,
        execution=Execution(device),
        objective=lambda counts, tau: objective,
    )


class LoaderData:
    """The batches of a loader as probes see a site's data: one split, in the loader's order and sizes."""

    def __init__(self, loader: Loader, n_groups: int = 0) -> None:
        self.class_counts = torch.ones(1, dtype=torch.int64)
        self._loader = loader
        self.group_counts = self._counted(n_groups) if n_groups else torch.empty(0, dtype=torch.int64)

    def size(self, split: SplitName) -> int:
        """Number of examples."""
        return sum(len(batch.targets) for batch in self.fixed(split, 0))

    def _counted(self, n_groups: int) -> torch.Tensor:
        """int64 (M,): examples of each group."""
        members = torch.cat([batch.groups for batch in self.fixed("train", 0)])
        return torch.bincount(members[members >= 0], minlength=n_groups)

    def training(self, batch_size: int, seed: int) -> Iterator[Batch]:
        """The loader's batches; its order is its own."""
        return self.fixed("train", batch_size)

    def fixed(self, split: SplitName, batch_size: int, at_most: int | None = None) -> Iterator[Batch]:
        """The loader's batches."""
        for parts in self._loader:
            if not isinstance(parts, (list, tuple)) or len(parts) not in (2, 3):
                raise UserError("loader: expected batches (inputs, targets) or (inputs, targets, groups)")
            inputs, targets = parts[0], parts[1]
            groups = parts[2] if len(parts) == 3 else torch.full((len(targets),), -1)
            yield Batch(inputs, targets, torch.as_tensor(groups).to("cpu", torch.int64))


def _single(loss: Loss) -> Loss | None:
    """A loss that gives each example's own; None where ``loss`` has none."""
    if isinstance(loss, torch.nn.Module) and hasattr(loss, "reduction"):
        own = copy.copy(loss)
        vars(own)["reduction"] = "none"
        return own
    try:
        takes = "reduction" in inspect.signature(loss).parameters
    except (TypeError, ValueError):
        return None
    return (lambda logits, targets: loss(logits, targets, reduction="none")) if takes else None
