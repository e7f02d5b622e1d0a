# SPDX-License-Identifier: Apache-2.0
"""Panels that need a run's model or its task's data beside its report: each makes the table that is drawn."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from fairflare.core.execution import default_device
from fairflare.core.schema import Instruction
from fairflare.core.seeds import derive
from fairflare.core.types import Round
from fairflare.engine.files import CHECKPOINT, MODEL, read_model
from fairflare.engine.setup import tasks
from fairflare.engine.setup.config import RunConfig
from fairflare.engine.setup.local import LocalSites
from fairflare.engine.setup.parts import build_parts
from fairflare.engine.state import load_checkpoint
from fairflare.functional.perturbation import filter_normalised, loss_grid
from fairflare.papers.declaration import Table
from fairflare.papers.drawing import COLOURS
from fairflare.report.svg import rendered, short
from fairflare.report.table_files import Cell, Column, Form
from fairflare.report.table_files import Row as ShownRow
from fairflare.report.table_files import Table as Shown
from fairflare.tasks.base import TestSet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = (-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0)
EXAMPLES = 256
"""Of each test set, of which the loss is taken."""
BINS = 32
Runs = Sequence[tuple[str, RunConfig, Path]]
"""(Row's title, run, its folder)."""
Places = Sequence[tuple[str, str, str, Mapping[str, str]]]
"""(Key and title of the data set, "name:preset", options)."""


def landscape(table: Table, empty: Shown, runs: Runs) -> Shown:
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
                rows.append(ShownRow(f"{title} {step:g}", f"{step:g}", cells, group=title))
    columns = tuple(Column(f"step-{i}", f"{step:g}") for i, step in enumerate(STEPS))
    return replace(empty, columns=columns, rows=tuple(rows), stub=table.stub)


def densities(table: Table, empty: Shown, places: Places) -> Shown:
    """The table of how bright training images are: a row per site, a column per intensity, on the task's own split.

    ``empty`` has key, title and caption.
    """
    rows: list[ShownRow] = []
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
            rows.append(ShownRow(f"{data}.{site}", f"{site}, {task.sites()[site]}", cells, group=group))
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


def counts(table: Table, empty: Shown, places: Places) -> Shown:
    """The table of how many patients of each class every client has, for training and for testing."""
    rows: list[ShownRow] = []
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
                rows.append(ShownRow(f"{data}.{split}.{k}", f"Client {k}", cells, group=f"{title}, {split}"))
    return replace(empty, columns=tuple(columns.values()), rows=tuple(rows), stub=table.stub)


def consistency(table: Table, empty: Shown, runs: Runs) -> Shown:
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
            rows.append(ShownRow(f"{title} {site}", str(site), cells, group=f"{title}, {layer}"))
    return replace(empty, columns=columns, rows=tuple(rows), stub=table.stub)


def layers(table: Table, empty: Shown, runs: Runs) -> Shown:
    """The table of CKA between the local models of two pairs of clients, layer by layer, on the first one's data.

    Every client of a pair trains a round from the run's final model. The pairs are drawn with the run's seed.
    """
    title, config, folder = runs[0]
    final, last = read_model(folder / MODEL), Round(1, int(config.training["rounds"]))
    rows: list[ShownRow] = []
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
            rows.append(ShownRow(f"{title} {first} {second}", f"{first} and {second}", cells))
    return replace(empty, columns=tuple(columns.values()), rows=tuple(rows), stub=table.stub)


def pictures(table: Table, empty: Shown, runs: Runs) -> Shown:
    """The table beside example segmentations: Dice of each client's first test image under every method."""
    found = [(title, _examples(config, folder)) for title, config, folder in runs]
    columns = tuple(Column(f"m{i}", title, better="higher", form=Form(3)) for i, (title, _) in enumerate(found))
    rows = []
    for site in found[0][1]:
        cells = {f"m{i}": Cell(examples[site].dice) for i, (_, examples) in enumerate(found) if site in examples}
        rows.append(ShownRow(str(site), str(site), cells))
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


def segmentations(table: Table, runs: Runs) -> list[str]:
    """The picture itself: a row per client, a column per method after the experts' outline."""
    found = [(title, _examples(config, folder)) for title, config, folder in runs]

    def draw(figure: Figure) -> str:
        sites = list(found[0][1])
        figure.set_size_inches(1.6 * (len(found) + 1), 1.6 * len(sites))
        axes = figure.subplots(len(sites), len(found) + 1, squeeze=False)
        for number, (line, site) in enumerate(zip(axes, sites)):
            first = found[0][1][site]
            shown = [("experts", first.truth), *((title, examples[site].found) for title, examples in found)]
            for place, (title, masks) in zip(line, shown):
                place.imshow(first.image, cmap="gray")
                for mask, colour in zip(masks, COLOURS):
                    if mask.any() and not mask.all():
                        place.contour(mask.float(), levels=[0.5], colors=[colour], linewidths=1)
                place.set_xticks([])
                place.set_yticks([])
                if number == 0:
                    place.set_title(short(title, 16), fontsize=8)
            line[0].set_ylabel(short(site, 16), fontsize=8)
        return table.title

    return [svg for svg in [rendered(table.key.replace(".", "-"), draw)] if svg]


OF_MODELS = {"landscape": landscape, "consistency": consistency, "layers": layers, "pictures": pictures}
OF_DATA = {"density": densities, "counts": counts}
"""Way of drawing -> what makes its table."""
