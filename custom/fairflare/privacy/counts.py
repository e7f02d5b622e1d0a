# SPDX-License-Identifier: Apache-2.0
"""Which group counts may leave a site: none below the site's minimum, and none from which one below it follows."""

from __future__ import annotations

from collections.abc import Sequence


def released(counts: Sequence[int], min_count: int | None, unknown: int = 0) -> list[bool]:
    """Whether each group's count, and numbers computed from that group alone, may leave the site.

    A count from 1 to ``min_count`` - 1 is suppressed. The total is no secret (it is n_k), so further counts, the
    smallest first, are suppressed until at least two cells are hidden whose sum reaches ``min_count``: then no small
    count follows by subtraction (complementary suppression). An empty group hides nobody and is released as empty.

    Args:
        counts: examples per group, >= 0.
        min_count: the site's minimum, >= 0; None releases nothing.
        unknown: examples in no group, a cell that is never released and needs hiding only when it is small.
    """
    if min_count is None:
        return [False] * len(counts)
    hidden = {k for k, n in enumerate(counts) if 0 < n < min_count}
    total = sum(counts[k] for k in hidden) + unknown
    cells = len(hidden) + (unknown > 0)
    if not hidden and unknown >= min_count:
        return [True] * len(counts)
    for k in sorted(range(len(counts)), key=lambda k: counts[k]):
        if not cells or min_count <= 1 or (cells >= 2 and total >= min_count):
            break
        if counts[k] and k not in hidden:
            hidden.add(k)
            total, cells = total + counts[k], cells + 1
    return [k not in hidden for k in range(len(counts))]


def released_unions(
    counts: Sequence[int], of: Sequence[int], shown: Sequence[bool], min_count: int | None, unknown: int = 0
) -> list[bool]:
    """Whether the count of each union of groups may leave a site that also releases some groups' own counts.

    From a union's count and those of the groups in it that are known, the rest of it follows: so both the unions and
    what is not shown of them must be free to leave (``released``).

    ``of``: group -> index of the union that it is a part of; ``shown``: whether its own count is released.
    """
    sizes, rest = ([0] * (max(of, default=-1) + 1) for _ in range(2))
    for count, union, known in zip(counts, of, shown, strict=True):
        sizes[union] += count
        rest[union] += 0 if known else count
    pairs = zip(released(sizes, min_count, unknown), released(rest, min_count, unknown))
    return [whole and hidden for whole, hidden in pairs]
