# SPDX-License-Identifier: Apache-2.0
"""What a METHOD's run offers a hospital, and what the hospital has alone where that is no logistic regression.

A method offers its shared model with an intercept of the hospital's own, or a personal model. Alone a hospital has the
network that it trains, or Cox's regression of times.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairflare.core import registry
from fairflare.core.execution import Execution, default_device, eager, placed
from fairflare.core.seeds import derive
from fairflare.core.types import LocalWork, Round, StateDict
from fairflare.data.tensors import Grouping, Split, TensorData
from fairflare.engine.files import MODEL, read_model
from fairflare.engine.memory import personal_file
from fairflare.engine.setup.config import RunConfig
from fairflare.engine.setup.local import SITES
from fairflare.engine.setup.parts import Parts
from fairflare.functional.calibration import fitted
from fairflare.functional.intervals import Array, Owners
from fairflare.functional.slopes import sigmoid
from fairflare.inference.loaded_run import open_run
from fairflare.studies.runs import predicted
from fairflare.tasks.folds import numbered
from fairflare.tasks.folds import part as rows_of
from fairflare.tasks.kinds.masks import soft_loss
from fairflare.tasks.kinds.survival import efron_loss


def on_fold(config: RunConfig, fold: str) -> RunConfig:
    """The run on a fold, or on ``folds.ALL`` patients, where a site that tests none is no error."""
    return dataclasses.replace(config, fold=fold, accept=sorted({*config.accept, "empty_split"}))


@dataclasses.dataclass(frozen=True)
class Trained:
    """A method's run that has ended, and the index of the class whose risk is asked for; -1: of times or masks.

    ``outside``: the site took no part in it, so that it has the shared model alone.
    """

    parts: Parts
    config: RunConfig
    folder: Path
    event: int = -1
    outside: bool = False

    def model_for(self, client: str) -> StateDict:
        """What the run has for a site: a personal model, one of the rule's, or the shared."""
        if self.outside:
            return read_model(self.folder / MODEL)
        if self.parts.has_personal:
            return read_model(personal_file(self.folder / SITES / f"{client}.safetensors"))
        if self.parts.counts_own:
            return dict(open_run(self.folder, client, plain=True).network.state_dict())
        return read_model(self.folder / MODEL)

    def outputs(self, model: StateDict, data: TensorData, split: Any, *, plain: bool = False) -> tuple[Tensor, Tensor]:
        """``predicted`` by this model."""
        self.parts.network.load_state_dict(model)
        return predicted(self.parts, self.config, data, split, plain=plain)

    def logits(self, model: StateDict, data: TensorData, split: Any, *, plain: bool = False) -> tuple[Array, Array]:
        """(N,) logits of the event, against all other classes, in a split, and its labels, 0 or 1."""
        outputs, targets = self.outputs(model, data, split, plain=plain)
        found = outputs.double()
        others = found[:, [k for k in range(found.shape[1]) if k != self.event]].logsumexp(1)
        return (found[:, self.event] - others).numpy(), (targets.numpy() == self.event).astype(np.float64)

    def scores(self, model: StateDict, data: TensorData, split: Any, *, plain: bool = False) -> Array:
        """(N,) log risks of a split's patients, or of masks each image's Dice, the mean over structures."""
        task = self.parts.task
        cases: Any = task.kind.cases(*self.outputs(model, data, split, plain=plain), task.classes)
        # where an output is not finite, so is the loss, but not the Dice
        found = cases.risks if task.kind.has_times else cases.dice.mean(1) + 0 * soft_loss(cases.outputs, cases.targets)
        return np.asarray(found, dtype=np.float64)

    def risks(self, client: str, data: TensorData) -> Array:
        """(N,) of the site's test patients; a shared model's with an intercept of the site's own."""
        model = self.model_for(client)
        if self.event < 0:
            return self.scores(model, data, "test")
        new = self.logits(model, data, "test")[0]
        if (self.parts.has_personal or self.parts.counts_own) and not self.outside:
            return sigmoid(new)
        return sigmoid(new + fitted(*self.logits(model, data, "train")).intercept)

    def own(self, data: TensorData) -> Array:
        """(N,) of the test patients by the site's own model: Cox's regression of times in a table, else the network."""
        train, test = data.splits["train"], data.splits["test"]
        assert isinstance(train, Split) and isinstance(test, Split)  # in memory
        if self.parts.task.kind.has_times and train.inputs.dim() == 2:
            x, new = (np.asarray(part.inputs, dtype=np.float64) for part in (train, test))
            return own_log_risks(x, np.asarray(train.targets, dtype=np.float64), new, train.patients)
        model = own_network(self, data)
        if self.event < 0:
            return self.scores(model, data, "test", plain=True)
        return sigmoid(self.logits(model, data, "test", plain=True)[0])


INNER, PENALTIES = 5, np.logspace(0, 3, 4)
"""Of Cox's regression: folds of its cross-validation, and what they choose from."""
RATES = (1.0, 0.3)
"""Times the task's learning rate."""
HELD_OUT = 5
"""One of so many patients chooses; then all train."""


def own_network(run: Trained, data: TensorData) -> StateDict:
    """The task's network, trained on the site's training patients alone for at most the epochs of the run.

    A fifth of the patients chooses the learning rate and the epoch by the least loss, so that the network stops early;
    it is then trained on all of them. Of the run its seed, settings and network count.
    """
    whole = data.splits["train"]
    assert isinstance(whole, Split)
    owner = numbered(np.zeros(len(whole), dtype=np.int64), whole.patients)
    dealing = np.random.default_rng(derive(run.config.seed, "own network"))
    held = (dealing.permutation(owner.max() + 1) % HELD_OUT == 0)[owner]
    inner = copy.copy(data)
    inner.splits = {**data.splits, "train": rows_of(whole, ~held), "val": rows_of(whole, held)}
    inner = inner.grouped(Grouping())
    best, rate, epochs = np.inf, 1.0, 0
    for tried in RATES:
        for epoch, model in enumerate(_epochs(run, inner, tried)):
            loss = _loss(run, inner, model)
            if loss < best:
                best, rate, epochs = loss, tried, epoch
    return next(itertools.islice(_epochs(run, data, rate), epochs, None))


def _epochs(run: Trained, data: TensorData, rate: float) -> Iterator[StateDict]:
    """The model before training, then after each epoch."""
    parts, training = run.parts, run.config.training
    rounds, per_round = training.rounds, dataclasses.replace(training, lr=rate * training.lr, keep_optimizer=True)
    network = copy.deepcopy(parts.network)
    network.load_state_dict(parts.model)
    yield dict(copy.deepcopy(network.state_dict()))
    memory: dict[str, object] = {}
    device = default_device()
    for number in range(1, rounds + 1):
        seed = derive(run.config.seed, "own network", number)
        how: dict[str, Any] = {"execution": Execution(device), "memory": memory, "objective": parts.task.objective}
        work = LocalWork(placed(network, device), data.on(device), per_round, Round(number, rounds), seed, **how)
        registry.get_trainer("sgd")().train(work)
        yield {key: value.cpu() for key, value in copy.deepcopy(network.state_dict()).items()}


def _loss(run: Trained, data: TensorData, model: StateDict) -> float:
    """The task's mean loss of the held-out patients: cross-entropy of classes."""
    task = run.parts.task
    return task.kind.loss(task.kind.cases(*run.outputs(model, data, "val", plain=True), task.classes))


def own_log_risks(x: Array, y: Array, new: Array, patients: Owners | None = None) -> Array:
    """Log risks (M,) of rows ``new`` (M, F) by a ridge Cox regression of rows x (N, F) with times and events y (N, 2).

    The penalty is that of the largest cross-validated partial likelihood (Verweij and van Houwelingen, Statistics in
    Medicine 12, 1993), with all rows of a patient (``patients``: (N,), whose row each is) in one of its parts.
    """
    owner = numbered(np.zeros(len(x), dtype=np.int64), patients)
    place = (np.random.default_rng(0).permutation(owner.max() + 1) % INNER)[owner]
    rows, times = torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(np.ascontiguousarray(y))
    parts = [(rows[place != fold], times[place != fold]) for fold in range(INNER)]

    def lost(penalty: float) -> float:
        found = [(part, _ridge(*part, penalty)) for part in parts]
        return sum(float(_cox_loss(rows, times, at) - _cox_loss(*part, at)) for part, at in found)

    return np.asarray(new @ _ridge(rows, times, min(PENALTIES, key=lost)).numpy())


def _cox_loss(rows: Tensor, times: Tensor, at: Tensor) -> Tensor:
    return efron_loss((rows @ at)[:, None], times) * len(rows)


def _ridge(rows: Tensor, times: Tensor, penalty: float) -> Tensor:
    """(F,) Cox's coefficients with a ridge penalty."""
    at = torch.zeros(rows.shape[1], dtype=torch.float64, requires_grad=True)
    search = eager(torch.optim.LBFGS)([at], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> float:
        search.zero_grad()
        found = _cox_loss(rows, times, at) + penalty * at @ at / 2
        found.backward()
        return found.item()

    search.step(loss)
    return at.detach()
