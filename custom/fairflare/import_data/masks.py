# SPDX-License-Identifier: Apache-2.0
"""Which pixel values of masks stand for what; and files of several slices, each of which may be an example."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np

from fairflare.core.errors import DataError, UserError
from fairflare.data.readers.datalist import Frame
from fairflare.data.readers.dicom import series_of
from fairflare.data.readers.geometry import form_of, frames
from fairflare.data.readers.pictures import stored
from fairflare.data.readers.volumes import read
from fairflare.import_data.proposal import Choices, Example, Files, Found
from fairflare.tasks.forms import FORMS, IMAGES, MASKED_IMAGES, MASKED_VOLUMES, VOLUMES

MOST_STRUCTURES = 8
SLICES = 9
"""Of a mask's volume that are looked at."""
FLAT = (".png", ".jpg", ".jpeg")
OF_A_SITE = 20
LOOKED_AT = 300
"""Masks whose pixel values are read; preflight reads all."""


def structures(
    root: Path, masks: Sequence[str], chosen: Sequence[str], named: Mapping[int, str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The structures that the masks show, and the task's option for their pixel values, if it needs one.

    Args:
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
    numbers = sorted({*named, *map(int, present)})
    names = list(chosen) or [named.get(v, f"structure {k}") for k, v in enumerate(numbers, start=1)]
    if len(names) != len(numbers):
        found = ", ".join(map(str, numbers))
        raise UserError(f"--classes: expected {len(numbers)} names, for the pixel values {found}; got {len(names)}")
    plain = numbers == list(range(1, len(numbers) + 1)) or numbers in ([255], [1])
    option = {} if plain else {"mask_values": "; ".join(f"{name}={v}" for name, v in zip(names, numbers))}
    return tuple(names), option


def check_sites(root: Path, masks: Mapping[str, Sequence[str]]) -> None:
    """Raise UserError where two sites' masks share no pixel value but 0: one site writes 1 and another 255."""
    found = {site: _values(root, own[:: max(1, len(own) // OF_A_SITE)]) - {0.0} for site, own in masks.items()}
    known = {site: values for site, values in found.items() if values}
    first = next(iter(known), "")
    for site, values in known.items():
        if not values & known[first]:
            ours, theirs = (", ".join(f"{value:g}" for value in sorted(own)[:4]) for own in (known[first], values))
            text = f"masks of {first} have the pixel values {ours}, those of {site} {theirs}"
            raise UserError(f"init: {text}: expected the same values for the same structures")


def _values(root: Path, masks: Iterable[str]) -> set[float]:
    found: set[float] = set()
    for mask in masks:
        for frame in _some_slices(root, mask):
            values = pixels(root, mask, frame)
            if len(values) > 1 and (values != values[:1]).any():
                raise UserError(f"init: {mask}: expected a mask of one number per pixel, got colours")
            found |= {float(v) for v in np.unique(values)}
        if len(found) > 10 * MOST_STRUCTURES:
            break
    return found


def pixels(root: Path, path: str, frame: int | None = None) -> np.ndarray:
    """The stored pixels (C, H, W) of a file or one of its slices; UserError where that is no 2D image."""
    with _refused(path):
        return stored(root / path if frame is None else Frame(root / path, frame))


def slices_of(root: Path, path: str) -> int:
    """How many slices a file holds, as its header says; UserError where that cannot be read."""
    with _refused(path):
        return frames(root / path)


@contextlib.contextmanager
def _refused(path: str) -> Iterator[None]:
    """Within: what is wrong with a file is said as ``fairflare init`` says it."""
    try:
        yield
    except DataError as error:
        raise UserError(f"init: {path}: {str(error).partition(': ')[2]}") from None


def _some_slices(root: Path, path: str) -> list[int | None]:
    """Evenly spaced slices of a volume; None: the file is one."""
    if path.lower().endswith(FLAT) or (n := slices_of(root, path)) == 1:
        return [None]
    return [*sorted({round(k * (n - 1) / (SLICES - 1)) for k in range(SLICES)})]


def with_slices(files: Files, found: Found, chosen: Choices) -> Found:
    """``found`` with every ``chosen.slices``-th slice of each volume or multi-frame file, which stay one patient's.

    Raises:
        UserError: there are such files and the user has not said how many slices to take; or a header cannot be read.
    """
    held = [
        1
        if not one.image or one.frame is not None or one.image.lower().endswith(FLAT)
        else slices_of(files.root, one.image)
        for one in found.examples
    ]
    volumes = [one.image for one, n in zip(found.examples, held, strict=True) if n != 1]
    if not volumes:
        return found
    if not (step := chosen.slices):
        text = f"{len(volumes)} files hold up to {max(held)} slices, e.g. {volumes[0]}: expected 2D images"
        whole = (MASKED_VOLUMES if found.form.masks else VOLUMES).name
        how = f"--slices 1 takes every slice as an image, --slices 4 every fourth, --kind {whole} whole volumes"
        raise UserError(f"init: {text}; {how}")
    several: list[Example] = []
    for one, n in zip(found.examples, held, strict=True):
        several += [one] if n == 1 else [replace(one, frame=k) for k in range(step // 2, n, step)]
    every = "every slice" if step == 1 else f"every slice number {step}"
    note = f"{len(volumes)} volumes: {every} is an image with the volume's label"
    return replace(found, examples=several, notes=(*found.notes, note))


def flat(chosen: Choices) -> Choices:
    """``chosen`` for 2D images of the same kind: sites, classes, patients and masks are found alike.

    Raises:
        UserError: slices are asked for too.
    """
    if not chosen.kind or not FORMS[chosen.kind].volumes:
        return chosen
    if chosen.slices:
        raise UserError(f"--slices: goes with images, got --kind {chosen.kind}")
    return replace(chosen, kind=MASKED_IMAGES.name if FORMS[chosen.kind].masks else IMAGES.name)


def as_volumes(files: Files, found: Found, kind: str) -> Found:
    """``found`` with one example for each NIfTI file and each series of DICOM, named by its first file.

    Raises:
        UserError: an example is a picture, or a slice of DICOM with a mask.
    """
    several: dict[tuple[str, ...], Example] = {}
    for one in found.examples:
        form = form_of(Path(one.image))
        if form == "picture" or (form == "dicom" and found.form.masks):
            raise UserError(f"init: {one.image}: expected NIfTI, or DICOM series with classes, for --kind {kind}")
        key: tuple[str, ...] = (one.image,)
        if form == "dicom":
            key = (str(PurePosixPath(one.image).parent), series_of(files.root / one.image) or one.image)
        several.setdefault(key, one)
    slices = len(found.examples) - len(several)
    note = (f"{len(several)} volumes of {slices + len(several)} files",) if slices else ()
    return replace(found, kind=kind, examples=list(several.values()), notes=(*found.notes, *note))


def check_volume(root: Path, path: str) -> None:
    """Read a volume; UserError where it is none."""
    with _refused(path):
        read(root / path)
