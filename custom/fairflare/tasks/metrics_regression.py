# SPDX-License-Identifier: Apache-2.0
"""Metrics of amounts and counts; they take ``tasks.kinds.amounts.AmountCases``. Nothing here imports PyTorch."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fairflare.core.metric import LARGEST_LOSS, Metric
from fairflare.functional.intervals import Array, of_positive_mean, weighted_mean

if TYPE_CHECKING:
    from fairflare.tasks.kinds.amounts import AmountCases

DIFFERENT = "two cases or more whose outcomes differ"
PREDICTIONS = "predictions that differ between cases"


def _root_interval(cases: AmountCases, level: float) -> tuple[float, float] | None:
    ends = of_positive_mean(cases.errors**2, level, cases.patients)
    return None if ends is None else (math.sqrt(ends[0]), math.sqrt(ends[1]))


def explained(cases: AmountCases, counts: Array) -> Array:
    """(B,) R2 within the site: 1 less the squared errors over those of its own mean; nan where outcomes are alike."""
    mean = weighted_mean(cases.truth, counts)
    total = weighted_mean((cases.truth - cases.centre) ** 2, counts) - (mean - cases.centre) ** 2
    return 1 - _over(weighted_mean(cases.errors**2, counts), total, cases.truth - cases.centre)


def calibration_slope(cases: AmountCases, counts: Array) -> Array:
    """(B,) slope of outcomes on predictions by least squares; nan where predictions are alike."""
    x, y = cases.predicted - cases.predicted.mean(), cases.truth - cases.centre
    mx, my = weighted_mean(x, counts), weighted_mean(y, counts)
    return _over(weighted_mean(x * y, counts) - mx * my, weighted_mean(x * x, counts) - mx * mx, x)


def _over(part: Array, spread: Array, values: Array) -> Array:
    """``part`` by a variance of ``values``; nan where that is 0, but for rounding."""
    least = 1e-12 * max(float((values**2).max(initial=0.0)), 1e-300)
    found: Array = np.full(len(spread), np.nan)
    np.divide(part, spread, out=found, where=spread > least)
    return found


amount = partial(Metric, kind="regression")
free = partial(amount, low=-LARGEST_LOSS, high=LARGEST_LOSS)
error = partial(amount, high=LARGEST_LOSS, higher_is_better=False)
RMSE = error(
    "rmse",
    label="root mean squared error",
    meaning="in the outcome's units; 0 is perfect",
    weighted=lambda cases, counts: np.sqrt(weighted_mean(cases.errors**2, counts)),
    interval=_root_interval,
)
MAE = error(
    "mae",
    label="mean absolute error",
    meaning="in the outcome's units; 0 is perfect",
    each=lambda cases: np.abs(cases.errors),
    interval=lambda cases, level: of_positive_mean(np.abs(cases.errors), level, cases.patients),
    benefit=True,
    groups=True,
)
R2 = free(
    "r2",
    high=1.0,
    label="R2 within the site",
    meaning="the share of the variance within the site that is predicted; 1 is perfect, 0 the site's own mean",
    needs=DIFFERENT,
    weighted=explained,
)
SLOPE = free(
    "calibration_slope",
    meaning="outcomes on predictions; 1 is perfect, below 1 predictions are too extreme; no order from bad to good",
    ordered=False,
    needs=PREDICTIONS,
    weighted=calibration_slope,
)
WITHIN = amount(
    "within",
    label="share predicted closely",
    meaning="the share of cases whose error is at most half a spread of the outcome (of counts: 1, or half of the "
    "count); 1 is perfect",
    each=lambda cases: (np.abs(cases.errors) <= cases.tolerance).astype(np.float64),
    groups=True,
)
DEVIANCE = error(
    "deviance",
    label="Poisson deviance",
    meaning="twice the log likelihood that is lost against perfect predictions, per case; 0 is perfect",
    each=lambda cases: cases.deviances,
    interval=lambda cases, level: of_positive_mean(cases.deviances, level, cases.patients),
)
