# SPDX-License-Identifier: Apache-2.0
"""What the inner products of a round's updates say: which weights make them equally near."""

from __future__ import annotations

import numpy as np


def equalised(products: np.ndarray) -> np.ndarray:
    """(K,) weights p >= 0 that sum to 1 and minimise Var_m(||sum_j p_j u_j - u_m||^2), exactly.

    FedHEAL's Eq. 10 (Chen et al., CVPR 2024, https://arxiv.org/abs/2405.16585): ||sum_j p_j u_j||^2 is the same for all
    sites, so that the variance is that of G_mm - 2 (G p)_m, convex in p. As p sums to 1 it is ||M p||^2 / K; the
    minimum of ||M p||^2 + (sum p - 1)^2 over p >= 0, a problem of least squares, has the same direction.

    Args:
        products: (K, K) inner products of the updates, as ``gram`` gives them.

    Returns:
        Of several minimisers one; uniform weights where all distances are equal whatever p is.

    Raises:
        ValueError: a product is not finite.
    """
    from scipy.optimize import nnls

    if not np.isfinite(products).all():
        raise ValueError("updates: expected finite inner products")
    count = len(products)
    apart = np.diag(products)[:, None] - 2 * products
    apart = apart - apart.mean(axis=0)
    scale = np.abs(apart).max()
    if not scale > 0:
        return np.full(count, 1 / count)
    found, _ = nnls(np.vstack([apart / scale, np.ones(count)]), np.append(np.zeros(count), 1.0))
    return np.asarray(found / found.sum())
