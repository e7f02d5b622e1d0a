# SPDX-License-Identifier: Apache-2.0
"""Plain training of several sites at once: their models stacked, their batches padded, one batched call per step.

What a site computes is what ``PlainTrainer`` computes for it alone, but sums are rounded in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from fairflare.core.errors import UserError
from fairflare.core.types import Batch, LocalWork, StateDict, Training
from fairflare.trainers.base import PlainTrainer, Trainer, local_batches, make_optimizer

MOST_PARAMETERS = 1_000_000
"""Of a network that is small enough: above, one site alone keeps a processor busy."""
MOST_STACKED = 50_000_000
"""Parameters of all models that are trained in one call, 200 MB; more sites are trained in several calls."""


class Trained(NamedTuple):
    """What training left at a site: parameters, optimizer steps, mean loss with each batch measured before its step."""

    model: StateDict
    steps: int
    loss: float


def unstackable(network: torch.nn.Module, trainer: Trainer, training: Training, device: torch.device) -> str:
    """Why these cannot train several sites at once, in words that end a sentence; empty where they can."""
    size = sum(p.numel() for p in network.parameters())
    kind = torch.nn.modules.dropout._DropoutNd
    stochastic = any(isinstance(m, kind) or getattr(m, "dropout", 0) not in (0, None) for m in network.modules())
    half = training.precision == "bfloat16" or (training.precision == "auto" and device.type == "cuda")
    reasons = (
        (type(trainer) is not PlainTrainer, "expected trainer sgd, which takes one gradient per batch"),
        (training.keep_optimizer, "expected keep_optimizer=false: optimizers begin anew in each round"),
        (half, "expected precision=float32"),
        (any(True for _ in network.buffers()), "expected a network without running statistics (BatchNorm)"),
        (stochastic, "expected a network without dropout"),
        (size > MOST_PARAMETERS, f"expected a network of at most {MOST_PARAMETERS:,} parameters, got {size:,}"),
    )
    return next((words for holds, words in reasons if holds), "")


def train_together(works: Sequence[LocalWork]) -> list[Trained]:
    """One round of plain training at every site of ``works``, which share network, objective and optimizer settings.

    Their numbers of examples, batches and steps may differ. The networks are left alone; the place of each site in its
    data, with ``local_steps``, is left in its ``work.memory``. UserError where the network does what cannot be batched
    over models.
    """
    queues = [list(local_batches(work)) for work in works]
    order = sorted(range(len(works)), key=lambda k: -len(queues[k]))  # those that still train are always the first
    at_once = max(1, MOST_STACKED // max(1, sum(p.numel() for p in works[0].network.parameters())))
    found: dict[int, Trained] = {}
    for start in range(0, len(order), at_once):
        chosen = order[start : start + at_once]
        found |= zip(chosen, _trained([works[k] for k in chosen], [queues[k] for k in chosen]))
    return [found[k] for k in range(len(works))]


def _trained(works: Sequence[LocalWork], queues: Sequence[Sequence[Batch]]) -> list[Trained]:
    """``works`` in the order of falling numbers of batches."""
    first = works[0]
    network, device = first.network.to(first.device).train(), first.device
    stacked = {}
    for name, p in network.named_parameters():
        all_of_it = torch.stack([w.received[name] for w in works]).to(device)
        stacked[name] = torch.nn.Parameter(all_of_it, requires_grad=p.requires_grad)
    counts = torch.stack([work.data.class_counts for work in works]).to(device)
    optimizer = make_optimizer(torch.nn.ParameterList(stacked.values()), first.training)
    gradients = _gradients(network, first)
    total, seen = torch.zeros(len(works), dtype=torch.float64, device=device), [0] * len(works)
    models: list[StateDict] = []  # from the last site to the first: the order in which they finish
    for t in range(len(queues[0])):
        first.stop_if_aborted()
        batches = [queue[t] for queue in queues if len(queue) > t]
        while len(models) < len(works) - len(batches):
            models.append(_model(stacked, len(works) - len(models) - 1))
        inputs, targets, real = _padded(batches, device)
        n = len(batches)
        live, fixed = (
            {k: v.detach()[:n] for k, v in stacked.items() if v.requires_grad == wanted} for wanted in (True, False)
        )
        found, losses = _batched(gradients, live, fixed, counts[:n], inputs, targets, real)
        for name, value in found.items():
            stacked[name].grad = torch.zeros_like(stacked[name])
            stacked[name].grad[:n] = value  # type: ignore[index]  # just made
        optimizer.step()  # who has finished may move on: its model is kept
        sizes = [len(batch.targets) for batch in batches]
        total[:n] += losses.double() * torch.tensor(sizes, device=device)
        seen[:n] = [a + b for a, b in zip(seen, sizes)]
    models += [_model(stacked, k) for k in reversed(range(len(works) - len(models)))]
    losses = total.cpu() / torch.tensor(seen)
    return [Trained(m, len(q), float(loss)) for m, q, loss in zip(reversed(models), queues, losses)]


def _gradients(network: torch.nn.Module, work: LocalWork) -> Callable[..., Any]:
    """(trainable, other parameters, class counts, inputs, targets, which rows are real) per site -> gradient, loss."""
    objective, tau = work.objective, work.training.logit_tau

    def loss(
        trained: StateDict, fixed: StateDict, counts: torch.Tensor, x: torch.Tensor, y: torch.Tensor, real: torch.Tensor
    ) -> torch.Tensor:
        outputs = torch.func.functional_call(network, (trained, fixed), (x,))
        losses = objective(counts, tau)(outputs, y, reduction="none")
        return torch.where(real, losses, 0.0).sum() / real.sum()

    return torch.func.vmap(torch.func.grad_and_value(loss), randomness="error")


def _batched(gradients: Callable[..., Any], *rest: StateDict | torch.Tensor) -> tuple[StateDict, torch.Tensor]:
    try:
        found: tuple[StateDict, torch.Tensor] = gradients(*rest)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"stacked: the network cannot be trained for several sites at once: {reason}") from None
    return found


def _padded(batches: Sequence[Batch], device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs (S, B, ...), targets (S, B, ...) and bool (S, B): batches of up to B rows; a missing row is zero."""
    sizes = torch.tensor([len(batch.targets) for batch in batches])
    real = torch.arange(int(sizes.max())) < sizes[:, None]
    inputs = torch.nn.utils.rnn.pad_sequence([batch.inputs for batch in batches], batch_first=True)
    targets = torch.nn.utils.rnn.pad_sequence([batch.targets for batch in batches], batch_first=True)
    return inputs.to(device), targets.to(device), real.to(device)


def _model(stacked: Mapping[str, torch.Tensor], k: int) -> StateDict:
    return {name: value.detach()[k].cpu().clone() for name, value in stacked.items()}
