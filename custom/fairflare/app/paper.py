# SPDX-License-Identifier: Apache-2.0
"""A paper's table or figure: the runs that it needs, each made once, and what is written from them.

Runs are ordinary run folders in the folders of ``fairflare compare``: tables share the runs that they have in common,
with each other and with comparisons, and an interrupted command goes on with what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairflare.app import console
from fairflare.app.describe import listed_rows
from fairflare.app.folders import check_path
from fairflare.app.paper_pictures import densities, landscape
from fairflare.app.paper_plan import Choices, Place, Plan
from fairflare.app.parallel import Workers, budget, side_by_side
from fairflare.app.reevaluation import on_mixture, parse_options
from fairflare.app.runs import run_once
from fairflare.app.study import Study
from fairflare.app.times import PAPERS, remember, speed_of
from fairflare.core.versions import all_versions
from fairflare.engine import audit
from fairflare.engine.files import AUDIT, read_json
from fairflare.engine.log_lines import events
from fairflare.engine.setup.config import RunConfig
from fairflare.engine.state import save_text
from fairflare.papers import published
from fairflare.papers.declaration import Exhibit, Table
from fairflare.papers.drawing import drawn, standalone
from fairflare.papers.estimate import Speed, in_words, relative_cost
from fairflare.papers.measures import Beside, Run
from fairflare.papers.tabulate import Used, differences, file_name, tabulated
from fairflare.report.table_files import write_tables
from fairflare.report.table_model import Table as Shown
from fairflare.report.tables import machine

Json = dict[str, Any]


def make_exhibit(
    exhibit: Exhibit, folder: Path, choices: Choices, *, command: str = "", workers: Workers | None = None
) -> Json:
    """Run what is missing and write NAME.md, .csv, .tex, .html and .json below ``folder``/papers.

    Args:
        exhibit: what to make.
        folder: holds the folders of the runs.
        choices: what the user asks for.
        command: stands in the files.
        workers: see ``parallel.budget``.

    Returns:
        name, title, runs (how many), files (their paths) and tables (as in the JSON file).
    """
    plan = Plan(exhibit, choices)
    check_path(folder)
    study = Study(plan.configs)
    study.check(folder)
    at_once = budget(workers, "local", plan.configs)
    speed = speed_of(folder)
    _announce(exhibit, plan, speed, side_by_side(at_once))
    costs = {path: _seconds(plan, path, speed) for path in plan.configs}
    with study.finished(folder, run_once, workers=at_once, seconds=costs) as reports:
        remember(folder, [(plan.task(path), plan.labels[path], one) for path, one in reports.items()])
    return written(exhibit, plan, folder, command)


def written(exhibit: Exhibit, plan: Plan, folder: Path, command: str) -> Json:
    """Tables and figures from the finished runs; see ``make_exhibit``."""
    looks = _looks(plan)
    runs = {path: _run(folder / path, config, looks.get(path, ())) for path, config in plan.configs.items()}
    shown: list[Shown] = []
    figures: list[str] = []
    facts = {"Command": command, "Machine": machine(), "Versions": _versions()}
    for table, places in zip(plan.tables, plan.places, strict=True):
        key = file_name(exhibit.name if len(exhibit.tables) == 1 else f"{exhibit.name}-{table.key}")
        used = [_used(table, place, runs) for place in places]
        printed, source = published.read(table.published) if table.published else (None, "")
        shown.append(_pictured(table, tabulated(table, key, used, printed), plan, places, folder))
        beside = None if table.draw else differences(table, f"{key}-differences", used)
        shown += [beside] if beside else []
        facts |= {"Published numbers": source} if source else {}
        figures += drawn(table, shown[-1]) if table.draw else []
    out = folder / PAPERS
    out.mkdir(parents=True, exist_ok=True)
    files = write_tables(
        out, file_name(exhibit.name), exhibit.title, shown, figures=figures, facts={k: v for k, v in facts.items() if v}
    )
    for number, svg in enumerate(figures, 1):
        path = out / f"{file_name(exhibit.name)}-{number}.svg"
        save_text(path, standalone(svg))
        files.append(path)
    return {
        "name": exhibit.name,
        "title": exhibit.title,
        "runs": len(runs),
        "files": [str(path) for path in files],
        "tables": [table.to_json() for table in shown],
    }


def _pictured(table: Table, shown: Shown, plan: Plan, places: Sequence[Place], folder: Path) -> Shown:
    """The table itself, or what a landscape or density has in its place."""
    if table.draw == "landscape":
        titles = {row.key: row.title for row in table.rows}
        found = [(titles[key], min(seeds.items())[1]) for place in places for key, seeds in place.runs.items()]
        return landscape(table, shown, [(title, plan.configs[path], folder / path) for title, path in found])
    if table.draw == "density":
        options = [place.data.other if place.stands_in else place.data.settings for place in places]
        return densities(table, shown, [(p.data.title, p.task, own) for p, own in zip(places, options)])
    return shown


def _looks(plan: Plan) -> dict[str, list[str]]:
    """Path -> the options whose mixtures of test patients its final model is measured on."""
    found: dict[str, list[str]] = {}
    for table, places in zip(plan.tables, plan.places, strict=True):
        for block, place in zip(table.blocks, places, strict=True):
            options = [str(c.given["options"]) for c in block.columns if c.measure == "elsewhere"]
            for path in (path for seeds in place.runs.values() for path in seeds.values() if options):
                found.setdefault(path, []).extend(options)
    return found


def _announce(exhibit: Exhibit, plan: Plan, speed: Speed, at_once: int) -> None:
    for places in plan.places:
        for place in places:
            if place.stands_in:
                console.note(f"{place.data.title}: not here, {place.task} stands for it")
    times = [_seconds(plan, path, speed) for path in plan.configs]
    known = [seconds for seconds in times if seconds is not None]
    total = None if len(known) < len(times) else sum(known) / at_once
    console.note(f"{exhibit.name}: {len(plan.configs)} runs, {in_words(total)} if none is there yet")


def _seconds(plan: Plan, path: str, speed: Speed) -> float | None:
    config, label = plan.configs[path], plan.labels[path]
    cost = relative_cost(label, {row["id"]: row for row in listed_rows()})
    return speed.seconds(plan.task(path), label, int(config.training["rounds"]), cost)


def _used(table: Table, place: Place, runs: Mapping[str, Run]) -> Used:
    found = {row: {seed: runs[path] for seed, path in paths.items()} for row, paths in place.runs.items()}
    beside = {row: {seed: _beside(table, place, row, seed, runs) for seed in seeds} for row, seeds in found.items()}
    return Used(place.data, place.task, place.stands_in, found, beside)


def _beside(table: Table, place: Place, row: str, seed: int, runs: Mapping[str, Run]) -> Beside:
    references = {
        label: runs[paths[seed]] for (name, label), paths in place.references.items() if name == row and seed in paths
    }
    without = {site: runs[paths[seed]] for (name, site), paths in place.without.items() if name == row}
    return Beside(references, without, references.get(table.left_out))


def _run(folder: Path, config: RunConfig, options: Sequence[str]) -> Run:
    """A finished run's report, what its log says of the last rounds, and its final model on other mixtures."""
    from fairflare.report import REPORT

    scores = {
        entry["round"]: {name: found["metrics"] for name, found in entry["test_sets"].items()}
        for entry in events(audit.verify(folder / AUDIT))
        if entry["event"] == "scores"
    }
    report = read_json(folder / REPORT)
    higher = bool(report["detail"]["higher_is_better"])
    elsewhere = {one: on_mixture(config, folder, parse_options([one])[0], higher) for one in dict.fromkeys(options)}
    return Run(report, scores, elsewhere)


def _versions() -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(all_versions().items()))
