# SPDX-License-Identifier: Apache-2.0
"""What the method's rule notes of every round, as the log declares it: any rule's, without knowing the rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from fairflare.core.notes import Note, read
from fairflare.report.audit_reader import Trail
from fairflare.report.contribution import agreement
from fairflare.report.fairness import finite
from fairflare.report.values import in_order, number

Json = dict[str, Any]
Values = Mapping[str, float]


def note_sections(trail: Trail, data_shares: Mapping[str, float | None]) -> list[Json]:
    """One section per declared note of which the log holds a number, in the order of the declarations.

    Args:
        trail: the run's records; the first one declares the notes (``core.notes.Note.to_json``).

    Returns:
        what the log declares of the note, and rounds (with a number of it). Of a note per round, site or group: rows
        (name, first, last, mean and median over its rounds; for a site's share, data_share), and where sites or groups
        are marked: usual (the median of the medians), ratio (median over usual) and marked of each row. Of shares per
        site: agreement of the last ones with the data shares. Of a two-fold note: table, row -> column -> number, the
        last or the mean over its rounds as declared.
    """
    found = (_section(note, trail, data_shares) for note in read(trail.start.get("declared_notes")))
    return [section for section in found if section]


def series(rounds: Sequence[Mapping[str, Any]], section: Mapping[str, Any]) -> dict[str, list[float | None]]:
    """Name -> value per recorded round of a note per round, site or group; the name of a note per round is ""."""
    each = [_flat(row, section["name"], section["per"] == "round") for row in rounds]
    return {name: [values.get(name) for values in each] for name in in_order(n for values in each for n in values)}


def _section(note: Note, trail: Trail, data_shares: Mapping[str, float | None]) -> Json | None:
    about = note.to_json()
    if note.depth == 2:
        table, rounds = _table(note, trail)
        return {**about, "rounds": rounds, "table": table} if table else None
    found = series(trail.rounds, about)
    if not found:
        return None
    known = {name: [value for value in values if value is not None] for name, values in found.items()}
    rows: list[Json] = [
        {"name": name, "first": v[0], "last": v[-1], "mean": sum(v) / len(v), "median": median(v)}
        for name, v in known.items()
    ]
    section = {**about, "rounds": max(map(len, known.values())), "rows": rows}
    if note.mark_above:
        section["usual"] = _mark(rows, note.mark_above)
    if note.shares and note.per == "site":
        for row in rows:
            row["data_share"] = number(data_shares.get(row["name"]))
        held = [row for row in rows if row["data_share"] is not None]
        last, data = ({row["name"]: row[key] for row in held} for key in ("last", "data_share"))
        section["agreement"] = {"of": "last", "with": "data_share", **agreement(last, data)}
    return section


def _mark(rows: Sequence[Json], factor: float) -> float:
    """Set ratio and marked of every row, and return the median of the rows' medians."""
    usual = median(row["median"] for row in rows)
    for row in rows:
        row["ratio"] = row["median"] / usual if usual else None
        row["marked"] = row["ratio"] is not None and row["ratio"] > factor
    return usual


def _table(note: Note, trail: Trail) -> tuple[dict[str, dict[str, float]], int]:
    """Row -> column -> number of a two-fold note, and the number of rounds that have one."""
    each = [_twofold(record, note.name) for record in trail.rounds]
    each = [found for found in each if found]
    if note.over == "last":
        return (each[-1] if each else {}), len(each)
    values: dict[str, dict[str, list[float]]] = {}
    for found in each:
        for row, columns in found.items():
            for column, value in columns.items():
                values.setdefault(row, {}).setdefault(column, []).append(value)
    means = {row: {column: sum(v) / len(v) for column, v in columns.items()} for row, columns in values.items()}
    return means, len(each)


def _flat(record: Mapping[str, Any], name: str, single: bool) -> Values:
    value = (record.get("notes") or {}).get(name)
    return finite({"": value} if single else value if isinstance(value, Mapping) else {})


def _twofold(record: Mapping[str, Any], name: str) -> dict[str, dict[str, float]]:
    value = (record.get("notes") or {}).get(name)
    rows = value if isinstance(value, Mapping) else {}
    known = {row: finite(columns) for row, columns in rows.items() if isinstance(columns, Mapping)}
    return {row: columns for row, columns in known.items() if columns}
