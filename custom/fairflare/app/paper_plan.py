# SPDX-License-Identifier: Apache-2.0
"""Which runs a paper's table or figure needs: one for each row, data set and seed, each asked for once."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairflare.app.arguments import comparison_name, folder_name
from fairflare.app.paper_list import DATA_FOLDER
from fairflare.app.study import arms
from fairflare.core.errors import UserError
from fairflare.core.validation import shown
from fairflare.engine.setup import tasks
from fairflare.engine.setup.config import RunConfig, checked_config
from fairflare.papers.declaration import Data, Exhibit, Row, Table

Values = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Choices:
    """What a user asks for beside the name.

    Attributes:
        seeds: in place of the declared ones.
        rounds: in place of the tasks'.
        values: ``--set`` pairs of all runs.
        presets: task -> preset in place of the declared one.
        stand_in: measure on the embedded tasks, whatever data are there.
        data: keys of data sets; empty: all.
    """

    seeds: tuple[int, ...] | None = None
    rounds: int | None = None
    values: Values = dataclasses.field(default_factory=dict)
    presets: Mapping[str, str] = dataclasses.field(default_factory=dict)
    stand_in: bool = False
    data: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Place:
    """One block of columns and where its runs are.

    Attributes:
        data: as declared.
        task: "name:preset" that runs.
        stands_in: whether that is not the paper's data.
        runs: row's key -> seed -> path of the run below the folder.
        references: the same by (row's key, METHOD label).
        without: (row's key, site) -> seed -> path.
    """

    data: Data
    task: str
    stands_in: bool
    runs: dict[str, dict[int, str]] = dataclasses.field(default_factory=dict)
    references: dict[tuple[str, str], dict[int, str]] = dataclasses.field(default_factory=dict)
    without: dict[tuple[str, str], dict[int, str]] = dataclasses.field(default_factory=dict)


class Plan:
    """Every run of an exhibit, once.

    Attributes:
        configs: path below the folder -> run.
        labels: path -> METHOD label.
        tables: as declared, but for data sets that cannot be measured.
        places: one list per table, one place per block.
    """

    def __init__(self, exhibit: Exhibit, choices: Choices) -> None:
        self.configs: dict[str, RunConfig] = {}
        self.labels: dict[str, str] = {}
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
            raise UserError(f"{table.title}: expected {needs} in the folder that {DATA_FOLDER} names")
        left = tuple(block for block in table.blocks if block.data in found.values())
        words = [f"{data.title} is not here, and no embedded task stands for it alone: left out." for data in missing]
        return dataclasses.replace(table, blocks=left, note=" ".join([*words, table.note]).strip())

    def _wanted(self, table: Table) -> list[Data]:
        return [data for data in table.data if not self._choices.data or data.key in self._choices.data]

    def _place(self, table: Table, data: Data) -> Place:
        task, stands_in = self.task_of(data)
        place = Place(data, task, stands_in)
        for row in table.rows:
            if not row.is_for(stands_in):
                continue
            place.runs[row.key] = self._arm(table, place, row, row.label_on(data))
            for label in table.references:
                place.references[row.key, label] = self._arm(table, place, row, label)
            if table.left_out:
                self._left_out(table, place, row)
        return place

    def task_of(self, data: Data) -> tuple[str, bool]:
        """The task that a data set's runs are on, "" for none, and whether it only stands for it."""
        task = _preset(data.task, self._choices.presets)
        if not self._choices.stand_in and is_here(data, task):
            return task, False
        return _preset(data.stand_in, self._choices.presets), True

    def _values(self, table: Table, place: Place, row: Row) -> dict[str, Any]:
        own = place.data.other if place.stands_in else place.data.settings
        return {**own, **table.values, **row.values, **self._choices.values}

    def _arm(self, table: Table, place: Place, row: Row, label: str) -> dict[int, str]:
        """Seed -> path of the runs of one METHOD, which this asks for."""
        seeds = self._choices.seeds or table.seeds
        rounds = self._choices.rounds or table.rounds
        values = self._values(table, place, row)
        folder = comparison_name(place.task, {"rounds": rounds, "values": values})
        found = arms([label], place.task, seeds, rounds=rounds, values=values)
        paths = {}
        for seed, (name, config) in zip(seeds, found, strict=True):
            paths[seed] = self._ask(f"{folder}/{name}", config, label)
        return paths

    def _left_out(self, table: Table, place: Place, row: Row) -> None:
        """The runs of the table's METHOD with each site left out of training in turn."""
        full = self._arm(table, place, row, table.left_out)
        place.references[row.key, table.left_out] = full
        for seed, path in full.items():
            config = self.configs[path]
            for site in tasks.load(config.task, config.preset, **config.options).sites():
                fewer = min(config.min_sites, len(_sites(config)) - 1)
                without = checked_config(dataclasses.replace(config, leave_out=site, min_sites=fewer))
                own = f"{path.rpartition('-seed')[0]}-without-{folder_name(site)}-seed{seed}"
                place.without.setdefault((row.key, site), {})[seed] = self._ask(own, without, table.left_out)

    def task(self, path: str) -> str:
        """ "name:preset" of a run."""
        return f"{self.configs[path].task}:{self.configs[path].preset}"

    def _ask(self, path: str, config: RunConfig, label: str) -> str:
        self.configs[path], self.labels[path] = config, label
        return path


def is_here(data: Data, task: str) -> bool:
    """Whether the user's copy of a data set can be read; what embedded tasks read always is."""
    root = os.environ.get(DATA_FOLDER)
    if data.needs and not (root and all((Path(root) / name).exists() for name in data.needs)):
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


def _sites(config: RunConfig) -> list[str]:
    return list(tasks.load(config.task, config.preset, **config.options).sites())
