# SPDX-License-Identifier: Apache-2.0
"""What every probe is: a measurement at a site, reported as a few named numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Literal

from fairflare.core.types import Cost, LocalWork, Need, Number, Offer, Outline, TensorSpec


class Probe(ABC):
    """A measurement: a frozen dataclass of parameters; leaves the network's weights and buffers as it found them.

    Args:
        probe_batch: examples per forward pass; changes memory and rounding only.
    """

    probe_batch: int
    cost: ClassVar[Cost]
    reports: ClassVar[tuple[Number, ...]] = ()
    """The numbers that ``measure`` may return whatever the model, with their ranges."""
    sends: ClassVar[tuple[TensorSpec, ...]] = ()
    """What ``measure`` may put into ``work.send_tensors`` in a round's first exchange."""
    receives: ClassVar[tuple[TensorSpec, ...]] = ()
    """What the rule may send in ``work.tensors`` beside the model."""

    def __post_init__(self) -> None:
        if getattr(self, "probe_batch", 1) < 1:
            raise ValueError(f"probe_batch must be at least 1, got {self.probe_batch}")

    @property
    def when(self) -> Literal["received", "trained", "anchored"]:
        """Which model it measures.

        "received" w^t before training, the site's own "trained" one after it, or the trained one again in the second
        exchange, once the rule's anchor has arrived ("anchored").
        """
        return "received"

    def scalars(self, outline: Outline) -> tuple[Number, ...]:
        """Every number that ``measure`` may return in this run; any other never leaves a site nor reaches a rule."""
        return self.reports

    @abstractmethod
    def measure(self, work: LocalWork) -> dict[str, float]:
        """Numbers named in ``scalars``, measured on ``work.network``; one that is undefined is left out."""

    def remember(self, work: LocalWork) -> None:  # noqa: B027  (most probes keep nothing)
        """Called after training: put what the next round needs into ``work.memory``."""

    @property
    def needs(self) -> tuple[Need, ...]:
        """What it needs of every site's data beyond an example to train on; nothing by default."""
        return ()

    def missing(self, offer: Offer) -> str:
        """What the task lacks for this probe, in words that end a sentence; empty when nothing is missing."""
        return ""


@contextmanager
def showing(work: LocalWork) -> Iterator[None]:
    """Within: the network holds the model of this exchange; after it the site's trained one again."""
    trained = {key: value.detach().clone() for key, value in work.network.state_dict().items()}
    work.network.load_state_dict(work.received)
    try:
        yield
    finally:
        work.network.load_state_dict(trained)
