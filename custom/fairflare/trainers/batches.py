# SPDX-License-Identifier: Apache-2.0
"""The batches of one round at a site: whole epochs, or a number of steps that go on where the last round stopped."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

from fairflare.core.seeds import derive
from fairflare.core.types import Batch, LocalWork

PLACE = "place in the data"
"""Key of a site's memory: the seed of its order, the epoch it is in, and the batches of it that are done."""


def local_batches(work: LocalWork) -> Iterator[Batch]:
    """The round's batches in order, not yet on the device.

    Where ``training.steps`` gives a number they are so many steps of one endless sequence of epochs per site, whose
    order follows from the seed of the site's first round; where it stands is kept in ``work.memory``.
    """
    training = work.training
    bounded = training.fewest_steps is not None or training.most_steps is not None
    steps = training.steps(work.data.size("train")) if bounded else training.local_steps
    if steps is None:
        for epoch in range(training.epochs):
            yield from work.data.training(training.batch_size, derive(work.seed, "epoch", epoch))
        return
    start = work.memory.get(PLACE, {"seed": work.seed, "epoch": 0, "done": 0})
    for place, batch in islice(_endless(work, **start), steps):
        work.memory[PLACE] = place
        yield batch


def _endless(work: LocalWork, seed: int, epoch: int, done: int) -> Iterator[tuple[dict[str, int], Batch]]:
    """Epoch after epoch from the batch after ``done`` ones of ``epoch``; each batch with the place behind it."""
    for number in count(epoch):
        batches = work.data.training(work.training.batch_size, derive(seed, "epoch", number))
        for taken, batch in enumerate(batches, start=1):
            if number > epoch or taken > done:
                yield {"seed": seed, "epoch": number, "done": taken}, batch
