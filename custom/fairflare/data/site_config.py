# SPDX-License-Identifier: Apache-2.0
"""One small file per hospital, where its data are and what it allows; it stays there and is never part of a job."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import stat
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from pydantic.dataclasses import dataclass

from fairflare.core.errors import UserError
from fairflare.core.execution import Compiler, Layout, default_device
from fairflare.core.validation import SITE, STRICT, Range, Text, check_plain, expected, one_line
from fairflare.data.readers.cases import DATES

LARGEST = 65_536
"""Bytes of a file."""
VARIABLE = "FAIRFLARE_SITE_CONFIG"
GPUS = r"( *\d{1,4} *(, *\d{1,4} *){0,63})?"
"""What ``gpus`` looks like."""
MOST_GPUS, MOST_THREADS = 1024, 8
TABLES = "fairflare.data.readers.table_features"
"""What reads a table's cells: by a name that no reader of imports follows, as sites with images convert none."""
CONVERSION = ("scale", "shift", "recode", "dates")
FILES = ("fairflare_site.yaml", "fairflare_site.yml", "fairflare_site.json")


@one_line
@dataclass(frozen=True, config=STRICT)
class SiteConfig:
    """What a site decides for itself.

    Attributes:
        data_root: folder that holds the site's data; a relative one starts at the configuration's own folder. No path
            of the datalist may lead out of it.
        datalist: the site's datalist or table, relative to ``data_root`` and inside it.
        gpu: number of the GPU to use; None takes the first one, where there is one.
        gpus: numbers of several, separated by commas, which share every training batch; inexact. Empty: ``gpu`` alone.
        batch_size: in place of the job's, for a smaller GPU; None keeps the job's.
        num_workers: threads that read images ahead of the training; 0 reads them when they are needed. None: where a
            GPU computes one for each core, at most 8, else 0.
        cache_rate: share of the images that stay in memory once read, in [0, 1].
        cache_gb: GB that they may take in memory; None: 1.5 for all sites of one process together.
        cache_folder: folder on whose disk decoded images lie that memory has no room for, while the process lives; "":
            they are read again.
        min_count: the fewest examples of a group whose numbers may leave; None: none leave.
        secure_sum: True takes part in jobs with secure sums only.
        clinical: whether it says how well calibrated the model is that it uses, and what its decisions are.
        links: whether a symbolic link below ``data_root`` may lead out of it; no path of the datalist may.
        layout: of images and convolutions in memory, see ``core.execution.Execution``; all but "auto" are inexact.
        compiler: backend of ``torch.compile`` for training; all but "none" are inexact.
        patient_key: a secret of the hospitals, of 16 characters or more, by which a patient at several of them is dealt
            into one fold; the server does not have it.
        weights: the file that a network's frozen body is read from, where the job does not bring it.
        features: folder that keeps what a frozen body gives for each image, for later runs; "": memory alone does.
        features_gb: GB that they may take there.
        scale: column of the table -> what its numbers are multiplied by, to have the federation's unit.
        shift: column -> what is added then.
        recode: column -> its words, or the codes of its lists, -> the federation's.
        dates: column -> how its dates are written, a key of ``table_features.DATES``.
        site: the site's name; the job gives it, the file does not.
    """

    data_root: str = ""
    datalist: str = ""
    gpu: Annotated[int, Range(0, 1023)] | None = None
    gpus: Annotated[str, Text(pattern=GPUS, words="different numbers below 1024, as in 0,1")] = ""
    batch_size: Annotated[int, Range(2, 65_536)] | None = None
    num_workers: Annotated[int, Range(0, 1024)] | None = None
    cache_rate: Annotated[float, Range(0, 1)] = 1.0
    cache_gb: Annotated[float, Range(0, 100_000)] | None = None
    cache_folder: str = ""
    min_count: Annotated[int, Range(0, 1_000_000)] | None = 10
    secure_sum: bool = False
    clinical: bool = True
    links: bool = False
    layout: Layout = "auto"
    compiler: Compiler = "none"
    patient_key: Annotated[str, Text(pattern="(.{16,200})?", words="16 to 200 characters")] = ""
    weights: str = ""
    features: str = ""
    features_gb: Annotated[float, Range(0, 100_000)] = 5.0
    scale: dict[str, float] = dataclasses.field(default_factory=dict, hash=False)
    shift: dict[str, float] = dataclasses.field(default_factory=dict, hash=False)
    recode: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict, hash=False)
    dates: dict[str, str] = dataclasses.field(default_factory=dict, hash=False)
    site: str = ""

    def __post_init__(self) -> None:
        """Raises UserError where two keys contradict each other."""
        numbers = self.gpu_numbers
        fits = len(set(numbers)) == len(numbers) and max(numbers, default=0) < MOST_GPUS
        expected("gpus", fits, "different numbers below 1024, as in 0,1", self.gpus)
        expected("gpus", not (numbers and self.gpu is not None), "gpu or gpus", "both")
        expected("gpus", not (numbers and self.compiler != "none"), "no compiler beside several GPUs", self.compiler)
        expected("scale", all(self.scale.values()), "factors other than 0", self.scale)
        expected("dates", {*self.dates.values()} <= {*DATES}, f"columns with one of {', '.join(DATES)}", self.dates)

    @property
    def threads(self) -> int:
        """``num_workers``, in numbers."""
        by_itself = min(len(os.sched_getaffinity(0)), MOST_THREADS) if default_device().type == "cuda" else 0
        return by_itself if self.num_workers is None else self.num_workers

    @property
    def conversion(self) -> dict[str, Any]:
        """``scale``, ``shift``, ``recode`` and ``dates``, as far as the file has them."""
        return {key: value for key in CONVERSION if (value := getattr(self, key))}

    def convert(self, table: Any, gaps: Collection[str], lists: Mapping[str, str] = MappingProxyType({})) -> list[str]:
        """Give ``table`` (a frame of texts, or column -> cells) the federation's units, words and dates, in place.

        Cells of ``gaps``, which stand for a missing value, stay. ``lists``: column -> what stands between the codes of
        a cell. Returns the columns that are not there.
        """
        names = list(dict.fromkeys(name for key in self.conversion.values() for name in key))
        reader: Any = importlib.import_module(TABLES)
        for name in names:
            if name in table:
                table[name] = self.converted(name, table[name], reader.gaps_of(name, gaps), lists.get(name, ""))
        return [name for name in names if name not in table]

    def converted(self, name: str, cells: Sequence[str], gaps: Collection[str], separator: str = "") -> list[str]:
        """The ``cells`` of a column by its entries of the file, but for ``gaps``, which stay.

        With a ``separator`` each code of a cell is recoded.
        """
        reader: Any = importlib.import_module(TABLES)
        words, by, plus = self.recode.get(name, {}), self.scale.get(name, 1.0), self.shift.get(name, 0.0)
        found = [words.get(cell, cell) for cell in cells]
        if separator and words:
            lists = {
                cell: separator.join(words.get(one, one) for one in reader.parts(cell, separator)) for cell in {*found}
            }
            found = [lists[cell] for cell in found]
        if form := self.dates.get(name, ""):
            found = [cell if cell in gaps else reader.iso_date(cell, form) or cell for cell in found]
        for row, cell in enumerate(found if name in {*self.scale, *self.shift} else ()):
            with contextlib.suppress(ValueError):  # a cell that is no number is the reader's
                found[row] = cell if cell in gaps else f"{float(cell) * by + plus:.12g}"
        return found

    @property
    def gpu_numbers(self) -> tuple[int, ...]:
        return tuple(int(number) for number in self.gpus.split(",") if number.strip())


def find_site_config(local: Path | None = None, site: str = "") -> SiteConfig | None:
    """The configuration that ``FAIRFLARE_SITE_CONFIG`` names, or ``fairflare_site.yaml`` in ``local``; None: neither.

    Where the variable names a folder, as for trying several sites on one machine, it is ``<site>.yaml`` in there.
    UserError as ``read_site_config``, or for a name that could leave the folder.
    """
    if named := os.environ.get(VARIABLE):
        path = Path(named)
        if folder := os.path.isdir(path):
            expected("site", bool(SITE.fullmatch(site)), "a name of letters, digits, spaces, - . and _", site)
        own = [path / f"{site}{suffix}" for suffix in (".yaml", ".yml", ".json")] if folder else [path]
        found = [file for file in own if os.path.isfile(file)] or own[:1]
    else:
        found = [local / name for name in FILES if local and os.path.isfile(local / name)]
    return dataclasses.replace(read_site_config(found[0]), site=site) if found else None


def read_site_config(path: Path) -> SiteConfig:
    """Read a YAML or JSON file; UserError for none, an unknown key (lists the known) or a value of another kind."""
    where = f"site configuration {path.name}"
    content = _content(path, where)
    check_plain(where, content)
    try:
        if not isinstance(content, dict):
            raise UserError(f"expected keys and values, got {type(content).__name__}")
        expected("site", "site" not in content, "no such key: the job gives it", content.get("site"))
        found = SiteConfig(**content)
        own = {key: getattr(found, key) for key in ("weights", "features", "cache_folder")}
        own = {key: str((path.parent / one).resolve()) for key, one in own.items() if one}
        able = not found.cache_folder or os.access(own["cache_folder"], os.W_OK | os.X_OK)
        expected("cache_folder", able, "a folder that this user may write into", found.cache_folder)
        home = (path.parent / found.data_root).resolve()
        inside = (home / found.datalist).resolve().is_relative_to(home)
        expected("datalist", inside or not found.data_root, "a path inside data_root", found.datalist)
        return dataclasses.replace(found, **own, data_root=str(home) if found.data_root else "")
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, names too long
        raise UserError(f"{where}: data_root: expected a path ({type(error).__name__})") from None


def _content(path: Path, where: str) -> Any:
    import yaml

    what = "a YAML or JSON file"
    try:
        # Without waiting: a pipe that nobody writes to would hold a site up for ever.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            expected(where, stat.S_ISREG(os.fstat(file.fileno()).st_mode), what, "something else")
            text = file.read(LARGEST + 1)
        expected(where, len(text) <= LARGEST, f"at most {LARGEST} bytes", "more")
        return yaml.safe_load(text.decode("utf-8"))  # JSON is YAML too
    except (OSError, ValueError, yaml.YAMLError, RecursionError, TypeError, AttributeError) as error:
        raise UserError(f"{where}: expected {what} ({type(error).__name__})") from None


def stricter(own: int | None, job: int | None) -> int | None:
    """The larger of two minimum counts; None, which lets nothing leave, is the largest."""
    return None if own is None or job is None else max(own, job)
