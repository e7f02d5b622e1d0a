# SPDX-License-Identifier: Apache-2.0
"""Whether two methods differ: paired differences over seeds, with interval, sign-flip test, effect size and Holm.

All are functions of numbers. ``compare.compare`` applies them to the differences of a method from the reference with
the same seed; a sentence says better, worse or "cannot be told", by the interval and, of several methods, by Holm's p
too; never by the mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from fairflare.report.fairness import mean_ci
from fairflare.report.values import number, plural, signed, text

EXACT_TO = 12
"""Up to this many pairs every one of the 2^n sign patterns is looked at; beyond it ``RESAMPLES`` drawn ones."""
RESAMPLES = 9_999
DRAWS = 2_000
"""Of the bootstrap."""
LEVEL = 0.05
"""Of Holm's p, up to which one of several comparisons is told."""
Verdict = Literal["better", "worse", "cannot be told"]
Scores = Mapping[Any, Sequence[float]]
"""Seed -> a quantity's value in each resample of its patients."""


def paired(differences: Iterable[float | None], *, seed: int = 0) -> dict[str, Any]:
    """Everything that is said of one set of paired differences.

    Args:
        differences: own minus the reference's value, one per seed; missing and non-finite ones are left out.
        seed: of the drawn sign patterns, where there are more than ``EXACT_TO`` pairs.

    Returns:
        mean, low, high, n (``mean_ci``: Student t, 95 %), p and p_exact (``sign_flip``), d and g (``effect_size``).
    """
    known = [value for value in map(number, differences) if value is not None]
    p, exact = sign_flip(known, seed=seed)
    return {**mean_ci(known), "p": p, "p_exact": exact, **effect_size(known)}


def sign_flip(differences: Sequence[float], *, seed: int = 0) -> tuple[float | None, bool]:
    """Two-sided p of the mean when every difference is as likely to have the other sign, and whether it is exact.

    The smallest p is 2 / 2^n: .25 for 3 seeds, .0625 for 5, .0078 for 8. ``scipy.stats.permutation_test``.

    Returns:
        p in (0, 1], None for fewer than two differences; True where all sign patterns were looked at.
    """
    import numpy as np
    from scipy.stats import permutation_test

    if len(differences) < 2:
        return None, True
    exact = len(differences) <= EXACT_TO
    found = permutation_test(
        (np.asarray(differences, dtype=np.float64),),
        lambda x, axis: np.abs(np.mean(x, axis=axis)),
        permutation_type="samples",
        n_resamples=np.inf if exact else RESAMPLES,
        alternative="greater",
        vectorized=True,
        rng=np.random.default_rng(seed),
    )
    return float(found.pvalue), exact


def effect_size(differences: Sequence[float]) -> dict[str, float | None]:
    """The mean in standard deviations of the differences: Cohen's d of pairs, and Hedges' g without its bias.

    g = d Gamma(m / 2) / (sqrt(m / 2) Gamma((m - 1) / 2)) with m = n - 1 (Hedges, J. Educational Statistics 6, 1981,
    equation 6e). Both None for fewer than two differences, or for equal ones; g for two.
    """
    import numpy as np

    n = len(differences)
    if n < 2 or len(set(differences)) < 2:
        return {"d": None, "g": None}
    d = float(np.mean(differences) / np.std(differences, ddof=1))
    if not math.isfinite(d):
        return {"d": None, "g": None}
    m = n - 1
    if m < 2:
        return {"d": d, "g": None}
    return {"d": d, "g": d * math.exp(math.lgamma(m / 2) - math.lgamma((m - 1) / 2)) / math.sqrt(m / 2)}


def holm(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """p values for which any of them below a level has a probability of at most that level, under no difference.

    Holm, Scandinavian Journal of Statistics 6, 1979: the i-th smallest of m is multiplied by m - i + 1, and none is
    smaller than one before it. Missing values stay missing and do not count.
    """
    known = sorted((value, key) for key, value in values.items() if value is not None)
    found, least = dict.fromkeys(values), 0.0
    adjusted: dict[str, float | None] = dict(found)
    for place, (value, key) in enumerate(known):
        least = max(least, min(1.0, value * (len(known) - place)))
        adjusted[key] = least
    return adjusted


def verdict(found: Mapping[str, Any], higher_is_better: bool) -> Verdict:
    """Better or worse where the interval of the difference lies on one side of zero; without one it cannot be told."""
    low, high = number(found.get("low")), number(found.get("high"))
    if low is None or high is None or low <= 0 <= high:
        return "cannot be told"
    return "better" if (low > 0) == higher_is_better else "worse"


def corrected(found: Mapping[str, Any], higher_is_better: bool, comparisons: int) -> Verdict:
    """``verdict``, and of several comparisons only where Holm's p is at most ``LEVEL``; one needs no correction.

    Args:
        comparisons: over how many p_holm was taken.
    """
    said, p = verdict(found, higher_is_better), found.get("p_holm")
    return said if comparisons < 2 or (p is not None and p <= LEVEL) else "cannot be told"


def seeds_needed(comparisons: int) -> int:
    """Seeds from which on Holm's p of exact sign-flip tests can be at most ``LEVEL``: comparisons x 2 / 2^n."""
    return math.ceil(math.log2(2 * comparisons / LEVEL))


def hierarchical(
    own: Scores, reference: Scores, *, draws: int = DRAWS, seed: int = 0, level: float = 0.95, crossed: bool = False
) -> dict[str, Any]:
    """Percentile bootstrap of the mean paired difference: seeds with replacement, and within each its patients.

    A draw takes as many seeds as there are, with replacement, and for each one of the resamples of its patients; both
    methods see the same patients, so that what a resample does to both cancels.

    Args:
        own: seed -> the quantity with each resample of the patients.
        reference: the same of the other method, with the same resamples.
        crossed: all seeds have the same patients, and the k-th resample is the same for all of them: a draw takes one
            resample, for all of its seeds. Resamples drawn for each seed apart would count the same patients anew with
            every seed, and the interval would be too narrow.

    Returns:
        mean (over all resamples), low, high, draws, level. No interval without a resample.

    Raises:
        ValueError: seeds or numbers of resamples differ.
    """
    import numpy as np

    if set(own) != set(reference) or any(len(own[key]) != len(reference[key]) for key in own):
        raise ValueError("hierarchical: expected the same seeds and resamples of both methods")
    rows = [np.asarray(own[key], dtype=np.float64) - np.asarray(reference[key], dtype=np.float64) for key in own]
    rows = _whole(rows) if crossed else [row[np.isfinite(row)] for row in rows]
    rows = [row for row in rows if len(row)]
    about = {"draws": draws, "level": level}
    if not rows:
        return {"mean": None, "low": None, "high": None, **about}
    rng = np.random.default_rng(seed)
    picked = rng.integers(0, len(rows), size=(draws, len(rows)))
    if crossed:
        table, taken = np.stack(rows), rng.integers(0, len(rows[0]), size=(draws, 1))
        means = table[picked, taken].mean(axis=1)
    else:
        means = [np.mean([rng.choice(rows[k]) for k in chosen]) for chosen in picked]
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return {"mean": float(np.mean([row.mean() for row in rows])), "low": float(low), "high": float(high), **about}


def _whole(rows: Sequence[Any]) -> list[Any]:
    """The resamples in which every seed has a value; ValueError where seeds have different numbers of them."""
    import numpy as np

    if len({len(row) for row in rows}) > 1:
        raise ValueError("hierarchical: expected as many resamples of every seed")
    table = np.stack(rows) if rows else np.empty((0, 0))
    return list(table[:, np.isfinite(table).all(axis=0)])


def sentence(label: str, reference: str, what: str, found: Mapping[str, Any]) -> str:
    """One pair in words: "A: its worst site is better than that of B: +0.030 (95 % interval +0.010 to +0.050; ...)."

    Args:
        found: a paired difference of ``compare``, with verdict, p_holm and wins.
    """
    if found.get("mean") is None:
        return f"{label}: no {what} to compare with {reference}."
    plain = f"{label}: its {what} differs from that of {reference} by {signed(found['mean'])}"
    if found["low"] is None:
        return f"{plain} (one seed, no interval)."
    interval = f"95 % interval {signed(found['low'])} to {signed(found['high'])}"
    if (told := found.get("verdict")) not in ("better", "worse", "cannot be told"):
        return f"{plain} ({interval})."
    word = {"better": "is better than", "worse": "is worse than"}.get(told, "cannot be told from")
    parts = [interval, f"better in {found['wins']} of {plural(found['n'], 'seed')}", *_figures(found)]
    return f"{label}: its {what} {word} that of {reference}: {signed(found['mean'])} ({'; '.join(parts)})."


def _figures(found: Mapping[str, Any]) -> list[str]:
    drawn = "" if found.get("p_exact") else " of drawn signs"
    parts = [f"sign-flip p {found['p']:.3g}{drawn}"] if found.get("p") is not None else []
    parts += [f"Holm {found['p_holm']:.3g}"] if found.get("p_holm") not in (None, found.get("p")) else []
    parts += [f"Hedges' g {text(found['g'], 2)}"] if found.get("g") is not None else []
    again = found.get("bootstrap") or {}
    if again.get("low") is not None:
        parts.append(f"with patients resampled {signed(again['low'])} to {signed(again['high'])}")
    return parts
