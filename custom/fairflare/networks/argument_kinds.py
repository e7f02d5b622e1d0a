# SPDX-License-Identifier: Apache-2.0
"""Kinds of values that an argument may be: plain numbers within bounds, names from a list, short lists of these."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Kind:
    """What an argument may be: in words, and as the function that reads it, which raises ValueError."""

    expected: str
    read: Callable[[Any], Any]


def whole(least: int, most: int) -> Kind:
    """A whole number from ``least`` to ``most``."""
    return Kind(
        f"a whole number from {least} to {most}", lambda v: _if(type(v) is int and least <= v <= most, lambda: v)
    )


def number(least: float, most: float) -> Kind:
    """A finite number from ``least`` to ``most``."""

    def read(value: Any) -> Any:
        return _if(type(value) in (int, float) and least <= value <= most and math.isfinite(value), lambda: value)

    return Kind(f"a number from {least:g} to {most:g}", read)


def one_of(*values: Any) -> Kind:
    """One of ``values``; True is not 1."""

    def read(value: Any) -> Any:
        return _if(any(type(value) is type(v) and value == v for v in values), lambda: value)

    return Kind(f"one of {', '.join(map(repr, values))}", read)


def many(each: Kind, most: int, least: int = 1) -> Kind:
    """A list of ``least`` to ``most`` values of one kind, as a tuple."""

    def read(value: Any) -> Any:
        return _if(isinstance(value, list) and least <= len(value) <= most, lambda: tuple(map(each.read, value)))

    return Kind(f"a list of {least} to {most}, each {each.expected}", read)


def either(*kinds: Kind) -> Kind:
    """The first of ``kinds`` that fits."""

    def read(value: Any) -> Any:
        for kind in kinds:
            try:
                return kind.read(value)
            except ValueError:
                continue
        raise ValueError

    return Kind(" or ".join(kind.expected for kind in kinds), read)


def named(**known: Mapping[str, Kind]) -> Kind:
    """A layer's name in any case, alone or as [name, {argument: value}] with the arguments of ``known``."""

    def read(value: Any) -> Any:
        name, given = value if isinstance(value, list) and len(value) == 2 else (value, {})
        kinds = known.get(name.lower()) if isinstance(name, str) else None
        if kinds is None or not isinstance(given, dict) or not set(given) <= set(kinds):
            raise ValueError
        return (name, {key: kinds[key].read(v) for key, v in given.items()}) if given else name

    keys = sorted({key for kinds in known.values() for key in kinds})
    return Kind(f"one of {', '.join(known)}, or [name, {{...}}] with {', '.join(keys)}", read)


def _if(fits: bool, value: Callable[[], Any]) -> Any:
    if not fits:
        raise ValueError
    return value()
