# SPDX-License-Identifier: Apache-2.0
"""The files that digits are published in: MNIST's IDX, USPS as LIBSVM text, SVHN's MATLAB files, FedBN's pickles."""

from __future__ import annotations

import gzip
import math
import pickle
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairflare.core.errors import DataError

Digits = tuple[np.ndarray, np.ndarray]
"""uint8 (N, H, W) or (N, H, W, 3), and int64 (N,) from 0 to 9."""
USPS_EDGE = 16
SVHN_IMAGE = (32, 32, 3)


def mnist(images: Path, labels: Path) -> Digits:
    """The digits of two IDX files, each as published or unpacked; DataError where a file is another."""
    return _paired(labels, read_idx(images, 3), read_idx(labels, 1), lowest=0)


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """The uint8 array of an IDX file (LeCun, yann.lecun.com/exdb/mnist), gzipped where its name ends in ".gz".

    Raises:
        DataError: the file cannot be read, holds another type or number of dimensions, or another number of bytes than
            it says.
    """
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            content = file.read()
        magic, *shape = struct.unpack_from(f">{dimensions + 1}I", content)
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise _unreadable(path, "an IDX file", type(error).__name__) from None
    expected = 0x800 + dimensions  # 8: unsigned bytes
    if magic != expected:
        raise _bad(path, f"an IDX file of bytes in {dimensions} dimensions (magic number {expected})", magic)
    data = content[4 * (dimensions + 1) :]
    if math.prod(shape) != len(data):
        raise _bad(path, f"{math.prod(shape)} bytes for {' x '.join(map(str, shape))} values", len(data))
    return np.frombuffer(data, np.uint8).reshape(shape)


def usps(path: Path) -> Digits:
    """The 16x16 digits of a LIBSVM file, packed by bzip2 where its name ends in ".bz2".

    Labels 1 to 10 mean 0 to 9; values in [-1, 1] become (x + 1) / 2 * 255, cut to whole numbers as torchvision does.

    Raises:
        DataError: the file cannot be read, or holds another number of columns, other values or other labels.
    """
    from sklearn.datasets import load_svmlight_file

    try:
        sparse, labels = load_svmlight_file(str(path), n_features=USPS_EDGE**2, dtype=np.float32, zero_based=False)
        values = sparse.toarray()
    except Exception as error:  # a decoder's, the parser's, or one about the number of columns
        kind = f"LIBSVM text with {USPS_EDGE**2} columns"
        raise _unreadable(path, kind, type(error).__name__) from None
    strange = values[~(np.abs(values) <= 1)]
    if len(strange):
        raise _bad(path, "values from -1 to 1", f"{strange[0]:g}")
    images = ((values + 1) / 2 * 255).astype(np.uint8).reshape(-1, USPS_EDGE, USPS_EDGE)
    images, labels = _paired(path, images, labels, lowest=1)
    return images, labels - 1


def svhn(path: Path) -> Digits:
    """The 32x32 colour digits of a MATLAB file with X (32, 32, 3, N) and y (N, 1), where 10 means 0.

    Raises:
        DataError: the file cannot be read, or holds other arrays or other labels.
    """
    from scipy.io import loadmat

    try:
        found = loadmat(path, variable_names=("X", "y"))
        images, labels = found["X"], found["y"]
    except Exception as error:  # whatever SciPy's reader stumbles over, or a missing name
        raise _unreadable(path, "a MATLAB file with X and y", type(error).__name__) from None
    if images.dtype != np.uint8 or images.shape[:-1] != SVHN_IMAGE:
        expected = "X of type uint8 and shape 32 x 32 x 3 x N"
        raise _bad(path, expected, f"{images.dtype} and {' x '.join(map(str, images.shape))}")
    images, labels = _paired(path, np.moveaxis(images, -1, 0), labels, lowest=1)
    return images, labels % 10


def pickled(path: Path) -> Digits:
    """The digits of one of FedBN's files: a pickle of (images, labels), admitted as far as it consists of arrays.

    Nothing but NumPy's own constructors of numeric arrays is looked up, so that a pickle that names any other function
    ends in an error. A forged file may still crash the process: read only what you trust.

    Raises:
        DataError: the file cannot be read, names something else, or holds other arrays or other labels.
    """
    try:
        with path.open("rb") as file:
            found = Arrays(file, encoding="latin1").load()
    except Exception as error:  # a broken pickle raises nearly anything
        reason = str(error) if isinstance(error, pickle.UnpicklingError) else type(error).__name__
        raise _unreadable(path, "a pickle of NumPy arrays", reason) from None
    if not (isinstance(found, (tuple, list)) and [type(part) for part in found] == [np.ndarray] * 2):
        raise _bad(path, "a pickle of two NumPy arrays (images, labels)", type(found).__name__)
    images, labels = found
    if images.ndim == 4 and images.shape[-1] == 1:
        images = images[..., 0]
    if images.dtype != np.uint8 or not (images.ndim == 3 or images.ndim == 4 and images.shape[-1] == 3):
        expected = "images of type uint8 and shape N x H x W or N x H x W x 3"
        raise _bad(path, expected, f"{images.dtype} and {' x '.join(map(str, images.shape))}")
    return _paired(path, images, labels, lowest=0)


def joined(paths: Sequence[Path]) -> Digits:
    """The digits of several ``pickled`` files, one after the other; DataError where their images differ in shape."""
    images, labels = zip(*map(pickled, paths))
    for path, part in zip(paths, images):
        if part.shape[1:] != images[0].shape[1:]:
            first, other = (" x ".join(map(str, each.shape[1:])) for each in (images[0], part))
            raise _bad(path, f"images of {first} as in {paths[0].name}", other)
    return np.concatenate(images), np.concatenate(labels)


class Arrays(pickle.Unpickler):
    """Looks up what an array of numbers is made with, under NumPy's names before and since version 2."""

    MODULES = ("numpy.core.", "numpy._core.")
    FUNCTIONS: tuple[str, ...] = ("multiarray._reconstruct", "numeric._frombuffer")

    def find_class(self, module: str, name: str) -> Any:
        """What the file's name stands for; UnpicklingError for all that is no part of an array of numbers."""
        dotted = f"{module}.{name}"
        if dotted == "numpy.dtype":
            return _number_type
        if dotted == "_codecs.encode":  # how the second protocol writes bytes
            return _latin1
        if dotted == "numpy.ndarray" or dotted in [a + b for a in self.MODULES for b in self.FUNCTIONS]:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {dotted}, which is no part of an array of numbers")


def _number_type(code: object, *options: bool) -> np.dtype:
    if not isinstance(code, str) or np.dtype(code).kind not in "biuf":
        raise pickle.UnpicklingError("it holds an array of something else than numbers")
    return np.dtype(code, *options)


def _latin1(text: str, *_: object) -> bytes:
    return text.encode("latin1")


def _paired(path: Path, images: np.ndarray, labels: np.ndarray, lowest: int) -> Digits:
    """``images`` and flat int64 ``labels``, which run from ``lowest`` to ``lowest`` + 9."""
    if labels.size != len(images):
        raise _bad(path, f"{len(images)} labels as there are images", labels.size)
    labels = labels.reshape(-1)
    strange = labels[~np.isin(labels, np.arange(lowest, lowest + 10))]
    if len(strange):
        text = f"{path}: expected labels from {lowest} to {lowest + 9}, got {strange[0]}"
        raise DataError("label", text)
    return images, labels.astype(np.int64)


def _unreadable(path: Path, kind: str, reason: str) -> DataError:
    return DataError("unreadable", f"{path}: cannot be read as {kind} ({reason})")


def _bad(path: Path, expected: str, got: object) -> DataError:
    return DataError("unreadable", f"{path}: expected {expected}, got {got}")
