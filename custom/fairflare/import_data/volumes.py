# SPDX-License-Identifier: Apache-2.0
"""Files of NIfTI and series of DICOM as whole volumes, where the user asks for them (``--kind volume-...``)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath

from fairflare.core.errors import DataError, UserError
from fairflare.data.readers.dicom import series_of
from fairflare.data.readers.geometry import form_of
from fairflare.data.readers.volumes import read
from fairflare.import_data.proposal import Choices, Example, Files, Found
from fairflare.tasks.forms import FORMS, IMAGES, MASKED_IMAGES


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


def check(root: Path, path: str) -> None:
    """Read a volume; UserError where it is none."""
    try:
        read(root / path)
    except DataError as error:
        raise UserError(f"init: {path}: {str(error).partition(': ')[2]}") from None
