# SPDX-License-Identifier: Apache-2.0
"""What DICOM headers say of patient, study and scanner, for many files at once; none of it is meant to leave a site."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd

from fairflare.core.errors import UserError
from fairflare.core.suggest import unlisted
from fairflare.data.readers.dicom import DEFERRED, is_dicom, pydicom_quietly

KEYWORDS = (
    "PatientID",
    "StudyInstanceUID",
    "SeriesInstanceUID",
    "PatientSex",
    "PatientAge",
    "Manufacturer",
    "ManufacturerModelName",
    "StationName",
    "InstitutionName",
    "Modality",
    "PhotometricInterpretation",
)
"""Those that patients, groups and series are known from."""
NO_TEXT = ("SQ", "OB", "OW", "OF", "OD", "OL", "OV", "UN", "OB or OW")
"""Kinds of attributes that are no cell of a table."""
LONGEST = 1024
"""Characters of a cell."""
THREADS = 8
OFTEN = 100
"""Files after which it is told how many have been read."""


def headers(
    paths: Sequence[Path],
    keywords: Sequence[str] = KEYWORDS,
    tell: Callable[[str, int], None] = lambda part, done: None,
) -> pd.DataFrame:
    """A row for each of ``paths``, which are its index, and a column of text for each of ``keywords``.

    A cell is "" where the file is no DICOM or does not say; several values are joined by a backslash, as DICOM does.
    Pixels are not read.

    Args:
        paths: the files.
        keywords: of DICOM's dictionary.
        tell: called now and then with what is counted, and how many there are so far.

    Raises:
        UserError: a keyword is none of the DICOM dictionary's, or its values are no text.
    """
    for keyword in keywords:
        _check(keyword)
    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
        rows = []
        for row in pool.map(lambda path: _row(path, keywords), paths):
            rows.append(row)
            if len(rows) % OFTEN == 0:
                tell("headers", len(rows))
    return pd.DataFrame(rows, index=pd.Index(list(paths), dtype=object), columns=list(keywords), dtype=object)


def _check(keyword: str) -> None:
    from pydicom.datadict import dictionary_VR, keyword_dict, tag_for_keyword

    tag = tag_for_keyword(keyword)
    if tag is None:
        raise UserError(
            unlisted("DICOM keyword", keyword, keyword_dict, "expected one such as PatientID or StationName")
        )
    if dictionary_VR(tag) in NO_TEXT:
        raise UserError(f"DICOM keyword {keyword}: expected one whose values are text or numbers")


def _row(path: Path, keywords: Sequence[str]) -> list[str]:
    if not is_dicom(path):
        return [""] * len(keywords)
    pydicom = pydicom_quietly()
    try:
        found = pydicom.dcmread(path, stop_before_pixels=True, defer_size=DEFERRED, specific_tags=list(keywords))
        return [_cell(found.get(keyword)) for keyword in keywords]
    except Exception:  # pydicom raises whatever it meets; who reads the pixels says what is wrong
        return [""] * len(keywords)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    several = isinstance(value, (list, tuple)) or type(value).__name__ == "MultiValue"
    text = "\\".join(str(one) for one in value) if several else str(value)
    return text.strip().strip("\0")[:LONGEST]
