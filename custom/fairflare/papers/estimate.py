# SPDX-License-Identifier: Apache-2.0
"""How long a table takes: what finished runs took where there are any, otherwise passes through a network times a base.

The base is the time of FedAvg's round of each embedded task, measured once on one core of a reference machine; another
machine's is that times how much longer it takes for the same matrix products.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Json = Mapping[str, Any]
BASE: dict[str, tuple[float, float]] = {
    "brain-seg:small": (3.0, 10.0),
    "covid-brazil:dirichlet": (0.03, 1.0),
    "covid-brazil:regions": (0.03, 1.0),
    "ctg:small": (0.1, 1.0),
    "digits:small": (2.5, 5.0),
    "fundus-phantom:small": (3.4, 11.0),
    "heart:flamby": (0.1, 1.0),
    "ich-phantom:small": (3.0, 8.0),
    "support2:default": (0.1, 1.0),
    "support2:dirichlet": (0.05, 1.0),
}
"""Task -> seconds of a FedAvg round, and seconds of a whole run beside its rounds (data, evaluation, report)."""
REFERENCE = 0.08
"""CPU seconds that the reference machine took for ``_products`` beside the same other work."""
SIDE, TIMES = 384, 8


@dataclass(frozen=True)
class Speed:
    """What is known of this machine.

    Attributes:
        factor: how many times longer than the reference machine it takes.
        known: task -> METHOD label -> [seconds per round, seconds beside the rounds] of runs that it has finished.
    """

    factor: float = 1.0
    known: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict)

    def seconds(self, task: str, label: str, rounds: int, cost: float) -> float | None:
        """A run's; None where nothing is known of the task.

        Args:
            rounds: T.
            cost: of its round relative to FedAvg's.
        """
        known = self.known.get(task, {})
        if label in known:
            return known[label][0] * rounds + known[label][1]
        if "fedavg" in known:
            return known["fedavg"][0] * cost * rounds + known["fedavg"][1]
        if task not in BASE:
            return None
        per_round, beside = BASE[task]
        return self.factor * (per_round * cost * rounds + beside)


def machine_factor() -> float:
    """How many times longer this machine takes than the reference, the best of three tries; 0.1 s."""
    return max(min(_products() for _ in range(3)) / REFERENCE, 0.05)


def relative_cost(label: str, rows: Mapping[str, Json]) -> float:
    """A round's compute relative to FedAvg's."""
    name, _, settings = label.partition(":")
    row = rows.get(name, {})
    cost = float(row.get("cost", 1.0))
    pairs = dict(pair.split("=", 1) for pair in settings.split(",") if "=" in pair)
    trainer = pairs.get("trainer", row.get("trainer"))
    if trainer == row.get("trainer"):
        return cost
    with_trainer = [float(other["cost"]) for other in rows.values() if other.get("trainer") == trainer]
    return cost + min(with_trainer, default=1.0) - 1.0


def took(report: Json) -> tuple[float, float] | None:
    """(seconds per round, seconds beside the rounds) of a finished run that was not interrupted."""
    timing, rounds = report["detail"]["timing"], report["rounds"]
    in_rounds = sum((timing["phases"] or {}).values())
    if not rounds or not in_rounds or report["detail"]["provenance"]["resumed_after"]:
        return None
    return in_rounds / rounds, max(0.0, (timing["wall_seconds"] or 0.0) - in_rounds)


def in_words(seconds: float | None) -> str:
    """ "about 40 s", "about 12 min", "about 3.5 h", or that it is not known."""
    if seconds is None:
        return "time not measured"
    if seconds < 90:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


def _products() -> float:
    import numpy as np

    a = np.full((SIDE, SIDE), 0.5, dtype=np.float32)
    begun = time.thread_time()
    for _ in range(TIMES):
        a @ a
    return time.thread_time() - begun
