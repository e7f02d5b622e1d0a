# SPDX-License-Identifier: Apache-2.0
"""Masks of DICOM segmentations: of each image that they name as their source one picture, whose values are structures.

Of an image of several frames it is a TIFF file with a page for each. Pixels of several structures have the value of the
last (DICOM PS3.3, C.8.20).
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from fairflare.core.errors import DataError, UserError
from fairflare.core.validation import shown
from fairflare.data.readers.datalist import INSIDE
from fairflare.data.readers.dicom import group_of, header, pydicom_quietly
from fairflare.data.readers.stored import guarded
from fairflare.import_data.folders import headers
from fairflare.import_data.levels import slices_of
from fairflare.import_data.proposal import Files


def masks_of(files: Files) -> tuple[dict[str, str], dict[str, bytes], tuple[str, ...]]:
    """Image -> its mask, mask -> the PNG that is to be written, and the structures; nothing without segmentations.

    Raises:
        UserError: a segmentation cannot be read, is of another kind than binary, or names no image that is there, or no
            frame of one of several.
    """
    may = [path for path in files.images if path in files.dicom and "seg" in path.lower()]
    known = headers([files.root / path for path in may], ["Modality"])["Modality"] == "SEG" if may else []
    found = [path for path, one in zip(may, known, strict=True) if one]
    if not found:
        return {}, {}, ()
    from PIL import Image

    rest = [path for path in files.images if path in files.dicom and path not in {*found}]
    uids = dict(zip(headers([files.root / path for path in rest], ["SOPInstanceUID"])["SOPInstanceUID"], rest))
    values: dict[str, int] = {}
    drawn: dict[str, np.ndarray] = {}
    for path in found:
        try:
            header(files.root / path)  # within limits
            with guarded(files.root / path):
                read = pydicom_quietly().dcmread(files.root / path)
                pixels = read.pixel_array.reshape(-1, int(read.Rows), int(read.Columns))
                names = {
                    int(one.SegmentNumber): str(one.SegmentLabel).replace(",", " ") for one in read.SegmentSequence
                }
        except DataError as error:
            raise UserError(f"init: {path}: {str(error).partition(': ')[2]}") from None
        if (kind := str(read.get("SegmentationType"))) != "BINARY":
            raise UserError(f"init: {path}: expected a binary segmentation, got {shown(kind)}: convert it to masks")
        for k, frame in enumerate(pixels):
            sources = group_of(read, k, "DerivationImageSequence").get("SourceImageSequence") or []
            source = next((one for one in sources if str(one.ReferencedSOPInstanceUID) in uids), None)
            number = int(group_of(read, k, "SegmentIdentificationSequence").ReferencedSegmentNumber)
            if source:
                image = uids[str(source.ReferencedSOPInstanceUID)]
                if image not in drawn:
                    drawn[image] = np.zeros((slices_of(files.root, image), *frame.shape), np.uint8)
                mask = drawn[image][_place(path, source, len(drawn[image]))]
                mask[frame > 0] = values.setdefault(names[number], len(values) + 1)
    if not drawn:
        raise UserError(f"init: {found[0]}: a DICOM segmentation that names no image here: convert it to masks")
    written: dict[str, str] = {}
    pictures: dict[str, bytes] = {}
    for image in (path for path in rest if path in drawn):
        first, *others = map(Image.fromarray, drawn[image])
        stream, how = io.BytesIO(), {"save_all": True, "append_images": others, "compression": "tiff_adobe_deflate"}
        first.save(stream, "TIFF" if others else "PNG", **(how if others else {}))
        written[image] = f"{INSIDE}/masks/{len(written):05d}.{'tif' if others else 'png'}"
        pictures[written[image]] = stream.getvalue()
    return {image: written.get(image, "") for image in rest}, pictures, (*values,)


def _place(path: str, source: Any, frames: int) -> int:
    """Which of an image's frames, from 0, the ``source`` of a segmentation's frame is; UserError where it names none.

    By the standard a source without a number is all frames, of which no mask is known.
    """
    number = source.get("ReferencedFrameNumber") if frames > 1 else 1
    if not isinstance(number, int) or not 1 <= number <= frames:
        text = f"expected one frame of {frames} as the source of each mask, got {shown(str(number))}"
        raise UserError(f"init: {path}: {text}: convert it to masks")
    return number - 1
