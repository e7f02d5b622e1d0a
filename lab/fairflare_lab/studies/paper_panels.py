# SPDX-License-Identifier: Apache-2.0
"""A paper's figures, and panels that need a run's model or its task's data: each makes the table that is drawn."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fairflare.core.execution import default_device
from fairflare.core.schema import Instruction
from fairflare.core.seeds import derive
from fairflare.core.types import Round
from fairflare.engine.checkpoint import load_checkpoint
from fairflare.engine.files import CHECKPOINT, MODEL, read_model
from fairflare.engine.setup import tasks
from fairflare.engine.setup.config import RunConfig
from fairflare.engine.setup.local import LocalSites
from fairflare.engine.setup.parts import build_parts
from fairflare.report.svg import BLUE, DARK, GREEN, GREY, ORANGE, PURPLE, RED, legend, rendered, short
from fairflare.report.values import number
from fairflare.tasks.base import TestSet
from fairflare_lab.functional.terms import filter_normalised, loss_grid
from fairflare_lab.papers import declaration
from fairflare_lab.report.table_files import Cell, Column, Form, Row, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STEPS = (-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0)
EXAMPLES = 256
"""Of each test set, of which the loss is taken."""
BINS = 32
Runs = Sequence[tuple[str, RunConfig, Path]]
"""(Row's title, run, its folder)."""
Places = Sequence[tuple[str, str, str, Mapping[str, str]]]
"""(Key and title of the data set, "name:preset", options)."""


def landscape(table: declaration.Table, empty: Table, runs: Runs) -> Table:
    """The table of a loss landscape on corrupted test images: a group of rows per method, steps down and across.

    ``empty`` has key, title and caption; ``runs`` are all on one task with a corrupted test set.
    """
    rows = []
    for title, config, folder in runs:
        parts = build_parts(config)
        parts.network.load_state_dict(read_model(folder / MODEL))
        wanted = parts.task.table_sets().get("corrupted")
        for test in (found for found in parts.task.test_sets() if found.name == wanted):
            grid = _around(parts.network, test, config.seed)
            for step, line in zip(STEPS, grid):
                cells = {f"step-{i}": Cell(value) for i, value in enumerate(line)}
                rows.append(Row(f"{title} {step:g}", f"{step:g}", cells, group=title))
    columns = tuple(Column(f"step-{i}", f"{step:g}") for i, step in enumerate(STEPS))
    return replace(empty, columns=columns, rows=tuple(rows), stub=table.stub)


def densities(table: declaration.Table, empty: Table, places: Places) -> Table:
    """The table of how bright training images are: a row per site, a column per intensity, on the task's own split.

    ``empty`` has key, title and caption.
    """
    rows: list[Row] = []
    columns: dict[str, Column] = {}
    for data, title, named, options in places:
        name, _, preset = named.partition(":")
        known = {field.name for field in fields(tasks.known(name))}
        # Nobody looks at the sites' further test images, which a simulated task would render.
        fewer = {"site_test_images": 0} if "site_test_images" in known else {}
        task = tasks.load(name, preset, **fewer, **options)
        batches = {site: task.site_data(site).fixed("train", EXAMPLES) for site in task.sites()}
        images = {site: torch.cat([batch.inputs.flatten() for batch in own]) for site, own in batches.items()}
        low, high = (end([end([value.min(), value.max()]) for value in images.values()]) for end in (min, max))
        middles = [float(low + (high - low) * (i + 0.5) / BINS) for i in range(BINS)]
        group = title if len(places) > 1 else ""
        names = [f"{data}.{i}" for i in range(BINS)]
        columns |= {key: Column(key, f"{middle:.3g}", group, form=Form(4)) for key, middle in zip(names, middles)}
        for site, value in images.items():
            counts = torch.histc(value.float(), BINS, float(low), float(high))
            shares = (counts / counts.sum()).tolist()
            cells = {key: Cell(share) for key, share in zip(names, shares)}
            rows.append(Row(f"{data}.{site}", f"{site}, {task.sites()[site]}", cells, group=group))
    return replace(empty, columns=tuple(columns.values()), rows=tuple(rows), stub=table.stub)


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


def counts(table: declaration.Table, empty: Table, places: Places) -> Table:
    """The table of how many patients of each class every client has, for training and for testing."""
    rows: list[Row] = []
    columns: dict[str, Column] = {}
    for data, title, named, options in places:
        name, _, preset = named.partition(":")
        task = tasks.load(name, preset, **options)
        columns |= {f"class-{i}": Column(f"class-{i}", f"Attr {i + 1}", form=Form(0)) for i in range(len(task.classes))}
        for split in ("train", "test"):
            for k, site in enumerate(task.sites(), 1):
                targets = [batch.targets.long().flatten() for batch in task.site_data(site).fixed(split, EXAMPLES)]
                found = torch.bincount(torch.cat(targets or [torch.zeros(0).long()]), minlength=len(task.classes))
                cells = {f"class-{i}": Cell(float(count)) for i, count in enumerate(found)}
                rows.append(Row(f"{data}.{split}.{k}", f"Client {k}", cells, group=f"{title}, {split}"))
    return replace(empty, columns=tuple(columns.values()), rows=tuple(rows), stub=table.stub)


def consistency(table: declaration.Table, empty: Table, runs: Runs) -> Table:
    """The table of FedHEAL's counters: share of a layer's parameters by the share of rounds that went one way.

    A position that went up in c of t rounds has kept one direction in max(c, t - c) / t of them. The layer is the one
    with most parameters; a row per run and client.
    """
    edges = torch.linspace(0.5, 1.0, 11, dtype=torch.float64)
    names = [f"{float(low):.2f} to {float(high):.2f}" for low, high in zip(edges, edges[1:])]
    columns = tuple(Column(f"share-{i}", name, form=Form(3)) for i, name in enumerate(names))
    rows = []
    for title, _, folder in runs:
        state = load_checkpoint(folder / CHECKPOINT).state
        for site, history in state["history"].items():
            sizes = state.get("sizes", {})  # earlier versions keep counters by entry
            counters = dict(zip(sizes, history.split(list(sizes.values())))) if sizes else history
            layer = max(counters, key=lambda key: counters[key].numel())
            rounds, up = int(state["rounds"][site]), counters[layer].flatten().double()
            kept = torch.maximum(up, rounds - up) / max(rounds, 1)
            # A share on an edge belongs to the bin above it, however it is rounded.
            found = torch.histogram((kept + 1e-9).clamp(0.5, 1.0), edges).hist / kept.numel()
            cells = {f"share-{i}": Cell(float(value)) for i, value in enumerate(found)}
            rows.append(Row(f"{title} {site}", str(site), cells, group=f"{title}, {layer}"))
    return replace(empty, columns=columns, rows=tuple(rows), stub=table.stub)


def layers(table: declaration.Table, empty: Table, runs: Runs) -> Table:
    """The table of CKA between the local models of two pairs of clients, layer by layer, on the first one's data.

    Every client of a pair trains a round from the run's final model. The pairs are drawn with the run's seed.
    """
    title, config, folder = runs[0]
    final, last = read_model(folder / MODEL), Round(1, int(config.training.rounds))
    rows: list[Row] = []
    columns: dict[str, Column] = {}
    with tempfile.TemporaryDirectory() as aside, LocalSites(config, Path(aside), build_parts(config)) as local:
        names = local.transport.sites()
        order = torch.randperm(len(names), generator=torch.Generator().manual_seed(derive(config.seed, "pairs")))
        chosen = [names[i] for i in order.tolist()][:4]
        list(local.transport.exchange({site: Instruction("preflight", last, {}) for site in names}))
        asked = {site: Instruction("train", last, final) for site in chosen}
        trained = {answer.site: answer.update for answer in local.transport.exchange(asked)}
        for first, second in zip(chosen[::2], chosen[1::2]):
            other = {key: final[key] + trained[second].get(key, torch.zeros(())) for key in final}
            shown = {first: Instruction("compare", last, {key: other[key].to(final[key].dtype) for key in final})}
            (answer,) = local.transport.exchange(shown)
            found = {name.partition("/")[2]: value for name, value in answer.scalars.items() if "/" in name}
            columns |= {f"layer-{i}": Column(f"layer-{i}", name) for i, name in enumerate(found)}
            cells = {f"layer-{i}": Cell(value) for i, value in enumerate(found.values())}
            rows.append(Row(f"{title} {first} {second}", f"{first} and {second}", cells))
    return replace(empty, columns=tuple(columns.values()), rows=tuple(rows), stub=table.stub)


def pictures(table: declaration.Table, empty: Table, runs: Runs) -> Table:
    """The table beside example segmentations: Dice of each client's first test image under every method."""
    found = [(title, _examples(config, folder)) for title, config, folder in runs]
    columns = tuple(Column(f"m{i}", title, better="higher", form=Form(3)) for i, (title, _) in enumerate(found))
    rows = []
    for site in found[0][1]:
        cells = {f"m{i}": Cell(examples[site].dice) for i, (_, examples) in enumerate(found) if site in examples}
        rows.append(Row(str(site), str(site), cells))
    return replace(empty, columns=columns, rows=tuple(rows), stub="Client")


class Example(NamedTuple):
    """A client's first test image: (H, W) as the network takes it, and (C, H, W) masks, true and found."""

    image: Tensor
    truth: Tensor
    found: Tensor

    @property
    def dice(self) -> float:
        """Mean over the structures; 1 where neither mask has one."""
        both, total = (self.truth & self.found).sum((1, 2)), self.truth.sum((1, 2)) + self.found.sum((1, 2))
        return float(torch.where(total > 0, 2 * both / total.clamp_min(1), torch.ones(())).mean())


def _examples(config: RunConfig, folder: Path) -> dict[str, Example]:
    parts = build_parts(config, at_site=True)
    parts.network.load_state_dict(read_model(folder / MODEL))
    network = parts.network.to(default_device()).eval()
    found: dict[str, Example] = {}
    for site in parts.task.sites():
        batch = next(iter(parts.trainer.site_data(parts.task.site_data(site)).fixed("test", 2)))
        with torch.no_grad():
            outputs = network(batch.inputs[:1].to(default_device()))[0].cpu()
        found[site] = Example(batch.inputs[0].float().mean(0), batch.targets[0].bool(), outputs > 0)
    return found


def segmentations(table: declaration.Table, runs: Runs) -> list[str]:
    """The picture itself: a row per client, a column per method after the experts' outline."""
    found = [(title, _examples(config, folder)) for title, config, folder in runs]

    def draw(figure: Figure) -> str:
        sites = list(found[0][1])
        figure.set_size_inches(1.6 * (len(found) + 1), 1.6 * len(sites))
        axes = figure.subplots(len(sites), len(found) + 1, squeeze=False)
        for k, (line, site) in enumerate(zip(axes, sites)):
            first = found[0][1][site]
            shown = [("experts", first.truth), *((title, examples[site].found) for title, examples in found)]
            for place, (title, masks) in zip(line, shown):
                place.imshow(first.image, cmap="gray")
                for mask, colour in zip(masks, COLOURS):
                    if mask.any() and not mask.all():
                        place.contour(mask.float(), levels=[0.5], colors=[colour], linewidths=1)
                place.set_xticks([])
                place.set_yticks([])
                if k == 0:
                    place.set_title(short(title, 16), fontsize=8)
            line[0].set_ylabel(short(site, 16), fontsize=8)
        return table.title

    return [svg for svg in [rendered(table.key.replace(".", "-"), draw)] if svg]


OF_MODELS = {"landscape": landscape, "consistency": consistency, "layers": layers, "pictures": pictures}
OF_DATA = {"density": densities, "counts": counts}
"""Way of drawing -> what makes its table."""


COLOURS = (BLUE, RED, GREEN, ORANGE, PURPLE, DARK, GREY)
LINES = ("-", "--", ":", "-.")
Columns = Sequence[Column]


def drawn(panel: declaration.Table, table: Table) -> list[str]:
    draw = {
        **{"curve": _curves, "rounds": _over_columns, "density": _over_columns, "layers": _over_columns},
        **{"consistency": _over_columns, "bars": _bars, "heat": _heat, "landscape": _maps},
    }
    if panel.draw not in draw:
        return []

    def one(group: str, columns: Columns, figure: Figure) -> str | None:
        known = draw[panel.draw](figure, panel, table, columns)
        return ": ".join(part for part in (panel.title, group) if part) if known else None

    found = []
    for index, (group, columns) in enumerate(groupby(table.columns, key=lambda column: column.group)):
        key = f"{table.key}-{index}".replace(".", "-")
        found.append(rendered(key, partial(one, group, list(columns))))
    return [svg for svg in found if svg]


def standalone(svg: str) -> str:
    return svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)


def _curves(figure: Figure, panel: declaration.Table, table: Table, columns: Columns) -> bool:
    """A line per column and group of rows over these, which are points on the x axis; the band is the spread."""
    axes = figure.subplots()
    titles = list(dict.fromkeys(row.title for row in table.rows))
    at = {title: number(_float(title)) for title in titles}
    if None in at.values():
        at = {title: float(i) for i, title in enumerate(titles)}
        axes.set_xticks(range(len(titles)), [short(title, 12) for title in titles])
    known, styles = False, iter(_styles())
    for group, rows in groupby(table.rows, key=lambda row: row.group):
        points = list(rows)
        for column in columns:
            label = short(": ".join(filter(None, (group, column.title))), 34)
            places, cells = [at[row.title] or 0.0 for row in points], [table.cell(row, column) for row in points]
            known |= _line(axes, places, cells, column, next(styles), marker="o", label=label)
    legend(figure, axes, *panel.axes)
    return known


def _over_columns(figure: Figure, panel: declaration.Table, table: Table, columns: Columns) -> bool:
    axes = figure.subplots()
    places = [_float(column.title) for column in columns]
    if any(math.isnan(place) for place in places):
        places = list(map(float, range(len(columns))))
        axes.set_xticks(places, [short(column.title, 16) for column in columns], rotation=90)
    known = False
    for style, row in zip(_styles(), table.rows):
        cells = _smoothed(panel, table, row, columns)
        known |= _line(axes, places, cells, columns[0], style, label=short(row.title, 30))
    legend(figure, axes, *panel.axes)
    return known


def _smoothed(panel: declaration.Table, table: Table, row: Row, columns: Columns) -> list[Cell]:
    """The cells of a row, by a Savitzky-Golay filter of second order where the panel asks for one."""
    cells = [table.cell(row, column) for column in columns]
    values = [cell.value for cell in cells]
    if not panel.smooth or len(cells) < panel.smooth or None in values:
        return cells
    from scipy.signal import savgol_filter

    return [Cell(float(value)) for value in savgol_filter(values, panel.smooth, 2)]


def _heat(figure: Figure, panel: declaration.Table, table: Table, columns: Columns) -> bool:
    """A field of values per round: a row per row, a column per site; columns are titled "round T, site"."""
    by_round = {key: list(found) for key, found in groupby(columns, key=lambda c: c.title.partition(", ")[0])}
    rows = table.rows
    values = {key: [[table.cell(row, c).value for c in found] for row in rows] for key, found in by_round.items()}
    known = [value for grid in values.values() for line in grid for value in line if value is not None]
    if not known:
        return False
    down = (len(by_round) + 2) // 3
    figure.set_figheight(1.2 + 2.2 * down)
    places = figure.subplots(down, min(3, len(by_round)), squeeze=False)
    for axes, (key, grid) in zip(places.flat, values.items()):
        image = axes.imshow(np.array(grid, dtype=float), vmin=min(known), vmax=max(known), cmap="cividis")
        axes.set_title(key, fontsize=10)
        axes.set_xticks(range(len(by_round[key])), [str(i) for i in range(1, len(by_round[key]) + 1)])
        axes.set_yticks(range(len(table.rows)), [short(row.title, 14) for row in table.rows], fontsize=7)
    for axes in list(places.flat)[len(by_round) :]:
        axes.set_axis_off()
    figure.colorbar(image, ax=places.ravel().tolist(), label=panel.axes[1])
    return True


def _bars(figure: Figure, panel: declaration.Table, table: Table, columns: Columns) -> bool:
    axes = figure.subplots()
    width = 0.8 / max(1, len(table.rows))
    known = False
    for i, row in enumerate(table.rows):
        values = [table.cell(row, column).value for column in columns]
        known |= any(value is not None for value in values)
        places = [x + (i - (len(table.rows) - 1) / 2) * width for x in range(len(columns))]
        colour = COLOURS[i % len(COLOURS)]
        axes.bar(places, [value or 0.0 for value in values], width, color=colour, label=short(row.title, 30))
    axes.set_xticks(range(len(columns)), [short(column.title, 14) for column in columns])
    axes.grid(axis="x", visible=False)
    legend(figure, axes, *panel.axes)
    return known


def _maps(figure: Figure, panel: declaration.Table, table: Table, columns: Columns) -> bool:
    """A map of contours per group of rows: the rows are steps along one direction, the columns along the other."""
    groups = [(group, list(rows)) for group, rows in groupby(table.rows, key=lambda row: row.group)]
    grids = [[[table.cell(row, column).value for column in columns] for row in rows] for _, rows in groups]
    found = [value for grid in grids for line in grid for value in line if value is not None]
    if not found:
        return False
    figure.set_figheight(2.2 + 2.4 * ((len(groups) + 1) // 2))
    places = figure.subplots((len(groups) + 1) // 2, min(2, len(groups)), squeeze=False)
    x = [_float(column.title) for column in columns]
    for axes, (group, rows), grid in zip(places.flat, groups, grids):
        y = [_float(row.title) for row in rows]
        ends = {"vmin": min(found), "vmax": max(found)}
        drawn = axes.contourf(x, y, np.array(grid, dtype=float), levels=12, cmap="cividis", **ends)
        axes.set_title(short(group, 26), fontsize=10)
    for axes in list(places.flat)[len(groups) :]:
        axes.set_axis_off()
    figure.colorbar(drawn, ax=places.ravel().tolist(), label=panel.axes[1])
    return True


def _line(
    axes: Axes, places: Sequence[float], cells: Sequence[Cell], column: Column, style: dict[str, Any], **more: Any
) -> bool:
    scale = column.form.scale
    values, spreads = (np.array([getattr(c, key) for c in cells], dtype=float) * scale for key in ("value", "spread"))
    axes.plot(places, values, markersize=4, linewidth=1.6, **style, **more)
    spreads = np.nan_to_num(spreads)
    if spreads.any():
        axes.fill_between(places, values - spreads, values + spreads, color=style["color"], alpha=0.15, linewidth=0)
    return any(cell.value is not None for cell in cells)


def _styles() -> Sequence[dict[str, Any]]:
    return [{"color": colour, "linestyle": line} for line in LINES for colour in COLOURS]


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
