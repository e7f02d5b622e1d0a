# SPDX-License-Identifier: Apache-2.0
"""Tables: rows that name images, rows that name patients of images, or rows that are the examples.

The tables of a folder are read as one, with what their names and folders say of sites and splits.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fairflare.core.errors import DataError, UserError
from fairflare.core.validation import flag, in_order, natural, shown, some
from fairflare.data.readers import geometry
from fairflare.data.readers.cases import DESCRIPTION, INSIDE, PATIENTS
from fairflare.data.readers.geometry import stem
from fairflare.data.readers.table_features import EXCEL, Feature, gaps_of, iso_date, plain
from fairflare.data.readers.tables import EXCEL as WORKBOOKS
from fairflare.data.readers.tables import LAYOUT, SUFFIXES, read_columns, read_table
from fairflare.import_data import columns as read
from fairflare.import_data.cells import Cells, Row, rows_of_sites
from fairflare.import_data.folders import NAME, PATIENT_HEADERS, images_in_folders, level_table, patients_of
from fairflare.import_data.labels import (
    AGE,
    BAND,
    NO,
    WORDS,
    YES,
    as_iso,
    bare,
    event_last,
    groups_of,
    is_date,
    may_be_turned,
    name_words,
    parted,
    same_numbers,
    sign_between,
    split_word,
    years,
)
from fairflare.import_data.levels import FOLDER, is_patient_level, roles
from fairflare.import_data.proposal import (
    Choices,
    Files,
    Found,
    Reading,
    as_examples,
    check_column,
    is_missing,
    root_name,
    site_name,
    site_names,
)
from fairflare.import_data.roles import (
    BAR,
    Evidence,
    People,
    as_site,
    columns_of,
    likely_outcomes,
    sites_by_cells,
)
from fairflare.import_data.several_rows import NAME as NAME_OF_FILE
from fairflare.import_data.several_rows import join_advice, refuse_several
from fairflare.import_data.times import checked_times, different, event_key, times_of
from fairflare.import_data.workbooks import read_laid_out
from fairflare.tasks.forms import FORMS

if TYPE_CHECKING:  # it imports torch, which takes longer than reading a table
    from fairflare.data.inputs import TableInputs

KINDS = tuple(suffix for suffix in SUFFIXES if suffix != ".txt")
"""A text beside images is seldom a table; one that is given to ``init`` is read."""
MOST_TEXTS, LARGEST_TEXT, FILLED = 100, 2**24, 0.9
"""Texts that are looked at, their bytes, and the share of filled cells from which on one is a table."""
ZEROS = re.compile(r"\.0+$")
"""pandas writes whole numbers of a column with gaps as 999.0."""
NUMBER, COMMA = re.compile(r"[-+]?\d+(\.\d+)?"), re.compile(r"[-+]?\d+,\d+")
UNIT = re.compile(
    r"([-+]?\d+(?:\.\d+)?) *(%|°[CF]|mmHg|[µumkcdn]?(?:g|l|L|m|mol|U|IU)(?:/\w+)?|years?|days?|Jahre|Tage|ans)"
)
PLAIN = b"0123456789.+-eE\n"
"""Characters of a column of numbers that have neither a comma nor a unit, with line ends between them."""
SPACED = re.compile(r"[-+]?\d{1,3}(?:[\s']\d{3})+(?:[.,]\d+)?")
EARLIEST = 3653
"""Days by Excel's count: 1910."""
HOME, SITE, SPLIT = "@home", "@site", "@split"
"""Columns beside a table's own: the folder it lies in, and what its name says."""


def tables_in(root: Path) -> list[Path]:
    """Tables in ``root``, or else in its folders, in natural order; ``root`` itself where it is one."""
    if root.is_file():
        return [root]
    for pattern in ("*", "*/*"):
        paths = [p for p in root.glob(pattern) if p.suffix.lower() in KINDS and not p.name.startswith((".", "~$"))]
        paths = [path for path in paths if path.is_file() and not path.parent.name.startswith(".")]
        if paths := [path for path in paths if pattern == "*" or path.parent.name != INSIDE]:
            return sorted(paths, key=lambda path: natural(str(path)))
    return []


def unnamed_tables(files: Files) -> list[str]:
    """Names of files in the folder, or in its folders, that by their cells are tables and are not taken for such."""
    known, found = {*(files.root / name for name in files.images), *tables_in(files.root)}, []
    paths = [] if files.root.is_file() else [*files.root.glob("*"), *files.root.glob("*/*")]
    paths = [path for path in paths if path.parent != files.root / INSIDE]
    odd = [path for path in paths if path.suffix.lower() not in (".json", ".yaml", ".md") and path not in known]
    for path in sorted(odd)[:MOST_TEXTS]:
        if path.is_file() and not path.name.startswith(".") and path.stat().st_size <= LARGEST_TEXT:
            with contextlib.suppress(DataError, UserError):
                table = read_table(path)
                if min(table.shape) > 1 and (table != "").to_numpy().mean() >= FILLED:
                    found.append(path.relative_to(files.root).as_posix())
    return found


def rows_of(root: Path, paths: Sequence[Path], chosen: Choices) -> pd.DataFrame:
    """All rows, "" where a cell says nothing; their tables' names and folders say site and split."""
    base = root if root.is_dir() else root.parent
    named = [*zip(paths, _named(base, paths), strict=True)]
    _refuse_copies(base, paths)
    unread = [site for _, (site, _) in named if site in chosen.without]
    named = [(path, pair) for path, pair in named if pair[0] not in chosen.without]
    paths = [path for path, _ in named] or paths
    found: list[pd.DataFrame] = []
    notes: list[str] = []
    odd_names: set[str] = set()
    given: dict[str, str] = {}
    if chosen.rename:
        from fairflare.data.table_columns import renamed_of  # imports torch

        given = renamed_of(read.in_line(chosen.rename), "--rename")
    unseen = {*given}
    for path, (site, split) in named:
        try:
            columns, said = read_laid_out(path, chosen)
        except DataError as error:
            raise UserError(f"init: {error}") from None
        if not any(columns.values()):
            notes.append(f"{path.name} holds no rows and is left out")
            continue
        unseen -= {*columns}
        names = [name for name in found[0] if not name.startswith("@")] if found else []
        try:
            own = _renamed([name for name in columns if given.get(name, name) not in columns], given, path.name)
            columns = _named_as({own.get(name, name): columns[name] for name in columns}, names, path.name, notes, {})
        except UserError as error:
            raise UserError(f"init: {error} (--rename COLUMN=NAME)") from None
        if found:
            lacks, more = (
                [name for name in one if name not in (*other, *chosen.leave_out)]
                for one, other in ((names, columns), (columns, names))
            )
            if lacks or more:
                odd = [f"{says} {some(one, 6)}" for says, one in (("lacks", lacks), ("has", more)) if one]
                text = f"expected the columns of {paths[0].name}; {', '.join(odd)}"
                ways = "" if lacks and more else f" ({flag('leave-out', *lacks, *more)} leaves them out)"
                if {chosen.label, chosen.time, chosen.event} & {*lacks}:
                    way = f"{flag('without', site)} leaves it out" if site else "leave it out"
                    ways = f" (a hospital without the outcome: {way})"
                if len(lacks) == len(more) and all(map(_alike, map(found[0].get, lacks), map(columns.get, more))):
                    pairs = [f"{own}={other}" for own, other in zip(more, lacks, strict=True)]
                    ways = f"; by their places and cells these may be the same ({flag('rename', *pairs)})"
                raise UserError(f"init: {path.name}: {text}{ways}; {join_advice(root, paths, chosen)}")
        home = path.parent.relative_to(base).as_posix()
        notes += said
        table, no_numbers = _cleaned(columns, path.name, chosen.missing, notes)
        odd_names |= no_numbers
        found.append(table.assign(**{HOME: home, SITE: site, SPLIT: split, NAME_OF_FILE: path.stem}))
    if not found:
        raise UserError(f"init: {paths[0].name}: expected rows, got none")
    for name in sorted(unseen):
        check_column("rename", name, [name for name in found[0] if not name.startswith("@")])
    whole = pd.concat(found, ignore_index=True)
    if any(len(table.columns) < len(whole.columns) for table in found):
        whole = whole.fillna("")
    _rewrite(whole, [name for name in whole.columns if name in odd_names], notes)
    whole.attrs |= {"notes": tuple(notes), "unread": tuple(unread)}
    return whole


def _refuse_copies(base: Path, paths: Sequence[Path]) -> None:
    """Raise UserError where two files are the same, whose rows would count twice."""
    sizes, known = Counter(path.stat().st_size for path in paths), dict[bytes, Path]()
    for path in (path for path in paths if sizes[path.stat().st_size] > 1):
        other = known.setdefault(hashlib.sha256(path.read_bytes()).digest(), path)
        if other is not path:
            same, of = (one.relative_to(base).as_posix() for one in (path, other))
            raise UserError(f"init: {same}: expected other rows than those of {of}, got a copy: move one of them away")


def _refuse_depths(files: Files, paths: Sequence[Path]) -> None:
    """Raise UserError where tables lie in folders beside tables that do not: some would not be read."""
    if files.root.is_file() or any(path.parent != files.root for path in paths):
        return
    for path in sorted(files.root.glob("*/*"), key=lambda path: natural(str(path))):
        hidden = path.name.startswith((".", "~$")) or path.parent.name.startswith(".")
        if path.suffix.lower() in KINDS and not hidden and path.parent.name != "fairflare" and path.is_file():
            name = path.relative_to(files.root).as_posix()
            ways = f"put it beside {paths[0].name}, or each hospital's table into a folder of its own"
            raise UserError(f"init: {name}: a table in a folder, beside tables that are in none: {ways}")


def _alike(*columns: Any) -> bool:
    """Whether columns hold numbers in common, or none."""
    of = (Cells.of(column) for column in columns)
    return len({cells.share(~np.isnan(cells.numbers)) >= read.MOSTLY for cells in of if not cells.empty.all()}) == 1


def _cleaned(
    columns: dict[str, list[str]], file: str, missing: Sequence[str], notes: list[str]
) -> tuple[pd.DataFrame, set[str]]:
    """The rows of a table, "" where a cell says nothing or is ``missing``, and columns of which some are no numbers.

    Takes the ``columns`` out one by one.
    """
    gaps, odd = {ZEROS.sub("", cell) for cell in missing}, set[str]()

    def clean(name: str, column: Sequence[str]) -> Any:
        if not _is_plain(name, column):
            odd.add(name)
        elif not gaps and "." not in column:  # no cell needs a look
            return np.array(column, dtype=object)
        found = Cells.of(column)
        for k in range(len(found.texts)) if gaps else np.flatnonzero(~np.isfinite(found.numbers)):
            cell = unicodedata.normalize("NFC", found.texts[k])
            one = ZEROS.sub("", cell)
            found.texts[k] = "" if is_missing(cell) or {one, f"{name}={one}"} & gaps else cell
        return found.texts[found.codes]

    table = pd.DataFrame({name: clean(name, columns.pop(name)) for name in list(columns)}, dtype=object)
    if _holds_units(table):
        cells = some([cell for cell in table.iloc[0] if cell][:4])
        notes.append(f"{file}: the second line ({cells} ...) holds units or further names, and is no patient")
        table = table.iloc[1:]
    return table, odd


def _is_plain(name: str, cells: Iterable[str]) -> bool:
    """Whether cells are numbers as Python writes them, and the name is none of a date: nothing is to be rewritten."""
    odd = "\n".join(cells).encode(errors="replace").translate(None, PLAIN)
    return not odd and not {*name_words(name)} & {*WORDS["column_date"]}


def _rewrite(table: pd.DataFrame, names: Sequence[str], notes: list[str], numbers: Collection[str] = ()) -> None:
    """Numbers and dates of each column of ``names`` in one form, in place; ``numbers``: columns known to be such."""
    for name in (name for name in names if not _is_plain(name, table[name])):
        if plain := _plainly(name, [text for text in table[name].unique() if text], name in numbers):
            table[name] = table[name].map(lambda text, plain=plain: plain.get(text, text))
            notes.append(f"{name}: {shown(next(iter(plain)))} is read as {next(iter(plain.values()))}")


def read_again(
    path: Path, inputs: TableInputs, outcome: Sequence[str] = (), classes: Sequence[str] = ()
) -> tuple[pd.DataFrame, list[str]]:
    """A hospital's table for a model: names, numbers, dates and gaps as ``init`` reads those of training.

    Args:
        inputs: of the model.
        outcome: columns that say what happened; the first holds ``classes``, if there are some.

    Returns:
        The rows, and what is read otherwise than it is written, a line each.
    """
    notes: list[str] = []
    keys = ("time", "since", "patient", "missing", "separator")
    said = {key: inputs.reading.get(key, ()) if outcome else () for key in keys}
    told = [name for key in keys[:3] for name in said[key]]
    wanted = list(dict.fromkeys((*outcome, *told, *inputs.columns, *inputs.known)))
    missing = [one if "=" in one else f"{name}={one}" for one in said["missing"] for name in outcome]
    columns = _named_as(_laid_out(path, inputs.reading, wanted), wanted, path.name, notes, inputs.renamed)
    table, no_numbers = _cleaned(columns, path.name, missing, notes)
    table = table.reset_index(drop=True)
    for name in (name for name in said["patient"] if name in table):
        table[PATIENTS[0]] = table[name]
    levels = {name: {*inputs.known.get(name, ()), ""} for name in wanted if name in no_numbers}
    odd_names = [name for name, own in levels.items() if not {*table[name]} <= own]
    numbers = {one.column for one in inputs.numbers if not one.since} | {*outcome[bool(classes) :]}
    _rewrite(table, odd_names, notes, numbers - {*said["time"], *said["since"]})
    if BAND in inputs.known and BAND not in table:
        ages = table[[name for name in table if bare(name) in AGE]]
        ages = ages.apply(lambda cells: cells.where(~cells.map(plain).isin(gaps_of(cells.name, inputs.gaps)), ""))
        ages = ages.apply(lambda cells: cells.where(years(cells).notna(), ""))
        table[BAND] = [one.get(BAND, "") for one in groups_of(ages, (), ())]
    for name in (name for name in inputs.known if name in table):
        spelled = {plain(value): value for value in reversed(inputs.known[name])}
        table[name] = table[name].map({cell: spelled.get(plain(cell), cell) for cell in table[name].unique()})
    for one in (*inputs.numbers, *inputs.plain):
        if one.column in table and (folded := _folded(one, table[one.column])):
            table[one.column] = table[one.column].replace(folded)
            notes.append(f"{one.column}: {some([*folded], 4)} are read as {some([*folded.values()], 4)}")
    for one in (one for one in inputs.numbers if {*one.columns} <= {*table.columns}):
        for name in one.columns if one.since else ():
            days = as_iso(table[name], clock=True)
            table[name] = table[name] if days is None else days
        cells, gaps = Cells.of(table[one.column]), gaps_of(one.column, inputs.gaps)
        odd = np.isnan(cells.numbers) & ~cells.empty & ~cells.that(gaps.__contains__)
        count = not one.since and odd.any() and cells.share(~odd) >= read.MOSTLY
        if count and not any(map(read.WITH_UNIT.fullmatch, cells.texts[odd])):
            table[one.column] = cells.where(~odd).column
            notes.append(f"{one.column}: {read.no_numbers(cells, odd)}")
    for name in (name for name in outcome[:1] if name in table):
        (own, clear), (usual, known) = event_last(in_order({*table[name]} - {""})), event_last(classes)
        if clear and known and len(own) == len(usual) == 2 and not {*own} & {*usual}:
            if may_be_turned(name, own, usual):
                text = (
                    f"expected {some(usual, 2)}, got {some(own, 2)}, which may mean either of them by the column's name"
                )
                raise DataError("label", f"table {path.name}: {name}: {text}")
            table[name] = table[name].map({"": "", **dict(zip(own, usual, strict=True))})
            notes.append(f"{name}: {some(own, 2)} are read as {some(usual, 2)}")
        for sign in said["separator"]:
            table[name] = [read.SIGN.join(labels) for labels in parted(table[name], sign)]
    return _timed(table, outcome, inputs.reading, path, notes) if outcome else table, notes


def _folded(feature: Feature, cells: pd.Series) -> dict[str, str]:
    """Cell -> the model's word for yes or no where it is another; 1 and 0 for True and False among numbers."""
    words = {cell: plain(cell).lower() for cell in cells.unique() if cell}
    if feature.no and {*feature.values} <= YES and {*feature.no} <= NO:
        said = dict.fromkeys(YES, str(feature.values[0])) | dict.fromkeys(NO, feature.no[0])
        others = said.keys() - {*feature.values, *feature.no}
        return {cell: said[word] for cell, word in words.items() if word in others}
    truth = {"true": "1", "false": "0", "1": "1", "0": "0"}
    as_numbers = not (feature.values or feature.missing or feature.since) and {*words.values()} <= {*truth}
    return {cell: truth[word] for cell, word in words.items() if word in ("true", "false")} if as_numbers else {}


def _laid_out(path: Path, reading: Mapping[str, Sequence[str]], wanted: Sequence[str]) -> dict[str, list[str]]:
    """A table's columns: of a plain one, or as ``init`` was told to find them, whichever has more of those wanted."""
    excel = path.suffix.lower() in WORKBOOKS
    told: dict[str, Any] = {key: value for key in LAYOUT for value in reading.get(key, ()) if excel or key == "header"}
    ways: list[Callable[[], dict[str, list[str]]]] = [lambda: read_columns(path)]
    ways += [lambda: read_laid_out(path, Choices(**told))[0]] * bool(told)
    found, refused = list[dict[str, list[str]]](), list[UserError]()
    for way in ways:
        try:
            found.append(way())
        except UserError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    names = {*map(bare, wanted)}
    return max(found, key=lambda one: len(names & {*map(bare, one)}))


def _timed(
    table: pd.DataFrame, outcome: Sequence[str], reading: Mapping[str, Sequence[str]], path: Path, notes: list[str]
) -> pd.DataFrame:
    """``table`` with events as 0 and 1 and times as numbers, where those of training stood otherwise in theirs."""
    event, time, *_ = (*outcome, "")
    codes = {event_key(cell): word for key, word in (("events", "1"), ("none", "0")) for cell in reading.get(key, ())}
    if codes and event in table:
        cells = table[event].map(event_key)
        plainly = {*cells} <= {"", "0", "1"}
        of_init = plainly and path.with_name(f"{DESCRIPTION}.json").is_file()  # which has written 1 for an event
        moved = not of_init and codes.get("0") == "1" and [*table.columns[[0, -1]]] == [event, "split"]
        if plainly and moved:  # its columns lie as init writes them, whose 1 would become 0
            text = "beside a table that init has written, or columns in another order than init's"
            raise DataError("label", f"table {path.name}: {event}: expected {DESCRIPTION}.json {text}, got neither")
        if {*cells} <= {"", *codes} and not of_init:
            table[event] = cells.map({"": "", **codes})
            notes.append(f"{event}: {some(reading['events'], 3)} is read as an event")
        elif not plainly:
            odd = next(cell for cell in table[event] if event_key(cell) not in ("", *codes))
            raise DataError("label", f"table {path.name}: {event}: expected {some([*codes], 4)}, got {shown(odd)}")
    names = [name for name in reading.get("time", ()) if name in table]
    dated = bool(names) and table[names[0]].map(is_date).any()
    if len(names) < 2 and not dated:
        return table
    since, until = (next(iter(reading.get(key, ())), "") * bool(dated) for key in ("since", "until"))
    until = _until(table, event, names, since, until, path)
    needed = [since] * bool(dated) + [event] * (not until)
    if lost := [name for name in needed if name not in table]:
        raise DataError("column", f"table {path.name}: expected a column {lost[0]!r}; it has: {some([*table], 12)}")
    chosen = Choices(time=",".join(names), event=event, event_value=("1",), since=since, until=until)
    try:
        timed = checked_times(table, chosen, [path.stem] * len(table))
    except UserError as error:
        raise DataError("number", f"table {path.name}: {str(error).removeprefix('init: ')}") from None
    end = f"; who has no date counts as observed until {until}, as in training" if until else ""
    notes.append(f"{time}: {some(names, 3)}{f', in days from {since}' * bool(dated)}{end}")
    return table.assign(**{name: timed[name].reindex(table.index, fill_value="") for name in (event, names[0])})


def _until(table: pd.DataFrame, event: str, names: Sequence[str], since: str, until: str, path: Path) -> str:
    """``until``, or "" where rows begin after that day and each says its own end; DataError where one does not."""
    first = as_iso(table[since]) if until and since in table else None
    late = 0 if first is None else int((first > until).sum())
    if not late:
        return until
    if event in table and (table[names] != "").any(axis=1).all():
        return ""
    ways = f"{names[0]} for every row, a date of the end of follow-up or days, and {event} as 1 or 0"
    text = f"{late} rows begin after {until}, the last day of observation in training: expected {ways}"
    raise DataError("number", f"table {path.name}: {since}: {text}")


def _named_as(
    columns: dict[str, list[str]], names: Sequence[str], file: str, notes: list[str], renamed: Mapping[str, str]
) -> dict[str, list[str]]:
    """``columns`` with the ``names`` of another table's, by ``renamed`` or where only case, spaces and signs differ.

    One that differs by case alone comes first; UserError where two may be meant: "CRP mg/l" and "crp_mg_l".
    """
    read, lacking = dict[str, str](), dict.fromkeys(name for name in names if name not in columns)
    for same in (str.casefold, bare):
        others = {same(name): name for name in lacking}
        others |= {same(own): name for own, name in renamed.items() if name in lacking}
        taken = {*names, *read}
        found = {name: others[same(name)] for name in columns if name not in taken and same(name) in others}
        read |= _renamed(found, found, file)
        lacking = {name: None for name in lacking if name not in {*found.values()}}
    notes += [f"{file}: {some([*read], 3)} are read as {some([*read.values()], 3)}"] if read else []
    return {read.get(name, name): cells for name, cells in columns.items()}


def _renamed(columns: Iterable[str], given: Mapping[str, str], file: str) -> dict[str, str]:
    """What ``columns`` are called by ``given``; UserError where two have one name."""
    found = {name: given[name] for name in columns if name in given}
    if twice := [name for name, n in Counter(found.values()).items() if n > 1]:
        both = [name for name in found if found[name] == twice[0]]
        raise UserError(f"{file}: {twice[0]}: expected one column, got {some(both, 4)}: give one another name")
    return found


def _plainly(name: str, texts: Sequence[str], number: bool) -> dict[str, str]:
    """Text -> number or date, where cells are dates as numbers, have a decimal comma among points, or all one unit."""
    odd = [text for text in texts if not NUMBER.fullmatch(text)]
    if not odd and {*name_words(name)} & {*WORDS["column_date"]}:
        excel = all(float(text) >= EARLIEST for text in texts)
        forms = (form for form in ("YYYYMMDD", *[EXCEL] * excel) if all(iso_date(text, form) for text in texts))
        return {text: iso_date(text, form) for form in [*forms][:1] for text in texts}
    if odd and all(map(COMMA.fullmatch, odd)) and any(len(text.partition(",")[2]) != 3 for text in odd):
        points = number or any("." in text for text in texts)  # else they may be lists of codes
        return {text: text.replace(",", ".") for text in odd if points}
    if odd and all(SPACED.fullmatch(text) or NUMBER.fullmatch(text) for text in texts):
        return {text: re.sub(r"[\s']", "", text).replace(",", ".") for text in odd}
    united = [match for text in odd if (match := UNIT.fullmatch(text))] if len(odd) == len(texts) else []
    same = len(united) == len(texts) and len({match[2] for match in united}) == 1
    return {match[0]: match[1] for match in united if same}


def _named(base: Path, paths: Sequence[Path]) -> list[tuple[str, str]]:
    """The site and the split that each table's name and folder say; "" where they say none.

    Raises:
        UserError: some names are splits and others are not, or two tables differ in their endings alone.
    """
    stems = [path.stem for path in paths]
    if twins := [name for name, n in Counter(str(path.with_suffix("")) for path in paths).items() if n > 1]:
        raise UserError(f"init: {Path(twins[0]).name} is there in two formats: leave one of them")
    parts = [_split_in(stem) for stem in stems]
    if paths[0].parent != base:
        pairs = [(path.parent.name, path.stem) for path in paths]
        if all(split_word(above) for above, _ in pairs):
            return [(site_name(stem), split_word(above)) for above, stem in pairs]
        return [(site_name(above), split_word(stem)) for above, stem in pairs]
    if len(paths) == 1:
        return [("", split_word(stems[0]))]
    having, lacking = ([path.name for path, (_, own) in zip(paths, parts) if bool(own) is has] for has in (True, False))
    if having and lacking:
        text = f"{having[0]} is named by a split and {lacking[0]} is not"
        raise UserError(f"init: {text}: expected tables named by sites or by splits")
    return [(site_name(rest) if rest else "", split) for rest, split in parts]


def _split_in(stem: str) -> tuple[str, str]:
    """ "charite_train" -> ("charite", "training"); ("", split) of a split's name alone; (stem, "") of another."""
    if word := split_word(stem):
        return "", word
    for pattern, rest, place in ((r"(.+)[_\-. ]([^_\-. ]+)", 1, 2), (r"([^_\-. ]+)[_\-. ](.+)", 2, 1)):
        if (match := re.fullmatch(pattern, stem)) and (word := split_word(match[place])):
            return match[rest], word
    return stem, ""


OF_FILES = re.compile(r"image|file|path|scan|picture|bild|datei|png|dicom|mask|img")
COPIES, UNIQUE, FEW_VALUES, COMPARED = 0.05, 0.9, 10, 60
"""Shares of rows that may be exact copies of others, and of different cells from which on ids number rows; different
cells that some column must have more of; columns that are compared, those of most different cells."""
HALF = 0.5
MOST_ODD, CHANCE = 2, 0.1
"""Cells in which copies may differ; share of the copies that may be such by chance."""
ROWS, LEAST = 50, 5
"""Rows that are looked at for a first one that holds units, and the fewest of them."""
LIKELY = 3
"""Columns that are named as the outcome's most likely ones."""


def examples_in_tables(files: Files, paths: Sequence[Path], chosen: Choices) -> Found:
    """What the tables say of images, of their patients, or by themselves.

    Raises:
        UserError: a table cannot be read, tables differ in their columns, no column is the label, or what is there may
            be read in two ways and nobody can be asked.
    """
    table = rows_of(files.root, paths, chosen)
    found = _of_rows(files, paths, table, chosen)
    return replace(found, notes=(*found.notes, *table.attrs["notes"]), unread=table.attrs["unread"])


def _holds_units(table: pd.DataFrame) -> bool:
    """Whether the first row holds words where all others hold numbers, as a row of units or a second header does."""
    if len(table) <= LEAST:
        return False
    first, rest = table.iloc[0], table.iloc[1 : ROWS + 1]
    odd = {*first.index[(first != "") & pd.to_numeric(first, errors="coerce").isna()]}

    def is_number(name: str) -> bool:
        return bool(pd.to_numeric(rest[name], errors="coerce").notna().mean() > UNIQUE)

    if any(map(is_number, (name for name in table.columns if first[name] and name not in odd))):
        return False
    numbers = [*filter(is_number, table.columns)]
    return len(numbers) > 1 and 2 * len(odd & {*numbers}) > len(numbers)


def _of_rows(files: Files, paths: Sequence[Path], table: pd.DataFrame, chosen: Choices) -> Found:
    own = [name for name in table.columns if not name.startswith("@")]
    refuse_several(files.root, table[own], table[NAME_OF_FILE], chosen)
    # A path, its name, or its name without suffix -> the path; names that several images have are left out.
    index: dict[str, str] = {}
    for short in (lambda path: PurePosixPath(path).name, stem):
        counts = Counter(short(path) for path in files.images)
        index |= {short(path): path for path in files.images if counts[short(path)] == 1}
    index |= {path: path for path in files.images}
    image = _column_of_files(table, own, index, masks=False)
    if image:
        return _images(files, table, own, image, index, chosen)
    if files.images and not (FORMS[chosen.kind].table if chosen.kind else chosen.time):
        if key := _column_of_patients(files, table, own):
            return _patients(files, table, own, key, chosen)
        readings = [
            Reading("its rows are the examples", "--kind tabular"),
            Reading("the images are the examples and the table is not read", "--kind classification or segmentation"),
        ]
        if chosen.kind or chosen.ask(
            f"{paths[0].name} names none of the {len(files.images)} images, by file, folder or header", readings
        ):
            return images_in_folders(files, chosen)
    _refuse_depths(files, paths)
    return _rows(files, table, own, chosen)


def _role(role: str, table: pd.DataFrame, columns: Sequence[str], chosen: Choices) -> str:
    """The column of the label or of the split, "" where there is none.

    Raises:
        UserError: the user names one that is not there, or several may be meant and nobody can be asked.
    """
    if given := getattr(chosen, role, ""):
        if given != "none":
            check_column(role, given, columns)
        return "" if given == "none" else str(given)
    fits = [name for word in WORDS[f"column_{role}"] for name in columns if bare(name) == word]
    if role == "split":
        fits = fits or [name for name in columns if all(map(split_word, table[name]))]
        return next((name for name in fits if table[name].nunique() > 1), fits[0] if fits else "")
    # Columns that say the same are one.
    different = [name for name in fits if table.groupby([fits[0], name]).ngroups > table[fits[0]].nunique()]
    if not different:
        return max(fits, key=lambda name: table[name].nunique(), default="")
    fits = [fits[0], *different]
    readings = [Reading(f"{name} ({some(in_order(table[name].unique()), 3)})", flag(role, name)) for name in fits]
    return fits[chosen.ask(f"{len(fits)} columns may be the {role}", readings)]


def _label(table: pd.DataFrame, columns: Sequence[str], chosen: Choices) -> str:
    label = _role("label", table, columns, chosen)
    if not label:
        flags = "--time COLUMN --event COLUMN say" if chosen.kind == "survival" else "--label COLUMN says"
        known = columns_of(table, columns)
        ordered = likely_outcomes(known, [name for name, one in known.items() if as_site(one).points >= BAR])
        ways = ", ".join(f"({flag('label', name)})" for name in ordered[:LIKELY])
        text = f"the table has: {some(ordered, 12)}"
        raise UserError(f"init: {flags} which is the outcome; {text}; most likely {ways}")
    return label


def _places(table: pd.DataFrame, name: str, index: Mapping[str, str]) -> list[str]:
    """The image that each cell names, "" where none: relative to the table, to the folder of all, or by its name."""
    found = []
    for cell, home in zip(table[name], table[HOME], strict=True):
        text = cell.replace("\\", "/").removeprefix("./")
        near = f"{home}/{text}" if home != "." else text
        hit = index.get(near) or index.get(text) or index.get(PurePosixPath(text).name, "") if text else ""
        found.append(hit)
    return found


def _column_of_files(table: pd.DataFrame, columns: Sequence[str], index: Mapping[str, str], *, masks: bool) -> str:
    """The column most of whose cells name images (or masks); the first of equals."""
    best, most = "", (False, 0.0, 0.0)
    for name in columns if index else ():
        filled = table[name][table[name] != ""]
        hits = sum(bool(path) and geometry.is_mask(path) == masks for path in _places(table, name, index))
        if len(filled) and hits / len(filled) > HALF:
            # Ages and classes may be names of files, too: a column of files says so, or has hardly any twice.
            rank = (bool(OF_FILES.search(bare(name))), filled.nunique() / len(filled), hits / len(filled))
            if rank > most and (rank[0] or rank[1] > HALF):
                best, most = name, rank
    return best


KEYED = Choices(groups=("AccessionNumber",))
"""Headers that a table may name beside those that say the patient."""


def _column_of_patients(files: Files, table: pd.DataFrame, columns: Sequence[str]) -> str:
    """The column whose cells are in headers, names of folders or beginnings of files' names: BIDS' participants.tsv."""
    known = {part for path in files.images for part in PurePosixPath(path).parts[:-1]}
    levels = level_table(files, files.images, KEYED)
    known |= {name for level in (NAME, *PATIENT_HEADERS, *KEYED.groups) for name in levels.get(level, ()) if name}
    for name in columns:
        cells = table[name][table[name] != ""]
        if len(cells) and cells.is_unique and cells.isin(known).mean() > HALF:
            return name
    return ""


def _level_of(levels: pd.DataFrame, rows: Mapping[str, int], key: str) -> str:
    """The one level of folders or names that explains most images; a folder's name must stand for one folder alone."""
    hits = levels.drop(columns=["image", SPLIT]).isin(list(rows)).mean()
    level = str(hits.idxmax())
    folders = [name for name in hits.index if name.startswith(FOLDER) and name != level]
    if near := [name for name in folders if level.startswith(FOLDER) and hits[name] > HALF * hits[level]]:
        raise UserError(
            f"init: {key} names folders of {level} and of {near[0]}: expected one level; rename one of them"
        )
    if level.startswith(FOLDER):
        above = [path.split("/") for path in levels["image"]]
        whole = [
            tuple(parts[: parts.index(name)]) if name in parts else () for parts, name in zip(above, levels[level])
        ]
        per = pd.Series(whole).groupby(levels[level].to_numpy()).nunique()
        if twice := [name for name in per.index[per > 1] if name in rows]:
            raise UserError(f"init: {key} {shown(twice[0])} names several folders: expected one folder for each row")
    return level


def _patients(files: Files, table: pd.DataFrame, columns: Sequence[str], key: str, chosen: Choices) -> Found:
    rows = {cell: k for k, cell in enumerate(table[key])}
    images = [path for path in files.images if not geometry.is_mask(path)]
    levels = level_table(files, images, KEYED)
    level = _level_of(levels, rows, key)
    kept = {path: rows[name] for path, name in zip(images, levels[level], strict=True) if name in rows}
    image = "@image"
    joined = table.iloc[list(kept.values())].reset_index(drop=True).assign(**{HOME: ".", image: list(kept)})
    patient = chosen.patient or (key if level not in (PATIENT_HEADERS[1], *KEYED.groups) else "")  # a study's number
    return _images(files, joined, columns, image, {path: path for path in images}, replace(chosen, patient=patient))


def _sites(files: Files, table: pd.DataFrame, column: str, chosen: Choices) -> list[str]:
    if column:
        if empty := int((table[column] == "").sum()):
            raise UserError(f"init: {column}: expected the site of every row, {empty} have none")
        return site_names(table[column])
    root = site_name(files.root.stem) if files.root.is_file() else root_name(files.root)
    return [(site if chosen.site != "none" else "") or root for site in table[SITE]]


def _splits(table: pd.DataFrame, column: str) -> list[str]:
    if not column:
        return list(table[SPLIT])
    words = {cell: split_word(cell) for cell in table[column].unique()}
    if odd := [cell for cell, word in words.items() if cell and not word]:
        raise UserError(f"init: {column}: expected training, validation or testing, got {shown(odd[0])}")
    return [words[cell] for cell in table[column]]


@dataclass(frozen=True)
class _Roles:
    """Columns by their roles, "" where there is none; what is known of the others; the site of each row."""

    site: str
    split: str
    people: People
    sites: list[str]

    @property
    def patient(self) -> str:
        return self.people.patient

    @property
    def taken(self) -> list[str]:
        return [name for name in (self.site, self.patient, self.split) if name]


def _roles(table: pd.DataFrame, columns: Sequence[str], chosen: Choices, sites: Callable[[str], list[str]]) -> _Roles:
    """The roles of ``columns``; ``sites``: of each row, by the name of their column."""
    for role in ("site", "patient"):
        if (given := getattr(chosen, role)) not in ("", "none"):
            check_column(role, given, columns)
    split = _role("split", table, columns, chosen)
    if split and not any(split_word(cell) for cell in table[split].unique()):
        split = ""
    known = columns_of(table, columns)
    site = sites_by_cells({name: one for name, one in known.items() if name not in (split, chosen.label)}, chosen)
    of_rows = sites(site)
    told = [one for text in (chosen.label, chosen.time) for one in (text, *text.split(","))]
    people = People(known, of_rows, (site, split, *told, chosen.event))
    people.find(chosen)
    return _Roles(site, split, people, of_rows)


def _images(
    files: Files, table: pd.DataFrame, columns: Sequence[str], image: str, index: Mapping[str, str], chosen: Choices
) -> Found:
    masked = not chosen.kind or FORMS[chosen.kind].masks
    mask = _column_of_files(table, columns, index, masks=True) if masked else ""
    several = read.columns_of_labels(chosen, columns)
    label, beside = mask or (several or [chosen.label])[0], {}
    if not label:
        beside = geometry.pairs(files.images)[0] if masked else {}
        if not any(beside.values()):
            label = _label(table, columns, chosen)
    if label and label not in columns:
        raise UserError(f"--label: expected a column; the table has: {some(columns, 12)}, got {shown(label)}")
    paths = _places(table, image, index)
    texts = _places(table, mask, index) if mask else table[label] if label else [beside.get(path, "") for path in paths]
    there = pd.Series([bool(path) for path in paths])
    labelled = pd.Series(list(map(bool, texts))) if not several else (table[several] != "").any(axis=1)
    keep = there & labelled
    kept = table[keep].reset_index(drop=True)
    images, labels = (list(pd.Series(list(cells), dtype=object)[keep]) for cells in (paths, texts))
    if not images:
        raise UserError(f"init: no row names an image that is there and has a {label or 'mask'}")
    others = [name for name in columns if name not in (image, label, *several)]
    elsewhere = {key: "" if getattr(chosen, key) in columns else getattr(chosen, key) for key in ("site", "patient")}
    headers = tuple(one for one in chosen.groups if one not in columns)
    own = replace(chosen, label="", site=elsewhere["site"], patient=elsewhere["patient"], groups=headers)
    levels = level_table(files, images, own)
    for key, level in (("site", own.site), ("patient", own.patient)):
        if level not in ("", "none", *levels.columns):
            raise UserError(f"--{key}: expected a column or level among {some(columns, 12)}, got {shown(level)}")
    in_columns = replace(chosen, site="none" if own.site else chosen.site)
    in_columns = replace(in_columns, patient="none" if own.patient else chosen.patient)
    role = _roles(kept, others, in_columns, lambda site: _sites_of_images(files, kept, levels, site, own))
    sites = role.sites
    known: dict[str, str] = {}
    for path, text in zip(images, labels, strict=True):
        if (other := known.setdefault(path, text)) != text:
            raise UserError(f"init: {path} has two labels, {shown(other)} and {shown(text)}")
    if role.patient:
        patients, whence = _of_patients(kept[role.patient]), f"column {role.patient}"
    else:
        folders = [name for name in levels.columns if name.startswith(FOLDER) and levels[name].nunique() > 1]
        of_patients = next((name for name in folders if is_patient_level(levels, name, folders)), "")
        patients, whence = patients_of(levels, sites, of_patients, own)
    about = groups_of(kept[list(columns)], [image, label, *several, *role.taken], chosen.groups)
    outcome = None
    if several:
        outcome = read.in_columns(several, kept, images=True)
    elif label and not mask:
        outcome = read.outcome_of(label, labels, chosen, table=False)
        labels = list(outcome.labels)
    examples = as_examples(sites, images, labels, _splits(kept, role.split), patients, about)
    if outcome is not None and outcome.told:
        examples = [replace(one, told=told) for one, told in zip(examples, outcome.told, strict=True)]
    bare_rows, gone = int((there & ~labelled).sum()), list(table[image][~there])
    notes: tuple[str, ...] = (
        *role.people.notes,
        *((f"{bare_rows} rows have no label and are left out",) if bare_rows else ()),
    )
    if again := len(images) - len({*images}):
        notes += (f"{again} rows name an image that another row names, too: it counts twice",)
    named = {*paths}
    if lost := [path for path in files.images if not geometry.is_mask(path) and path not in named]:
        notes += (f"{len(lost)} images are in no row and are left out, e.g. {lost[0]}",)
    if gone:
        notes += (f"{len(gone)} rows name images that are not there and are left out, e.g. {shown(gone[0])}",)
    if outcome is None:
        return Found("segmentation", "a table of images and masks", examples, patients=whence, notes=notes)
    layout = f"a table of images with column {', '.join(several) or label}"
    notes += (*outcome.notes, *_of_amounts(outcome, label, sites, chosen))
    told = {name: list(kept[name]) for name in others if name not in role.taken}
    suspects = read.telling(told, labels, sites) if FORMS[outcome.kind].classes else ()
    return Found(outcome.kind, layout, examples, outcome.classes, outcome.options, whence, notes, suspects)


def _sites_of_images(
    files: Files, table: pd.DataFrame, levels: pd.DataFrame, column: str, chosen: Choices
) -> list[str]:
    """The site of each row: its column's or its table's, else that of the folders in which the images lie."""
    if column or chosen.site == "none" or (table[SITE] != "").all():
        return _sites(files, table, column, chosen)
    of_levels = levels.drop(columns=["image", SPLIT])
    given = chosen.site if chosen.site in of_levels.columns else ""
    role = roles(of_levels, replace(chosen, site=given, label="", patient="none"), labelled=False)
    if not role.site:
        return _sites(files, table, column, chosen)
    return site_names(levels[role.site])


def _of_patients(cells: pd.Series) -> list[str]:
    """The patients of a column; UserError where some are blank or cut: nobody can tell whose these rows are."""
    if (cut := cells[cells.str.fullmatch(r"\d[.,]\d+E\+\d+")]).size:
        raise UserError(f"init: {cells.name}: {cut.iloc[0]}: Excel has cut these numbers: export them as text")
    blank = cells == ""
    if blank.any() and not blank.all():
        text = f"{int(blank.sum())} of {len(cells)} rows have none"
        raise UserError(f"init: {cells.name}: {text}: fill them in, or --patient none takes every row for a patient")
    return list(cells)


def _copies(table: pd.DataFrame, role: _Roles, chosen: Choices) -> tuple[str, ...]:
    """A note on rows that stand twice but for a cell or two; many make any model look good, and are refused.

    Ids are not compared: copies may have been numbered anew. A known patient's rows may be alike.
    """
    people = role.people
    ids = {name for name, one in people.columns.items() if one.is_id and one.different > UNIQUE * one.rows}
    free = [one for name, one in people.columns.items() if name not in people.ids | ids | {people.patient, role.split}]
    held = [one.cells.codes for one in sorted(free, key=lambda one: -one.different)[:COMPARED]]
    if not held or max(len(np.unique(codes)) for codes in held) <= FEW_VALUES:
        return ()
    codes = np.column_stack(held)
    whose = people.groups(people.columns[people.patient]) if people.patient else np.arange(len(table))
    twins = _pairs(codes, people.sites)
    twins = twins[whose[twins[:, 0]] != whose[twins[:, 1]]]
    odd = (codes[twins[:, 0]] != codes[twins[:, 1]]).sum(axis=1)
    exact, near = (np.unique(twins[one, 1]) for one in (odd == 0, odd <= MOST_ODD))
    # By chance two rows agree in all columns but the two that tell most with this probability.
    agree = np.sort([(np.bincount(one) / len(one)) @ (np.bincount(one) / len(one)) for one in held])[MOST_ODD:]
    by_chance = len(table) ** 2 / 2 * math.comb(len(held), MOST_ODD) * np.prod(agree)
    near = near if len(agree) and by_chance < CHANCE * len(near) else exact
    ways = f"({flag('patient', 'COLUMN')}), or say that they are other patients ({flag('patient', 'none')})"
    rest = len(table) - len(exact)
    if not chosen.patient and len(exact) > COPIES * len(table) and codes.max() > HALF * rest:
        text = f"{len(exact)} of {len(table)} rows are exact copies of others"
        raise UserError(f"init: {text}: leave them out, or name the column that keeps copies together {ways}")
    if not chosen.patient and len(near) > COPIES * len(table) and len(near) > len(exact):
        text = f"{len(near)} of {len(table)} rows are copies of others but for {MOST_ODD} cells or fewer"
        raise UserError(f"init: {text}: leave them out, or name the column that keeps copies together {ways}")
    text = f"{len(near)} rows are copies of others but for {MOST_ODD} cells or fewer, and may be of the same patients"
    return (f"{text}, who may lie in two splits",) if len(near) > len(exact) else ()


def _pairs(codes: np.ndarray, sites: np.ndarray) -> np.ndarray:
    """int (P, 2): pairs of rows of one site that agree in all columns (N, C) of a third of them."""
    found = []
    for part in range(MOST_ODD + 1):  # in which two rows with two cells that differ are the same
        keys = pd.util.hash_pandas_object(pd.DataFrame(codes[:, part :: MOST_ODD + 1]).assign(site=sites), index=False)
        order = np.argsort(keys.to_numpy(), kind="stable")
        same = np.diff(keys.to_numpy()[order].astype(np.int64)) == 0
        found.append(np.column_stack((order[:-1], order[1:]))[same])
    return np.unique(np.concatenate(found), axis=0)


def _rows(files: Files, table: pd.DataFrame, columns: Sequence[str], chosen: Choices) -> Found:
    if chosen.kind and not FORMS[chosen.kind].table:
        raise UserError(f"init: no column of the table names images; it has: {some(columns, 12)}")
    several = read.columns_of_labels(chosen, columns)
    named = _role("label", table, columns, chosen) if not (chosen.event or several) else ""
    if not several and (timed := times_of(table, columns, chosen, named)):
        return _times(files, table, columns, timed)
    label = several[0] if several else named or _label(table, columns, chosen)
    if chosen.since:
        check_column("since", chosen.since, columns)
    missing = (table[several or [label]] == "").all(axis=1)
    kept = table[~missing].reset_index(drop=True) if missing.any() else table
    if kept.empty:
        raise UserError(f"init: {label}: expected labels, every row has none")
    if not several:
        kept[label] = same_numbers(kept[label])
    outcome = (
        read.in_columns(several, kept, images=False)
        if several
        else read.outcome_of(label, kept[label], chosen, table=True)
    )
    said = replace(chosen, label=chosen.label or label)
    role = _roles(kept, columns, said, lambda site: _sites(files, kept, site, chosen))
    exposure, spent = {}, dict[str, Sequence[str]]()
    if chosen.exposure:
        if chosen.exposure not in columns or outcome.kind != "regression":
            text = f"a column among {some(columns, 12)}, with --kind regression"
            raise UserError(f"--exposure: expected {text}, got {shown(chosen.exposure)}")
        exposure = {"amount": "count", "exposure": chosen.exposure}
        spent[chosen.exposure] = kept[chosen.exposure]
    told = {name: ["" if row[name] is None else str(row[name]) for row in outcome.told] for name in several}
    signs = {sign_between(kept[label])} - {read.SIGN} if outcome.kind == "multilabel" and not several else ()
    reading = _reading(chosen, several or [label], separator=signs, patient={role.patient} - {"", *PATIENTS})
    whose = table[role.site] if role.site else table[SITE]
    gone = in_order({*whose[missing]} - {*whose[~missing]} - {""})
    lacking = (f"{some(gone, 8)}: no row has {label}, so that the site is left out",) * bool(gone)
    notes = (*_left_out(label, missing), *lacking, *outcome.notes, *_of_amounts(outcome, label, role.sites, chosen))
    options = {"label": "" if several else label, **exposure, **outcome.options, **reading}
    layout = f"tables with column {', '.join(several) or label}"
    made = Found(outcome.kind, layout, [], outcome.classes, options, notes=notes)
    taken, more = [*(several or [label]), *spent], {**spent, **told}
    return _with_rows(made, kept, columns, role, taken, outcome.of_levels, outcome.labels, more, chosen)


def _of_amounts(outcome: read.Outcome, label: str, sites: Sequence[str], chosen: Choices) -> list[str]:
    """What to say of an outcome's numbers at the ``sites``; codes for missing ones are asked about."""
    numbers = Cells.of(outcome.labels).numbers[Cells.of(outcome.labels).codes]
    return read.checked_numbers(label, numbers, rows_of_sites(sites), chosen) if "regression" in outcome.kind else []


def _reading(chosen: Choices, outcome: Sequence[str], **told: Collection[str]) -> dict[str, str]:
    """The task's option ``reading``: what was ``told`` of the columns ``outcome``, and their codes for missing."""
    own = tuple(f"{name}=" for name in outcome)
    told["missing"] = [one for one in chosen.missing if "=" not in one or one.startswith(own)]
    told |= {key: [value] for key in LAYOUT if (value := getattr(chosen, key))}
    found = {key: [*one] for key, one in told.items() if one}
    return {"reading": json.dumps({"outcome": found}, ensure_ascii=False)} if found else {}


def _left_out(label: str, missing: pd.Series) -> tuple[str, ...]:
    return (f"{int(missing.sum())} rows have no {label} and are left out",) if missing.any() else ()


def _with_rows(
    made: Found,
    kept: pd.DataFrame,
    columns: Sequence[str],
    role: _Roles,
    spent: Sequence[str],
    levels: pd.Series,
    labels: Sequence[Any],
    more: Mapping[str, Sequence[str]],
    chosen: Choices,
) -> Found:
    """``made`` with the rows ``kept`` of a table as its examples.

    Args:
        spent: columns that are no predictors, beside those with a role.
        levels: what no predictor may tell alone.
        labels: of the examples.
        more: further columns that are written.
    """
    renamed = {"renamed": read.in_line(chosen.rename)} if chosen.rename else {}
    copies, taken, own = _copies(kept, role, chosen), [*spent, *role.taken], kept[list(columns)]
    about = groups_of(own, taken, chosen.groups)
    found = read.predictors(own, levels, taken, rows_of_sites(role.sites), chosen, role.people)
    patients = _of_patients(kept[role.patient]) if role.patient else [""] * len(kept)
    cells = {**found.cells, **{name: Cells.of(column) for name, column in more.items()}}
    site = [as_site(role.people.columns[role.site])] if role.site else []
    site = [one if one.points >= BAR else replace(one, reasons=("--site says it",)) for one in site]
    codes = [Evidence(name, "code", BAR, (why,)) for name, why in found.codes.items()]
    splits, rows = _splits(kept, role.split), [Row(cells, number) for number in range(len(kept))]
    return replace(
        made,
        examples=as_examples(role.sites, [""] * len(kept), labels, splits, patients, about, rows),
        options={**made.options, **found.options, **renamed},
        patients=f"column {role.patient}" if role.patient else "",
        reading=(*site, *role.people.evidence_of, *codes),
        notes=(
            *made.notes,
            *copies,
            *role.people.notes,
            *found.notes,
            "make sure that no predictor is known only after the outcome",
        ),
        suspects=tuple(found.suspects),
    )


def _times(files: Files, table: pd.DataFrame, columns: Sequence[str], chosen: Choices) -> Found:
    """Rows of which a time to an event is known; one without either column's entry is left out."""
    event, names = chosen.event, chosen.time.split(",") if chosen.time not in columns else [chosen.time]
    time, dated = names[0], table[names[0]].map(is_date).any()
    said = replace(chosen, label=event, site=chosen.site)
    role = _roles(table, columns, said, lambda site: _sites(files, table, site, chosen))
    timed = checked_times(table, chosen, role.sites)
    if timed.empty:
        raise UserError(f"init: {event}: expected events, every row has none")
    missing = ~table.index.isin(timed.index)
    kept = timed.reset_index(drop=True)
    if missing.any():
        role = _roles(kept, columns, said, lambda site: _sites(files, kept, site, chosen))
    from fairflare.tasks.own.survival import ends_of

    longest = pd.to_numeric(kept[time]).max()
    if (end := max(ends_of(chosen.horizons, 1))) > longest * (1 + 1e-6):  # horizons are float32
        text = f"expected times until which somebody is observed, in the unit of {time}: {longest:g} at most"
        raise UserError(f"--horizons: {text}, got {end:g}")
    spent = [event, *names, *([chosen.since] if dated and chosen.since else [])]
    happened = f"{int((kept[event] == '1').sum())} of {len(kept)} rows have an event"
    values = f" ({some(chosen.event_value, 4)} in {event})" if chosen.event_value not in ((), ("1",)) else ""
    units = read.checked_numbers(
        time, pd.to_numeric(kept[time]).to_numpy(dtype=float), rows_of_sites(role.sites), chosen
    )
    asked = f"{happened}{values}; survival until {chosen.horizons} is asked for"
    lacking = " or no ".join(name for name in (event, *names, chosen.since) if name in columns)
    notes = (*_left_out(lacking, pd.Series(missing)), asked, *units)
    entries = different({*table[event]} - {""}) if event in table else []
    if {*map(plain, entries)} <= {"0", "1"} and {*map(plain, chosen.event_value)} <= {"1"}:
        entries = []  # as a model's other tables have them anyway
    happened_as = {*map(event_key, chosen.event_value)}
    told = {"events": [one for one in entries if event_key(one) in happened_as]}
    told |= {"none": [one for one in entries if event_key(one) not in happened_as]}
    told |= {"time": names if dated or names[1:] else []}
    told |= {"since": [chosen.since] if dated else [], "until": [chosen.until] if dated and chosen.until else []}
    reading = _reading(chosen, (event, *names), patient={role.patient} - {"", *PATIENTS}, **told)
    options = {"label": event, "time": time, "horizons": chosen.horizons, **reading}
    made = Found("survival", f"tables with times ({time}) and events ({event})", [], (), options, notes=notes)
    return _with_rows(made, kept, columns, role, spent, kept[event], kept[event], {time: kept[time]}, chosen)
