# SPDX-License-Identifier: Apache-2.0
"""The SUPPORT2 table that comes with the package: origin, licence and columns are in data/README.md."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources

import numpy as np
import torch
from torch import Tensor

from fairflare.clinic.base import standardise

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
    packed = resources.files("fairflare.clinic").joinpath("data/support2.csv.gz").read_bytes()
    rows = csv.reader(io.StringIO(gzip.decompress(packed).decode()))
    names = next(rows)
    return dict(zip(names, zip(*rows)))


def fitted(train: np.ndarray) -> Callable[[np.ndarray], Tensor]:
    """How a site prepares numbers: gaps become the training median, then (x - mean) / std of the training rows.

    Args:
        train: float64 (n, features), nan where missing; a column without a single value counts as all zeros.

    Returns:
        A function from such an array of any length to a float32 tensor of its shape without gaps.
    """
    empty = np.isnan(train).all(0)
    medians = np.nanmedian(np.where(empty, 0.0, train), axis=0)
    filled = torch.from_numpy(np.where(np.isnan(train), medians, train))
    mean, std = filled.mean(0), filled.std(0, correction=0)
    return lambda rows: standardise(torch.from_numpy(np.where(np.isnan(rows), medians, rows)), mean, std).float()


@cache
def numbers() -> np.ndarray:
    """float64 (9105, 20), nan where missing."""
    return np.array([[float(cell or "nan") for cell in table()[name]] for name in NUMBERS]).T


@cache
def flags() -> np.ndarray:
    """float32 (9105, 26): the one-hot columns in the order of ``CATEGORIES``."""
    columns = [np.array(table()[name]) == value for name, values in CATEGORIES.items() for value in values]
    return np.stack(columns, axis=1).astype(np.float32)


@cache
def outcome(label: str) -> np.ndarray:
    """int64 (9105,): 1 where the patient died, for a key of ``LABELS``."""
    return np.array(table()[LABELS[label]], dtype=np.int64)
