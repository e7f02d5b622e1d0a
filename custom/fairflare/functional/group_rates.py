# SPDX-License-Identifier: Apache-2.0
"""Rates of groups of examples from counts that can be added over sites: true positives, decisions, right answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Literal

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
