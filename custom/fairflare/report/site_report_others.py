# SPDX-License-Identifier: Apache-2.0
"""What a page for one hospital may say of the others: means over several of them, and nothing of a single one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairflare.report.fairness import finite, mean
from fairflare.report.values import plural, text

Json = dict[str, Any]
LEAST = 3
"""Hospitals that every number about others is a mean over."""
DIGITS = 2
"""Decimals that such a number has."""
PARTS = ("lowest", "middle", "highest")
RULE = (
    "Other hospitals have no names here, and no number is of one of them: each is a mean over at least "
    f"{LEAST} others, with {DIGITS} decimals. Where there are fewer, nothing is said of them, and the hospital's "
    "weight and share of the examples are left out too, as theirs would follow from these. Curves of others are over "
    "the same hospitals in every round. Hospitals that put their pages together can learn more than each page says."
)


def enough(others: int) -> bool:
    """Whether anything may be said of so many others together."""
    return others >= LEAST


def standing(values: Mapping[str, float | None], site: str) -> Json:
    """Where a site's value lies among those of all.

    Args:
        values: site -> value.
        site: whose page it is.

    Returns:
        own; others: how many have a value; mean: theirs; halves: means of the lower and of the upper half of them, from
        ``2 * LEAST`` others on; part: which of ``PARTS`` of all values the own one is in, from then on. None instead of
        what may not be said.
    """
    known = finite(values)
    own, others = known.pop(site, None), sorted(known.values())
    found: Json = {"own": own, "others": len(others), "mean": None, "halves": None, "part": None}
    if not enough(len(others)):
        return found
    found["mean"] = _mean(others)
    if len(others) >= 2 * LEAST:
        middle = len(others) // 2
        found["halves"] = [_mean(others[:middle]), _mean(others[middle:])]
        found["part"] = None if own is None else _part(own, others)
    return found


def sentence(found: Mapping[str, Any], what: str, higher_is_better: bool) -> str:
    """ "On average over the 7 others it is 0.81; yours is lower (worse)." in the words that may be said.

    Args:
        found: see ``standing``.
        what: the value in words, as "accuracy".
        higher_is_better: of it.
    """
    others = found["others"]
    if found["mean"] is None:
        few = (
            "no other hospital has"
            if not others
            else f"only {plural(others, 'other hospital')} " + ("has" if others == 1 else "have")
        )
        return f"How other hospitals do is not said: {few} a result."
    said = f"On average over {others} other hospitals the {what} is {text(found['mean'], DIGITS)}"
    if found["halves"]:
        low, high = (text(value, DIGITS) for value in found["halves"])
        said += f", {low} over the lower half of them and {high} over the upper half"
    own = found["own"]
    if own is None:
        return f"{said}."
    if found["part"]:
        return f"{said}; this hospital's is in the {found['part']} third of all."
    if round(own, DIGITS) == found["mean"]:
        return f"{said}, as here."
    lower = own < found["mean"]
    better = lower != higher_is_better
    return f"{said}; here it is {'lower' if lower else 'higher'}, which is {'better' if better else 'worse'}."


def over_rounds(rows: Sequence[Mapping[str, Any]], part: str, site: str) -> list[float | None]:
    """The others' mean in every round, over the hospitals that have a value in all of them; [] where these are too few.

    With other hospitals in one round than in the next the difference would tell of a single one.

    Args:
        rows: of the rounds.
        part: "metric" or another mapping of a row by site.
        site: whose page it is.
    """
    each = [set(finite(row[part])) - {site} for row in rows]
    always = sorted(set.intersection(*each)) if each else []
    if not enough(len(always)):
        return []
    return [_mean([row[part][name] for name in always]) for row in rows]


def _mean(values: Sequence[float]) -> float | None:
    found = mean({str(place): value for place, value in enumerate(values)})
    return None if found is None else round(found, DIGITS)


def _part(own: float, others: Sequence[float]) -> str:
    """By the share of the others that lie below, ties counting half."""
    below = sum((value < own) + (value == own) / 2 for value in others)
    return PARTS[min(2, int(3 * below / len(others)))]
