# SPDX-License-Identifier: Apache-2.0
"""How much of the member model a hospital may safely mix with its own: a share of the risks, without a known harm.

Squared errors make the gain of a share alpha of a move D = candidate - own quadratic: g = q (2 alpha a - alpha^2) with
q = E[D^2] and a = E[r D] / q, the part of the move that is right (r = outcome - own). It harms only where alpha > 2 a.
"""

from __future__ import annotations

from typing import NamedTuple

from fairflare.decision.estimands import Folds
from fairflare.decision.regression import Array, Hospital
from fairflare.functional import slopes
from fairflare.functional.decision import LEAST_DISAGREEMENT, Normals
from fairflare.functional.intervals import by_patient
from fairflare.functional.slopes import LEAST_SPREAD, Right


class Mix(NamedTuple):
    """A share of the member model, its gain in Brier score with a 95 % interval, and the probability of harm."""

    share: float
    p_harm: float
    benefit: float
    low: float
    high: float


NO_MIX = Mix(0.0, 0.0, 0.0, 0.0, 0.0)


def right_part(hospital: Hospital, own: Array, candidate: Array, folds: Folds) -> Right:
    """By outcomes, of risks (R, N) out of fold, with the variance of a ratio of means."""
    move, kappa = candidate - own, folds.kappa
    right, square = (hospital.y - own) * move, move**2
    disagreement = max(float(square.mean()), LEAST_DISAGREEMENT)
    q = max(disagreement - kappa * float(right.mean()), disagreement / 2)
    a = (1 - kappa) * float(right.mean()) / q
    each = by_patient((1 - kappa + a * kappa) * right - a * square, hospital.patient)
    spread = max(float(each.var(axis=1, ddof=1).mean()), LEAST_SPREAD * q)
    return Right(hospital.n, a, spread / (hospital.n * q * q), q)


def safe_mix(q: float, of: Normals, margin: float) -> Mix:
    """The safe share of a move.

    Args:
        q: E[D^2] of the models as deployed.
        of: what is known of the part that is right.
        margin: the loss in Brier score that does not matter; 0: strict.
    """
    if not (share := slopes.safe_share(of, q, margin)):
        return NO_MIX
    gain = slopes.gain(of, q, share)
    return Mix(share, slopes.harm(of, q, share, margin), gain.mean, *gain.interval())
