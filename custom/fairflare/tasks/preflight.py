# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a site's data, found before a run: every finding names split and cause, none stops the search.

The text of a finding is for the people at the site and may name files. What may leave the site is its level, code and
split, and the band that its count lies in.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fairflare.core.errors import DataError, MissingData
from fairflare.core.findings import SPLIT_NAMES, Finding, accept, worst_first
from fairflare.core.types import Need
from fairflare.data.readers.cases import NO_LABEL, SIGN
from fairflare.data.site_config import SiteConfig
from fairflare.data.tensors import Grouping, Split, TensorData
from fairflare.tasks.base import Task
from fairflare.tasks.kinds.own import OwnData

OF_FILES = "fairflare.tasks.preflight_files"
"""What looks at lists of files and at these: by a name that no reader of imports follows, as tables need none of it."""
FULL = 0.8
"""Share of the images above which, on average, a structure's masks may be inverted: anatomy leaves more around it."""
COPIES, HALF = 0.05, 0.5
"""Shares of a split's rows from which on copies, and unknown values of a category, are said."""
FAR, FAR_IN_LOGS, LEAST_IN_LOGS = 100.0, 10.0, 2.0
"""Robust standard deviations from which on a number, or its logarithm, lies far outside; logarithms
above it by less (a factor of 7) never do."""
ROUNDING = 1e-6
FEWEST = (
    Need("train", 2, "nothing can be trained on fewer", both_classes=True),
    Need("test", 1, "the report shows the results on it"),
)
"""What every method needs; one class alone to train on is more often a mistake than meant."""
ONE_ANSWER = "a model learns to give everyone this answer (--accept one_class if that is meant)"
FEW = {"train": 8, "val": 4, "test": 4}
"""Examples of a split below which a site is warned, and welcome all the same."""


def preflight(
    task: Task,
    site: str,
    own: SiteConfig | None,
    grouping: Grouping,
    min_count: int | None,
    needs: Sequence[Need] = (),
    accepted: Collection[str] = (),
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[list[Finding], TensorData | None]:
    """Every finding on the data of ``site``, errors first, and the data where there is no error.

    Args:
        grouping: the groups that a run would tell apart.
        min_count: the fewest examples of a group whose numbers may leave; None: none leave.
        needs: what the method needs of the data.
        accepted: codes of errors that stop nothing, where they are no danger.
        tell: called now and then with how many of the site's files have been read, and how many there are.
    """
    found: list[Finding] = []
    data = None
    try:
        if isinstance(task, OwnData):
            found += accept(_of_own(task, task.located(site, own)), accepted)
        if not _broken(found):
            data = task.local_data(site, own).grouped(grouping)
            if files := {name: split for name, split in data.splits.items() if not isinstance(split, Split)}:
                found += importlib.import_module(OF_FILES).of_files(files, tell)
            classes = task.classes if task.kind.has_classes else ()
            if not _broken(found) and isinstance(task, OwnData):
                found += accept(_of_sizes(data, classes, (*FEWEST, *needs)), accepted)
                found += _of_targets(data, task)
                found += _of_rows(data, task)
                found += _of_numbers(data, task)
                found += _of_groups(data, grouping, min_count)
                if task.kind.has_times:
                    tables = {name: one for name, one in data.splits.items() if isinstance(one, Split)}
                    events = [one for name, table in tables.items() for one in without_events(name, table.targets)]
                    found += accept(events, accepted)
            elif not _broken(found) and task.small_sites:
                unmet = [one for one in accept(_of_sizes(data, classes, needs), accepted) if one.level != "warning"]
                found += [replace(one, text=f"{one.text}; `fairflare tasks` lists other presets") for one in unmet]
    except (DataError, MissingData, ValueError) as error:
        found.append(finding_of(error))
    return worst_first(found), None if _broken(found) else data


def finding_of(error: Exception) -> Finding:
    """What an error on a site's data is, as a finding that stops the run."""
    code = error.code if isinstance(error, DataError) else "missing_file" if isinstance(error, MissingData) else "data"
    return Finding("error", code, "", 1, str(error))


def _of_own(task: OwnData, own: SiteConfig) -> list[Finding]:
    """Of a site's list before its data are read: cases without a label, and of a list of files every entry."""
    name, n = Path(own.datalist).name, task.unlabelled(own)
    text = f"table {name}: {n} rows have no label and are left out"
    found = [Finding("warning", NO_LABEL, "", n, text)] if n else []
    return found + (list(importlib.import_module(OF_FILES).of_list(task, own)) if ".json" in task.suffixes else [])


def _of_sizes(data: TensorData, classes: Sequence[str], needs: Sequence[Need]) -> Iterator[Finding]:
    """Sizes and classes of the splits: errors where someone needs more, else warnings."""
    for split in SPLIT_NAMES:
        n, asked = data.size(split), [need for need in needs if need.split == split]
        unmet = max((need for need in asked if n < need.least), key=lambda need: need.least, default=None)
        code = "few_examples" if n else "empty_split"
        if unmet is not None:
            text = f"{n} examples, at least {unmet.least} are needed: {unmet.reason}"
            yield Finding("error", code, split, n, text)
        elif n < FEW[split]:
            yield Finding("warning", code, split, n, f"{n} examples: they say little")
        if n and classes and len(torch.unique(data.splits[split].labels)) < 2:
            reasons = [ONE_ANSWER if need in FEWEST else need.reason for need in asked if need.both_classes]
            text = f"all {n} examples are of one class" + (f": {reasons[-1]}" if reasons else "")
            yield Finding("error" if reasons else "warning", "one_class", split, n, text)


def _of_targets(data: TensorData, task: Task) -> Iterator[Finding]:
    """What the task's kind says of the splits' targets."""
    for split, one in data.splits.items():
        labels = [getattr(item, "label", None) for item in (() if isinstance(one, Split) else one.items)]
        labels = [label for label in labels if isinstance(label, (float, tuple))]
        targets = one.targets if isinstance(one, Split) else torch.tensor(labels)
        for code, text in task.kind.remarks(targets, task.classes) if len(targets) else ():
            yield Finding("warning", code, split, len(targets), text)


def _of_rows(data: TensorData, task: Task) -> Iterator[Finding]:
    """Of a table: rows that stand in an earlier split, too, and categories of other values than the federation's."""
    inputs, known = task.table_inputs(), set[bytes]()
    for name, one in data.splits.items() if inputs else ():
        if not isinstance(one, Split):  # bags, which are read as files are
            continue
        pairs = zip(one.inputs.numpy(), one.targets.numpy(), strict=True)
        rows = [row.tobytes() + target.tobytes() for row, target in pairs]
        if (both := sum(row in known for row in rows)) > COPIES * len(rows) and len({*rows}) > FULL * len(rows):
            are = "1 row is a copy of one" if both == 1 else f"{both} rows are copies of some"
            yield Finding("warning", "copies", name, both, f"{are} in an earlier split")
        known.update(rows)
        features = (*inputs.numbers, *inputs.plain) if inputs and name == "train" else ()
        for k, part in enumerate(features):
            own = [place for place, other in enumerate(features) if other.column == part.column and other.values]
            strange = one.inputs[:, k] * (one.inputs[:, own].sum(1) == 1)  # of a list of codes none is known
            if part.other and (n := int(strange.sum())) > HALF * len(rows):
                said = f"{part.column}: {n} rows have none of {', '.join(map(str, part.values[:8]))}"
                yield Finding("warning", "levels", name, n, f"{said}: are the codes the same?")


def numbers_of(data: TensorData, task: Task) -> dict[str, np.ndarray]:
    """Number of a table -> float64 (n,) its training rows' values in its own unit, if it has any; no encoder's."""
    inputs, train = task.table_inputs(), data.splits["train"]
    if inputs is None or data.scaling is None or not isinstance(train, Split) or not len(train):
        return {}
    names, mean, std = [one.words for one in inputs.numbers], data.scaling.mean.numpy(), data.scaling.std.numpy()
    std = np.where(std > 0, std, 1.0)
    values = train.inputs[:, : len(names)].numpy().astype(np.float64) * std + mean
    values[np.abs(values) < ROUNDING * std] = 0.0  # inputs are float32
    there = np.ones(values.shape, dtype=bool) if data.filled is None else data.filled
    own = zip(names, values.T, there.T, strict=True)
    return {name: column[filled] for name, column, filled in own if SIGN not in name and filled.any()}


def spread_of(values: np.ndarray) -> float:
    """The robust standard deviation (Iglewicz and Hoaglin 1993), by nine tenths of ``values`` where most are equal."""
    away = np.abs(values - np.median(values))
    return float(1.4826 * np.median(away)) or float(np.quantile(away, 0.9)) / 1.645


def far_outside(values: np.ndarray) -> np.ndarray:
    """bool (N,): which lie further from the median than ``FAR`` robust standard deviations.

    Numbers of which none is below 0 are skewed, as laboratories' are: of these logarithms count, by ``FAR_IN_LOGS``
    above the median.
    """
    middle, positive = np.median(values), values > 0
    if values.min() < 0 or middle <= 0:
        spread = spread_of(values)
        return np.asarray(np.abs(values - middle) > FAR * spread) if spread else np.zeros(len(values), dtype=bool)
    logs = np.log(np.where(positive, values, middle) / middle)
    spread = spread_of(logs[positive])
    return np.asarray(logs > max(FAR_IN_LOGS * spread, LEAST_IN_LOGS)) if spread else np.zeros(len(values), dtype=bool)


def _of_numbers(data: TensorData, task: Task) -> Iterator[Finding]:
    for name, values in numbers_of(data, task).items():
        if n := int((far := far_outside(values)).sum()):
            text = f"{name}: {n} numbers lie far outside, such as {values[far][0]:.6g} where half are about "
            yield Finding("warning", "far", "train", n, f"{text}{np.median(values):.4g}: are they right?")


def without_events(split: str, targets: Tensor) -> Iterator[Finding]:
    """What to say of times and events (N, 2) without an event: nothing can be trained or compared."""
    if n := len(targets) * int(not targets[:, 1].any()):
        text = f"expected an event among the {n} examples, got none: all are censored"
        yield Finding("error" if split == "train" else "warning", "one_class", split, n, text)


def _of_groups(data: TensorData, grouping: Grouping, least: int | None) -> Iterator[Finding]:
    """Groups of which nothing will leave."""
    if least is None and grouping.names:
        text = f"min_count is not set: no number of the {len(grouping.names)} groups leaves"
        yield Finding("warning", "no_min_count", "train", len(grouping.names), text)
    small = [(name, n) for name, n in zip(grouping.names, data.group_counts.tolist()) if least and 0 < n < least]
    for name, n in small:
        text = f"group {name}: {n} training examples, fewer than min_count {least}: its numbers stay here"
        yield Finding("warning", "small_group", "train", 1, text)  # one group; its size does not leave


def _broken(found: Sequence[Finding]) -> bool:
    return any(f.level == "error" for f in found)
