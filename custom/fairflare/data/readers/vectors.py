# SPDX-License-Identifier: Apache-2.0
"""Features that an encoder has computed: one vector per patient, or a bag of vectors per patient or slide.

In the folder ``<vectors>`` of the data root lies what a site has: ``<site>.npz`` (.npy, .h5, .parquet) with an id for
each vector, or the folder ``<site>`` with a file per id, which is then the file's name. Vectors of one id are its bag.
``encoder.json`` beside them says which encoder made them, {"name": "UNI", "sha256": "..."}, unless the files do.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairflare.core.errors import DataError, UserError
from fairflare.core.validation import SHA256, expected, shown, some
from fairflare.data.inputs import NAME, Pooling
from fairflare.data.readers.cases import PREFIX, SIGN
from fairflare.data.readers.files import FileSplit as FileSplit
from fairflare.data.readers.limits import check
from fairflare.data.site_config import SiteConfig

IDS = ("id", "ids", "patient_id", "patient", "slide_id")
"""What ids are called in a file; and in a table, whose first of these columns names each row's vectors."""
VALUES = ("features", "vectors", "embeddings")
ABOUT = "encoder.json"
Content = tuple[Mapping[str, Any], Mapping[str, Any]]
"""Arrays by name, and what a file says of itself."""


@dataclass(frozen=True)
class Encoder:
    """What made the features: the name and SHA-256 of its weights, and how many numbers a vector has."""

    name: str
    width: int
    sha256: str

    def __str__(self) -> str:
        """As the option ``encoder`` has it: NAME:NUMBERS:SHA256."""
        return f"{self.name}:{self.width}:{self.sha256}"

    @classmethod
    def of(cls, text: str) -> Encoder:
        """Read ``str`` back; UserError for anything else."""
        name, _, rest = text.partition(":")
        width, _, sha256 = rest.partition(":")
        fits = bool(NAME.fullmatch(name)) and width.isascii() and width.isdigit() and 0 < int(width[:6]) <= 20_000
        expected("encoder", fits and bool(SHA256.fullmatch(sha256)), "NAME:NUMBERS:SHA256 of its weights", text)
        return cls(name, int(width), sha256)


def names(folder: str, width: int) -> list[str]:
    """What the features are called as columns."""
    return [f"{folder}{SIGN}{k}" for k in range(width)]


@dataclass(frozen=True)
class Vectors:
    """An encoder's features beside a table: in which folder of the data root, of which encoder, and what bags become.

    ``encoder`` is as ``Encoder`` is written.
    """

    folder: str
    encoder: str
    pooling: Pooling

    def pooled(self, own: SiteConfig, columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Pooled features of the rows of a site's table as columns, none where attention pools; raises DataError."""
        if self.pooling == "attention":
            return {}
        features, ids = self._of(own, columns)
        pooled = features.pooled(ids, self.pooling)
        return dict(zip(names(self.folder, pooled.shape[1]), pooled.T, strict=True))

    def bags(
        self, own: SiteConfig, columns: Mapping[str, Any], inputs: Tensor, targets: Tensor
    ) -> Callable[[int], tuple[Tensor, Tensor]] | None:
        """See ``TableInputs.bags``."""
        if self.pooling != "attention":
            return None
        features, ids = self._of(own, columns)
        return lambda row: (features.with_rows(ids[row], inputs[row]), targets[row])

    def _of(self, own: SiteConfig, columns: Mapping[str, Any]) -> tuple[Bags, Sequence[str]]:
        """Those of a site, and the id of each row of its table; raises DataError."""
        stem = Path(own.datalist).stem.removeprefix(PREFIX)
        found = Bags(Path(own.data_root), self.folder, stem, own.links)
        found.check(self.encoder)
        return found, found.ids_of(columns, Path(own.datalist).name)


class Bags:
    """A site's features; bags are read when they are asked for.

    Attributes:
        file: what messages call them.
        encoder: what made them.
    """

    def __init__(self, root: Path, folder: str, site: str, links: bool = False) -> None:
        """Raises DataError where they are not there, cannot be read, or are of two encoders."""
        home, here = root.resolve(), root / folder
        paths = [path for end in READERS if (path := here / f"{site}{end}").is_file()]
        self.file, single = f"features {folder}/{site}", len(paths) == 1
        if not paths and (here / site).is_dir():
            paths = sorted(path for path in (here / site).iterdir() if not path.name.startswith("."))
        elif not single:
            ends = ", ".join(READERS)
            raise DataError("missing_file", f"{self.file}: expected one file ({ends}) or a folder, got {len(paths)}")
        if out := next((one for one in paths if not links and not one.resolve().is_relative_to(home)), None):
            raise DataError("link_outside", f"{self.file}: {out.name} is a symbolic link out of the data root")
        self._bags: dict[str, tuple[Any, Any]] = {}
        made: dict[Encoder, str] = {}
        for path in paths:
            arrays, about = _read(path)
            values = next((arrays[key] for key in VALUES if key in arrays), None)
            ids = next((arrays[key] for key in IDS if key in arrays), None)
            if values is None or values.ndim not in (1, 2) or values.dtype.kind not in "fiu" or not values.shape[-1]:
                what = f"an array {VALUES[0]!r} of numbers (vectors x numbers)"
                raise DataError("shape", f"features {path.name}: expected {what}, got {some([*arrays])}")
            if single:
                if ids is None or np.shape(ids) != values.shape[:1]:
                    raise DataError("column", f"features {path.name}: expected an id per vector, as {', '.join(IDS)}")
                check(f"features {path.name}", cells=ids.size, vectors=ids.nbytes)
            made.setdefault(_encoder(path, about or _beside(here), values.shape[-1]), path.name)
            self._bags |= _by_id(ids, values) if single else {path.stem: (values, slice(0, len(values)))}
        if len(made) != 1:
            (one, at), (other, there) = [*made.items(), *[(None, "")] * 2][:2]
            raise DataError("encoder", f"{self.file}: expected one encoder, got {one} in {at} and {other} in {there}")
        self.encoder = next(iter(made))

    def check(self, text: str) -> None:
        """Raise DataError unless they are of the federation's encoder, ``text``."""
        if text != str(self.encoder):
            raise DataError("encoder", f"{self.file}: expected encoder {text}, got {self.encoder}")

    def ids_of(self, table: Mapping[str, Sequence[str]], file: str) -> Sequence[str]:
        """(N,) whose vectors each row of ``table`` has; DataError without such a column, or for an id without any."""
        name = next((key for key in ("patient_id", "patient", "slide_id", "id") if key in table), None)
        if name is None:
            raise DataError("column", f"table {file}: expected a column patient_id, patient, slide_id or id")
        lacking = [row for row, one in enumerate(table[name]) if one not in self._bags]
        if lacking:
            text = f"{len(lacking)} of {len(table[name])} rows have an id without features, first row {lacking[0]}"
            raise DataError("missing_file", f"{self.file}: {name}: {text}")
        return list(table[name])

    def bag(self, one: str) -> np.ndarray:
        """float32 (instances, numbers) of an id; DataError where they are too many, or one is not finite."""
        values, rows = self._bags[one]
        count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        check(self.file, vectors=count * values.nbytes / max(1, len(values)))
        found = np.atleast_2d(np.asarray(values[rows], dtype=np.float32))
        if not np.isfinite(found).all():
            raise DataError("nonfinite", f"{self.file}: expected finite numbers, got NaN or infinity")
        return found

    def pooled(self, ids: Sequence[str], pooling: Pooling) -> np.ndarray:
        """float64 (N, numbers): the mean or the largest over each one's bag."""
        pool = np.max if pooling == "max" else np.mean
        known = {one: pool(self.bag(one).astype(np.float64), axis=0) for one in dict.fromkeys(ids)}
        return np.stack([known[one] for one in ids]) if known else np.empty((0, self.encoder.width))

    def with_rows(self, one: str, row: Tensor) -> Tensor:
        """float32 (instances, numbers + len(row)): an id's bag, each instance beside the patient's own numbers."""
        found = torch.from_numpy(self.bag(one).copy())
        return torch.cat((found, row.expand(len(found), -1)), dim=1)


def _by_id(ids: Any, values: Any) -> dict[str, tuple[Any, Any]]:
    texts = np.array([one.decode() if isinstance(one, bytes) else str(one).strip() for one in np.asarray(ids).tolist()])
    order = np.argsort(texts, kind="stable")
    known, starts = np.unique(texts[order], return_index=True)
    parts = np.split(order, starts[1:]) if len(order) else []
    whole = (slice(int(p[0]), int(p[-1]) + 1) if p[-1] - p[0] == len(p) - 1 else p for p in parts)
    return {str(one): (values, rows) for one, rows in zip(known, whole, strict=True)}


def _encoder(path: Path, about: Mapping[str, Any], width: int) -> Encoder:
    told = {key: str(about.get(key, "")) for key in ("name", "sha256")}
    if not NAME.fullmatch(told["name"]) or not SHA256.fullmatch(told["sha256"]):
        way = f'{ABOUT} beside it with "name" and "sha256" of its encoder\'s weights'
        raise DataError("encoder", f"features {path.name}: expected {way}, got {shown(told)}")
    return Encoder(told["name"], width, told["sha256"])


def _beside(folder: Path) -> Mapping[str, Any]:
    try:
        content = json.loads((folder / ABOUT).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _read(path: Path) -> Content:
    """What a file holds; DataError where it cannot be read, or would run code."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(
            "unreadable", f"features {path.name}: expected {', '.join(READERS)}, got {path.suffix or 'none'}"
        )
    try:
        return reader(path)
    except ImportError as error:
        text = f"needs {error.name}, not installed: pip install 'fairflare[tune]'"
        raise UserError(f"features {path.name}: {text}") from None
    except DataError:
        raise
    except Exception as error:  # libraries raise their own; of NumPy a pickle is a ValueError
        pickled = " (it holds pickled objects, which are not loaded)" if "allow_pickle" in str(error) else ""
        raise DataError(
            "unreadable", f"features {path.name}: cannot be read{pickled or f' ({type(error).__name__})'}"
        ) from None


def _npy(path: Path) -> Content:
    found = np.load(path, mmap_mode="r", allow_pickle=False)
    named = found.dtype.names
    return ({name: found[name] for name in named} if named else {VALUES[0]: found}), {}


def _npz(path: Path) -> Content:
    with zipfile.ZipFile(path) as parts:
        check(f"features {path.name}", vectors=sum(one.file_size for one in parts.infolist()))
    with np.load(path, allow_pickle=False) as file:
        return _split({key: file[key] for key in file.files})


def _h5(path: Path) -> Content:
    import h5py

    file = h5py.File(path, "r")  # stays open: bags and ids are read when they are asked for
    own = [key for key in file if isinstance(file.get(key, getlink=True), h5py.HardLink)]
    arrays = {key: one for key in own if isinstance(one := file[key], h5py.Dataset)}
    away = [key for key in file if key not in own]
    away += [key for key, one in arrays.items() if one.external is not None or one.is_virtual]
    if away:
        raise DataError("link_outside", f"features {path.name}: expected data in the file, {shown(away[0])} is a link")
    attributes = {key: one for key, one in file.attrs.items() if key in ("encoder", "encoder_sha256")}
    return _split(arrays | {key: np.asarray(one) for key, one in attributes.items()})


def _parquet(path: Path) -> Content:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        groups = [file.metadata.row_group(k) for k in range(file.metadata.num_row_groups)]
        parts = [group.column(k) for group in groups for k in range(group.num_columns)]
        size = sum(max(one.total_uncompressed_size, 4 * one.num_values) for one in parts)  # what repeats takes no place
        check(f"features {path.name}", vectors=size)
        table = file.read()
    arrays = {name: table[name].to_numpy() for name in table.column_names if name in IDS}
    lists = next((name for name in VALUES if name in table.column_names), None)
    rest = [name for name in table.column_names if name not in IDS]
    arrays[VALUES[0]] = np.stack(table[lists].to_numpy()) if lists else np.stack([table[n].to_numpy() for n in rest], 1)
    told = {key.decode(): one.decode() for key, one in (table.schema.metadata or {}).items() if b"encoder" in key}
    return _split(arrays | {key: np.asarray(one) for key, one in told.items()})


def _split(arrays: Mapping[str, Any]) -> Content:
    """Arrays, and the texts that say which encoder made them."""
    told = {"name": arrays["encoder"], "sha256": arrays["encoder_sha256"]} if "encoder" in arrays else {}
    return arrays, {key: one.item() for key, one in told.items()}


READERS: dict[str, Callable[[Path], Content]] = {
    ".npz": _npz,
    ".npy": _npy,
    ".h5": _h5,
    ".hdf5": _h5,
    ".parquet": _parquet,
}


def common_encoder(root: Path, folder: str, sites: Iterable[str], links: bool) -> str:
    """The encoder of all ``sites``; UserError where two differ, which names them."""
    made = {site: str(Bags(root, folder, site, links).encoder) for site in map(str.strip, sites)}
    first = next(iter(made))
    other = next((site for site in made if made[site] != made[first]), first)
    expected(f"encoder of {other}", made[other] == made[first], f"{made[first]}, as {first} has", made[other])
    return made[first]
