# SPDX-License-Identifier: Apache-2.0
"""The mean features of each class under the model that a site has trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch

from fairflare.core.registry import probe
from fairflare.core.types import MOST_EXAMPLES, Batch, Cost, LocalWork, Offer, Outline, TensorSpec
from fairflare.core.validation import Few
from fairflare.privacy.counts import released
from fairflare.probes.base import Probe
from fairflare_lab.functional.terms import class_means

MEANS = TensorSpec(
    "prototypes", lambda o: {str(c): (o.features,) for c in range(o.classes)}, "mean features of the site's classes"
)
COUNTS = TensorSpec(
    "prototype_counts",
    lambda o: {str(c): () for c in range(o.classes)},
    "training examples of these classes",
    bound=float(MOST_EXAMPLES),
    compared=False,
)


@probe("prototypes")
@dataclass(frozen=True)
class Prototypes(Probe):
    """Sends mean and number of the features in front of the last layer, for every class whose count may leave the site.

    Over the whole training split in evaluation mode and with evaluation transforms.
    """

    cost: ClassVar[Cost] = Cost(forward=1)
    sends: ClassVar[tuple[TensorSpec, ...]] = (MEANS, COUNTS)
    when = "trained"
    probe_batch: Few = 64

    def scalars(self, outline: Outline) -> tuple[()]:
        return ()

    def missing(self, offer: Offer) -> str:
        return "" if offer.has_classes else "class prototypes need one class label per example"

    def measure(self, work: LocalWork) -> dict[str, float]:
        counts = work.data.class_counts.tolist()
        free = released(counts, work.min_count)
        means = class_means(work.network, self._batches(work), counts, work.device)
        if known := {str(c): mean for c, mean in means.items() if free[c]}:
            work.send_tensors[MEANS.name] = known
            work.send_tensors[COUNTS.name] = {c: torch.tensor(float(counts[int(c)])) for c in known}
        return {}

    def _batches(self, work: LocalWork) -> Iterator[Batch]:
        for batch in work.data.fixed("train", self.probe_batch):
            work.stop_if_aborted()
            yield batch
