# SPDX-License-Identifier: Apache-2.0
"""Where a searched setting's values come from: ``rule.q=0.1..10:log``, ``train.epochs=1..5``, ``rule.state=S,L``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairflare.core.errors import UserError
from fairflare.core.validation import shown

if TYPE_CHECKING:
    import optuna

FORM = "KEY=LOW..HIGH, KEY=LOW..HIGH:log, or KEY=A,B,C"
MOST_CHOICES = 1000


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, whole ones where both are written so; ``log``: even in their logarithm."""

    low: float
    high: float
    log: bool = False

    @property
    def ends(self) -> tuple[float, float]:
        """Both ends, which must be values that the setting takes."""
        return self.low, self.high

    def __str__(self) -> str:
        return f"{self.low}..{self.high}{':log' if self.log else ''}"

    def draw(self, trial: optuna.Trial, key: str) -> float:
        """A value for one trial."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(key, self.low, self.high, log=self.log)
        return trial.suggest_float(key, self.low, self.high, log=self.log)

    def of(self, drawn: Any) -> Any:
        """The setting's value of what the study keeps."""
        return drawn


@dataclass(frozen=True)
class Choices:
    """One of some values, as texts of the command line."""

    values: tuple[str, ...]

    @property
    def ends(self) -> tuple[str, str]:
        """The first and the last."""
        return self.values[0], self.values[-1]

    def __str__(self) -> str:
        return ",".join(self.values)

    def draw(self, trial: optuna.Trial, key: str) -> str:
        """A value for one trial."""
        return str(trial.suggest_categorical(key, self.values))

    def of(self, drawn: Any) -> Any:
        """The setting's value of what the study keeps."""
        return drawn


Space = Mapping[str, Range | Choices]


def parse_over(texts: Sequence[str]) -> dict[str, Range | Choices]:
    """ "rule.q=0.1..10:log" -> {"rule.q": Range(0.1, 10, True)}; raises UserError on anything else."""
    found: dict[str, Range | Choices] = {}
    for text in texts:
        key, equals, values = (part.strip() for part in text.partition("="))
        if not (key and equals and values):
            raise UserError(f"--over: expected {FORM}, got {shown(text)}")
        if key in found:
            raise UserError(f"--over: {shown(key)} is given twice")
        found[key] = _values(key, values)
    if not found:
        raise UserError(f"--over: expected at least one setting to search: {FORM}")
    return found


def sampled(trial: optuna.Trial, space: Space) -> dict[str, Any]:
    """Setting -> its value in one trial."""
    return {key: one.draw(trial, key) for key, one in space.items()}


def _values(key: str, text: str) -> Range | Choices:
    match = re.fullmatch(r"([^,:]+?)\.\.([^,:]+?)(:log)?", text)
    if match is None:
        choices = tuple(part.strip() for part in text.split(","))
        if len(set(choices)) < len(choices) or not all(choices) or not 2 <= len(choices) <= MOST_CHOICES:
            raise UserError(f"--over {key}: expected a range or at least two different values, got {shown(text)}")
        return Choices(choices)
    low, high, log = _number(key, match[1]), _number(key, match[2]), match[3] is not None
    if not low < high:
        raise UserError(f"--over {key}: expected LOW below HIGH, got {shown(text)}")
    if log and low <= 0:
        raise UserError(f"--over {key}: expected LOW above 0 with :log, got {shown(text)}")
    return Range(low, high, log)


def _number(key: str, text: str) -> float:
    try:
        number = float(text) if not re.fullmatch(r"[+-]?\d{1,9}", text.strip()) else int(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"--over {key}: expected numbers on both sides of .., got {shown(text)}")
    return number
