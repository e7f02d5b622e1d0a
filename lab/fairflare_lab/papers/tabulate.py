# SPDX-License-Identifier: Apache-2.0
"""A declaration and the runs that it asked for become a table of values, as ``report.table_files`` has them."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from fairflare.report.fairness import mean_ci, std
from fairflare.report.values import in_order, number
from fairflare_lab.papers.declaration import Block, Column, Data, Row, Table
from fairflare_lab.papers.measures import Beside, Run, Values, evaluated
from fairflare_lab.report import table_files as model

Seeds = Mapping[int, Run]
FIRST = "fedavg"
"""Key of the row that the others are compared with."""


@dataclass(frozen=True)
class Used:
    """What a block of columns was measured on."""

    data: Data
    task: str
    """ "name:preset" that ran; ``stands_in``: it is not the paper's data."""
    stands_in: bool
    runs: Mapping[str, Seeds]
    """Row's key -> seed -> run; ``beside``: what its columns compare with."""
    beside: Mapping[str, Mapping[int, Beside]] = field(default_factory=dict)


def tabulated(table: Table, key: str, used: Sequence[Used], published: Published | None = None) -> list[model.Table]:
    """The table with its numbers, and one of all settings tried where rows show the best of several.

    ``key`` is its name in files and labels; ``published`` numbers are shown where the data are the paper's own.
    """
    found = [_block(table, block, one) for block, one in zip(table.blocks, used, strict=True)]
    columns = [column for columns, _ in found for column in columns]
    rows = []
    for row in table.rows:
        if not any(row.is_for(one.stands_in) for one in used):
            continue
        cells = {name: cell for _, cells in found for name, cell in cells.get(row.key, {}).items()}
        rows.append(model.Row(row.key, row.title, cells, row.group))
    whole = model.Table(key, table.title, tuple(columns), tuple(rows), table.stub, caption(table, used))
    shown = with_published(_with_mean(table, replace(whole, rows=_with_the_best(table, whole))), published or {}, used)
    tried = [replace(whole, key=f"{key}-tried", title=f"{table.title}: every setting that was tried")]
    if table.transposed:
        shown = _by_names(table, shown) if len(table.rows) == 1 else _transposed(table, shown)
    return [shown if table.draw else model.with_best(shown), *(tried if any(r.one_of for r in table.rows) else [])]


def _with_the_best(table: Table, whole: model.Table) -> tuple[model.Row, ...]:
    """The rows, those of one ``one_of`` as one: by the column ``choose`` of their block, else column by column."""
    headings = {row.key: row.one_of for row in table.rows}
    rows: list[model.Row] = []
    for heading, same in groupby(whole.rows, key=lambda row: headings[row.key]):
        tried = list(same)
        if not heading:
            rows += tried
            continue
        cells = {}
        for column in whole.columns:
            blocks = table.blocks if len(table.blocks) > 1 else ()
            data = next((b.data.key for b in blocks if column.key.startswith(f"{b.data.key}.")), "")
            by = ".".join(filter(None, (data, table.choose))) if table.choose else column.key
            best = _best(tried, by, {c.key: c for c in whole.columns}[by])
            cells[column.key] = best.cells.get(column.key, model.Cell())
        title = heading if len({row.title for row in tried}) > 1 else tried[0].title
        rows.append(model.Row(file_name(heading), title, cells, tried[0].group))
    return tuple(rows)


def _best(rows: Sequence[model.Row], key: str, column: model.Column) -> model.Row:
    """The row whose value in a column is best; the first where none has one."""
    sign = -1.0 if column.better == "lower" else 1.0
    known = [(row, cell.value) for row in rows if (cell := row.cells.get(key)) and cell.value is not None]
    return max(known, key=lambda pair: sign * pair[1])[0] if known else rows[0]


def _with_mean(table: Table, shown: model.Table) -> model.Table:
    """With ``Table.mean``'s column: the mean of a row's values, where it has all."""
    if not table.mean:
        return shown
    rows = []
    for row in shown.rows:
        values = [v for column in shown.columns if (v := shown.cell(row, column).value) is not None]
        mean = math.fsum(values) / len(values) if len(values) == len(shown.columns) else None
        rows.append(replace(row, cells={**row.cells, "mean": model.Cell(mean)}))
    last = replace(shown.columns[0], key="mean", title=table.mean, group="")
    return replace(shown, columns=(*shown.columns, last), rows=tuple(rows))


def _by_names(table: Table, shown: model.Table) -> model.Table:
    """One method's table: what its measures have columns for (clients) stands across, a row is a measure."""
    across = list(dict.fromkeys(column.title for column in shown.columns))
    names = {title: f"c{i}" for i, title in enumerate(across)}
    (method,), (block,) = shown.rows, table.blocks
    cells: dict[str, dict[str, model.Cell]] = {column.key: {} for column in block.columns}
    for column in shown.columns:
        cell = method.cells.get(column.key, model.Cell())
        cells[column.key.partition(".")[0]][names[column.title]] = replace(cell, form=column.form)
    rows = tuple(model.Row(column.key, column.title, cells[column.key]) for column in block.columns)
    return replace(shown, columns=tuple(model.Column(names[title], title) for title in across), rows=rows)


def _transposed(table: Table, shown: model.Table) -> model.Table:
    """Rows across: a column for each row's title, a row for each measure, data set and group of rows."""
    across = list(dict.fromkeys(row.title for row in shown.rows))
    names = {title: f"c{i}" for i, title in enumerate(across)}
    several = len(shown.columns) > 1 or not any(row.group for row in shown.rows)
    rows: dict[tuple[str, str], model.Row] = {}
    for column in shown.columns:
        for row in shown.rows:
            title = " ".join(part for part in (column.group or (column.title if several else ""), row.group) if part)
            shared = column.group and sum(other.group == column.group for other in shown.columns) > 1
            title = f"{column.group}: {column.title}" if shared else title
            at = (column.key, row.group)
            own = rows.setdefault(at, model.Row(file_name(".".join(filter(None, at))), title or column.title, {}))
            cell = replace(row.cells.get(column.key, model.Cell()), form=column.form)
            rows[at] = replace(own, cells={**own.cells, names[row.title]: cell})
    columns = tuple(model.Column(names[title], title) for title in across)
    return replace(shown, columns=columns, rows=tuple(rows.values()))


def differences(table: Table, key: str, used: Sequence[Used], first: str = FIRST) -> model.Table | None:
    """Each row minus the row ``first``, seed by seed, in the columns over all sites, domains or groups: means with 95 %
    t-intervals over seeds; None without that row, other rows or a second seed."""
    shared = {seed for one in used for seed in one.runs.get(first, {})}
    others = [row for row in table.rows if row.key != first]
    if len(shared) < 2 or not others or first not in {row.key for row in table.rows}:
        return None
    columns: list[model.Column] = []
    cells: dict[str, dict[str, model.Cell]] = {row.key: {} for row in others}
    for block, one in zip(table.blocks, used, strict=True):
        for column in block.columns:
            means = {row.key: _means(column, row, one) for row in table.rows}
            if not any(means.values()):
                continue
            name = _key(block, column, "", len(table.blocks) > 1)
            form = model.Form(column.digits, signed=True, scale=column.scale)
            group = block.data.title if len(table.blocks) > 1 else ""
            columns.append(model.Column(name, column.title, group, form=form))
            for row in others:
                paired = [own - means[first][seed] for seed, own in means[row.key].items() if seed in means[first]]
                cells[row.key][name] = model.Cell.of(mean_ci(paired), sd=False)
    rows = tuple(model.Row(row.key, row.title, cells[row.key], row.group) for row in others)
    name = next(row.title for row in table.rows if row.key == first)
    words = f"Differences from {name}, seed by seed, with 95 % t-intervals over seeds"
    return model.Table(key, words, tuple(columns), rows, table.stub, f"{words}.") if columns else None


def _means(column: Column, row: Row, used: Used) -> dict[int, float]:
    """Seed -> mean of a measure that fills one column; {} of one that fills several."""
    found = dict(zip(sorted(used.runs.get(row.key, {})), _values(column, row, used)))
    if any(set(values) != {""} for values in found.values()):
        return {}
    return {seed: math.fsum(values[""]) / len(values[""]) for seed, values in found.items() if values[""]}


def caption(table: Table, used: Sequence[Used]) -> str:
    """What the numbers are: which data and seeds, what stands behind "±", what is not known of the printed form."""
    seeds = sorted({seed for one in used for runs in one.runs.values() for seed in runs})
    sentences = [f"{table.title}.", *(_data_words(one) for one in used), _seed_words(table, seeds)]
    sentences += [text for text in (table.note, table.structure) if text]
    return " ".join(text for text in sentences if text)


def _data_words(one: Used) -> str:
    if not one.stands_in and not one.data.needs:
        return f"{one.data.title}: {one.task}, which comes with the package."
    if not one.stands_in:
        return f"{one.data.title}: the user's copy, {one.task}."
    return f"{one.data.title} is not here: measured on {one.task}, {one.data.words}; no printed number applies to it."


def _seed_words(table: Table, seeds: Sequence[int]) -> str:
    if not seeds:
        return ""
    words = f"Mean over {'seeds' if len(seeds) > 1 else 'seed'} {', '.join(map(str, seeds))}"
    if table.spread == "last-rounds":
        return f"{words} and their last five rounds ± the standard deviation of these values (ddof {table.ddof})."
    if table.spread == "seeds" and len(seeds) > 1:
        return f"{words} ± the standard deviation over seeds (ddof {table.ddof})."
    return f"{words}."


def _block(table: Table, block: Block, used: Used) -> tuple[list[model.Column], dict[str, dict[str, model.Cell]]]:
    """The columns of a block and, for each row, its cells."""
    columns: dict[str, model.Column] = {}
    cells: dict[str, dict[str, model.Cell]] = {row.key: {} for row in table.rows}
    group = block.data.title if len(table.blocks) > 1 else ""
    for column in block.columns:
        by_row = {row.key: _values(column, row, used) for row in table.rows}
        names = in_order({name for rows in by_row.values() for values in rows for name in values})
        places = column.order if "" in column.order else (*column.order, "")
        for name in sorted(names, key=lambda name: places.index(name if name in places else "")):
            key = _key(block, column, name, len(table.blocks) > 1)
            form = model.Form(column.digits, scale=column.scale)
            columns[key] = model.Column(key, name or column.title, group, column.better, form)
            for row in table.rows:
                cells[row.key][key] = _cell(table, [found.get(name, []) for found in by_row[row.key]])
    return list(columns.values()), cells


def _values(column: Column, row: Row, used: Used) -> list[Values]:
    """For each seed what the measure says; [] where the row has no runs here."""
    beside = used.beside.get(row.key, {})
    return [
        evaluated(column.measure, run, beside.get(seed, Beside()), {**column.given, **row.given})
        for seed, run in sorted(used.runs.get(row.key, {}).items())
    ]


def _cell(table: Table, per_seed: Sequence[Sequence[float]]) -> model.Cell:
    """Mean over all values; the interval is over the seeds' means, the spread as the table has it."""
    means = [math.fsum(values) / len(values) for values in per_seed if values]
    found = mean_ci(means)
    sample = means if table.spread == "seeds" else [value for values in per_seed for value in values]
    spread = std(sample, table.ddof) if table.spread and len(means) > 1 else None
    return model.Cell(found["mean"], found["low"], found["high"], spread, len(means) or None)


def _key(block: Block, column: Column, name: str, several: bool) -> str:
    return ".".join(part for part in (block.data.key if several else "", column.key, name) if part)


def with_published(shown: model.Table, published: Published, used: Sequence[Used]) -> model.Table:
    """With the printed numbers in the cells that were measured on the paper's own data.

    The name of a data set begins a column's key or, where data sets stand below each other, a row's; it begins neither
    where a single one of several was asked for.
    """
    own = {one.data.key: not one.stands_in and one.data.own for one in used}

    def beside(row: str, column: str, cell: model.Cell) -> model.Cell:
        of = [own[name] for key in (row, column) if (name := key.partition(".")[0]) in own]
        found = published.get((row, column), published.get((row, f"{used[0].data.key}.{column}")))
        value, spread = found if found and all(of or own.values()) else (None, None)
        return replace(cell, published=value, published_spread=number(spread))

    rows = (replace(row, cells={k: beside(row.key, k, cell) for k, cell in row.cells.items()}) for row in shown.rows)
    return replace(shown, rows=tuple(rows))


def file_name(name: str) -> str:
    """A name that the files of a table may have."""
    return re.sub(r"[^a-z0-9._-]", "-", name.lower())


Published = dict[tuple[str, str], tuple[float, float]]
"""(row, column) -> the printed number and the standard deviation printed with it; NaN where there is none."""
FOLDER = Path(__file__).parent / "data"


def published_numbers(name: str) -> tuple[Published, str]:
    """The numbers of ``data/NAME.csv`` (row, column, value, perhaps std) and their source, the comment above them.

    Values are unscaled: a column in per cent has shares. ({}, "") where there is no such file.
    """
    path = FOLDER / f"{name}.csv"
    if not path.is_file():
        return {}, ""
    lines = path.read_text(encoding="utf-8").splitlines()
    source = lines[0].removeprefix("#").strip()
    read = csv.DictReader(lines[1:])
    return {(r["row"], r["column"]): (float(r["value"]), float(r.get("std") or "nan")) for r in read}, source
