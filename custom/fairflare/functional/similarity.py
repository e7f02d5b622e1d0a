# SPDX-License-Identifier: Apache-2.0
"""How alike two sets of features of the same examples are: linear CKA from compact forms, and the cosine.

Kornblith et al., "Similarity of Neural Network Representations Revisited", ICML 2019, https://arxiv.org/abs/1905.00414;
the unbiased HSIC is that of Song et al., JMLR 13, 2012, Eq. 5, as used on mini-batches by Nguyen et al., ICLR 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

COLUMNS = 1 << 16
"""Features centred and multiplied at once: with 8 examples 2 MB, which stays in cache."""
FEWEST = 4
"""Examples that the unbiased estimator needs."""

Estimator = Literal["unbiased", "biased"]


@dataclass(frozen=True)
class Compact:
    """Centred features X (n, p) of one batch as linear HSIC needs it, in float64: X itself where p < n, else X X^T."""

    rows: torch.Tensor | None = None
    gram: torch.Tensor | None = None

    @property
    def diagonal(self) -> torch.Tensor:
        """float64 (n,): squared norms of the rows."""
        return self._rows.square().sum(1) if self.gram is None else self.gram.diagonal()

    def full(self) -> torch.Tensor:
        """float64 (n, n): X X^T."""
        return self._rows @ self._rows.T if self.gram is None else self.gram

    @property
    def _rows(self) -> torch.Tensor:
        if self.rows is None:
            raise ValueError("expected rows or their Gram matrix, got neither")
        return self.rows


def compact(features: torch.Tensor) -> Compact:
    """The compact form of features (n, ...), flattened and centred over the batch.

    Centring first costs the estimators nothing (they are invariant to it) and keeps float32 products accurate. Columns
    are taken in blocks, so that no second copy of the features exists.
    """
    flat = features.detach().flatten(1)
    n, p = flat.shape
    if p < n:
        rows = flat.double()
        return Compact(rows=(rows - rows.mean(0)).cpu())
    gram = torch.zeros(n, n, dtype=torch.float64, device=flat.device)
    for block in torch.split(flat, COLUMNS, dim=1):
        block = block.to(torch.promote_types(block.dtype, torch.float32))
        centred = block - block.mean(0)
        gram += (centred @ centred.T).double()
    return Compact(gram=gram.cpu())


def joined(a: Compact, b: Compact) -> Compact:
    """The compact form of both features side by side, for a module that is called twice."""
    return Compact(gram=a.full() + b.full())


def hsic(a: Compact, b: Compact, estimator: Estimator) -> float:
    """The Hilbert-Schmidt independence criterion of two linear kernels on the same n examples.

    "biased": <K, L>_F / (n - 1)^2 of centred kernels. "unbiased" (HSIC_1, n >= 4): diagonals set to zero; since the
    features are centred, every row of K sums to 0 and all of its sums follow from the diagonals k and l.
    """
    inner = _inner(a, b)
    k, l = a.diagonal, b.diagonal  # noqa: E741  (the literature's names)
    n = len(k)
    if estimator == "biased":
        return inner / (n - 1) ** 2
    if n < FEWEST:
        raise ValueError(f"unbiased CKA: expected at least {FEWEST} examples in a batch, got {n}")
    product, sums = float(k @ l), float(k.sum() * l.sum())
    return (inner - product + sums / ((n - 1) * (n - 2)) - 2 * product / (n - 2)) / (n * (n - 3))


def cka(cross: float, own: float, other: float) -> float | None:
    """HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L)) from sums over batches, kept within [-1, 1].

    None where it says nothing: constant features, or an unbiased HSIC(K, K) that came out at or below zero.
    """
    if own <= 0 or other <= 0:
        return None
    value = cross / math.sqrt(own * other) if own * other > 0 else math.nan
    return min(max(value, -1.0), 1.0) if math.isfinite(value) else None


def cosine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """float64 (n,): cosine of each example's flattened features, 0 where either is zero."""
    a, b = (x.detach().flatten(1).double() for x in (a, b))
    norms = a.norm(dim=1) * b.norm(dim=1)
    return torch.where(norms > 0, (a * b).sum(1) / norms.clamp_min(torch.finfo(torch.float64).tiny), 0.0)


def _inner(a: Compact, b: Compact) -> float:
    if a.rows is not None and b.rows is not None and a.gram is None and b.gram is None:
        return float((a.rows.T @ b.rows).square().sum())
    return float((a.full() * b.full()).sum())
