# SPDX-License-Identifier: Apache-2.0
"""The SUPPORT2 table that comes with the package: origin, licence and columns are in data/README.md."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Mapping
from functools import cache
from importlib import resources

import numpy as np

from fairflare.data.readers.table_features import Feature, parsed, stacked

NUMBERS = (
    "age", "num.co", "edu", "scoma", "meanbp", "wblc", "hrt", "resp", "temp", "pafi",
    "alb", "bili", "crea", "sod", "ph", "glucose", "bun", "urine", "adlp", "adls",
)  # fmt: skip
"""Columns used as numbers; a missing value becomes the median of the site's training patients."""
CATEGORIES: dict[str, tuple[str, ...]] = {
    "sex": ("female", "male"),
    "race": ("asian", "black", "hispanic", "other", "white"),
    "income": ("under $11k", "$11-$25k", "$25-$50k", ">$50k"),
    "dzgroup": (
        "ARF/MOSF w/Sepsis", "CHF", "COPD", "Cirrhosis", "Colon Cancer", "Coma", "Lung Cancer", "MOSF w/Malig",
    ),
    "ca": ("no", "yes", "metastatic"),
    "diabetes": ("0", "1"),
    "dementia": ("0", "1"),
}  # fmt: skip
"""The codebook's values of the columns used one-hot; a missing or unknown value is a row of zeros."""
N_FEATURES = len(NUMBERS) + sum(map(len, CATEGORIES.values()))
DISEASE_CLASSES = ("ARF/MOSF", "COPD/CHF/Cirrhosis", "Cancer", "Coma")
LABELS = {"hospital_death": "hospdead", "death": "death"}


@cache
def table() -> Mapping[str, tuple[str, ...]]:
    """Column name -> its 9,105 cells as text, "" where missing, in the order of the original file."""
    packed = resources.files("fairflare.datasets").joinpath("data/support2.csv.gz").read_bytes()
    rows = csv.reader(io.StringIO(gzip.decompress(packed).decode()))
    names = next(rows)
    return dict(zip(names, zip(*rows)))


MADE_NUMBERS = tuple(Feature(name) for name in NUMBERS)
MADE_FLAGS = tuple(Feature(name, (value,)) for name, values in CATEGORIES.items() for value in values)
"""What the columns make."""


@cache
def numbers() -> np.ndarray:
    """float64 (9105, 20), nan where missing."""
    return stacked(MADE_NUMBERS, parsed("support2.csv.gz", table(), MADE_NUMBERS), len(table()["age"]))


@cache
def flags() -> np.ndarray:
    """float32 (9105, 26): the one-hot columns in the order of ``CATEGORIES``."""
    found = stacked(MADE_FLAGS, parsed("support2.csv.gz", table(), MADE_FLAGS), len(table()["age"]))
    return found.astype(np.float32)


@cache
def outcome(label: str) -> np.ndarray:
    """int64 (9105,): 1 where the patient died, for a key of ``LABELS``."""
    return np.array(table()[LABELS[label]], dtype=np.int64)
