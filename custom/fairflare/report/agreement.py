# SPDX-License-Identifier: Apache-2.0
"""What a site contributes, by leaving it out or by Shapley's rule, and how well two such share vectors agree.

The three agreements are those of FedCE's Table 3 (Jiang et al., CVPR 2023, https://arxiv.org/abs/2303.16520), between
a method's weights and leave-one-out shares. A quantity that is undefined for the vectors given is None.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from fairflare.functional import shapley as functional
from fairflare.functional.shapley import Coalition
from fairflare.report.values import number

Shares = Mapping[str, float]


def agreement(a: Shares, b: Shares) -> dict[str, float | None]:
    """{"pearson_x100", "euclid", "cosine"} of two share vectors over the same sites."""
    return {"pearson_x100": pearson_x100(a, b), "euclid": euclid(a, b), "cosine": cosine(a, b)}


def agreements(a: Shares, b: Shares) -> dict[str, float | None]:
    """``agreement`` and "spearman", the correlation of the ranks (ties shared), in [-1, 1]."""
    return {**agreement(a, b), "spearman": spearman(a, b)}


def spearman(a: Shares, b: Shares) -> float | None:
    from scipy.stats import rankdata

    x, y = (rankdata(values).tolist() if values else [] for values in _vectors(a, b))
    return _cosine(_centred(x), _centred(y)) if x else None


def pearson_x100(a: Shares, b: Shares) -> float | None:
    """100 times Pearson's correlation, in [-100, 100]; None when either vector is constant."""
    x, y = _vectors(a, b)
    correlation = _cosine(_centred(x), _centred(y))
    return None if correlation is None else 100 * correlation


def euclid(a: Shares, b: Shares) -> float | None:
    """Euclidean distance, >= 0 and at most sqrt(2) between shares; None without sites."""
    x, y = _vectors(a, b)
    return math.dist(x, y) if x else None


def cosine(a: Shares, b: Shares) -> float | None:
    """Cosine of the angle between the vectors, in [0, 1] for shares; None when either is zero."""
    return _cosine(*_vectors(a, b))


def clipped_shares(values: Shares) -> dict[str, float]:
    """Values over their sum with negative ones as 0, so that the shares sum to 1; uniform when none is positive.

    Raises:
        ValueError: a value is not finite.
    """
    for site, value in values.items():
        if number(value) is None:
            raise ValueError(f"{site}: expected a finite number, got {value!r}")
    kept = {site: max(float(value), 0.0) for site, value in values.items()}
    total = math.fsum(kept.values())
    return {site: value / total if total > 0 else 1 / len(kept) for site, value in kept.items()}


def leave_one_out_shares(drops: Shares) -> dict[str, float]:
    """Each site's share of the drops of the score when the model is trained without it; a gain (drop < 0) counts as 0.

    FedCE's supplement; where a task has several scores, a site's drop is their sum. Takes K + 1 trainings.
    """
    return clipped_shares(drops)


def shapley(utilities: Mapping[Coalition, float]) -> dict[str, float]:
    """Exact Shapley values phi_i = sum over S without i of |S|! (K - |S| - 1)! / K! (U(S + i) - U(S)).

    They sum to U(all) - U(none) and may be negative; ``clipped_shares`` makes weights of them. Shapley, "A value for
    n-person games", 1953.

    Args:
        utilities: coalition of sites -> its utility, for all 2^K coalitions, the empty one included.

    Raises:
        ValueError: a coalition is missing.
    """
    sites = sorted(set().union(*utilities)) if utilities else []
    _require([frozenset(), *functional.coalitions(sites)] if sites else [], utilities)
    return functional.exact(sites, utilities)


def sampled_shapley(
    orders: Sequence[Sequence[str]], utilities: Mapping[Coalition, float]
) -> dict[str, dict[str, float | None]]:
    """Shapley values from some orders in which the sites may join, with the standard error of the sampling.

    The mean over the orders of what a site adds to those before it (Castro et al., Computers & Operations Research 36,
    2009): its expectation is ``shapley``. Every order's additions sum to U(all) - U(none), so the means do, too.

    Returns:
        site -> {"value", "se"}; se is None for a single order.

    Raises:
        ValueError: a coalition is missing.
    """
    _require(prefixes(orders), utilities)
    added = functional.additions(orders, utilities)
    return {site: {"value": math.fsum(found) / len(found), "se": _error(found)} for site, found in added.items()}


def prefixes(orders: Sequence[Sequence[str]]) -> list[Coalition]:
    """The coalitions that ``sampled_shapley`` reads, each once, the empty one first."""
    return [frozenset(), *functional.prefixes(orders)] if orders else []


def _error(values: Sequence[float]) -> float | None:
    """Standard error of the mean."""
    if len(values) < 2:
        return None
    centre = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1) / len(values))


def _require(teams: Iterable[Coalition], utilities: Mapping[Coalition, float]) -> None:
    for team in teams:
        if team not in utilities:
            raise ValueError(f"utilities: expected all coalitions, got none for {sorted(team)}")


def _vectors(a: Shares, b: Shares) -> tuple[list[float], list[float]]:
    if set(a) != set(b):
        raise ValueError(f"expected shares of the same sites, got {sorted(a)} and {sorted(b)}")
    return [a[site] for site in sorted(a)], [b[site] for site in sorted(a)]


def _centred(x: list[float]) -> list[float]:
    """``x`` minus its mean, exactly zero where all entries are equal."""
    if len(set(x)) < 2:
        return [0.0] * len(x)
    mean = math.fsum(x) / len(x)
    return [value - mean for value in x]


def _cosine(x: list[float], y: list[float]) -> float | None:
    lengths = math.hypot(*x), math.hypot(*y)
    if not min(lengths) > 0:
        return None
    product = math.fsum(p / lengths[0] * (q / lengths[1]) for p, q in zip(x, y, strict=True))
    return min(max(product, -1.0), 1.0)
