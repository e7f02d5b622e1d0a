# SPDX-License-Identifier: Apache-2.0
"""FlexFair's penalty: the variance of the losses of sites or groups, and what it asks of each of them.

    L_g = s_g / n_g                                    mean loss of cell g: a site, or a group of patients
    P   = 1/G sum_g (L_g - m)^2                        m = sum s / sum n over all examples, or the mean of the L_g
    c_g = dP / dL_g = 2/G [(L_g - m) - n_g / n sum_h (L_h - m)]        the second term is 0 for the mean of the L_g

Nature Communications 2025, https://doi.org/10.1038/s41467-025-58549-0, as its public code has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Cell(NamedTuple):
    """Examples of one site or group: how many they are, > 0, and the sum of their losses."""

    n: float
    total: float


def variance_penalty(cells: Mapping[str, Cell], pooled: bool = True) -> tuple[float, dict[str, float]]:
    """P and the c_g of the cells, which sum to 0.

    Args:
        cells: name -> cell; an empty one is passed over. One cell alone has no penalty, nor do equal losses.
        pooled: m is the mean loss of all examples; otherwise that of the cells.
    """
    known = {name: cells[name] for name in sorted(cells) if cells[name].n > 0}
    if not known:
        return 0.0, {}
    losses = {name: cell.total / cell.n for name, cell in known.items()}
    n, size = sum(cell.n for cell in known.values()), len(known)
    mean = sum(c.total for c in known.values()) / n if pooled else sum(losses.values()) / size
    away = {name: loss - mean for name, loss in losses.items()}
    rest = sum(away.values()) if pooled else 0.0
    slopes = {name: slope_of(away[name], cell.n / n, rest, size) for name, cell in known.items()}
    return sum(gap * gap for gap in away.values()) / size, slopes


def slope_of(away: float, share: float, rest: float, size: int) -> float:
    """c_g of one cell, from sums over all cells.

    Args:
        away: L_g - m.
        share: n_g / n.
        rest: sum_h (L_h - m); 0 where m is the mean of the L_h.
        size: G.
    """
    return 2 / size * (away - share * rest)
