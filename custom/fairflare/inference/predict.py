# SPDX-License-Identifier: Apache-2.0
"""``fairflare predict``: new images or patients, prepared as the training's were; and what of them is unlike it.

Volumes are predicted on the run's grid, and their masks written where the files' own voxels lie.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairflare.core.errors import DataError, UserError
from fairflare.core.execution import default_device
from fairflare.core.types import Batch
from fairflare.core.validation import natural, shown, some
from fairflare.data.inputs import SIGN, ImageInputs, Scaling, TableInputs
from fairflare.data.readers import geometry
from fairflare.data.readers.datalist import Contrasts, Files, Frame, file_of
from fairflare.data.readers.files import stacked
from fairflare.data.readers.geometry import NIFTI, Geometry, geometry_of, suffix_of
from fairflare.data.readers.table_features import gaps_of, plain
from fairflare.data.readers.tables import SUFFIXES
from fairflare.data.readers.volumes import Volume, VolumeReader, placed_as
from fairflare.data.site_config import SiteConfig
from fairflare.data.tensors import as_float, normalised
from fairflare.engine.evaluation import predict as predicted
from fairflare.engine.files import save_json, save_text
from fairflare.import_data.tables import read_again
from fairflare.inference.apply import RESULTS, ending, mask_name, pixel_values, restored, write_mask, write_rows
from fairflare.inference.atomic_output import MARK
from fairflare.inference.loaded_run import HALF, Opened, config_of, members_of
from fairflare.report.values import plural
from fairflare.tasks.kinds.classes import named_classes
from fairflare.tasks.planning import FAR_SHARE, other_units

MOST = 1_000_000


def images_of(named: Sequence[Path], *, volumes: bool = False, channels: int = 1) -> tuple[dict[str, Files], list[str]]:
    """Name -> file or slice, and what was passed over or cut, a line each; UserError where a file or image is missing.

    The name is the one that results carry, with the folders below what was named; natural order. Of a file that holds
    several slices each is an input, "volume.nii.gz[0]" and so on.

    Args:
        named: files of any name, and folders, of which every image below counts but hidden ones and images' masks.
        volumes: the run is on volumes: a file, or a series of DICOM, is one input.
        channels: of an input; files whose names say as many contrasts of one image are one.
    """
    found: dict[str, Path] = {}
    beside: list[str] = []
    for path in named:
        if path.is_dir():
            inside = {file.relative_to(path).as_posix(): file for file in _below(path)}
            if not inside:
                raise UserError(f"{path}: expected images ({', '.join(geometry.IMAGES)}) in it, found none")
            ways = {False, channels > 1}
            own = {mask for several in ways for mask in geometry.masks_beside(list(inside), several)}
            beside += sorted(own, key=natural)
            chosen = [(name, file) for name, file in inside.items() if name not in own]
        elif path.is_file():
            if suffix_of(path) in SUFFIXES:
                raise UserError(f"{path.name}: expected images for this run, got a table")
            chosen = [(path.name, path)]
        else:
            raise UserError(f"{path}: no such file or folder")
        for name, file in chosen:
            if name in found and found[name] != file:
                raise UserError(f"two files are called {shown(name)}; name the folder above them instead")
            found[name] = file
    if len(found) > MOST:
        raise UserError(f"expected at most {MOST} files, got {len(found)}")
    notes = [f"{len(beside)} masks lie beside their images and are left out, e.g. {shown(beside[0])}"] if beside else []
    ordered = dict(sorted(found.items(), key=lambda pair: natural(pair[0])))
    ordered = geometry.volumes_in(ordered) if volumes else ordered
    groups, lacking = geometry.contrasts_in(list(ordered)) if channels > 1 else ({}, [])
    groups, lacking = geometry.series_in(ordered) if channels > 1 and volumes and not groups else (groups, lacking)
    if groups and len(next(iter(groups.values()))) == channels:
        notes += [f"{len(lacking)} files lack a contrast and are left out, e.g. {shown(lacking[0])}"] if lacking else []
        each = [{own[k]: ordered[own[k]] for own in groups.values()} for k in range(channels)]
        parts = [list((files if volumes else _cut(files, [])).items()) for files in each]
        if len({*map(len, parts)}) > 1:
            raise UserError("expected as many slices in each contrast of an image, got others")
        return {row[0][0]: Contrasts(tuple(one for _, one in row)) for row in zip(*parts, strict=True)}, notes
    return dict(ordered) if volumes else _cut(ordered, notes), notes


def _cut(files: Mapping[str, Path], notes: list[str]) -> dict[str, Files]:
    """Every slice of ``files``; appends to ``notes`` which hold several."""
    found: dict[str, Files] = {}
    for name, path in files.items():
        inside = geometry.slices_of(path)
        found |= {f"{name}[{k}]": one for k, one in enumerate(inside)} if len(inside) > 1 else {name: path}
        if len(found) > MOST:
            raise UserError(f"expected at most {MOST} slices; {name} brings more")
    if several := [one.path for one in found.values() if isinstance(one, Frame)]:
        files_hold = plural(len(set(several)), "file holds", "files hold")
        notes.append(f"{files_hold} {len(several)} slices: each is one input")
    return found


def table_of(named: Sequence[Path]) -> Path:
    """The one table; raises UserError."""
    if lost := [path for path in named if not path.exists()]:
        raise UserError(f"{lost[0]}: no such file or folder")
    if len(named) != 1 or not named[0].is_file() or suffix_of(named[0]) not in SUFFIXES:
        got = ", ".join(path.name for path in named[:3])
        raise UserError(f"expected one table ({', '.join(SUFFIXES)}) for this run, got {shown(got)}")
    return named[0]


def _below(folder: Path) -> list[Path]:
    found: list[Path] = []
    seen: set[str] = set()
    for place, inner, files in os.walk(folder, followlinks=True):  # a site's folder may be a link, as for `init`
        new = (real := os.path.realpath(place)) not in seen
        inner[:] = sorted(name for name in inner if new and not name.startswith("."))
        found += [Path(place, name) for name in files if new and not name.startswith(".")]
        seen.add(real)
        if len(found) > MOST:
            raise UserError(f"{folder}: expected at most {MOST} files")
    return [path for path in found if path.is_file() and geometry.looks_like_image(path)]


BATCH = 16


@dataclass
class Predictions:
    """A table of results, one row per case in the order of the inputs.

    Attributes:
        probabilities: float64 (N, C) of classes; empty for masks, which are files.
        unlike: what is unlike the training, and other remarks, a line each.
    """

    header: list[str]
    rows: list[list[Any]]
    probabilities: np.ndarray
    unlike: list[str] = field(default_factory=list)


def predict(opened: Opened, named: Sequence[Path], folder: Path, converting: SiteConfig | None = None) -> Predictions:
    """Predict the named image files and folders, or one table; UserError where something cannot be read.

    ``folder``, an empty one, gets ``predictions.csv``, masks, and ``fairflare.json`` that says how they came about.
    ``converting``: whose ``scale``, ``shift`` and ``recode`` hold for the table; None: those of the opened site's
    training.
    """
    table, images = opened.task.table_inputs(), opened.task.image_inputs()
    if table is None and images is None:
        text = "its inputs are made by code, or nobody has said how a file becomes one"
        raise UserError(f"task {opened.config.task}: {text}; use fairflare export-model")
    if table is not None:
        found = _of_table(opened, table, table_of(named), converting or opened.conversions.get(opened.site))
    elif converting:
        raise UserError("--site-config: expected a run on tables, got one on images")
    else:
        assert images is not None  # one of both is there
        files, notes = images_of(named, volumes=images.volumes, channels=images.reader.channels)
        found = (_of_volumes if images.volumes else _of_images)(opened, files, folder)
        found.unlike = [*notes, *found.unlike]
    found.unlike = [*opened.remarks, *found.unlike]
    written = io.StringIO()
    write_rows(written, found.header, found.rows)
    save_text(folder / RESULTS, written.getvalue())
    save_json(folder / MARK, {**about(opened), "cases": len(found.rows), "unlike": found.unlike})
    return found


def about(opened: Opened) -> dict[str, Any]:
    return {
        "run": opened.folder.name,
        "task": f"{opened.config.task}:{opened.config.preset}",
        "method": opened.config.method,
        "site": opened.site or None,
        "model": opened.whose,
        "model_sha256": opened.model_sha256,
        "rounds": opened.finished,
        "adjusted": opened.adjustment.words if opened.adjustment else None,
    }


def _of_table(opened: Opened, inputs: TableInputs, path: Path, own: SiteConfig | None) -> Predictions:
    place = config_of(path)
    table, notes = read_again(path, inputs)
    columns = inputs.joined(place, {name: list(table[name]) for name in table.columns})
    n = len(table)
    missing = [name for name in inputs.columns if name not in columns]
    if not n or (missing and len(missing) == len(inputs.columns)):
        lacks = "rows" if not n else f"columns {', '.join(inputs.columns[:6])} ..."
        raise DataError("column", f"table {path.name}: expected {lacks}, found none")
    found = [*notes, *(f"column {name}: is missing, every row counts as without a value" for name in missing)]
    columns |= {name: [""] * n for name in missing}
    if own and own.conversion:
        own.convert(columns, inputs.gaps, inputs.lists)  # of columns that are no predictors some may be missing
        known = dict.fromkeys(name for key in own.conversion.values() for name in key if name in inputs.columns)
        found += [f"{some([*known], 12)}: converted as the site's file says ({', '.join(own.conversion)})"]
    numbers, plain = inputs.features(path.name, columns)
    scaling = opened.scaling  # never that of the rows at hand, on which a patient's risk does not depend
    if scaling is None and opened.site:
        raise UserError(f"--site {opened.site}: how it scales its numbers is not in the folder; see --site-files")
    if scaling is None:
        raise UserError(
            f"table {path.name}: each site of the run scales by its own training rows: expected --site NAME"
        )
    found += of_table(inputs, columns, numbers, scaling)
    rows = torch.cat((scaling(numbers), torch.from_numpy(plain)), dim=1)

    bags = inputs.bags(place, columns, rows, torch.zeros(n))

    def batches() -> Iterator[Batch]:
        for at in torch.arange(n).split(BATCH if bags else 1024):
            part = stacked([bags(int(row)) for row in at])[0] if bags else rows[at]
            yield Batch(part, torch.zeros(len(part), dtype=torch.int64), torch.full((len(part),), -1))

    outputs = _outputs(opened, batches)
    members = members_of(opened.parts, inputs.attributes(columns), n)
    header, body, probabilities = _answers(opened, outputs, members)
    label = next((name for name in ("id", "patient_id") if name in columns), "")
    first = columns[label] if label else [str(k) for k in range(1, n + 1)]
    answers = [[name, *row] for name, row in zip(first, body)]
    return Predictions([label or "row", *header], answers, probabilities, found)


def _of_images(opened: Opened, files: Mapping[str, Files], folder: Path) -> Predictions:
    inputs = opened.task.image_inputs()
    assert inputs is not None  # the caller has looked
    images = {name: inputs.reader.image(path) for name, path in files.items()} if len(files) <= BATCH else None
    places = {name: place for name, path in files.items() if (place := geometry_of(path)) is not None}
    names = list(files)
    means: dict[str, float] = {}

    def batches() -> Iterator[Batch]:
        for start in range(0, len(names), BATCH):
            chosen = names[start : start + BATCH]
            stored = torch.stack([images[n] if images else inputs.reader.image(files[n]) for n in chosen])
            means.update(zip(chosen, as_float(stored).mean((1, 2, 3)).tolist()))
            ready = normalised(as_float(stored), inputs.mean, inputs.std)
            yield Batch(ready, torch.zeros(len(chosen), dtype=torch.int64), torch.full((len(chosen),), -1))

    masked = opened.task.kind.has_masks
    found = _masks(opened, files, places, batches, folder) if masked else _of_files(opened, names, batches)
    found.unlike = of_images(inputs, opened.inputs, places, means)
    return found


def _of_files(opened: Opened, names: Sequence[str], batches: Callable[[], Iterator[Batch]]) -> Predictions:
    header, body, probabilities = _answers(opened, _outputs(opened, batches), torch.full((len(names),), -1))
    return Predictions(["file", *header], [[name, *row] for name, row in zip(names, body)], probabilities)


def _of_volumes(opened: Opened, files: Mapping[str, Files], folder: Path) -> Predictions:
    inputs, names = opened.task.image_inputs(), list(files)
    assert inputs is not None and isinstance(inputs.reader, VolumeReader)  # the caller has looked
    batches = batches_of(opened, list(files.values()))
    if not opened.task.kind.has_masks:
        return _of_files(opened, names, batches)
    written = _Masks(opened, folder)
    for name, batch in zip(names, opened.parts.trainer.shared_batches(batches), strict=True):
        masked = at_home(inputs.reader, files[name], _network(opened, batch.inputs).sigmoid()[0])
        suffix = suffix_of(masked[0])
        place = written.place(name, suffix if suffix in NIFTI else ".nii.gz", masked[1])
        write_volume_mask(place, masked, written.thresholds, inputs.reader)
    return written.predictions()


def _masks(
    opened: Opened,
    files: Mapping[str, Files],
    places: Mapping[str, Geometry],
    batches: Callable[[], Iterator[Batch]],
    folder: Path,
) -> Predictions:
    inputs = opened.task.image_inputs()
    assert inputs is not None and (reader := inputs.reader).values is not None  # masks have values
    written, names = _Masks(opened, folder), iter(files)
    for batch in opened.parts.trainer.shared_batches(batches):
        for one in _network(opened, batch.inputs).sigmoid():
            name = next(names)
            place = places.get(name)
            if place is None:
                raise UserError(f"{name}: its size cannot be read")
            found = restored(one, place.height, place.width)
            path, largest = written.place(name, suffix := ending(files[name], place), found), suffix == ".png"
            values = pixel_values(found, written.thresholds, reader.values, reader.background, largest)
            write_mask(path, values, files[name], place)
    return written.predictions()


class _Masks:
    """A mask file for each input, and in the table the share of pixels of each structure."""

    def __init__(self, opened: Opened, folder: Path) -> None:
        self.thresholds, self._said = _thresholds(opened)
        self._folder, self._classes, self._rows = folder, opened.task.classes, dict[str, list[Any]]()

    def place(self, name: str, suffix: str, probabilities: Tensor) -> Path:
        """The file for an input's mask, of a name of its own in the file's folders; a.png and a.jpg do not meet."""
        mask = mask_name(name, suffix, self._rows)
        flagged = (p > t if t == HALF else p >= t for p, t in zip(probabilities, self.thresholds))
        self._rows[mask] = [name, mask, *(float(one.double().mean()) for one in flagged)]
        (self._folder / mask).parent.mkdir(parents=True, exist_ok=True)
        return self._folder / mask

    def predictions(self) -> Predictions:
        header = ["file", "mask", *(f"share_{name}" for name in self._classes)]
        return Predictions(header, [*self._rows.values()], np.empty((len(self._rows), 0)), self._said)


def _thresholds(opened: Opened) -> tuple[list[float], list[str]]:
    adjustment, n = opened.adjustment, len(opened.task.classes)
    if adjustment is None or not adjustment.flags:
        return [HALF] * n, []
    found = float(adjustment.lambdas(torch.tensor([-1]))[0])
    if np.isnan(found):
        return [HALF] * n, ["the run's thresholds are for groups of patients, which no file names: 0.5 is used"]
    return [1.0 - found] * n, []


def _outputs(opened: Opened, batches: Callable[[], Iterator[Batch]]) -> Tensor:
    """Logits (N, C) on the CPU."""
    device = default_device()
    opened.network.to(device)
    return predicted(opened.network, opened.parts.trainer.shared_batches(batches), device)[0]


@torch.no_grad()
def _network(opened: Opened, inputs: Tensor) -> Tensor:
    device = default_device()
    outputs: Tensor = opened.network.to(device)(inputs.to(device))
    return outputs.float().cpu()


def _answers(opened: Opened, outputs: Tensor, members: Tensor) -> tuple[list[str], list[list[Any]], np.ndarray]:
    """What the task's kind makes of the outputs; class, probabilities and, with thresholds, what they say of each."""
    task, classes, adjustment = opened.task, opened.task.classes, opened.adjustment
    if not task.kind.has_classes:
        return *opened.kind.answer(outputs, classes), np.empty((len(outputs), 0))
    if adjustment is None:
        probabilities = outputs.double().softmax(1).numpy()
    else:
        probabilities = adjustment.probabilities(outputs, members)
    header, rows = named_classes(probabilities, classes)
    if adjustment is not None and adjustment.makes_sets:
        header.append("set")
        sets = adjustment.sets(probabilities, members)
        rows = [[*row, "|".join(classes[c] for c in one)] for row, one in zip(rows, sets)]
    elif adjustment is not None and adjustment.flags:
        header.append(f"flagged_{classes[1]}")
        limits = adjustment.lambdas(members)
        flagged = 1.0 - probabilities[:, 1] <= limits
        rows = [[*row, "" if np.isnan(limit) else int(one)] for row, one, limit in zip(rows, flagged, limits)]
    return header, rows, probabilities


CODES = {-9.0, -99.0, -999.0}
"""Numbers that are a code for missing even in one row."""
FAR = 6.0
"""Standard deviations from the training mean from which on a number of a table is named."""
ENOUGH = 10
"""Rows whose mean says something of their units."""
FAR_IMAGE = 4.0
"""The same of an image's mean intensity, and the training images' means."""
TIMES = 2.0
"""So many times smaller or larger than any training image may edges and pixels be."""


def of_table(
    inputs: TableInputs, columns: Mapping[str, Sequence[str]], numbers: np.ndarray, scaling: Scaling
) -> list[str]:
    """Values that no training table can have, numbers far from the training mean, other units, a code for missing."""
    found = []
    for name, known in inputs.known.items():
        usual = {"", *gaps_of(name, inputs.gaps), *map(plain, known)}
        strange = [cell for cell in map(plain, columns.get(name, ())) if cell not in usual]
        if strange:
            found.append(
                f"{name}: {plural(len(strange), 'row')} with an unknown value, e.g. {shown(strange[0])}; "
                f"known: {', '.join(known[:8])}"
            )
    far = scaling.distance(numbers) > FAR
    of_vectors = [k for k, one in enumerate(inputs.numbers) if SIGN in one.name]
    if n := int((far[:, of_vectors].mean(axis=1) > FAR_SHARE).sum()) if of_vectors else 0:
        more = f"{FAR_SHARE:.0%} of their features more than {FAR:g} standard deviations from the training means"
        found.append(f"{plural(n, 'row')} with over {more}: the same images, stain and encoder?")
    for k, one in enumerate(inputs.numbers):
        if SIGN in one.name:
            continue
        mean, std, column = float(scaling.mean[k]), float(scaling.std[k]), numbers[~np.isnan(numbers[:, k]), k]
        ends = sorted([(mean, std), (float(column.mean()), float(column.std()))]) if len(column) >= ENOUGH else []
        if ends and other_units(*ends):
            text = f"a mean of {column.mean():.4g}, in training {mean:.4g}"
            found.append(f"{one.name}: {text}: are the units the same?")
        below = column[column < 0]
        alone = 1 < len(below) < len(column) and np.ptp(below) == 0
        if mean > 0 and len(below) and (alone or {*below.tolist()} <= CODES):
            text = f"{below[0]:g} in {plural(len(below), 'row')}: a code for missing? Its cells should be empty"
            found.append(f"{one.name}: {text}")
        if far[:, k].any() and not one.values:
            row = int(np.flatnonzero(far[:, k])[0])
            found.append(
                f"{one.name}: {plural(int(far[:, k].sum()), 'row')} more than {FAR:g} standard deviations from the "
                f"training mean {mean:.4g} (sd {std:.4g}), e.g. {numbers[row, k]:.4g}"
            )
    return found


def of_images(
    inputs: ImageInputs, kept: Sequence[Mapping[str, Any]], places: Mapping[str, Geometry], means: Mapping[str, float]
) -> list[str]:
    """Channels, edges, spacing and intensity that no training image has.

    Args:
        inputs: how images are prepared.
        kept: what sites keep of theirs; without any only what the network takes is known.
        places: name -> geometry of a file.
        means: name -> mean intensity in [0, 1] of what the network takes, before it is normalised.
    """
    channels = {c for one in kept for c in _numbers(one.get("channels"))} or {float(inputs.reader.channels)}
    odd: dict[str, Any] = {name: one.channels for name, one in places.items() if one.channels not in channels}
    found = _line("channels", odd, lambda value: f"{value}", "/".join(f"{c:g}" for c in sorted(channels)))
    for axis, edge in enumerate(("height", "width")):
        size = inputs.reader.shape[axis]
        known = [value for one in kept for value in _numbers(one.get(edge))] or [float(size), 16.0 * size]
        low, high = min(known), max(known)
        edges = {name: getattr(one, edge) for name, one in places.items()}
        odd = {name: value for name, value in edges.items() if not low / TIMES <= value <= high * TIMES}
        found += _line(edge, odd, lambda value: f"{value} pixels", f"{low:g} to {high:g}")
    ranges = [edge for one in kept for edge in (one.get("spacing") or []) if len(_numbers(edge)) == 2]
    if ranges:
        low, high = min(edge[0] for edge in ranges), max(edge[1] for edge in ranges)
        measured = {name: one.spacing for name, one in places.items() if one.spacing is not None}
        odd = {n: v for n, v in measured.items() if min(v) < low / TIMES or max(v) > high * TIMES}
        form = "{:.3g} x {:.3g} mm".format
        found += _line("spacing", odd, lambda value: form(*value[:2]), f"{low:.3g} to {high:.3g} mm")
    means_of = [one["intensity"] for one in kept if isinstance(one.get("intensity"), dict)]
    shades = [one for one in means_of if all(type(one.get(key)) in (int, float) for key in ("mean", "std"))]
    if shades:
        ends = [(one["mean"], FAR_IMAGE * max(one["std"], 0.01)) for one in shades]
        odd = {name: value for name, value in means.items() if all(abs(value - mean) > far for mean, far in ends)}
        expected = " or ".join(f"{one['mean']:.2f} (sd {one['std']:.2f})" for one in shades[:3])
        found += _line("mean intensity", odd, lambda value: f"{value:.2f}", expected)
    return found


def _line(what: str, odd: Mapping[str, Any], words: Any, training: str) -> list[str]:
    name = next(iter(odd), None)
    return (
        []
        if name is None
        else [f"{what}: {plural(len(odd), 'file')} unlike the training's {training}, e.g. {name}: {words(odd[name])}"]
    )


def _numbers(values: Any) -> list[float]:
    """Finite numbers of a list from a site's file; anything else counts as none."""
    proper = isinstance(values, list) and all(type(v) in (int, float) and np.isfinite(v) for v in values)
    return [float(v) for v in values] if proper else []


Masked = tuple[Path, Tensor, Volume]
"""The first file of an image, its structures' probabilities float32 (C, X, Y, Z) at its voxels, the stored volume."""


def batches_of(opened: Opened, files: Sequence[Files]) -> Callable[[], Iterator[Batch]]:
    """Volumes as the network takes them, one at a time."""
    inputs = opened.task.image_inputs()
    assert inputs is not None and isinstance(inputs.reader, VolumeReader)  # the caller has looked
    reader, mean, std = inputs.reader, inputs.mean, inputs.std

    def batches() -> Iterator[Batch]:
        for source in files:
            ready = normalised(as_float(reader.image(source)[None]), mean, std)
            yield Batch(ready, torch.zeros(1, dtype=torch.int64), torch.full((1,), -1))

    return batches


def at_home(reader: VolumeReader, source: Files, probabilities: Tensor) -> Masked:
    """Probabilities (C, *grid) at the file's own voxels, linearly between the grid's; 0 beyond it."""
    from monai.transforms import SpatialResample

    grid, found = reader.placed(source)
    affine = torch.from_numpy(found.affine)
    back = SpatialResample(mode="bilinear", padding_mode="zeros", dtype=np.float32)
    moved = back(
        placed_as(probabilities, grid.affine.numpy()), dst_affine=affine, spatial_size=found.stored.pixels.shape
    )
    return file_of(source), torch.as_tensor(moved).clamp(0, 1), found


def write_volume_mask(target: Path, masked: Masked, thresholds: Sequence[float], reader: VolumeReader) -> None:
    """Write a mask with the shape, affine and codes of the file that it is of; of DICOM in the series' own order."""
    import nibabel

    path, probabilities, found = masked
    values = pixel_values(probabilities, thresholds, reader.values or {}, reader.background, largest=False)
    made = nibabel.Nifti1Image(values, found.affine)
    if suffix_of(path) in NIFTI:
        source: Any = nibabel.load(path)
        alike = values.size == math.prod(source.shape)  # unless its fourth axis holds contrasts
        made = nibabel.Nifti1Image(values.reshape(source.shape) if alike else values, source.affine)
        made.header.set_xyzt_units(*source.header.get_xyzt_units())
        for kind in ("sform", "qform"):
            getattr(made, f"set_{kind}")(source.affine, int(source.header[f"{kind}_code"]))
    nibabel.save(made, target)
