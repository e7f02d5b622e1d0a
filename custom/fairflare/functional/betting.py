# SPDX-License-Identifier: Apache-2.0
"""Tests that may be looked at after every patient: the capital of bets against a hypothesis, an e-value.

A. Ramdas, P. Gruenwald, V. Vovk and G. Shafer, Statistical Science 38, 2023; bets as in I. Waudby-Smith and A. Ramdas,
JRSS B 86, 2024. Under the hypothesis the capital is a non-negative supermartingale that begins at 1: the probability
that it ever reaches 20 is at most .05 (Ville's inequality).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

REACHED = 20.0
PRIOR_CASES, PRIOR_SECOND = 10.0, 0.02
"""The bets begin as if so many cases had had mean 0 and this mean square."""
MOST_AT_STAKE = 0.5


@dataclass
class Bets:
    """Bets against "the mean of x is at most 0", for x >= -bound.

    Attributes:
        bound: > 0.
        cases: seen so far.
        first, second: sums of x and of its square.
        log_capital: natural logarithm of the capital.
        reached: the case at which the capital reached ``REACHED`` for the first time; 0: never.
    """

    bound: float
    cases: int = 0
    first: float = 0.0
    second: float = 0.0
    log_capital: float = 0.0
    reached: int = 0

    def see(self, x: float) -> None:
        """Take one more case; the stake depends on earlier ones alone. Raises ValueError out of range."""
        if not -self.bound - 1e-9 <= x < math.inf:
            raise ValueError(f"x: expected at least {-self.bound}, got {x}")
        many = PRIOR_CASES + self.cases
        square = (PRIOR_CASES * PRIOR_SECOND + self.second) / many
        stake = min(max(self.first / many / square, 0.0), MOST_AT_STAKE / self.bound)
        self.log_capital += math.log1p(stake * x)
        self.cases, self.first, self.second = self.cases + 1, self.first + x, self.second + x * x
        if not self.reached and self.log_capital >= math.log(REACHED):
            self.reached = self.cases


def certificate(margin: float) -> Bets:
    """Against "the model in use is worse by ``margin`` or more"; sees own loss - loss in use + margin."""
    return Bets(1.0 - margin)


def alarm(margin: float) -> Bets:
    """Against "the model in use is worse by ``margin`` at most"; sees loss in use - own loss - margin."""
    return Bets(1.0 + margin)
