# SPDX-License-Identifier: Apache-2.0
"""Metrics of times to an event; all take ``tasks.kinds.survival.TimeCases``.

Weights for censoring come from the cases that are evaluated, at each site its own. Without an event, and without two
cases that can be compared, none is defined; what needs a probability is undefined where the network gives a log risk
alone. Errors over time are taken at the ends of the task's intervals that lie before the last time of the cases, and
of a log risk at those at which a baseline hazard is known.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fairflare.core.metric import Metric
from fairflare.functional import survival as maths
from fairflare.functional.intervals import Array, of_pairs

if TYPE_CHECKING:
    from fairflare.tasks.kinds.survival import TimeCases

KIND = "time-to-event"
Measure = Callable[["TimeCases", Array, Array, Array], Array]
PAIRS = "two patients who can be compared: one with the event, the other observed for longer"
CURVE = "predicted probabilities, an event, and a patient who is observed beyond the first horizon"


def _weights(cases: TimeCases, counts: Array) -> Array:
    return maths.uno_weights(cases.times, cases.events, counts, cases.ends[-1] if cases.ends else np.inf)


def _interval(cases: TimeCases, level: float, *, uno: bool = False) -> tuple[float, float] | None:
    """Of a concordance, with one degree of freedom less than there are patients with an event."""
    whose, once = cases.patients, np.ones((1, len(cases.times)))
    events = int(cases.events.sum()) if whose is None else len(np.unique(whose[cases.events == 1]))
    if events < 2:
        return None
    weights = _weights(cases, once) if uno else None
    share = maths.concordance(cases.times, cases.events, cases.risks, once, weights)[0]
    of_first = None if weights is None else weights[0]
    error = maths.concordance_error(cases.times, cases.events, cases.risks, of_first, whose)
    return of_pairs(float(share), error, events, level)


def _over_ends(measure: Measure, cases: TimeCases, counts: Array) -> Array:
    """(B,) ``measure`` of the predicted curves at the ends that can be judged; nan where it is not defined."""
    nothing = np.full(len(counts), np.nan)
    ends = np.array(cases.ends)
    known = (ends < cases.times.max()) & ~np.isnan(cases.log_hazards or ends)
    if cases.survival is None or not known.any():
        return nothing
    found = measure(cases, counts, cases.survival[:, known], ends[known])
    return np.where(counts @ cases.events > 0, found, np.nan)


def _brier(cases: TimeCases, counts: Array, survival: Array, ends: Array) -> Array:
    return maths.over_time(maths.brier(cases.times, cases.events, survival, ends, counts), ends)


def _calibration(cases: TimeCases, counts: Array, survival: Array, ends: Array) -> Array:
    observed = maths.curve_at(*maths.kaplan_meier(cases.times, cases.events, counts), ends)
    return np.abs(maths.mean_curve(survival, counts) - observed).mean(axis=1)


def _restricted(cases: TimeCases, counts: Array, survival: Array, ends: Array) -> Array:
    """The predicted area is that under straight lines between the ends, from 1 at time 0."""
    observed = maths.restricted_mean(*maths.kaplan_meier(cases.times, cases.events, counts), ends[-1])
    whole = np.concatenate((np.ones((len(counts), 1)), maths.mean_curve(survival, counts)), axis=1)
    expected = np.trapezoid(whole, np.concatenate(([0.0], ends)), axis=1)
    return np.abs(expected - observed) / ends[-1]


of_times = partial(Metric, kind=KIND, benefit=True, groups=True)
error = partial(of_times, higher_is_better=False, needs=CURVE)
order = partial(of_times, chance=lambda n_classes: 0.5, flat=True, needs=PAIRS)
HARRELL_C = order(
    "harrell_c",
    label="C-index",
    meaning="how often, of two patients, the one with the earlier event has the larger risk (Harrell); 1 is perfect",
    weighted=lambda cases, counts: maths.concordance(cases.times, cases.events, cases.risks, counts),
    interval=_interval,
)
UNO_C = order(
    "uno_c",
    label="C-index (Uno)",
    meaning="the same, weighted for censoring by the patients that are evaluated; 1 is perfect",
    needs=f"{PAIRS}, before the last horizon",
    weighted=lambda cases, counts: maths.concordance(
        cases.times, cases.events, cases.risks, counts, _weights(cases, counts)
    ),
    interval=partial(_interval, uno=True),
)
CONCORDANT = order(
    "concordant",
    label="concordant pairs",
    meaning="of a patient's comparable pairs the share that is in order, in the mean over patients; 1 is perfect",
    each=lambda cases: maths.concordant_share(cases.times, cases.events, cases.risks),
    benefit=False,
    needs="",
)
INTEGRATED_BRIER = error(
    "integrated_brier",
    label="integrated Brier score",
    meaning="squared error of predicted survival, weighted for censoring, over the intervals' ends; 0 is perfect",
    weighted=partial(_over_ends, _brier),
)
SURVIVAL_CALIBRATION = error(
    "survival_calibration_error",
    meaning="how far mean predicted survival is from Kaplan and Meier's, over the intervals' ends; 0 is perfect",
    weighted=partial(_over_ends, _calibration),
)
RESTRICTED_MEAN = error(
    "restricted_mean_error",
    meaning="how far the predicted mean time without event is from the observed one, as a share of the horizon",
    weighted=partial(_over_ends, _restricted),
)
