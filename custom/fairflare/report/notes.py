# SPDX-License-Identifier: Apache-2.0
"""What the method's rule notes of every round, as the log declares it: any rule's, without knowing the rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from fairflare.core.notes import Note, read
from fairflare.report.agreement import agreement
from fairflare.report.audit_reader import Trail
from fairflare.report.fairness import finite
from fairflare.report.values import MISSING, capital, digits, in_order, listing, number, text

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
    rows = [_row(name, [v for v in values if v is not None]) for name, values in found.items()]
    section = {**about, "rounds": max(len([v for v in v_ if v is not None]) for v_ in found.values()), "rows": rows}
    if note.mark_above:
        section["usual"] = _mark(rows, note.mark_above)
    if note.shares and note.per == "site":
        for row in rows:
            row["data_share"] = number(data_shares.get(row["name"]))
        known = [row for row in rows if row["data_share"] is not None]
        last, data = ({row["name"]: row[key] for row in known} for key in ("last", "data_share"))
        section["agreement"] = {"of": "last", "with": "data_share", **agreement(last, data)}
    return section


def _row(name: str, values: Sequence[float]) -> Json:
    mean = sum(values) / len(values)
    return {"name": name, "first": values[0], "last": values[-1], "mean": mean, "median": median(values)}


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


NoteColumn = tuple[str, Callable[[Json], str]]
"""Heading, and the cell of a row."""


def noted(summary: Json) -> dict[str, Any]:
    """sections (those that are to be shown), words (paragraphs), figures (SVG) and tables of the notes of a run."""
    from fairflare.report.note_figures import note_figure

    sections = [section for section in summary["notes"] if section["chart"] != "none"]
    return {
        "sections": sections,
        "words": [words for section in sections for words in (_agreed(section), _marked(section)) if words],
        "figures": [svg for section in sections if (svg := note_figure(summary, section))],
        "tables": [table for per in ("round", "site", "group") if (table := _side_by_side(sections, per))]
        + [_twofold_table(section) for section in sections if section["chart"] == "table" and "table" in section],
    }


def _agreed(section: Json) -> str:
    """What the last shares of sites agree with; "" for anything else."""
    agreed = section.get("agreement")
    if not agreed:
        return ""
    numbers = f"Pearson x 100: {text(agreed['pearson_x100'], 1)}, Euclidean distance: {text(agreed['euclid'])}"
    return (
        f"{section['label']}, last, against the sites' shares of the examples: {numbers}, "
        f"cosine: {text(agreed['cosine'])}."
    )


def _marked(section: Json) -> str:
    """The rule by which sites or groups are marked, with its result; "" where none are."""
    if not section["mark_above"]:
        return ""
    per, label = section["per"], section["label"]
    marked = [row["name"] for row in section["rows"] if row["marked"]]
    found = f"Marked: {listing(marked)}." if marked else f"No {per} is marked."
    if not section["usual"]:
        found = f"The median {per}'s value is 0, so no {per} can be compared with it."
    return (
        f"{label}: a {per} is marked when its median over the rounds exceeds {section['mark_above']:g} times the "
        f"median of all {per}s' medians. A mark is a reason to look, not a verdict. {found}"
    )


def _side_by_side(sections: Sequence[Json], per: str) -> dict[str, Any] | None:
    """All notes per site, or per group, side by side; None without any."""
    found = [section for section in sections if section["per"] == per]
    if not found:
        return None
    columns = [_note_columns(section) for section in found]
    rows = {section["name"]: {row["name"]: row for row in section["rows"]} for section in found}
    names = in_order(name for known in rows.values() for name in known)
    return {
        "title": f"What the method notes per {per}: first, mean and last value.",
        "of": capital(per),
        "groups": [(section["label"], len(own)) for section, own in zip(found, columns, strict=True)],
        "columns": [heading for own in columns for heading, _ in own],
        "rows": [
            {
                "name": name or "all",
                "marked": any((known.get(name) or {}).get("marked") for known in rows.values()),
                "cells": [
                    cell(rows[section["name"]][name]) if name in rows[section["name"]] else MISSING
                    for section, own in zip(found, columns, strict=True)
                    for _, cell in own
                ],
            }
            for name in names
        ],
    }


def _note_columns(section: Json) -> list[NoteColumn]:
    decimals = digits(row[key] for row in section["rows"] for key in ("first", "last", "mean", "median"))

    def numbers(key: str) -> Callable[[Json], str]:
        return lambda row: text(row[key], decimals)

    if section["mark_above"]:
        return [
            ("median", numbers("median")),
            ("times median", lambda row: text(row["ratio"], 1)),
            ("marked", lambda row: "yes" if row["marked"] else ""),
        ]
    keys = ("mean", "last") if section["chart"] == "table" else ("first", "mean", "last")
    shares = [("share of examples", numbers("data_share"))] if section.get("agreement") else []
    return [(key, numbers(key)) for key in keys] + shares


def _twofold_table(section: Json) -> dict[str, Any]:
    rows, kinds = section["table"], {"layer": ("Layer", "sites"), "cell": ("Site", "groups")}
    names = in_order(name for row in rows.values() for name in row)
    decimals = digits(value for row in rows.values() for value in row.values())
    when = "mean over rounds" if section["over"] == "mean" else "last round"
    first, across = kinds[section["per"]]
    return {
        "title": f"{section['label']}, {when}: {across} across.",
        "of": first,
        "groups": [],
        "columns": names,
        "rows": [
            {"name": name, "marked": False, "cells": [text(row.get(column), decimals) for column in names]}
            for name, row in rows.items()
        ],
    }
