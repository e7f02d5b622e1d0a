# SPDX-License-Identifier: Apache-2.0
"""Images that lie in one folder per class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fairflare.core.errors import DataError
from fairflare.data.readers.geometry import NATURAL


def images_in(folders: Sequence[Path]) -> tuple[np.ndarray, np.ndarray]:
    """The PNG and JPEG files of ``folders``, in each of them by name.

    Args:
        folders: class k is the k-th.

    Returns:
        Paths (N,) of dtype object, and int64 (N,) classes.

    Raises:
        DataError: "missing_file": a folder without an image.
    """
    found = [sorted(p for p in folder.iterdir() if p.suffix.lower() in NATURAL) for folder in folders]
    for folder, paths in zip(folders, found):
        if not paths:
            raise DataError("missing_file", f"{folder}: expected {', '.join(NATURAL)} images, found none")
    labels = np.repeat(np.arange(len(folders)), [len(paths) for paths in found])
    return np.array([path for paths in found for path in paths], dtype=object), labels
