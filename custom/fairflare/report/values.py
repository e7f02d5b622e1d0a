# SPDX-License-Identifier: Apache-2.0
"""Numbers, metrics and words as reports write them, and the templates: one file per page, with no script in it.

Everything that comes from sites, plugins or a run's files is untrusted text and is escaped by Jinja; only the figures,
which this package serialises itself, go in as markup.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairflare.core.metric import named
from fairflare.core.validation import in_order as in_order
from fairflare.core.validation import natural as natural

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

MISSING = "\N{EN DASH}"


def number(value: Any) -> float | None:
    """``value`` as a finite float; None for anything else (missing, text, truth values, NaN, infinity)."""
    if isinstance(value, (bool, str)) or value is None:
        return None
    try:
        result = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return result if math.isfinite(result) else None


def json_value(value: Any) -> Any:
    """``value`` as strict JSON holds it: text keys, lists for tuples and sets, null for NaN and infinity."""
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(json_value(item) for item in value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return number(value)


def text(value: Any, digits: int = 3, sign: str = "") -> str:
    """A number with ``digits`` decimals, and an en dash where there is none."""
    found = number(value)
    return MISSING if found is None else f"{found:{sign}.{digits}f}".replace("-", "\N{MINUS SIGN}")


def less(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def likely(value: float) -> str:
    """A probability with two decimals, and none that reads as certainty: "< 0.01", "> 0.99"."""
    return "< 0.01" if value < 0.005 else "> 0.99" if value >= 0.995 else text(value, 2)


def digits(values: Iterable[float | None]) -> int:
    """Decimals with which the largest of ``values`` shows about three figures, 0 to 6."""
    largest = max((abs(value) for value in values if value is not None), default=0.0)
    if largest == 0 or 0.1 <= largest < 10:
        return 3
    return min(6, max(0, 2 - math.floor(math.log10(largest))))


def signed(value: Any, digits: int = 3) -> str:
    """A difference with its sign: "+0.012"."""
    return text(0.0 if value == 0 else value, digits, "+")


def with_sd(found: Mapping[str, Any]) -> str:
    """ "0.812 ± 0.010": a mean and the standard deviation over seeds (ddof 1), where it has one."""
    return str(Estimate.of({**found, "low": None}, sd=True))


def ends(found: Mapping[str, Any], digits: int = 3) -> str:
    return "" if found["low"] is None else f"{text(found['low'], digits)} to {text(found['high'], digits)}"


def with_interval(found: Mapping[str, Any], of: str = "mean") -> str:
    """ "+0.012 [-0.003, +0.027]": a difference, which has the key ``of``, and its interval, where it has one."""
    return str(Estimate.of(found, of, signed=True))


@dataclass(frozen=True)
class Estimate:
    """A number with the ends of its interval, or its standard deviation, as far as there are any; it prints itself.

    Args:
        sd: over what the caption says, and n: how many values it is of.
        signed: whether it is a difference, which is written with its sign.
    """

    mean: float | None
    low: float | None = None
    high: float | None = None
    sd: float | None = None
    n: int | None = None
    signed: bool = False
    digits: int = 3

    @classmethod
    def of(cls, found: Any, of: str = "mean", sd: bool = False, **form: Any) -> Estimate:
        """Of a number, None, or a mapping with the keys ``of``, "low", "high", "n" and, if ``sd`` is wanted, "sd"."""
        if isinstance(found, Estimate):
            return found
        if not isinstance(found, Mapping):
            return cls(number(found), **form)
        mean, low, high, spread = (number(found.get(key)) for key in (of, "low", "high", "sd"))
        return cls(mean, low, high, spread if sd else None, found.get("n"), **form)

    def written(self, value: float | None) -> str:
        """``value`` as the estimate itself is written."""
        return signed(value, self.digits) if self.signed else text(value, self.digits)

    @property
    def value(self) -> str:
        return self.written(self.mean) + (
            f" \N{PLUS-MINUS SIGN} {text(self.sd, self.digits)}" if self.sd is not None else ""
        )

    def ends(self, between: str = " to ") -> str:
        """The interval, or "" where there is none, or a standard deviation stands in its place."""
        ends = (self.low, self.high)
        return "" if None in (self.mean, *ends) or self.sd is not None else between.join(map(self.written, ends))

    def __str__(self) -> str:
        return self.value + (f" [{self.ends(', ')}]" if self.ends() else "")


def size(n_bytes: int) -> str:
    """ "512 B", "12.6 kB", "1.2 GB": bytes in steps of 1000."""
    value = float(n_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def answer(verdict: str | None) -> str:
    """A verdict as people read it."""
    return "too few patients to tell" if verdict == "cannot be told" else verdict or "no answer"


def plural(count: int, one: str, many: str | None = None) -> str:
    """ "1 site", "2 sites"."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def listing(items: Iterable[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    names = list(items)
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def stop(sentence: str) -> str:
    return sentence.rstrip(". ") + "."


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def moment(time: str | None) -> str:
    """An ISO 8601 UTC time to the minute, for people: "2026-11-21 10:05 UTC"."""
    return f"{time[:10]} {time[11:16]} UTC" if time and len(time) >= 16 else "time not recorded"


Json = Mapping[str, Any]


def label(metric: str, found: Json) -> str:
    """A metric's name in words.

    ``found``: a summary or a comparison, whose "metrics" hold name -> label, meaning, chance, higher_is_better.
    """
    return str(_told_of(metric, found).get("label") or named(metric).label)


def meaning(metric: str, found: Json) -> str:
    """What a metric's value means, and what guessing gets where that is known; "" if unknown."""
    text, guessing = str(_told_of(metric, found).get("meaning") or ""), chance(metric, found)
    return text if guessing is None else f"{text}, {guessing:.2g} is guessing"


def chance(metric: str, found: Json) -> float | None:
    return number(_told_of(metric, found).get("chance"))


def higher_is_better(metric: str, found: Json) -> bool:
    said = _told_of(metric, found).get("higher_is_better")
    return named(metric).higher_is_better if said is None else bool(said)


def _told_of(metric: str, found: Json) -> Json:
    return (found.get("metrics") or {}).get(metric) or {}


def rendered(name: str, filters: Mapping[str, Callable[..., Any]] | None = None, **values: Any) -> str:
    """The template ``name`` with ``values``; the same values give the same bytes.

    ``filters`` are functions of a module, not made for the page: each set of them compiles its templates once.
    """
    return environment(tuple((filters or {}).items())).get_template(f"{name}.html.j2").render(**values)


def rendered_from(folder: Path, name: str, **values: Any) -> str:
    """``rendered`` of a template that another package has in ``folder``, with the filter ``label``."""
    return environment((("label", label),), folder).get_template(f"{name}.html.j2").render(**values)


def drawn(figures: Iterable[str]) -> list[Markup]:
    """SVG elements of ``report.svg`` as markup, without the empty ones; no other markup is let through."""
    from markupsafe import Markup

    return [Markup(svg) for svg in figures if svg]


@cache
def environment(filters: tuple[tuple[str, Callable[..., Any]], ...] = (), folder: Path | None = None) -> Environment:
    """Templates of ``folder`` and of this one, with the filters that write values; unknown names are errors."""
    from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    blocks: dict[str, Any] = dict.fromkeys(("trim_blocks", "lstrip_blocks", "keep_trailing_newline"), True)

    class Compiled(FileSystemBytecodeCache):
        """Compiled templates in a folder that is this user's alone, where that has room."""

        def dump_bytecode(self, bucket: Any) -> None:
            with contextlib.suppress(OSError):
                super().dump_bytecode(bucket)

    with contextlib.suppress(RuntimeError, OSError):  # no such folder
        blocks["bytecode_cache"] = Compiled()
    loader = FileSystemLoader([*([folder] if folder else []), Path(__file__).parent])
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, **blocks)
    code: Callable[[str], Markup] = Markup("<code>{}</code>").format
    made.filters |= {"num": text, "interval": ends, "code": code}
    made.filters |= {
        one.__name__: one for one in (answer, signed, likely, plural, listing, stop, capital, moment, size)
    } | dict(filters)
    return made


CODES = ("1", "yes", "true", "y", "t", "ja", "j", "oui", "o", "si", "sí", "sim", "s", "да", "positive", "present")
"""Names of a class, in lower case, that say no more than that the outcome came true."""
NOT = ("0", "no", "false", "n", "f", "nein", "non", "nej", "não", "nao", "нет", "negative", "absent")


def class_words(name: str, summary: Json) -> str:
    """A class as a reader knows it: "died" for the class "1" of a table whose outcome is called so, "not died" for "0".

    Of other numbers "died = 2"; other names stay as they are.
    """
    outcome = str((summary["task"].get("options") or {}).get("label") or "")
    if not outcome or not {str(one).lower() for one in summary["task"].get("classes") or ()} <= {*CODES, *NOT}:
        return f"{outcome} = {name}" if outcome and name.isdecimal() else name
    return outcome if name.lower() in CODES else f"not {outcome}" if name.lower() in NOT else name
