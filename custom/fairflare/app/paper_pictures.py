# SPDX-License-Identifier: Apache-2.0
"""The two kinds of panels that need more than reports: the loss around final models, and how bright images are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from fairflare.core.execution import default_device
from fairflare.core.seeds import derive
from fairflare.core.types import Batch
from fairflare.engine.files import MODEL, read_model
from fairflare.engine.setup import tasks
from fairflare.engine.setup.config import RunConfig
from fairflare.engine.setup.parts import build_parts
from fairflare.functional.landscape import filter_normalised, loss_grid
from fairflare.papers.declaration import Table
from fairflare.report.table_files import Cell, Column, Form, Row
from fairflare.report.table_files import Table as Shown
from fairflare.tasks.base import TestSet

STEPS = (-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0)
EXAMPLES = 256
"""Of each test set, of which the loss is taken."""
BINS = 32


def landscape(table: Table, empty: Shown, runs: Sequence[tuple[str, RunConfig, Path]]) -> Shown:
    """The table of a loss landscape: a group of rows per method and condition, steps down and across.

    Args:
        table: the declaration.
        empty: key, title and caption.
        runs: (row's title, run, its folder), all on one task with clean and corrupted test sets.
    """
    rows = []
    for title, config, folder in runs:
        parts = build_parts(config)
        parts.network.load_state_dict(read_model(folder / MODEL))
        wanted = parts.task.table_sets()
        for test in (found for found in parts.task.test_sets() if found.name in wanted.values()):
            grid = _around(parts.network, test, config.seed)
            for step, line in zip(STEPS, grid):
                cells = {f"step-{i}": Cell(value) for i, value in enumerate(line)}
                group = f"{title}, {test.name}"
                rows.append(Row(f"{group} {step:g}", f"{step:g}", cells, group=group))
    columns = tuple(Column(f"step-{i}", f"{step:g}") for i, step in enumerate(STEPS))
    return replace(empty, columns=columns, rows=tuple(rows), stub=table.stub)


def densities(table: Table, empty: Shown, places: Sequence[tuple[str, str, Mapping[str, str]]]) -> Shown:
    """The table of how bright training images are: a row per site, a column per intensity, on the task's own split.

    Args:
        table: the declaration.
        empty: key, title and caption.
        places: (title of the data set, "name:preset", options) each.
    """
    rows: list[Row] = []
    columns: dict[str, Column] = {}
    for number, (title, named, options) in enumerate(places):
        name, _, preset = named.partition(":")
        task = tasks.load(name, preset, **_without_tests(name), **options)
        images = {site: _images(task.site_data(site).fixed("train", EXAMPLES)) for site in task.sites()}
        low, high = (end([end([value.min(), value.max()]) for value in images.values()]) for end in (min, max))
        middles = [float(low + (high - low) * (i + 0.5) / BINS) for i in range(BINS)]
        group = title if len(places) > 1 else ""
        names = [f"{number}.{i}" for i in range(BINS)]
        columns |= {key: Column(key, f"{middle:.3g}", group, form=Form(4)) for key, middle in zip(names, middles)}
        for site, value in images.items():
            counts = torch.histc(value.float(), BINS, float(low), float(high))
            shares = (counts / counts.sum()).tolist()
            cells = {key: Cell(share) for key, share in zip(names, shares)}
            rows.append(Row(f"{number}.{site}", f"{site}, {task.sites()[site]}", cells, group=group))
    return replace(empty, columns=tuple(columns.values()), rows=tuple(rows), stub=table.stub)


def _without_tests(task: str) -> dict[str, int]:
    """No further test images of the sites, which a simulated task would render and nobody looks at."""
    return {key: 0 for key in ("site_test_images",) if key in {field.name for field in fields(tasks.known(task))}}


def _around(network: nn.Module, test: TestSet, seed: int) -> list[list[float]]:
    """The mean cross-entropy of the set's first examples on the plane around the network, in evaluation mode."""
    device = default_device()
    network.to(device).eval()
    batch = next(test.batches(EXAMPLES)).to(device)
    parameters = {name: value.detach() for name, value in network.named_parameters()}
    generator = torch.Generator().manual_seed(derive(seed, "landscape"))
    first, second = (filter_normalised(parameters, generator) for _ in range(2))

    def loss(moved: dict[str, Tensor]) -> float:
        with torch.no_grad():
            outputs = torch.func.functional_call(network, moved, (batch.inputs,))
            return float(nn.functional.cross_entropy(outputs, batch.targets))

    return loss_grid(loss, parameters, first, second, STEPS)


def _images(batches: Iterable[Batch]) -> Tensor:
    return torch.cat([batch.inputs.flatten() for batch in batches])
