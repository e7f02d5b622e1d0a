# SPDX-License-Identifier: Apache-2.0
"""A hospital's baseline hazard, from its labelled patients: what makes probabilities of a Cox model's log risks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fairflare.core.errors import UserError
from fairflare.core.execution import default_device
from fairflare.data.site_config import stricter
from fairflare.engine.evaluation import predict
from fairflare.functional.intervals import Array
from fairflare.functional.survival import baseline
from fairflare.inference.hospitals import hospitals
from fairflare.inference.loaded_run import Opened
from fairflare.tasks.external import labelled, preflight
from fairflare.tasks.kinds.survival import Cox

WITHOUT = (
    "a log risk puts patients in order and is no probability; --baseline TABLE, a hospital's patients with times and "
    "events, adds survival at the horizons"
)
LEAST = -1e30
"""For the log of a hazard of 0, as a number that files can hold."""


def with_baseline(opened: Opened, table: Path | None) -> Opened:
    """The run with Breslow's baseline of one hospital's patients under its model, or a remark where there is none.

    It is told at the horizons at which enough patients have left the risk set since the last one and as many remain,
    and stays on this machine, in what is predicted and exported.

    Args:
        table: the patients, as ``fairflare evaluate`` takes them: times and events in the run's columns.

    Raises:
        UserError: the run's model gives no log risk, or the patients are too few or without an event.
    """
    kind = opened.task.kind
    if not isinstance(kind, Cox):
        if table is not None:
            raise UserError("--baseline: expected a run whose model gives a log risk (task.output=cox)")
        return opened
    if table is None:
        return dataclasses.replace(opened, remarks=(*opened.remarks, WITHOUT))
    found = hospitals(opened, table)
    if len(found) != 1:
        raise UserError(f"--baseline: expected the patients of one hospital, got {len(found)}")
    ((name, own),) = found.items()
    least = max(stricter(own.min_count, opened.config.min_count) or 0, 1)
    device = default_device(own.gpu)
    data = labelled(opened.task, name, own, scaling=opened.scaling).on(device)
    problems, ready = preflight(data, opened.task, least)
    if ready is None:
        raise UserError(f"--baseline {name}: {problems[-1].text}")
    outputs, targets, _ = predict(opened.network.to(device), data.fixed("test", 256), device)
    times, events = targets.double().numpy().T
    if not events.any():
        raise UserError(f"--baseline {name}: {problems[-1].text}")
    kept = _steps(times, kind.ends, least)
    if not kept:
        text = (
            f"expected a horizon until which at least {least} patients have left and after which as many are observed"
        )
        raise UserError(f"--baseline {name}: {text}, got none")
    logs = log_hazards(times, events, outputs[:, 0].double().numpy(), kept)
    return dataclasses.replace(opened, with_baseline=dataclasses.replace(kind, ends=kept, log_hazards=logs))


def log_hazards(times: Array, events: Array, risks: Array, ends: Sequence[float]) -> tuple[float, ...]:
    """The logs of Breslow's cumulative hazard at ``ends`` of a patient of log risk 0; risks (N,) may be of any size."""
    middle = float(risks.max())
    with np.errstate(divide="ignore"):
        found = np.log(baseline(times, events, risks - middle, np.array(ends))) - middle
    return tuple(np.clip(found, LEAST, -LEAST).tolist())


def _steps(times: Array, ends: Sequence[float], least: int) -> tuple[float, ...]:
    found, before = list[float](), len(times)
    for end in ends:
        left = int((times > end).sum())
        if min(before - left, left) >= least:
            found.append(end)
            before = left
    return tuple(found)
