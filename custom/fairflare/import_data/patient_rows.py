# SPDX-License-Identifier: Apache-2.0
"""Tables with several rows of a patient (OMOP, Synthea, REDCap, visits) become one row at an index date, by a mapping.

A row counts by the time from the index to its date: a predictor's window ends at the index, an outcome's begins there,
so that nothing that is known only afterwards can become a predictor.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fairflare.core.errors import DataError, UserError
from fairflare.core.validation import natural, shown, some, unlisted
from fairflare.data.readers.cases import patient_key
from fairflare.data.readers.datalist import INSIDE
from fairflare.data.readers.limits import LIMITS
from fairflare.data.readers.table_features import plain
from fairflare.data.readers.tables import as_cell, read_columns
from fairflare.import_data.detect import look
from fairflare.import_data.labels import as_iso, known_after
from fairflare.import_data.proposal import Choices, Found, Tell, is_missing, nothing, root_name
from fairflare.import_data.roles import People, columns_of
from fairflare.import_data.several_rows import FILE, HOME, proposed, set_of
from fairflare.import_data.tables import rows_of, tables_in

SECONDS = {"minutes": 60.0, "hours": 3600.0, "days": 86400.0, "years": 365.25 * 86400.0}
NUMERIC = ("min", "max", "mean", "sum")
MOST_FILES, MOST_PAIRS, MOST_SECONDS = 100_000, 10_000_000, 600
"""Files that a pattern may match, rows of an index with rows of a table, and the time that all tables may take."""
DATE = "index_date"
"""The result's column of the index."""
ROW, TIME = "@row", "@time"

Scalar = int | float | str
Window = tuple[float | None, float | None]
Take = Literal["only", "first", "last", "min", "max", "mean", "sum", "count", "any", "since"]


class Part(BaseModel):
    """A part of a mapping, whose keys are all known and whose values have the type they need."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Source(Part):
    """Rows of a table.

    Attributes:
        table: its path in the folder, or a pattern such as "stays/*.csv" for tables of the same columns.
        sheet: of an Excel file with several.
        key: its column of the patient, or {column of the index or the result: its column}; that of the mapping else.
        date: its column of dates, or of numbers that count from the index.
        where: column -> the value, or the values, that a row must have; "" an empty cell.
    """

    table: str = Field(min_length=1)
    sheet: str = ""
    key: str | dict[str, str] = ""
    date: str = ""
    where: dict[str, Scalar | list[Scalar]] = {}


class Index(Source):
    """The events at which a prediction is made; each is a row of the result.

    Attributes:
        key: its column of the patient.
        take: the first or the last event of a patient, or each of them.
        after: how long after the event the prediction is made, in the mapping's unit.
        columns: columns of the event's own row that are predictors, or {name: column}.
    """

    key: str = ""
    take: Literal["first", "last", "each"] = "first"
    after: float = Field(0.0, ge=0)
    columns: list[str] | dict[str, str] = []

    @property
    def named(self) -> dict[str, str]:
        """Name in the result -> column."""
        return self.columns if isinstance(self.columns, dict) else {name: name for name in self.columns}


class Exclusion(Source):
    """Events with a row of the table in the window, by default at the index or before, are no rows of the result."""

    window: Window | None = Field(None, strict=False)


class Column(Source):
    """One predictor, or one for each way to ``take`` it, called NAME_TAKE then.

    Attributes:
        name: in the result.
        column: whose values count; none is needed to count rows, or the time since the last one.
        take: "only" expects one value; "any" is 1 or 0, "since" the time from the last row to the index.
        window: from when to when rows count, from the index on, both ends included; null: no end.
        unit: of "since"; the mapping's by default.
    """

    name: str = Field(min_length=1, pattern=r"^[^@]")
    column: str = ""
    take: Take | list[Take] = "only"
    window: Window | None = Field(None, strict=False)
    unit: Literal["", "minutes", "hours", "days", "years"] = ""

    @property
    def takes(self) -> list[Take]:
        return self.take if isinstance(self.take, list) else [self.take]

    @model_validator(mode="after")
    def _fits(self) -> Column:
        if needy := [take for take in self.takes if take not in ("count", "any", "since", "time") and not self.column]:
            raise ValueError(f"take: {needy[0]} needs a column")
        if not self.date and (self.window or "since" in self.takes):
            raise ValueError("a window, and the time since, need a date")
        low, high = self.window or (None, None)
        if low is not None and high is not None and low > high:
            raise ValueError(f"window: expected its beginning first, got {low:g} and {high:g}")
        return self


class Predictor(Column):
    """A column that is known at the index."""

    @model_validator(mode="after")
    def _known(self) -> Predictor:
        if self.window and (self.window[1] is None or self.window[1] > 0):
            raise ValueError("window: expected an end of 0 or before: what comes later is not known (index: after)")
        return self


class Outcome(Column):
    """What is to be predicted.

    Attributes:
        take: also "time": NAME is 1 where the event came in the window, NAME_time when, or until when there was none.
        until: the table and date until which a patient was observed: no event before the window's end says nothing
            of one who was not.
    """

    take: Take | Literal["time"] = "any"  # type: ignore[assignment]  # one way more, and one alone
    until: Source | None = None

    @model_validator(mode="after")
    def _later(self) -> Outcome:
        if self.date and (not self.window or self.window[0] is None or self.window[0] < 0):
            raise ValueError("window: expected [FROM, TO] with FROM at 0 or later: an outcome follows the index")
        if self.take == "time" and not (self.date and self.until and self.until.date):
            raise ValueError("take: time needs a date, and until: a table and date")
        return self


class RowMapping(Part):
    """How several tables become one, with a row for each event of the index.

    Attributes:
        within: column of all tables within whose values ids of patients are of one person, as each hospital numbers
            its own; "": they are everywhere.
    """

    patient: str = Field(min_length=1)
    within: str | None = None
    unit: Literal["minutes", "hours", "days"] = "days"
    missing: list[Scalar] = []
    site: str = ""
    index: Index
    exclude: list[Exclusion] = []
    columns: list[Predictor] = []
    outcome: Outcome | None = None

    @property
    def names(self) -> list[str]:
        """The result's columns in order, without patient and date."""
        columns = [*self.index.named]
        for one in self.columns:
            columns += [one.name] if len(one.takes) == 1 else [f"{one.name}_{take}" for take in one.takes]
        if self.outcome:
            columns += [self.outcome.name] + [f"{self.outcome.name}_time"] * (self.outcome.take == "time")
        return columns

    @model_validator(mode="after")
    def _named(self) -> RowMapping:
        names = [self.patient, DATE, *self.names]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"expected every name once, got {shown(twice[0])} twice")
        if self.site and self.site not in names:
            raise ValueError(f"site: {unlisted('column', self.site, self.names)}")
        return self


def checked(content: Mapping[str, Any], name: str) -> RowMapping:
    """``content`` of the mapping file ``name``; raises UserError with a sentence for each mistake."""
    try:
        return RowMapping.model_validate(content)
    except ValidationError as error:
        said: dict[str, str] = {}
        for one in error.errors(include_url=False):
            place = ".".join(str(part + 1 if isinstance(part, int) else part) for part in one["loc"][:3])
            text = one["msg"].removeprefix("Value error, ")
            if isinstance(one["input"], bool):
                text = "expected a text or a number (yes, no, true and false in quotes)"
            got = f", got {shown(one['input'])}" if one["type"] not in ("missing", "value_error") else ""
            said.setdefault(place, f"{place}: {text}{got}" if place else text)
        raise UserError(f"mapping {name}: {'; '.join(said.values())}") from None


def patient_rows(root: Path, mapping: RowMapping, tell: Tell = nothing) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The tables of the folder ``root`` (or the table ``root``) as ``mapping`` says, one row for each event.

    Returns:
        Text cells, "" where nothing is known, with columns as ``RowMapping.names`` after patient and date; and what
        entered and what did not, a line each.

    Raises:
        UserError: a table, column or date is not as the mapping says, or there are more rows than is bounded.
    """
    try:
        return _Maker(root, mapping, tell).made()
    except DataError as error:
        raise UserError(f"mapping: {error}") from None


class _Maker:
    def __init__(self, root: Path, mapping: RowMapping, tell: Tell) -> None:
        self.home, self.root, self.mapping, self.tell = (root if root.is_dir() else root.parent), root, mapping, tell
        self.until = time.monotonic() + MOST_SECONDS
        self.gaps = {plain(as_cell(cell)) for cell in mapping.missing}
        self.tables: dict[tuple[str, str], pd.DataFrame] = {}
        self.cells = 0
        self.needs: dict[tuple[str, str], set[str]] = {}
        outcome = mapping.outcome
        for one in (mapping.index, *mapping.exclude, *mapping.columns, *([outcome] if outcome else [])):
            self._need(one, getattr(one, "column", ""))
        if outcome and outcome.until:
            self._need(outcome.until, "")
        own = {*mapping.index.named.values()}
        for one in (*mapping.exclude, *mapping.columns, *([outcome] if outcome else [])):
            own |= {name for name in self.keys(one) if name not in mapping.names}
        self.needs[mapping.index.table, mapping.index.sheet] |= own
        self.late: dict[str, int] = {}
        self.unmatched: dict[str, int] = {}
        self.notes: list[str] = []

    def keys(self, one: Source) -> dict[str, str]:
        """Column of the index, or of the result -> the column of ``one`` that has the same values."""
        if isinstance(one.key, dict):
            return one.key
        return {self._patient: one.key or self.mapping.patient, **{name: name for name in self.person[1:]}}

    @property
    def _patient(self) -> str:
        return self.mapping.index.key or self.mapping.patient

    @property
    def person(self) -> list[str]:
        """Columns of the index that together say who it is."""
        return [self._patient, *filter(None, [self.mapping.within])]

    def _need(self, one: Source, column: str) -> None:
        own = {*one.where, one.date, column, *(self.keys(one).values() if one is not self.mapping.index else ())}
        own |= {*self.person} if one is self.mapping.index else set()
        self.needs.setdefault((one.table, one.sheet), set()).update(own - {""})

    def read(self, pattern: str, sheet: str) -> pd.DataFrame:
        """The columns that the mapping names of a table, or of all that a pattern matches."""
        if (pattern, sheet) in self.tables:
            return self.tables[pattern, sheet]
        needs = sorted(self.needs[pattern, sheet])
        parts = []
        if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
            raise UserError(f"mapping: table: expected a path inside the folder, got {shown(pattern)}")
        paths = sorted(self.home.glob(pattern), key=lambda path: natural(str(path)))[: MOST_FILES + 1]
        home = self.home.resolve()
        paths = [path for path in paths if path.is_file() and path.resolve().is_relative_to(home)]
        paths = [path for path in paths if path.relative_to(self.home).parts[0] != INSIDE]  # which ``init`` has written
        if self.root.is_file() and len(self.needs) == 1:  # a newer export may have another name
            paths = [self.root]
        if not paths:
            files = [path.name for path in sorted(self.home.iterdir()) if path.is_file()]
            raise UserError(f"mapping: table: expected a file among {some(files, 12)}, got {shown(pattern)}")
        if len(paths) > MOST_FILES:
            raise UserError(f"mapping: table {pattern}: expected at most {MOST_FILES:,} files, got more")
        for number, path in enumerate(paths, start=1):
            self.tell("tables", number)
            columns = read_columns(path, sheet)
            n = len(next(iter(columns.values()), ()))
            columns |= {FILE: [path.stem] * n, HOME: [path.parent.name] * n}
            for name in needs:
                if name not in columns:
                    raise UserError(f"mapping: {path.name}: {unlisted('column', name, [*columns])}")
            own = pd.DataFrame({name: columns[name] for name in needs}, dtype=object)
            self.cells += own.size
            self.bound(path.name, self.cells, LIMITS.cells, "cells of all tables")
            parts.append(own)
        table = pd.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0]
        for name in table.columns:
            texts = {
                text: "" if is_missing(text) or plain(text) in self.gaps else text for text in table[name].unique()
            }
            table[name] = table[name].map(texts)
        self.tables[pattern, sheet] = table
        return table

    def bound(self, what: str, got: int, most: int, unit: str) -> None:
        """Raise UserError where there is more, or where all has taken too long."""
        if got > most:
            raise UserError(f"mapping: {what}: expected at most {most:,} {unit}, got {got:,}")
        if time.monotonic() > self.until:
            raise UserError(f"mapping: {what}: expected all tables within {MOST_SECONDS} seconds, they took longer")

    def rows(self, one: Source) -> pd.DataFrame:
        """The rows of ``one`` that are as its ``where`` says."""
        table = self.read(one.table, one.sheet)
        for name, value in one.where.items():
            texts = {plain(as_cell(each)) for each in (value if isinstance(value, list) else [value])}
            table = table[table[name].map(plain).isin(texts)]
            if table.empty:
                raise UserError(f"mapping: {one.table}: where: no row has {name} {some(sorted(map(shown, texts)), 3)}")
        return table

    def times(self, one: Source, cells: pd.Series) -> pd.Series:
        """``cells`` as dates, or as numbers where those of the index are none; NaN or NaT where one is empty."""
        if not len(cells):
            return pd.Series([], dtype="datetime64[us]" if self.dated else float, index=cells.index)
        texts = pd.Series(cells.unique(), dtype=object)
        found = _dates(texts) if self.dated else _numbers(texts)
        if found is None or (odd := texts[found.isna() & (texts != "")]).size:
            example = next(text for text in (texts if found is None else odd) if text)
            what = "dates such as 2024-01-31 13:05" if self.dated else "numbers that count from the index"
            raise UserError(f"mapping: {one.table}: {one.date}: expected {what}, got {shown(example)}")
        return pd.Series(found.to_numpy()[pd.factorize(cells)[0]], index=cells.index)

    def made(self) -> tuple[pd.DataFrame, tuple[str, ...]]:
        """Reads all tables."""
        index = self.mapping.index
        events = self.rows(index)
        self.dated, self.timed = False, False
        if index.date:
            filled = events[index.date] != ""
            texts = pd.Series(events.loc[filled, index.date].unique(), dtype=object)
            self.dated = bool(_numbers(texts).isna().any() or texts.str.fullmatch(r"\d{8}").all())
            if not filled.all():
                self.notes.append(f"{int((~filled).sum())} rows of {index.table} have no {index.date} and are no index")
            events = events[filled]
        nobody = events[self._patient] == ""
        if nobody.any():
            raise UserError(f"mapping: {index.table}: {self._patient}: {int(nobody.sum())} rows have no patient")
        if events.empty:
            raise UserError(f"mapping: {index.table}: expected rows of an index, got none")
        site = index.named.get(self.mapping.site, "") if self.mapping.within is None else ""
        if site and (n := int((events[site].groupby(_keys(events[self._patient])).nunique() > 1).sum())):
            ways = f"a line within: {site} in the mapping says that they are different people, within: '' the same"
            raise UserError(f"mapping: {index.table}: {n} ids of {self._patient} stand at several sites: {ways}")
        starts = self.times(index, events[index.date]) if index.date else pd.Series(0.0, index=events.index)
        self.timed = self.dated and bool((starts != starts.dt.normalize()).any())
        self.events = events
        base = events.assign(**{TIME: starts}).sort_values([TIME], kind="stable")
        if index.take != "each":
            base = base[~base[self.person].apply(_keys).duplicated(keep=index.take)]
        base = base.sort_index().reset_index(drop=True)
        if self.dated:
            base[TIME] += pd.to_timedelta(index.after * SECONDS[self.mapping.unit], unit="s")
            if not self.timed and (base[TIME] != base[TIME].dt.normalize()).any():
                text = f"expected whole days, as {index.date} has no times of day"
                raise UserError(f"mapping: index: after: {text}, got {index.after:g} {self.mapping.unit}")
        else:
            base[TIME] += index.after
        for other in self.mapping.exclude:
            pairs = self.pairs(base.assign(**{ROW: range(len(base))}), {}, other, other.window or (None, 0.0))
            gone = base.index.isin(pairs[ROW])
            base = base[~gone].reset_index(drop=True)
            self.notes.append(f"{int(gone.sum()):,} events are excluded by {other.table}")
        if base.empty:
            raise UserError(f"mapping: {index.table}: expected rows of an index, got none that is not excluded")
        base[ROW] = np.arange(len(base))
        result = {self.mapping.patient: base[self._patient]}
        result |= {DATE: base[TIME].map(as_cell)} if self.dated else {}
        result |= {name: base[column] for name, column in index.named.items()}
        for one in self.mapping.columns:
            pairs = self.pairs(base, result, one, (one.window or (None, 0.0)) if one.date else (None, None))
            for take in one.takes:
                name = one.name if len(one.takes) == 1 else f"{one.name}_{take}"
                result[name] = self.taken(one, take, pairs, len(base))
        if self.mapping.outcome:
            result |= self.outcome(base, result, self.mapping.outcome)
        n = len(base[self.person].apply(_keys).drop_duplicates())
        which = f"{index.take} of {index.table}, {len(events):,} events"
        always = [*index.named, *(one.name for one in self.mapping.columns if not one.date)]
        notes = [f"{len(base):,} rows of {n:,} patients, by the mapping ({which})", *self.notes]
        notes += [f"{n:,} rows of {name} after the index entered no predictor" for name, n in self.late.items() if n]
        text = "rows of {} are of no patient of {} and do not enter"
        notes += [f"{n:,} {text.format(name, index.table)}" for name, n in self.unmatched.items() if n]
        notes += [f"no date says when these are known: {some(always, 8)}"] if always else []
        return pd.DataFrame(result, dtype=object), tuple(notes)

    def pairs(
        self,
        base: pd.DataFrame,
        result: Mapping[str, pd.Series],
        one: Source,
        window: tuple[float | None, float | None],
    ) -> pd.DataFrame:
        """The table's rows at each event in ``window``, in order of time, then of the file: ``ROW`` and the table's."""
        keys, table = self.keys(one), self.rows(one)
        left = pd.DataFrame(
            {f"@{k}": _keys(result[name] if name in result else base[name]) for k, name in enumerate(keys)}
        )
        right = pd.DataFrame({f"@{k}": _keys(table[name]) for k, name in enumerate(keys.values())})
        both = [*left.columns]
        right = right[(right != "").all(axis=1)]
        counts = left.groupby(both).size().mul(right.groupby(both).size(), fill_value=0)
        self.bound(one.table, int(counts.sum()), MOST_PAIRS, "rows at all events")
        merged = left.assign(**{ROW: base[ROW]}).merge(right.assign(at=right.index), on=both)
        if merged.empty and len(right):
            self.notes.append(f"{one.table}: no {some([*keys.values()])} is one of {self.mapping.index.table}")
        elif self._patient in keys:  # also of those whose event is excluded
            strange = ~right[f"@{[*keys].index(self._patient)}"].isin(_keys(self.events[self._patient]))
            self.unmatched[one.table] = max(self.unmatched.get(one.table, 0), int(strange.sum()))
        pairs = table.loc[merged["at"]].assign(**{ROW: merged[ROW].to_numpy()})
        if not one.date:  # no window then
            return pairs.sort_values(ROW, kind="stable")
        known = (pairs[one.date] != "").to_numpy()
        if not known.all():
            self.notes.append(f"{int((~known).sum()):,} rows of {one.table} have no {one.date} and do not enter")
        pairs = pairs[known]
        start, when = base[TIME].to_numpy()[pairs[ROW]], self.times(one, pairs[one.date])
        unit = SECONDS[self.mapping.unit]
        if self.dated:
            if not self.timed:
                when = when.dt.normalize()
            day, start = when.dt.normalize(), pd.Series(start, index=when.index)
            is_day = self.timed & (~pairs[one.date].astype(str).str.contains(":") | (when == day).all())
            ends = when.where(~is_day, day + pd.Timedelta(86399, unit="s"))  # a day is known when it is over
            place = (ends - start).dt.total_seconds() / unit
            since = (start.where(~is_day, start.dt.normalize()) - when).dt.total_seconds() / unit
        else:
            place = when - start
            since = -place
        low, high = (-np.inf if window[0] is None else window[0]), (np.inf if window[1] is None else window[1])
        if high <= 0:
            self.late[one.table] = max(self.late.get(one.table, 0), int((place > 0).sum()))
        pairs = pairs.assign(**{TIME: place, "@since": since})[((place >= low) & (place <= high)).to_numpy()]
        return pairs.sort_values([ROW, TIME], kind="stable")

    def taken(self, one: Column, take: str, pairs: pd.DataFrame, n: int) -> pd.Series:
        """The cell (n,) of each event."""
        if one.column:
            pairs = pairs[pairs[one.column] != ""]
        if take in ("count", "any"):
            counts = np.bincount(pairs[ROW], minlength=n)
            return pd.Series([str(min(count, 1) if take == "any" else count) for count in counts], dtype=object)
        by = pairs.groupby(ROW, sort=True)
        if take == "since":
            unit = SECONDS[self.mapping.unit] / SECONDS[one.unit or self.mapping.unit]
            found = by["@since"].last() * unit
        elif take in NUMERIC:
            numbers = pd.to_numeric(pairs[one.column], errors="coerce")
            if (odd := pairs[one.column][numbers.isna()]).size:
                text = f"expected numbers for {take}, {odd.size:,} cells such as {shown(odd.iloc[0])} are none"
                raise UserError(f"mapping: {one.table}: {one.column}: {text} (missing: [{odd.iloc[0]!r}])")
            found = numbers.groupby(pairs[ROW]).agg(take)
        else:
            if take == "only" and (several := int((by[one.column].nunique() > 1).sum())):
                text = f"expected one value of each patient, {several:,} have several"
                raise UserError(f"mapping: {one.table}: {one.column}: {text} (take: first, last, ...)")
            found = by[one.column].first() if take == "first" else by[one.column].last()
        cells = pd.Series("", index=range(n), dtype=object)
        cells.loc[found.index] = [as_cell(value) for value in found]
        if not found.size:
            self.notes.append(f"{one.name}: no event has a row of {one.table} with a value in the window")
        return cells

    def outcome(self, base: pd.DataFrame, result: Mapping[str, pd.Series], one: Outcome) -> dict[str, pd.Series]:
        """The outcome's column, or two where it is a time."""
        first, end = one.window or (None, None)
        pairs = self.pairs(base, result, one, (first, end) if one.date else (None, None))
        if one.take not in ("any", "time"):
            return {one.name: self.taken(one, one.take, pairs, len(base))}
        happened = self.taken(one, "any", pairs, len(base))
        before = (
            self.pairs(base, result, one, (None, np.nextafter(first or 0.0, -np.inf)))[ROW].nunique() if one.date else 0
        )
        if before:
            self.notes.append(f"{before:,} rows have an earlier {one.name}, too (exclude: leaves such rows out)")
        if not one.until:
            return {one.name: happened}
        seen = self.pairs(base, result, one.until, (None, None)).groupby(ROW)[TIME].max().reindex(range(len(base)))
        event = happened == "1"
        if one.take == "any":
            return {one.name: happened.where(event | (seen >= (np.inf if end is None else end)), "")}
        when = pairs.groupby(ROW)[TIME].min().reindex(range(len(base)))
        when = when.where(event, seen if end is None else seen.clip(upper=end))
        known = when >= (first or 0.0)
        return {one.name: happened.where(known, ""), f"{one.name}_time": when.where(known).map(as_cell)}


def _keys(cells: pd.Series) -> pd.Series:
    """``cells`` as spellings of one id agree."""
    return cells.map({cell: patient_key(cell) for cell in cells.unique()})


def _dates(texts: pd.Series) -> pd.Series | None:
    """Different ``texts`` as times without zone (UTC where they name one); None where some are none."""
    try:
        return pd.to_datetime(texts, format="ISO8601", utc=True).dt.tz_localize(None)
    except (ValueError, pd.errors.OutOfBoundsDatetime):
        parts = texts.str.extract(r"^(\S*?)(?:[ T]+(\d{1,2}:\d{2}(?::\d{2})?))?$").fillna("")
        days = as_iso(parts[0])
        if days is None or (days == "").any():
            return None
        clock = parts[1].where(parts[1] != "", "0:00")
        clock = clock.where(clock.str.count(":") == 2, clock + ":00")
        return pd.to_datetime(days) + pd.to_timedelta(clock)


def _numbers(texts: pd.Series) -> pd.Series:
    """Different ``texts`` as numbers, 13:30 as 13.5; NaN where one is none."""
    clock = texts.str.extract(r"^(\d+):(\d{2})$").astype(float)
    return pd.to_numeric(texts, errors="coerce").fillna(clock[0] + clock[1] / 60)


@contextlib.contextmanager
def as_table(
    root: Path, mapping: RowMapping, tell: Tell = nothing, patient: str = ""
) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Within: the path of a CSV file of ``patient_rows``, and the notes; ``patient``: what its column is called."""
    made, notes = patient_rows(root, mapping, tell)
    with tempfile.TemporaryDirectory(prefix="fairflare_") as scratch:
        table = Path(scratch, f"{root_name(root)}.csv")
        made.rename(columns={mapping.patient: patient or mapping.patient}).to_csv(table, index=False)
        yield table, notes


def look_at_rows(root: Path, mapping: RowMapping, chosen: Choices, tell: Tell = nothing) -> Found:
    """What ``look`` finds in the table that ``mapping`` makes of ``root``; raises UserError as both do."""
    outcome = mapping.outcome
    dated = [one.name if len(one.takes) == 1 else f"{one.name}_{take}" for one in mapping.columns for take in one.takes]
    keep = tuple(name for name in dated if known_after(name) and name != mapping.site)  # its window says that it is not
    given: dict[str, Any] = {"patient": chosen.patient or mapping.patient, "keep": (*chosen.keep, *keep)}
    if outcome and outcome.take == "time" and not chosen.label:
        given |= {"time": f"{outcome.name}_time", "event": outcome.name}
    elif outcome and not chosen.label:
        given["label"] = outcome.name
    if mapping.site and not chosen.site:
        given["site"] = mapping.site
    with as_table(root, mapping, tell) as (table, notes):
        try:
            found = look(table, replace(chosen, **given), tell)
        except UserError as error:
            raise UserError(str(error).replace(str(table), str(root))) from None
    return replace(found, notes=(*notes, *found.notes))


def propose(root: Path, chosen: Choices) -> str:
    """The text of a mapping for the tables of ``root``; UserError where they need none or none can be guessed."""
    paths = tables_in(root)
    if not paths:
        raise UserError(f"--mapping: expected tables in {root}, got none")
    if set_of(paths):
        return proposed(root, paths, None, "", chosen)
    try:
        table = rows_of(root, paths, chosen)
    except UserError as error:
        text = "expected a file that is there, as none can be proposed for these tables"
        raise UserError(f"--mapping: {text}: {str(error).removeprefix('init: ')}") from None
    people = People(columns_of(table, [name for name in table if not name.startswith("@")]), [""] * len(table), ())
    people.find(chosen)
    return proposed(root, paths, table, people.patient, chosen)
