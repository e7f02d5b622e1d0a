# SPDX-License-Identifier: Apache-2.0
"""Tables: rows that name images, or rows that are the examples; a column, or a table each, for the sites."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fairflare.app.intake import masks
from fairflare.app.intake.found import (
    SPLIT_OF,
    Choices,
    Example,
    Found,
    class_names,
    is_missing,
    root_name,
    site_name,
)
from fairflare.app.intake.walk import Files
from fairflare.clinic.readers import naming
from fairflare.clinic.readers.naming import stem
from fairflare.core.errors import UserError
from fairflare.core.order import natural, some
from fairflare.core.validation import shown

SUFFIXES = (".csv", ".tsv", ".parquet")
WORDS = {
    "site": """site hospital centre center institution institute clinic client facility siteid hospitalid centerid
        centreid""",
    "patient": "patientid patient subjectid subject pid participantid participant personid mrn caseid",
    "split": "split subset partition fold set",
    "label": "label class diagnosis outcome target disease dx finding category y",
}
NAMES = {role: words.split() for role, words in WORDS.items()}
"""What a column is for, by its name in lower case without signs; the first that fits."""
GROUPS = """sex gender race ethnicity agegroup ageband insurance scanner manufacturer vendor device modality
    fieldstrength"""
ATTRIBUTES = tuple(GROUPS.split())
"""Columns by which patients are grouped, where they hold a few values."""
AGE = ("age", "ageyears", "ageatscan", "patientage")
BANDS = ((40, "under 40"), (60, "40 to 59"), (80, "60 to 79"), (1000, "80 and over"))
BAND = "age_band"
MOST_VALUES = 8
HALF = 0.5
Row = Mapping[str, str]


@dataclass(frozen=True)
class Table:
    """One file: its site where that is the file's or folder's name, the folder it lies in, columns and rows as text."""

    site: str
    split: str
    home: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def tables_in(root: Path) -> list[Path]:
    """Tables in ``root``, or else in its folders, in natural order."""
    for pattern in ("*", "*/*"):
        paths = [p for p in root.glob(pattern) if p.suffix.lower() in SUFFIXES and not p.name.startswith(".")]
        paths = [path for path in paths if path.is_file() and not path.parent.name.startswith(".")]
        paths = [path for path in paths if pattern == "*" or path.parent.name != "fairflare"]
        if paths:
            return sorted(paths, key=lambda path: natural(str(path)))
    return []


def examples_in_tables(files: Files, paths: Sequence[Path], chosen: Choices) -> Found:
    """What the tables say of images, or by themselves.

    Raises:
        UserError: a table cannot be read, tables differ in their columns, or no column is the label.
    """
    tables = _read(files.root, paths)
    columns = tables[0].columns
    for table, path in zip(tables, paths):
        if set(table.columns) != set(columns):
            odd = sorted(set(table.columns) ^ set(columns))
            raise UserError(f"init: {path.name}: expected the columns of {paths[0].name}; differs in {some(odd, 3)}")
    index = _index(files)
    image = _column_of_files(tables, columns, index, lambda path: not naming.is_mask(path))
    role = {name: _role(name, columns, chosen) for name in ("site", "patient", "split")}
    if image:
        return _images(files, tables, image, index, role, chosen)
    return _rows(files, tables, role, chosen)


def _read(root: Path, paths: Sequence[Path]) -> list[Table]:
    """The tables; those called by sites or lying in their folders have a site, those called by splits a split."""
    stems = [path.stem for path in paths]
    by_split = all(name.lower() in SPLIT_OF for name in stems) and len(paths) > 1
    nested = paths[0].parent != root
    found = []
    for path in paths:
        site = (
            site_name(path.parent.name if nested else path.stem) if nested or (len(paths) > 1 and not by_split) else ""
        )
        split = SPLIT_OF.get(path.stem.lower(), "") if by_split or nested else ""
        columns, rows = _content(path)
        home = path.parent.relative_to(root).as_posix()
        found.append(Table(site, split, home, columns, rows))
    return found


def _content(path: Path) -> tuple[tuple[str, ...], tuple[Row, ...]]:
    import pandas as pd

    try:
        if path.suffix.lower() == ".parquet":
            table = pd.read_parquet(path)
            table = table.astype(object).where(table.notna(), "").map(_cell)
        else:
            with path.open(encoding="utf-8-sig", newline="") as file:
                head = file.readline()
            sign = max(",;\t|", key=head.count)
            table = pd.read_csv(
                path, dtype=str, keep_default_na=False, skipinitialspace=True, sep=sign, encoding="utf-8-sig"
            )
    except ImportError:
        raise UserError(f"init: {path.name}: Parquet needs pyarrow: pip install 'fairflare[parquet]'") from None
    except Exception as error:  # pandas raises its own and its parsers' errors
        raise UserError(f"init: {path.name}: cannot be read as a table ({type(error).__name__})") from None
    columns = tuple(str(name).strip() for name in table.columns)
    cells = table.itertuples(index=False, name=None)
    rows = tuple({name: str(cell).strip() for name, cell in zip(columns, row)} for row in cells)
    if not rows:
        raise UserError(f"init: {path.name}: expected rows, got none")
    return columns, rows


def _cell(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _plain(name: str) -> str:
    return "".join(sign for sign in name.lower() if sign.isalnum())


def _role(role: str, columns: Sequence[str], chosen: Choices) -> str:
    """The column of a role, "" where there is none; UserError where the user names one that is not there."""
    given = getattr(chosen, role, "")
    if given == "none":
        return ""
    if given:
        if given not in columns:
            raise UserError(f"--{role}: expected a column among {some(columns, 12)}, got {shown(given)}")
        return str(given)
    by_plain = {_plain(name): name for name in reversed(columns)}
    return next((by_plain[name] for name in NAMES[role] if name in by_plain), "")


def _index(files: Files) -> dict[str, str]:
    """A path, its name, or its name without suffix -> the path; names that several images have are left out."""
    found: dict[str, str] = {}
    for short in (lambda path: PurePosixPath(path).name, stem):
        counts = Counter(short(path) for path in files.images)
        found |= {short(path): path for path in files.images if counts[short(path)] == 1}
    return found | {path: path for path in files.images}


def _place(cell: str, home: str, index: Mapping[str, str]) -> str:
    """The image that a cell names: relative to the table, to the folder of all, or by its name alone."""
    text = cell.replace("\\", "/").removeprefix("./")
    near = f"{home}/{text}" if home != "." else text
    return index.get(near) or index.get(text) or index.get(PurePosixPath(text).name, "") if text else ""


def _column_of_files(
    tables: Sequence[Table], columns: Sequence[str], index: Mapping[str, str], fits: Callable[[str], bool]
) -> str:
    """The column most of whose cells name images that ``fits``; the first of equals."""
    best, most = "", HALF
    for name in columns if index else ():
        cells = [(row[name], table.home) for table in tables for row in table.rows if not is_missing(row[name])]
        hits = sum(bool((path := _place(cell, home, index)) and fits(path)) for cell, home in cells)
        share = hits / len(cells) if cells else 0.0
        if share > most:
            best, most = name, share
    return best


def _site_of(files: Files, table: Table, row: Row, role: Mapping[str, str], chosen: Choices) -> str:
    if chosen.site == "none":
        return root_name(files.root)
    if role["site"]:
        return site_name(row[role["site"]])
    return table.site or root_name(files.root)


def _split_of(table: Table, row: Row, column: str) -> str:
    return SPLIT_OF.get(row[column].lower(), "") if column else table.split


def _images(
    files: Files,
    tables: Sequence[Table],
    image: str,
    index: Mapping[str, str],
    role: Mapping[str, str],
    chosen: Choices,
) -> Found:
    columns = tables[0].columns
    mask = "" if chosen.kind == "classification" else _column_of_files(tables, columns, index, naming.is_mask)
    label = mask or chosen.label or _role("label", columns, Choices())
    beside: Mapping[str, str] = {}
    if not label:
        beside = naming.pairs(files.images)[0]
    if not any(beside.values()) and label not in columns:
        raise UserError(_no_label(columns, label))
    keep = _attributes(tables, [image, label, *role.values()])
    examples, gone, bare = [], [], 0
    for table in tables:
        for row in table.rows:
            path = _place(row[image], table.home, index)
            text = _place(row[mask], table.home, index) if mask else row[label] if label else beside.get(path, "")
            if not path:
                gone.append(row[image])
            elif is_missing(text):
                bare += 1
            else:
                site, split = _site_of(files, table, row, role, chosen), _split_of(table, row, role["split"])
                patient = row[role["patient"]] if role["patient"] else ""
                about = _about(row, keep)
                examples.append(Example(site, path, text, split, "" if is_missing(patient) else patient, about))
    notes: tuple[str, ...] = (f"{bare} rows have no label and are left out",) if bare else ()
    notes += (f"{len(gone)} rows name images that are not there and are left out, e.g. {gone[0]}",) if gone else ()
    patients = f"column {role['patient']}" if role["patient"] else ""
    if mask or not label:
        names, options = masks.structures(files.root, [one.label for one in examples], chosen.classes, {})
        return Found("segmentation", "a table of images and masks", examples, names, options, patients, notes)
    names = class_names((one.label for one in examples), chosen.classes)
    return Found("classification", f"a table of images with column {label}", examples, names, {}, patients, notes)


def _rows(files: Files, tables: Sequence[Table], role: Mapping[str, str], chosen: Choices) -> Found:
    columns = tables[0].columns
    if chosen.kind in ("classification", "segmentation"):
        raise UserError(f"init: no column of the table names images; it has: {some(columns, 12)}")
    label = chosen.label or _role("label", columns, Choices())
    if label not in columns:
        raise UserError(_no_label(columns, label))
    taken = [label, *role.values()]
    keep = _attributes(tables, taken)
    features = [name for name in columns if name not in taken and _is_number(tables, name) and not _is_id(tables, name)]
    if not features:
        raise UserError(f"init: expected columns of numbers as features; the table has: {some(columns, 12)}")
    examples, bare = [], 0
    for table in tables:
        for row in table.rows:
            if is_missing(row[label]):
                bare += 1
                continue
            site, split = _site_of(files, table, row, role, chosen), _split_of(table, row, role["split"])
            patient = row[role["patient"]] if role["patient"] else ""
            cells = {name: "" if is_missing(row[name]) else row[name] for name in features}
            examples.append(Example(site, "", row[label], split, patient, _about(row, keep), cells))
    unused = [name for name in columns if name not in (*features, *taken, *keep)]
    notes: tuple[str, ...] = (f"{bare} rows have no {label} and are left out",) if bare else ()
    notes += (f"columns left out, which are no numbers: {some(unused, 8)}",) if unused else ()
    notes += ("make sure that no feature is known only after the outcome",)
    options = {"label": label, "features": ",".join(features)}
    names = class_names((one.label for one in examples), chosen.classes)
    patients = f"column {role['patient']}" if role["patient"] else ""
    return Found("tabular", f"tables with column {label}", examples, names, options, patients, notes)


def _no_label(columns: Sequence[str], label: str) -> str:
    known = f"the table has: {some(columns, 12)}"
    return (
        f"--label: expected a column; {known}, got {label!r}" if label else f"init: --label COLUMN says which; {known}"
    )


def _attributes(tables: Sequence[Table], taken: Sequence[str]) -> list[str]:
    """Columns by which patients may be grouped."""
    found = []
    for name in tables[0].columns:
        plain = _plain(name)
        if name in taken or (plain not in ATTRIBUTES and plain not in AGE):
            continue
        values = {row[name] for table in tables for row in table.rows if not is_missing(row[name])}
        few = 2 <= len(values) <= MOST_VALUES and not any(sign in value for value in values for sign in "|;=+")
        if (plain in AGE and _is_number(tables, name)) or (plain in ATTRIBUTES and few):
            found.append(name)
    return found


def grouped(columns: Sequence[str], rows: Sequence[Row]) -> list[dict[str, str]]:
    """Of each row the cells by which patients may be grouped, ages as bands."""
    keep = _attributes([Table("", "", ".", tuple(columns), tuple(rows))], [])
    return [_about(row, keep) for row in rows]


def _about(row: Row, keep: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in keep:
        if is_missing(row[name]):
            continue
        if _plain(name) in AGE:
            found[BAND] = next((word for most, word in BANDS if float(row[name]) < most), BANDS[-1][1])
        else:
            found[name] = row[name]
    return found


def _is_number(tables: Sequence[Table], name: str) -> bool:
    cells = [row[name] for table in tables for row in table.rows if not is_missing(row[name])]
    return bool(cells) and all(_number(cell) for cell in cells)


def _number(cell: str) -> bool:
    try:
        return abs(float(cell)) < 1e300
    except ValueError:
        return False


def _is_id(tables: Sequence[Table], name: str) -> bool:
    """Whether a column numbers the rows: called an id, or empty as pandas writes its index."""
    plain = _plain(name)
    if plain not in ("", "id", "index", "unnamed0", "rowid", "row") and not plain.endswith("id"):
        return False
    return all(len({row[name] for row in table.rows}) == len(table.rows) for table in tables)
