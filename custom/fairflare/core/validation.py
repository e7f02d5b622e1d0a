# SPDX-License-Identifier: Apache-2.0
"""One check for every value that a job, a file or a command line brings: its type, its range, its length.

A dataclass declares what its fields take: ``rounds: Annotated[int, Range(1, 10**6)]``. What declares nothing has the
bounds below, so that no number is without a smallest and a largest value and no text without a length. Nothing is
allocated, imported or opened here, and what is refused is refused before anything is built from it.
At the end: names in messages, in their order ("site-2" before "site-10"), the first few of many, and what a wrong one
may mean.
"""

from __future__ import annotations

import csv
import dataclasses
import difflib
import io
import math
import re
import shlex
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any

from fairflare.core.errors import UserError

LARGEST_INT = 10**9
LARGEST_FLOAT = 1e12
LONGEST_TEXT = 4096
MOST_ENTRIES = 10_000
"""Bounds of a number (both ways), a text and a list or mapping that declare none."""
MOST_BYTES = 4 * 2**20
MOST_VALUES = 100_000
DEEPEST = 8
"""Bounds of a whole JSON document."""
LONGEST_NUMBER = 64
"""Characters of a number given as text."""

FEDERATION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""What a federation's id may look like; it names a folder."""
CLIENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""Names that FLARE gives to clients, but none that begins like an option; each names a file."""
JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Names of FLARE jobs; each names a folder."""
SITE = re.compile(r"[^\W_][\w .-]{0,59}")
"""Names of a task's own sites; each may name a file, so no separator, no leading dot, and at most 240 bytes."""
SHA256 = re.compile(r"[0-9a-f]{64}")
NUMERAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
"""A text that is a number as a spreadsheet reads it."""
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
"""Control characters but tab and line ends, and halves of surrogate pairs: no text of ours holds them."""


@dataclasses.dataclass(frozen=True)
class Range:
    """Smallest and largest value of a number, both allowed."""

    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Text:
    """Length of a text in characters, and what it looks like in ``words``."""

    most: int = LONGEST_TEXT
    pattern: str = ""
    words: str = ""


@dataclasses.dataclass(frozen=True)
class Entries:
    """The most entries of a list or mapping, and what both are together in ``words``."""

    most: int = MOST_ENTRIES
    words: str = ""


Sites = Annotated[int, Range(1, 10_000)]
Images = Annotated[int, Range(0, 100_000)]
Few = Annotated[int, Range(0, 65_536)]
Seed = Annotated[int, Range(0, 2**53)]
Names = Annotated[str, Text(most=2**20)]
"""A list of names, separated by commas."""


def shown(value: Any) -> str:
    """``value`` for a message: one short line, whatever it is."""
    text = repr(value[:100] if isinstance(value, (str, bytes, list, tuple)) else value) if _is_short(value) else "..."
    return text if len(text) <= 80 else f"{text[:80]}..."


def _is_short(value: Any) -> bool:
    """Whether ``repr`` is cheap and cannot fail: Python refuses to print numbers of more than 4,300 digits."""
    return not (isinstance(value, int) and value.bit_length() > 14_000)


def as_cell(value: Any) -> Any:
    """``value`` for a CSV file: a spreadsheet takes a text that begins so for a formula, and shows an apostrophe's."""
    begins = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if begins and not NUMERAL.fullmatch(value) else value


def check_plain(name: str, content: Any) -> None:
    """Raise UserError unless ``content`` is JSON of a bounded size: depth, values, bytes; no NaN, no odd characters."""
    size, values, todo = 0, 0, [(content, 1)]
    while todo:
        value, depth = todo.pop()
        values += 1
        if isinstance(value, (Mapping, list, tuple)):
            expected(name, depth <= DEEPEST, f"at most {DEEPEST} levels", "more")
            expected(name, len(value) + values <= MOST_VALUES, f"at most {MOST_VALUES} values", "more")
            inside = [*value, *value.values()] if isinstance(value, Mapping) else value
            if isinstance(value, Mapping):
                strange = next((key for key in value if not isinstance(key, str)), "")
                expected(name, strange == "", "text as keys", strange)
            todo.extend((one, depth + 1) for one in inside)
        elif isinstance(value, str):
            size += len(value)
            expected(name, size <= MOST_BYTES, f"at most {MOST_BYTES} characters", "more")
            expected(name, not CONTROL.search(value), "text without control characters", value)
        elif isinstance(value, float):
            expected(name, math.isfinite(value), "finite numbers", value)
        elif not isinstance(value, bool) and isinstance(value, int):
            expected(name, value.bit_length() <= 64, "numbers of at most 64 bits", "a larger one")
        else:
            expected(name, value is None or isinstance(value, bool), "JSON values", type(value).__name__)


def expected(key: str, holds: bool, what: str, got: Any) -> None:
    """Raise UserError "key: expected ..., got ..." unless ``holds``; ``got`` is cut to a line."""
    if not holds:
        raise UserError(f"{key}: expected {what}, got {shown(got)}")


def misfit(value: Any, shape: Any, name: str = "") -> str:
    """The first name under which ``value``, read from a file, lacks what ``shape`` asks for; empty when there is none.

    A shape is a type or several; [shape] a list of such values, {str: shape} a mapping of them by text; {name: shape,
    ...} what it holds at least. The whole value has the name ``name``.
    """
    if isinstance(shape, list):
        return "" if isinstance(value, list) and not any(misfit(item, shape[0], name) for item in value) else name
    if not isinstance(shape, dict):
        return "" if isinstance(value, shape) and isinstance(value, bool) == (shape is bool) else name
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        return name
    wanted = {key: shape[str] for key in value} if str in shape else shape
    return next((wrong for key in wanted if (wrong := misfit(value.get(key), wanted[key], key[:40] or "(empty)"))), "")


@cache
def hints(cls: type) -> dict[str, Any]:
    """Field -> its annotation with bounds."""
    found = typing.get_type_hints(cls, include_extras=True)
    return {field.name: found[field.name] for field in dataclasses.fields(cls)}


def exact(cls: type, name: str, value: Any, label: str = "") -> Any:
    """The JSON ``value`` as field ``name`` of ``cls`` declares it; a whole number becomes a float where one is meant.

    UserError names the key (as ``label`` where there is one), what was expected and what came.
    """
    return _exact(label or name, value, hints(cls)[name])


def parsed(cls: type, name: str, value: Any, label: str = "") -> Any:
    """``value``, which may be a command line's text, as field ``name`` of ``cls`` declares it; see ``exact``."""
    hint = hints(cls)[name]
    return _exact(label or name, _from_text(label or name, value, hint), hint)


def supported(hint: Any) -> bool:
    """Whether values of this annotation can be checked."""
    base, _ = _bare(hint)
    origin, inside = typing.get_origin(base), typing.get_args(base)
    if origin in (typing.Union, types.UnionType):
        return all(one is type(None) or supported(one) for one in inside)
    if origin in (list, dict):
        return (origin is list or inside[0] is str) and supported(inside[-1])
    return origin is typing.Literal or base in (bool, int, float, str, Any)


def _bare(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """The type without its bounds, and these."""
    if typing.get_origin(hint) is Annotated:
        base, *bounds = typing.get_args(hint)
        return base, tuple(bounds)
    return hint, ()


def _bound(kind: type, bounds: tuple[Any, ...], default: Any) -> Any:
    return next((one for one in bounds if isinstance(one, kind)), default)


def _union(base: Any) -> tuple[Any, tuple[str, ...]]:
    """T of ``T | None`` and of ``T | Literal[...]``, and the latter's words; None for any other type."""
    inside = typing.get_args(base) if typing.get_origin(base) in (typing.Union, types.UnionType) else ()
    words = next((typing.get_args(one) for one in inside if typing.get_origin(one) is typing.Literal), ())
    kinds = (o for o in inside if o is not type(None) and typing.get_origin(o) is not typing.Literal)
    return next(kinds, None), words


def _exact(key: str, value: Any, hint: Any) -> Any:
    base, bounds = _bare(hint)
    inner, words = _union(base)
    if inner is not None:
        if words and isinstance(value, str):
            expected(key, value in words, f"{', '.join(words)} or a number", value)
            return value
        return None if value is None and not words else _exact(key, value, inner)
    origin = typing.get_origin(base)
    if origin is typing.Literal:
        allowed = typing.get_args(base)
        fits = any(type(value) is type(one) and value == one for one in allowed)
        expected(key, fits, f"one of {', '.join(map(str, allowed))}", value)
    elif base is bool:
        expected(key, type(value) is bool, "true or false", value)
    elif base in (int, float):
        return _number(key, value, base, _bound(Range, bounds, None))
    elif base is str:
        _check_text(key, value, _bound(Text, bounds, Text()))
    elif origin in (list, dict):
        limits, inside = _bound(Entries, bounds, Entries()), typing.get_args(base)[-1]
        try:
            return _collection(key, value, origin, inside, limits)
        except UserError:
            expected(key, not limits.words, limits.words, value)
            raise
    elif base is Any:
        check_plain(key, value)
    else:
        raise UserError(f"{key}: is of a kind that a configuration cannot set")
    return value


def _number(key: str, value: Any, kind: type, limits: Range | None) -> Any:
    largest = LARGEST_INT if kind is int else LARGEST_FLOAT
    limits = limits or Range(-largest, largest)
    a_number = "a whole number" if kind is int else "a number"
    proper = type(value) is int or (kind is float and type(value) is float and math.isfinite(value))
    expected(key, proper, a_number, value)
    fits = limits.low <= value <= limits.high
    expected(key, fits, f"{a_number} from {_plainly(limits.low)} to {_plainly(limits.high)}", value)
    return kind(value)


def _plainly(number: float) -> str:
    return f"{number:.0f}" if float(number).is_integer() and abs(number) < 1e16 else f"{number:g}"


def _check_text(key: str, value: Any, limits: Text) -> None:
    expected(key, isinstance(value, str), "text", value)
    expected(key, len(value) <= limits.most, f"at most {limits.most} characters", f"{len(value)} of them")
    expected(key, not CONTROL.search(value), "text without control characters", value)
    expected(key, not limits.pattern or bool(re.fullmatch(limits.pattern, value)), limits.words, value)


def _collection(key: str, value: Any, kind: type, inner: Any, limits: Entries) -> Any:
    expected(key, isinstance(value, kind), "a list" if kind is list else "keys and values", value)
    expected(key, len(value) <= limits.most, f"at most {limits.most} entries", f"{len(value)} of them")
    if kind is list:
        return [_exact(key, one, inner) for one in value]
    for name in value:
        _check_text(key, name, Text(most=256))
    return {name: _exact(f"{key}: {name}", one, inner) for name, one in value.items()}


def _from_text(key: str, value: Any, hint: Any) -> Any:
    """A command line's text as the JSON value that it stands for; other values as they are, but 2.0 and 1 for 2 and
    true, which Python's callers may write."""
    base, _ = _bare(hint)
    inner, words = _union(base)
    if words:
        return value if value in words else _from_text(key, value, inner)
    if inner is not None:
        return None if value is None or value == "none" else _from_text(key, value, inner)
    if typing.get_origin(base) is typing.Literal:
        return next((one for one in typing.get_args(base) if _is_short(value) and str(one) == str(value)), value)
    if base is bool and not isinstance(value, bool) and isinstance(value, (str, int)):
        known = {"true": True, "false": False, "1": True, "0": False}
        return known.get(str(value).lower() if _is_short(value) else "", value)
    if base in (int, float) and isinstance(value, str):
        return _number_of(value, base)
    if base is int and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _number_of(text: str, kind: type) -> Any:
    """The number that ``text`` is; the text itself where it is none, for the message."""
    if len(text) > LONGEST_NUMBER or not text.isascii() or "_" in text:
        return text
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if kind is int and number.is_integer() else number


def within(part: Any, **intervals: str) -> None:
    """Raise ValueError unless the parameters of ``part`` lie in intervals, "[0, 1)" or "(0, inf)"; None always does."""
    for name, text in intervals.items():
        value, (low, high) = getattr(part, name), map(float, text[1:-1].split(","))
        above = value is None or (value >= low if text[0] == "[" else value > low)
        if not above or not (value is None or (value <= high if text[-1] == "]" else value < high)):
            words = f"finite and {'>=' if text[0] == '[' else '>'} 0" if text[1:] == "0, inf)" else f"in {text}"
            raise ValueError(f"{name} must be {words}, got {value}")


ALIKE = 0.7
"""How alike two names are, 0 to 1 as difflib measures, from which on one is offered for the other."""
MOST_OFFERED = 3
"""Names that are offered."""
OTHER_WORDS: Mapping[str, str] = {
    "learning_rate": "lr",
    "num_rounds": "rounds",
    "n_rounds": "rounds",
    "local_epochs": "epochs",
    "num_epochs": "epochs",
    "bs": "batch_size",
    "batchsize": "batch_size",
    "wd": "weight_decay",
    "optim": "optimizer",
    "temperature": "tau",
    "n_sites": "sites",
    "num_clients": "sites",
}
"""What other packages call it -> what it is called here."""


def unlisted(what: str, name: Any, known: Iterable[str], instead: str = "") -> str:
    """The message for ``name``, which is not one of the ``known``: what is close to it, or else all that there are.

    Args:
        what: the kind of name, e.g. "key" or "task:"; stands between "unknown" and the name.
        name: as it was given, of whatever type.
        known: the names that exist, at least one; listed in this order where none is close.
        instead: what is said in place of a long list.

    Returns:
        "unknown key 'roundz'; did you mean rounds?" or "unknown key 'x'; known: lr, rounds".
    """
    names = list(known)
    begin = f"unknown {what} {shown(name)}"
    if found := close(name, names):
        return f"{begin}; did you mean {' or '.join(found)}?"
    return f"{begin}; {instead or 'known: ' + ', '.join(names)}"


def close(name: Any, known: Iterable[str]) -> list[str]:
    """Those of the ``known`` names that ``name`` may stand for, at most ``MOST_OFFERED``, the closest first."""
    if not isinstance(name, str) or not 2 <= len(name) <= 100:
        return []
    names = list(known)
    owner, dot, own = name.lower().rpartition(".")
    usual = f"{owner}{dot}{OTHER_WORDS.get(own, own)}"
    if usual in names:
        return [usual]
    lower = {one.lower(): one for one in reversed(names)}
    found = [lower[one] for one in difflib.get_close_matches(name.lower(), lower, n=MOST_OFFERED, cutoff=ALIKE)]
    return found or sorted(one for one in names if len(own) > 2 and one.rpartition(".")[2] == own)[:MOST_OFFERED]


def natural(name: str) -> list[tuple[int, int, str]]:
    """Sort key under which "site-2" comes before "site-10"."""
    parts = re.split(r"([0-9]+)", name)
    return [(0, int(part), "") if part.isdigit() and part.isascii() else (1, 0, part) for part in parts]


def in_order(names: Iterable[str]) -> list[str]:
    """Each name once, in natural order; names that differ only in leading zeros keep a fixed order too."""
    return sorted(set(names), key=lambda name: (natural(name), name))


def some(names: Sequence[str], most: int = 5) -> str:
    """The first ``most`` names, and how many more there are: "a, b and 3 more"."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


LIST_FLAGS = frozenset(("classes", "groups", "categories", "leave-out", "keep", "without", "missing", "event-value"))
"""Of ``fairflare data init``, which take several values as a line of CSV."""


def flag(name: str, *values: str) -> str:
    """A flag with its value as it can be pasted into a shell: "--label 'vital status'"."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(values)
    return f"--{name} {shlex.quote(line.getvalue() if name in LIST_FLAGS else values[0])}"
