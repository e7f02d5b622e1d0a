# SPDX-License-Identifier: Apache-2.0
"""A task whose sites test one fold of all their patients and train on the others.

All examples of a patient lie in one fold. Folds are dealt within each site, at random and without regard to the
outcome: folds stratified by the outcome copy the training share, so that the error of a site's own intercept is never
charged (evidence in docs/join.md). A deal in which a training part would have fewer than two patients of a class is
dealt again. What a task prepares with training patients of its own splits (a table's medians and spreads) stays as it
is; no outcome is in that.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from fairflare.core.errors import DataError, UserError
from fairflare.core.findings import SPLIT_NAMES
from fairflare.core.seeds import derive
from fairflare.data.tensors import Grouping, Split, TensorData
from fairflare.tasks.base import Task

if TYPE_CHECKING:
    from fairflare.data.site_config import SiteConfig

FEWEST, LEAST_OF_CLASS, MOST_DEALS = 2, 2, 1000
ALL, NOBODY = "all", (-1, FEWEST, 0)
"""All patients train, and none is tested: a fold that there is not."""
WITHOUT = f"{ALL} without "
"""Before the name of a site that takes no part."""
LEAST_PATIENTS, LEAST_OF_EACH = 30, 5
"""Patients of a site, and of each of two classes or more, below which it trains with all of them and tests none."""
TOO_FEW = f"too few patients to tell, expected at least {LEAST_PATIENTS}"
Rows = npt.NDArray[np.int64]


def folded(task: Task, fold: str) -> Task:
    """The task with the data of a fold "F/K/D", "all" or "all without SITE", see ``RunConfig``; "": the task itself.

    Raises:
        UserError: no fold F of K >= 2.
    """
    if not fold:
        return task
    number, folds, deal = NOBODY if fold.startswith(ALL) else (int(part) for part in fold.split("/"))
    if not number < folds >= FEWEST:
        raise UserError(f"fold: expected F/K/D with K of at least {FEWEST} and F from 0 to K - 1, got {fold}")
    known = {field.name: getattr(task, field.name) for field in dataclasses.fields(task)}
    made: Task = type(
        type(task).__name__,
        (_Folded, type(task)),
        {"_fold": (number, folds, deal), "_absent": fold.partition(WITHOUT)[2]},
    )(**known)
    return made


def dealt(labels: Rows, folds: int, deal: int, site: str, patients: Rows | None = None) -> Rows:
    """(N,) fold of each example of ``site``, by the ``deal``-th way to deal its patients into ``folds``.

    Args:
        labels: (N,) classes, which serve to deal again where a training part has fewer than two patients of a class.
        patients: as of ``Split``.

    Raises:
        DataError: the site has too few patients for that.
    """
    rng = np.random.default_rng(derive(deal, "folds", site, folds))
    owner = numbered(labels, patients)
    present = np.unique(labels)
    for _ in range(MOST_DEALS):
        found = (rng.permutation(owner.max() + 1) % folds)[owner]
        beside = [[owner[(found != fold) & (labels == k)] for k in present] for fold in range(folds)]
        if all(len(np.unique(one)) >= LEAST_OF_CLASS for part in beside for one in part):
            return np.asarray(found, dtype=np.int64)
    raise DataError("folds", f"site {site}: expected at least {LEAST_OF_CLASS} patients of a class beside each fold")


def dealt_alike(identities: npt.NDArray[np.uint64], folds: int, deal: int) -> Rows:
    """(N,) fold of each example, the same for a patient of these ``identities`` at every hospital."""
    names, owner = np.unique(identities, return_inverse=True)
    return np.array([derive(deal, "patient", str(one)) % folds for one in names], dtype=np.int64)[owner]


def numbered(labels: Rows, patients: Rows | None) -> Rows:
    """(N,) number of each example's patient, from 0 on without a gap."""
    return np.arange(len(labels)) if patients is None else np.unique(patients, return_inverse=True)[1]


def untestable(labels: Rows, patients: Rows | None = None) -> str:
    """Why a site of these patients is not tested; "" where it is. Arguments as of ``dealt``."""
    owner = numbered(labels, patients)
    counts = np.array([len(np.unique(owner[labels == k])) for k in np.unique(labels)])
    if len(np.unique(owner)) < LEAST_PATIENTS:
        return TOO_FEW
    if len(counts) < 2 or counts.min() < LEAST_OF_EACH:
        return f"too few patients to tell, expected at least {LEAST_OF_EACH} of each class"
    return ""


def everyone(data: TensorData) -> Split:
    """All patients of a site: those of its training, validation and test splits, one after the other."""
    parts: list[Split] = []
    for name in SPLIT_NAMES:
        part = data.splits[name]
        if not isinstance(part, Split):
            raise UserError("fold: expected a task whose examples are in memory, got files")
        parts += [part] if len(part) else []
    names = {name for part in parts for name in part.attributes}
    attributes = {k: [v for part in parts for v in part.attributes.get(k, [""] * len(part))] for k in sorted(names)}
    whose, identities = (_joined([getattr(p, name) for p in parts]) for name in ("patients", "identities"))
    inputs, targets = (torch.cat([getattr(p, name) for p in parts]) for name in ("inputs", "targets"))
    return Split(inputs, targets, attributes, whose, identities)


def _joined(parts: list[Any]) -> Any:
    return np.concatenate(parts) if parts and all(part is not None for part in parts) else None


def outcomes(whole: Split) -> Rows:
    """(N,) by which folds are dealt: classes; of times, events; of masks, of which any fold does, 0 and 1 in turn."""
    if whole.targets.dim() == 2:
        return whole.targets[:, 1].numpy().astype(np.int64)
    return np.arange(len(whole)) % 2 if whole.targets.dim() > 2 else whole.labels.numpy()


class _Folded:
    """What a task does otherwise when it is dealt anew."""

    _fold = (0, FEWEST, 0)
    _absent = ""

    def _present(self, sites: Mapping[str, str]) -> dict[str, str]:
        return {name: words for name, words in sites.items() if name != self._absent}

    def sites(self) -> dict[str, str]:
        return self._present(super().sites())  # type: ignore[misc]  # of the task beside it

    def domains(self) -> dict[str, str]:
        return self._present(super().domains())  # type: ignore[misc]  # the same

    def site_data(self, site: str) -> TensorData:
        return self._redealt(super().site_data(site), site)  # type: ignore[misc]  # of the task beside it

    def local_data(self, site: str, own: SiteConfig | None) -> TensorData:
        return self._redealt(super().local_data(site, own), site)  # type: ignore[misc]  # the same

    def _redealt(self, data: Any, site: str) -> TensorData:
        if getattr(data, "fold", None) == self._fold:  # one of the two methods above may call the other
            return data
        number, folds, deal = self._fold
        whole = everyone(data)
        labels = outcomes(whole)
        nobody = number < 0 or untestable(labels, whole.patients)
        place = np.full(len(labels), folds) if nobody else dealt(labels, folds, deal, site, whole.patients)
        found = copy.copy(data)
        found.splits = {"train": part(whole, place != number), "val": part(whole, place < -1)}
        found.splits["test"] = part(whole, place == number)
        found.class_counts = torch.bincount(found.splits["train"].labels, minlength=len(data.class_counts))
        found.fold, found.filled = self._fold, None  # other rows train
        return found.on(data.device).grouped(Grouping())


def part(whole: Split, chosen: npt.NDArray[np.bool_]) -> Split:
    rows = np.flatnonzero(chosen)
    attributes = {name: [values[i] for i in rows.tolist()] for name, values in whole.attributes.items()}
    whose = None if whole.patients is None else whole.patients[rows]
    names = None if whole.identities is None else whole.identities[rows]
    return Split(whole.inputs[rows], whole.targets[rows], attributes, whose, names)
