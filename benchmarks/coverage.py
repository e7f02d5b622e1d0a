# SPDX-License-Identifier: Apache-2.0
"""Intervals over patients, promised at 95 %: at how many simulated sites do they hold the true value?

    python benchmarks/coverage.py [--sites 1000] [--seed 0] [--toy]

For an interval that holds exactly what it promises, 1,000 sites give 93.6 to 96.4 % nineteen times out of twenty. Of a
share the coverage is computed and not simulated: the least over true values from .001 to .999.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from scipy.special import expit, ndtr
from scipy.stats import binom

from fairflare.engine.evaluation import LEVEL
from fairflare.functional import intervals

Ends = tuple[float, float] | None
Site = Callable[[np.random.Generator], tuple[Ends, float]]
"""Draws a site's test cases; returns the interval and the true value."""


def share(n: int) -> float:
    """The least coverage of the interval of a share of ``n`` cases."""
    low, high = np.array([intervals.of_share(right, n, LEVEL) for right in range(n + 1)]).T
    true = np.arange(1, 1000) / 1000
    held = (low[:, None] <= true) & (true <= high[:, None])
    return float((held * binom.pmf(np.arange(n + 1)[:, None], n, true)).sum(axis=0).min())


def dice(n: int) -> Site:
    """Overlaps around .85 (beta, 17 and 3), and a tenth of the structures missed."""

    def drawn(rng: np.random.Generator) -> tuple[Ends, float]:
        values = rng.beta(17, 3, n) * (rng.random(n) >= 0.1)
        return intervals.of_mean(values, LEVEL), 0.9 * 0.85

    return drawn


def brier(n: int) -> Site:
    """Squared errors of calibrated risks, a third around .5 and the others low (beta, 1 and 9)."""

    def drawn(rng: np.random.Generator) -> tuple[Ends, float]:
        risks = np.where(rng.random(n) < 1 / 3, rng.beta(5, 5, n), rng.beta(1, 9, n))
        outcomes = rng.random(n) < risks
        # E[r (1 - r)] of beta(a, b) is a b / ((a + b) (a + b + 1)).
        return intervals.of_mean((risks - outcomes) ** 2, LEVEL), 25 / 110 / 3 + 9 / 110 * 2 / 3

    return drawn


def recalls(n: int, prevalence: float) -> Site:
    """Balanced accuracy; .6 of those with the outcome are found and .9 of the others."""

    def drawn(rng: np.random.Generator) -> tuple[Ends, float]:
        cases = int(rng.binomial(n, prevalence))
        if not 0 < cases < n:
            return None, 0.75
        of_each = [cases, n - cases]
        right = [int(rng.binomial(of, rate)) for of, rate in zip(of_each, (0.6, 0.9), strict=True)]
        return intervals.of_recalls(right, of_each, LEVEL), 0.75

    return drawn


def auc(n: int, prevalence: float) -> Site:
    """Normal scores, 1.2 standard deviations apart; what the model returns are their risks."""

    def drawn(rng: np.random.Generator) -> tuple[Ends, float]:
        positive = rng.random(n) < prevalence
        scores = expit(rng.normal(size=n) + 1.2 * positive)
        return intervals.of_auc(scores, positive, LEVEL), float(ndtr(1.2 / np.sqrt(2)))

    return drawn


SITES: dict[str, Site] = {
    **{f"mean Dice, {n:,} cases": dice(n) for n in (10, 50, 1500)},
    **{f"Brier score, {n:,} cases": brier(n) for n in (12, 100, 1000)},
    **{
        f"balanced accuracy, {n} cases, {p:.0%} with the outcome": recalls(n, p)
        for n, p in ((100, 0.1), (100, 0.4), (400, 0.1), (400, 0.4))
    },
    **{
        f"AUC, {n} cases, {p:.0%} with the outcome": auc(n, p)
        for n, p in ((100, 0.4), (200, 0.1), (400, 0.1), (400, 0.4))
    },
}


def main() -> None:
    """Print a line per metric and kind of site."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--toy", action="store_true", help="few sites and cases")
    options = parser.parse_args()
    for n in (10,) if options.toy else (10, 100, 1000):
        print(f"{f'accuracy, {n:,} cases: the least':55} {share(n):.3f}")
    for name, site in SITES.items():
        rng = np.random.default_rng(options.seed)
        found = [site(rng) for _ in range(5 if options.toy else options.sites)]
        had = [(ends, true) for ends, true in found if ends is not None]
        held = sum(ends[0] <= true <= ends[1] for ends, true in had)
        width = sum(ends[1] - ends[0] for ends, _ in had) / max(len(had), 1)
        none = f", none at {len(found) - len(had)}" if len(had) < len(found) else ""
        print(f"{name:55} {held / max(len(had), 1):.3f}, mean width {width:.3f}{none}")


if __name__ == "__main__":
    main()
