# SPDX-License-Identifier: Apache-2.0
"""The numbers that sites reported beside their updates, labelled as the run and the schema declare them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairflare.report.audit_reader import Trail
from fairflare.report.values import digits, in_order, number, text

if TYPE_CHECKING:
    from fairflare.core.schema import Spec

Json = dict[str, Any]
SHOWN = ("n_examples",)
"""Counts that the table of the sites shows."""


def number_sections(trail: Trail, sites: Sequence[str], declared: Mapping[str, Any]) -> list[Json]:
    """One section per number, or family of numbers ("family/..."), that the log holds.

    Args:
        declared: name -> meaning of the numbers that the method's parts send.

    Returns:
        name (of a family with "/..."), count (names in it), meaning and rows: site, round (its last accepted one), low
        and high (the least and the largest number of the family then; both the same for one number).
    """
    from fairflare.core.schema import answer_fields  # not above: it loads PyTorch, which a comparison has no use for

    last = {site: record for record in trail.rounds for site in (record.get("accepted") or {})}
    held = {site: _held(last[site]["accepted"][site] or {}, answer_fields()) for site in sites if site in last}
    families: dict[str, dict[str, None]] = {}
    for values in held.values():
        for name in values:
            families.setdefault(name.partition("/")[0], {})[name] = None
    meanings = {name: spec.meaning for name, spec in answer_fields().items()} | dict(declared)
    return [_section(family, list(names), held, last, meanings) for family, names in families.items()]


def number_table(sections: Sequence[Json]) -> Json | None:
    """The sections as the page shows them: columns (headings), rows (site and cells) and meanings; None without any."""
    if not sections:
        return None
    rows: dict[str, list[str]] = {site: [] for site in in_order(row["site"] for s in sections for row in s["rows"])}
    for section in sections:
        found = {row["site"]: row for row in section["rows"]}
        decimals = digits(value for row in section["rows"] for value in (row["low"], row["high"]))
        for site, cells in rows.items():
            cells.append(_cell(found.get(site), 0 if section["whole"] else decimals))
    return {
        "columns": [section["name"] for section in sections],
        "rows": [{"site": site, "cells": cells} for site, cells in rows.items()],
        "meanings": [(section["name"], section["count"], section["meaning"]) for section in sections],
    }


def _cell(row: Json | None, decimals: int) -> str:
    if row is None:
        return text(None)
    low, high = text(row["low"], decimals), text(row["high"], decimals)
    return low if low == high else f"{low} to {high}"


def _held(accepted: Mapping[str, Any], fields: Mapping[str, Spec]) -> dict[str, Any]:
    """Name -> number of what the log holds of one accepted answer, the fields in the schema's order."""
    found: dict[str, Any] = {}
    for field, spec in fields.items():
        value = accepted.get(field)
        kind = spec.kind_in("train")
        if kind == "count" and field not in SHOWN:
            found[field] = value
        if kind == "numbers" and isinstance(value, Mapping):
            found |= value
    return {name: value for name, value in found.items() if number(value) is not None}


def _section(
    family: str,
    names: Sequence[str],
    held: Mapping[str, Mapping[str, Any]],
    last: Mapping[str, Mapping[str, Any]],
    meanings: Mapping[str, Any],
) -> Json:
    values = {site: [known[name] for name in names if name in known] for site, known in held.items()}
    rows = [
        {"site": site, "round": last[site]["round"], "low": min(found), "high": max(found)}
        for site, found in values.items()
        if found
    ]
    return {
        "name": names[0] if len(names) == 1 else f"{family}/...",
        "count": len(names),
        "meaning": str(meanings.get(names[0]) or ""),
        "whole": all(float(value).is_integer() for found in values.values() for value in found),
        "rows": rows,
    }
