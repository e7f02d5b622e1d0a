# SPDX-License-Identifier: Apache-2.0
"""Which tables have several rows of a patient, and a mapping that makes one row of each, to be read and corrected."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd
import yaml

from fairflare.core.errors import UserError
from fairflare.core.validation import flag, in_order, some
from fairflare.data.readers.cases import patient_key
from fairflare.data.readers.tables import read_columns
from fairflare.import_data.labels import AGE, WORDS, bare
from fairflare.import_data.proposal import Choices, Found
from fairflare.import_data.roles import columns_of

EVENT, INSTRUMENT, GROUP = "redcap_event_name", "redcap_repeat_instrument", "redcap_data_access_group"
TIMES = ("hour", "hours", "time", "iculos", "minute", "minutes", "day", "days", "offset", "zeit", "stunde", "tag")
"""Names of columns, bare, that count the rows of one patient's table."""
LEAST_FILES, MOST_CODES, MOSTLY = 10, 10, 0.9
OF_REDCAP, PER_PATIENT, VISITS = "REDCap's longitudinal export", "a table of each patient", "several rows of a patient"
LONG = "a table with a row for each measurement"
NAME = "@name"
"""Of all tables' rows, as one: the column with the name of each row's file, without its ending."""
FILE, HOME = "@file", "@folder"
"""What a mapping calls a row's file and folder."""
Known = dict[str, Any]
FORMS: dict[str, Known] = yaml.safe_load(Path(__file__).with_name("sets.yaml").read_text(encoding="utf-8"))
"""Relational sets: their tables, and the columns of these."""


def advice(root: Path, chosen: Choices) -> str:
    """The command that proposes a mapping, and then reads it."""
    given = {name: getattr(chosen, name) for name in ("label", "patient", "site")}
    flags = [flag(name, value) for name, value in given.items() if value]
    file = shlex.quote(f"{root.resolve().stem}.mapping.yaml")
    return " ".join(["fairflare init", shlex.quote(str(root)), "--mapping", file, *flags])


def set_of(paths: Sequence[Path]) -> str:
    """The relational set that tables at ``paths`` are by their names; "" for none that is known."""
    stems = {path.stem.lower() for path in paths}
    return next((name for name, known in FORMS.items() if {known["index"][0], known["person"][0]} <= stems), "")


def join_advice(root: Path, paths: Sequence[Path], chosen: Choices) -> str:
    """What to say of tables at ``paths`` whose columns differ."""
    if form := set_of(paths):
        return f"as {form} they become one by a mapping: {advice(root, chosen)}"
    return "tables of other columns become one by --mapping FILE, which is written by hand (docs/data.md)"


def form_of(table: pd.DataFrame, stems: pd.Series, patient: str) -> str:
    """What the rows are where several are of one patient, "" where they are not.

    ``stems``: of each row the name of its file; ``patient``: the patient's column, "" where there is none.
    """
    if {EVENT, INSTRUMENT} & {*table.columns} and table.iloc[:, 0].duplicated().any():
        return OF_REDCAP
    if _measured(table):
        return LONG
    if patient and table[patient].map(patient_key).duplicated().any():
        return VISITS
    files = stems.nunique()
    many = files >= LEAST_FILES and stems.str.contains(r"\d$").all() and len(table) >= 3 * files
    return PER_PATIENT if many and not patient and _counting(table, stems) else ""


def _measured(table: pd.DataFrame) -> tuple[str, str] | None:
    """The columns that say what was measured, often the same, and its value; None where there are none."""
    key, value = (
        next((name for name in table if bare(name) in WORDS[f"column_{one}"]), "") for one in ("key", "value")
    )
    few = bool(key and value) and 2 <= table[key].nunique() <= len(table) / MOST_CODES
    return (key, value) if few else None


def _counting(table: pd.DataFrame, stems: pd.Series) -> str:
    """The column of numbers or times that grows from row to row in every file; "" for none."""
    for name in table.columns:
        if bare(name) in TIMES:
            numbers = pd.to_numeric(table[name].str.replace(r"^(\d+):(\d{2})$", r"\1.\2", regex=True), errors="coerce")
            if numbers.notna().all() and (numbers.groupby(stems.to_numpy()).diff().dropna() >= 0).all():
                return str(name)
    return ""


def refuse_several(root: Path, table: pd.DataFrame, stems: pd.Series, chosen: Choices) -> None:
    """Raise UserError with the command that proposes a mapping where a row is clearly not an example by itself."""
    if (form := form_of(table, stems, "")) == OF_REDCAP:
        text = f"{OF_REDCAP} has {len(table)} rows of {table.iloc[:, 0].nunique()} {table.columns[0]}"
        raise UserError(f"init: {text}: one row of each is needed: {advice(root, chosen)}")
    if form == LONG:
        text = f"{LONG}, as {' and '.join(_measured(table) or ())} say"
        raise UserError(f"init: {text}: one row of each patient is needed: {advice(root, chosen)}")
    if form:
        text = f"{stems.nunique()} files look like {form}, not of a site"
        raise UserError(f"init: {text}: one row of each is needed: {advice(root, chosen)}")


def proposed(root: Path, paths: Sequence[Path], table: pd.DataFrame | None, patient: str, chosen: Choices) -> str:
    """The text of a mapping for the tables at ``paths``: ``table`` is all of them, None where they are a known set.

    Raises:
        UserError: no patient has several rows, or nothing says which column is the outcome.
    """
    home = root if root.is_dir() else root.parent
    if table is None:
        content, notes = _relational(home, paths)
    else:
        stems = table[NAME]
        own = table.drop(columns=[name for name in table.columns if name.startswith("@")])
        places = {FILE: stems, HOME: table["@home"].map(lambda home: PurePosixPath(home).name)}
        form = form_of(own, stems, patient)
        if not form:
            raise UserError("--mapping: expected a file that is there, as no patient has several rows")
        folders = {path.parent.relative_to(home).as_posix() for path in paths}
        endings = {path.suffix for path in paths}
        pattern = f"*{endings.pop()}" if len(endings) == 1 else "*"
        pattern = pattern if folders == {"."} else f"*/{pattern}"
        pattern = paths[0].relative_to(home).as_posix() if len(paths) == 1 else pattern
        label = chosen.label or next((n for word in WORDS["column_label"] for n in own if bare(n) == word), "")
        if label not in own.columns:
            columns = some(_filled(own, [patient]), 40)
            raise UserError(f"init: --label COLUMN says which is the outcome; the tables have: {columns}")
        site = _site(own, chosen) or ("" if len(paths) == 1 else HOME if len(folders) > 1 else FILE)
        if form == OF_REDCAP:
            content, notes = _redcap(own.assign(**places), pattern, label, site)
        elif form == PER_PATIENT:
            content, notes = _per_patient(own, stems, pattern, label, HOME if len(folders) > 1 else "")
        else:
            content, notes = _visits(own.assign(**places), pattern, label, patient, site, _measured(own))
    head = "".join(f"# {line}\n" for line in ("Proposed by fairflare init: read it, and correct it.", *notes))
    return head + yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)


def _site(table: pd.DataFrame, chosen: Choices) -> str:
    if chosen.site and chosen.site != "none":
        return chosen.site
    names = [GROUP, *(name for word in WORDS["column_site"] for name in table if bare(name) == word)]
    return next((name for name in names if name in table.columns), "")


def _named(columns: Mapping[str, str]) -> list[str] | dict[str, str]:
    return [*columns] if all(name == column for name, column in columns.items()) else dict(columns)


def _takes(cells: pd.Series, numeric: Sequence[str]) -> list[str] | str:
    """``numeric`` where the cells that are filled are numbers, else "last"."""
    return [*numeric] if pd.to_numeric(cells[cells != ""], errors="coerce").notna().mean() >= MOSTLY else "last"


def _filled(table: pd.DataFrame, without: Sequence[str]) -> list[str]:
    """Columns with a cell, but those of REDCap's own, of a row's file, and ``without``."""
    names = [name for name in table.columns if name not in (FILE, HOME, *without) and (table[name] != "").any()]
    return [name for name in names if not name.startswith("redcap_") and not name.endswith("_complete")]


def _date_of(table: pd.DataFrame, dates: Sequence[str]) -> str:
    """The date of most rows that is no date of birth."""
    fits = [name for name in dates if not _is_birth(name) and (table[name] != "").mean() >= MOSTLY]
    return max(fits, key=lambda name: (table[name] != "").sum(), default="")


def _is_birth(name: str) -> bool:
    return any(word in bare(name) for word in ("birth", "dob", "geb", "naiss"))


def _redcap(table: pd.DataFrame, pattern: str, label: str, site: str) -> tuple[Known, list[str]]:
    patient = str(table.columns[0])
    events = [str(name) for name in table[EVENT].unique()] if EVENT in table else []
    first: dict[str, Any] = {EVENT: events[0]} if events else {}
    first |= {INSTRUMENT: ""} if INSTRUMENT in table else {}
    single = table[INSTRUMENT] == "" if INSTRUMENT in table else pd.Series(True, index=table.index)
    own = table[single & (table[EVENT] == events[0])] if events else table[single]
    taken = [patient, label, site]
    names = _filled(own, taken)
    dates = [one.name for one in columns_of(own, names).values() if one.is_date]
    date = _date_of(own, dates)
    columns = {name: name for name in names if name not in dates}
    index: Known = {"table": pattern, "where": first, **({"date": date} if date else {})}
    index["columns"] = _named({**({"site": site} if site else {}), **columns})
    notes = [f"{OF_REDCAP}: predictors are those of {events[0] if events else 'the rows that do not repeat'}."]
    content: Known = {"patient": patient, **({"site": "site"} if site else {})}
    content |= {
        **_within(table[table[site] != ""] if site else table, patient, site, notes),
        "index": index,
        "columns": [],
    }
    for birth in filter(_is_birth, dates if date and not any(bare(name) in AGE for name in names) else []):
        age = {"name": "age", "table": pattern, "where": first, "date": birth, "take": "since", "unit": "years"}
        content["columns"].append(age)
    for name in table[INSTRUMENT].unique() if INSTRUMENT in table else ():
        if not name:
            continue
        rows = table[table[INSTRUMENT] == name]
        filled = _filled(rows, taken)
        when = [one.name for one in columns_of(rows, filled).values() if one.is_date]
        if date and (of := _date_of(rows, when)):
            for column in (one for one in filled if one not in when):
                source = {"name": f"{name}_{column}", "table": pattern, "where": {INSTRUMENT: str(name)}, "date": of}
                take = _takes(rows[column], ("last", "count"))
                content["columns"].append({**source, "column": column, "window": [None, 0], "take": take})
        else:
            notes.append(f"{name} repeats without a date, or the index has none: it is left out.")
    later = sorted({*_filled(table[single], [*taken, *names])})
    notes += [f"Filled at later events alone, and no predictors: {some(later, 12)}."] if later else []
    rows = table[table[label] != ""]
    where: dict[str, Any] = {}
    if events:
        order = [name for name in events if name in {*rows[EVENT]}]
        where = {EVENT: order[-1]}
        notes += [f"{label} is that of {order[-1]}, the last of {some(order, 5)}."] if len(order) > 1 else []
    if INSTRUMENT in table:
        kinds = rows[INSTRUMENT].unique()
        where[INSTRUMENT] = str(kinds[0])
    take = "last" if INSTRUMENT in table and where[INSTRUMENT] else "only"
    content["outcome"] = {"name": label, "table": pattern, "where": where, "column": label, "take": take}
    return content, notes


def _per_patient(table: pd.DataFrame, stems: pd.Series, pattern: str, label: str, site: str) -> tuple[Known, list[str]]:
    clock = _counting(table, stems)
    ends = pd.to_numeric(table[clock].str.replace(r"^(\d+):\d{2}$", r"\1", regex=True)).groupby(stems.to_numpy()).max()
    after = 24.0 if ends.median() >= 48 else float(ends.median() // 2)
    word = bare(clock)
    unit = "days" if word.startswith(("day", "tag")) else "minutes" if word.startswith("minute") else "hours"
    index: Known = {"table": pattern, "key": FILE, "after": after}
    index |= {"columns": {"site": site}} if site else {}
    columns = []
    for name in _filled(table, [label, clock]):
        take = _takes(table[name], ("last", "mean"))
        columns.append({"name": name, "table": pattern, "key": FILE, "date": clock, "column": name, "take": take})
    end = {"date": clock, "window": [0, None], "column": label, "take": _takes(table[label], ("max",))}
    end["take"] = "max" if isinstance(end["take"], list) else "last"
    outcome = {"name": label, "table": pattern, "key": FILE, **end}
    content: Known = {"patient": "patient", **({"site": "site"} if site else {}), "unit": unit, "index": index}
    notes = [f"A file is a patient; {clock} counts. Predictors are known by {after:g}, the outcome is from then on."]
    return {**content, "columns": columns, "outcome": outcome}, notes


def _visits(
    table: pd.DataFrame, pattern: str, label: str, patient: str, site: str, measured: tuple[str, str] | None
) -> tuple[Known, list[str]]:
    names = _filled(table, [patient, label, site, *(measured or ())])
    dates = [one.name for one in columns_of(table, names).values() if one.is_date]
    date = _date_of(table, dates)
    own = {**({"site": site} if site else {}), **{name: name for name in names if name not in dates}}
    index: Known = {"table": pattern, **({"date": date} if date else {}), "take": "first", "columns": _named(own)}
    when = {"date": date, "window": [0, None]} if date else {}
    outcome = {"name": label, "table": pattern, **when, "column": label, "take": "last"}
    order = f"by {date}" if date else "in the file's order, as no date is known of all"
    notes = [f"Predictors are of a patient's first row ({order}), the outcome of the last one."]
    content = {"patient": patient, **({"site": "site"} if site else {}), **_within(table, patient, site, notes)}
    if measured:
        key, value = measured
        first = {"table": pattern, "column": value, "take": "first"}
        columns = [{"name": one, "where": {key: one}, **first} for one in in_order({*table[key]} - {""})]
        return {**content, "index": index, "columns": columns, "outcome": outcome}, notes
    return {**content, "index": index, "outcome": outcome}, notes


def _within(table: pd.DataFrame, patient: str, site: str, notes: list[str]) -> dict[str, str]:
    """``RowMapping.within`` where the same ids stand at several sites."""
    if not site or not (n := int((table[site].groupby(table[patient].map(patient_key)).nunique() > 1).sum())):
        return {}
    notes.append(f"{n} ids stand at several sites: different people (within: {site}), or the same (within: '').")
    return {"within": site}


def _relational(home: Path, paths: Sequence[Path]) -> tuple[Known, list[str]]:
    stems, form = {path.stem.lower(): path for path in paths}, set_of(paths)
    known, heads = FORMS[form], dict[str, pd.DataFrame]()

    def column(table: str, name: str) -> str:
        """The column as the file spells it, "" where there is none with a value."""
        if table not in stems:
            return ""
        if table not in heads:
            heads[table] = pd.DataFrame(read_columns(stems[table]), dtype=object)
        own = heads[table]
        return next((one for one in own if one.lower() == name.lower() and (own[one] != "").any()), "")

    def file(table: str) -> str:
        return stems[table].relative_to(home).as_posix()

    (start, date, more), (person, key, sex, births) = known["index"], known["person"]
    patient = column(start, known["patient"])
    own = {name: spelled for name, one in more.items() if (spelled := column(start, one))}
    if not (patient and column(start, date)):
        raise UserError(f"--mapping: {file(start)}: expected columns {known['patient']} and {date}")
    index = {"table": file(start), "date": column(start, date), "take": "first", "columns": own}
    columns: list[Known] = []
    of_person = {"table": file(person), "key": column(person, key)}
    if spelled := column(person, sex):
        columns.append({"name": "sex", **of_person, "column": spelled})
    if birth := next(filter(None, (column(person, one) for one in births)), ""):
        columns.append({"name": "age", **of_person, "date": birth, "take": "since", "unit": "years"})
    for table, when, code, value in known["coded"]:
        if not (when := column(table, when)) or not (code := column(table, code)):
            continue
        codes = heads[table].groupby(code)[column(table, known["patient"])].nunique()
        for text in codes.drop("", errors="ignore").sort_values(ascending=False, kind="stable").index[:MOST_CODES]:
            amounts = column(table, value) if value else ""
            cells = heads[table].loc[heads[table][code] == text, amounts] if amounts else pd.Series([], dtype=object)
            take = _takes(cells, ("last", "count")) if (cells != "").any() else "any"
            valued = {"column": amounts} if take != "any" else {}
            source = {"name": f"{table}_{text}", "table": file(table), "date": when, "where": {code: text}}
            columns.append({**source, **valued, "window": [-365, 0], "take": take})
    notes = [f"{form}: predictors by the first row of {file(start)} of each patient, the {MOST_CODES} commonest codes."]
    content: Known = {"patient": patient, **({"site": "site"} if "site" in own else {})}
    if "site" in own and (heads[start].groupby(patient)[own["site"]].nunique() > 1).any():
        notes.append(
            f"Ids at several sites are the same people (within: ''); of each site others: (within: {own['site']})."
        )
        content["within"] = ""
    content |= {"index": index, "columns": columns}
    table, key, when = known["death"]
    if spelled := column(table, when):
        of_death = {"table": file(table), "key": column(table, key), "date": spelled}
        content["outcome"] = {"name": "died", **of_death, "window": [0, 365], "take": "any"}
    return content, notes


def note_on(root: Path, found: Found, chosen: Choices) -> tuple[str, ...]:
    """What to say where patients have several rows of a table, each of which is an example."""
    n, whose = len(found.examples), {(one.site, patient_key(one.patient)) for one in found.examples if one.patient}
    if not found.form.table or not 0 < len(whose) < n:
        return ()
    text = f"{n} rows of {len(whose)} patients: each row is an example"
    return (f"{text}; one row of each: {advice(root, chosen)}",)
