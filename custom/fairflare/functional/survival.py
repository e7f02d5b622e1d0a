# SPDX-License-Identifier: Apache-2.0
"""Times to an event under resamples: Kaplan and Meier's curve, concordance, and errors weighted for censoring.

Everywhere times (N,) are at least 0, events (N,) are 1 where it happened at that time and 0 where nobody knows what
happened later, and counts (B, N) say how often each of B resamples holds each case. Nothing compares all pairs: a
concordance of N cases takes log N sorts of them. And Cox's partial likelihood of one hospital's patients as sums, with
the hazard that belongs to it; all float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fairflare.functional.intervals import Array, Owners, weighted_mean

Ranks = npt.NDArray[np.int64]


def kaplan_meier(times: Array, events: Array, counts: Array, *, of_censoring: bool = False) -> tuple[Array, Array]:
    """The product limit estimate (Kaplan and Meier, JASA 53, 1958).

    Args:
        of_censoring: of the time until a case is lost instead; what happened at the same time happened before.

    Returns:
        The different times (U,), and (B, U) the probability of being without event after each, and beyond the last.
    """
    order = np.argsort(times, kind="stable")
    at, first = np.unique(times[order], return_index=True)
    kinds = (np.ones_like(times), events)
    left, died = (np.add.reduceat(counts[:, order] * kind[order], first, axis=1) for kind in kinds)
    there = left[:, ::-1].cumsum(axis=1)[:, ::-1]
    gone, there = (left - died, there - died) if of_censoring else (died, there)
    share = np.divide(gone, there, out=np.zeros_like(gone), where=gone > 0)
    return at, np.cumprod(1 - share, axis=1)


def curve_at(at: Array, curve: Array, when: Array, *, before: bool = False) -> Array:
    """(B, K) values at the times ``when``, or just before, of a curve (B, U) that steps at ``at`` (U,), 1 at first."""
    whole: Array = np.concatenate((np.ones((len(curve), 1)), curve), axis=1)
    return whole[:, np.searchsorted(at, when, side="left" if before else "right")]


def restricted_mean(at: Array, curve: Array, horizon: float) -> Array:
    """(B,) the area under a curve as in ``curve_at`` from 0 to ``horizon``: the mean time without event until then."""
    ends = np.clip(np.concatenate((at, [np.inf])), 0.0, horizon)
    return np.asarray(np.diff(ends, prepend=0.0) @ np.concatenate((np.ones((len(curve), 1)), curve), axis=1).T)


def ranks_of(times: Array, events: Array) -> Ranks:
    """(N,) a case can be compared with all of larger rank, if it has an event: who is lost then has lived longer."""
    return np.asarray(2 * np.unique(times, return_inverse=True)[1].reshape(-1).astype(np.int64) + (events == 0))


def outranked(ranks: Ranks, risks: Array, weights: Array) -> Array:
    """(B, N) of each case the ``weights`` (B, N) of those of smaller rank with a larger risk; an equal one counts half.

    Two ranks differ in some highest bit: for each bit, cases are sorted by risk among those that agree above it.
    """
    found = np.zeros_like(weights)
    places = np.unique(risks, return_inverse=True)[1].reshape(-1)
    for bit in range(int(ranks.max(initial=0)).bit_length()):
        block, upper = ranks >> (bit + 1), (ranks >> bit) & 1 == 1
        keys = block * len(ranks) + places
        order = np.argsort(keys, kind="stable")
        mine = np.flatnonzero(upper[order])
        if not len(mine):
            continue
        sums = np.zeros((len(weights), len(ranks) + 1))
        np.cumsum(np.where(upper, 0.0, weights)[:, order], axis=1, out=sums[:, 1:])
        sorted_keys, sorted_blocks = keys[order], block[order]
        ends = np.searchsorted(sorted_blocks, sorted_blocks[mine], "right")
        low, high = (np.searchsorted(sorted_keys, sorted_keys[mine], side) for side in ("left", "right"))
        found[:, order[mine]] += sums[:, ends] - (sums[:, low] + sums[:, high]) / 2
    return found


def concordance(times: Array, events: Array, risks: Array, counts: Array, weights: Array | None = None) -> Array:
    """(B,) the share of comparable pairs in which the case with the earlier event has the larger risk, ties half.

    F. Harrell et al., JAMA 247, 1982. With weights it is Uno's (Statistics in Medicine 30, 2011), see ``uno_weights``.

    Weights (B, N) are of a pair, by its case with the earlier event. nan where no two cases can be compared.
    """
    ranks = ranks_of(times, events)
    first = counts * events * (1.0 if weights is None else weights)
    order = np.argsort(ranks, kind="stable")
    before = np.concatenate((np.zeros((len(first), 1)), first[:, order].cumsum(axis=1)), axis=1)
    pairs = before[:, np.searchsorted(ranks[order], ranks)]
    won, all_of = ((counts * part).sum(axis=1) for part in (outranked(ranks, risks, first), pairs))
    return np.asarray(np.divide(won, all_of, out=np.full(len(won), np.nan), where=all_of > 0))


def concordant_pairs(times: Array, events: Array, risks: Array, weights: Array | None = None) -> tuple[Array, Array]:
    """Two (N,): of each case's comparable pairs those in order, ties half, and all; ``weights`` (N,) by first case."""
    ranks, ones = ranks_of(times, events), np.ones((1, len(times)))
    died = events[None].astype(np.float64) * (1.0 if weights is None else weights)
    turned = ranks.max(initial=0) - ranks
    won = outranked(ranks, risks, died) + died * outranked(turned, -risks, ones)
    # Of equal risks each pair counts half: twice that is the number of pairs.
    same = np.zeros_like(risks)
    pairs = 2 * (outranked(ranks, same, died) + died * outranked(turned, same, ones))
    return won[0], pairs[0]


def concordant_share(times: Array, events: Array, risks: Array) -> Array:
    """(N,) of each case's comparable pairs the share that is in order, ties half; a half where it has none."""
    won, pairs = concordant_pairs(times, events, risks)
    return np.asarray(np.divide(won, pairs, out=np.full_like(won, 0.5), where=pairs > 0))


def concordance_error(
    times: Array, events: Array, risks: Array, weights: Array | None = None, patients: Owners | None = None
) -> float:
    """The standard error of ``concordance``: the infinitesimal jackknife (Efron, SIAM CBMS 38, 1982, section 6).

    Of each patient the derivative by how often it counts, squared and summed. Pairs are those of M. Pencina and
    R. D'Agostino, Statistics in Medicine 23, 2004; Uno's weights (N,) are taken as known. nan without pairs.
    """
    won, pairs = concordant_pairs(times, events, risks, weights)
    both = float(pairs.sum())  # each pair at either case
    if not both > 0:
        return float("nan")
    each = won - won.sum() / both * pairs
    if patients is not None:
        each = np.bincount(np.unique(patients, return_inverse=True)[1], each)
    return 2 * float(np.sqrt(np.sort(each**2).sum())) / both


def uno_weights(times: Array, events: Array, counts: Array, horizon: float) -> Array:
    """(B, N) 1 / G^2 of cases with an event before ``horizon``, else 0.

    G is the chance to be still observed just before it, from the same cases; above 0 for each that is counted.
    """
    free = curve_at(*kaplan_meier(times, events, counts, of_censoring=True), times, before=True)
    weighs = (times < horizon) & (events == 1) & (free > 0)
    return np.divide(1.0, free**2, out=np.zeros_like(free), where=weighs)


def brier(times: Array, events: Array, survival: Array, ends: Array, counts: Array) -> Array:
    """(B, K) the mean squared error of survival at ``ends`` (K,), weighted for censoring.

    E. Graf et al., Statistics in Medicine 18, 1999: of an event 1 / G just before it, of a survivor 1 / G at the end.
    G is from the same cases.

    Args:
        survival: (N, K) predicted probability of being without event after each end.
        ends: rising, below the last time.
    """
    at, free = kaplan_meier(times, events, counts, of_censoring=True)
    each = curve_at(at, free, times, before=True), curve_at(at, free, ends)
    of_case, of_end = (np.divide(1.0, one, out=np.zeros_like(one), where=one > 0) for one in each)
    before, after = (times[:, None] <= ends) & (events[:, None] == 1), times[:, None] > ends
    dead = (counts * of_case) @ (before * survival**2)
    alive = counts @ (after * (1 - survival) ** 2) * of_end
    return np.asarray((dead + alive) / np.maximum(counts.sum(axis=1, keepdims=True), 1))


def over_time(values: Array, ends: Array) -> Array:
    """(B,) the mean of (B, K) values between the first end and the last (trapezoids); of one end its value."""
    if len(ends) == 1:
        return values[:, 0]
    return np.asarray(np.trapezoid(values, ends, axis=1) / (ends[-1] - ends[0]))


def mean_curve(survival: Array, counts: Array) -> Array:
    """(B, K) the mean of predicted curves (N, K) over the cases of each resample."""
    return np.stack([weighted_mean(column, counts) for column in survival.T], axis=1)


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


def patient_weights(outcome: torch.Tensor, risk: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each patient's weight (N,) in Cox's score: martingale residuals, and the part of others' events in them.

    Of times and events (N, 2) and logarithms of relative risks (N,), with Breslow's ties. Therneau, Grambsch and
    Fleming, Biometrika 77, 1990.
    """
    times, weight = outcome[:, 0].contiguous(), (risk - risk.max()).exp()
    late = torch.argsort(times, descending=True)
    at_risk = weight[late].cumsum(0)[torch.searchsorted(-times[late], -times, right=True) - 1]
    jumps = torch.where(outcome[:, 1] == 1, 1 / at_risk, 0.0)
    early = late.flip(0)
    expected = weight * jumps[early].cumsum(0)[torch.searchsorted(times[early], times, right=True) - 1]
    return outcome[:, 1] - expected, expected - weight * jumps


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
