# SPDX-License-Identifier: Apache-2.0
"""What there is, as plain rows: the command line, the docs table and the tests read these."""

from __future__ import annotations

import dataclasses
from typing import Any

from fairflare import registry
from fairflare.clinic import tasks
from fairflare.contracts import Cost
from fairflare.registry import Method

FEDAVG = Cost(forward=1, backward=1)


def method_rows() -> list[dict[str, Any]]:
    """One row per method, sorted by id."""
    return [_method_row(entry) for entry in registry.methods().values()]


def relative_cost(entry: Method) -> float:
    """A site's compute per round at one local epoch, relative to FedAvg; a backward pass counts as two forward ones."""
    parts = [registry.get_trainer(entry.trainer), *map(registry.get_probe, entry.probes)]
    return sum(part.cost.in_forwards for part in parts) / FEDAVG.in_forwards


def task_rows() -> list[dict[str, Any]]:
    """One row per task, each with its presets."""
    return [_task_row(name, cls) for name, cls in sorted(tasks.TASKS.items())]


def _method_row(entry: Method) -> dict[str, Any]:
    parts = [entry.rule, registry.get_trainer(entry.trainer), *map(registry.get_probe, entry.probes)]
    defaults = {key: value for part in parts for key, value in registry.parameters(part).items()}
    return {
        "id": entry.id,
        "title": entry.title,
        "summary": entry.summary,
        "paper": str(entry.paper),
        "url": entry.paper.url,
        "trainer": entry.trainer,
        "probes": list(entry.probes),
        "rule": entry.rule.__name__,
        "cost": round(relative_cost(entry), 2),
        "parameters": defaults | dict(entry.settings),
    }


def _task_row(name: str, cls: type) -> dict[str, Any]:
    built = tasks.load(name)
    return {
        "name": name,
        "title": cls.title,
        "real": cls.real,
        "simulated": cls.simulated,
        "classes": list(built.classes),
        "headline": cls.headline,
        "metrics": list(built.metrics),
        "attributes": list(built.attributes),
        "presets": [_preset_row(name, preset, cls) for preset in cls.presets],
    }


def _preset_row(name: str, preset: str, cls: type) -> dict[str, Any]:
    built = tasks.load(name, preset)
    return {
        "preset": preset,
        "summary": cls.presets[preset].summary,
        "sites": built.sites(),
        "options": dataclasses.asdict(built),
        "training": dataclasses.asdict(cls.presets[preset].training),
        "settings": dict(cls.presets[preset].settings),
    }
