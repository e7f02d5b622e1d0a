# SPDX-License-Identifier: Apache-2.0
"""Which of some sites' numbers is far from the others', by median and median absolute deviation."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
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
    least = max(log(times), DEVIATIONS * 1.4826 * median(list(logs.values()) or [0.0]))
    apart = DEVIATIONS * 1.4826 * median(abs(value - centre) for value in values.values())
    return [site for site, v in values.items() if (logs[site] > least if site in logs else abs(v - centre) > apart)]
