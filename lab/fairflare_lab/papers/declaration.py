# SPDX-License-Identifier: Apache-2.0
"""What a paper's table or figure is: which methods, on which data, measured how, printed how; all by name.

``data/PAPER.yaml`` declares them. Keys are the fields of the classes below; an exhibit that is no "table-" or "figure-"
is not the paper's own. Lists within lists are one list, a list of texts is one text. ``{each: {v: [1, 2]}, of: [...]}``
stands for ``of`` with 1 and then 2 in the place of "{v}", of several names for all combinations; a mapping brings
values of its own keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Literal

import yaml

from fairflare.core.errors import UserError
from fairflare.core.validation import shown

Better = Literal["", "higher", "lower"]
Spread = Literal["", "seeds", "last-rounds"]
Only = Literal["", "own", "stand-in"]
Draw = Literal[
    "", "curve", "rounds", "bars", "heat", "pictures", "landscape", "density", "consistency", "layers", "counts"
]
Settings = Mapping[str, str]


@dataclass(frozen=True)
class Data:
    """One data set of a paper: the user's copy, and the embedded task that stands for it."""

    key: str
    title: str
    task: str
    """ "name:preset" that reads the user's copy."""
    needs: tuple[str, ...] = ()
    """Files or folders below the data folder that the task reads."""
    stand_in: str = ""
    """ "name:preset" of an embedded task; empty: nothing stands for it."""
    words: str = ""
    """What the stand-in is, a sentence for the caption."""
    settings: Settings = field(default_factory=dict)
    """``--set`` pairs of every run on the user's copy; ``other``: on the stand-in."""
    other: Settings = field(default_factory=dict)
    own: bool = True
    """Whether ``task`` on the user's copy is the paper's data, so that published numbers may stand beside."""


@dataclass(frozen=True)
class Row:
    """One line of a table."""

    key: str
    title: str
    label: str
    """METHOD with settings of its own, as ``fairflare compare`` takes it."""
    group: str = ""
    """Heading over neighbouring rows."""
    on: Mapping[str, str] = field(default_factory=dict)
    """Data key -> label in place of ``label``, where a paper tuned it for each data set."""
    values: Settings = field(default_factory=dict)
    """``--set`` pairs of this row's runs that change the data or the protocol (a corruption ratio)."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of every column's measure for this row."""
    only: Only = ""
    one_of: str = ""
    """Heading of a row of which the paper prints the best of several settings: rows of the same ``one_of`` are tried,
    the best one by ``Table.choose`` is shown under that heading, and a second table has all of them."""

    def label_on(self, data: Data) -> str:
        return self.on.get(data.key, self.label)

    def is_for(self, stands_in: bool) -> bool:
        """Whether the row belongs where the data only stand in for the paper's, or where they are these."""
        return not self.only or (self.only == "stand-in") is stands_in


@dataclass(frozen=True)
class Column:
    """One column, or several that a measure makes of one (each site, each domain, each group)."""

    key: str
    title: str
    measure: str
    """Name of a function of ``measures``; ``given``: its further arguments."""
    given: Mapping[str, Any] = field(default_factory=dict)
    better: Better = "higher"
    digits: int = 3
    scale: float = 1.0
    """100 for per cent."""
    order: tuple[str, ...] = ()
    """Of the columns that the measure makes, as printed; "" is the place of all others, in natural order, which else
    come last."""


@dataclass(frozen=True)
class Block:
    """The columns of one data set."""

    data: Data
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class Table:
    """A table, or a panel of a figure; its rows are methods, or points of a sweep, its blocks columns by data set."""

    key: str
    """ "2", or "4a"."""
    title: str
    rows: tuple[Row, ...]
    blocks: tuple[Block, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    spread: Spread = "seeds"
    """What stands behind "±": nothing, over seeds, or over seeds and the last five rounds together, with ``ddof``."""
    ddof: Literal[0, 1] = 1
    references: tuple[str, ...] = ()
    """METHOD labels that columns compare with, run with the same seeds ("solo")."""
    left_out: str = ""
    """METHOD label that is also trained without each site in turn; empty: none."""
    left_sites: tuple[int, ...] = ()
    """Which sites are left out in turn, the first being 1; empty: each."""
    structure: str = ""
    """What of the printed form is not known: a drawing whose legend or axes are lost; empty: nothing."""
    choose: str = ""
    """Column by which the best of the rows of one ``one_of`` is shown, on each data set; empty: each has its own."""
    mean: str = ""
    """Heading of a last column, the mean of all others; empty: none."""
    transposed: bool = False
    """Methods (or points of a sweep) stand across, and data sets, measures and groups of rows down, as printed; of a
    single row the columns that a measure makes (clients) stand across."""
    note: str = ""
    """A sentence for the caption."""
    stub: str = "Method"
    """Heading of the rows' titles."""
    draw: Draw = ""
    """A figure's panel: "curve" (rows are points on an axis), "rounds" (a curve per row over rounds), "bars" (a group
    of bars per row), "heat" (a field of values per row), "pictures" (segmentations), or what ``studies.paper_panels``
    makes of models and data."""
    axes: tuple[str, str] = ("", "")
    smooth: int = 0
    """Window of a Savitzky-Golay filter over the rounds of a drawn curve, an odd number; 0: none."""
    values: Settings = field(default_factory=dict)
    """``--set`` pairs of all its runs."""
    rounds: int | None = None

    @property
    def data(self) -> tuple[Data, ...]:
        return tuple(block.data for block in self.blocks)


@dataclass(frozen=True)
class Exhibit:
    """What one command makes: a printed table, or a figure with its panels."""

    name: str
    """Paper and printed number, "fedheal-table-2" or "fedism-figure-5"; without one where the paper has no such."""
    title: str
    tables: tuple[Table, ...]
    own: bool = False
    """The paper does not have it."""

    @property
    def is_figure(self) -> bool:
        return any(table.draw for table in self.tables)


@dataclass(frozen=True)
class Paper:
    """A paper's exhibits."""

    key: str
    words: str
    """Authors, short title, venue and year."""
    exhibits: tuple[Exhibit, ...]


FOLDER = Path(__file__).parent / "data"
OWN = re.compile(r"(table|figure)-")


def read_paper(key: str) -> Paper:
    """The paper that ``data/KEY.yaml`` declares; a mistake there ends in KeyError, TypeError or a YAML error."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where libyaml is there
    content = yaml.load((FOLDER / f"{key}.yaml").read_text(encoding="utf-8"), loader)
    data = {name: Data(name, **_fields(about)) for name, about in content["data"].items()}
    exhibits = []
    for name, about in content["exhibits"].items():
        number = OWN.sub("", name)
        panels = about.get("panels") or [{"key": number, **{k: v for k, v in about.items() if k != "title"}}]
        tables = tuple(_table(panel, data) for panel in _listed(panels))
        exhibits.append(Exhibit(f"{key}-{name}", about["title"], tables, own=not OWN.match(name)))
    return Paper(key, content["words"], tuple(exhibits))


def _table(about: Mapping[str, Any], data: Mapping[str, Data]) -> Table:
    more = dict(about)
    rows = tuple(Row(**_fields(row)) for row in _listed(more.pop("rows", ())))
    columns, names = more.pop("columns", ()), more.pop("data", ())
    blocks = more.pop("blocks", None) or [{"data": name, "columns": columns} for name in names]
    found = ((data[one["data"]], _listed(one["columns"])) for one in blocks)
    made = tuple(Block(of, tuple(Column(**_fields(column)) for column in own)) for of, own in found)
    return Table(title=more.pop("words"), rows=rows, blocks=made, **_fields(more))


def _listed(entries: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """The mappings of ``entries``, lists and ``each`` unfolded."""
    for entry in entries:
        if isinstance(entry, list):
            yield from _listed(entry)
        elif "each" in entry:
            for chosen in product(*entry["each"].values()):
                named = dict(zip(entry["each"], chosen))
                for value in chosen:
                    named |= value if isinstance(value, dict) else {}
                yield from _listed(_filled(entry["of"], named))
        else:
            yield entry


def _filled(value: Any, named: Mapping[str, Any]) -> Any:
    """``value`` with what is ``named`` in the place of "{name}" in its texts; one name alone keeps its type."""
    if isinstance(value, list):
        return [_filled(one, named) for one in value]
    if isinstance(value, dict):
        return {key: _filled(one, named) for key, one in value.items()}
    if not isinstance(value, str):
        return value
    if value[1:-1] in named and value == f"{{{value[1:-1]}}}":
        return named[value[1:-1]]
    return re.sub(r"\{(\w+)\}", lambda found: str(named.get(found[1], found[0])), value)


def _fields(about: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as text, texts of several parts as one, lists as tuples."""
    found = dict(about)
    for key, value in about.items():
        if key in ("values", "settings", "other"):
            found[key] = {name: str(one) for name, one in value.items()}
        elif isinstance(value, list):
            found[key] = " ".join(_texts(value)) if key in ("note", "structure") else tuple(value)
    return found


def _texts(parts: Sequence[Any]) -> Iterator[str]:
    for part in parts:
        yield from _texts(part) if isinstance(part, list) else (part,)


PAPERS = tuple(map(read_paper, ("fedism", "fedlwr", "fedheal", "fedufo", "fedce", "flamby")))


def exhibits() -> dict[str, Exhibit]:
    return {exhibit.name: exhibit for paper in PAPERS for exhibit in paper.exhibits}


def named(name: str) -> Exhibit:
    """The exhibit of this name; UserError of another."""
    found = exhibits()
    if name not in found:
        raise UserError(f"paper: expected one of {', '.join(found)}, got {shown(name)}")
    return found[name]
