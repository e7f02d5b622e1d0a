# SPDX-License-Identifier: Apache-2.0
"""What ``fairflare paper`` shows: all exhibits with data and time; without PyTorch.

Time is what finished runs took; of a method that has not run, FedAvg's times the relative cost of its rounds.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairflare.core.errors import UserError
from fairflare.core.validation import shown
from fairflare.studies import describe
from fairflare_lab.papers.declaration import PAPERS, Data, Exhibit

FOLDER, KEPT = "papers", "times.json"
"""Below the folder of the runs: the folder of what is written, and what runs took."""
Known = dict[str, dict[str, list[float]]]
DATA_FOLDER = "FAIRFLARE_DATA"
Rows = list[dict[str, Any]]


def speed_of(folder: Path) -> Speed:
    """What finished runs below ``folder`` took."""
    return Speed(known_times(folder))


def known_times(folder: Path) -> Known:
    """Task -> METHOD label -> [seconds per round, seconds beside the rounds]; {} where nothing readable is kept."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, IndexError):
        found = json.loads((folder / FOLDER / KEPT).read_text(encoding="utf-8"))
        return {t: {m: [float(pair[0]), float(pair[1])] for m, pair in each.items()} for t, each in found.items()}
    return {}


def remember(folder: Path, reports: Iterable[tuple[str, str, Mapping[str, Any]]]) -> None:
    """Keep what runs took: (task, METHOD label, report) each."""
    from fairflare.engine.files import save_json

    known = known_times(folder)
    for task, label, report in reports:
        if (found := took(report)) is not None:
            known.setdefault(task, {})[label] = list(found)
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    save_json(folder / FOLDER / KEPT, known)


def paper_rows(folder: Path) -> Rows:
    """One row per exhibit: name, paper, title, runs, seconds (on all cores, None where not known), data.

    Times are those of the runs in ``folder``, where there are any.
    """
    methods = {row["id"]: row for row in describe.listed_rows()}
    presets = {f"{row['name']}:{p['preset']}": p for row in describe.task_rows() for p in row["presets"]}
    speed = speed_of(folder)
    return [_row(paper.words, exhibit, methods, presets, speed) for paper in PAPERS for exhibit in paper.exhibits]


def preset_pairs(given: Sequence[str]) -> dict[str, str]:
    """("digits:paper",) -> {"digits": "paper"}; raises UserError where one is not of this form, or given twice."""
    found: dict[str, str] = {}
    for one in given:
        name, _, preset = one.partition(":")
        if not name or not preset or name in found:
            raise UserError(f"--preset: expected T:PRESET, each task once, got {shown(one)}")
        found[name] = preset
    return found


def _row(
    paper: str, exhibit: Exhibit, methods: Mapping[str, Any], presets: Mapping[str, Any], speed: Speed
) -> dict[str, Any]:
    from joblib import cpu_count

    cores = int(cpu_count())
    chosen = {data.key: _chosen(data) for data in _data_of(exhibit)}
    runs = set(_runs(exhibit, chosen, presets))
    each: list[float | None] = []
    for task, label, _, rounds in runs:
        planned = rounds or int(presets[task]["training"]["rounds"]) if task in presets else 0
        each.append(speed.seconds(task, label, planned, relative_cost(label, methods)) if planned else None)
    data = [
        {"title": one.title, "task": one.task, "needs": list(one.needs)}
        | {"here": not chosen[one.key][1], "stand_in": one.stand_in}
        for one in _data_of(exhibit)
    ]
    seconds = total(each, cores)
    about = {"name": exhibit.name, "paper": paper, "title": exhibit.title, "figure": exhibit.is_figure}
    return {**about, "runs": len(runs), "seconds": seconds, "cores": cores, "data": data}


def _data_of(exhibit: Exhibit) -> list[Data]:
    return list({data.key: data for table in exhibit.tables for data in table.data}.values())


def _chosen(data: Data) -> tuple[str, bool]:
    """(task that would run, whether it stands in), by what lies in the data folder."""
    return (data.task, False) if has_files(data) or not data.stand_in else (data.stand_in, True)


def has_files(data: Data) -> bool:
    """Whether the user has a copy of a data set; what embedded tasks read is always there."""
    root = os.environ.get(DATA_FOLDER)
    return not data.needs or bool(root and all((Path(root) / name).exists() for name in data.needs))


def _runs(
    exhibit: Exhibit, chosen: Mapping[str, tuple[str, bool]], presets: Mapping[str, Any]
) -> Iterable[tuple[str, str, str, int | None]]:
    """(task, METHOD, what else distinguishes it, rounds) of every run."""
    for table in exhibit.tables:
        for data in table.data if table.rows else ():
            task, stands_in = chosen[data.key]
            fixed = dict(data.other if stands_in else data.settings) | dict(table.values)
            for row in table.rows:
                if not row.is_for(stands_in):
                    continue
                values = fixed | dict(row.values)
                labels = [(row.label_on(data), ""), *((label, "") for label in table.references)]
                if table.left_out:
                    labels += [(table.left_out, site) for site in ("", *presets.get(task, {}).get("sites", ()))]
                for label, more in labels:
                    for seed in table.seeds:
                        yield task, label, f"{seed} {more} {sorted(values.items())}", table.rounds


def total(each: Sequence[float | None], at_once: int) -> float | None:
    """Seconds of runs side by side; None where one's are not known."""
    return None if None in each else sum(filter(None, each)) / at_once


Json = Mapping[str, Any]


@dataclass(frozen=True)
class Speed:
    """What runs of a task took: ``known_times``."""

    known: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)

    def seconds(self, task: str, label: str, rounds: int, cost: float) -> float | None:
        """A run's, whose round costs so many times FedAvg's; None where neither it nor FedAvg ran on the task."""
        known = self.known.get(task, {})
        if label in known:
            return known[label][0] * rounds + known[label][1]
        if "fedavg" in known:
            return known["fedavg"][0] * cost * rounds + known["fedavg"][1]
        return None


def relative_cost(label: str, rows: Mapping[str, Json]) -> float:
    """A round's compute relative to FedAvg's."""
    name, _, settings = label.partition(":")
    row = rows.get(name, {})
    cost = float(row.get("cost", 1.0))
    pairs = dict(pair.split("=", 1) for pair in settings.split(",") if "=" in pair)
    trainer = pairs.get("trainer", row.get("trainer"))
    if trainer == row.get("trainer"):
        return cost
    with_trainer = [float(other["cost"]) for other in rows.values() if other.get("trainer") == trainer]
    return cost + min(with_trainer, default=1.0) - 1.0


def took(report: Json) -> tuple[float, float] | None:
    """(seconds per round, seconds beside the rounds) of a finished run that was not interrupted."""
    timing, rounds = report["detail"]["timing"], report["rounds"]
    in_rounds = sum((timing["phases"] or {}).values())
    if not rounds or not in_rounds or report["detail"]["provenance"]["resumed_after"]:
        return None
    return in_rounds / rounds, max(0.0, (timing["wall_seconds"] or 0.0) - in_rounds)


def in_words(seconds: float | None) -> str:
    """ "about 40 s", "about 12 min", "about 3.5 h", or that it is not known."""
    if seconds is None:
        return "time not measured"
    if seconds < 90:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"
