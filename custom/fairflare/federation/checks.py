# SPDX-License-Identifier: Apache-2.0
"""What every check of a site's answer shares: how it is refused, tagged, counted and quoted."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fairflare.federation.messages import Answer

T = TypeVar("T")
MOST_EXAMPLES = 2**40
LONGEST = 64
MOST_METRICS = 64
LARGEST_METRIC = 1e12


@dataclass(frozen=True)
class Rejection:
    """Why a site's answer does not count in this round."""

    site: str
    code: str
    detail: str


class Refused(Exception):
    """An answer that does not count: a code and one line."""

    def __init__(self, code: str, detail: str) -> None:
        self.code, self.detail = code, one_line(detail)


def first_good(
    answers: Sequence[Answer], check: Callable[[Answer], T]
) -> tuple[dict[str, T], dict[str, Rejection], list[str]]:
    """Site -> what ``check`` made of its first good answer; the first rejection per site; sites that went on."""
    found: dict[str, T] = {}
    refused: dict[str, Rejection] = {}
    repeated: list[str] = []
    for answer in answers:
        if answer.site in found:
            repeated.append(answer.site)
            continue
        try:
            found[answer.site] = check(answer)
        except Refused as error:
            refused.setdefault(answer.site, Rejection(answer.site, error.code, error.detail))
        except Exception as error:  # an answer may hold anything: whatever breaks a check is no answer
            refused.setdefault(answer.site, Rejection(answer.site, "malformed", type(error).__name__))
    return found, refused, repeated


def left_out(refused: Mapping[str, Rejection], found: Mapping[str, Any]) -> list[Rejection]:
    """The rejections of sites of which nothing was accepted, sorted by site."""
    return [refused[site] for site in sorted(refused) if site not in found]


def silent(asked: Iterable[str], answers: Sequence[Answer]) -> list[Rejection]:
    """The rejections of sites that were asked and of which nothing came back."""
    heard = {a.site for a in answers}
    return [Rejection(s, "no_answer", "no answer in time") for s in sorted(asked) if s not in heard]


def materialized(value: Any) -> Any:
    """The tensor itself: FLARE keeps large ones on disk until someone looks at them."""
    return value.materialize() if callable(getattr(value, "materialize", None)) else value


def check_tag(answer: Answer, round: int | None) -> None:
    """Raise Refused for a site's error or an answer to another round."""
    if answer.error:
        raise Refused("site_error", str(answer.error))
    if round is not None and (type(answer.round) is not int or answer.round != round):
        raise Refused("stale", f"expected an answer to round {round}, got {answer.round!r}")


def checked_count(value: Any, declared: int | None) -> int:
    """n_k as a whole number above 0 and at most ``declared``; raises Refused."""
    if not is_number(value) or not math.isfinite(value) or value != int(value) or not 0 < value <= MOST_EXAMPLES:
        raise Refused("n_examples", f"n_examples: expected a whole number above 0, got {short(repr(value))}")
    if declared is not None and value > declared:
        raise Refused("count_mismatch", f"n_examples: expected at most the declared {declared}, got {int(value)}")
    return int(value)


def checked_metrics(metrics: Any) -> dict[str, float]:
    """The usable numbers with short names among ``metrics``; they inform people, so a bad one is just dropped."""
    if not isinstance(metrics, Mapping):
        return {}
    kept = {one_line(str(name)): value for name, value in metrics.items() if len(str(name)) <= LONGEST}
    numbers = {name: float(kept[name]) for name in sorted(kept) if is_number(kept[name])}
    usable = {name: value for name, value in numbers.items() if abs(value) <= LARGEST_METRIC}
    return dict(list(usable.items())[:MOST_METRICS])


def is_number(value: Any) -> bool:
    """A real number (numpy's included) that fits a float; not a bool and not text."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        float(value)
    except (OverflowError, ValueError, TypeError):
        return False
    return True


def one_line(text: str) -> str:
    """Printable, without control characters, and short: what sites send ends up in logs and terminals."""
    clean = "".join(c if c.isprintable() else " " for c in text[: 4 * LONGEST])
    return clean if len(clean) <= 2 * LONGEST else clean[: 2 * LONGEST - 1] + "…"


def short(text: str) -> str:
    """At most 64 characters of ``text``."""
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
