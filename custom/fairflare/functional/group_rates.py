# SPDX-License-Identifier: Apache-2.0
"""Rates of groups of examples from counts that can be added over sites: true positives, decisions, right answers.

And FlexFair's penalty, the variance of the losses of sites or groups, and what it asks of each of them:

    L_g = s_g / n_g                                    mean loss of cell g: a site, or a group of patients
    P   = 1/G sum_g (L_g - m)^2                        m = sum s / sum n over all examples, or the mean of the L_g
    c_g = dP / dL_g = 2/G [(L_g - m) - n_g / n sum_h (L_h - m)]        the second term is 0 for the mean of the L_g

Nature Communications 2025, https://doi.org/10.1038/s41467-025-58549-0, as its public code has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Literal, NamedTuple

POSITIVES, TRUE_POSITIVES, NEGATIVES, FALSE_POSITIVES = "positives", "true_positives", "negatives", "false_positives"
FAMILIES = (POSITIVES, TRUE_POSITIVES, NEGATIVES, FALSE_POSITIVES)
"""Families of the numbers "positives/GROUP" and so on that a site reports of a group."""
CORRECT, SEEN = "correct", "seen"
"""Names of the numbers of right answers and of examples, over all groups and none."""

Rate = Literal["tpr", "selected", "accuracy"]


@dataclass(frozen=True)
class Counts:
    """Examples of one group by class and by decision, each >= 0."""

    positives: float = 0.0
    true_positives: float = 0.0
    negatives: float = 0.0
    false_positives: float = 0.0

    def rate(self, kind: Rate) -> float | None:
        """A share in [0, 1]: of the positives that are found ("tpr"), of examples that are called positive
        ("selected"), or of right answers ("accuracy"); None without examples to divide by.
        """
        if kind == "tpr":
            return share(self.true_positives, self.positives)
        size = self.positives + self.negatives
        if kind == "selected":
            return share(self.true_positives + self.false_positives, size)
        return share(self.true_positives + self.negatives - self.false_positives, size)

    def __add__(self, other: Counts) -> Counts:
        return Counts(*map(sum, zip(astuple(self), astuple(other))))


def share(part: float, whole: float) -> float | None:
    """part / whole in [0, 1], whatever a site says; None where the whole is 0."""
    return min(max(part / whole, 0.0), 1.0) if whole > 0 else None


def counts_of(numbers: Mapping[str, float]) -> dict[str, Counts]:
    """Group -> its counts, of the numbers of one site; a group without numbers is left out."""
    found: dict[str, dict[str, float]] = {}
    for name, value in numbers.items():
        family, _, group = name.partition("/")
        if family in FAMILIES and group:
            found.setdefault(group, {})[family] = value
    return {group: Counts(**found[group]) for group in sorted(found)}


def summed(sites: Iterable[Mapping[str, Counts]]) -> dict[str, Counts]:
    """Group -> its counts over all sites that report it."""
    totals: dict[str, Counts] = {}
    for counts in sites:
        for group, one in counts.items():
            totals[group] = totals.get(group, Counts()) + one
    return totals


def rates(counts: Mapping[str, Counts], kind: Rate) -> dict[str, float]:
    """Group -> its rate, where that is defined."""
    found = {group: one.rate(kind) for group, one in counts.items()}
    return {group: value for group, value in found.items() if value is not None}


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
    """c_g of one cell: ``away`` is L_g - m, ``share`` n_g / n, ``rest`` the sum of all L_h - m, and ``size`` G."""
    return 2 / size * (away - share * rest)
