# SPDX-License-Identifier: Apache-2.0
"""What a site's training data look like, in a few numbers that may leave it: the ground that defaults stand on.

The idea is nnU-Net's (Isensee et al., Nature Methods 2021, doi 10.1038/s41592-020-01008-z): what a network is to be
trained like follows from a "fingerprint" of the data. Here each site has its own, and the sites agree on one plan
(``planning``). No single image's number is in it: medians and means over all images looked at, from ``min_count`` on.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from fairflare.core import validation
from fairflare.core.errors import DataError, UserError
from fairflare.core.types import MOST_EXAMPLES
from fairflare.core.validation import Entries, Range
from fairflare.data.readers.datalist import MOST_CONTRASTS, Item
from fairflare.data.readers.looks import Looked, looked_at, volume_looked_at
from fairflare.data.readers.stored import HIGH, LOW
from fairflare.data.site_config import SiteConfig
from fairflare.data.table_fingerprint import SILENT, TableFingerprint, agreed, table_fingerprint
from fairflare.data.tensors import Split
from fairflare.tasks.kinds.own import OwnData
from fairflare.tasks.kinds.own_images import OwnFiles
from fairflare.tasks.own.tabular import GAPS, Tabular

LEAST_TRAIN, LEAST_VAL = 200, 50
"""Rows below which nothing is fitted: a difference between two models would be chance."""
MOST_ROWS = 5_000
"""Training rows, evenly spaced; fitting takes a second or two."""
HIDDEN, PENALTY = 64, 1.0
GAIN_DIGITS = 3


def network_gain(train: Split, val: Split) -> float | None:
    """Log loss of logistic regression on ``val`` less that of a network with one hidden layer, of three digits.

    Rows are (N, F) of finite numbers, scaled, of ``train`` at most ``MOST_ROWS``. None with fewer than ``LEAST_TRAIN``
    and ``LEAST_VAL``, or classes in ``val`` that ``train`` lacks.
    """
    if len(train) < LEAST_TRAIN or len(val) < LEAST_VAL:
        return None
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss
    from sklearn.neural_network import MLPClassifier

    chosen = np.linspace(0, len(train) - 1, min(len(train), MOST_ROWS)).round().astype(int)
    x, y = (part.numpy()[chosen] for part in (train.inputs, train.labels))
    vx, vy = val.inputs.numpy(), val.labels.numpy()
    known = np.unique(y)
    finite = np.isfinite(x).all() and np.isfinite(vx).all()
    if len(known) < 2 or not finite or not np.isin(vy, known).all():
        return None
    # The penalty of ``planning``: the same for both models, in each one's own terms.
    strength = x.shape[1] / 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a solver that stops early is good enough to compare
        models = (
            LogisticRegression(C=1 / strength, max_iter=200),
            MLPClassifier((HIDDEN,), alpha=PENALTY, early_stopping=True, max_iter=100, random_state=0),
        )
        losses = [float(log_loss(vy, model.fit(x, y).predict_proba(vx), labels=known)) for model in models]
    gain = losses[0] - losses[1]
    return round(gain, GAIN_DIGITS) if math.isfinite(gain) else None


LOOKED_AT = 64
"""Training images that are read, evenly spaced over the list: medians over more move little, and reading takes time."""
DIGITS = 3
"""Of what is not counted."""
LARGEST = 1e6
"""Size of a number that is not counted."""
LEAST = -1024.0
"""Hounsfield units below which nothing is measured: scanners fill the corners of their images up with such numbers."""
AXES, MOST_VOXELS = 3, 100_000
"""Of a volume, and voxels along one."""
PERCENTILES = 100
"""Of values that are measured."""


LATER = {"values", "table", "classes", "network_gain", "outcome", "voxels", "edges"}
"""Keys that a fingerprint may lack."""


@dataclass(frozen=True)
class Fingerprint:
    """One site's training data. Whatever is None is not known, or is of fewer than ``min_count`` images.

    Attributes:
        n_train: training examples.
        height: median over images, in pixels, rounded to whole ones.
        width: the same.
        spacing: median edge of a pixel in mm, where files say it.
        coloured: whether more than half of the images have colours that differ, or contrasts.
        mean: of each channel or contrast on [0, 1], over images; one channel unless coloured.
        std: of the pixels of all images, as mean.
        values: evenly spaced percentiles, from the lowest to the highest that ``stored`` names, of the pixels of all
            images together, where these are measured from a zero that means the same everywhere (Hounsfield units).
            None of other images, and where the task names a window.
        table: what of a table's columns may leave.
        classes: that a label tells apart; 1 where examples have masks.
        outcome: mean and spread of the training outcomes, where they are amounts.
        network_gain: by how much a small network's log loss on validation rows is below logistic regression's; below
            0 it is above.
        voxels: of volumes, median along each axis, rounded to whole ones.
        edges: of their voxels in mm, median along each axis.
    """

    n_train: Annotated[int, Range(1, MOST_EXAMPLES)]
    height: Annotated[int, Range(1, 1_000_000)] | None = None
    width: Annotated[int, Range(1, 1_000_000)] | None = None
    spacing: Annotated[float, Range(0, 1e6)] | None = None
    coloured: bool = False
    mean: Annotated[list[float], Entries(MOST_CONTRASTS)] | None = None
    std: Annotated[list[float], Entries(MOST_CONTRASTS)] | None = None
    values: Annotated[list[float], Entries(PERCENTILES)] | None = None
    table: TableFingerprint | None = None
    classes: Annotated[int, Range(1, 1000)] = 2
    network_gain: Annotated[float, Range(-1e3, 1e3)] | None = None
    outcome: Annotated[list[float], Entries(2)] | None = None
    voxels: Annotated[list[int], Entries(AXES)] | None = None
    edges: Annotated[list[float], Entries(AXES)] | None = None

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            found = getattr(self, name)
            if found is not None and not all(0 <= value <= 1 for value in found):
                raise ValueError(f"{name}: expected numbers in [0, 1], got {found}")
        if (self.mean is None) != (self.std is None) or len(self.mean or ()) != len(self.std or ()):
            raise ValueError("std: expected as many numbers as mean has")
        if (outcome := self.outcome) is not None and not (
            len(outcome) == 2 and all(map(math.isfinite, outcome)) and abs(outcome[0]) < SILENT > outcome[1] > 0
        ):
            raise ValueError(f"outcome: expected a finite mean and a spread above 0, got {outcome}")
        volume = [(self.voxels, 1, MOST_VOXELS), (self.edges, 0, LARGEST)]
        for found, low, high in volume if self.voxels is not None or self.edges is not None else ():
            if len(found or ()) != AXES or not all(low <= one <= high for one in found or ()):
                raise ValueError(f"voxels and edges: expected three numbers of {low} to {high:g} each, got {found}")
        if (values := self.values) is not None and not (
            len(values) == PERCENTILES
            and -LARGEST <= values[0] < values[-1] <= LARGEST
            and values == sorted(values)
            and self.mean is not None
        ):
            raise ValueError(f"values: expected {PERCENTILES} rising percentiles beside a mean")

    def to_json(self) -> dict[str, Any]:
        """What leaves the site."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return found | {"table": self.table.to_json() if self.table else None}

    @classmethod
    def from_json(cls, content: Any, site: str) -> Fingerprint:
        """Read ``to_json`` back from whoever sends it; UserError for a key or value that it cannot have."""
        known = {field.name for field in fields(cls)}
        if not isinstance(content, Mapping) or set(content) | LATER != known:
            raise UserError(f"fingerprint of {site}: expected the keys {', '.join(sorted(known))}")
        validation.check_plain(f"fingerprint of {site}", content)
        where, table = f"fingerprint of {site}", content.get("table")
        found = None if table is None else TableFingerprint.from_json(table, site)
        try:
            plain = {k: validation.exact(cls, k, content[k], f"{where}: {k}") for k in content if k != "table"}
            return cls(**plain, table=found)
        except ValueError as error:
            raise UserError(f"fingerprint of {site}: {error}") from None


def fingerprint(task: OwnData, site: str, own: SiteConfig | None, min_count: int | None) -> Fingerprint | None:
    """The fingerprint of the training data of ``site``; None where they cannot be used, which preflight then says.

    Args:
        task: whose options say where the data are and what its labels are; its size and channels do not matter.
        min_count: the fewest images that a median or mean may be of; None: none leaves, but the number of examples,
            which every site declares.
    """
    try:
        if isinstance(task, Tabular):
            here = task.located(site, own)
            n, table = of_rows(task, here, min_count)
            fits = task.kind.has_classes and table is not None and not here.secure_sum
            gain = _gain(task, site, here, table, min_count or 0) if table is not None and fits else None
            found = Fingerprint(n, table=table, classes=task.kind.n_classes(task.classes) or 1, network_gain=gain)
            return replace(found, outcome=_outcome(task, task.targets(here), here, min_count)) if n else None
        here = task.located(site, own)
        splits = task.local_data(site, own).splits
    except (DataError, UserError, ValueError):
        return None
    train = splits["train"]
    classes = task.kind.n_classes(task.classes) or 1
    items = [item for item in getattr(train, "items", ()) if isinstance(item, Item)]
    spaced = np.linspace(0, len(items) - 1, min(len(items), LOOKED_AT)).round().astype(int)
    looks = []
    if isinstance(task, OwnFiles):
        look = volume_looked_at if task.volumes else looked_at
        for row in sorted(set(spaced.tolist())):
            with contextlib.suppress(DataError):
                looks.append(look(items[row].image, task.window))
    if min_count is None or len(looks) < min_count:
        return Fingerprint(len(train), classes=classes)
    labels = torch.tensor([item.label for item in items if isinstance(item.label, float)])
    return replace(_of_images(len(train), looks), classes=classes, outcome=_outcome(task, labels, here, min_count))


def of_rows(task: Tabular, own: SiteConfig, min_count: int | None) -> tuple[int, TableFingerprint | None]:
    """How many training rows a table has, and what of them may leave; raises DataError as ``Tabular.read``."""
    table, columns, rows, _ = task.table(own)
    train = rows["train"]
    if min_count is None:
        return len(train), None
    texts = {name: [columns[name][i] for i in train] for name in task.needed() if name in columns}
    cells = texts | {name: found[train] for name, found in columns.items() if isinstance(found, np.ndarray)}
    names, known = task.feature_names(), task.read_columns()
    more: dict[str, Any] = {"sums_only": own.secure_sum, "said": own.dates}
    return len(train), table_fingerprint(table.name, cells, names, known, GAPS, min_count, **more)


def _outcome(task: OwnData, targets: Tensor, own: SiteConfig, min_count: int | None) -> list[float] | None:
    """Mean and spread of the training outcomes, where their kind has them and they may leave."""
    if min_count is None or own.secure_sum or len(targets) < max(min_count, 1):
        return None
    return task.kind.summary(targets)


def _gain(task: Tabular, site: str, own: SiteConfig, table: TableFingerprint, least: int) -> float | None:
    alone: dict[str, Any] = {name.removeprefix("task."): value for name, value, _ in agreed({site: table})}
    try:
        splits = replace(task, **alone).read(own).splits
    except DataError:  # dates that the site's file has to say how to read
        return None
    train, val = splits["train"], splits["val"]
    if not isinstance(train, Split) or not isinstance(val, Split) or min(len(train), len(val)) < least:
        return None
    return network_gain(train, val)


def _of_images(n_train: int, looks: Sequence[Looked]) -> Fingerprint:
    looks = [one for one in looks if len(one.mean) == len(looks[0].mean)]  # preflight names other contrasts
    coloured = sum(one.coloured for one in looks) * 2 > len(looks)
    means = np.array([one.mean if coloured else [np.mean(one.mean)] * 3 for one in looks])
    squares = np.array([one.square if coloured else [one.grey_square] * 3 for one in looks])
    channels = len(looks[0].mean) if coloured else 1
    mean = means.mean(0)[:channels]
    std = np.sqrt(np.maximum(squares.mean(0)[:channels] - mean**2, 0))
    spacings = [one.spacing for one in looks if one.spacing is not None]
    return Fingerprint(
        n_train=n_train,
        height=round(float(np.median([one.height for one in looks]))),
        width=round(float(np.median([one.width for one in looks]))),
        spacing=_rounded(float(np.median(spacings))) if len(spacings) == len(looks) else None,
        coloured=coloured,
        mean=[_rounded(value) for value in mean],
        std=[_rounded(value) for value in std],
        values=None if coloured else _percentiles(looks),
        voxels=_medians([one.voxels for one in looks], lambda value: round(float(value))),
        edges=_medians([one.edges for one in looks], lambda value: _rounded(float(value))),
    )


def _medians(found: Sequence[tuple[float, ...]], rounded: Callable[[float], Any]) -> list[Any] | None:
    return [rounded(value) for value in np.median(np.array(found), axis=0)] if all(found) else None


def _percentiles(looks: Sequence[Looked]) -> list[float] | None:
    """Of as many values of each image; None unless more than half of the images are measured, and differ."""
    if sum(one.measured for one in looks) * 2 <= len(looks):
        return None
    values = np.maximum(np.concatenate([one.quantiles for one in looks]), LEAST)
    found = np.percentile(values, np.linspace(LOW, HIGH, PERCENTILES)).clip(-LARGEST, LARGEST).round(DIGITS).tolist()
    return found if found[0] < found[-1] else None


def _rounded(value: float) -> float:
    return round(min(max(value, 0.0), LARGEST), DIGITS) if math.isfinite(value) else 0.0


def file_name(site: str) -> str:
    return f"{Path(site).name}.fingerprint.json"
