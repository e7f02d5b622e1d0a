# SPDX-License-Identifier: Apache-2.0
"""What there is, as plain rows: the command line, the docs table and the tests read these."""

from __future__ import annotations

import dataclasses
from typing import Any

from fairflare import registry
from fairflare.assembly import chosen_probes
from fairflare.clinic import networks, tasks
from fairflare.contracts import Cost, Outline
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


def leaving_rows() -> list[dict[str, str]]:
    """What a site sends in each method beside the weight difference, n_k, metrics and seconds: one row per number.

    Of numbers per layer or per group one stands for all: "similarity/<layer>".
    """
    network = networks.build("small-unet", 1, 1)
    outline = Outline(dict(network.state_dict()), ("<group>",))
    rows = []
    for entry in registry.methods().values():
        rule, probes = entry.rule(**_own(entry, entry.rule)), [_probe(entry, id) for id in entry.probes]
        for probe in chosen_probes(rule, probes, outline):
            exchange = "second" if probe.when == "anchored" else "first"
            found = {_family(s.name): s for s in probe.scalars(outline)}
            rows += [
                {
                    "method": entry.id,
                    "number": name,
                    "exchange": exchange,
                    "range": f"{scalar.low:g} to {scalar.high:g}",
                    "meaning": scalar.meaning.replace("group <group>", "a group"),
                }
                for name, scalar in found.items()
            ]
    return rows


def leaving_table() -> str:
    """``leaving_rows`` as Markdown."""
    lines = ["| method | number | exchange | range | meaning |", "|---|---|---|---|---|"]
    for row in leaving_rows():
        lines.append(
            f"| `{row['method']}` | `{row['number']}` | {row['exchange']} | {row['range']} | {row['meaning']} |"
        )
    return "\n".join(lines)


def _own(entry: Method, cls: type) -> dict[str, Any]:
    return {key: value for key, value in entry.settings.items() if key in registry.parameters(cls)}


def _probe(entry: Method, id: str) -> Any:
    cls = registry.get_probe(id)
    return cls(**_own(entry, cls))


def _family(name: str) -> str:
    family, slash, rest = name.partition("/")
    return f"{family}/{rest if rest.startswith('<') else '<layer>'}" if slash else name


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
