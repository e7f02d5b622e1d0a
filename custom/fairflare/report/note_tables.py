# SPDX-License-Identifier: Apache-2.0
"""What a rule notes as the page shows it: its sections, sentences, figures and tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fairflare.report.note_figures import note_figure
from fairflare.report.values import MISSING, capital, digits, in_order, listing, text

Json = Mapping[str, Any]
Column = tuple[str, Callable[[Json], str]]
"""Heading, and the cell of a row."""


def noted(summary: Json) -> dict[str, Any]:
    """sections (those that are to be shown), words (paragraphs), figures (SVG) and tables of the notes of a run."""
    sections = [section for section in summary["notes"] if section["chart"] != "none"]
    return {
        "sections": sections,
        "words": [words for section in sections for words in (_agreed(section), _marked(section)) if words],
        "figures": [svg for section in sections if (svg := note_figure(summary, section))],
        "tables": [table for per in ("round", "site", "group") if (table := _table(sections, per))]
        + [_twofold(section) for section in sections if section["chart"] == "table" and "table" in section],
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


def _table(sections: Sequence[Json], per: str) -> dict[str, Any] | None:
    """All notes per site, or per group, side by side; None without any."""
    found = [section for section in sections if section["per"] == per]
    if not found:
        return None
    columns = [_columns(section) for section in found]
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


def _columns(section: Json) -> list[Column]:
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


def _twofold(section: Json) -> dict[str, Any]:
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
