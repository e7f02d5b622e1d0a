# SPDX-License-Identifier: Apache-2.0
"""A paper's table or figure: the runs that it needs, each made once, and what is written from them.

Runs are ordinary run folders in the folders of ``fairflare compare``: tables share the runs that they have in common,
with each other and with comparisons, and an interrupted command goes on with what is missing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairflare.core.errors import UserError
from fairflare.core.validation import shown
from fairflare.engine import audit
from fairflare.engine.files import AUDIT, read_json, save_text
from fairflare.engine.history import events
from fairflare.engine.setup import tasks
from fairflare.engine.setup.config import RunConfig
from fairflare.report import REPORT
from fairflare.studies import display
from fairflare.studies.describe import listed_rows
from fairflare.studies.folders import check_path
from fairflare.studies.labels import comparison_name, folder_name
from fairflare.studies.parallel import budget
from fairflare.studies.runs import run_once
from fairflare.studies.study import Study, arms, facts, leaving_out
from fairflare_lab.papers.declaration import Data, Exhibit, Row, Table
from fairflare_lab.papers.measures import CURVES, Beside, Run
from fairflare_lab.papers.tabulate import Used, differences, file_name, published_numbers, tabulated, with_published
from fairflare_lab.report.table_files import Table as Shown
from fairflare_lab.report.table_files import write_tables
from fairflare_lab.studies import paper_list
from fairflare_lab.studies.mixtures import on_mixture, parse_options
from fairflare_lab.studies.paper_panels import OF_DATA, OF_MODELS, Runs, drawn, segmentations, standalone

Values = Mapping[str, Any]
Json = dict[str, Any]
Paths = dict[int, str]
"""Seed -> path of the run below the folder."""


@dataclasses.dataclass(frozen=True)
class Choices:
    """What a user asks for beside the name: seeds, rounds and presets (task -> preset) in place of the declared ones,
    settings of all runs, the embedded tasks whatever data are there (``stand_in``), and only some data sets."""

    seeds: tuple[int, ...] | None = None
    rounds: int | None = None
    values: Values = dataclasses.field(default_factory=dict)
    presets: Mapping[str, str] = dataclasses.field(default_factory=dict)
    stand_in: bool = False
    data: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Place:
    """One block of columns and where its runs are."""

    data: Data
    task: str
    """ "name:preset" that runs; ``stands_in``: it is not the paper's data."""
    stands_in: bool
    runs: dict[str, Paths] = dataclasses.field(default_factory=dict)
    """Of each row's key; ``references`` also of each METHOD label, ``without`` of each site."""
    references: dict[str, dict[str, Paths]] = dataclasses.field(default_factory=dict)
    without: dict[str, dict[str, Paths]] = dataclasses.field(default_factory=dict)


class Plan:
    """Every run of an exhibit, once, by its path below the folder; a list of places per table, a place per block."""

    def __init__(self, exhibit: Exhibit, choices: Choices) -> None:
        self.configs: dict[str, RunConfig] = {}
        self.labels: dict[str, str] = {}
        """Path -> METHOD label."""
        self._choices = choices
        known = list(dict.fromkeys(data.key for table in exhibit.tables for data in table.data))
        if strange := [key for key in choices.data if key not in known]:
            raise UserError(f"--data: {exhibit.name} has {', '.join(known)}, got {shown(strange[0])}")
        self.tables = [self._measurable(table) for table in exhibit.tables if self._wanted(table)]
        self.places = [[self._place(table, block.data) for block in table.blocks] for table in self.tables]

    def _measurable(self, table: Table) -> Table:
        """The table without the data sets that nothing stands for, or that only what stands for another stands for."""
        found: dict[tuple[str, str], Data] = {}
        missing: list[Data] = []
        for data in self._wanted(table):
            task, stands_in = self.task_of(data)
            key = (task, str(sorted(data.other.items()))) if stands_in else (task, data.key)
            if not task or key in found:
                missing.append(data)
            else:
                found[key] = data
        if not found:
            needs = ", ".join(name for data in table.data for name in data.needs)
            raise UserError(f"{table.title}: expected {needs} in the folder that {paper_list.DATA_FOLDER} names")
        left = tuple(block for block in table.blocks if block.data in found.values())
        words = [f"{data.title} is not here, and no embedded task stands for it alone: left out." for data in missing]
        mean = "" if self._choices.data else table.mean  # of all data sets
        return dataclasses.replace(table, blocks=left, mean=mean, note=" ".join([*words, table.note]).strip())

    def _wanted(self, table: Table) -> list[Data]:
        return [data for data in table.data if not self._choices.data or data.key in self._choices.data]

    def _place(self, table: Table, data: Data) -> Place:
        task, stands_in = self.task_of(data)
        place = Place(data, task, stands_in)
        for row in table.rows:
            if not row.is_for(stands_in):
                continue
            place.runs[row.key] = self._arm(table, place, row, row.label_on(data))
            beside = dict.fromkeys((*table.references, *filter(None, [table.left_out])))
            place.references[row.key] = {label: self._arm(table, place, row, label) for label in beside}
            place.without[row.key] = self._left_out(table, place.references[row.key]) if table.left_out else {}
        return place

    def task_of(self, data: Data) -> tuple[str, bool]:
        """The task that a data set's runs are on, "" for none, and whether it only stands for it."""
        task = _preset(data.task, self._choices.presets)
        if not self._choices.stand_in and is_here(data, task):
            return task, False
        return _preset(data.stand_in, self._choices.presets), True

    def _arm(self, table: Table, place: Place, row: Row, label: str) -> Paths:
        """The runs of one METHOD, which this asks for."""
        seeds = self._choices.seeds or table.seeds
        rounds = self._choices.rounds or table.rounds
        own = place.data.other if place.stands_in else place.data.settings
        curves = {"score_rounds": "all"} if self._has_curves(table, place.task) else {}
        values = {**own, **table.values, **curves, **row.values, **self._choices.values}
        folder = comparison_name(place.task, {"rounds": rounds, "values": values})
        level = {} if {"robust", "run.robust"} & set(values) else {"robust": "off"}  # as the papers, and older folders
        found = arms([label], place.task, seeds, rounds=rounds, values={**level, **values})
        asked = zip(seeds, found, strict=True)
        return {seed: self._ask(f"{folder}/{name}", config, label) for seed, (name, config) in asked}

    @staticmethod
    def _has_curves(table: Table, task: str) -> bool:
        """Whether a column is of every round's model on shared test sets."""
        if not any(column.measure in CURVES for block in table.blocks for column in block.columns):
            return False
        name, _, preset = task.partition(":")
        return bool(tasks.load(name, preset or None).table_sets())

    def _left_out(self, table: Table, references: Mapping[str, Paths]) -> dict[str, Paths]:
        """Site -> the runs of the table's METHOD without it."""
        found: dict[str, Paths] = {}
        for seed, path in references[table.left_out].items():
            config = self.configs[path]
            sites = list(tasks.load(config.task, config.preset, **config.options).sites())
            chosen = [site for k, site in enumerate(sites, 1) if k in table.left_sites or not table.left_sites]
            every = leaving_out(config, sites)
            for site in chosen:
                own = f"{path.rpartition('-seed')[0]}-without-{folder_name(site)}-seed{seed}"
                found.setdefault(site, {})[seed] = self._ask(own, every[site], table.left_out)
        return found

    def task(self, path: str) -> str:
        """ "name:preset" of a run."""
        return f"{self.configs[path].task}:{self.configs[path].preset}"

    def _ask(self, path: str, config: RunConfig, label: str) -> str:
        self.configs[path], self.labels[path] = config, label
        return path


def is_here(data: Data, task: str) -> bool:
    """Whether the user's copy of a data set can be read; what embedded tasks read always is."""
    if not paper_list.has_files(data):
        return False
    name, _, preset = task.partition(":")
    try:
        tasks.load(name, preset or None).check_data()
    except UserError:
        return False
    return True


def _preset(task: str, presets: Mapping[str, str]) -> str:
    name = task.partition(":")[0]
    return f"{name}:{presets[name]}" if name in presets else task


def make_exhibit(
    exhibit: Exhibit, folder: Path, choices: Choices, *, command: str = "", workers: int | None = None
) -> Json:
    """Run what is missing below ``folder`` and write NAME.md, .csv, .html and .json below ``folder``/papers.

    ``command`` stands in the files. Returns name, title, runs (how many), files (their paths) and tables (as in the
    JSON file).
    """
    plan = Plan(exhibit, choices)
    check_path(folder)
    study = Study(plan.configs)
    study.check(folder)
    at_once = budget(workers, "local", plan.configs)
    costs = _seconds(plan, paper_list.speed_of(folder))
    for place in (place for places in plan.places for place in places if place.stands_in):
        display.note(f"{place.data.title}: not here, {place.task} stands for it")
    time = paper_list.in_words(paper_list.total(list(costs.values()), at_once))
    display.note(f"{exhibit.name}: {len(costs)} runs, {time} if none is there yet")
    with study.finished(folder, run_once, workers=at_once) as reports:
        paper_list.remember(folder, [(plan.task(path), plan.labels[path], one) for path, one in reports.items()])
    return written(exhibit, plan, folder, command)


def written(exhibit: Exhibit, plan: Plan, folder: Path, command: str) -> Json:
    """Tables and figures from the finished runs; see ``make_exhibit``."""
    looks = _looks(plan)
    runs = {path: _run(folder / path, config, looks.get(path, ())) for path, config in plan.configs.items()}
    shown: list[Shown] = []
    figures: list[str] = []
    about = {"Command": command, **{key.capitalize(): text for key, text in facts().items()}}
    for table, places in zip(plan.tables, plan.places, strict=True):
        key = file_name(exhibit.name if len(exhibit.tables) == 1 else f"{exhibit.name}-{table.key}")
        used = [_used(table, place, runs) for place in places]
        printed, source = published_numbers(key)
        source = source if any(not one.stands_in and one.data.own for one in used) else ""
        main, *tried = tabulated(table, key, used, printed)
        main = with_published(_pictured(table, main, plan, places, folder), printed, used) if table.draw else main
        beside = None if table.draw else differences(table, f"{key}-differences", used)
        shown += [main, *tried, *([beside] if beside else [])]
        about |= {"Published numbers": source} if source else {}
        figures += _figures(table, main, plan, places, folder)
    out = folder / paper_list.FOLDER
    out.mkdir(parents=True, exist_ok=True)
    told = {key: text for key, text in about.items() if text}
    files = write_tables(out, file_name(exhibit.name), exhibit.title, shown, figures=figures, facts=told)
    for number, svg in enumerate(figures, 1):
        path = out / f"{file_name(exhibit.name)}-{number}.svg"
        save_text(path, standalone(svg))
        files.append(path)
    made = {"files": [str(path) for path in files], "tables": [table.to_json() for table in shown]}
    return {"name": exhibit.name, "title": exhibit.title, "runs": len(runs), **made}


def _pictured(table: Table, shown: Shown, plan: Plan, places: Sequence[Place], folder: Path) -> Shown:
    """The table itself, or what a panel that needs models or data has in its place."""
    if table.draw in OF_DATA:
        options = [place.data.other if place.stands_in else place.data.settings for place in places]
        found = [(p.data.key, p.data.title, p.task, {**own, **table.values}) for p, own in zip(places, options)]
        return OF_DATA[table.draw](table, shown, found)
    if table.draw in OF_MODELS:
        return OF_MODELS[table.draw](table, shown, _first_runs(table, plan, places, folder))
    return shown


def _first_runs(table: Table, plan: Plan, places: Sequence[Place], folder: Path) -> Runs:
    titles = {row.key: row.title for row in table.rows}
    runs = [(titles[key], min(seeds.items())[1]) for place in places for key, seeds in place.runs.items()]
    return [(title, plan.configs[path], folder / path) for title, path in runs]


def _figures(table: Table, shown: Shown, plan: Plan, places: Sequence[Place], folder: Path) -> list[str]:
    """SVG elements; none for a printed table."""
    if table.draw == "pictures":
        return segmentations(table, _first_runs(table, plan, places, folder))
    return drawn(table, shown)


def _looks(plan: Plan) -> dict[str, list[str]]:
    """Path -> the options whose mixtures of test patients its final model is measured on."""
    found: dict[str, list[str]] = {}
    for table, places in zip(plan.tables, plan.places, strict=True):
        for block, place in zip(table.blocks, places, strict=True):
            options = [str(c.given["options"]) for c in block.columns if c.measure == "elsewhere"]
            for path in (path for seeds in place.runs.values() for path in seeds.values() if options):
                found.setdefault(path, []).extend(options)
    return found


def _seconds(plan: Plan, speed: paper_list.Speed) -> dict[str, float | None]:
    """Path -> what the run will take."""
    rows = {row["id"]: row for row in listed_rows()}
    costs = {label: paper_list.relative_cost(label, rows) for label in set(plan.labels.values())}
    return {
        path: speed.seconds(plan.task(path), label, int(plan.configs[path].training.rounds), costs[label])
        for path, label in plan.labels.items()
    }


def _used(table: Table, place: Place, runs: Mapping[str, Run]) -> Used:
    found = {row: {seed: runs[path] for seed, path in paths.items()} for row, paths in place.runs.items()}

    def beside(row: str, seed: int) -> Beside:
        references = {label: runs[paths[seed]] for label, paths in place.references[row].items()}
        without = {site: runs[paths[seed]] for site, paths in place.without[row].items()}
        return Beside(references, without, references.get(table.left_out))

    aside = {row: {seed: beside(row, seed) for seed in seeds} for row, seeds in found.items()}
    return Used(place.data, place.task, place.stands_in, found, aside)


def _run(folder: Path, config: RunConfig, options: Sequence[str]) -> Run:
    scored = (entry for entry in events(audit.Entries(folder / AUDIT, torn=False)) if entry["event"] == "scores")
    scores = {one["round"]: {name: found["metrics"] for name, found in one["test_sets"].items()} for one in scored}
    report = read_json(folder / REPORT)
    higher = bool(report["detail"]["higher_is_better"])
    elsewhere = {one: on_mixture(config, folder, parse_options([one])[0], higher) for one in dict.fromkeys(options)}
    return Run(report, scores, elsewhere)
