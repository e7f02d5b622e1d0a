# SPDX-License-Identifier: Apache-2.0
"""A hospital's own model mixed with what the federation offers, as far as the posterior says that it does no harm.

Squared errors make the gain of a share alpha of a direction D quadratic: g = q (2 alpha a - alpha^2) with q = E[D^2]
and a = E[r D] / q, the part of the disagreement that is right. It harms only where alpha > 2 a.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairflare.functional.decision import Array, Doubt, Normals

SHARES = np.linspace(0.0, 1.0, 51)
SITES_FOR_SIZE = 6
"""Hospitals from which on the part that is right may depend on a hospital's size."""
LIMIT = 0.05
"""The largest probability of harm."""
TOLERANCE = 0.002
LEAST_SPREAD = 1e-4
UNLIKE = Doubt(0.15, 0.3, 0.5)
"""Of the part that is right. Without it a fifth of the hospitals with slopes of their own are harmed in simulated mixed
federations, since the others speak for them; chosen there, and checked on federations of other seeds."""


def common_weights(products: Array) -> Array:
    """(C,) the weights on the simplex with the least w' G w, which are the same at every hospital.

    The least of w' G w + (1' w - 1)^2 over w >= 0 has the same direction, whatever the scale, and is a problem of
    non-negative least squares.

    Args:
        products: (C, C) mean of (p - y)(p - y)' over hospitals, of all candidates but the own models.
    """
    from scipy.optimize import nnls

    values, vectors = np.linalg.eigh(products)
    root = np.sqrt(np.clip(values, 0.0, None))[:, None] * vectors.T
    found, _ = nnls(np.vstack([root, np.ones(len(products))]), np.append(np.zeros(len(root)), 1.0))
    if found.sum() <= 0:
        raise ValueError("expected finite error products")
    return np.asarray(found / found.sum())


class Right(NamedTuple):
    """Which part of a direction is right at a hospital.

    Attributes:
        n: patients.
        a: E[r D] / q; 0: none, 1: all of it.
        variance: V of a.
        q: E[D^2], of models of all patients.
    """

    n: int
    a: float
    variance: float
    q: float


def gain(of: Normals, q: float, share: float = 1.0) -> Normals:
    """The gain of a share (> 0) of the direction whose right part has the distribution ``of``; ``q``: ``Right.q``."""
    return of.scaled(2 * share * q, -q * share**2)


def harm(of: Normals, q: float, share: float = 1.0, margin: float = 0.0) -> float:
    """The probability that a share of the direction is worse than the own model by more than ``margin``."""
    return float(of.below(share / 2 - margin / (2 * share * q)))


def safe_share(of: Normals, q: float, margin: float = TOLERANCE) -> float:
    """The share of the largest expected gain of those that harm by more than ``margin`` with probability <= ``LIMIT``.

    Args:
        of: the posterior of ``Right.a``.
        q: ``Right.q``.
        margin: the loss that does not matter; 0: strict.
    """
    tried = SHARES[1:]
    safe = tried[of.below(tried / 2 - margin / (2 * tried * q)) <= LIMIT]
    gain = 2 * safe * of.mean - safe**2
    return float(safe[gain.argmax()]) if len(safe) and gain.max() > 0 else 0.0
