# SPDX-License-Identifier: Apache-2.0
"""How well a model does at a hospital that did not train it, and how many patients a model needs.

Internal-external validation: each hospital in turn is left out, and the others' model is tested on all of its patients
(E. Steyerberg and F. Harrell, Journal of Clinical Epidemiology 69, 2016). Variances are by patient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fairflare.decision.regression import ITERATIONS, TOLERANCE, Array, Hospital, Rows
from fairflare.functional.slopes import sigmoid


@dataclass(frozen=True)
class Calibration:
    """Of a model's logits at one hospital: estimate and squared standard error of each.

    Attributes:
        intercept: calibration in the large, with the slope held at 1.
        slope: 1 where risks are as extreme as they should be, below 1 where they are too extreme.
        log_ratio: logarithm of observed over expected events, O:E.
    """

    intercept: tuple[float, float]
    slope: tuple[float, float]
    log_ratio: tuple[float, float]


def calibration(hospital: Hospital, logits: Array) -> Calibration:
    """Of (N,) logits; raises ValueError where the hospital has patients of one outcome alone."""
    y, owner = hospital.y, hospital.patient
    if not 0 < y.sum() < len(y):
        raise ValueError("calibration: expected patients with and without the outcome")
    level = sandwich(np.ones((len(y), 1)), y, owner, logits)
    line = sandwich(np.stack([np.ones(len(y)), logits], axis=1), y, owner, np.zeros(len(y)))
    risks = sigmoid(logits)
    ratio = float(y.sum() / risks.sum())
    shares = np.bincount(owner, (y - ratio * risks) / y.sum())
    return Calibration(
        (level[0][0], level[1][0, 0]), (line[0][1], line[1][1, 1]), (math.log(ratio), float(shares @ shares))
    )


def sandwich(x: Array, y: Array, owner: Rows, offset: Array) -> tuple[Array, Array]:
    """Coefficients of a logistic regression, and their covariance by patient (Liang and Zeger, Biometrika 73, 1986)."""
    at, tiny = np.zeros(x.shape[1]), 1e-6 * np.eye(x.shape[1])
    for _ in range(4 * ITERATIONS):
        risks = sigmoid(offset + x @ at)
        hessian = (x * (risks * (1 - risks))[:, None]).T @ x + tiny
        step = np.linalg.solve(hessian, (y - risks) @ x - tiny @ at)
        at = at + np.clip(step, -1, 1)
        if np.abs(step).max() < TOLERANCE:
            break
    scores = np.stack([np.bincount(owner, (y - risks) * column) for column in x.T], axis=1)
    n, bread = len(scores), np.linalg.inv(hessian)
    return at, np.asarray(bread @ (scores.T @ scores * n / max(n - 1, 1)) @ bread)


def decision_curve(y: Array, risks: Array, thresholds: Array) -> Array:
    """(T,) net benefit per patient at each threshold of risks (R, N), the mean over deals; treating none has 0."""
    worth = y[:, None] - (1 - y[:, None]) * thresholds / (1 - thresholds)
    return np.asarray(((risks[..., None] >= thresholds) * worth).mean(axis=(0, 1)))


def minimum_patients(auc: float, prevalence: float, parameters: int) -> int:
    """The smallest sample for a model of this many parameters (R. Riley et al., Statistics in Medicine 38, 2019).

    The largest of what a shrinkage of .9, an optimism of .05 in Nagelkerke's R2, and an error of .05 in the mean risk
    need. Cox and Snell's R2 is that of normal linear predictors with this AUC (Riley et al., Statistics in Medicine 40,
    2021). Raises ValueError: an AUC outside (.5, 1), a prevalence outside (0, 1).
    """
    from scipy.special import ndtri

    if not (0.5 < auc < 1 and 0 < prevalence < 1):
        raise ValueError(
            f"minimum_patients: expected an AUC in (.5, 1), a prevalence in (0, 1), got {auc}, {prevalence}"
        )
    apart = math.sqrt(2) * float(ndtri(auc))
    z = np.linspace(-8, 8 + apart, 4001)
    densities = [prevalence * np.exp(-((z - apart) ** 2) / 2), (1 - prevalence) * np.exp(-(z**2) / 2)]
    logits = math.log(prevalence / (1 - prevalence)) + apart * z - apart**2 / 2
    step = (z[1] - z[0]) / math.sqrt(2 * math.pi)
    model = step * float(-densities[0] @ np.logaddexp(0, -logits) - densities[1] @ np.logaddexp(0, logits))
    null = prevalence * math.log(prevalence) + (1 - prevalence) * math.log(1 - prevalence)
    r2, r2_max = 1 - math.exp(-2 * (model - null)), 1 - math.exp(2 * null)

    def needed(shrinkage: float) -> float:
        return parameters / ((shrinkage - 1) * math.log(1 - r2 / shrinkage))

    mean_risk = (1.96 / 0.05) ** 2 * prevalence * (1 - prevalence)
    return math.ceil(max(needed(0.9), needed(r2 / (r2 + 0.05 * r2_max)), mean_risk))
