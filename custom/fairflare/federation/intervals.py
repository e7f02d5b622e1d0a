# SPDX-License-Identifier: Apache-2.0
"""Intervals of a model's metrics over a site's own test patients: made at the site, which sends their two ends.

No chance is involved, and the patients' order does not matter: whoever knew the resamples of a bootstrap, as a server
would that asks about a model whose predictions it can foresee, could solve its ends for single patients.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch

from fairflare.core.types import INTERVALS
from fairflare.federation.checks import Ranges, is_number
from fairflare.federation.evaluation import Predictions, Scoring
from fairflare.functional.resampling import exact_interval, left_out, logit_interval

LEVEL = 0.95
ENDS = ("low", "high")
SHARE = "accuracy"
"""The metric that is a share of the cases, each of them right or wrong."""


Intervals = dict[str, dict[str, dict[str, float]]]


def over_patients(found: Predictions, scoring: Scoring, min_count: int | None, beside: Collection[str]) -> Intervals:
    """``INTERVALS`` -> metric -> ``ENDS``; empty where none may leave, or the model has diverged.

    Of a share of the cases the exact interval, of any other metric the jackknife's on the logit scale: they speak of
    which patients were tested, not of how another training would have ended.

    Args:
        found: the model's predictions on the site's test split.
        scoring: the task's.
        min_count: the fewest cases that an interval leaves of; None: none leaves.
        beside: the metrics that the site sends of these cases; no other has an interval.
    """
    outputs, targets, _ = found
    n, metrics = len(targets), [metric for metric in scoring.measures if metric in beside]
    if not metrics or min_count is None or n < max(min_count, 2) or not bool(torch.isfinite(outputs).all()):
        return {}
    whole = scoring.measured(outputs, targets, np.ones((1, n)))
    parts = [scoring.measured(outputs, targets, counts) for counts in left_out(n)]
    right_or_wrong = set(scoring.hits(outputs, targets).tolist()) <= {0.0, 1.0}
    kept = {}
    for metric in metrics:
        value = float(whole[metric][0])
        if metric == SHARE and right_or_wrong:
            pair: tuple[float, float] | None = exact_interval(value, n, LEVEL)
        else:
            pair = logit_interval(value, np.concatenate([part[metric] for part in parts]), LEVEL)
        if pair is not None:
            kept[metric] = dict(zip(ENDS, pair, strict=True))
    return {INTERVALS: kept} if kept else {}


def checked(content: object, ranges: Ranges | None) -> Intervals:
    """``INTERVALS`` of what a site has sent, at the server; a bad one is dropped, since it informs people alone.

    Args:
        content: the site's results, which may hold anything.
        ranges: name -> range of the task's metrics; None: they are not known, and no interval is kept.
    """
    sent = content.get(INTERVALS) if isinstance(content, Mapping) else None
    if not isinstance(sent, Mapping):
        return {}
    kept = {}
    for name, (low, high) in sorted((ranges or {}).items()):
        pair = sent.get(name)
        ends: list[Any] = [pair.get(end) for end in ENDS] if isinstance(pair, Mapping) else []
        found = [float(end) for end in ends if is_number(end)]
        if len(found) == len(ENDS) and low <= found[0] <= found[1] <= high:
            kept[name] = dict(zip(ENDS, found, strict=True))
    return {INTERVALS: kept} if kept else {}
