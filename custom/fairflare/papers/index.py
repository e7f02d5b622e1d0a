# SPDX-License-Identifier: Apache-2.0
"""All exhibits by the name of their command, as ``data/PAPER.yaml`` declares them.

Keys are the fields of the classes in ``declaration``; an exhibit that is no "table-" or "figure-" is not the paper's
own. Lists within lists are one list, a list of texts is one text. ``{each: {v: [1, 2]}, of: [...]}`` stands for ``of``
with 1 and then 2 in the place of "{v}", of several names for all combinations; a mapping brings values of its own keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from fairflare.core.errors import UserError
from fairflare.core.validation import shown
from fairflare.papers.declaration import Block, Column, Data, Exhibit, Paper, Row, Table

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
    return Paper(key, content["words"], tuple(exhibits), content.get("became", {}))


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
    """The exhibit of this name; "fedheal-2", as version 0.2 named it, is "fedheal-table-2".

    Raises:
        UserError: there is none.
    """
    found = exhibits()
    now = current(name)
    if now not in found:
        raise UserError(f"paper: expected one of {', '.join(found)}, got {shown(name)}")
    return found[now]


def current(name: str) -> str:
    """The name that an earlier one stands for."""
    paper, _, number = name.partition("-")
    return f"{paper}-table-{number}" if number.isdigit() else name


def became(name: str) -> str:
    """A line on what an earlier name shows now; "" where that is what it was."""
    moved = "" if current(name) == name else f", now {current(name)}"
    others = {f"{paper.key}-{number}": shows for paper in PAPERS for number, shows in paper.became.items()}
    return f"{name}{moved}: {others.get(name, 'the same exhibit')}" if moved or name in others else ""
