# SPDX-License-Identifier: Apache-2.0
"""The text of ``fairflare describe``, made for 80 columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.markup import escape
from rich.padding import Padding

from fairflare.app.display import out


def show(found: Mapping[str, Any]) -> None:
    """What ``settings_rows.about`` found."""
    out.print(f"[bold]{escape(found['name'])}[/bold]  {escape(found['title'])}")
    for text in found["about"]:
        out.print(Padding(escape(text), (0, 0, 0, 4)))
    for row in found["settings"]:
        _setting(row)
    out.print()
    out.print(escape(found["use"]))


def _setting(row: Mapping[str, Any]) -> None:
    name = row["name"] if row["name"] == row["full"] else f"{row['name']}  ({row['full']})"
    whose = f", {row['of']}" if row["of"] else ""
    others = [full for full in row.get("sets", ()) if full != row["full"]]
    out.print(f"\n[bold]{escape(name)}[/bold]{escape(whose)}")
    out.print(Padding(escape(f"default {_value(row['default'])}; {row['allowed']}"), (0, 0, 0, 4)))
    out.print(Padding(escape(row["meaning"]), (0, 0, 0, 4)))
    if others:
        out.print(Padding(escape(f"sets {', '.join(others)} as well"), (0, 0, 0, 4)))


def _value(value: Any) -> str:
    """As ``--set`` takes it."""
    if value is None or value == "" or value == [] or value == ():
        return "none" if value is None else "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
