# SPDX-License-Identifier: Apache-2.0
"""Metrics in words, as the run wrote them down (``metrics`` of a summary), or else as they are known now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairflare.core.metric import named
from fairflare.report.values import number

Json = Mapping[str, Any]


def label(metric: str, found: Json) -> str:
    """A metric's name in words.

    Args:
        metric: its name in answers and logs.
        found: a summary or a comparison, whose "metrics" hold name -> label, meaning, chance, higher_is_better.
    """
    return str(_known(metric, found).get("label") or named(metric).label)


def meaning(metric: str, found: Json) -> str:
    """What a metric's value means, and what guessing gets where that is known; "" if unknown."""
    text, guessing = str(_known(metric, found).get("meaning") or ""), chance(metric, found)
    return text if guessing is None else f"{text}, {guessing:.2g} is guessing"


def chance(metric: str, found: Json) -> float | None:
    """What guessing gets; None where that is not known."""
    return number(_known(metric, found).get("chance"))


def higher_is_better(metric: str, found: Json) -> bool:
    """Whether a larger value is a better one."""
    said = _known(metric, found).get("higher_is_better")
    return named(metric).higher_is_better if said is None else bool(said)


def _known(metric: str, found: Json) -> Json:
    return (found.get("metrics") or {}).get(metric) or {}
