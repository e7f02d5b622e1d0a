# SPDX-License-Identifier: Apache-2.0
"""Tasks on published data sets, in the folders as their users have them on disk; nothing is ever downloaded.

A mistake in a table, CSV or Excel, is one line with file, column and row.
"""

from __future__ import annotations

import os
import sys
import warnings
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from torch import nn

from fairflare.core.errors import DataError, MissingData, UserError
from fairflare.data.readers.datalist import Item
from fairflare.data.site_config import SiteConfig
from fairflare.data.tensors import TensorData
from fairflare.networks import own as own_network
from fairflare.tasks.base import DATA_FOLDER, OPEN_SPLIT, Task, TestSet, expect, expect_choices
from fairflare.tasks.kinds.masks import MASKS
from fairflare.tasks.kinds.own_images import ImageFiles

if TYPE_CHECKING:
    import pandas as pd


class OnDisk(Task):
    """A task whose files lie below one folder: a site's ``data_root``, or the one that ``FAIRFLARE_DATA`` names.

    The module of a concrete task shows, indented in its docstring, the tree that it reads; so do its error messages.
    Where a module has several, ``shown_tree`` is it.
    """

    shown_tree: ClassVar[str] = ""

    def root(self, own: SiteConfig | None = None) -> Path:
        """The folder below which the tree lies; UserError when none is named."""
        if own is not None and own.data_root:
            return Path(own.data_root)
        folder = os.environ.get(DATA_FOLDER)
        if not folder:
            raise MissingData(f"task {self.name}: name the folder of its data in {DATA_FOLDER}", self.tree())
        return Path(folder)

    @classmethod
    def tree(cls) -> str:
        lines = (cls.shown_tree or sys.modules[cls.__module__].__doc__ or "").splitlines()
        return "\n".join(line for line in lines if line.startswith("    "))

    def needed(self, path: Path) -> Path:
        """``path``, which must exist; MissingData names it and shows the tree."""
        if not path.exists():
            raise MissingData(f"task {self.name}: no such file or folder: {path}; expected:", self.tree())
        return path


class ImagesOnDisk(ImageFiles, OnDisk):
    """2D images of a published data set; a concrete task says which are whose.

    A concrete task is a frozen dataclass with a field ``limit``: the most examples of a split, None for all.
    """

    limit: int | None
    mean: ClassVar[tuple[float, ...]] = ()
    std: ClassVar[tuple[float, ...]] = ()
    """Per channel on [0, 1]."""
    data_kind: ClassVar[type[TensorData]] = TensorData

    @abstractmethod
    def items(self, root: Path, site: str) -> Mapping[str, Sequence[Item]]:
        """ "train", "val" and "test" -> what ``site`` has, in an order that depends on names and seeds alone.

        Only the files of ``site`` need to be there, as far as the layout allows. Raises MissingData, DataError.
        """

    def shared_items(self, root: Path) -> Mapping[str, tuple[bool, Sequence[Item]]]:
        """Name of a shared test set -> whether its images are corrupted, and the images."""
        return {}

    def site_data(self, site: str) -> TensorData:
        return self.local_data(site, None)

    def local_data(self, site: str, own: SiteConfig | None) -> TensorData:
        expect("site", site in self.sites(), f"one of {', '.join(self.sites())}", site)
        items = {split: self.limited(part) for split, part in self.items(self.root(own), site).items()}
        return self.data_of(items, own)

    def scaling(self) -> tuple[Sequence[float], Sequence[float]]:
        return self.mean, self.std

    def made(self, **splits: Any) -> TensorData:
        return self.data_kind(**splits)

    def check_data(self) -> None:
        for site in self.sites():
            if not self.items(self.root(), site).get("train"):
                raise UserError(f"task {self.name}: {site} has no training images in {self.root()}")

    def test_sets(self) -> tuple[TestSet, ...]:
        sets = self.shared_items(self.root()).items()
        return tuple(self.shared_set(name, corrupted, self.limited(items)) for name, (corrupted, items) in sets)

    def limited(self, items: Sequence[Item]) -> Sequence[Item]:
        return items if self.limit is None else items[: self.limit]


LARGEST_SHARE = 0.4
"""Of a site's images in its validation or test split."""


def check_split(options: Any) -> None:
    """Raise UserError unless ``val_fraction``, ``test_fraction`` and ``data_seed`` are in their ranges."""
    for key in ("val_fraction", "test_fraction"):
        share = getattr(options, key)
        expect(key, 0 < share <= LARGEST_SHARE, f"a number in (0, {LARGEST_SHARE}]", share)
    expect("data_seed", 0 <= options.data_seed < 2**32, "0..2**32-1", options.data_seed)


@dataclass(frozen=True)
class MasksOnDisk(ImagesOnDisk):
    """Segmentation of a published data set; a concrete task says which images and masks are whose.

    Args:
        size: edge in pixels that images and masks are resampled to, a multiple of 16 in 32..1024.
        model: "small-unet", "unet" (the papers'), or a class of yours as {"class_path": "my_net.Net", "args": {...}}.
        norm: "instance", "group" or "batch" (the papers'); a class of yours has its own.
        augment: random rotation, shift and flip of training images, masks with them.
        val_fraction: share in the validation split where the data set does not say, in (0, 0.4].
        test_fraction: share in the test split where the data set does not say, in (0, 0.4].
        limit: the most images of each split, at least 2; None: all.
        data_seed: of the splits that the data set leaves open; 0..2**32-1.
    """

    kind = MASKS
    channels: ClassVar[int]
    """Of the images: 1 or 3."""

    size: int = 64
    model: str = "small-unet"
    norm: Literal["instance", "group", "batch"] = "instance"
    augment: bool = False
    val_fraction: float = 0.2
    test_fraction: float = 0.2
    limit: int | None = None
    data_seed: int = 2024

    def __post_init__(self) -> None:
        expect_choices(self)
        expect("size", 32 <= self.size <= 1024 and self.size % 16 == 0, "a multiple of 16 in 32..1024", self.size)
        own_network.check_model(self.model, ("small-unet", "unet"))
        check_split(self)

    def drawn(self) -> tuple[str, ...]:
        return (OPEN_SPLIT,)

    def network(self) -> nn.Module:
        edges = (self.size, self.size)
        return own_network.build(self.model, (self.channels, *edges), (len(self.classes), *edges), norm=self.norm)


def dealt(names: Collection[str], val: float, test: float, seed: int) -> dict[str, list[str]]:
    """Split -> which of ``names`` it gets, sorted, by names and seed alone; a share above 0 gets one name at least."""
    ordered = sorted(names)
    n_val, n_test = (max(1, round(share * len(ordered))) if share else 0 for share in (val, test))
    shuffled = [ordered[i] for i in np.random.default_rng(seed).permutation(len(ordered))]
    parts = {"train": shuffled[n_val + n_test :], "val": shuffled[:n_val], "test": shuffled[n_val : n_val + n_test]}
    return {split: sorted(part) for split, part in parts.items()}


def complete(site: str, splits: Mapping[str, Sequence[Item]]) -> Mapping[str, Sequence[Item]]:
    """``splits``; DataError unless there are two images to train on and one in every other split."""
    if len(splits["train"]) < 2:
        text = f"{site}: training: expected at least 2 images, got {len(splits['train'])}"
        raise DataError("few_examples", text)
    for split, name in (("val", "validation"), ("test", "testing")):
        if not splits[split]:
            raise DataError("empty_split", f"{site}: {name}: expected an image, got none")
    return splits


ENGINES = {".xls": "xlrd", ".xlsx": "openpyxl"}
HEADER = 2
"""Number of the first row below the names, as a spreadsheet counts."""


def read(path: Path, sheet: str | int = 0) -> pd.DataFrame:
    """The table in a CSV file or in one sheet of an Excel file; the first row holds the names.

    Raises:
        UserError: a package is missing.
        DataError: "unreadable".
    """
    import pandas as pd

    engine = ENGINES.get(path.suffix.lower())
    try:
        if engine is None:
            found = pd.read_csv(path, encoding="utf-8-sig", low_memory=False)
        else:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="The xlrd engine is deprecated")
                found = pd.read_excel(path, sheet_name=sheet, engine=engine)
    except ImportError:
        raise UserError(f"{path.name}: needs {engine}: pip install 'fairflare[tables]'") from None
    except Exception as error:  # pandas raises its own and its parsers' errors
        kind = "a CSV table" if engine is None else f"an Excel file with sheet {sheet!r}"
        raise DataError("unreadable", f"{path.name}: expected {kind} ({type(error).__name__})") from None
    found.columns = [str(name).strip() for name in found.columns]
    return found


def need(frame: pd.DataFrame, file: str, names: Sequence[str]) -> None:
    """Raise DataError "column", with the columns that there are, unless ``frame`` has all of ``names``."""
    missing = [name for name in names if name not in frame.columns]
    if missing:
        known = ", ".join(frame.columns)
        raise DataError("column", f"{file}: expected columns {', '.join(map(repr, missing))}; it has: {known}")


def texts(frame: pd.DataFrame, name: str) -> list[str]:
    """The cells of a column without blanks around them, "" where empty; 3.0 is "3", as in a column without gaps."""
    return ["" if missing else _text(cell) for cell, missing in zip(frame[name], frame[name].isna())]


def numbers(frame: pd.DataFrame, file: str, names: Sequence[str], gaps: bool = False) -> np.ndarray:
    """float64 (N, len(names)); nan where a cell is empty.

    Raises:
        DataError: "number": a cell that is no finite number, or an empty one unless ``gaps``.
    """
    import pandas as pd

    found = np.empty((len(frame), len(names)))
    for k, name in enumerate(names):
        found[:, k] = pd.to_numeric(frame[name], errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        wrong = ~np.isfinite(found[:, k]) & ~(gaps & frame[name].isna().to_numpy())
        if wrong.any():
            _refuse(frame, file, name, int(np.flatnonzero(wrong)[0]), "number", "a number")
    return found


def codes(frame: pd.DataFrame, file: str, name: str, values: Sequence[str | int], gaps: bool = False) -> np.ndarray:
    """int64 (N,): the place of each cell among ``values``; -1 where a cell is empty.

    Raises:
        DataError: "label": a cell that is none of them, or an empty one unless ``gaps``.
    """
    if isinstance(values[0], int):
        cells = list(numbers(frame, file, [name], gaps)[:, 0])
        empty = np.isnan(cells)
    else:
        cells = texts(frame, name)
        empty = np.array([not cell for cell in cells], dtype=bool)
    place = {value: k for k, value in enumerate(values)}
    found = np.array([place.get(cell, -1) for cell in cells], dtype=np.int64)
    wrong = (found < 0) & ~(gaps & empty)
    if wrong.any():
        _refuse(frame, file, name, int(np.flatnonzero(wrong)[0]), "label", ", ".join(map(str, values)))
    return found


def one_hot(places: np.ndarray, n: int) -> np.ndarray:
    """float32 (N, n); a place of -1 is a row of zeros."""
    return (places[:, None] == np.arange(n)).astype(np.float32)


def named(places: np.ndarray, names: Sequence[str]) -> list[str]:
    """The name at each place; "" for -1."""
    return ["" if place < 0 else names[place] for place in places]


def _text(cell: object) -> str:
    return str(int(cell) if isinstance(cell, float) and cell.is_integer() else cell).strip()


def _refuse(frame: pd.DataFrame, file: str, name: str, i: int, code: str, expected: str) -> None:
    cell = frame[name].iloc[i]
    got = "nothing" if frame[name].isna().iloc[i] else repr(str(cell))
    raise DataError(code, f"{file}: {name}, row {frame.index[i] + HEADER}: expected {expected}, got {got}")
