# SPDX-License-Identifier: Apache-2.0
"""Which of a round's updates is new beside the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fairflare.core.types import Reply
from fairflare.functional.blocks import COMPARED, SOME, gram, side_by_side

NOISE = 1e-6
"""Cosines within this of 1 are 1: what is left is rounding of float32 updates."""
DISTINCT = 0.1
"""Part of a squared sum that must be left of it without a site, for the difference to be as exact as the sum."""


def novelty(replies: Sequence[Reply], prior: Mapping[str, float], of_nothing: float = 0.0) -> dict[str, float]:
    """Site -> 1 - cos(u_i, sum of the others' p_j u_j), in [0, 2].

    FedCE's cosine term (Jiang et al., CVPR 2023, https://arxiv.org/abs/2303.16520, Eq. 2 and 3). A zero update
    brings nothing new. Where the others' sum is zero, what a site brings is all new: 1.

    Args:
        prior: site -> p_j >= 0; its scale does not matter.
        of_nothing: what a zero update counts as (1 in FLARE's code).
    """
    p = np.array([prior[r.site] for r in replies])
    found = {}
    for reply, own, along, rest in zip(replies, *_to_others(replies, p).tolist()):
        if own <= 0:
            found[reply.site] = of_nothing
            continue
        cosine = along / (own * rest) ** 0.5 if rest > 0 else 0.0
        distance = 1.0 - min(max(cosine, -1.0), 1.0)
        found[reply.site] = distance if distance > NOISE else 0.0
    return found


def _to_others(replies: Sequence[Reply], p: np.ndarray) -> np.ndarray:
    """(3, K): u_i . u_i, u_i . o_i and o_i . o_i, where o_i is the sum of the others' p_j u_j.

    Few sites are compared in pairs; more with the sum of all, unless o_i is lost in it beside p_i u_i.
    """
    if len(replies) > SOME:
        own, along, whole = against_sum(replies, p)
        rest = whole - 2 * p * along + p * p * own
        if (rest > DISTINCT * whole).all():
            return np.array([own, along - p * own, rest])
    products, others = gram(replies), np.tile(p, (len(p), 1))
    np.fill_diagonal(others, 0.0)
    rest = np.array([row @ products @ row for row in others])
    return np.array([np.diag(products), [row @ one for row, one in zip(products, others)], rest])


def against_sum(replies: Sequence[Reply], weights: np.ndarray) -> np.ndarray:
    """float64 (3, K): u_i . u_i, u_i . s and s . s of s = sum_j weights_j u_j over trainable entries, in one pass.

    Sums of float32 that overflow are not finite.
    """
    total = np.zeros((3, len(replies)))
    with np.errstate(over="ignore", invalid="ignore"):
        for block in side_by_side(replies, COMPARED // 2):
            summed = weights.astype(block.dtype) @ block
            own = np.matmul(block[:, None], block[:, :, None]).ravel()
            total += own, block @ summed, np.full(len(replies), summed @ summed)
    return total
