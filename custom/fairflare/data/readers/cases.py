# SPDX-License-Identifier: Apache-2.0
"""What lists of files, tables and a site's own file share: whose a case is, how dates are written, names of files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from numpy import array, frombuffer, int64, uint64  # all of NumPy, whose parts cannot be imported before it

if TYPE_CHECKING:
    from numpy.typing import NDArray

NO_LABEL = "no_label"
"""Code of an entry without a label, which is no mistake."""
PATIENTS = ("patient_id", "patient")
"""Keys of an entry, or columns of a table, that say which patient a case is of; the first that is there counts."""
PREFIX = "client_"
"""Datalists are often called client_<SITE>.json."""
SIGN = "::"
"""Stands in the name of an encoder's feature between its folder and its place, "uni::17"."""
EXCEL = "excel"
ISO, SWAPPED = "YYYY-MM-DD", "YYYY-DD-MM"
DATES: Mapping[str, str] = {
    ISO: "%Y-%m-%d",
    "DD.MM.YYYY": "%d.%m.%Y",
    SWAPPED: "%Y-%d-%m",
    "YYYY/MM/DD": "%Y/%m/%d",
    "YYYYMMDD": "%Y%m%d",
    "DD/MM/YYYY": "%d/%m/%Y",
    "MM/DD/YYYY": "%m/%d/%Y",
    "DD-MM-YYYY": "%d-%m-%Y",
    "MM-DD-YYYY": "%m-%d-%Y",
    "DD-MON-YYYY": "%d-%b-%Y",
    "DDMONYYYY": "%d%b%Y",
    EXCEL: "",
}
"""How dates may be written, of which the first two are read anywhere -> as ``strptime`` says it; Excel counts days."""
DESCRIPTION = "dataset"
"""``dataset.json`` in a folder of datalists says what they are of; see ``prepare``."""
INSIDE = "fairflare"
"""The folder that ``fairflare init`` writes its lists to, inside the folder of the data that they are of."""


def patient_key(patient: str) -> str:
    """``patient`` as spellings of one agree: without case, spaces and leading zeros, and 1050.0 of pandas as 1050."""
    plain = re.sub(r"^(\d+)\.0+$", r"\1", "".join(patient.casefold().split()))
    return plain.lstrip("0") or plain[:1] if plain.isdigit() else plain


def patient_keys(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """Each row's ``patient_key``, "" for a row without a patient; empty: no row names one."""
    return [*map(patient_key, next((columns[key] for key in PATIENTS if any(columns.get(key, ()))), ()))]


def patients_of(columns: Mapping[str, Sequence[str]]) -> NDArray[int64] | None:
    """int64 (N,) number of each row's patient, a row without one being another's; None: nobody has two rows."""
    places: dict[tuple[str, int], int] = {}
    cells = [(cell, -1) if cell else ("", row) for row, cell in enumerate(patient_keys(columns))]
    found = array([places.setdefault(cell, len(places)) for cell in cells], dtype=int64)
    return found if len(places) < len(found) else None


def identities_of(columns: Mapping[str, Sequence[str]], key: str = "") -> NDArray[uint64] | None:
    """uint64 (N,) keyed digest of each row's patient, equal at all hospitals with this ``key``; None: no row names one.

    A row without a patient has one of its own.
    """
    secret = hashlib.sha256(key.encode()).digest()
    texts = (json.dumps(cell or row).encode() for row, cell in enumerate(patient_keys(columns)))
    digests = [hashlib.blake2b(text, digest_size=8, key=secret).digest() for text in texts]
    return frombuffer(b"".join(digests), dtype=uint64) if digests else None
