# SPDX-License-Identifier: Apache-2.0
"""An exported bundle's inference: files in, probabilities and masks out, with torch and MONAI alone.

A bundle carries this file and the readers that it imports, as they are: they prepare inputs as the training's were.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fairflare.core.validation import as_cell
from fairflare.data.readers.datalist import Frame
from fairflare.data.readers.geometry import geometry_of, looks_like_image, slices_of
from fairflare.data.readers.masks import ending, mask_stem, pixel_values, restored, write_mask
from fairflare.data.readers.pictures import Reader
from fairflare.data.readers.table_features import Feature, parsed, stacked
from fairflare.data.readers.tables import read_columns
from fairflare.inference.modules import Whole

RESULTS = "predictions.csv"


def loaded(network: nn.Module, weights: str, before: nn.Module, after: nn.Module) -> Whole:
    """The whole model in evaluation mode; the weights file is read as data, nothing in it is executed."""
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return Whole(before, network, after).eval()


class Images:
    """Image files as the network's module takes them."""

    def __init__(self, size: int, channels: int, window: str = "") -> None:
        self.reader = Reader(size, channels, window=window)

    def names(self, inputs: str) -> list[Path | Frame]:
        """The images of a folder, by name; or one file. Of a file that holds several slices each one."""
        place = Path(inputs)
        found = sorted(path for path in place.rglob("*") if path.is_file() and looks_like_image(path))
        return [one for path in (found if place.is_dir() else [place]) for one in slices_of(path)]

    def tensor(self, files: Sequence[Path | Frame]) -> Tensor:
        """float32 (N, channels, size, size) of 0 to 255."""
        return torch.stack([self.reader.image(path) for path in files]).float()


class Table:
    """The rows of a table as the network's module takes them.

    Args:
        numbers: features that are scaled, each as the arguments of ``Feature``.
        plain: features that are taken as they are.
        gaps: words that stand for a missing number.
    """

    def __init__(
        self, numbers: Sequence[Mapping[str, Any]], plain: Sequence[Mapping[str, Any]], gaps: Sequence[str]
    ) -> None:
        self.numbers, self.plain = ([_feature(one) for one in group] for group in (numbers, plain))
        self.gaps = gaps

    def tensor(self, path: str) -> Tensor:
        """float32 (N, F), nan where a number is missing; a missing column is a row of gaps."""
        cells = read_columns(Path(path))
        n = len(next(iter(cells.values())))
        names = {name for one in (*self.numbers, *self.plain) for name in one.columns}
        if not names & set(cells):
            raise ValueError(f"table {Path(path).name}: expected columns {', '.join(sorted(names)[:6])}, found none")
        columns = {name: cells.get(name, [""] * n) for name in names}
        arrays = parsed(Path(path).name, columns, (*self.numbers, *self.plain), self.gaps)
        parts = [stacked(group, arrays, n) for group in (self.numbers, self.plain)]
        return torch.from_numpy(np.concatenate(parts, axis=1)).float()


def _feature(content: Mapping[str, Any]) -> Feature:
    return Feature(**{**content, **{key: tuple(content.get(key, ())) for key in ("values", "no")}})


@torch.no_grad()
def classify(model: nn.Module, source: Any, inputs: str, output_dir: str, classes: Sequence[str], batch: int) -> None:
    """Write ``predictions.csv``: file or row, class, a probability per class."""
    if isinstance(source, Images):
        files = source.names(inputs)
        places = [path.name for path in files]
        parts = [model(source.tensor(files[k : k + batch])) for k in range(0, len(files), batch)]
    else:
        rows = source.tensor(inputs)
        places = [str(k) for k in range(1, len(rows) + 1)]
        parts = [model(part) for part in rows.split(1024)]
    probabilities = torch.cat(parts).double()
    body = [[n, classes[int(row.argmax())], *row.tolist()] for n, row in zip(places, probabilities, strict=True)]
    _write(output_dir, ["file" if isinstance(source, Images) else "row", "class", *(f"p_{c}" for c in classes)], body)


@torch.no_grad()
def segment(
    model: nn.Module,
    source: Images,
    inputs: str,
    output_dir: str,
    values: Mapping[str, Sequence[int]],
    background: Sequence[int],
    threshold: float,
) -> None:
    """Write a mask beside each image's name in ``output_dir``/masks, and ``predictions.csv``."""
    table = []
    for path in source.names(inputs):
        place, stem = geometry_of(path), mask_stem(path.name)
        if place is None:
            raise ValueError(f"{path.name}: its size cannot be read")
        found = restored(model(source.tensor([path]))[0], place.height, place.width)
        suffix = ending(path, place)
        mask = Path(output_dir) / "masks" / f"{stem}_mask{suffix}"
        mask.parent.mkdir(parents=True, exist_ok=True)
        thresholds = [threshold] * len(values)
        write_mask(mask, pixel_values(found, thresholds, values, background, suffix == ".png"), path, place)
        shares = [float((p > threshold if threshold == 0.5 else p >= threshold).double().mean()) for p in found]
        table.append([path.name, f"masks/{mask.name}", *shares])
    _write(output_dir, ["file", "mask", *(f"share_{name}" for name in values)], table)


def _write(output_dir: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    place = Path(output_dir)
    place.mkdir(parents=True, exist_ok=True)
    with (place / RESULTS).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([as_cell(name) for name in header])
        writer.writerows([[repr(cell) if isinstance(cell, float) else as_cell(cell) for cell in row] for row in rows])
