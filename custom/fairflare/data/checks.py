# SPDX-License-Identifier: Apache-2.0
"""What options of tasks are held against: ``expect`` refuses one with its key, what was expected and what came."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from fairflare.core.validation import expected as expect

MOST_PIXELS = 4 * 10**9
"""Of all images that a simulated task renders, one byte each."""


def expect_pixels(images: int, size: int) -> None:
    """Raise UserError when ``images`` of ``size`` x ``size`` pixels are more than a machine can be asked to hold."""
    most = MOST_PIXELS // size**2
    expect("images", images <= most, f"at most {most} of {size} pixels, those for testing included", images)


def expect_choices(options: Any) -> None:
    """Raise UserError unless every field of the dataclass ``options`` declared as a Literal holds one of its values."""
    hints = typing.get_type_hints(type(options))
    for field in dataclasses.fields(options):
        if typing.get_origin(hints[field.name]) is typing.Literal:
            choices, value = typing.get_args(hints[field.name]), getattr(options, field.name)
            expect(field.name, value in choices, f"one of {', '.join(choices)}", value)


def site_index(site: str, sites: Mapping[str, object]) -> int:
    """Place of ``site`` in a task's site list, from 0; UserError when it has no such site."""
    expect("site", site in sites, f"one of {', '.join(sites)}", site)
    return list(sites).index(site)
