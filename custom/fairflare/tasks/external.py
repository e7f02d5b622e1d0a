# SPDX-License-Identifier: Apache-2.0
"""A hospital's labelled data, all of them for testing a model that was trained elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fairflare.core.errors import DataError, MissingData
from fairflare.core.findings import Finding, merged
from fairflare.core.types import SiteData
from fairflare.data.inputs import SIGN, ImageInputs, Scaling, TableInputs
from fairflare.data.readers.datalist import patients_of, read_datalist
from fairflare.data.readers.files import FileSplit
from fairflare.data.readers.table_features import check_cells, plain
from fairflare.data.readers.tables import read_table
from fairflare.data.site_config import SiteConfig
from fairflare.data.tensors import Grouping, Split, TensorData
from fairflare.privacy.counts import released
from fairflare.tasks.base import Task
from fairflare.tasks.kinds.own import OwnData
from fairflare.tasks.kinds.own_images import image_data
from fairflare.tasks.own.tabular import converted
from fairflare.tasks.preflight import finding_of, without_events

if TYPE_CHECKING:
    import pandas


class Labelled(TensorData):
    """Data of which only the split "test" holds examples.

    Attributes:
        table: of a table its cells by column, and the numbers of its features before they are scaled.
    """

    least = 0
    table: tuple[Mapping[str, list[str]], np.ndarray] | None = None


def labelled(
    task: Task,
    site: str,
    own: SiteConfig | None,
    *,
    scaling: Scaling | None = None,
    label: str = "",
    read: Callable[[Path], pandas.DataFrame] = read_table,
) -> TensorData:
    """Everything at ``site`` that has a label, whatever split its list puts it in.

    Args:
        task: the run's.
        own: where its list or table is; None: where ``task`` looks for it.
        scaling: of a table's numbers; None: the run's for all sites, or where each scales its own, by these rows.
        label: the column with the label in a table; empty: the task's.
        read: what reads a table.

    Raises:
        DataError: the data cannot be read, or a label is no class of the task.
    """
    if not isinstance(task, OwnData) and own is None:
        return task.local_data(site, own)  # data that come with a task say themselves what is for testing
    if isinstance(task, OwnData):
        own = task.located(site, own)
        if task.build_data:
            return _joined(task, task.local_data(site, own))
    assert own is not None  # a task of one's own data says where they are, or raises
    table, images = task.table_inputs(), task.image_inputs()
    if table is not None:
        return _rows(task, table, own, scaling, label, read)
    if images is None:
        raise DataError("data", f"task {task.name}: its inputs are no files, so that nothing labelled can be read")
    return _files(task, images, own)


def of_split(task: Task, site: str, own: SiteConfig | None, split: str) -> TensorData:
    """The data of one split ("val" or "test") as a training run would have them, as the split "test"."""
    found = task.local_data(site, own)
    return _for_testing(task, found.splits[split], found.mean, found.std)


def _for_testing(task: Task, test: Split | FileSplit, *scaling: Sequence[float]) -> Labelled:
    """``test`` beside two splits that hold nothing; ``scaling``: mean and std of images."""
    inputs, targets = next(test.read([torch.zeros(1, dtype=torch.int64)])) if len(test) else (test.labels,) * 2
    rest = Split(inputs[:0], targets[:0], {name: () for name in test.attributes})
    return Labelled.of({"train": rest, "val": rest, "test": test}, task.kind.n_classes(task.classes), *scaling)


def _rows(
    task: Task,
    table: TableInputs,
    own: SiteConfig,
    scaling: Scaling | None,
    label: str,
    read: Callable[[Path], pandas.DataFrame],
) -> Labelled:
    path = Path(own.data_root) / own.datalist
    if not path.is_file():
        raise DataError("no_datalist", f"table {path.name}: expected a file, found none in {path.parent}")
    cells = converted(read(path), path, own, table.gaps, table.lists)
    outcome = (label or task.outcome_columns[0], *task.outcome_columns[1:])
    label = outcome[0]
    for name in (*outcome, *(one for one in table.columns if SIGN not in one)):
        if name not in cells.columns:
            known = ", ".join(map(str, cells.columns))[:200]
            raise DataError("column", f"table {path.name}: expected a column {name!r}; it has: {known}")
    cells = cells[task.kind.known(cells, outcome)]
    if not len(cells):
        raise DataError("empty_split", f"table {path.name}: {label}: expected rows with a label, found none")
    columns = table.joined(own, {name: list(cells[name]) for name in cells.columns})
    numbers, plain = table.features(path.name, columns)
    scaling = scaling or table.fixed or Scaling.of(numbers)
    inputs = torch.cat((scaling(numbers), torch.from_numpy(plain)), dim=1)
    given = table.attributes(columns)
    attributes = {key: list(given.get(key, [""] * len(cells))) for key in task.attributes}
    if task.kind.has_classes:
        targets = _classes(task, path.name, label, columns)
    else:
        targets = task.kind.of_cells(path.name, columns, outcome, task.classes)
    whose, bags = patients_of(columns), table.bags(own, columns, inputs, targets)
    told = targets if task.kind.has_classes else targets[:0]
    tested = FileSplit(range(len(cells)), bags, told, attributes, 0.0, patients=whose) if bags else None
    made = _for_testing(task, tested or Split(inputs, targets, attributes, whose))
    made.scaling, made.table = scaling, (columns, numbers)
    return made


def _classes(task: Task, file: str, label: str, columns: Mapping[str, Sequence[str]]) -> Tensor:
    """int64 (N,) from classes' names, or their numbers where the run knows no names."""
    numbered = bool(getattr(task, "numbered", False))
    names = [str(k) for k in range(len(task.classes))] if numbered else list(task.classes)
    place = {name: k for k, name in enumerate(names)}
    cells = [cell if cell in place else plain(cell) for cell in columns[label]]
    check_cells(
        file, label, [cell in place for cell in cells], f"a class of the run ({', '.join(names)[:60]})", columns
    )
    return torch.tensor([place[cell] for cell in cells], dtype=torch.int64)


def _files(task: Task, images: ImageInputs, own: SiteConfig) -> TensorData:
    root = Path(own.data_root)
    lists = read_datalist(root / own.datalist, root, **task.kind.lists(task.classes), links=own.links)
    items = [item for split in lists.values() for item in split]
    if not items:
        raise DataError("empty_split", f"datalist {Path(own.datalist).name}: expected labelled images, found none")
    mean, std = images.mean, images.std
    return image_data({"test": items}, task, images.reader, own=own, mean=mean, std=std, kind=Labelled)


def _joined(task: Task, data: TensorData) -> TensorData:
    """All splits of data that are in memory as the split "test"."""
    found = [split for split in data.splits.values() if len(split)]
    if not all(isinstance(split, Split) for split in found):
        raise DataError("build_data", "build_data: expected tensors, so that all splits can be put together")
    inputs, targets = (torch.cat([getattr(s, name) for s in found]) for name in ("inputs", "targets"))
    attributes = {name: [value for s in found for value in s.attributes[name]] for name in found[0].attributes}
    return _for_testing(task, Split(inputs, targets, attributes), data.mean, data.std)


def look(
    task: Task, site: str, own: SiteConfig | None, grouping: Grouping, min_count: int | None
) -> tuple[list[Finding], TensorData | None]:
    """What is wrong with a site's labelled data, and the data where nothing is; a training split is not asked for."""
    try:
        data = labelled(task, site, own).grouped(grouping)
    except (DataError, MissingData, ValueError) as error:
        return [finding_of(error)], None
    return preflight(data, task, min_count)


def preflight(data: TensorData, task: Task, min_count: int | None) -> tuple[list[Finding], TensorData | None]:
    """The same of labelled data that were found: files are read once, and cases are counted."""
    found: list[Finding] = []
    split = data.splits["test"]
    if isinstance(split, FileSplit):
        found += merged(Finding("error", e.code, "test", 1, str(e), example=True) for e in split.errors())
    n = len(split)
    if n < max(min_count or 0, 1):
        text = f"{n} labelled cases: expected at least {max(min_count or 0, 1)}, the fewest whose numbers may leave"
        found.append(Finding("error", "few_examples" if n else "empty_split", "test", n, text))
    elif task.kind.has_times and isinstance(split, Split):
        found += without_events("test", split.targets)
    elif task.kind.has_classes and len(torch.unique(split.labels)) == 1:
        text = f"all {n} labelled cases are of one class: how well classes are told apart is not defined"
        found.append(Finding("warning", "one_class", "test", n, text))
    broken = any(one.level == "error" for one in found)
    return found, None if broken else data


def constant_results(task: Task, data: SiteData, min_count: int | None) -> dict[str, dict[str, float]]:
    """Metrics of the best answer that is the same for everybody: the classes' shares among the cases themselves."""
    if not task.kind.has_classes:
        return {}
    targets = torch.cat([batch.targets.cpu() for batch in data.fixed("test", 256)])
    counts = torch.bincount(targets, minlength=len(task.classes))
    if not len(targets) or not all(released(counts.tolist(), min_count)):
        return {}
    logits = counts.double().clamp(min=np.exp(-20.0)).log().expand(len(targets), -1)
    scored = task.evaluate(*task.condense(logits, targets))
    return {"test": {name: value for name, value in scored.items() if np.isfinite(value)}}
