# SPDX-License-Identifier: Apache-2.0
"""Every card of a method names all of its parameters, itself or by the card that it refers to, with their defaults."""

import functools
import inspect
import re
from fractions import Fraction
from pathlib import Path

from cases import each
from fairflare.core import registry
from fairflare.core.plugins import PACKAGE
from fairflare.studies.describe import method_rows

ROOT = Path(__file__).parents[2]
CARDS = (ROOT / "docs" / "methods", ROOT / "lab" / "cards")
METHODS = sorted(registry.methods())
LINKED = re.compile(r"\]\((?:[a-z./]*/)?([a-z-]+)\.md\)")
ROW = re.compile(r"^\| (`[^|]*`) \| ([^|]*) \|", re.MULTILINE)


@functools.cache
def parameters() -> dict[str, dict[str, object]]:
    return {row["id"]: row["parameters"] for row in method_rows()}


def card(id: str) -> str:
    return next(folder / f"{id}.md" for folder in CARDS if (folder / f"{id}.md").is_file()).read_text(encoding="utf-8")


def defaults(text: str) -> dict[str, str]:
    """Parameter -> what the card gives as its default, of rows of parameter tables that are of one parameter."""
    tables = re.findall(r"^\| parameter \|.*\n\|---.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    rows = [row for table in tables for row in ROW.findall(table)]
    return {name.strip("`"): given.strip(" `") for name, given in rows if name.count("`") == 2}


def as_written(value: object) -> set[str]:
    """The forms in which a card may give a default."""
    if value is None or isinstance(value, bool):
        return {str(value).lower()}
    if isinstance(value, float):
        return {f"{value:g}", str(value), str(Fraction(value).limit_denominator(100))}
    return {str(value), ""} if value else {"", "(empty)"}


@each("id", METHODS)
def test_a_card_names_every_parameter(id):
    text = card(id) + "".join(card(name) for name in LINKED.findall(card(id)) if name in METHODS)
    missing = [name for name in parameters()[id] if not re.search(rf"`{name}[`=]", text)]
    assert not missing, f"docs/methods/{id}.md: {missing}"


@each("id", METHODS)
def test_a_card_gives_the_defaults_that_the_method_has(id):
    found = defaults(card(id))
    wrong = {
        name: (found[name], value)
        for name, value in parameters()[id].items()
        if name in found and found[name] not in as_written(value)
    }
    assert not wrong, f"docs/methods/{id}.md: {wrong}"


def test_the_tables_are_read():
    assert sum(len(defaults(card(id))) for id in METHODS) > 150
    assert defaults(card("fedism-plus"))["q"] == "2"


@each("id", METHODS)
def test_a_card_names_the_files_of_its_parts(id):
    """Those of a selector or a server optimizer only where the method has one."""
    found = {inspect.getfile(cls) for cls in registry.owners(registry.get_method(id)).values()}
    names = {Path(file).name for file in found if Path(file) != PACKAGE / "participation.py"}
    missing = [name for name in names - {"base.py"} if f"/{name})" not in card(id)]
    assert not missing, f"docs/methods/{id}.md: {missing}"
