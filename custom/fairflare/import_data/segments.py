# SPDX-License-Identifier: Apache-2.0
"""Masks of DICOM segmentations: of each image that they name as their source one picture, whose values are structures.

Pixels of several structures have the value of the last (DICOM PS3.3, C.8.20).
"""

from __future__ import annotations

import io

import numpy as np

from fairflare.core.errors import DataError, UserError
from fairflare.core.validation import shown
from fairflare.data.readers.datalist import INSIDE
from fairflare.data.readers.dicom import group_of, header, pydicom_quietly
from fairflare.data.readers.stored import guarded
from fairflare.import_data.folders import headers
from fairflare.import_data.proposal import Files


def masks_of(files: Files) -> tuple[dict[str, str], dict[str, bytes], tuple[str, ...]]:
    """Image -> its mask, mask -> the PNG that is to be written, and the structures; nothing without segmentations.

    Raises:
        UserError: a segmentation cannot be read, is of another kind than binary, or names no image that is there.
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
            image = next((uids[uid] for one in sources if (uid := str(one.ReferencedSOPInstanceUID)) in uids), "")
            number = int(group_of(read, k, "SegmentIdentificationSequence").ReferencedSegmentNumber)
            if image:
                mask = drawn.setdefault(image, np.zeros(frame.shape, np.uint8))
                mask[frame > 0] = values.setdefault(names[number], len(values) + 1)
    if not drawn:
        raise UserError(f"init: {found[0]}: a DICOM segmentation that names no image here: convert it to masks")
    written = {image: f"{INSIDE}/masks/{k:05d}.png" for k, image in enumerate(path for path in rest if path in drawn)}
    pictures: dict[str, bytes] = {}
    for image, path in written.items():
        Image.fromarray(drawn[image]).save(stream := io.BytesIO(), "PNG")
        pictures[path] = stream.getvalue()
    return {image: written.get(image, "") for image in rest}, pictures, (*values,)
