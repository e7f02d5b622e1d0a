# SPDX-License-Identifier: Apache-2.0
"""A hospital's mix: its own model and the federation's candidates, by fixed weights, in one folder.

``mix.json`` says what is mixed, ``mix.safetensors`` holds all numbers: networks, the own model (coefficients, or the
nodes of its trees), weights and intercepts. Nothing in the folder is executed when it is read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from fairflare.core.errors import DataError, UserError
from fairflare.core.validation import exact, expected, shown
from fairflare.data.inputs import Scaling
from fairflare.engine.exchanges.clinical import event_of
from fairflare.engine.files import is_there, read_json, read_model, save_json, save_tensors
from fairflare.engine.hashes import model_hash
from fairflare.engine.setup.config import RunConfig
from fairflare.engine.setup.parts import Parts, build_parts
from fairflare.inference.loaded_run import Opened, conversion_of, fit_network, hospitals, open_run
from fairflare.inference.monitor import Patient, once
from fairflare.tasks.external import labelled
from fairflare.trainers.base import Trainer

MIX, NUMBERS, FORMAT = "mix.json", "mix.safetensors", 1
OWN, MIXED = "own", "mix"
REGRESSION, TREES = "regression", "trees"
SURE = 1e-9
"""Risks lie within [this, 1 - this], so that a logit is finite."""
MOST_MEMBERS, MOST_DEPTH, MOST_NODES = 100, 64, 1_000_000


class Regression(nn.Module):
    """Logistic regression on the task's features, in float64."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("coefficients", torch.zeros(features, dtype=torch.float64))
        self.register_buffer("intercept", torch.zeros((), dtype=torch.float64))

    @property
    def shape(self) -> dict[str, Any]:
        return {"kind": REGRESSION, "features": len(cast(Tensor, self.coefficients))}

    def forward(self, x: Tensor) -> Tensor:
        """float32 (N, F) -> (N,) logits."""
        return x.double() @ cast(Tensor, self.coefficients) + cast(Tensor, self.intercept)


class Trees(nn.Module):
    """Boosted trees: the logit is ``first`` plus, of each tree, the value of the leaf that a row falls into.

    Nodes and depth are those of the largest tree; smaller ones are filled up.
    """

    def __init__(self, trees: int, nodes: int, depth: int) -> None:
        super().__init__()
        self.depth = depth
        self.register_buffer("first", torch.zeros((), dtype=torch.float64))
        for name in ("feature", "left", "right"):
            self.register_buffer(name, torch.zeros(trees, nodes, dtype=torch.int64))
        for name in ("threshold", "value"):
            self.register_buffer(name, torch.zeros(trees, nodes, dtype=torch.float64))

    @property
    def shape(self) -> dict[str, Any]:
        trees, nodes = cast(Tensor, self.feature).shape
        return {"kind": TREES, "trees": trees, "nodes": nodes, "depth": self.depth}

    def forward(self, x: Tensor) -> Tensor:
        """float32 (N, F) without gaps -> (N,) logits. A leaf leads to itself."""
        rows = x.double().t()
        feature, left, right, threshold, value = (
            cast(Tensor, getattr(self, name)) for name in ("feature", "left", "right", "threshold", "value")
        )
        at = torch.zeros_like(feature[:, :1]).expand(-1, x.shape[0])
        for _ in range(self.depth):
            found = rows.gather(0, feature.gather(1, at))
            at = torch.where(found <= threshold.gather(1, at), left.gather(1, at), right.gather(1, at))
        return value.gather(1, at).sum(0) + cast(Tensor, self.first)


@dataclass(frozen=True)
class Member:
    """One of the models that are mixed.

    Attributes:
        name: of the candidate; "own" first.
        source: which of the mix's networks it takes; of several the same one is computed once.
        weight: >= 0; all of them sum to 1.
        intercept: added to the logit.
    """

    name: str
    source: str
    weight: float
    intercept: float = 0.0


class Mix(nn.Module):
    """Logits (N, 2) whose softmax is the weighted mean of the members' probabilities.

    ``networks``: source -> inputs to logits, (N,) of the class ``event`` or (N, 2).
    """

    def __init__(self, networks: Mapping[str, nn.Module], members: Sequence[Member], event: int) -> None:
        super().__init__()
        self.sources, self.event = list(networks), event
        self.networks = nn.ModuleList(networks.values())
        self.of = [self.sources.index(member.source) for member in members]
        for name in ("weight", "intercept"):
            values = torch.tensor([getattr(member, name) for member in members], dtype=torch.float64)
            self.register_buffer(f"{name}s", values)

    def risks(self, x: Tensor) -> Tensor:
        """(N, M) float64 risks of the event by each member."""
        each = [network(x).double() for network in self.networks]
        logits = [one if one.ndim == 1 else one[:, self.event] - one[:, 1 - self.event] for one in each]
        return torch.sigmoid(torch.stack([logits[k] for k in self.of], dim=1) + cast(Tensor, self.intercepts))

    def forward(self, x: Tensor) -> Tensor:
        """(N, ...) -> float64 (N, 2)."""
        p = (self.risks(x) @ cast(Tensor, self.weights)).clamp(SURE, 1 - SURE)
        logit = torch.log(p) - torch.log1p(-p)
        return torch.stack((torch.zeros_like(p), logit) if self.event else (logit, torch.zeros_like(p)), dim=1)


@dataclass(frozen=True)
class Made:
    """A mix and what its folder says of it.

    Attributes:
        runs: source -> content of ``config.json`` of the run that its network is from.
        own: how the own model is built: {"kind": "regression", "features": F}, or "trees" with trees, nodes and depth.
        inputs: what the site keeps of its training inputs.
        told: what else a reader should know: share, benefit, margin.
    """

    site: str
    runs: Mapping[str, Mapping[str, Any]]
    own: Mapping[str, Any]
    members: Sequence[Member]
    network: Mix
    inputs: Mapping[str, Any]
    told: Mapping[str, Any]


def save_mix(made: Made, folder: Path) -> None:
    """Write the mix to the existing ``folder``."""
    state = {key: value.detach().cpu().clone() for key, value in made.network.state_dict().items()}
    save_tensors(folder / NUMBERS, state)
    content = {
        "format": FORMAT,
        "site": made.site,
        "model_sha256": model_hash(state),
        "members": [dataclasses.asdict(member) for member in made.members],
        "own": dict(made.own),
        "runs": {name: dict(run) for name, run in made.runs.items()},
        "inputs": dict(made.inputs),
        "told": dict(made.told),
    }
    save_json(folder / MIX, content)


def open_model(
    folder: Path, site: str = "", *, which: str = "", site_files: Path | None = None, plain: bool = False
) -> Opened:
    """The run or the mix in ``folder``, see ``open_run``; a mix is whole, and has no rounds to choose from."""
    if not is_there(folder / MIX):
        return open_run(folder, site, which=which, site_files=site_files, plain=plain)
    for name, given in (("--which", which), ("--site-files", site_files)):
        expected(name, not given, "a run; a mix has all that it needs in its folder", given)
    return open_mix(folder, site)


def open_mix(folder: Path, site: str = "") -> Opened:
    """The mix in ``folder`` as a model in use; UserError where its files do not fit together or ``site`` is another."""
    content = read_json(folder / MIX)
    expected(f"{MIX}: format", content.get("format") == FORMAT, f"{FORMAT}", content.get("format"))
    whose = content.get("site")
    expected(f"{MIX}: site", isinstance(whose, str) and bool(whose), "a hospital's name", whose)
    expected("--site", site in ("", whose), f"{whose}, whose mix this is", site)
    members, runs = _members(content.get("members")), content.get("runs")
    proper = isinstance(runs, dict) and bool(runs) and all(isinstance(run, dict) for run in runs.values())
    expected(f"{MIX}: runs", proper, "the runs of its networks", runs)
    configs = {name: RunConfig.from_json(run) for name, run in dict(runs or {}).items()}
    built = {name: build_parts(config, at_site=True) for name, config in configs.items()}
    for name, made in built.items():
        check_mixable(name, made)
    first = next(iter(built))
    parts, config, about = built[first], configs[first], dict(runs or {})[first].get("about")
    expected(f"{MIX}: about", isinstance(about, dict) and isinstance(about.get("sites"), dict), "the task's", about)
    table, inputs = parts.task.table_inputs(), content.get("inputs")
    expected(f"{MIX}: inputs", isinstance(inputs, dict), "what the site keeps of its inputs", inputs)
    kept = dict(inputs or {})
    features = len(table.numbers) + len(table.plain) if table is not None else 0
    networks = {OWN: own_of(content.get("own"), features), **{name: one.network for name, one in built.items()}}
    if lost := [member.name for member in members if member.source not in networks]:
        raise UserError(f"{MIX}: {shown(lost[0])}: expected its model, found none")
    networks = {name: network for name, network in networks.items() if any(m.source == name for m in members)}
    network = Mix(networks, members, event_index(parts))
    sha256 = _filled(network, folder / NUMBERS, members, features)
    expected(f"{NUMBERS}: SHA-256", sha256 == content.get("model_sha256"), f"that of {MIX}", sha256)
    scaling = None
    if table is not None:
        scaling = table.fixed or Scaling.from_json(kept.get("scaling"), len(table.numbers))
    used, rounds = dataclasses.replace(parts, network=network), int(config.training.rounds)
    words = ", ".join(f"{member.weight:.0%} {member.name}" for member in members if member.weight)
    return Opened(
        folder, config, about, used, str(whose), MIXED, sha256, None, (kept,), scaling, rounds, (f"mix: {words}",),
        conversions={str(whose): conversion_of(kept)},
    )  # fmt: skip


def check_mixable(name: str, parts: Parts) -> None:
    """Raise UserError unless a run's network gives probabilities of two classes from inputs prepared as the task's."""
    if type(parts.trainer).shared_batches is not Trainer.shared_batches:
        raise UserError(f"{name}: prepares inputs by each site's statistics, so that it cannot be part of a mix")
    if len(parts.task.classes) != 2 or not parts.task.kind.has_classes:
        raise UserError(f"{name}: expected a task of two classes, got {parts.task.kind.name}")


def event_index(parts: Parts) -> int:
    """Of the class whose risk is mixed."""
    found = event_of(parts.task)
    return 1 if found is None else found


def _filled(network: Mix, path: Path, members: Sequence[Member], features: int) -> str:
    """Load the numbers of ``path``, checked; returns their hash."""
    model = read_model(path)
    fit_network(network, model)
    for key in ("weight", "intercept"):
        same = getattr(network, f"{key}s").tolist() == [getattr(member, key) for member in members]
        expected(f"{NUMBERS}: {key}s", same, f"those of {MIX}", "others")
    for trees in (one for one in network.networks if isinstance(one, Trees)):
        nodes = trees.shape["nodes"]
        limits = {"feature": features, "left": nodes, "right": nodes}
        fits = all(0 <= int(getattr(trees, k).min()) <= int(getattr(trees, k).max()) < n for k, n in limits.items())
        expected(f"{NUMBERS}: trees", fits, "nodes and features that there are", "others")
    return model_hash(model)


def monitored(folder: Path, data: Path, label: str = "") -> list[Patient]:
    """Outcome, own risk and mixed risk of everyone in one hospital's labelled ``data``, in their order; see ``once``.

    Patient by patient, so that a risk does not depend, in its last bit, on who else is in the file. ``label``: the
    column with the outcome in a table; empty: the task's.
    """
    opened = open_mix(folder)
    found = hospitals(opened, data)
    expected(f"{data.name}", len(found) == 1, "one hospital's labelled data", ", ".join(found))
    (name, own), mix = next(iter(found.items())), cast(Mix, opened.network)
    try:
        cases = labelled(opened.task, name, own, scaling=opened.scaling, label=label)
    except (DataError, ValueError) as error:
        raise UserError(f"{name}: {error}") from None
    found_risks = ((batch.targets, mix.risks(batch.inputs)[0]) for batch in cases.fixed("test", 1))
    weights = cast(Tensor, mix.weights)
    rows = [(float(int(y) == mix.event), float(risks[0]), float(risks @ weights)) for y, risks in found_risks]
    return once(rows, cases.patients("test"))


def _members(content: Any) -> list[Member]:
    fits = isinstance(content, list) and 0 < len(content) <= MOST_MEMBERS and all(isinstance(c, dict) for c in content)
    expected(f"{MIX}: members", fits, "the models that are mixed", content)
    names = {field.name for field in dataclasses.fields(Member)}
    for one in content:
        expected(f"{MIX}: members", set(one) == names, ", ".join(sorted(names)), sorted(one))
    made = [Member(**{key: exact(Member, key, value) for key, value in one.items()}) for one in content]
    total, least = sum(member.weight for member in made), min(member.weight for member in made)
    expected(f"{MIX}: weights", abs(total - 1) < 1e-6 and least >= 0, "weights of at least 0 that sum to 1", total)
    expected(f"{MIX}: members", made[0].name == OWN, "the own model first", made[0].name)
    return made


def own_of(content: Any, features: int) -> Regression | Trees:
    """The own model of this ``shape``, still empty."""
    shape = dict(content) if isinstance(content, dict) else {}
    kind, sizes = shape.pop("kind", None), shape
    fits = all(type(value) is int and 0 < value <= MOST_NODES for value in sizes.values())
    if fits and kind == REGRESSION and sizes == {"features": features}:
        return Regression(features)
    names = {"trees", "nodes", "depth"}
    fits = fits and kind == TREES and set(sizes) == names and sizes["depth"] <= MOST_DEPTH
    if fits and sizes["trees"] * sizes["nodes"] <= MOST_NODES:
        return Trees(**sizes)
    raise UserError(f"{MIX}: own: expected regression or trees of the task's features, got {shown(content)}")
