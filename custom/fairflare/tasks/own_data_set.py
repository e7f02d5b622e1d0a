# SPDX-License-Identifier: Apache-2.0
"""A user's own function ``build_data(site_cfg)``, where datalists and tables do not fit.

It gets the site's configuration (``SiteConfig``; its ``site`` is the site's name) and returns three data sets:
training, validation and test. A data set has a length and gives, for a number, a pair (input, label) or a mapping with
the keys "image" (or "input"), "label" and, where the task has them, attributes such as "sex". An input is an array or
tensor of floats (C, H, W) or (features,) and goes into the network as it is; a label is a class number or a mask
(structures, H, W) of 0 and 1. The training set may transform at random: torch, NumPy and ``random`` are seeded before
each round.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairflare.core.errors import DataError, FairFlareError
from fairflare.core.user_code import load_object
from fairflare.data.readers.files import FileSplit
from fairflare.data.site_config import SiteConfig
from fairflare.data.tensors import TensorData
from fairflare.tasks.base import Task

KEYS = ("image", "input")


def built_data(task: Task, function: str, own: SiteConfig) -> TensorData:
    """The data that ``function`` ("module.name") builds for the site of ``own``.

    Every example of a task with class labels is read once for its class.

    Raises:
        UserError: the function cannot or must not be imported.
        DataError: "build_data": it failed or returned something else; "label": a class that the task lacks.
    """
    build = load_object(function, "build_data", inspect.isfunction, "a function")
    try:
        found = build(own)
        sets = dict(zip(("train", "val", "test"), found, strict=True))
        lengths = {split: len(data) for split, data in sets.items()}
    except FairFlareError:
        raise
    except Exception as error:  # user's code runs here
        text = f"{function}: expected (training, validation, test), each with a length; {type(error).__name__}: {error}"
        raise DataError("build_data", text) from error
    splits = {split: _split(task, function, split, data, lengths[split]) for split, data in sets.items()}
    return TensorData.of(splits, n_classes=task.kind.n_classes(task.classes))


def _split(task: Task, function: str, split: str, data: Any, n: int) -> FileSplit:
    def read(row: int) -> tuple[Tensor, Tensor]:
        return _example(task, f"{function}: {split}[{row}]", data[row])[:2]

    labels: list[int] = []
    columns: dict[str, list[str]] = {name: [] for name in task.attributes}
    for row in range(n) if task.kind.has_classes or columns else ():
        _, target, attributes = _example(task, f"{function}: {split}[{row}]", data[row])
        if task.kind.has_classes:
            labels.append(int(target))
        for name, values in columns.items():
            values.append(str(attributes.get(name, "")))
    # Its transforms may be random, so nothing is kept and one thread reads.
    return FileSplit(range(n), read, torch.tensor(labels, dtype=torch.int64), columns, cache_rate=0.0)


def _example(task: Task, where: str, found: Any) -> tuple[Tensor, Tensor, Mapping[str, Any]]:
    attributes: Mapping[str, Any] = {}
    try:
        if isinstance(found, Mapping):
            attributes = found
            found = next(found[key] for key in KEYS if key in found), found["label"]
        image, label = found
        inputs = torch.as_tensor(np.asarray(image), dtype=torch.float32)
        target = torch.as_tensor(np.asarray(label))
    except Exception as error:  # whatever the user's data set gives
        text = f'{where}: expected (input, label) or {{"image": ..., "label": ...}}; {type(error).__name__}: {error}'
        raise DataError("build_data", text) from error
    if not torch.isfinite(inputs).all():
        raise DataError("nonfinite", f"{where}: expected finite numbers in the input")
    if task.kind.has_masks:
        if target.dim() != 3 or len(target) != len(task.classes):
            expected = f"a mask ({len(task.classes)}, H, W)"
            raise DataError("shape", f"{where}: label: expected {expected}, got shape {tuple(target.shape)}")
        return inputs, target.to(torch.uint8), attributes
    if target.dim() or target.is_floating_point() or not 0 <= int(target) < len(task.classes):
        whole = f"a whole number from 0 to {len(task.classes) - 1}"
        raise DataError("label", f"{where}: label: expected {whole}, got {label!r}")
    return inputs, target.to(torch.int64), attributes
