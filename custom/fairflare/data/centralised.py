# SPDX-License-Identifier: Apache-2.0
"""The training examples of several sites as those of one, for the reference that a federation is held against."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from fairflare.core.errors import UserError
from fairflare.data.readers.files import FileSplit
from fairflare.data.tensors import Grouping, Split, TensorData


def pooled(own: TensorData, others: Sequence[TensorData]) -> TensorData:
    """``own`` with the training examples of ``others`` after its own; validation and test stay its own.

    Every example is as its own site prepares it, e.g. scaled by that site's patients: as all other methods see it.

    Args:
        own: of the site that trains; stays as it is. Its groups have to be told apart anew, see ``grouped``.
        others: of the other sites, in their order.

    Raises:
        UserError: the sites normalise or augment their images differently.
    """
    every = [own, *others]
    if any((data.mean, data.std, data.augment) != (own.mean, own.std, own.augment) for data in every):
        raise UserError("pooled: expected sites that prepare their images alike, and these do not")
    joined = copy.copy(own)
    joined.splits = {**own.splits, "train": _joined([data.splits["train"] for data in every])}
    joined.class_counts = torch.stack([data.class_counts for data in every]).sum(0)
    return joined.on(own.device).grouped(Grouping())


def _joined(splits: Sequence[Split | FileSplit]) -> Split | FileSplit:
    """All examples in their order; from files where any of them is."""
    names = {name for split in splits for name in split.attributes}
    attributes = {
        name: [v for split in splits for v in split.attributes.get(name, [""] * len(split))] for name in sorted(names)
    }
    held = [split for split in splits if isinstance(split, Split)]
    if len(held) == len(splits):
        return Split(torch.cat([s.inputs for s in held]), torch.cat([s.targets for s in held]), attributes)
    places = [(split, row) for split in splits for row in range(len(split))]
    workers = max(split.num_workers for split in splits if isinstance(split, FileSplit))
    labels = torch.cat([split.labels for split in splits])
    return FileSplit(places, _example, labels, attributes, cache_rate=0.0, num_workers=workers)


def _example(place: tuple[Split | FileSplit, int]) -> tuple[Tensor, Tensor]:
    split, row = place
    return split.example(row) if isinstance(split, FileSplit) else (split.inputs[row], split.targets[row])
