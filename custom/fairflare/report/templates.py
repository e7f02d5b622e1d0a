# SPDX-License-Identifier: Apache-2.0
"""The HTML templates: one file per page, with no script and no reference to anything outside it.

Everything that comes from sites, plugins or a run's files is untrusted text and is escaped by Jinja; only the figures,
which this package serialises itself, go in as markup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairflare.report.values import capital, ends, likely, moment, plural, signed, size, stop, text

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def rendered(name: str, filters: Mapping[str, Callable[..., Any]] | None = None, **values: Any) -> str:
    """The template ``name`` with ``values``; the same values give the same bytes.

    ``filters`` are functions of a module, not made for the page: each set of them compiles its templates once.
    """
    return environment(tuple((filters or {}).items())).get_template(f"{name}.html.j2").render(**values)


def drawn(figures: Iterable[str]) -> list[Markup]:
    """SVG elements of ``report.svg`` as markup, without the empty ones; no other markup is let through."""
    from markupsafe import Markup

    return [Markup(svg) for svg in figures if svg]


@cache
def environment(filters: tuple[tuple[str, Callable[..., Any]], ...] = ()) -> Environment:
    """Templates of this folder, with the filters that write values; an unknown name in a template is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    blocks: dict[str, Any] = dict.fromkeys(("trim_blocks", "lstrip_blocks", "keep_trailing_newline"), True)
    folder = FileSystemLoader(Path(__file__).parent)
    made = Environment(loader=folder, autoescape=True, undefined=StrictUndefined, **blocks)
    code: Callable[[str], Markup] = Markup("<code>{}</code>").format
    made.filters |= {"num": text, "interval": ends, "code": code}
    made.filters |= {one.__name__: one for one in (signed, likely, plural, stop, capital, moment, size)} | dict(filters)
    return made
