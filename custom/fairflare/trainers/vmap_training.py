# SPDX-License-Identifier: Apache-2.0
"""Training of several sites at once: their models stacked, their batches padded, one batched call per step.

The sites may be of one federation or of many. What a site computes is what its trainer computes for it alone, but sums
are rounded in another order.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from fairflare.core.errors import UserError
from fairflare.core.types import Batch, LocalWork, StateDict, Training
from fairflare.functional.perturbation import TINY, rho_at
from fairflare.trainers.base import PlainTrainer, Trainer, local_batches, make_optimizer
from fairflare.trainers.gsam import GSAM, SAM
from fairflare.trainers.proximal import FedProx
from fairflare.trainers.weighted import WeightedTrainer

MOST_PARAMETERS = 1_000_000
"""Of a network that is small enough: above, one site alone keeps a processor busy."""
MOST_STACKED = 50_000_000
"""Parameters of all models that are trained in one call, 200 MB; more sites are trained in several calls."""


STACKABLE = (PlainTrainer, FedProx, SAM, GSAM, WeightedTrainer)
"""Trainers whose steps this module computes; a class that derives from one of them may do anything else."""


class Trained(NamedTuple):
    """What training left at a site: parameters, optimizer steps, mean loss with each batch measured before its step."""

    model: StateDict
    steps: int
    loss: float


def unstackable(network: nn.Module, trainer: Trainer, training: Training, device: torch.device) -> str:
    """Why these cannot train several sites at once, in words that end a sentence; empty where they can."""
    size = sum(p.numel() for p in network.parameters())
    kind = nn.modules.dropout._DropoutNd
    stochastic = any(isinstance(m, kind) or getattr(m, "dropout", 0) not in (0, None) for m in network.modules())
    half = training.precision == "bfloat16" or (training.precision == "auto" and device.type == "cuda")
    reasons = (
        (type(trainer) not in STACKABLE, "expected trainer sgd, fedprox, sam, gsam or weighted"),
        (getattr(trainer, "weight_sum", "one") != "one", "expected weight_sum=one"),
        (training.keep_optimizer, "expected keep_optimizer=false: optimizers begin anew in each round"),
        (half, "expected precision=float32"),
        (any(True for _ in network.buffers()), "expected a network without running statistics (BatchNorm)"),
        (stochastic, "expected a network without dropout"),
        (size > MOST_PARAMETERS, f"expected a network of at most {MOST_PARAMETERS:,} parameters, got {size:,}"),
    )
    return next((words for holds, words in reasons if holds), "")


def alike(trainer: Trainer) -> str:
    """Trainers of which this is equal train in one call: GSAM's makes two passes, each of the others one."""
    return repr(trainer) if isinstance(trainer, GSAM) else ""


def train_together(works: Sequence[LocalWork], trainers: Trainer | Sequence[Trainer] | None = None) -> list[Trained]:
    """One round of training at every site of ``works``, which share network, objective and optimizer settings.

    Their numbers of examples, batches and steps, and their rounds, may differ. The networks are left alone; the place
    of each site in its data, with ``local_steps``, is left in its ``work.memory``.

    Args:
        works: one per site.
        trainers: one of ``STACKABLE`` for all, or one for each that are ``alike``; plain training by default.

    Returns:
        What was trained, in the order of ``works``.

    Raises:
        UserError: the network does what cannot be batched over models.
    """
    each = [trainers or PlainTrainer()] * len(works) if not isinstance(trainers, Sequence) else trainers
    queues = [_queue(work) for work in works]
    order = sorted(range(len(works)), key=lambda k: -len(queues[k].sizes))  # those that still train are the first
    at_once = max(1, MOST_STACKED // max(1, sum(p.numel() for p in works[0].network.parameters())))
    results: dict[int, Trained] = {}
    for start in range(0, len(order), at_once):
        chosen = order[start : start + at_once]
        some = ([of[k] for k in chosen] for of in (each, works, queues))
        results |= zip(chosen, _trained(*some))  # type: ignore[arg-type]  # three lists
    return [results[k] for k in range(len(works))]


class _Queue(NamedTuple):
    """A round's batches of a site, one after the other, and how many examples each has."""

    rows: Batch
    sizes: list[int]


def _queue(work: LocalWork) -> _Queue:
    data: Any = work.data
    if order := getattr(data, "rows", None):  # as ``data.tensors.TensorData`` has it: small batches take long to read
        batches = list(local_batches(work, order))
        return _Queue(next(data.picked([torch.cat(batches)], 0)), [len(rows) for rows in batches])
    read = list(local_batches(work))
    return _Queue(Batch(*map(torch.cat, zip(*read))), [len(batch.targets) for batch in read])


def _trained(trainers: Sequence[Trainer], works: Sequence[LocalWork], queues: Sequence[_Queue]) -> list[Trained]:
    """``works`` in the order of falling numbers of batches."""
    first, trainer = works[0], trainers[0]
    network, device = first.network.to(first.device).train(), first.device
    stacked = {}
    for name, p in network.named_parameters():
        all_of_it = torch.stack([w.received[name] for w in works]).to(device)
        stacked[name] = nn.Parameter(all_of_it, requires_grad=p.requires_grad)
    anchor = {name: value.detach().clone() for name, value in stacked.items()}
    counts = torch.stack([work.data.class_counts for work in works]).to(device)
    optimizer, gradients = (
        make_optimizer(nn.ParameterList(stacked.values()), first.training),
        _gradients(network, first),
    )
    steps = [len(queue.sizes) for queue in queues]
    sizes = nn.utils.rnn.pad_sequence([torch.tensor(queue.sizes) for queue in queues]).to(device)  # (T, S)
    begins = sizes.T.reshape(-1).cumsum(0).view(sizes.T.shape).T - sizes
    inputs, targets = (_with_none([q.rows[k] for q in queues]).to(device) for k in (0, 1))
    weights = torch.cat([*map(_row_weights, trainers, works, queues), torch.full((1,), torch.nan)]).to(device)
    radii = torch.zeros(len(works), device=device)
    if isinstance(trainer, GSAM):
        radii += torch.tensor([rho_at(work.round, trainer.rho_max, trainer.rho_tau) for work in works], device=device)
    mu = torch.tensor([one.mu if isinstance(one, FedProx) else 0.0 for one in trainers], device=device)
    total = torch.zeros(len(works), dtype=torch.float64, device=device)
    models: list[StateDict] = []  # from the last site to the first: the order in which they finish
    for t in range(steps[0]):
        first.stop_if_aborted()
        n = sum(number > t for number in steps)
        while len(models) < len(works) - n:
            models.append(_model(stacked, len(works) - len(models) - 1))
        live, fixed = (
            {k: v.detach()[:n] for k, v in stacked.items() if v.requires_grad == wanted} for wanted in (True, False)
        )
        place, of = torch.arange(int(sizes[t, :n].max()), device=device), slice(n)
        place = torch.where(place < sizes[t, of, None], begins[t, of, None] + place, len(targets) - 1)
        rows = tuple(whole[place] for whole in (inputs, targets, weights))

        def gradient(at: StateDict, rest: StateDict = fixed, n: int = n, rows: Any = rows) -> Any:
            return _batched(gradients, at, rest, counts[:n], *rows)

        direction, losses = gradient(live)
        if isinstance(trainer, GSAM):
            direction = _gsam_direction(direction, live, radii[:n], trainer.gsam_alpha, gradient)
        elif bool(mu[:n].any()):
            direction = {k: g + _each(mu[:n], g) * (live[k] - anchor[k][:n]) for k, g in direction.items()}
        for name, value in direction.items():
            none = torch.zeros_like(stacked[name][n:])
            stacked[name].grad = torch.cat((value, none)).contiguous()  # a fused step takes memory as it comes
        optimizer.step()  # who has finished may move on: its model is kept
        total[:n] += losses.double() * sizes[t, :n]
    models += [_model(stacked, k) for k in reversed(range(len(works) - len(models)))]
    means = (total / sizes.sum(0)).cpu()
    return [Trained(model, n, float(mean)) for model, n, mean in zip(reversed(models), steps, means)]


def _with_none(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """All rows one after the other, and behind them a row of zeros, for rows that are none."""
    return torch.cat([*parts, torch.zeros_like(parts[0][:1])])


def _row_weights(trainer: Trainer, work: LocalWork, queue: _Queue) -> torch.Tensor:
    """float32 (N,): by how much each example's loss counts, one but under ``WeightedTrainer``."""
    if not isinstance(trainer, WeightedTrainer):
        return torch.ones(len(queue.rows.targets))
    trainer.setup(work)
    shared, of_groups = float(work.scratch["shared"]), work.scratch["groups"].cpu()
    work.scratch.clear()
    weights: torch.Tensor = shared + of_groups[queue.rows.groups.cpu() % len(of_groups)]
    return weights


def _gsam_direction(
    first: StateDict, at: StateDict, radii: torch.Tensor, alpha: float, gradient: Callable[[StateDict], Any]
) -> StateDict:
    """GSAM's direction for S models, see ``trainers.gsam``.

    Args:
        first: entry -> (S, ...) the gradients g at ``at``.
        radii: float (S,), rho of each model's round.
        gradient: models -> (gradients, losses).
    """
    norm = _over_entries(first, first).sqrt()
    scale = (radii.double() / (norm + TINY)).float()
    second, _ = gradient({name: w + _each(scale, w) * first[name] for name, w in at.items()})
    if not alpha:
        return dict(second)
    inner, second_norm = _over_entries(first, second), _over_entries(second, second).sqrt()
    gap = (1 + alpha * (inner / (norm * second_norm + TINY)) * norm / (second_norm + TINY)).float()
    return {name: g * _each(gap, g) - alpha * first[name] for name, g in second.items()}


def _over_entries(one: StateDict, other: StateDict) -> torch.Tensor:
    """float64 (S,): each model's inner product of two gradients."""
    products = [(one[name].double() * other[name].double()).flatten(1).sum(1) for name in one]
    return torch.stack(products).sum(0)


def _each(numbers: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """(S,) as (S, 1, ...), to multiply the entries (S, ...) of each model."""
    return numbers.view(-1, *[1] * (like.dim() - 1))


PLAIN_LAYERS = frozenset({"Sequential", "Linear", "ReLU", "Tanh", "GELU", "Sigmoid", "Identity"})
"""PyTorch's layers that compute along the last dimension alone."""
PER_ROW = ("bernoulli", "gaussian", "poisson")
"""Families whose loss of one example depends on no other."""


def are_products(network: nn.Module, family: str, training: Training) -> bool:
    """Whether the gradients of several sites are a few matrix products, which costs little more than those of one."""
    own = ((type(one).__module__.partition(".")[0], type(one).__name__, one) for one in network.modules())
    plain = all((home == "torch" and name in PLAIN_LAYERS) or hasattr(one, "along_last") for home, name, one in own)
    return plain and type(network) is not nn.Linear and family in PER_ROW and not training.logit_tau


def _gradients(network: nn.Module, work: LocalWork) -> Callable[..., Any]:
    """Of each site: gradients of the weighted mean loss, and the plain mean loss.

    Its arguments: trainable and other parameters, class counts, inputs, targets, and float32 (B,) weights of the rows,
    NaN for a row that is none; all with a first dimension for the site. Layers of a perceptron are matrix products
    over all sites; ``vmap`` batches any other network, at several times the cost of a call.
    """
    if are_products(network, work.family, work.training):
        return partial(_gradients_of_layers, _stacked_layers(network), work)
    objective, tau = work.objective, work.training.logit_tau

    def loss(
        trained: StateDict, fixed: StateDict, counts: torch.Tensor, x: torch.Tensor, y: torch.Tensor, rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        outputs = torch.func.functional_call(network, (trained, fixed), (x,))
        real = ~rows.isnan()
        losses = torch.where(real, objective(counts, tau)(outputs, y, reduction="none"), 0.0)
        return (losses * rows.nan_to_num()).sum() / real.sum(), losses.sum() / real.sum()

    return torch.func.vmap(torch.func.grad(loss, has_aux=True), randomness="error")


def _stacked_layers(network: nn.Module) -> nn.Module:
    """A copy of ``network`` for the parameters of several models; those of its linear layers are not there yet."""

    class Linear(nn.Module):
        """``nn.Linear`` of S models: (S, B, features) -> (S, B, outputs); its parameters are set before each call."""

        weight: torch.Tensor
        bias: torch.Tensor | None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            product = torch.bmm(x, self.weight.transpose(1, 2))
            return product if self.bias is None else product + self.bias[:, None]

    found = copy.deepcopy(network)
    for name, module in list(found.named_modules()):
        if isinstance(module, nn.Linear):
            found.set_submodule(name, Linear())
    return found


def _gradients_of_layers(
    layers: nn.Module,
    work: LocalWork,
    trained: StateDict,
    fixed: StateDict,
    counts: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    rows: torch.Tensor,
) -> tuple[StateDict, torch.Tensor]:
    """See ``_gradients``."""
    leaves = {name: value.detach().requires_grad_() for name, value in trained.items()}
    every = {**fixed, **leaves}
    for name, module in layers.named_modules():
        if f"{name}.weight" in every:
            vars(module).update(weight=every[f"{name}.weight"], bias=every.get(f"{name}.bias"))
    outputs = layers(x).flatten(0, 1)
    real = ~rows.isnan()
    losses = work.objective(counts[0], 0.0)(outputs, y.flatten(0, 1), reduction="none").view(real.shape)
    losses = torch.where(real, losses, 0.0)
    sizes = real.sum(1)
    total = ((losses * rows.nan_to_num()).sum(1) / sizes).sum()
    gradients = torch.autograd.grad(total, list(leaves.values()))
    return dict(zip(leaves, gradients)), (losses.detach().sum(1) / sizes)


def _batched(gradients: Callable[..., Any], *rest: StateDict | torch.Tensor) -> tuple[StateDict, torch.Tensor]:
    try:
        found: tuple[StateDict, torch.Tensor] = gradients(*rest)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"stacked: the network cannot be trained for several sites at once: {reason}") from None
    return found


def _model(stacked: Mapping[str, torch.Tensor], k: int) -> StateDict:
    return {name: value.detach()[k].cpu().clone() for name, value in stacked.items()}
