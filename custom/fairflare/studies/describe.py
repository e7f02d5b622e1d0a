# SPDX-License-Identifier: Apache-2.0
"""What there is, as plain rows: the command line, the docs table and the tests read these.

What asks the networks or the tasks is imported where it is used: ``fairflare list`` needs neither, nor PyTorch.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any

from fairflare.core import registry
from fairflare.core.registry import Method
from fairflare.core.schema import answer_fields
from fairflare.core.settings import Owners
from fairflare.core.types import Cost, Number, Outline, TensorSpec, numbers_of, tensors_of
from fairflare.engine.setup.method_parts import default_parts, defaults_of

if TYPE_CHECKING:
    from fairflare.tasks.base import Task

FEDAVG = Cost(forward=1, backward=1)
CARDS = "docs/methods"
"""Where every method has its card, named after its id."""


def method_rows() -> list[dict[str, Any]]:
    """One row per method, sorted by id."""
    return [_method_row(entry) for entry in registry.methods().values()]


def listed_rows() -> list[dict[str, Any]]:
    """The same without what follows from a network or a task: exchanges, what is sent and received, and needs."""
    return [_listed_row(entry) for entry in registry.methods().values()]


def relative_cost(entry: Method) -> float:
    """A site's compute per round at one local epoch, relative to FedAvg; a backward pass counts as two forward ones."""
    _, *parts = registry.parts_of(entry)
    return sum(part.cost.in_forwards for part in parts) / FEDAVG.in_forwards


def task_rows() -> list[dict[str, Any]]:
    """One row per task, each with its presets."""
    from fairflare.engine.setup import tasks

    return [_task_row(name, cls) for name, cls in sorted(tasks.every().items())]


def leaving_rows() -> list[dict[str, str]]:
    """What a site sends in each method beside the fields of every answer: one row per number and per kind of tensors.

    Of numbers per layer or per group one stands for all: "similarity/<layer>".
    """
    outline = _outline()
    return [row for entry in registry.methods().values() for row in _leaving(entry, outline)]


def leaving(method: str, *, secure: bool, after: bool, solo: bool) -> list[dict[str, str]]:
    """What leaves a site in a run: fields of its answers, and the numbers that the method's parts declare.

    Args:
        method: its id; none is known of another.
        secure: whether the run has secure sums.
        after: whether a step follows the last round.
        solo: whether the run tells the benefit of joining.

    Returns:
        Rows with name, meaning and exchanges.
    """
    asked = {"preflight", "train", "compare", "evaluate"} | ({"sum", "weigh", "reveal"} if secure else set())
    asked |= ({"calibrate", "adjust"} if after else set()) | ({"solo", "benefit"} if solo else set())
    found = []
    for name, spec in answer_fields().items():
        exchanges = [task for task in sorted(asked) if spec.travels(task, secure=secure)]
        if exchanges and spec.carried not in ("transport", "params_type"):
            found.append({"name": name, "meaning": spec.meaning, "exchanges": ", ".join(exchanges)})
    when = "hidden by secure sums" if secure else "train"
    for row in (row for row in leaving_rows() if row["method"] == method):
        found.append({"name": row["number"], "meaning": f"{row['meaning']} ({row['range']})", "exchanges": when})
    return found


def _outline() -> Outline:
    """Of a small network, with one group that stands for all."""
    from fairflare.networks import builtin as networks

    return Outline(dict(networks.build("small-unet", 1, 1).state_dict()), ("<group>",), 1)


def _leaving(entry: Method, outline: Outline) -> list[dict[str, str]]:
    from fairflare.engine.setup.site_parts import chosen_probes

    made, rows = default_parts(entry), []
    for piece in (made.trainer, *chosen_probes(made.rule, made.probes, outline, made.trainer)):
        exchange = "second" if getattr(piece, "when", "") == "anchored" else "first"
        numbers = piece.scalars(outline) if hasattr(piece, "scalars") else numbers_of(piece)
        found: dict[str, Number | TensorSpec] = {_family(number.name): number for number in numbers}
        found |= {f"{spec.name}/<entry>": spec for spec in tensors_of(piece)}
        rows += [_leaving_row(entry.id, name, exchange, spec) for name, spec in found.items()]
    return rows


def _leaving_row(method: str, name: str, exchange: str, spec: Number | TensorSpec) -> dict[str, str]:
    tensor = isinstance(spec, TensorSpec)
    low, high = (-spec.bound, spec.bound) if isinstance(spec, TensorSpec) else (spec.low, spec.high)
    found = {"method": method, "number": name, "exchange": exchange}
    found["range"] = f"{low:g} to {high:g}" + ", a tensor" * tensor
    return {**found, "meaning": spec.meaning.replace("group <group>", "a group")}


def _family(name: str) -> str:
    family, slash, rest = name.partition("/")
    return f"{family}/{rest if rest.startswith('<') else '<layer>'}" if slash else name


def _listed_row(entry: Method) -> dict[str, Any]:
    return {
        **{key: getattr(entry, key) for key in ("id", "title", "summary")},
        "paper": str(entry.paper),
        "url": entry.paper.url,
        "trainer": entry.trainer,
        "probes": list(registry.probes_of(entry)),
        **{key: getattr(entry, key) for key in ("rule", "selector", "server_optimizer")},
        "card": f"{CARDS}/{entry.id}.md",
        "cost": round(relative_cost(entry), 2),
        "parameters": _parameters(entry),
    }


def _method_row(entry: Method) -> dict[str, Any]:
    from fairflare.engine.setup.requirements import effort, needs_of, received_by

    listed = _listed_row(entry)
    parameters = listed.pop("parameters")
    sends = [{key: row[key] for key in row if key != "method"} for row in _leaving(entry, _outline())]
    more = {"sends": sends, "receives": received_by(entry), "needs": needs_of(entry)}
    return {**listed, **effort(entry), **more, "parameters": parameters}


def _parameters(entry: Method) -> dict[str, Any]:
    """Shortest name that works -> default, of every setting of the method's parts."""
    classes = registry.owners(entry)
    owners = Owners(classes, entry.shared)
    own = {owner: registry.parameters(cls) for owner, cls in classes.items()}
    defaults = {f"{owner}.{key}": value for owner, found in own.items() for key, value in found.items()}
    defaults |= {full: given.value for full, given in defaults_of(entry, owners).items()}
    return {name: defaults[targets[0]] for name, targets in owners.names().items()}


def part_rows() -> list[dict[str, Any]]:
    """One row per part: kind, id, summary, and own name -> default of its settings."""
    rows = []
    for kind in registry.BASES:
        for id, cls in registry.parts(kind).items():
            summary = (inspect.getdoc(cls) or "").partition("\n\n")[0].replace("\n", " ")
            rows.append({"kind": kind, "id": id, "summary": summary, "parameters": registry.parameters(cls)})
    return rows


def _task_row(name: str, cls: type[Task]) -> dict[str, Any]:
    from fairflare.engine.setup import tasks

    built = tasks.load(name)
    return {
        "name": name,
        **{key: getattr(cls, key) for key in ("title", "real", "simulated")},
        "classes": list(built.classes),
        "headline": built.headline,
        "primary": cls.primary,
        "metrics": list(built.metrics),
        "attributes": list(built.attributes),
        "presets": [_preset_row(name, preset, cls) for preset in cls.presets],
    }


def _preset_row(name: str, preset: str, cls: type[Task]) -> dict[str, Any]:
    from fairflare.engine.setup import tasks

    built = tasks.load(name, preset)
    return {
        "preset": preset,
        "summary": cls.presets[preset].summary,
        "sites": built.sites(),
        "options": dataclasses.asdict(built),
        "training": dataclasses.asdict(cls.presets[preset].training),
        "settings": dict(cls.presets[preset].settings),
        "by_method": {method: dict(own) for method, own in cls.presets[preset].by_method.items()},
    }
