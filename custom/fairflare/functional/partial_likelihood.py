# SPDX-License-Identifier: Apache-2.0
"""Cox's partial likelihood of one hospital's patients as sums, and the hazard that belongs to it; all float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:  # what lists methods imports no NumPy
    from fairflare.functional.resampling import Array


def partial_likelihood(
    design: torch.Tensor, times: torch.Tensor, events: torch.Tensor, coefficients: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log partial likelihood (Cox, J. R. Stat. Soc. B 34, 1972), ties as Efron's (JASA 72, 1977).

    Added up over hospitals these are the sums of the model that is stratified by hospital: every hospital has risk sets
    of its own, and no time is compared with another hospital's.

    Of a design (N, p), times (N,) of at least 0, events (N,), 1 where the time is that of one, and coefficients (p,):
    the value, its gradient (p,), and minus its second derivatives (p, p).
    """
    # The likelihood is that of differences between patients: of a constant feature exactly nothing is left.
    x, died = (design - design[:1]).numpy(), events.numpy() == 1
    risk = x @ coefficients.numpy()
    order = np.argsort(-times.numpy(), kind="stable")
    _, starts = np.unique(-times.numpy()[order], return_index=True)
    p = x.shape[1]
    at_risk: tuple[Any, ...] = (0.0, np.zeros(p), np.zeros((p, p)))
    top = -np.inf
    value, score, information = 0.0, np.zeros(p), np.zeros((p, p))
    for rows in np.split(order, starts[1:]) if len(order) else ():
        highest = max(top, float(risk[rows].max()))  # sums are kept in units of the largest weight so far
        more = _moments(x[rows], np.exp(risk[rows] - highest))
        at_risk = tuple(np.exp(top - highest) * old + new for old, new in zip(at_risk, more, strict=True))
        top = highest
        tied = rows[died[rows]]
        if not len(tied):
            continue
        of_tied: tuple[Any, ...] = _moments(x[tied], np.exp(risk[tied] - top))
        value += float(risk[tied].sum())
        score += x[tied].sum(axis=0)
        for place in range(len(tied)):
            share = place / len(tied)
            total, mean, square = (a - share * b for a, b in zip(at_risk, of_tied, strict=True))
            value -= float(np.log(total)) + top
            score -= mean / total
            information += square / total - np.outer(mean, mean) / total**2
    return torch.tensor(value, dtype=torch.float64), torch.from_numpy(score), torch.from_numpy(information)


def _moments(x: Array, weight: Array) -> tuple[float, Array, Array]:
    """Sums of weight, of weight x, and of weight x x'."""
    weighted = weight[:, None] * x
    return float(weight.sum()), weighted.sum(axis=0), weighted.T @ x


def baseline(times: Array, events: Array, risks: Array, ends: Array) -> Array:
    """(K,) Breslow's cumulative hazard at ``ends`` of a patient of log risk 0 (Breslow, Biometrics 30, 1974)."""
    order = np.argsort(times, kind="stable")
    at, first = np.unique(times[order], return_index=True)
    died = np.add.reduceat(events[order], first)
    weight = np.add.reduceat(np.exp(risks[order]), first)
    there = weight[::-1].cumsum()[::-1]
    hazard = np.concatenate(([0.0], (died / there).cumsum()))
    return np.asarray(hazard[np.searchsorted(at, ends, side="right")])
