# SPDX-License-Identifier: Apache-2.0
"""How a run's models are scored on its task's shared test sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from fairflare.core.execution import default_device
from fairflare.core.metric import finite
from fairflare.core.types import Batch, StateDict
from fairflare.engine.evaluation import predict
from fairflare.engine.scoring import Score
from fairflare.engine.setup.site_parts import Parts
from fairflare.tasks.base import Task, TestSet


def is_scored(parts: Parts) -> bool:
    """Whether there are shared test sets, and one model that the sites use."""
    return parts.task.has_test_sets and not parts.counts_own


def scorer(parts: Parts, batch_size: int) -> Score:
    """Scores models on the task's shared test sets, which are built at the first call and kept.

    A model that is not the final one only on those of the papers' tables, which are of the last rounds' mean.
    """
    # Without the initial model, which nobody needs once the run has begun.
    task, network, shared = parts.task, parts.network, parts.trainer.shared_batches
    found: list[TestSet] = []
    tabled = set(task.table_sets().values())

    def score(model: StateDict, final: bool, before_batch: Callable[[], None]) -> dict[str, Any]:
        found.extend(() if found else task.test_sets())
        device = default_device()
        network.to(device).load_state_dict(model)
        del model  # as large as the network
        return {
            test.name: {
                "corrupted": test.corrupted,
                "n": len(test.targets),
                "metrics": _scored(task, network, shared(partial(test.batches, batch_size)), device, before_batch),
            }
            for test in found
            if final or test.name in tabled
        }

    return score


def _scored(
    task: Task, network: nn.Module, batches: Iterator[Batch], device: torch.device, before_batch: Callable[[], None]
) -> dict[str, float]:
    found = predict(network, batches, device, task.condense, before_batch)
    return finite(task.evaluate(*found[:2]))
