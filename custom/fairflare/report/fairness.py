# SPDX-License-Identifier: Apache-2.0
"""How evenly one model serves the sites, and whether two methods differ: pure functions of numbers.

Conventions. Higher values are better unless ``higher_is_better=False``. Missing and non-finite values are left out,
never counted as zero; ``describe`` says which. A quantity that is undefined for the values that remain is None.
The standard deviation over sites is the population one (ddof 0), as in the client-level STD of FedISM+ (Wu et al.,
Table IV) and in Fed-LWR; FedCE, FedHEAL and FedUFO print the sample one (ddof 1), so every report gives both.

Paired differences over seeds have an interval, a sign-flip test, effect sizes and Holm's p. A sentence says better,
worse or not shown to differ, by the interval and, of several methods, by Holm's p too; never by the mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Literal

from fairflare.report.values import natural, number, plural, signed, text

Values = Mapping[str, float | None]
CI_MIN_SITES = 5
"""Below this many sites a bootstrap over sites says next to nothing, and reports show none."""
Interval = tuple[float | None, float | None]


def finite(values: Values) -> dict[str, float]:
    found = {site: number(value) for site, value in values.items()}
    return {site: value for site, value in found.items() if value is not None}


def mean(values: Values | Iterable[float | None]) -> float | None:
    """Unweighted mean over sites: every hospital counts once, however large."""
    known = _known(values)
    return math.fsum(known) / len(known) if known else None


def std(values: Values | Iterable[float | None], ddof: Literal[0, 1] = 0) -> float | None:
    """Standard deviation over sites, >= 0; None where fewer than ddof + 1 sites have a value."""
    known = _known(values)
    centre = mean(known)
    if centre is None or len(known) <= ddof:
        return None
    return math.sqrt(math.fsum((value - centre) ** 2 for value in known) / (len(known) - ddof))


def worst(values: Values, higher_is_better: bool = True) -> tuple[str | None, float | None]:
    """The worst served site and its value; of several, the first by name."""
    sign = 1 if higher_is_better else -1
    known = finite(values)
    site = min(known, key=lambda name: (sign * known[name], natural(name)), default=None)
    return site, None if site is None else known[site]


def best(values: Values, higher_is_better: bool = True) -> tuple[str | None, float | None]:
    return worst(values, not higher_is_better)


def absolute(values: Values) -> dict[str, Any]:
    """Mean and worst of the absolute values over sites, the last of several worst by name."""
    known = {site: abs(value) for site, value in values.items() if value is not None}
    lowest = max(known, key=lambda site: (known[site], site), default=None)
    average = sum(known.values()) / len(known) if known else None
    return {"mean": average, "worst": None if lowest is None else known[lowest], "worst_site": lowest}


def weighted(pairs: Iterable[tuple[float | None, float | None]]) -> float | None:
    """Mean of (weight, value), without those that lack one of both."""
    known = [(n, value) for n, value in pairs if n and value is not None]
    total = sum(n for n, _ in known)
    return sum(n * value for n, value in known) / total if total else None


def gap(values: Values) -> float | None:
    """Distance between the best and the worst site, >= 0; 0 for a single site."""
    known = finite(values).values()
    return max(known) - min(known) if known else None


def bottom_decile(values: Values, higher_is_better: bool = True) -> float | None:
    """Mean over the worst tenth of the sites, ceil(K / 10) of them: the worst site's value for K <= 10.

    The "worst 10 %" of q-FFL (Li et al., ICLR 2020, https://arxiv.org/abs/1905.10497, Section 4).
    """
    ordered = sorted(finite(values).values(), reverse=not higher_is_better)
    return mean(ordered[: math.ceil(len(ordered) / 10)])


def jain(values: Values) -> float | None:
    """Jain's index (sum x)^2 / (K sum x^2), in [1/K, 1]; 1 when all sites are equal, also when all are zero.

    Jain, Chiu and Hawe, DEC-TR-301, 1984, https://arxiv.org/abs/cs/9809099. Defined for values >= 0; None otherwise.
    """
    known = list(finite(values).values())
    if not known or min(known) < 0:
        return None
    top = max(known)
    if top == 0:
        return 1.0
    scaled = [value / top for value in known]
    return math.fsum(scaled) ** 2 / (len(scaled) * math.fsum(value * value for value in scaled))


def bootstrap_ci(values: Values, level: float = 0.95, n: int = 2000, seed: int = 0) -> Interval:
    """Percentile bootstrap interval of the mean over sites, sites drawn with replacement ``n`` times.

    It speaks of which sites happened to take part, not of how the run would differ with another training seed, and it
    is too narrow for few sites. (None, None) for fewer than two. The same for any order or naming of the sites.
    """
    import numpy as np

    if not 0 < level < 1 or n < 1:
        raise ValueError(f"expected 0 < level < 1 and n >= 1, got level={level}, n={n}")
    known = np.sort(np.fromiter(finite(values).values(), dtype=np.float64))
    if known.size < 2:
        return None, None
    draws = known[np.random.default_rng(seed).integers(0, known.size, size=(n, known.size))].mean(axis=1)
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


@cache
def student_quantile(df: int, level: float) -> float:
    """t with P(|T| <= t) = ``level``, 0 to 1, of Student's T with ``df`` >= 1 degrees of freedom.

    By bisection of the finite sum for whole numbers (Abramowitz and Stegun, 1964, 26.7.3 and 26.7.4). SciPy's does the
    same, but importing it takes a tenth of the CPU time of a small run.
    """

    def within(t: float) -> float:
        angle = math.atan(t / math.sqrt(df))
        square, term, total = math.cos(angle) ** 2, math.cos(angle) if df % 2 else 1.0, 0.0
        for k in range(1 + df % 2, df, 2):
            total += term
            term *= square * k / (k + 1)
        return (angle + math.sin(angle) * total) * 2 / math.pi if df % 2 else math.sin(angle) * total

    low, high = 0.0, 1.0
    while within(high) < level:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle) < level else (low, middle)
    return high


def mean_ci(
    values: Iterable[float | None], level: float = 0.95, within: tuple[float, float] = (-math.inf, math.inf)
) -> dict[str, float | int | None]:
    """Mean over seeds with the two-sided Student t interval, cut to the values that are possible.

    Args:
        within: the least and the largest possible value.

    Returns:
        mean, low, high, n and sd (standard deviation, ddof 1); neither interval nor sd for n < 2.
    """
    if not 0 < level < 1:
        raise ValueError(f"expected 0 < level < 1, got {level}")
    known = _known(values)
    centre, spread = mean(known), std(known, ddof=1)
    if centre is None or spread is None:
        return {"mean": centre, "low": None, "high": None, "n": len(known), "sd": None}
    half = student_quantile(len(known) - 1, level) * spread / math.sqrt(len(known))
    low, high = max(within[0], centre - half), min(within[1], centre + half)
    return {"mean": centre, "low": low, "high": high, "n": len(known), "sd": spread}


def describe(values: Values, higher_is_better: bool = True) -> dict[str, Any]:
    """All of the above as JSON values, with the convention that each was computed under.

    Returns:
        n_sites and left_out (names without a finite value); mean, std (with its ddof, 0), std_sample (ddof 1), worst
        and best ({"site", "value"}), gap, bottom_decile, jain, and ci of the mean ({"low", "high", "level", "method"}),
        null below five sites.
    """
    known = finite(values)
    low, high = bootstrap_ci(known) if len(known) >= CI_MIN_SITES else (None, None)
    return {
        "n_sites": len(known),
        "left_out": sorted((site for site in values if site not in known), key=natural),
        "mean": mean(known),
        "std": std(known),
        "ddof": 0,
        "std_sample": std(known, ddof=1),
        "worst": dict(zip(("site", "value"), worst(known, higher_is_better), strict=True)),
        "best": dict(zip(("site", "value"), best(known, higher_is_better), strict=True)),
        "gap": gap(known),
        "bottom_decile": bottom_decile(known, higher_is_better),
        "jain": jain(known),
        "ci": {"low": low, "high": high, "level": 0.95, "method": "percentile bootstrap over sites, 2000 draws"},
    }


def _known(values: Values | Iterable[float | None]) -> list[float]:
    held = values.values() if isinstance(values, Mapping) else values
    return [value for value in map(number, held) if value is not None]


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


def paired(differences: Iterable[float | None], *, largest: float = math.inf) -> dict[str, Any]:
    """Everything that is said of paired differences, one per seed; missing and non-finite ones are left out.

    Args:
        largest: difference that is possible, either way.

    Returns:
        mean, low, high, n, sd (``mean_ci``: Student t, 95 %), p and p_exact (``sign_flip``), d and g (``effect_size``).
    """
    known = _known(differences)
    p, exact = sign_flip(known)
    return {**mean_ci(known, within=(-largest, largest)), "p": p, "p_exact": exact, **effect_size(known)}


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
    equation 6e). Both None for fewer than two differences, or for ones that are equal but for rounding; g for two.
    """
    import numpy as np

    spread = float(np.std(differences, ddof=1)) if len(differences) > 1 else 0.0
    d = float(np.mean(differences)) / spread if spread > 1e-9 * max(map(abs, differences), default=0.0) else math.nan
    if not math.isfinite(d):
        return {"d": None, "g": None}
    m = len(differences) - 1
    g = d * math.exp(math.lgamma(m / 2) - math.lgamma((m - 1) / 2)) / math.sqrt(m / 2) if m > 1 else None
    return {"d": d, "g": g}


def holm(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """p values for which any of them below a level has a probability of at most that level, under no difference.

    Holm, Scandinavian Journal of Statistics 6, 1979: the i-th smallest of m is multiplied by m - i + 1, and none is
    smaller than one before it. Missing values stay missing and do not count.
    """
    known = sorted((value, key) for key, value in values.items() if value is not None)
    adjusted, least = dict[str, float | None](dict.fromkeys(values)), 0.0
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


def corrected(found: Mapping[str, Any], higher_is_better: bool) -> Verdict:
    """``verdict`` where Holm's p, of one comparison the sign-flip p itself, is at most ``LEVEL``."""
    p = found.get("p_holm")
    return verdict(found, higher_is_better) if p is not None and p <= LEVEL else "cannot be told"


def verdict_words(found: Mapping[str, Any]) -> str:
    """A verdict in a table: better, worse, or why neither is said."""
    if found["verdict"] != "cannot be told":
        return str(found["verdict"])
    if found["low"] is None:
        return "one seed"
    both = [one for one in (found, found.get("bootstrap") or {"low": None}) if one["low"] is not None]
    return "interval includes zero" if any(one["low"] <= 0 <= one["high"] for one in both) else f"p above {LEVEL:g}"


def seeds_needed(comparisons: int) -> int:
    """Seeds from which on Holm's p of exact sign-flip tests can be at most ``LEVEL``: comparisons x 2 / 2^n."""
    return math.ceil(math.log2(2 * comparisons / LEVEL))


def hierarchical(
    own: Scores, reference: Scores, *, draws: int = DRAWS, level: float = 0.95, crossed: bool = False
) -> dict[str, Any]:
    """Percentile bootstrap of the mean paired difference: seeds with replacement, and within each its patients.

    A draw takes as many seeds as there are, with replacement, and for each one of the resamples of its patients; both
    methods see the same patients, so that what a resample does to both cancels.

    Args:
        own, reference: seed -> the quantity of each method with each resample of the patients, the same for both.
        crossed: all seeds have the same patients, and the k-th resample is the same for all of them: a draw takes one
            resample, for all of its seeds. Resamples drawn for each seed apart would count the same patients anew with
            every seed, and the interval would be too narrow.

    Returns:
        mean (over all resamples), low, high, draws, level. No interval without a resample.
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
    rng = np.random.default_rng(0)
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

    ``found``: a paired difference of ``compare``, with verdict, p_holm and wins.
    """
    if found.get("mean") is None:
        return f"{label}: no {what} to compare with {reference}."
    plain = f"{label}: its {what} differs from that of {reference} by {signed(found['mean'])}"
    if found["low"] is None:
        return f"{plain} (one seed, no interval)."
    interval = f"95 % interval {signed(found['low'])} to {signed(found['high'])}"
    if (told := found.get("verdict")) not in ("better", "worse", "cannot be told"):
        return f"{plain} ({interval})."
    word = {"better": "is better than", "worse": "is worse than"}.get(told, "is not shown to differ from")
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
