# SPDX-License-Identifier: Apache-2.0
"""Robust statistics of updates whose sites weigh differently: medians, trimmed means, distances, radii and caps.

With equal weights the median and the scores are those of Yin et al. (ICML 2018, https://arxiv.org/abs/1803.01498) and
Blanchard et al. (NeurIPS 2017, https://arxiv.org/abs/1703.02757). Everywhere a block (K, B) holds the K sites' updates
at B positions, weights (K,) are >= 0 and sum to 1, and ``squared`` (K, K) are the updates' squared distances.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fairflare.core.types import Reply
from fairflare.functional.blocks import compared, side_by_side

SMOOTHED = 1e-6
"""Distances below this part of the median one count as it, in the geometric median."""
STEPS = 100
"""Of the geometric median, at most."""
BLOCK = 1 << 14
"""Positions read at once."""
CELLS = 1 << 17
"""Values sorted at once: what does not fit a processor's cache takes three times as long."""
ROUNDING = 1e-12
"""Sums of weights within this of 1/2 are 1/2."""
BOUND = 2.5
"""Robust standard deviations from the median log norm up to which an update is left alone,"""
LEAST, MOST = 1.6, 2.2
"""but at least and at most so many times it. Honest updates need 1.6 on tables and 2.2 on images (docs/gate.md)."""
RATE = 0.2
"""Step of a radius that follows bits, in its logarithm (Andrew et al., NeurIPS 2021, Section 3)."""


def median(block: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(B,) weighted medians and (K,) each site's summed share of them.

    The median is the midpoint of all points with at most half of the weight on either side.
    """
    order, values, start, end = _sorted(block, weights)
    middle = np.zeros(block.shape[1])
    share = np.zeros(block.shape)
    for above in (end >= 0.5 - ROUNDING, end > 0.5 + ROUNDING):
        row = np.argmax(above, axis=0)[None]
        point = np.take_along_axis(values, row, 0)
        middle += 0.5 * point[0]
        tied = np.where(values == point, end - start, 0.0)
        share += 0.5 * np.asarray(tied / tied.sum(0))
    return middle, _by_site(share, order)


def trimmed_mean(block: np.ndarray, weights: np.ndarray, trim: float) -> tuple[np.ndarray, np.ndarray]:
    """(B,) means of what is left of the weights' mass, and (K,) each site's summed part of that mass.

    At each position ``trim`` of the mass is dropped at either end, a site at the boundary in part, and the sum divided
    by 1 - 2 trim, with ``trim`` in [0, 0.5). Equal values lose the same share.
    """
    order, values, start, end = _sorted(block, weights)
    new = np.ones(values.shape, dtype=bool)
    new[1:] = values[1:] != values[:-1]
    last = np.ones(values.shape, dtype=bool)
    last[:-1] = new[1:]
    first = np.maximum.accumulate(np.where(new, start, 0.0), axis=0)
    until = np.minimum.accumulate(np.where(last, end, np.inf)[::-1], axis=0)[::-1]
    width, inside = until - first, np.minimum(until, 1 - trim) - np.maximum(first, trim)
    kept = (end - start) * np.divide(np.maximum(inside, 0), width, out=np.zeros_like(width), where=width > 0)
    return (kept * values).sum(0) / (1 - 2 * trim), _by_site(kept, order)


def distances(replies: Sequence[Reply]) -> np.ndarray:
    """float64 (K, K): squared distances of the updates over their trainable entries, in one pass over the updates."""
    total = np.zeros((len(replies), len(replies)))
    for updates in side_by_side(replies, compared(len(replies))):
        block = updates.astype(np.float64)
        block -= block.mean(0)  # what all updates share would drown their differences in rounding
        products = block @ block.T
        squares = np.diag(products)
        total += squares[:, None] + squares[None, :] - 2 * products
    return np.maximum(total, 0.0)


def krum_scores(squared: np.ndarray, faulty: int) -> list[float]:
    """For each of K > 1 sites the sum of its K - f - 2 smallest squared distances to others, at least of one."""
    count = max(len(squared) - faulty - 2, 1)
    return [math.fsum(np.sort(np.delete(row, k))[:count].tolist()) for k, row in enumerate(squared)]


def mixing(kind: str, squared: np.ndarray, faulty: int, order: np.ndarray) -> np.ndarray:
    """(K, K) M >= 0 whose rows sum to 1: sum_j M_kj D_j takes the place of the update D_k.

    Args:
        kind: "neighbours": ``nearest``; "buckets": ``buckets`` of two; "krum": updates that multi-Krum drops become the
            mean of those that it keeps; "krum-neighbours": the same, after ``nearest``; "geometric": all become the
            geometric median; "centre": updates are clipped around it, to the median distance from it (Karimireddy et
            al., ICML 2021, https://arxiv.org/abs/2012.10333).
        faulty: f, in [0, K / 2).
        order: a permutation of the K sites, for buckets.
    """
    if kind == "neighbours":
        return nearest(squared, faulty)
    if kind == "buckets":
        return buckets(order, 2)
    count = len(squared)
    if kind in ("krum", "krum-neighbours"):
        scores = np.array(krum_scores(squared, faulty))
        kept = scores <= np.sort(scores)[count - faulty - 1]
        own = np.eye(count) if kind == "krum" else nearest(squared, faulty)
        return np.where(kept[:, None], own, own[kept].mean(0))
    equal = np.full(count, 1 / count)
    middle = geometric_median(squared, equal, equal, SMOOTHED * math.sqrt(float(np.median(squared))), STEPS)
    if kind == "geometric":
        return np.tile(middle, (count, 1))
    away = distances_to(middle, squared)
    kept = shortened(away, float(np.median(away)))
    return np.asarray(np.diag(kept) + (1 - kept)[:, None] * middle)


def nearest(squared: np.ndarray, faulty: int) -> np.ndarray:
    """(K, K): row k averages the K - f updates nearest to D_k, itself among them (Allouah et al., AISTATS 2023,
    https://arxiv.org/abs/2302.01772, Algorithm 2). Of equally near ones the first count."""
    count = len(squared)
    near = np.argsort(squared - np.eye(count), axis=1, kind="stable")[:, : count - faulty]
    mix = np.zeros((count, count))
    np.put_along_axis(mix, near, 1 / (count - faulty), axis=1)
    return mix


def buckets(order: np.ndarray, size: int) -> np.ndarray:
    """(K, K): each row averages the site's bucket, of ``size`` successive ones in ``order`` (the last may have fewer;
    Karimireddy et al., ICLR 2022, https://arxiv.org/abs/2006.09365, Algorithm 1)."""
    mix = np.zeros((len(order), len(order)))
    for start in range(0, len(order), size):
        inside = order[start : start + size]
        mix[np.ix_(inside, inside)] = 1 / len(inside)
    return mix


def geometric_median(
    squared: np.ndarray, weights: np.ndarray, start: np.ndarray, floor: float, steps: int
) -> np.ndarray:
    """(K,) parts >= 0, sum 1, of the points in their geometric median, by smoothed Weiszfeld steps (Pillutla et al.,
    IEEE TSP 2022, https://arxiv.org/abs/1912.13445, Algorithm 2).

    Args:
        start: (K,) parts of the first point.
        floor: distances below it count as it.
        steps: at most; fewer where the parts no longer change.
    """
    parts = start
    for _ in range(steps):
        inverse = weights / np.maximum(distances_to(parts, squared), max(floor, np.finfo(float).tiny))
        before, parts = parts, inverse / inverse.sum()
        if np.abs(parts - before).max() < ROUNDING:
            break
    return parts


def distances_to(parts: np.ndarray, squared: np.ndarray) -> np.ndarray:
    """(K,) distances of the points to sum_k parts_k x_k, where the parts sum to 1."""
    return np.asarray(np.sqrt(np.maximum(squared @ parts - 0.5 * (parts @ squared @ parts), 0.0)))


def shortened(lengths: np.ndarray, radius: float) -> np.ndarray:
    """(K,) factors that bring ``lengths`` within ``radius``."""
    return np.asarray(np.minimum(1.0, np.divide(radius, lengths, out=np.ones_like(lengths), where=lengths > 0)))


def weighted_median(values: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """The median of ``values`` with weights >= 0 that have a positive sum."""
    total = math.fsum(weights[k] for k in values)
    found, _ = median(
        np.array([[v] for v in values.values()], dtype=np.float64), np.array([weights[k] / total for k in values])
    )
    return float(found[0])


def expected_norms(norms: Mapping[str, float], counts: Mapping[str, float]) -> dict[str, float]:
    """Site -> the norm that an update of its number of examples has: exp(a + s log n_k), for three that moved or more.

    Local steps follow the number of examples, and a norm the steps. s is Theil and Sen's slope (JASA 63, 1968), the
    median over pairs of sites, within [0, 1]: a norm that depends on no count, and one that grows with every step.
    a is the median of log ||D_k|| - s log n_k. Of fewer sites it is their median norm, of none that moved {}.
    """
    moved = [site for site, norm in norms.items() if norm > 0]
    if not moved:
        return {}
    logs, sizes = (np.log([of[site] for site in moved]) for of in (norms, counts))
    slope = slope_of(sizes, logs) if len(moved) > 2 else 0.0
    level = float(np.median(logs - slope * sizes))
    return {site: math.exp(level + slope * math.log(counts[site])) for site in norms}


def slope_of(x: np.ndarray, y: np.ndarray) -> float:
    """The median slope of (y_i - y_j) / (x_i - x_j) over pairs of different x (N,), within [0, 1]; 0 of none."""
    first, second = np.triu_indices(len(x), 1)
    apart = x[first] - x[second]
    slopes = ((y[first] - y[second])[apart != 0]) / apart[apart != 0]
    return float(np.clip(np.median(slopes), 0.0, 1.0)) if len(slopes) else 0.0


def spread_of(deviations: Sequence[float]) -> float:
    """1.4826 times the median absolute deviation, the standard deviation of normal values; 0 of none."""
    return 1.4826 * float(np.median(np.abs(deviations))) if len(deviations) else 0.0


def kept_lengths(deviations: Mapping[str, float], spread: Sequence[float]) -> dict[str, float]:
    """Factor in (0, 1] by which each update is scaled, of how far its log norm is from the expected one.

    A norm up to b times the expected one is kept, with b from the median absolute deviation in ``spread`` (this round's
    and the last rounds' deviations). A larger norm c b is scaled by c^-3, to length b / c^2: as in a redescending
    estimator (Hampel et al., Robust Statistics, 1986, Section 2.6), what stands out further counts for less.
    """
    bound = min(max(BOUND * spread_of(spread), math.log(LEAST)), math.log(MOST))
    return {site: math.exp(min(3 * (bound - above), 0.0)) for site, above in deviations.items()}


def agreements(replies: Sequence[Reply], norms: Mapping[str, float]) -> dict[str, float]:
    """Site -> mean cosine of its update with those of the K - 1 > 0 others, over trainable entries, in one pass."""
    lengths = np.array([norms[reply.site] or math.inf for reply in replies])[:, None]
    products = np.zeros(len(replies))
    for updates in side_by_side(replies, compared(len(replies))):
        block = updates / lengths
        products += block @ block.sum(0)
    own = np.isfinite(lengths[:, 0])
    return dict(zip([reply.site for reply in replies], ((products - own) / (len(replies) - 1)).tolist()))


def radius_by_bits(radius: float, norms: Sequence[float]) -> float:
    """The radius moved towards the median norm, from one bit per site: whether its norm is within it.

    C exp(-0.2 (mean[norm <= C] - 1/2)), Andrew et al., https://arxiv.org/abs/1905.03871.
    """
    inside = sum(norm <= radius for norm in norms) / len(norms)
    return radius * math.exp(-RATE * (inside - 0.5))


def pieces(block: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Positions, and the (K, b) part of the block (K, B) there, of at most ``CELLS`` values."""
    step = max(CELLS // len(block), 1)
    for start in range(0, block.shape[1], step):
        yield (where := slice(start, start + step)), block[:, where]


def _sorted(block: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(K, B) each: the sites in order of their values, these, and the mass before and up to each."""
    order = np.argsort(block, axis=0, kind="stable")
    end = np.cumsum(weights[order], axis=0)
    end /= end[-1:]
    start = np.zeros_like(end)
    start[1:] = end[:-1]
    return order, np.take_along_axis(block, order, 0).astype(np.float64), start, end


def _by_site(share: np.ndarray, order: np.ndarray) -> np.ndarray:
    """(K,): the sum over positions of what each site has in sorted rows."""
    return np.bincount(order.reshape(-1), weights=share.reshape(-1), minlength=len(order))
