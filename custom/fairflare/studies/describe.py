# SPDX-License-Identifier: Apache-2.0
"""What there is, as plain rows: the command line, the docs table and the tests read these.

What asks the networks or the tasks is imported where it is used: ``fairflare list`` needs neither, nor PyTorch.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairflare.core import lab, registry, validation
from fairflare.core.errors import UserError
from fairflare.core.registry import Method
from fairflare.core.schema import answer_fields
from fairflare.core.settings import Owners, bare
from fairflare.core.types import Cost, Outline, Training, numbers_of, tensors_of
from fairflare.core.validation import unlisted
from fairflare.engine.setup.method_defaults import default_parts, defaults_of
from fairflare.engine.setup.method_parts import STEPS, step_class

if TYPE_CHECKING:
    from fairflare.tasks.base import Task

FEDAVG = Cost(forward=1, backward=1)
CARDS = {"fairflare": "docs/methods", "fairflare_lab": "lab/cards"}
"""Package -> where the repository has a card of each of its methods, named after the method's id."""


def method_rows() -> list[dict[str, Any]]:
    """One row per method, sorted by id."""
    return [_method_row(entry) for entry in registry.methods().values()]


def listed_rows() -> list[dict[str, Any]]:
    """The same without what follows from a network or a task: exchanges, what is sent and received, and needs."""
    return [_listed_row(entry) for entry in registry.methods().values()]


def package(entry: Method) -> str:
    """The top-level package, or the plugin's module, that declares a method."""
    return entry.home.partition(".")[0]


def card(entry: Method) -> str:
    """Where the repository has the method's card; "" of a plugin from elsewhere."""
    folder = CARDS.get(package(entry))
    return f"{folder}/{entry.id}.md" if folder else ""


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


def leaving(method: str, *, secure: bool, after: bool, solo: bool, further: Sequence[str] = ()) -> list[dict[str, str]]:
    """What leaves a site: name, meaning and exchanges of its answers' fields and of the numbers that parts declare, in
    a run with ``secure`` sums, a step ``after`` the last round, the benefit of joining (``solo``), or ``further``
    tasks of exchanges."""
    asked = {"preflight", "train", "compare", "evaluate"} | ({"sum", "weigh", "reveal"} if secure else set())
    asked |= ({"calibrate", "adjust"} if after else set()) | ({"solo", "benefit"} if solo else set()) | {*further}
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
        found = {_family(one.name): (f"{one.low:g} to {one.high:g}", one.meaning) for one in numbers}
        for spec in tensors_of(piece):
            found[f"{spec.name}/<entry>"] = (f"{-spec.bound:g} to {spec.bound:g}, a tensor", spec.meaning)
        for name, (span, words) in found.items():
            row = {"method": entry.id, "number": name, "exchange": exchange, "range": span}
            rows.append({**row, "meaning": words.replace("group <group>", "a group")})
    return rows


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
        "card": card(entry),
        "package": package(entry),
        "cost": round(relative_cost(entry), 2),
        "parameters": _defaults(entry),
    }


def _method_row(entry: Method) -> dict[str, Any]:
    from fairflare.engine.setup.method_needs import effort, needs_of, received_by

    listed = _listed_row(entry)
    parameters = listed.pop("parameters")
    sends = [{key: row[key] for key in row if key != "method"} for row in _leaving(entry, _outline())]
    more = {"sends": sends, "receives": received_by(entry), "needs": needs_of(entry)}
    return {**listed, **effort(entry), **more, "parameters": parameters}


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


Row = dict[str, Any]
ONE_OF_KIND = {"rule": "rule", "trainer": "trainer", "selector": "select", "server optimizer": "server"}
"""Kind of part -> the owner of its settings' names; a probe's are "probe.ID"."""


def about(name: str) -> dict[str, Any]:
    """What ``fairflare describe NAME`` shows: name, title, lines, settings and how one is given.

    Raises UserError: nothing has the name; the message says what was meant.
    """
    if name in registry.methods():
        return _method(registry.get_method(name))
    from fairflare.engine.setup import tasks

    task, colon, preset = name.partition(":")
    if task in tasks.every():
        return _task(task, preset if colon else None)
    rows = [row for row in all_settings() if row["owner"] == name]
    title = OWNERS.get(name.partition(".")[0], "") if rows else "every setting of this name"
    rows = rows or key_settings(name)
    return {"name": name, "title": title, "about": [], "settings": rows, "use": f"set it: --set {rows[0]['full']}=..."}


OWNERS: Mapping[str, str] = {
    "rule": "how the server weighs and combines updates",
    "trainer": "how a site trains",
    "probe": "what a site measures and reports",
    "select": "who takes part in a round",
    "server": "how the server steps along the combined update",
    "train": "local training, equal for all methods of a comparison",
    "task": "the data and the network",
    "after": "the step after the last round",
    "run": "the run",
}


def _method(entry: Method) -> dict[str, Any]:
    made = f"trainer {entry.trainer}, probes {', '.join(registry.probes_of(entry)) or 'none'}, rule {entry.rule}"
    lines = [entry.summary, str(entry.paper), made, f"card: {card(entry)}"]
    use = "local training: fairflare describe train; the run: fairflare describe run"
    return {"name": entry.id, "title": entry.title, "about": lines, "settings": method_settings(entry), "use": use}


def _task(name: str, preset: str | None) -> dict[str, Any]:
    """The options of a task and how its sites train, with the values of one preset, the first by default."""
    from fairflare.engine.setup import tasks

    cls = tasks.known(name)
    chosen = next(iter(cls.presets)) if preset is None else preset
    built = tasks.load(name, chosen)
    training = cls.presets[chosen].training
    rows = [{**row, "default": getattr(built, row["name"])} for row in _rows("task", cls)]
    rows += [{**row, "default": getattr(training, row["name"])} for row in _rows("train", Training)]
    lines = [f"real: {cls.real}", f"simulated: {cls.simulated}", f"presets: {', '.join(cls.presets)}"]
    lines += [f"primary endpoint: {cls.primary}"] if cls.primary else []
    use = f"set one: fairflare run METHOD --task {name}:{chosen} --set {rows[0]['full']}=..."
    return {"name": f"{name}:{chosen}", "title": cls.title, "about": lines, "settings": rows, "use": use}


def _defaults(entry: Method) -> dict[str, Any]:
    """Shortest name -> default of the settings of a method's parts."""
    owners = Owners(registry.owners(entry), entry.shared)
    own = defaults_of(entry, owners)
    of = {short: full[0] for short, full in owners.names().items()}
    return {s: own[f].value if f in own else registry.parameters(owners.full[f])[bare(f)] for s, f in of.items()}


def method_settings(entry: Method) -> list[Row]:
    """The settings of a method's parts, each with its shortest name and the method's own default."""
    classes = registry.owners(entry)
    owners = Owners(classes, entry.shared)
    rows = {row["full"]: row for owner, cls in classes.items() for row in _rows(owner, cls)}
    own = {full: {"default": given.value} for full, given in defaults_of(entry, owners).items()}
    named = owners.names().items()
    return [{**rows[of[0]], "name": short, "sets": list(of), **own.get(of[0], {})} for short, of in named]


def key_settings(key: str) -> list[Row]:
    """Every setting whose name, bare or full, is ``key``.

    Raises UserError: there is none; the message says what was meant.
    """
    from fairflare.engine.setup import tasks

    rows = all_settings()
    if found := [row for row in rows if key in (row["full"], row["name"])]:
        return found
    owners = sorted({row["owner"] for row in rows})
    keys = sorted({row[kind] for row in rows for kind in ("name", "full")})
    places = f"methods: `fairflare list`, tasks: `fairflare tasks`, owners: {', '.join(owners)}"  # names are hundreds
    subjects = [*registry.methods(), *tasks.every(), *owners, *keys]
    absent = lab.absent("method", key) or lab.absent("task", key)
    raise UserError(absent or unlisted("method, task, owner or key", key, subjects, places))


def all_settings() -> list[Row]:
    """Every setting of every part, task and run: owner, of which part or task, default, range, meaning."""
    from fairflare.engine.setup import tasks
    from fairflare.engine.setup.run_config import RUN_KEYS, RunConfig

    run = (row for row in _rows("run", RunConfig) if row["name"] in (*RUN_KEYS, "after"))
    rows = [*_rows("train", Training), *run]
    for kind in registry.BASES:
        for id, cls in registry.parts(kind).items():
            rows += _rows(ONE_OF_KIND.get(kind, f"probe.{id}"), cls, f"{kind} {id}")
    for name in STEPS:
        rows += _rows("after", step, f"step {name}") if (step := step_class(name)) else []
    for name, task in tasks.every().items():
        rows += _rows("task", task, f"task {name}")
    return rows


def _rows(owner: str, cls: type, of: str = "") -> list[Row]:
    """One row per setting of ``cls``, in the order of its fields."""
    hints, defaults = validation.hints(cls), registry.parameters(cls)
    rows = []
    for name, hint in ((name, hint) for name, hint in hints.items() if validation.supported(hint)):
        row = {"full": f"{owner}.{name}", "name": name, "owner": owner, "of": of, "default": defaults[name]}
        rows.append({**row, "allowed": allowed(hint), "meaning": meaning(cls, name)})
    return rows


def meaning(cls: type, name: str) -> str:
    """What the docstring of ``cls``, or of the base that declares the field, says of it in one line; "" for nothing."""
    for base in cls.__mro__:
        text = inspect.cleandoc(base.__doc__ or "")
        if found := re.search(rf"^ +{re.escape(name)}: +(.*(?:\n {{8,}}.*)*)", text, re.MULTILINE):
            return " ".join(found.group(1).replace("``", "`").split())
    return ""


def allowed(hint: Any) -> str:
    """A declared type in words: "number, 0 to 1", "one of sgd, adam", "true or false", "whole number or none"."""
    return _in_words(validation.adapter(hint, repr(hint)).json_schema())


def _in_words(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(map(_in_words, schema["anyOf"]))
    if known := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return f"one of {', '.join(map(str, known))}"
    marks = [f"{schema['minimum']:g} to {schema['maximum']:g}"] if "minimum" in schema else []
    marks += [schema["description"]] if schema.get("description") else []
    if schema.get("maxItems", validation.MOST_ENTRIES) < validation.MOST_ENTRIES:
        marks.append(f"at most {schema['maxItems']} entries")
    return ", ".join([TYPES.get(schema.get("type", ""), "text"), *marks])


TYPES = {
    "boolean": "true or false",
    "integer": "whole number",
    "number": "number",
    "object": "names and values",
    "null": "none",
    "array": "values, divided by commas",
}
"""Type of JSON schema, but for text -> its words."""
