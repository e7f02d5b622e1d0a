# SPDX-License-Identifier: Apache-2.0
"""Files of several slices: each slice becomes an example of its own where the user asks for it."""

from __future__ import annotations

from dataclasses import replace

from fairflare.app.intake.found import Choices, Example, Found
from fairflare.app.intake.masks import FLAT, slices_of
from fairflare.app.intake.walk import Files
from fairflare.core.errors import UserError


def with_slices(files: Files, found: Found, chosen: Choices) -> Found:
    """``found`` with every ``chosen.slices``-th slice of each volume or multi-frame file, which stay one patient's.

    Raises:
        UserError: there are such files and the user has not said how many slices to take; or a header cannot be read.
    """
    several: list[Example] = []
    volumes, first, most = 0, "", 0
    for one in found.examples:
        flat = not one.image or one.frame is not None or one.image.lower().endswith(FLAT)
        holds = 1 if flat else slices_of(files.root, one.image)
        if holds == 1:
            several.append(one)
            continue
        volumes, first, most = volumes + 1, first or one.image, max(most, holds)
        if chosen.slices:
            several += [replace(one, frame=k) for k in range(chosen.slices // 2, holds, chosen.slices)]
    if not volumes:
        return found
    if not chosen.slices:
        text = f"{volumes} files hold up to {most} slices, e.g. {first}: expected 2D images"
        raise UserError(f"init: {text}; --slices 1 takes every slice as an image, --slices 4 every fourth")
    every = "every slice" if chosen.slices == 1 else f"every slice number {chosen.slices}"
    note = f"{volumes} volumes: {every} is an image with the volume's label"
    return replace(found, examples=several, notes=(*found.notes, note))
