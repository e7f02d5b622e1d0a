# SPDX-License-Identifier: Apache-2.0
"""The gate's check of counts: against the site's number of training examples, and against each other.

Each of them is within its own range, which is as wide as any site may be. Rules add counts over sites, so that a site
whose counts nothing holds down is the federation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairflare.core.types import GROUP_COUNT, Number
from fairflare.engine.checks import Refused
from fairflare.functional.group_rates import CORRECT, SEEN, Counts, counts_of


def check_counts(scalars: Mapping[str, float], specs: Sequence[Number], n_examples: int) -> None:
    """Raise Refused for counts that no ``n_examples`` training examples have.

    Args:
        scalars: accepted numbers, each within its range.
    """
    counted = {spec.name: spec.of_examples for spec in specs if spec.of_examples is not None and spec.name in scalars}
    for name, times in counted.items():
        _check_one(name, scalars[name], times * n_examples)
    _check_sizes(scalars, n_examples)
    if SEEN in counted:
        _check_decisions(scalars)


def _check_one(name: str, value: float, most: float) -> None:
    if value != int(value) or value > most:
        raise _wrong(f"{name}: expected a whole number of at most {most:g}, got {value:g}")


def _check_sizes(scalars: Mapping[str, float], n_examples: int) -> None:
    """Groups are parts of the training split: whole numbers whose sum is not above its size."""
    counts = [value for name, value in scalars.items() if name.startswith(f"{GROUP_COUNT}/")]
    if any(value != int(value) for value in counts) or sum(counts) > n_examples:
        raise _wrong(f"group_count: expected whole numbers of at most {n_examples} in all")


def _check_decisions(scalars: Mapping[str, float]) -> None:
    """Groups are parts of the examples that were seen, and what is right or wrong in them is so of all.

    A positive that was found is a right answer; one that was missed and a false alarm are wrong ones, whatever the
    number of classes.
    """
    seen, correct = scalars[SEEN], scalars.get(CORRECT, 0.0)
    if correct > seen:
        raise _wrong(f"{CORRECT}: expected at most the {seen:g} seen, got {correct:g}")
    groups = counts_of(scalars)
    for name, one in groups.items():
        if one.true_positives > one.positives or one.false_positives > one.negatives:
            raise _wrong(f"group {name}: more decisions for the positive class than examples")
    total = sum(groups.values(), Counts())
    if total.positives + total.negatives > seen:
        raise _wrong(f"groups: expected at most the {seen:g} examples seen, got {total.positives + total.negatives:g}")
    wrong = total.positives - total.true_positives + total.false_positives
    if total.true_positives > correct or wrong > seen - correct:
        raise _wrong(f"groups: expected decisions of which {correct:g} of {seen:g} can be right")


def _wrong(detail: str) -> Refused:
    return Refused("count_mismatch", detail)
