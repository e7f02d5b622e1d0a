# SPDX-License-Identifier: Apache-2.0
"""What every check of what server and sites send each other shares, and a site's look at what it was sent."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from fairflare.core import schema
from fairflare.core.types import Number

T = TypeVar("T")
LONGEST = 64
TIMES = 10
"""So many times the training examples that it declared a site may have calibration or test cases."""


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
    answers: Sequence[schema.Answer], check: Callable[[schema.Answer], T], round: int | None
) -> tuple[dict[str, T], dict[str, Rejection], list[str]]:
    """Site -> what ``check`` made of its first good answer; the first rejection per site; sites that went on.

    ``round``: the number of the round that answers must be to; None: any.
    """
    found: dict[str, T] = {}
    refused: dict[str, Rejection] = {}
    repeated: list[str] = []
    for answer in answers:
        if answer.site in found:
            repeated.append(answer.site)
            continue
        try:
            if answer.error:
                raise Refused("site_error", str(answer.error))
            if round is not None and (type(answer.round) is not int or answer.round != round):
                raise Refused("stale", f"expected an answer to round {round}, got {answer.round!r}")
            found[answer.site] = check(answer)
        except Refused as error:
            refused.setdefault(answer.site, Rejection(answer.site, error.code, error.detail))
        except Exception as error:  # an answer may hold anything: whatever breaks a check is no answer
            refused.setdefault(answer.site, Rejection(answer.site, "malformed", type(error).__name__))
    return found, refused, repeated


def left_out(refused: Mapping[str, Rejection], found: Collection[str]) -> list[Rejection]:
    """The rejections of sites of which nothing was accepted, sorted by site."""
    return [refused[site] for site in sorted(refused) if site not in found]


def silent(asked: Iterable[str], answers: Sequence[schema.Answer]) -> list[Rejection]:
    heard = {a.site for a in answers}
    return [Rejection(s, "no_answer", "no answer in time") for s in sorted(asked) if s not in heard]


def is_number(value: Any) -> bool:
    """A real number (numpy's included) that fits a float; not a bool and not text."""
    if type(value) is float:  # nearly always, and the general way takes ten times as long
        return True
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        float(value)
    except (OverflowError, ValueError, TypeError):
        return False
    return True


def one_line(text: str) -> str:
    """Printable, without control characters, and short: what sites send ends up in logs and terminals."""
    clean = text[: 4 * LONGEST]
    if not clean.isprintable():
        clean = "".join(c if c.isprintable() else " " for c in clean)
    return clean if len(clean) <= 2 * LONGEST else clean[: 2 * LONGEST - 1] + "…"


def short(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def checked_scalars(scalars: Any, specs: Sequence[Number], wanted: Sequence[str] = ()) -> dict[str, float]:
    """The numbers among ``specs`` that came, all within their ranges; raises Refused for others, or one ``wanted``."""
    scalars = scalars if isinstance(scalars, Mapping) else {}
    known = {s.name: s for s in specs}
    for name in wanted:
        if name not in scalars:
            raise Refused("scalar_missing", f"scalar {name!r}: expected a number, got none")
    extra = sorted(map(str, set(scalars) - set(known)))
    if extra:
        raise Refused("scalar_unknown", f"scalar {short(extra[0])!r}: not one that this method's probes report")
    return {name: _in_range(known[name], value) for name, value in sorted(scalars.items())}


def _in_range(spec: Number, value: Any) -> float:
    if not is_number(value):
        raise Refused("scalar_type", f"scalar {spec.name!r}: expected a number, got {type(value).__name__}")
    if not math.isfinite(value):
        raise Refused("scalar_nonfinite", f"scalar {spec.name!r}: expected a finite number, got {value}")
    if not spec.low <= value <= spec.high:
        raise Refused("scalar_range", f"scalar {spec.name!r}: expected {spec.low:g} to {spec.high:g}, got {value:g}")
    return float(value)


NO_CHOICE = "none"
BY = (NO_CHOICE, "mean", "worst", "trade-off")
"""What the choice of a run's best model goes by, see ``engine.best``."""
RATIO = 100.0
"""Default of the run key ``max_norm_ratio``. Honest sites stayed below 7 times the others, see docs/gate.md."""


def check_received(instruction: schema.Instruction, tensors: Mapping[str, schema.Slot]) -> None:
    """Raise ValueError unless orders are finite numbers, tensors those that the site's parts declare, counts whole.

    Args:
        instruction: as it arrived; the model is held against the network's entries when it is loaded.
        tensors: "name/entry" -> slot of what the parts receive. A rule may send none of them, or not yet.
    """
    for name, check in _received():
        check(getattr(instruction, name), tensors)


def _check_orders(orders: Any, tensors: Mapping[str, schema.Slot]) -> None:
    named = isinstance(orders, Mapping) and all(isinstance(name, str) for name in orders)
    if not named or not all(is_number(value) and abs(value) < float("inf") for value in orders.values()):
        raise ValueError("orders: expected finite numbers by name")


def _check_tensors(received: Any, tensors: Mapping[str, schema.Slot]) -> None:
    wrong = schema.wrong_tensors(received, tensors)
    if wrong and wrong.code != "tensor_missing":
        raise ValueError(f"received tensor {wrong.name or 'names'}: {wrong.why}")


def _check_count(value: Any, tensors: Mapping[str, schema.Slot]) -> None:
    if value is not None and (type(value) is not int or value < 0):
        raise ValueError("counted: expected a number from 0 on")


CHECKS: Mapping[str, Callable[[Any, Mapping[str, schema.Slot]], None]] = {
    "orders": _check_orders,
    "tensors": _check_tensors,
    "count": _check_count,
}


@cache
def _received() -> list[tuple[str, Callable[[Any, Mapping[str, schema.Slot]], None]]]:
    """Field of an ``Instruction`` -> its check, where it has one."""
    found = ((name, CHECKS.get(str(spec.kind))) for name, spec in schema.instruction_fields().items())
    return [(name, check) for name, check in found if check is not None]
