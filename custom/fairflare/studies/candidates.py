# SPDX-License-Identifier: Apache-2.0
"""The models that a METHOD's run offers a hospital: shared, so with an intercept or class shares of its own, or own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairflare.core.execution import default_device, placed
from fairflare.core.types import StateDict
from fairflare.data.tensors import TensorData
from fairflare.engine.evaluation import predict
from fairflare.engine.files import MODEL, read_model
from fairflare.engine.memory import personal_file
from fairflare.engine.setup.config import RunConfig, site_of_client
from fairflare.engine.setup.join.plan import INTERCEPT
from fairflare.engine.setup.local import SITES
from fairflare.engine.setup.parts import Parts
from fairflare.functional.calibration import fitted
from fairflare.functional.decision import Array
from fairflare.inference.loaded_run import open_run

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
