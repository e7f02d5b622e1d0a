# SPDX-License-Identifier: Apache-2.0
"""Every declaration is whole: methods and settings resolve, tasks exist, columns name measures, seeds are different."""

import inspect

import pytest

from cases import each
from fairflare.engine.setup import tasks
from fairflare.engine.setup.config import make_config
from fairflare.studies.describe import method_rows, task_rows
from fairflare.studies.labels import folder_name, split_method
from fairflare_lab.papers.declaration import PAPERS, exhibits, named
from fairflare_lab.papers.measures import MEASURES
from fairflare_lab.report.table_files import KEY
from fairflare_lab.studies.paper_panels import OF_DATA

TABLES = [
    pytest.param(exhibit, table, id=f"{exhibit.name}-{table.key}")
    for paper in PAPERS
    for exhibit in paper.exhibits
    for table in exhibit.tables
]
KEYS = {data.key for param in TABLES for data in param.values[1].data}
PRESETS = {f"{row['name']}:{preset['preset']}" for row in task_rows() for preset in row["presets"]}


def labels(table):
    for row in table.rows:
        for data in table.data:
            yield row.label_on(data), row, data
            yield from ((label, row, data) for label in (*table.references, table.left_out) if label)


@each(("exhibit", "table"), TABLES)
def test_every_label_is_a_run_that_can_be_made(exhibit, table):
    for label, row, data in set((label, row.key, data.key) for label, row, data in labels(table)):
        one = next(r for r in table.rows if r.key == row)
        where = next(d for d in table.data if d.key == data)
        name, own = split_method(label)
        for task, settings in ((where.stand_in, where.other), (where.task, where.settings)):
            if task and one.is_for(task == where.stand_in):
                values = {**settings, **table.values, **one.values}
                config = make_config(name, task, rounds=table.rounds, values=values, over=own)
                assert config.method == name and folder_name(label)


@each(("exhibit", "table"), TABLES)
def test_a_tables_form_is_whole(exhibit, table):
    assert KEY.fullmatch(exhibit.name) and table.title and exhibit.title
    assert len(set(table.seeds)) == len(table.seeds) and min(table.seeds) >= 0 and len(table.seeds) >= 3
    assert len({row.key for row in table.rows}) == len(table.rows)
    assert table.blocks and (table.rows or table.draw in OF_DATA)
    assert (
        not any(row.one_of for row in table.rows)
        or not table.choose
        or any(column.key == table.choose for block in table.blocks for column in block.columns)
    )
    for row in table.rows:
        assert set(row.on) <= KEYS
    for block in table.blocks:
        assert block.data.task in PRESETS and (not block.data.stand_in or block.data.stand_in in PRESETS)
        assert not block.data.stand_in or block.data.words
        for column in block.columns:
            arguments = list(inspect.signature(MEASURES[column.measure]).parameters)
            assert set(column.given) <= set(arguments[2:]), column
            assert column.given.get("than", "") in ("", *table.references)
            assert column.measure not in ("like-left-out", "without", "shares", "relative-weights") or table.left_out


@each(("exhibit", "table"), TABLES)
def test_the_metrics_of_columns_are_the_tasks(exhibit, table):
    for block in table.blocks:
        for task in filter(None, (block.data.task, block.data.stand_in)):
            name, _, preset = task.partition(":")
            built = tasks.load(name, preset)
            for column in block.columns:
                metric = column.given.get("metric")
                assert not metric or metric in built.metrics, (task, column.key)
                if column.measure in ("condition", "condition-std", "condition-rounds"):
                    assert set(built.table_sets()) >= {"clean", "corrupted"}
                if column.measure in ("groups", "over-groups"):
                    assert built.kind.has_classes
                if column.measure == "opportunity":
                    assert "+" in {**block.data.other, **block.data.settings, **table.values}.get("group_by", "")


def test_names_are_unique_and_found():
    names = [exhibit.name for paper in PAPERS for exhibit in paper.exhibits]
    assert len(set(names)) == len(names) == len(exhibits())
    assert named(names[0]).name == names[0]


def test_every_method_of_the_papers_has_a_cost():
    known = {row["id"] for row in method_rows()}
    found = {split_method(label)[0] for param in TABLES for label, _, _ in labels(param.values[1])}
    assert found <= known
