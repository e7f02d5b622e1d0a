# SPDX-License-Identifier: Apache-2.0
"""Which columns are predictors, how each is read, which may be known only after the outcome, and what that is of."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from fairflare.core.errors import UserError
from fairflare.core.validation import flag, in_order, shown, some
from fairflare.data.readers.table_features import parts, plain
from fairflare.import_data import labels as naming
from fairflare.import_data.cells import Cells, Sites
from fairflare.import_data.proposal import Choices, Reading, check_column, class_names
from fairflare.import_data.roles import ASK, Column, People, as_site, is_code
from fairflare.tasks.forms import FORMS

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
NINE, FEW = 9.0, 6
"""Such a number, too, among so many different ones at most."""
LEAST_CODES, SPREADS = 2, 1.0
"""Fewest cells with a code; widths of the other numbers that it lies beyond."""
OLDEST = 120
"""Years."""
HALF, MOST_BANDS = 0.5, 10
TIMES = 8
"""Times that one site's median may be another's: months are 12 years, mg/dl 10 mg/l."""
MONTH = re.compile(r"(19|20)\d\d(0[1-9]|1[0-2])")
WITH_UNIT = re.compile(r"[<>≤≥~+−-]?\s*\d+(?:[.,'\s]\d+)*(?:\s*/\s*\d+(?:[.,]\d+)?)?\s*(?:%|[a-zA-Zµ°/²³]+)?")
"""A number with a sign, marks of thousands, a fraction or a unit."""
LIST_OF_CODES = re.compile(r"[A-Za-z]\d[\w.]*(?:([,;|]) *[A-Za-z]\d[\w.]*)+")
INDEX = ("", "index", "unnamed0", "rowid", "row", "no", "nr", "id")
"""Names, bare, of columns that may number the rows, as pandas writes its index."""
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
        codes: columns of numbers that are read as categories, and why.
    """

    cells: dict[str, Cells] = field(default_factory=dict)
    features: list[str] = field(default_factory=list)
    specs: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    suspects: list[str] = field(default_factory=list)
    codes: dict[str, str] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, str]:
        """The task's options ``features`` and ``columns``."""
        specs = {"columns": json.dumps(self.specs, ensure_ascii=False)} if self.specs else {}
        return {"features": in_line(self.features), **specs}


def in_line(names: Sequence[str]) -> str:
    """``names`` as an option has them: separated by commas, one with a comma in double quotes."""
    return pd.DataFrame([[*names]]).to_csv(header=False, index=False, lineterminator="\n").rstrip("\n")


def predictors(
    table: pd.DataFrame, labels: pd.Series, taken: Sequence[str], sites: Sites, chosen: Choices, read: People
) -> Predictors:
    """What every column but the ``taken`` ones is.

    Args:
        table: text cells, stripped.
        taken: columns with another role.
        sites: a column that numbers the rows of each site is no predictor.
        read: the table's columns, and which of them are ids or places.

    Raises:
        UserError: nothing is left, a name of ``chosen`` is not there, or a column alone tells the outcome and nobody
            can be asked whether it is known before.
    """
    names = list(table.columns)
    for key in ("keep", "leave_out", "categories"):
        for name in getattr(chosen, key):
            check_column(key.replace("_", "-"), name, names)
    found = Predictors()
    left: dict[str, list[str]] = {}
    for name in names:
        if name in taken or name in chosen.leave_out or name == chosen.since:
            continue
        if naming.known_after(name, names) and name not in chosen.keep:
            text = f"left out ({flag('keep', name)} takes it)"
            found.suspects.append(f"{name}: its name says that it is known only after the outcome; {text}")
            continue
        if name in read.ids and name not in (*chosen.keep, *chosen.categories):
            left.setdefault("which hold ids of patients or of their stays (--keep COLUMN takes one)", []).append(name)
            continue
        own = read.columns[name]
        _add(found, own, own.cells, sites, chosen, left)
    for name in found.features:  # so that the model reads them so in another table, too
        codes = [one.removeprefix(f"{name}=") for one in chosen.missing if "=" not in one or one.startswith(f"{name}=")]
        if codes:
            found.specs.setdefault(name, {"kind": "number"})["codes"] = list(dict.fromkeys(codes))
    for why, own_names in left.items():
        found.notes.append(f"columns left out, {why}: {some(own_names, 8)}")
    areas = _alone(found, labels, chosen)
    _together(found, labels, areas, read.groups(read.columns[read.patient]) if read.patient else None, chosen)
    if chosen.since and chosen.since not in taken and not any(spec["kind"] == "days" for spec in found.specs.values()):
        found.notes.append(
            f"{flag('since', chosen.since)} counts nothing, as no other column holds dates that are read"
        )
    elif chosen.since and any(spec["kind"] == "days" for spec in found.specs.values()):
        days = naming.of_sites(table[chosen.since], sites, clock=True)
        if days is None or not (days != "").any():
            got = shown(table[chosen.since].iloc[0])
            raise UserError(f"{flag('since', chosen.since)}: expected dates such as 2024-01-31, got {got}")
        found.cells[chosen.since] = Cells.of(days)
    if not found.features:
        text = "expected columns of numbers, categories or dates as predictors"
        raise UserError(f"init: {text}; the table has: {some(names, 12)}")
    return found


def _add(
    found: Predictors, column: Column, cells: Cells, sites: Sites, chosen: Choices, left: dict[str, list[str]]
) -> None:
    name = column.name

    def leave(why: str) -> None:
        left.setdefault(why, []).append(name)

    values = cells.texts[~cells.empty]
    if len(values) < 2:
        return leave("which hold one value or none")
    few = len(values) <= len(sites)  # else some site has two
    of_sites = {site: np.unique(cells.codes[rows]) for site, rows in sites.items() if few or column.plain in INDEX}
    filled = [codes for own in of_sites.values() if len(codes := own[~cells.empty[own]])]
    if len(filled) > 1 and all(len(codes) == 1 for codes in filled) and name not in chosen.keep:
        return leave("which have one value at each site and so tell the site (--keep COLUMN takes one)")
    if as_site(column).points >= ASK and name not in (*chosen.keep, *chosen.categories):
        return leave("which name or number the hospital (--keep COLUMN takes one)")
    numeric = ~np.isnan(cells.numbers)
    spec: dict[str, Any] = {"kind": "number"}
    words = {plain(value).lower() for value in values}
    told = words <= naming.YES | naming.NO and not numeric[~cells.empty].all()
    as_numbers = name not in chosen.categories and cells.share(numeric) >= MOSTLY and not told
    if as_numbers and column.plain in INDEX and all(len(of_sites[site]) == len(rows) for site, rows in sites.items()):
        return leave("which number the rows")
    if as_numbers and column.is_whole and name not in chosen.keep and all(map(MONTH.fullmatch, values)):
        return leave("which are months, as 202301 (--keep COLUMN takes one as a number)")
    code = is_code(column) if as_numbers and name not in chosen.keep else ""
    if as_numbers and (code or _are_codes(name, cells.texts[cells.numbers == np.round(cells.numbers)], chosen)):
        as_numbers, chosen = False, replace(chosen, categories=(*chosen.categories, name))
        found.codes[name] = code or "its numbers begin with 0"
    if as_numbers:
        odd = ~numeric & ~cells.empty
        odd[odd] = [text.lower() != NONE for text in cells.texts[odd]]
        if _are_signed(name, cells, odd, chosen):
            return leave("which hold numbers with signs or units")
        if odd.any():
            found.notes.append(f"{name}: {no_numbers(cells, odd)}")
        cells = cells.where(numeric | cells.empty)
        found.notes.extend(checked_numbers(name, cells.numbers[cells.codes], sites, chosen))
    elif cells.share(cells.that(naming.is_date)) >= MOSTLY:
        days = naming.of_sites(cells.column, sites, clock=True) if chosen.since else None
        if days is None:
            return leave(
                "which are dates (--since COLUMN counts days from another date)"
                if not chosen.since
                else "dates of which nothing says the century, or if day or month comes first"
            )
        cells, spec = Cells.of(days), {"kind": "days", "since": chosen.since}
    elif told and name not in chosen.categories:
        spelled = in_order({*map(plain, values)})
        yes, no = ([value for value in spelled if value.lower() in own] for own in (naming.YES, naming.NO))
        if not yes or not no:
            return leave("which hold one value or none")
        spec = {"kind": "yes_no", "yes": yes, "no": no}
    elif naming.bare(name) in OF_SPLITS or cells.share(cells.that(naming.split_word)) >= MOSTLY:
        return leave("which say a split")
    else:
        separator = "" if name in (*chosen.keep, *chosen.categories) else _separator(values)
        if not separator:
            _check_units(name, cells, chosen)
        rows, n = Counter[str](), cells.rows(~cells.empty)
        for text, count in zip(values, cells.counts[~cells.empty], strict=True):
            rows.update(dict.fromkeys(parts(text, separator) if separator else [text], int(count)))
        levels = list(rows)
        if twins := naming.alike(levels):
            text = f"{shown(twins[0])} and {shown(twins[1])} differ by upper and lower case alone"
            raise UserError(f"init: {name}: {text}: expected one spelling ({flag('leave-out', name)} leaves it out)")
        texts = Column(name, pd.Series(levels, dtype=object)) if separator else column
        if (
            len(levels) > UNIQUE * n
            or (texts.is_text and name not in chosen.categories)
            or sum(count * len(level) for level, count in rows.items()) / rows.total() > 60
        ):
            return leave("which are names or free text")
        often = [level for level, count in rows.most_common(MOST_LEVELS) if count >= LEAST_ROWS]
        if len(often) + (not separator and n > sum(rows[level] for level in often)) < 2 - bool(separator):
            return leave(f"of which no two values have {LEAST_ROWS} rows")
        spec = {"kind": "category", "levels": in_order(often)}
        if separator:
            spec["separator"] = separator
            found.notes.append(f"{name}: cells hold several codes ({separator}): {len(often)} predictors of 0 and 1")
    if cells.rows(cells.empty) / len(cells.codes) >= FEW_GAPS:
        spec["missing"] = True
    if none := [site for site, rows in sites.items() if cells.empty[cells.codes[rows]].all()]:
        found.notes.append(f"{name}: {some(none, 3)} {'has' if len(none) == 1 else 'have'} no value")
    found.notes.extend([] if "separator" in spec else _coded(name, cells, sites))
    found.cells[name] = cells
    found.features.append(name)
    if spec != {"kind": "number"}:
        found.specs[name] = spec


def no_numbers(cells: Cells, odd: np.ndarray) -> str:
    """What is said of the ``odd`` texts in a column of numbers, bool (K,)."""
    return f"{cells.rows(odd)} cells are no numbers, such as {shown(cells.texts[odd][0])}, and count as missing"


def _separator(values: Sequence[str]) -> str:
    """What stands between the codes of a cell that holds several; "" where each holds one."""
    coded = (match[1] for text in values if (match := LIST_OF_CODES.fullmatch(text)))
    return next((sign for sign in ("|", ";") if naming.several_in(values, (sign,))), "") or next(coded, "")


def _marks(cells: Cells, spec: Mapping[str, Any]) -> list[Cells]:
    """Of lists of codes a column of 0 and 1 for each code that is a predictor."""
    lists = [parts(text, spec["separator"]) for text in cells.texts]
    hits = (np.array([level in one for one in lists], dtype=np.int32) for level in spec["levels"])
    return [Cells(hit[cells.codes], np.array(["0", "1"], dtype=object)) for hit in hits]


ZERO = re.compile(r"^0\d+$", re.MULTILINE)


def _are_codes(name: str, values: Iterable[str], chosen: Choices) -> bool:
    """Whether numbers of which some begin with 0, as postcodes do, are codes: asks."""
    code = ZERO.search("\n".join(values))
    if code is None or name in chosen.keep:
        return False
    readings = [
        Reading("they are codes of categories", flag("categories", name)),
        Reading("they are numbers", flag("keep", name)),
    ]
    return not chosen.ask(f"{name}: cells such as {shown(code[0])} begin with 0", readings)


def _are_signed(name: str, cells: Cells, odd: np.ndarray, chosen: Choices) -> bool:
    """Whether a column is no predictor as some cells hold numbers with signs or units: asks; else they are missing."""
    signed = odd.copy()
    signed[odd] = [bool(WITH_UNIT.fullmatch(text)) for text in cells.texts[odd]]
    if not signed.any() or name in chosen.keep:
        return False
    texts = cells.texts[signed]
    gaps = flag("missing", *(f"{name}={text}" for text in texts[:MOST_BANDS]))
    readings = [Reading("they count as missing", gaps), Reading("not", flag("leave-out", name))]
    what = f"{name}: {cells.rows(signed)} cells such as {shown(texts[0])} hold numbers with signs or units"
    return bool(chosen.ask(what, readings))


def checked_numbers(name: str, numbers: np.ndarray, sites: Sites, chosen: Choices) -> list[str]:
    """Notes where sites seem to have other units; asks about codes for missing values, and refuses infinite numbers.

    ``numbers`` is float64 (N,), nan where a cell is empty.
    """
    known = numbers[~np.isnan(numbers)]
    if not np.isfinite(known).all() or (np.abs(known) > MOST).any():
        raise UserError(f"init: {name}: expected numbers below {MOST:g} in size, got {np.abs(known).max():g}")
    odd = known[(known < 0) | (known > OLDEST)] if naming.bare(name) in naming.AGE else known[:0]
    if len(odd):
        _ask_missing(name, f"{len(odd)} cells such as {odd[0]:g} are no years of age", pd.unique(odd), chosen)
    for code in (NINE, *CODES):
        hits = int((known == code).sum())
        if hits < LEAST_CODES or len(known) - hits < LEAST_ROWS or (code == NINE and len(pd.unique(known)) > FEW):
            continue
        rest = known[known != code]
        low, high = pd.Series(rest).quantile([0.01, 0.99])
        far = SPREADS * max(high - low, 1e-9)
        if not low - far <= code <= high + far or (code < 0 <= rest.min()):
            what = f"{code:g} stands {hits} times and lies far from the other numbers ({low:g} to {high:g})"
            _ask_missing(name, what, [code], chosen)
    return unit_notes(name, numbers, sites)


def _ask_missing(name: str, what: str, codes: Iterable[float], chosen: Choices) -> None:
    """Ask if numbers are codes for missing ones, which a flag says, or numbers."""
    gaps = flag("missing", *(f"{name}={code:g}" for code in list(codes)[:MOST_BANDS]))
    readings = [Reading("a code for missing", gaps), Reading("a number", flag("keep", name))]
    if name not in chosen.keep and not chosen.ask(f"{name}: {what}", readings):
        raise UserError(f"init: {name}: {what}; {gaps} takes that for missing")


def unit_notes(name: str, numbers: np.ndarray, sites: Sites) -> list[str]:
    """A note where the middle 80 % of two sites' numbers do not overlap, or medians are far apart: units, gaps as 0."""
    own = [(site, np.sort(part[~np.isnan(part)])) for site, rows in sites.items() for part in [numbers[rows]]]
    own = [(site, part) for site, part in own if len(part) >= LEAST_ROWS]
    if not own:
        return []
    if mixed := next((text for site, part in own if (text := _two_units(part, site))), ""):
        return [f"{name}: {mixed}"]
    shares = (0.1, 0.5, 0.9)
    low, middle, high = np.array([np.interp(shares, np.linspace(0, 1, len(part)), part) for _, part in own]).T.tolist()
    if not (max(low) > min(high) or max(middle) > TIMES * min(middle) > 0):
        return []
    least, most = (own[middle.index(end(middle))][0] for end in (min, max))
    text = f"about {min(middle):.4g} at {least} and {max(middle):.4g} at {most}"
    return [f"{name}: {text}: are the units the same?"]


LEAST_PART, APART, WIDER, HEAPS = 0.05, 2.0, 3.0, 5.0
"""Of numbers in two units: the smaller part's share; ratio of medians; the gap between them by the next largest; the
distance of the heaps by the spread within (D of K. Ashman et al., Astronomical Journal 108, 1994; 2 there says two
heaps; more here, as the largest gap is sought)."""


def _two_units(part: np.ndarray, site: str) -> str:
    """What to say where a site's sorted numbers lie in two heaps, as in two units; "" elsewhere."""
    part = part[part > 0]
    if len(part) < 2 * LEAST_ROWS or (np.diff(part) > 0).sum() < MOST_BANDS:
        return ""
    gaps, edge = np.diff(np.log(part)), max(LEAST_ROWS // 2, int(LEAST_PART * len(part)))
    inner = gaps[edge - 1 : len(gaps) - edge + 1]
    k = edge - 1 + int(inner.argmax())
    if gaps[k] < WIDER * np.partition(inner, -2)[-2]:
        return ""
    low, high = np.median(part[: k + 1]), np.median(part[k + 1 :])
    within = np.sqrt(np.mean([np.log(one).var() for one in (part[: k + 1], part[k + 1 :])]))
    if high < APART * low or np.log(high / low) < HEAPS * within:
        return ""
    n = len(part) - k - 1
    return f"about {low:.4g} in {k + 1} rows of {site} and {high:.4g} in {n}, none between: two units?"


def _coded(name: str, cells: Cells, sites: Sites) -> list[str]:
    """A note where sites may code a category differently: no value in common, or 0 and 1 here and 1 and 2 there."""
    if len(cells.texts) > MOST_BANDS * len(sites) + 1:  # some site has more than MOST_BANDS
        return []
    filled = np.where(cells.empty, -1, np.arange(len(cells.texts)))[cells.codes]
    own = {site: part[part >= 0] for site, rows in sites.items() for part in [filled[rows]]}
    own = {site: np.unique(part) for site, part in own.items() if len(part) >= LEAST_ROWS}
    values = {site: {*cells.texts[codes]} for site, codes in own.items() if len(codes) <= MOST_BANDS}
    if len(values) < len(own) or len(set().union(*values.values())) > MOST_BANDS:
        return []
    for site, texts in values.items():
        others = {key: other for key, other in values.items() if other - texts}
        pairs = max(map(len, values.values())) <= 2
        if odd := next((key for key, other in others.items() if pairs or not other & texts), ""):
            text = f"{some(in_order(texts), 3)} at {site} and {some(in_order(values[odd]), 3)} at {odd}"
            return [f"{name}: {text}: are the codes the same?"]
    return []


def _check_units(name: str, cells: Cells, chosen: Choices) -> None:
    """Refuse numbers that are written with signs or units, which would be taken for categories."""
    like = cells.that(WITH_UNIT.fullmatch)
    if name not in chosen.categories and cells.share(like) >= HALF and like.sum() > MOST_BANDS:
        odd = cells.texts[np.isnan(cells.numbers) & ~cells.empty][0]
        signed = WITH_UNIT.fullmatch(odd)
        text = f"cells such as {shown(odd)} hold {'numbers with signs or units' if signed else 'words'}"
        ways = f"{flag('leave-out', name)} leaves the column out"
        ways += "" if signed else f", {flag('missing', odd)} the cells"
        raise UserError(f"init: {name}: {text}: expected plain numbers ({ways})")


def _alone(found: Predictors, labels: pd.Series, chosen: Choices) -> dict[str, float]:
    """Ask about predictors that alone tell the outcome; the areas under the curve, best class against rest."""
    hits, areas = _hits(labels), {}
    for name in list(found.features):
        cells, spec = found.cells[name], found.specs.get(name, {"kind": "number"})
        kind = spec["kind"]
        area = _area(cells.empty, cells, hits) if cells.empty.any() else 0.0
        if kind == "number":
            values = cells.numbers
            if cells.empty.any():
                values = np.where(cells.empty, np.nanmedian(values[cells.codes]), values)
            area = max(area, _area(values, cells, hits))
        elif kind == "days":
            days = pd.to_datetime(pd.Series(cells.texts, dtype=object), errors="coerce", format="ISO8601")
            area = max(area, _area((days - days.min()).dt.days.fillna(0).to_numpy(), cells, hits))
        else:
            marks = _marks(cells, spec) if "separator" in spec else [cells]
            area = max(area, *(_of_rates(one, hits) for one in marks))
        areas[name] = area
        if area > ALONE and name not in chosen.keep:
            what = f"{name} alone tells the outcome (area under the curve {area:.3f})"
            readings = [
                Reading("it is known before the outcome", flag("keep", name)),
                Reading("it follows from the outcome and is no predictor", flag("leave-out", name)),
            ]
            out = chosen.ask(what, readings)
            found.suspects.append(f"{what}; {'left out' if out else 'kept'}")
            if out:
                found.features.remove(name)
                found.specs.pop(name, None)
    return areas


MOST_TOGETHER, MOST_PAIRS, LEAST_CELL, MOST_ROWS = 100, 40, 20, 1000
"""Columns that are looked at together and in pairs, those first that tell most; rows of a pair's cell, in the mean;
rows that a tree gets."""
FOLDS, DEPTH, LEAF = 3, 8, 5
WEIGHT, NEAR = 0.01, 0.95
"""Of a column in a tree from which on it is a suspect; the area of a sum's fit from which on a tree is grown."""


def _together(
    found: Predictors, labels: pd.Series, areas: Mapping[str, float], patients: np.ndarray | None, chosen: Choices
) -> None:
    """Ask about predictors that together tell the outcome: a pair of few values, or the columns of a small tree.

    ``patients``: int (N,), whose rows stay in one fold; None: every row is another's.
    """
    hits = _hits(labels)
    while True:
        free = sorted((name for name in found.features if name not in chosen.keep), key=lambda name: -areas[name])
        area, names = _pair(found, free, hits)
        if area <= ALONE:
            area, names = _tree(found, free[:MOST_TOGETHER], hits, patients)
        if area <= ALONE:
            return
        tell = "together tell" if names[1:] else "tells"
        what = f"{', '.join(names)} {tell} the outcome (area under the curve {area:.3f})"
        readings = [
            Reading("they are known before the outcome", flag("keep", *names)),
            Reading("they follow from the outcome, or are other outcomes", flag("leave-out", *names)),
        ]
        out = chosen.ask(what, readings)
        found.suspects.append(f"{what}; {'left out' if out else 'kept'}")
        if not out:
            return
        found.features = [name for name in found.features if name not in names]
        found.specs = {name: spec for name, spec in found.specs.items() if name in found.features}


def _pair(found: Predictors, names: Sequence[str], hits: Sequence[np.ndarray]) -> tuple[float, list[str]]:
    """The largest area of a class's share among the rows with the same two cells, and the two columns."""
    few = [name for name in names if len(found.cells[name].texts) <= MOST_BANDS][:MOST_PAIRS]
    best: tuple[float, list[str]] = (0.0, [])
    for k, one in enumerate(few):
        for other in few[k + 1 :]:
            a, b = found.cells[one], found.cells[other]
            codes = a.codes * len(b.texts) + b.codes
            if len(codes) < LEAST_CELL * len(a.texts) * len(b.texts):
                continue
            texts = np.arange(len(a.texts) * len(b.texts)).astype(object)
            both = Cells(codes, texts)
            shares = [np.bincount(codes[hit], minlength=len(texts)) / np.maximum(both.counts, 1) for hit in hits]
            area = max((_area(share, both, [hit]) for share, hit in zip(shares, hits, strict=True)), default=0.0)
            best = max(best, (area, [one, other]))
    return best


def _tree(
    found: Predictors, names: Sequence[str], hits: Sequence[np.ndarray], patients: np.ndarray | None
) -> tuple[float, list[str]]:
    """The largest area under the curve of a small tree on rows that it has not seen, and the columns that it needs."""
    if not names or not hits:
        return 0.0, []
    columns, owners = [], list[str]()
    for name in names:
        cells, spec = found.cells[name], found.specs.get(name, {"kind": "number"})
        kind = spec["kind"]
        marks = _marks(cells, spec) if "separator" in spec else []
        columns += [one.codes.astype(np.float32) for one in marks]
        owners += [name] * max(len(marks), 1)
        if marks:
            continue
        known = cells.numbers if kind == "number" else np.argsort(np.argsort(-cells.counts)).astype(float)
        known = np.where(cells.empty, np.nan, known)
        columns.append(np.where(np.isnan(known), -1e6, known)[cells.codes].astype(np.float32))
    matrix = np.column_stack(columns)
    if len(matrix) > MOST_ROWS:
        kept = np.sort(np.random.default_rng(0).permutation(len(matrix))[:MOST_ROWS])
        matrix, hits = matrix[kept], [hit[kept] for hit in hits if FEWEST <= hit[kept].sum() <= MOST_ROWS - FEWEST]
        patients = None if patients is None else patients[kept]
    if not (hits := hits and _promising(matrix, hits[:MOST_BANDS])):  # scikit-learn takes a second
        return 0.0, []
    from sklearn.model_selection import GroupKFold, StratifiedKFold, cross_val_predict
    from sklearn.tree import DecisionTreeClassifier

    best: tuple[float, list[str]] = (0.0, [])
    for hit in hits:
        tree = DecisionTreeClassifier(max_depth=DEPTH, min_samples_leaf=LEAF, random_state=0)
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0) if patients is None else GroupKFold(FOLDS)
        if patients is not None and len(np.unique(patients)) < FOLDS:
            continue
        risks = cross_val_predict(tree, matrix, hit, cv=folds, groups=patients, method="predict_proba")
        cells = Cells.of(risks[:, -1].astype(str))
        area = _area(cells.numbers, cells, [hit])
        if area > max(best[0], ALONE):
            weights = tree.fit(matrix, hit).feature_importances_
            order = [k for k in np.argsort(-weights, kind="stable") if weights[k] > WEIGHT][:MOST_BANDS]
            best = (area, list(dict.fromkeys(owners[k] for k in order)))
    return best


def _promising(matrix: np.ndarray, hits: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Those of ``hits`` that ranks of the columns of ``matrix`` (N, C) and their squares come near by least squares."""
    ranks = pd.DataFrame(matrix).rank(pct=True).to_numpy() - HALF
    inputs = np.column_stack([np.ones(len(ranks)), ranks, ranks**2])
    fitted = inputs @ np.linalg.lstsq(inputs, np.column_stack(hits).astype(float), rcond=None)[0]
    rows = np.arange(len(ranks))
    areas = [_area(own, Cells(rows, rows), [hit]) for own, hit in zip(fitted.T, hits, strict=True)]
    return [hit for hit, area in zip(hits, areas, strict=True) if area > NEAR]


def telling(columns: Mapping[str, Sequence[str]], labels: Sequence[str], sites: Sequence[str]) -> tuple[str, ...]:
    """A line for each attribute of images that alone tells the class at a site: a network may read it off the images.

    Args:
        columns: attribute -> a cell for each image; of at most ``MOST_BANDS`` values at a site.
        labels: of each image, its class.
        sites: of each image.
    """
    found = []
    for site, rows in pd.Series(list(labels), dtype=object).groupby(list(sites)):
        hits = _hits(rows)
        for name, column in columns.items():
            cells = Cells.of([column[row] for row in rows.index])
            area = _of_rates(cells, hits) if 2 <= len(cells.texts) <= MOST_BANDS else 0.0
            if area > ALONE:
                found.append(f"{name} alone tells the class at {site} (area under the curve {area:.3f})")
    return tuple(found)


def _hits(labels: pd.Series) -> list[np.ndarray]:
    """Of each class with enough rows, and enough others, which rows are of it: bool (N,)."""
    counts = labels.value_counts()
    return [(labels == one).to_numpy() for one in counts.index if FEWEST <= counts[one] <= len(labels) - FEWEST]


def _of_rates(cells: Cells, hits: Sequence[np.ndarray]) -> float:
    """The largest area under the curve of a class's share among the rows with the same cell."""
    shares = (np.bincount(cells.codes[hit], minlength=len(cells.texts)) / np.maximum(cells.counts, 1) for hit in hits)
    return max((_area(share, cells, [hit]) for share, hit in zip(shares, hits, strict=True)), default=0.0)


def _area(values: np.ndarray, cells: Cells, hits: Sequence[np.ndarray]) -> float:
    """The largest area under the curve of ``values`` (K,) of ``cells`` for any of ``hits``, bool (N,), on either side.

    Equal values share the mean of their ranks, as in Mann and Whitney's U.
    """
    different, place = np.unique(values, return_inverse=True)
    counts = np.bincount(place, weights=cells.counts, minlength=len(different))
    ranks, n, areas = (np.cumsum(counts) - counts + (counts + 1) / 2)[place], len(cells.codes), []
    for hit in hits:
        k = int(hit.sum())
        total = float((ranks * np.bincount(cells.codes[hit], minlength=len(ranks))).sum())
        areas.append((total - k * (k + 1) / 2) / (k * (n - k)))
    return max((max(area, 1 - area) for area in areas), default=0.0)


SIGN = "|"
"""Between labels, in what is written."""
IMAGE = "image-"
"""Before the name of a kind of table, for images of that kind."""
CLASSES = ("tabular", "classification", "segmentation")
FEWEST_GRADES = 3


@dataclass(frozen=True)
class Outcome:
    """What a column, or several, say of the examples.

    Attributes:
        kind: a name of ``tasks.forms``.
        labels: of each example, as text.
        classes: see ``Found``.
        options: of the task.
        told: of each example label -> 1, 0 or None, of labels in columns of their own.
        notes: a line each.
    """

    kind: str
    labels: Sequence[str]
    classes: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    told: Sequence[Mapping[str, int | None]] = ()
    notes: tuple[str, ...] = ()

    @property
    def of_levels(self) -> pd.Series:
        """The labels, with numbers as above or not above their median: what no column should tell alone."""
        labels = pd.Series(list(self.labels), dtype=object)
        numbers = pd.to_numeric(labels, errors="coerce")
        if FORMS[self.kind].classes or numbers.isna().any():
            return labels
        return (numbers > numbers.median()).astype(str)


def outcome_of(name: str, cells: Sequence[str], chosen: Choices, *, table: bool) -> Outcome:
    """What the labels ``cells`` of the column ``name`` are, none of them missing; ``table``: of a table, no images.

    Raises:
        UserError: they are none of what is known, may be several things and nobody can be asked, or do not fit --kind.
    """
    asked, form = chosen.kind.removeprefix(IMAGE), "" if table else IMAGE
    kind = asked if asked not in ("", *CLASSES) else naming.check_outcome(name, cells, chosen, form)
    if kind == "regression":
        plain = name if name.strip() and "," not in name and not name.isdigit() else "outcome"
        return Outcome(f"{form}{kind}", cells, (plain,), notes=_of_numbers(name, cells, chosen))
    if kind == "multilabel":
        return _listed(name, cells, chosen, f"{form}{kind}")
    if kind == "ordinal":
        return Outcome(f"{form}{kind}", naming.same_numbers(cells), _grades(name, cells, chosen))
    names = class_names(cells, chosen.classes)
    if not chosen.classes:
        names, _ = naming.event_last(names)
    return Outcome("tabular" if table else "classification", cells, names)


def _of_numbers(name: str, cells: Sequence[str], chosen: Choices) -> tuple[str, ...]:
    numbers = pd.to_numeric(pd.Series(list(cells), dtype=object), errors="coerce").astype(float)
    if odd := [cell for cell, number in zip(cells, numbers, strict=True) if not np.isfinite(number)]:
        text = f"expected numbers, got {shown(odd[0])} ({flag('missing', odd[0])} leaves such rows out)"
        raise UserError(f"init: {name}: {text}")
    if numbers.nunique() < 2:
        raise UserError(f"init: {name}: expected numbers that differ, got {shown(cells[0])} throughout")
    text = "whole numbers from 0: --set amount=count takes them for counts (Poisson), else squared error is used"
    return (text,) if not chosen.exposure and (numbers >= 0).all() and (numbers % 1 == 0).all() else ()


def _grades(name: str, cells: Sequence[str], chosen: Choices) -> tuple[str, ...]:
    values = in_order(set(naming.same_numbers(cells)))
    if not chosen.classes:
        text = f"expected their order from the lowest to the highest, which no name says: {flag('classes', *values)}"
        raise UserError(f"init: {name}: {text}, in that order or another")
    if len(chosen.classes) < FEWEST_GRADES:
        raise UserError(f"--classes: expected at least {FEWEST_GRADES} classes in an order, got {len(chosen.classes)}")
    return class_names(naming.same_numbers(cells), chosen.classes)


def _listed(name: str, cells: Sequence[str], chosen: Choices, kind: str) -> Outcome:
    rows = naming.parted(cells, naming.sign_between(cells))
    known = in_order({part for row in rows for part in row})
    options: dict[str, str] = {}
    if chosen.classes:
        others = [part for part in known if part not in chosen.classes]
        alone = len(others) == 1 and all(len(row) == 1 for row in rows if others[0] in row)
        if others and not alone:
            raise UserError(f"--classes: expected the labels of the data, which have {some(others, 3)} too")
        options = {"nothing": others[0]} if others else {}
    classes = chosen.classes or class_names(known, ())
    notes: tuple[str, ...] = (f"{options['nothing']} stands for none of the labels",) if options else ()
    counts = Counter(part for row in rows for part in row)
    if rare := [part for part, n in counts.most_common() if n < naming.FEW_ROWS]:
        notes += (f"labels of fewer than {naming.FEW_ROWS} examples: {some(rare, 8)}",)
    return Outcome(kind, [SIGN.join(row) for row in rows], tuple(classes), options, notes=notes)


def in_columns(names: Sequence[str], table: pd.DataFrame, *, images: bool) -> Outcome:
    """Labels with a column each, of rows of which each says at least one.

    Raises:
        UserError: a cell is neither yes nor no nor empty, or a name has a comma.
    """
    told: list[dict[str, int | None]] = [{} for _ in range(len(table))]
    for name in names:
        if "," in name or SIGN in name:
            raise UserError(f"--label: expected columns without commas and {SIGN}, got {shown(name)}")
        for row, cell in zip(told, table[name], strict=True):
            word = cell.lower().removesuffix(".0")
            if cell and word not in naming.YES | naming.NO:
                text = f"expected yes or no (1 or 0), or nothing, got {shown(cell)}"
                raise UserError(f"init: {name}: {text} ({flag('missing', cell)} takes it for nothing)")
            row[name] = int(word in naming.YES) if cell else None
    labels = [SIGN.join(name for name, one in row.items() if one) for row in told]
    gaps = sum(one is None for row in told for one in row.values())
    notes = (f"{gaps} labels are not said and count nowhere",) if gaps else ()
    return Outcome(f"{IMAGE if images else ''}multilabel", labels, tuple(names), told=told, notes=notes)


def columns_of_labels(chosen: Choices, columns: Sequence[str]) -> list[str]:
    """The columns that --label names, where it names several and the kind is that of several labels."""
    names = [name.strip() for name in chosen.label.split(",") if name.strip()]
    if chosen.kind.removeprefix(IMAGE) != "multilabel" or chosen.label in columns or len(names) < 2:
        return []
    if lost := [name for name in names if name not in columns]:
        raise UserError(f"--label: expected columns among {some(columns, 12)}, got {shown(lost[0])}")
    return names
