# SPDX-License-Identifier: Apache-2.0
"""What commands say in the terminal: lines and lists."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from fairflare.core.findings import Finding, merged
from fairflare.core.validation import some
from fairflare.studies.display import clean, out

SPLITS = ("train", "val", "test")


def say(text: str) -> None:
    """Plain text on stdout."""
    click.echo(clean(text))


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> None:
    """A table on stdout, of which the first ``left`` columns begin at the left."""
    shown = Table(title=escape(title))
    for number, name in enumerate(columns):
        shown.add_column(escape(name), justify="left" if number < left else "right")
    for row in rows:
        shown.add_row(*map(escape, row))
    out.print(shown)


def dump(content: Any) -> None:
    """JSON on stdout."""
    click.echo(json.dumps(content, indent=2, allow_nan=False))


def methods(rows: Sequence[Mapping[str, Any]]) -> None:
    """The table of ``fairflare list``."""
    for row in rows:
        made_of = f"trainer {row['trainer']}, probes {', '.join(row['probes']) or 'none'}, rule {row['rule']}"
        others = (("selector", "all"), ("server_optimizer", "none"))
        made_of += "".join(f", {kind.replace('_', ' ')} {row[kind]}" for kind, usual in others if row[kind] != usual)
        parameters = ", ".join(f"{key}={value}" for key, value in row["parameters"].items())
        _entry(row["id"], f"{row['title']} ({row['paper']}), {row['cost']:g} x FedAvg")
        _indented(row["summary"], made_of, parameters)


def parts(rows: Sequence[Mapping[str, Any]]) -> None:
    """The table of ``fairflare list --parts``."""
    for row in rows:
        _entry(f"{row['kind']} {row['id']}", row["summary"])
        if row["parameters"]:
            _indented(", ".join(f"{key}={value}" for key, value in row["parameters"].items()))


def tasks(rows: Sequence[Mapping[str, Any]]) -> None:
    """The table of ``fairflare tasks``."""
    for row in rows:
        _entry(row["name"], row["title"])
        _indented(f"real: {row['real']}", f"simulated: {row['simulated']}")
        _indented(f"metrics: {', '.join(row['metrics'])}; fairness in {row['headline']}")
        if row["primary"]:
            _indented(f"primary endpoint: {row['primary']}")
        if row["attributes"]:
            _indented(f"sensitive attributes: {', '.join(row['attributes'])}")
        for preset in row["presets"]:
            rounds, count = preset["training"]["rounds"], len(preset["sites"])
            sites = f"{count} sites" if count else "your sites"
            _indented(f":{preset['preset']}  {sites}, {rounds} rounds; {preset['summary']}")


def _entry(name: str, text: str) -> None:
    out.print(f"[bold]{escape(name)}[/bold]  {escape(text)}")


def _indented(*texts: str) -> None:
    for text in texts:
        out.print(Padding(escape(text), (0, 0, 0, 4)))


def written(files: Sequence[Path], name: str) -> None:
    """The files of ``fairflare new``, and what to do with them."""
    for path in files:
        say(f"wrote {path}")
    say(f"run it:  FAIRFLARE_PLUGINS={files[0]} fairflare run {name} --task support2 --rounds 2")
    say(f"test it: pytest {files[1]}")


def findings(found: Mapping[str, Sequence[Finding]], several: bool) -> None:
    """The lines of ``fairflare preflight``: one for each site and kind of problem."""
    for site, own in found.items():
        for one in merged(own):
            say(f"{f'{site}: ' if several else ''}{one} [{one.code}]")
    clean = [site for site, own in found.items() if not own]
    warned = [site for site, own in found.items() if own and not any(one.level == "error" for one in own)]
    for usable, words in ((clean, "nothing found"), (warned, "no errors")):
        if usable:
            say(f"{f'{some(usable)}: ' if several else ''}{words}: the data can be used")


def prepared(found: Mapping[str, Any], dest: Path) -> None:
    """What ``fairflare prepare`` wrote, and the command that runs on it."""
    rows = [
        (name, str(about.get("kind", "shared test set")), *(str(about.get(split, "")) for split in SPLITS))
        for kind in ("sites", "shared")
        for name, about in found[kind].items()
    ]
    show_table(f"{found['task']} in {dest}", ("site or test set", "what it is", *SPLITS), rows, left=2)
    say(f"run it: fairflare run METHOD --datalists {dest}")


def settings(found: Mapping[str, Any]) -> None:
    """What ``describe.about`` found."""
    _entry(found["name"], found["title"])
    _indented(*found["about"])
    for row in found["settings"]:
        name = row["name"] if row["name"] == row["full"] else f"{row['name']}  ({row['full']})"
        whose = f", {row['of']}" if row["of"] else ""
        out.print(f"\n[bold]{escape(name)}[/bold]{escape(whose)}")
        _indented(f"default {_value(row['default'])}; {row['allowed']}", row["meaning"])
        if others := [full for full in row.get("sets", ()) if full != row["full"]]:
            _indented(f"sets {', '.join(others)} as well")
    out.print()
    out.print(escape(found["use"]))


def _value(value: Any) -> str:
    """As ``--set`` takes it."""
    if value is None or value == "" or value == [] or value == ():
        return "none" if value is None else "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def papers(rows: Sequence[Mapping[str, Any]]) -> None:
    """The table of ``fairflare paper``."""
    from fairflare.studies.paper_list import in_words

    paper = ""
    for row in rows:
        if row["paper"] != paper:
            paper = row["paper"]
            out.print(f"\n{escape(paper)}")
        _entry(row["name"], row["title"])
        _indented(f"{row['runs']} runs, {in_words(row['seconds'])} on {row['cores']} cores")
        _indented(*map(_data_words, row["data"]))


def exhibit(found: Mapping[str, Any]) -> None:
    """Which files an exhibit is in, with the tables themselves."""
    path = next((Path(file) for file in found["files"] if file.endswith(".md")), None)
    if path is not None:
        out.print(escape(path.read_text(encoding="utf-8")), soft_wrap=True)
    for file in found["files"]:
        say(f"{Path(file).suffix.lstrip('.')}: {file}")


def _data_words(data: Mapping[str, Any]) -> str:
    if data["here"]:
        whose = " (your copy)" if data["needs"] else ", which comes with the package"
        return f"{data['title']}: {data['task']}{whose}"
    instead = f"; otherwise {data['stand_in']} stands for it" if data["stand_in"] else "; nothing stands for it"
    return f"{data['title']}: needs {', '.join(data['needs'])} in FAIRFLARE_DATA{instead}"
