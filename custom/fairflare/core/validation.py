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
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from fairflare.core.errors import UserError

T = TypeVar("T")
LARGEST_INT = 10**9
LARGEST_FLOAT = 1e12
LONGEST_TEXT = 4096
MOST_ENTRIES = 10_000
"""Bounds of a number (both ways), a text and a list or mapping that declare none."""
MOST_BYTES = 4 * 2**20
MOST_VALUES = 100_000
DEEPEST = 8
"""Bounds of a whole JSON document."""

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


def _fits(words: str, holds: Callable[[Any], object], schema: CoreSchema) -> CoreSchema:
    """``schema``, after which a value is refused with ``words`` unless it ``holds``."""

    def check(value: Any) -> Any:
        if not holds(value):
            raise PydanticCustomError("expected", "{words}", {"words": words})
        return value

    return core_schema.no_info_after_validator_function(check, schema)


@dataclasses.dataclass(frozen=True)
class Range:
    """Smallest and largest value of a number, both allowed."""

    low: float
    high: float

    def __get_pydantic_core_schema__(self, kind: type, handler: GetCoreSchemaHandler) -> CoreSchema:
        words = f"{NATIVE[f'{kind.__name__}_type']} from {_plainly(self.low)} to {_plainly(self.high)}"
        return _fits(words, lambda value: self.low <= value <= self.high, handler(kind))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        limits = {"minimum": self.low, "maximum": self.high}
        return handler(schema) | ({} if self in (*USUAL[int], *USUAL[float]) else limits)


@dataclasses.dataclass(frozen=True)
class Text:
    """Length of a text in characters, and what it looks like in ``words``."""

    most: int = LONGEST_TEXT
    pattern: str = ""
    words: str = ""

    def __get_pydantic_core_schema__(self, kind: type, handler: GetCoreSchemaHandler) -> CoreSchema:
        bounded = _fits(f"at most {self.most} characters", lambda value: len(value) <= self.most, handler(kind))
        plain = _fits("text without control characters", lambda value: not CONTROL.search(value), bounded)
        return _fits(self.words, re.compile(self.pattern).fullmatch, plain) if self.pattern else plain

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return handler(schema) | {"maxLength": self.most, "description": self.words}


@dataclasses.dataclass(frozen=True)
class Entries:
    """The most entries of a list or mapping, and what both are together in ``words``."""

    most: int = MOST_ENTRIES
    words: str = ""

    def __get_pydantic_core_schema__(self, kind: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        found = {**handler(kind), "max_length": self.most}
        if not self.words:
            return found
        return core_schema.custom_error_schema(found, "expected", custom_error_message=self.words)


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


NATIVE = {
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), "a number"),
    **dict.fromkeys(("string_type", "string_unicode"), "text"),
    "list_type": "a list",
    "dict_type": "keys and values",
    "too_long": "at most {max_length} entries",
    "literal_error": "one of {expected}",
    "is_instance_of": "a {class}",
}
"""pydantic's kind of error -> what it expected, in this package's words."""


@cache
def adapter(hint: Any, text: str) -> TypeAdapter[Any]:
    """What checks values of this annotation, strictly; TypeError where a configuration cannot set them.

    ``text`` is its ``repr``: two of the same words in another order are equal.
    """
    return TypeAdapter(_bounded(hint), config=STRICT)


STRICT = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid")


def _bounded(hint: Any) -> Any:
    """``hint`` with this module's bounds for every number, text and collection that declares none."""
    base, *marks = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
    origin, inside = typing.get_origin(base) or base, typing.get_args(base)
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(map(_bounded, inside))]  # noqa: UP007  # of a tuple
    if origin is list:
        base = list[_bounded(inside[0])]  # type: ignore[misc]  # made at run time
    elif origin is dict and inside[0] is str:
        base = dict[Annotated[str, Text(256)], _bounded(inside[1])]  # type: ignore[misc]  # likewise
    elif origin not in (*USUAL, bool, type(None), typing.Literal):
        raise TypeError("is of a kind that a configuration cannot set")
    for mark in marks or USUAL.get(origin, ()):
        base = Annotated[base, mark]
    return base


def _plain(value: Any) -> Any:
    check_plain("value", value)
    return value


USUAL: Mapping[Any, tuple[Any, ...]] = {
    int: (Range(-LARGEST_INT, LARGEST_INT),),
    float: (Range(-LARGEST_FLOAT, LARGEST_FLOAT),),
    str: (Text(),),
    list: (Entries(),),
    dict: (Entries(),),
    Any: (AfterValidator(_plain),),
}
"""Type -> the bounds of its values where none are declared."""


def refused(error: ValidationError, key: str = "", known: Sequence[str] = (), value: Any = None) -> UserError:
    """pydantic's ``error`` as the one line of this package: key, what was expected, what came.

    The key is ``key``, or without one that of the field, of those that are ``known``; ``value`` is what came, where
    pydantic has seen its text.
    """
    first, *others = error.errors(include_url=False)
    kind, place = first["type"], [str(part) for part in first["loc"] if isinstance(part, str)]
    if not key:
        key, *place = place or ["value"]
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        return UserError(unlisted("key", key, known))
    if isinstance(cause := first.get("ctx", {}).get("error"), ValueError):
        return UserError(str(cause))
    same = [one for one in others if one["loc"][:-1] == first["loc"][:-1] and one["input"] is first["input"]]
    words = " or ".join(dict.fromkeys(map(_words, (first, *same))))
    inner = f"{key}: {place[0]}" if place and not same else key
    return UserError(f"{inner}: expected {words}, got {shown(first['input'] if value is None else value)}")


def _words(error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    if kind := NATIVE.get(error["type"]):
        listed = str(context.get("expected", "")).replace(" or ", ", ").replace("'", "")
        return kind.format_map({**context, "expected": listed})
    return error["msg"]


def one_line(cls: type[T]) -> type[T]:
    """``cls``, one of pydantic's dataclasses: what a field does not take is a UserError."""
    begin = cls.__init__

    def begin_checked(self: Any, *given: Any, **named: Any) -> None:
        try:
            begin(self, *given, **named)
        except ValidationError as error:
            raise refused(error, known=list(hints(cls))) from None  # type: ignore[arg-type]  # a class is hashable

    setattr(cls, "__init__", begin_checked)  # noqa: B010  # mypy lets no method be assigned
    return cls


def exact(cls: type, name: str, value: Any, label: str = "") -> Any:
    """The JSON ``value`` as field ``name`` of ``cls`` declares it; a whole number becomes a float where one is meant.

    UserError names the key (as ``label`` where there is one), what was expected and what came.
    """
    hint = hints(cls)[name]
    try:
        return adapter(hint, repr(hint)).validate_python(value)
    except ValidationError as error:
        raise refused(error, label or name) from None


def parsed(cls: type, name: str, value: Any, label: str = "") -> Any:
    """``value`` as field ``name`` of ``cls`` declares it, be it a command line's text, or as it would stand there: 2.0
    for 2, 1 for true; see ``exact``."""
    hint = hints(cls)[name]
    if not isinstance(value, (str, int, float)) or not _is_short(value):
        return exact(cls, name, value, label)
    if value == "none" and type(None) in typing.get_args(hint):
        return None
    try:
        found = adapter(hint, repr(hint)).validate_strings(str(value))
    except ValidationError as error:
        raise refused(error, label or name, value=value) from None
    expected(label or name, isinstance(found, str) or "_" not in str(value), "a number without _", value)
    return found


def supported(hint: Any) -> bool:
    """Whether values of this annotation can be checked."""
    try:
        return bool(adapter(hint, repr(hint)))
    except TypeError:
        return False


def _plainly(number: float) -> str:
    return f"{number:.0f}" if float(number).is_integer() and abs(number) < 1e16 else f"{number:g}"


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


LIST_FLAGS = frozenset(
    ("classes", "groups", "categories", "leave-out", "keep", "without", "missing", "event-value", "rename")
)
"""Of ``fairflare data init``, which take several values as a line of CSV."""


def flag(name: str, *values: str) -> str:
    """A flag with its value as it can be pasted into a shell: "--label 'vital status'"."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(values)
    return f"--{name} {shlex.quote(line.getvalue() if name in LIST_FLAGS else values[0])}"
