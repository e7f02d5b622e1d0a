# SPDX-License-Identifier: Apache-2.0
"""The models that a METHOD's run offers a hospital: shared, so with an intercept or class shares of its own, or own;
and what it has alone beside ``own_model``: the best network that it trains, and Cox's regression of times."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairflare.core import registry
from fairflare.core.execution import Execution, default_device, placed
from fairflare.core.seeds import derive
from fairflare.core.types import LocalWork, Round, StateDict, Training
from fairflare.data.tensors import Grouping, Split, TensorData
from fairflare.engine.evaluation import predict
from fairflare.engine.files import MODEL, read_model
from fairflare.engine.memory import personal_file
from fairflare.engine.setup.config import RunConfig, site_of_client
from fairflare.engine.setup.join_plan import INTERCEPT
from fairflare.engine.setup.local import SITES
from fairflare.engine.setup.method_parts import part
from fairflare.engine.setup.parts import Parts
from fairflare.functional.calibration import fitted
from fairflare.functional.decision import INNER, Array
from fairflare.inference.loaded_run import open_run
from fairflare.tasks.folds import part as rows_of
from fairflare.tasks.kinds.survival import efron_loss

SHARES = " + class shares"


def on_fold(config: RunConfig, fold: str) -> RunConfig:
    """The run on a fold, or on ``folds.ALL`` patients, where a site that tests none is no error."""
    return dataclasses.replace(config, fold=fold, accept=sorted({*config.accept, "empty_split"}))


def model_for(parts: Parts, folder: Path, client: str) -> StateDict:
    """What the finished run in ``folder`` has for a site: a personal model, one of the rule's, or the shared."""
    if parts.has_personal:
        return read_model(personal_file(folder / SITES / f"{client}.safetensors"))
    if parts.counts_own:
        return dict(open_run(folder, client, plain=True).network.state_dict())
    return read_model(folder / MODEL)


def log_odds(labels: Array) -> float:
    """Of the event, among labels (N,) of 0 and 1, both there."""
    return float(np.log(labels.sum() / (len(labels) - labels.sum())))


def federation_odds(parts: Parts, config: RunConfig, event: int) -> float:
    """``log_odds`` among the patients of all sites that have trained a run."""
    trained = [parts.task.site_data(site).splits["train"] for site in site_of_client(config, parts.task).values()]
    return log_odds(np.concatenate([(part.labels.numpy() == event).astype(np.float64) for part in trained]))


def moved(
    parts: Parts, config: RunConfig, label: str, logits: Array, labels: Array, odds: float | None = None
) -> dict[str, float]:
    """Candidate -> what it adds to the logits of the method's model.

    Class shares: a model trained with logits adjusted by each site's own shares (``logit_tau``) is balanced, and gets
    tau log(n_1 / n_0) back (Menon et al., ICLR 2021, equation 10 read backwards). Any other has the federation's
    shares, for which it gets the site's own (Saerens et al., Neural Computation 14, 2002, equation 2.4); with equal
    ones nothing changes.

    Args:
        label: the method's, as it was asked.
        logits: (N,) of the site's training patients.
        labels: (N,) 0 or 1, both there.
        odds: ``federation_odds``; None: class shares are a candidate after ``logit_tau`` alone.
    """
    if parts.has_personal or parts.counts_own:
        return {label: 0.0}
    found = {label: 0.0, label + INTERCEPT: fitted(logits, labels).intercept}
    tau = 0.0 if parts.trainer.sums_only else float(config.training["logit_tau"])  # an exact fit adjusts no logits
    if tau or odds is not None:
        found[label + SHARES] = tau * log_odds(labels) if tau else log_odds(labels) - (odds or 0.0)
    return found


def logits_of(
    parts: Parts,
    config: RunConfig,
    model: Mapping[str, Any],
    data: TensorData,
    split: Any,
    event: int,
    *,
    plain: bool = False,
) -> tuple[Array, Array]:
    """(N,) logits of the event, against all other classes, in a split, and its labels, 0 or 1."""
    outputs, targets = outputs_of(parts, config, model, data, split, plain=plain)
    found = outputs.double()
    others = found[:, [k for k in range(found.shape[1]) if k != event]].logsumexp(1)
    return (found[:, event] - others).numpy(), (targets.numpy() == event).astype(np.float64)


def outputs_of(
    parts: Parts, config: RunConfig, model: Mapping[str, Any], data: TensorData, split: Any, *, plain: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Condensed outputs and targets of a split's cases; ``plain``: of data as they are, not as the trainer has them."""
    parts.network.load_state_dict(dict(model))
    device = default_device()
    prepared = data.on(device) if plain else parts.trainer.site_data(data.on(device))
    batches = prepared.fixed(split, int(config.training["batch_size"]))
    outputs, targets, _ = predict(placed(parts.network, device), batches, device, parts.task.condense)
    return outputs, targets


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
