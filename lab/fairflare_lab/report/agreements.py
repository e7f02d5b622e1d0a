# SPDX-License-Identifier: Apache-2.0
"""Agreement of shares by ranks as well, and shares made of drops in score."""

from __future__ import annotations

import math

from fairflare.report.agreement import Shares, _centred, _cosine, _vectors, agreement
from fairflare.report.values import number


def agreements(a: Shares, b: Shares) -> dict[str, float | None]:
    """``agreement`` and "spearman", the correlation of the ranks (ties shared), in [-1, 1]."""
    from scipy.stats import rankdata

    x, y = (_centred(rankdata(values).tolist()) if values else [] for values in _vectors(a, b))
    return {**agreement(a, b), "spearman": _cosine(x, y)}


def clipped_shares(values: Shares) -> dict[str, float]:
    """Values over their sum with negative ones as 0; uniform when none is positive; ValueError of one not finite.

    Of the drops of the score when a model is trained without each site these are FedCE's leave-one-out shares; where a
    task has several scores, a site's drop is their sum.
    """
    for site, value in values.items():
        if number(value) is None:
            raise ValueError(f"{site}: expected a finite number, got {value!r}")
    kept = {site: max(float(value), 0.0) for site, value in values.items()}
    total = math.fsum(kept.values())
    return {site: value / total if total > 0 else 1 / len(kept) for site, value in kept.items()}
