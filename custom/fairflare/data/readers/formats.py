# SPDX-License-Identifier: Apache-2.0
"""Formats that are not read, by their names and with what to convert a file to."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

PICTURE, VOLUME, TABLE = "PNG or JPEG", "NIfTI (.nii.gz)", "CSV or Parquet"
SIMPLE_ITK = """pip install SimpleITK; python -c "import SimpleITK as s; s.WriteImage(s.ReadImage('A'), 'A.nii.gz')" """
UNREAD: dict[str, tuple[str, str]] = {
    **dict.fromkeys((".h5", ".hdf5", ".he5", ".mat"), ("HDF5 or MATLAB", f"{TABLE}, or images to {PICTURE}")),
    **dict.fromkeys((".npy", ".npz"), ("NumPy", f"{PICTURE}, {VOLUME} or {TABLE}")),
    **dict.fromkeys((".svs", ".ndpi", ".mrxs", ".scn", ".bif", ".vms"), ("a whole slide", f"tiles as {PICTURE}")),
    **dict.fromkeys((".hea", ".edf", ".bdf"), ("WFDB or EDF, a recorded signal", f"a row of features each, {TABLE}")),
    **dict.fromkeys((".bmp", ".gif", ".webp", ".jp2", ".heic"), ("a picture of another kind", PICTURE)),
    **dict.fromkeys((".img", ".hdr", ".mgz"), ("another volume format", VOLUME)),
    **dict.fromkeys((".mha", ".mhd", ".nhdr"), ("MetaImage, or NRRD in two files", f"{VOLUME}: {SIMPLE_ITK}")),
    **dict.fromkeys((".dcm.gz", ".csv.gz", ".zip"), ("packed", "unpacked files")),
    **dict.fromkeys((".ods", ".rds", ".rdata"), ("a table of LibreOffice or R", TABLE)),
    **dict.fromkeys((".feather", ".arrow", ".sqlite", ".db", ".mdb", ".accdb"), ("Arrow or a database", TABLE)),
    **dict.fromkeys((".xml", ".ndjson", ".jsonl"), ("XML or JSON lines", TABLE)),
}
"""Ending of a file's name, in lower case -> its format, and what to convert it to."""
MASKS = "masks (x_mask.png beside x.png), or a table of images and classes"
LARGEST, MOST_LISTS = 2**28, 20
BOX = re.compile(r"\d+( +[\d.]+){4,}\s*")


def unread(name: str) -> str:
    """What to say of a file by its ``name``: its format, and what to convert it to; "" where it may be read."""
    found = next((one for end, one in UNREAD.items() if name.lower().endswith(end)), None)
    way = found[1].replace("'A", f"'{name}") if found else ""
    return f"{found[0]}, which is not read: convert it to {way}" if found else ""


def boxes_in(root: Path, images: Sequence[str]) -> str:
    """What to say of boxes and polygons in a folder with ``images``, as COCO and YOLO write them; "" for none."""
    for path in sorted([*root.glob("*.json"), *root.glob("*/*.json")])[:MOST_LISTS]:
        try:
            content = json.loads(path.read_bytes()) if path.stat().st_size <= LARGEST else None
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(content, dict) and {"images", "annotations", "categories"} <= {*content}:
            return f"{path.name}: COCO annotations, which are not read: convert them to {MASKS}"
    stems = {Path(name).stem for name in images}
    for path in sorted([*root.glob("*.txt"), *root.glob("*/*.txt"), *root.glob("*/*/*.txt")])[:MOST_LISTS]:
        if path.stem in stems and path.is_file():
            with path.open(encoding="latin-1") as file:
                if BOX.fullmatch(file.readline(1000)):
                    return f"{path.name}: YOLO annotations, which are not read: convert them to {MASKS}"
    return ""
