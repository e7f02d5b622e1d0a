# SPDX-License-Identifier: Apache-2.0
"""Which columns of a table are predictors, how each is read, and which may be known only after the outcome."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from fairflare.core.errors import UserError
from fairflare.core.suggest import in_order, some
from fairflare.core.validation import shown
from fairflare.import_data.labels import alike, bare
from fairflare.import_data.proposal import Choices, Reading, is_missing
from fairflare.import_data.words import NO, YES, is_date, known_after, of_sites, split_word

MOSTLY = 0.9
"""Share of a column's cells that are numbers (or dates) from which on the others count as missing."""
LEAST_ROWS = 10
"""Of a level, over all sites; rarer ones are "other"."""
MOST_LEVELS = 100
UNIQUE = 0.9
"""Share of different texts from which on a column is a name or a free text."""
FEW_GAPS = 0.02
"""Share of missing cells from which on their being missing is a predictor, too."""
ALONE = 0.98
"""Area under the curve of one column from which on it may follow from the outcome."""
FEWEST = 8
"""Rows of a class from which on that area says something."""
MOST = 1e30
CODES = (-9.0, -99.0, -999.0, -1.0, 99.0, 999.0, 9999.0, 99999.0)
"""Numbers that often stand for a missing one."""
FEW = 6
"""Different numbers up to which 9 is such a number, too."""
LEAST_CODES, SPREADS = 2, 1.0
"""Fewest cells with a code; widths of the other numbers that it lies beyond."""
HALF, MOST_BANDS = 0.5, 10
WITH_UNIT = re.compile(r"[<>≤≥~+−-]?\s*\d+(?:[.,'\s]\d+)*(?:\s*/\s*\d+(?:[.,]\d+)?)?\s*(?:%|[a-zA-Zµ°/²³]+)?")
"""A number with a sign, marks of thousands, a fraction or a unit."""
OF_SPLITS = ("fold", "cvfold", "istest", "istrain", "istraining", "isval", "split", "subset", "partition")
NONE = "none"
"""A word that is a gap among numbers, and a level among words."""


@dataclass
class Predictors:
    """What of a table the model gets.

    Attributes:
        cells: the columns as normalised text, "" where missing; reference dates too.
        features: names of the predictors, in the table's order.
        specs: predictor -> how it is read, see ``tasks.own.tabular``; plain numbers have none.
        notes: what was left out and why, a line each.
        suspects: predictors that may follow from the outcome, a line each.
    """

    cells: dict[str, pd.Series] = field(default_factory=dict)
    features: list[str] = field(default_factory=list)
    specs: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    suspects: list[str] = field(default_factory=list)


def predictors(
    table: pd.DataFrame, labels: pd.Series, taken: Sequence[str], sites: pd.Series, chosen: Choices
) -> Predictors:
    """What every column but the ``taken`` ones is.

    Args:
        table: text cells, stripped.
        taken: columns with another role.
        sites: of each row: a column that numbers the rows of each site is no predictor.

    Raises:
        UserError: nothing is left, a name of ``chosen`` is not there, or a column alone tells the outcome and nobody
            can be asked whether it is known before.
    """
    _check_names(table, chosen)
    found = Predictors()
    left: dict[str, list[str]] = {}
    for name in table.columns:
        if name in taken or name in chosen.leave_out or name == chosen.since:
            continue
        if known_after(name) and name not in chosen.keep:
            found.suspects.append(
                f"{name}: its name says that it is known only after the outcome; left out (--keep {name} takes it)"
            )
            continue
        _add(found, name, table[name].where(~table[name].map(is_missing), ""), sites, chosen, left)
    for why, names in left.items():
        found.notes.append(f"columns left out, {why}: {some(names, 8)}")
    _alone(found, labels, chosen)
    if chosen.since and any(spec["kind"] == "days" for spec in found.specs.values()):
        days = of_sites(table[chosen.since], sites)
        if days is None or not (days != "").any():
            got = shown(table[chosen.since].iloc[0])
            raise UserError(f"--since {chosen.since}: expected dates such as 2024-01-31, got {got}")
        found.cells[chosen.since] = days
    if not found.features:
        text = "expected columns of numbers, categories or dates as predictors"
        raise UserError(f"init: {text}; the table has: {some(list(table.columns), 12)}")
    return found


def _check_names(table: pd.DataFrame, chosen: Choices) -> None:
    for flag in ("keep", "leave_out", "categories"):
        if lost := [name for name in getattr(chosen, flag) if name not in table.columns]:
            known = some(list(table.columns), 12)
            raise UserError(f"--{flag.replace('_', '-')}: expected a column among {known}, got {shown(lost[0])}")


def _add(
    found: Predictors, name: str, cells: pd.Series, sites: pd.Series, chosen: Choices, left: dict[str, list[str]]
) -> None:

    def leave(why: str) -> None:
        left.setdefault(why, []).append(name)

    filled = cells[cells != ""]
    values = filled.unique()
    if len(values) < 2:
        return leave("which hold one value or none")
    known = filled.groupby(sites[filled.index].to_numpy())
    if len(known) > 1 and known.nunique().max() == 1 and name not in chosen.keep:
        return leave("which have one value at each site and so tell the site (--keep COLUMN takes one)")
    if _is_place(name):
        return leave("which name or number the hospital")
    numbers = pd.to_numeric(filled, errors="coerce")
    share = float(numbers.notna().mean())
    spec: dict[str, Any] = {"kind": "number"}
    if name not in chosen.categories and share >= MOSTLY:
        if _is_id(name, cells, sites):
            return leave("which number the rows")
        odd = filled[numbers.isna() & (filled.str.lower() != NONE)]
        if len(odd):
            found.notes.append(
                f"{name}: {len(odd)} cells are no numbers, such as {shown(odd.iloc[0])}, and count as missing"
            )
        cells = cells.where(pd.to_numeric(cells, errors="coerce").notna(), "")
        _check_numbers(found, name, pd.to_numeric(cells, errors="coerce"), sites, chosen)
    elif float(filled.map(is_date).mean()) >= MOSTLY:
        days = of_sites(cells, sites) if chosen.since else None
        if days is None:
            return leave(
                "which are dates (--since COLUMN counts days from another date)"
                if not chosen.since
                else "dates of which nothing says the century, or if day or month comes first"
            )
        cells, spec = days, {"kind": "days", "since": chosen.since}
    elif {value.lower() for value in values} <= YES | NO and name not in chosen.categories:
        yes, no = ([value for value in in_order(values) if value.lower() in words] for words in (YES, NO))
        if not yes or not no:
            return leave("which hold one value or none")
        spec = {"kind": "yes_no", "yes": yes, "no": no}
    elif bare(name) in OF_SPLITS or float(filled.map(lambda cell: bool(split_word(cell))).mean()) >= MOSTLY:
        return leave("which say a split")
    else:
        _check_units(name, filled, chosen)
        if twins := alike(values):
            text = f"{shown(twins[0])} and {shown(twins[1])} differ by upper and lower case alone"
            raise UserError(f"init: {name}: {text}: expected one spelling (--leave-out {name} leaves it out)")
        counts = filled.value_counts()
        if len(counts) > UNIQUE * len(filled) or filled.str.len().mean() > 60:
            return leave("which are names or free text")
        levels = [str(value) for value in counts.index[:MOST_LEVELS] if counts[value] >= LEAST_ROWS]
        if len(levels) < 2 and len(levels) + (counts.sum() > counts[levels].sum()) < 2:
            return leave(f"of which no two values have {LEAST_ROWS} rows")
        spec = {"kind": "category", "levels": in_order(levels)}
    if float((cells == "").mean()) >= FEW_GAPS:
        spec["missing"] = True
    if none := sorted({*sites} - {*sites[cells != ""]}):
        found.notes.append(f"{name}: {some(none, 3)} {'has' if len(none) == 1 else 'have'} no value")
    found.notes.extend(_coded(name, cells[cells != ""], sites))
    found.cells[name] = cells
    found.features.append(name)
    if spec != {"kind": "number"}:
        found.specs[name] = spec


def _check_numbers(found: Predictors, name: str, numbers: pd.Series, sites: pd.Series, chosen: Choices) -> None:
    """Refuse infinite numbers and codes for missing values; note where sites seem to have other units."""
    known = numbers.dropna()
    if not np.isfinite(known).all() or (known.abs() > MOST).any():
        raise UserError(f"init: {name}: expected numbers below {MOST:g} in size, got {known.abs().max():g}")
    for code in CODES if known.nunique() > FEW else (9.0, *CODES):
        hits = int((known == code).sum())
        rest = known[known != code]
        if hits < LEAST_CODES or len(rest) < LEAST_ROWS or name in chosen.keep:
            continue
        low, high = rest.quantile([0.01, 0.99])
        far = SPREADS * max(high - low, 1e-9)
        if not low - far <= code <= high + far or (code < 0 <= rest.min()):
            what = f"{name}: {code:g} stands {hits} times and lies far from the other numbers ({low:g} to {high:g})"
            readings = [
                Reading("it is a code for missing", f"--missing {name}={code:g}"),
                Reading("it is a number", f"--keep {name}"),
            ]
            if not chosen.ask(what, readings):
                raise UserError(f"init: {what}; --missing {name}={code:g} takes it for missing")
    found.notes.extend(other_units(name, known, sites))


def other_units(name: str, known: pd.Series, sites: pd.Series) -> list[str]:
    """A note where the middle 80 % of two sites' numbers do not overlap: units differ, or gaps are written as 0."""
    grouped = known.groupby(sites[known.index].to_numpy())
    enough = grouped.size() >= LEAST_ROWS
    low, middle, high = (grouped.quantile(part)[enough] for part in (0.1, 0.5, 0.9))
    if low.empty or not low.max() > high.min():
        return []
    text = f"about {middle[high.idxmin()]:.4g} at {high.idxmin()} and {middle[low.idxmax()]:.4g} at {low.idxmax()}"
    return [f"{name}: {text}: are the units the same?"]


def _coded(name: str, filled: pd.Series, sites: pd.Series) -> list[str]:
    """A note where sites may code a category differently: no value in common, or 0 and 1 here and 1 and 2 there."""
    values = {site: {*own} for site, own in filled.groupby(sites[filled.index].to_numpy()) if len(own) >= LEAST_ROWS}
    whole: set[str] = set().union(*values.values())
    for site, own in values.items() if len(whole) <= MOST_BANDS else ():
        others = {key: other for key, other in values.items() if other - own}
        pairs = max(map(len, values.values())) <= 2
        if odd := next((key for key, other in others.items() if pairs or not other & own), ""):
            text = f"{some(in_order(own), 3)} at {site} and {some(in_order(values[odd]), 3)} at {odd}"
            return [f"{name}: {text}: are the codes the same?"]
    return []


def _check_units(name: str, filled: pd.Series, chosen: Choices) -> None:
    """Refuse numbers that are written with signs or units, which would be taken for categories."""
    like = filled.map(lambda cell: bool(WITH_UNIT.fullmatch(cell)))
    if name not in chosen.categories and float(like.mean()) >= HALF and filled[like].nunique() > MOST_BANDS:
        odd = filled[pd.to_numeric(filled, errors="coerce").isna()].iloc[0]
        signed = WITH_UNIT.fullmatch(odd)
        text = f"cells such as {shown(odd)} hold {'numbers with signs or units' if signed else 'words'}"
        ways = f"--leave-out {name} leaves the column out" + ("" if signed else f", --missing {odd} the cells")
        raise UserError(f"init: {name}: {text}: expected plain numbers ({ways})")


def _is_place(name: str) -> bool:
    plain = bare(name)
    words = ("hospital", "hosp", "centre", "center", "site", "clinic", "institution", "facility", "zentrum", "klinik")
    ends = ("", "id", "num", "no", "nr", "number", "code", "name")
    return any((plain.startswith(word) and plain.removeprefix(word) in ends) or plain.endswith(word) for word in words)


def _is_id(name: str, cells: pd.Series, sites: pd.Series) -> bool:
    """Whether a column numbers the rows: called an id, or empty as pandas writes its index."""
    plain = bare(name)
    if plain not in ("", "id", "index", "unnamed0", "rowid", "row", "no", "nr") and not plain.endswith("id"):
        return False
    return bool((cells.groupby(sites).nunique() == cells.groupby(sites).size()).all())


def _alone(found: Predictors, labels: pd.Series, chosen: Choices) -> None:
    """Ask about predictors that alone tell the outcome; the numbers' areas under the curve, best class against rest."""
    counts = labels.value_counts()
    hits = [(labels == one).to_numpy() for one in counts.index if FEWEST <= counts[one] <= len(labels) - FEWEST]
    for name in list(found.features):
        cells, kind = found.cells[name], found.specs.get(name, {"kind": "number"})["kind"]
        area = _area(cells == "", hits)
        if kind == "number":
            values = pd.to_numeric(cells, errors="coerce")
            area = max(area, _area(values.fillna(values.median()), hits))
        elif kind == "days":
            values = pd.to_datetime(cells, errors="coerce", format="ISO8601")
            area = max(area, _area((values - values.min()).dt.days.fillna(0), hits))
        else:
            rates = [pd.Series(hit).groupby(cells.to_numpy()).transform("mean") for hit in hits]
            area = max([area, *(_area(rate, [hit]) for rate, hit in zip(rates, hits, strict=True))])
        if area > ALONE and name not in chosen.keep:
            what = f"{name} alone tells the outcome (area under the curve {area:.3f})"
            readings = [
                Reading("it is known before the outcome", f"--keep {name}"),
                Reading("it follows from the outcome and is no predictor", f"--leave-out {name}"),
            ]
            out = chosen.ask(what, readings)
            found.suspects.append(f"{what}; {'left out' if out else 'kept'}")
            if out:
                found.features.remove(name)
                found.specs.pop(name, None)


def _area(values: pd.Series, hits: Sequence[np.ndarray]) -> float:
    """The largest area under the curve of ``values`` (N,) for any of ``hits``, bool (N,), on either side."""
    n, ranks = len(values), values.rank().to_numpy()
    areas = [(ranks[hit].sum() - (k := int(hit.sum())) * (k + 1) / 2) / (k * (n - k)) for hit in hits]
    return max((max(area, 1 - area) for area in areas), default=0.0)


def as_options(found: Predictors) -> Mapping[str, str]:
    """The task's options ``features`` and ``columns``."""
    line = pd.DataFrame([found.features]).to_csv(header=False, index=False, lineterminator="\n").rstrip("\n")
    specs = {"columns": json.dumps(found.specs, ensure_ascii=False)} if found.specs else {}
    return {"features": line, **specs}
