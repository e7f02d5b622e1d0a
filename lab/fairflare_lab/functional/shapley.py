# SPDX-License-Identifier: Apache-2.0
"""Shapley values of sites from what coalitions of them are worth: exact, and from permutations.

Shapley, Contributions to the Theory of Games II, 1953; sampling by permutations: Castro et al., Computers & Operations
Research 36, 2009, https://doi.org/10.1016/j.cor.2008.04.004.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

Coalition = frozenset[str]


def coalitions(players: Sequence[str]) -> Iterator[Coalition]:
    """All 2^K - 1 but the empty one, the smallest first."""
    for size in range(1, len(players) + 1):
        yield from map(frozenset, combinations(players, size))


def exact(players: Sequence[str], utility: Mapping[Coalition, float]) -> dict[str, float]:
    """Player -> sum over the coalitions S without it of |S|! (K - |S| - 1)! / K! (v(S + player) - v(S)).

    ``utility``: v of every one of the 2^K coalitions, the empty one included.
    """
    k = len(players)
    found = {}
    for player in players:
        others = [p for p in players if p != player]
        terms = []
        for size in range(k):
            share = 1 / (k * math.comb(k - 1, size))
            for rest in map(frozenset, combinations(others, size)):
                terms.append(share * (utility[rest | {player}] - utility[rest]))
        found[player] = math.fsum(terms)
    return found


def prefixes(permutations: Sequence[Sequence[str]]) -> list[Coalition]:
    """The coalitions that ``sampled`` needs of these permutations, each once, but the empty one."""
    found = [frozenset(order[:size]) for order in permutations for size in range(1, len(order) + 1)]
    return list(dict.fromkeys(found))


def additions(permutations: Sequence[Sequence[str]], utility: Mapping[Coalition, float]) -> dict[str, list[float]]:
    """Player -> what its arrival adds in each permutation; a player of whom nothing is known is left out.

    ``utility``: v of the coalitions in ``prefixes``, as far as known, and of the empty one.
    """
    added: dict[str, list[float]] = {}
    for order in permutations:
        for place, player in enumerate(order):
            before, after = frozenset(order[:place]), frozenset(order[: place + 1])
            if before in utility and after in utility:
                added.setdefault(player, []).append(utility[after] - utility[before])
    return dict(sorted(added.items()))


def sampled(permutations: Sequence[Sequence[str]], utility: Mapping[Coalition, float]) -> dict[str, float]:
    """Player -> the mean of its ``additions``.

    Over permutations whose utilities are all known the values sum to v(all) - v(nobody).
    """
    return {player: math.fsum(values) / len(values) for player, values in additions(permutations, utility).items()}
