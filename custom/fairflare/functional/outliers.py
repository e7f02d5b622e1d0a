# SPDX-License-Identifier: Apache-2.0
"""Which of some sites' numbers is far from the others', by median and median absolute deviation."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import exp, log, sqrt
from statistics import median

TIMES, DEVIATIONS, FEWEST = 3.0, 3.5, 4
"""Factor and robust standard deviations by which a number must differ from the others' median, and least of numbers."""


def far_from_median(values: Mapping[str, float], times: float = TIMES) -> list[str]:
    """The sites whose value is far from the median.

    By more than ``times`` and ``DEVIATIONS`` (1.4826 times the median absolute deviation) of the logarithms; where it
    has not the median's sign, by these deviations of the values themselves.
    """
    if len(values) < FEWEST:
        return []
    centre = median(values.values())
    logs = {site: abs(log(abs(v)) - log(abs(centre))) for site, v in values.items() if v * centre > 0}
    least = _least(logs.values(), times)
    apart = DEVIATIONS * 1.4826 * median(abs(value - centre) for value in values.values())
    return [site for site, v in values.items() if (logs[site] > least if site in logs else abs(v - centre) > apart)]


def share_near(share: float, cases: float, other: float) -> float:
    """The value nearest to ``other`` in the 95 % interval of a ``share`` of ``cases`` > 0 (Wilson, JASA 22, 1927)."""
    part = 1.96**2 / cases
    middle = (share + part / 2) / (1 + part)
    half = sqrt(part * share * (1 - share) + part**2 / 4) / (1 + part)
    return min(max(other, middle - half), middle + half)


def winsorised(values: Mapping[str, float]) -> dict[str, float]:
    """Positive ``values``, each at most as far above the median as one that ``far_from_median`` leaves alone."""
    centre = median(values.values())
    most = centre * exp(_least([abs(log(value / centre)) for value in values.values()], TIMES))
    return {site: min(value, most) if len(values) >= FEWEST else value for site, value in values.items()}


def _least(logs: Collection[float], times: float) -> float:
    """How far a logarithm must be from the median's, of the distances of all, to be far."""
    return max(log(times), DEVIATIONS * 1.4826 * median(list(logs) or [0.0]))
