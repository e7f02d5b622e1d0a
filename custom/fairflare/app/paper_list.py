# SPDX-License-Identifier: Apache-2.0
"""What ``fairflare paper`` shows: all exhibits with time and data, and what one has written; without PyTorch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.padding import Padding

from fairflare.app import describe, times
from fairflare.core.errors import UserError
from fairflare.core.validation import shown
from fairflare.papers.declaration import Data, Exhibit, Table
from fairflare.papers.estimate import Speed, in_words, relative_cost
from fairflare.papers.index import PAPERS

DATA_FOLDER = "FAIRFLARE_DATA"
Rows = list[dict[str, Any]]


def paper_rows(folder: Path) -> Rows:
    """One row per exhibit: name, paper, title, runs, seconds (on all cores, None where not known), data.

    Args:
        folder: of runs, whose times are taken where there are any.
    """
    methods = {row["id"]: row for row in describe.listed_rows()}
    presets = {f"{row['name']}:{p['preset']}": p for row in describe.task_rows() for p in row["presets"]}
    speed = times.speed_of(folder)
    return [_row(paper.words, exhibit, methods, presets, speed) for paper in PAPERS for exhibit in paper.exhibits]


def preset_pairs(given: Sequence[str]) -> dict[str, str]:
    """("digits:paper",) -> {"digits": "paper"}.

    Raises:
        UserError: one is not of this form, or a task is given twice.
    """
    found: dict[str, str] = {}
    for one in given:
        name, _, preset = one.partition(":")
        if not name or not preset or name in found:
            raise UserError(f"--preset: expected T:PRESET, each task once, got {shown(one)}")
        found[name] = preset
    return found


def show_papers(rows: Rows) -> None:
    """The table of ``fairflare paper``."""
    from fairflare.app.console import out

    paper = ""
    for row in rows:
        if row["paper"] != paper:
            paper = row["paper"]
            out.print(f"\n{escape(paper)}")
        out.print(f"[bold]{escape(row['name'])}[/bold]  {escape(row['title'])}")
        runs = f"{row['runs']} runs, {in_words(row['seconds'])} on {row['cores']} cores"
        out.print(Padding(escape(runs), (0, 0, 0, 4)))
        for data in row["data"]:
            out.print(Padding(escape(_data_words(data)), (0, 0, 0, 4)))


def show_written(found: Mapping[str, Any]) -> None:
    """Which files an exhibit is in, with the tables themselves."""
    from fairflare.app.console import out, say

    path = next((Path(file) for file in found["files"] if file.endswith(".md")), None)
    if path is not None:
        out.print(escape(path.read_text(encoding="utf-8")), soft_wrap=True)
    for file in found["files"]:
        say(f"{Path(file).suffix.lstrip('.')}: {file}")


def _row(
    paper: str, exhibit: Exhibit, methods: Mapping[str, Any], presets: Mapping[str, Any], speed: Speed
) -> dict[str, Any]:
    from joblib import cpu_count

    cores = int(cpu_count())
    chosen = {data.key: _chosen(data) for table in exhibit.tables for data in table.data}
    runs = set(_runs(exhibit, chosen, presets))
    each = [_seconds(task, label, rounds, methods, presets, speed) for task, label, _, rounds in runs]
    known = [seconds for seconds in each if seconds is not None]
    return {
        "name": exhibit.name,
        "paper": paper,
        "title": exhibit.title,
        "figure": exhibit.is_figure,
        "runs": len(runs),
        "seconds": sum(known) / cores if len(known) == len(each) else None,
        "cores": cores,
        "data": [
            {
                "title": data.title,
                "task": data.task,
                "needs": list(data.needs),
                "here": not chosen[data.key][1],
                "stand_in": data.stand_in,
            }
            for data in _once(data for table in exhibit.tables for data in table.data)
        ],
    }


def _once(found: Iterable[Data]) -> list[Data]:
    return list({data.key: data for data in found}.values())


def _chosen(data: Data) -> tuple[str, bool]:
    """(task that would run, whether it stands in), by what lies in the data folder."""
    root = os.environ.get(DATA_FOLDER)
    here = not data.needs or bool(root and all((Path(root) / name).exists() for name in data.needs))
    return (data.task, False) if here or not data.stand_in else (data.stand_in, True)


def _runs(
    exhibit: Exhibit, chosen: Mapping[str, tuple[str, bool]], presets: Mapping[str, Any]
) -> Iterable[tuple[str, str, str, int | None]]:
    """(task, METHOD, what else distinguishes it, rounds) of every run."""
    for table in exhibit.tables:
        for data in table.data if table.draw != "density" else ():
            task, stands_in = chosen[data.key]
            fixed = dict(data.other if stands_in else data.settings) | dict(table.values)
            for row in table.rows:
                if not row.is_for(stands_in):
                    continue
                values = fixed | dict(row.values)
                labels = [(row.label_on(data), ""), *((label, "") for label in table.references)]
                labels += _left_out(table, presets.get(task, {}))
                for label, more in labels:
                    for seed in table.seeds:
                        yield task, label, f"{seed} {more} {sorted(values.items())}", table.rounds


def _left_out(table: Table, preset: Mapping[str, Any]) -> list[tuple[str, str]]:
    sites = ["", *preset.get("sites", ())]
    return [(table.left_out, site) for site in sites] if table.left_out else []


def _seconds(
    task: str, label: str, rounds: int | None, methods: Mapping[str, Any], presets: Mapping[str, Any], speed: Speed
) -> float | None:
    if task not in presets:
        return None
    planned = rounds or int(presets[task]["training"]["rounds"])
    return speed.seconds(task, label, planned, relative_cost(label, methods))


def _data_words(data: Mapping[str, Any]) -> str:
    if data["here"]:
        return f"{data['title']}: {data['task']}" + (
            " (your copy)" if data["needs"] else ", which comes with the package"
        )
    instead = f"; otherwise {data['stand_in']} stands for it" if data["stand_in"] else "; nothing stands for it"
    return f"{data['title']}: needs {', '.join(data['needs'])} in {DATA_FOLDER}{instead}"


def index_lines() -> list[str]:
    """The lines of docs/papers.md's table: name, title, data sets and what stands for them."""
    lines = []
    for paper in PAPERS:
        for exhibit in paper.exhibits:
            data = _once(data for table in exhibit.tables for data in table.data)
            stand_ins = dict.fromkeys(f"`{one.stand_in}`" for one in data if one.stand_in)
            titles = "; ".join(one.title for one in data)
            lines.append(f"| `{exhibit.name}` | {exhibit.title} | {titles} | {', '.join(stand_ins)} |")
    return lines
