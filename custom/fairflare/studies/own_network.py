# SPDX-License-Identifier: Apache-2.0
"""The best network that a hospital trains alone: rate and number of epochs chosen on its own patients."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from fairflare.core import registry
from fairflare.core.execution import Execution, default_device, placed
from fairflare.core.seeds import derive
from fairflare.core.types import LocalWork, Round, StateDict, Training
from fairflare.data.grouping import Grouping
from fairflare.data.tensors import Split, TensorData
from fairflare.engine.setup.config import RunConfig
from fairflare.engine.setup.method_parts import part
from fairflare.engine.setup.parts import Parts
from fairflare.studies.candidates import outputs_of
from fairflare.tasks.folds import part as rows_of

Array = npt.NDArray[np.float64]
NETWORK = "network"
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
    for number in range(1, rounds + 1):
        seed = derive(config.seed, "own network", number)
        registry.get_trainer("sgd")().train(
            LocalWork(
                placed(network, default_device()),
                data.on(default_device()),
                per_round,
                Round(number, rounds),
                seed,
                execution=Execution(default_device()),
                memory=memory,
                objective=parts.task.objective,
            )
        )
        yield {key: value.cpu() for key, value in copy.deepcopy(network.state_dict()).items()}


def _loss(parts: Parts, config: RunConfig, data: TensorData, model: StateDict) -> float:
    """The task's mean loss of the held-out patients: cross-entropy of classes."""
    cases = parts.task.kind.cases(*outputs_of(parts, config, model, data, "val", plain=True), parts.task.classes)
    return parts.task.kind.loss(cases)
