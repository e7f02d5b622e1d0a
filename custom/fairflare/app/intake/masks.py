# SPDX-License-Identifier: Apache-2.0
"""Which pixel values of masks stand for what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from fairflare.clinic.readers.pictures import stored
from fairflare.core.errors import DataError, UserError

MOST_STRUCTURES = 8
LOOKED_AT = 300
"""Masks whose pixel values are read; preflight reads all."""


def structures(
    root: Path, masks: Sequence[str], chosen: Sequence[str], named: Mapping[int, str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The structures that the masks show, and the task's option for their pixel values, if it needs one.

    Args:
        root: the folder at which paths start.
        masks: of all sites.
        chosen: names that the user gives, in the order of the pixel values.
        named: pixel value -> name, where a list says so.

    Raises:
        UserError: a mask cannot be read or holds too many values, or the names are fewer or more than these.
    """
    values = _values(root, masks[:: max(1, len(masks) // LOOKED_AT)])
    present = sorted(v for v in values if v)
    if not present:
        raise UserError("init: the masks are empty: every pixel is 0")
    if len(present) > MOST_STRUCTURES or any(v != int(v) for v in present):
        text = f"expected masks of at most {MOST_STRUCTURES} whole pixel values beside 0, got {len(present)}"
        raise UserError(f"init: {text}, such as {present[len(present) // 2]:g}; masks kept as JPEG lose their values")
    numbers = [int(v) for v in present]
    if named:
        numbers = sorted({*named, *numbers})
    names = list(chosen) or [named.get(v, f"structure {k}") for k, v in enumerate(numbers, start=1)]
    if len(names) != len(numbers):
        found = ", ".join(map(str, numbers))
        raise UserError(f"--classes: expected {len(numbers)} names, for the pixel values {found}; got {len(names)}")
    plain = numbers == list(range(1, len(numbers) + 1)) or numbers in ([255], [1])
    option = {} if plain else {"mask_values": "; ".join(f"{name}={v}" for name, v in zip(names, numbers))}
    return tuple(names), option


def _values(root: Path, masks: Iterable[str]) -> set[float]:
    found: set[float] = set()
    for mask in masks:
        found |= {float(v) for v in np.unique(pixels(root, mask))}
        if len(found) > 10 * MOST_STRUCTURES:
            break
    return found


def pixels(root: Path, path: str) -> np.ndarray:
    """The stored pixels (C, H, W); UserError where the file is no 2D image."""
    try:
        return stored(root / path)
    except DataError as error:
        text = f"{path}: {str(error).partition(': ')[2]}"
        volumes = "; volumes are to be cut into slices first" if error.code == "not_2d" else ""
        raise UserError(f"init: {text}{volumes}") from None
