# SPDX-License-Identifier: Apache-2.0
"""The heart disease tables of four hospitals that come with the package: origin and licence are in data/README.md."""

from __future__ import annotations

import csv
import io
from functools import cache
from importlib import resources

import numpy as np

FILES = {
    "Cleveland": ("processed.cleveland.data", "Cleveland Clinic Foundation, United States"),
    "Hungary": ("processed.hungarian.data", "Hungarian Institute of Cardiology, Budapest"),
    "Switzerland": ("processed.switzerland.data", "University Hospitals of Zurich and Basel"),
    "VA": ("processed.va.data", "Veterans Affairs Medical Center, Long Beach, United States"),
}
"""Site -> its file and what it is."""
COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal",
    "num",
)  # fmt: skip
"""Of every file; num is the diagnosis, 0 for no disease."""
VALUES = {
    "sex": (0, 1),
    "cp": (1, 2, 3, 4),
    "fbs": (0, 1),
    "restecg": (0, 1, 2),
    "exang": (0, 1),
    "slope": (1, 2, 3),
    "thal": (3, 6, 7),
}
"""The codebook's values of the columns that are categories."""
IMPOSSIBLE = ("trestbps", "chol")
"""Columns in which 0 stands for a missing value: blood pressure, and cholesterol at all of Switzerland."""


@cache
def patients(site: str) -> dict[str, np.ndarray]:
    """Column -> float64 values of the site's patients in the file's order, nan where missing, 0 as it stands there."""
    text = resources.files("fairflare.datasets").joinpath(f"data/{FILES[site][0]}").read_text()
    cells = np.array([[float(cell) for cell in row] for row in csv.reader(io.StringIO(text)) if row])
    return dict(zip(COLUMNS, cells.T, strict=True))


def diseased(site: str) -> np.ndarray:
    """int64 (N,): 1 where num is above 0."""
    return (patients(site)["num"] > 0).astype(np.int64)
