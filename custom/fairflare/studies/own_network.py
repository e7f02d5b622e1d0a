# SPDX-License-Identifier: Apache-2.0
"""What a hospital has alone beside ``own_model``: the best network that it trains, and Cox's regression of times."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from fairflare.core import registry
from fairflare.core.execution import Execution, default_device, placed
from fairflare.core.seeds import derive
from fairflare.core.types import LocalWork, Round, StateDict, Training
from fairflare.data.tensors import Grouping, Split, TensorData
from fairflare.engine.setup.config import RunConfig
from fairflare.engine.setup.method_parts import part
from fairflare.engine.setup.parts import Parts
from fairflare.studies.candidates import outputs_of
from fairflare.studies.own_model import INNER, Array
from fairflare.tasks.folds import part as rows_of
from fairflare.tasks.kinds.survival import efron_loss

COX, NETWORK = "cox", "network"
PENALTIES = np.logspace(0, 3, 4)
"""Of Cox's regression."""
RATES = (1.0, 0.3)
"""Times the task's learning rate."""
HELD_OUT = 5
"""One of so many patients chooses; then all train."""


def own_network(parts: Parts, config: RunConfig, data: TensorData) -> StateDict:
    """The task's network, trained on the site's training patients alone for at most the epochs of the run.

    A fifth of the patients chooses the learning rate and the epoch by the least loss, so that the network
    stops early; it is then trained on all of them.

    Args:
        parts, config: of a run of the task; its seed, settings and network count.
        data: examples in memory, as a fold has them.
    """
    whole = data.splits["train"]
    assert isinstance(whole, Split)
    held = np.random.default_rng(derive(config.seed, "own network")).permutation(len(whole)) % HELD_OUT == 0
    inner = copy.copy(data)
    inner.splits = {**data.splits, "train": rows_of(whole, ~held), "val": rows_of(whole, held)}
    inner = inner.grouped(Grouping())
    best, rate, epochs = np.inf, 1.0, 0
    for tried in RATES:
        for epoch, model in enumerate(_epochs(parts, config, inner, tried)):
            loss = _loss(parts, config, inner, model)
            if loss < best:
                best, rate, epochs = loss, tried, epoch
    return next(itertools.islice(_epochs(parts, config, data, rate), epochs, None))


def _epochs(parts: Parts, config: RunConfig, data: TensorData, rate: float) -> Iterator[StateDict]:
    """The model before training, then after each epoch."""
    training = part(Training, config.training)
    rounds, per_round = training.rounds, dataclasses.replace(training, lr=rate * training.lr, keep_optimizer=True)
    network = copy.deepcopy(parts.network)
    network.load_state_dict(parts.model)
    yield dict(copy.deepcopy(network.state_dict()))
    memory: dict[str, object] = {}
    device = default_device()
    for number in range(1, rounds + 1):
        seed = derive(config.seed, "own network", number)
        how: dict[str, Any] = {"execution": Execution(device), "memory": memory, "objective": parts.task.objective}
        work = LocalWork(placed(network, device), data.on(device), per_round, Round(number, rounds), seed, **how)
        registry.get_trainer("sgd")().train(work)
        yield {key: value.cpu() for key, value in copy.deepcopy(network.state_dict()).items()}


def _loss(parts: Parts, config: RunConfig, data: TensorData, model: StateDict) -> float:
    """The task's mean loss of the held-out patients: cross-entropy of classes."""
    cases = parts.task.kind.cases(*outputs_of(parts, config, model, data, "val", plain=True), parts.task.classes)
    return parts.task.kind.loss(cases)


def own_log_risks(x: Array, y: Array, new: Array) -> Array:
    """Log risks (M,) of rows ``new`` (M, F) by a ridge Cox regression of rows x (N, F) with times and events y (N, 2).

    The penalty is that of the largest cross-validated partial likelihood (Verweij and van Houwelingen, Statistics in
    Medicine 12, 1993).
    """
    place = np.random.default_rng(0).permutation(len(x)) % INNER
    rows, times = torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(np.ascontiguousarray(y))
    parts = [(rows[place != fold], times[place != fold]) for fold in range(INNER)]

    def lost(penalty: float) -> float:
        found = [(part, _ridge(*part, penalty)) for part in parts]
        return sum(float(_cox_loss(rows, times, at) - _cox_loss(*part, at)) for part, at in found)

    return np.asarray(new @ _ridge(rows, times, min(PENALTIES, key=lost)).numpy())


def _cox_loss(rows: torch.Tensor, times: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return efron_loss((rows @ at)[:, None], times) * len(rows)


def _ridge(rows: torch.Tensor, times: torch.Tensor, penalty: float) -> torch.Tensor:
    """(F,) Cox's coefficients with a ridge penalty."""
    at = torch.zeros(rows.shape[1], dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS([at], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        search.zero_grad()
        found = _cox_loss(rows, times, at) + penalty * at @ at / 2
        found.backward()
        return found

    search.step(loss)
    return at.detach()
