# SPDX-License-Identifier: Apache-2.0
"""An exported bundle's inference: files in, probabilities and masks out, with torch and MONAI alone.

A bundle carries this file and the readers that it imports, as they are: they prepare inputs as the training's were.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairflare.core.validation import as_cell
from fairflare.data.readers.datalist import Files, file_of
from fairflare.data.readers.geometry import NIFTI, Geometry, geometry_of, looks_like_image, pairs, slices_of, suffix_of
from fairflare.data.readers.pictures import Reader
from fairflare.data.readers.table_features import Feature, parsed, stacked
from fairflare.data.readers.tables import read_columns
from fairflare.inference.modules import Whole

SMALLEST = 1e-12
MASKS = "masks"
SUFFIX = re.compile(r"(\.nii\.gz|\.nii|\.nrrd|\.png|\.jpe?g|\.tiff?|\.dcm|\.dicom)?(?:\[(\d+)\])?$", re.IGNORECASE)
"""The end of an image's name, with the slice in a file of several."""


def mask_stem(image: str) -> str:
    """What the name of an image's mask begins with: "a" of "a.png", "a_3" of "a.nii.gz[3]"."""
    return SUFFIX.sub(lambda found: f"_{found[2]}" if found[2] else "", image, count=1)


def mask_name(image: str, suffix: str, taken: Collection[str]) -> str:
    """The file of an image's mask below the results, in the image's folders, that is not ``taken``."""
    names = (f"{MASKS}/{mask_stem(image)}_mask{'' if k == 1 else k}{suffix}" for k in count(1))
    return next(one for one in names if one not in taken)


def ending(image: Files, place: Geometry) -> str:
    """What a mask of the image is called: NIfTI where the image has an affine, else PNG."""
    suffix = suffix_of(file_of(image))
    return suffix if suffix in NIFTI else ".nii.gz" if place.affine is not None else ".png"


def restored(probabilities: Tensor, height: int, width: int) -> Tensor:
    """(C, S, S) -> (C, height, width): resampled bilinearly; the very same numbers where the size is the same."""
    if probabilities.shape[1:] == (height, width):
        return probabilities
    smaller = height < probabilities.shape[1] or width < probabilities.shape[2]
    found = F.interpolate(probabilities[None], (height, width), mode="bilinear", antialias=smaller, align_corners=False)
    return found[0].clamp(0, 1)


def pixel_values(
    probabilities: Tensor,
    thresholds: Sequence[float],
    values: Mapping[str, Sequence[int]],
    background: Sequence[int],
    largest: bool,
) -> np.ndarray:
    """(H, W): the value that says which structures are at a pixel, as training masks say it.

    Args:
        probabilities: (C, H, W), in the order of ``values``.
        thresholds: C, in (0, 1]: a structure is there above 0.5, or from another threshold on.
        values: structure -> the pixel values that belong to it.
        background: pixel values of no structure.
        largest: of several values that say the same the largest (255, to be seen) or the first.

    Returns:
        uint8, or uint16 with values above 255. Where no value says what was found (two structures that no mask of the
        training has in one place), the one that fits the probabilities best.
    """
    codes: dict[tuple[bool, ...], list[int]] = {}
    for value in [*background, *(v for group in values.values() for v in group)]:
        codes.setdefault(tuple(value in group for group in values.values()), []).append(value)
    margins = torch.stack([_margin(p, t) for p, t in zip(probabilities.double(), thresholds, strict=True)])
    kinds = list(codes)
    fits = torch.stack([margins[list(kind)].sum(0) if any(kind) else torch.zeros_like(margins[0]) for kind in kinds])
    chosen = [(max if largest else min)(codes[kind]) for kind in kinds]
    return np.array(chosen, dtype=np.uint8 if max(chosen) < 256 else np.uint16)[fits.argmax(0).numpy()]


def _margin(p: Tensor, threshold: float) -> Tensor:
    """Above 0 where a structure is flagged; at 0.5 itself it is not, as in the metric."""
    if threshold == 0.5:
        return torch.logit(p, SMALLEST)
    found = torch.logit(p, SMALLEST) - torch.logit(torch.tensor(threshold, dtype=p.dtype), SMALLEST)
    return torch.where((p >= threshold) & (found <= 0), torch.full_like(found, SMALLEST), found)


def write_mask(path: Path, mask: np.ndarray, image: Files, place: Geometry) -> None:
    """Write ``mask`` (H, W) with the image's size, spacing and affine."""
    if path.suffix == ".png":
        from PIL import Image

        Image.fromarray(mask).save(path)
        return
    import nibabel

    if suffix_of(file_of(image)) in NIFTI:
        source: Any = nibabel.load(file_of(image))
        shape = place.shape[:2] if len(place.shape) == 2 or place.shape[2] != 1 else place.shape[:3]
        made = nibabel.Nifti1Image(mask.reshape(shape), place.affine)
        made.header.set_xyzt_units(*source.header.get_xyzt_units())
        for kind in ("sform", "qform"):
            getattr(made, f"set_{kind}")(place.affine, int(source.header[f"{kind}_code"]))
    else:
        made = nibabel.Nifti1Image(mask[..., None], place.affine)
    nibabel.save(made, path)


RESULTS = "predictions.csv"


def loaded(network: nn.Module, weights: str, before: nn.Module, after: nn.Module) -> Whole:
    """The whole model in evaluation mode; the weights file is read as data, nothing in it is executed."""
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return Whole(before, network, after).eval()


class Images:
    """Image files as the network's module takes them."""

    def __init__(self, size: int, channels: int, window: str = "") -> None:
        self.reader = Reader(size, channels, window=window)

    def named(self, inputs: str) -> dict[str, Files]:
        """Name below ``inputs`` -> image of a folder, or the one file; of a file of several slices each one.

        Masks that lie beside their images are no inputs.
        """
        place = Path(inputs)
        below = sorted(path for path in place.rglob("*") if path.is_file() and looks_like_image(path))
        files = {path.relative_to(place).as_posix(): path for path in below} if place.is_dir() else {place.name: place}
        masks, found = {*pairs(list(files))[0].values()}, dict[str, Files]()
        for name, path in files.items():
            if name not in masks:
                inside = slices_of(path)
                found |= {f"{name}[{k}]": one for k, one in enumerate(inside)} if len(inside) > 1 else {name: path}
        return found

    def tensor(self, files: Sequence[Files]) -> Tensor:
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
        of_lists = ("values", "no", "limits")
        self.numbers, self.plain = (
            [Feature(**{**one, **{key: tuple(one.get(key, ())) for key in of_lists}}) for one in group]
            for group in (numbers, plain)
        )
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


@torch.no_grad()
def _outputs(model: nn.Module, source: Any, inputs: str, batch: int) -> tuple[str, list[str], Tensor]:
    """Whether cases are files or rows, their names, and the model's outputs, float64 (N, ...)."""
    if isinstance(source, Images):
        named = source.named(inputs)
        files = list(named.values())
        parts = [model(source.tensor(files[k : k + batch])) for k in range(0, len(files), batch)]
        return "file", list(named), torch.cat(parts).double()
    rows = source.tensor(inputs)
    found = torch.cat([model(part) for part in rows.split(1024)]).double()
    return "row", [str(k) for k in range(1, len(rows) + 1)], found


def classify(model: nn.Module, source: Any, inputs: str, output_dir: str, classes: Sequence[str], batch: int) -> None:
    """Write ``predictions.csv``: file or row, class, a probability per class."""
    what, places, probabilities = _outputs(model, source, inputs, batch)
    body = [[n, classes[int(row.argmax())], *row.tolist()] for n, row in zip(places, probabilities, strict=True)]
    _write(output_dir, [what, "class", *(f"p_{c}" for c in classes)], body)


def tell(model: nn.Module, source: Any, inputs: str, output_dir: str, columns: Sequence[str], batch: int) -> None:
    """Write ``predictions.csv``: file or row, and the model's numbers, one in each of ``columns``."""
    what, places, numbers = _outputs(model, source, inputs, batch)
    body = [[n, *row.tolist()] for n, row in zip(places, numbers, strict=True)]
    _write(output_dir, [what, *columns], body)


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
    """Write a mask of each image's name in ``output_dir``/masks, and ``predictions.csv``; a.png and a.jpg have two."""
    table: dict[str, list[Any]] = {}
    for name, path in source.named(inputs).items():
        place = geometry_of(path)
        if place is None:
            raise ValueError(f"{name}: its size cannot be read")
        found = restored(model(source.tensor([path]))[0], place.height, place.width)
        suffix = ending(path, place)
        own = mask_name(name, suffix, table)
        mask = Path(output_dir) / own
        mask.parent.mkdir(parents=True, exist_ok=True)
        thresholds = [threshold] * len(values)
        write_mask(mask, pixel_values(found, thresholds, values, background, suffix == ".png"), path, place)
        shares = [float((p > threshold if threshold == 0.5 else p >= threshold).double().mean()) for p in found]
        table[own] = [name, own, *shares]
    _write(output_dir, ["file", "mask", *(f"share_{name}" for name in values)], [*table.values()])


def _write(output_dir: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    place = Path(output_dir)
    place.mkdir(parents=True, exist_ok=True)
    with (place / RESULTS).open("w", newline="", encoding="utf-8") as file:
        write_rows(file, header, rows)


def write_rows(file: TextIO, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table as CSV; numbers keep all their digits, and no text is a formula."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([as_cell(name) for name in header])
    writer.writerows([[repr(cell) if isinstance(cell, float) else as_cell(cell) for cell in row] for row in rows])
