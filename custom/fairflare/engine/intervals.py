# SPDX-License-Identifier: Apache-2.0
"""Intervals of a model's metrics over a site's own test cases: made at the site, which sends their two ends.

They do not depend on the order of the cases nor on a draw that says anything of one: whoever knew the resamples of a
bootstrap, as a server would that asks about a model whose predictions it can foresee, could solve it for single cases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fairflare.core.types import INTERVALS
from fairflare.engine.checks import Ranges, is_number
from fairflare.engine.evaluation import Predictions, Scoring

LEVEL = 0.95
ENDS = ("low", "high")
ALIKE = 1e-6
"""How far a metric's value may be from that which its interval was made around."""
Intervals = dict[str, dict[str, dict[str, float]]]


def over_patients(
    found: Predictions, scoring: Scoring, min_count: int | None, beside: Mapping[str, float]
) -> Intervals:
    """``INTERVALS`` -> metric -> ``ENDS``; empty where none may leave, or the model has diverged.

    They speak of which cases were tested, not of how another training would have ended.

    Args:
        min_count: the fewest cases that an interval leaves of, and the fewest of each class where the metric depends on
            classes; None: none leaves.
        beside: the metrics of these cases that the site sends; no other value has an interval.
    """
    outputs, targets, _ = found
    if min_count is None or not beside or len(targets) < max(min_count, 1) or not bool(torch.isfinite(outputs).all()):
        return {}
    try:
        ends = scoring.ends(outputs, targets, max(min_count, 1), LEVEL)
    except Exception:  # a task from outside may condense in another way; without its results all would be lost
        return {}
    # A metric that a task computes in its own way has no interval rather than that of another quantity.
    kept = {name: dict(zip(ENDS, pair)) for name, (value, *pair) in ends.items() if _alike(value, beside.get(name))}
    return {INTERVALS: kept} if kept else {}


def checked(content: object, values: Mapping[str, float], ranges: Ranges | None) -> Intervals:
    """``INTERVALS`` of what a site has sent, at the server; a bad one is dropped, since it informs people alone.

    Args:
        values: the metrics on its test split that were accepted; an interval holds its metric's.
        ranges: name -> range of the task's metrics; None: they are not known, and no interval is kept.
    """
    sent = content.get(INTERVALS) if isinstance(content, Mapping) else None
    if not isinstance(sent, Mapping):
        return {}
    kept = {}
    for name in sorted(set(values) & set(ranges or ())):
        pair = sent.get(name)
        ends: list[Any] = [pair.get(end) for end in ENDS] if isinstance(pair, Mapping) else []
        found = [float(end) for end in ends if is_number(end)]
        if len(found) == len(ENDS) and _in_order((ranges or {})[name], found, values[name]):
            kept[name] = dict(zip(ENDS, found, strict=True))
    return {INTERVALS: kept} if kept else {}


def _in_order(bounds: tuple[float, float], ends: Sequence[float], value: float) -> bool:
    """Whether ``ends`` lie within ``bounds`` and hold ``value``, but for rounding."""
    (least, most), (low, high) = bounds, ends
    return least <= low <= value + ALIKE and value - ALIKE <= high <= most


def _alike(value: float, shown: float | None) -> bool:
    return shown is not None and abs(value - shown) <= ALIKE
