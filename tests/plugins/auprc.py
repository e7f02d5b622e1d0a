# SPDX-License-Identifier: Apache-2.0
"""The area under the precision-recall curve as a metric of every task with two classes, in one file."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import expit, logit, ndtri

from fairflare.core.metric import Metric
from fairflare.functional.intervals import Array
from fairflare.tasks.kinds.classes import ClassCases


def average_precision(cases: ClassCases, counts: Array) -> Array:
    """(B,) the precision at each risk, weighted by the recall that it adds; nan without a case of the second class."""
    order = np.argsort(-cases.risks, kind="stable")
    last = np.flatnonzero(np.diff(cases.risks[order], append=-np.inf))  # of those with the same risk
    drawn = counts[:, order]
    found, flagged = (np.cumsum(n, axis=1)[:, last] for n in (drawn * (cases.labels[order] == 1), drawn))
    precision = np.divide(found, flagged, out=np.zeros_like(found), where=flagged > 0)
    area = (precision * np.diff(found, axis=1, prepend=0.0)).sum(axis=1)
    return np.divide(area, found[:, -1], out=np.full(len(area), np.nan), where=found[:, -1] > 0)


def interval(cases: ClassCases, level: float) -> tuple[float, float] | None:
    """On the logit scale (Boyd, Eng and Page, ECML PKDD 2013), which needs no draw; None of an area of 1."""
    n = int((cases.labels == 1).sum())
    area = float(average_precision(cases, np.ones((1, len(cases.labels))))[0])
    if not 0 < area < 1:
        return None
    half = float(ndtri((1 + level) / 2)) / math.sqrt(n * area * (1 - area))
    return float(expit(logit(area) - half)), float(expit(logit(area) + half))


AUPRC = Metric(
    "auprc",
    label="AUPRC",
    meaning="the precision, averaged over the cases that are found; guessing gets their share, 1 is perfect",
    weighted=average_precision,
    interval=interval,
    of_classes=True,
    two_classes=True,
    always=True,
    benefit=True,
    groups=True,
)
