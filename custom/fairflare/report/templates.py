# SPDX-License-Identifier: Apache-2.0
"""The environment of the HTML templates: everything that comes from sites, plugins or files is escaped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairflare.report.values import capital, moment, plural, signed, size, stop, text

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def environment() -> Environment:
    """Templates of this folder, with the filters that write values; an unknown name in a template is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    values: Mapping[str, Callable[..., Any]] = {
        "num": text,
        "signed": signed,
        "plural": plural,
        "stop": stop,
        "capital": capital,
        "moment": moment,
        "size": size,
    }
    made.filters |= values
    return made
