# SPDX-License-Identifier: Apache-2.0
"""A hospital's model to use after a decision: its own regression mixed with that of all, by the safe share.

``mix.json`` says what is mixed and how inputs are prepared, ``mix.safetensors`` holds all numbers. Nothing in the
folder is executed when it is read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fairflare.core.errors import DataError, UserError
from fairflare.core.validation import expected
from fairflare.data.inputs import Scaling
from fairflare.data.tensors import described
from fairflare.engine.files import is_there, read_json, read_model, save_json, save_tensors
from fairflare.engine.hashes import model_hash
from fairflare.engine.setup.assembly import about
from fairflare.engine.setup.config import RunConfig, site_of_client
from fairflare.engine.setup.parts import build_parts, without_folders
from fairflare.inference.loaded_run import Opened, conversion_of, fit_network, hospitals, open_run
from fairflare.inference.monitor import Patient, once
from fairflare.tasks.external import labelled

MIX, NUMBERS, FORMAT = "mix.json", "mix.safetensors", 2
MIXED = "mix"
SURE = 1e-9
"""Risks lie within [this, 1 - this], so that a logit is finite."""
KEYS = {"format", "site", "model_sha256", "run", "about", "inputs", "event", "decision"}
Array = npt.NDArray[np.float64]


class Mix(nn.Module):
    """Logits (N, 2) whose softmax is the weighted mean of two logistic regressions' probabilities, in float64.

    ``event``: the class whose risks they are. The first regression is the hospital's own.
    """

    def __init__(self, features: int, event: int) -> None:
        super().__init__()
        self.event = event
        self.register_buffer("coefficients", torch.zeros(2, features + 1, dtype=torch.float64))
        self.register_buffer("share", torch.zeros((), dtype=torch.float64))

    def risks(self, x: Tensor) -> Tensor:
        """(N, 2) float64 risks of the event by each member."""
        coefficients = cast(Tensor, self.coefficients)
        return torch.sigmoid(coefficients[:, 0] + x.double() @ coefficients[:, 1:].T)

    @property
    def weights(self) -> Tensor:
        """(2,) of the members."""
        share = cast(Tensor, self.share)
        return torch.stack((1 - share, share))

    def forward(self, x: Tensor) -> Tensor:
        """(N, F) -> float64 (N, 2)."""
        p = (self.risks(x) @ self.weights).clamp(SURE, 1 - SURE)
        logit = torch.log(p) - torch.log1p(-p)
        return torch.stack((torch.zeros_like(p), logit) if self.event else (logit, torch.zeros_like(p)), dim=1)


def save_mix(
    folder: Path,
    site: str,
    config: RunConfig,
    own: Array,
    member: Array,
    share: float,
    event: int,
    told: Mapping[str, Any],
) -> None:
    """Write a hospital's mix to the existing ``folder``.

    Args:
        config: of the decision, which says how inputs are prepared.
        own, member: (F + 1,) coefficients, the intercept first.
        share: of the member model.
        told: what a reader should know of the decision.
    """
    parts = build_parts(config, at_site=True)
    network = Mix(len(own) - 1, event)
    cast(Tensor, network.coefficients).copy_(torch.from_numpy(np.stack([own, member])))
    cast(Tensor, network.share).fill_(share)
    state = dict(network.state_dict())
    save_tensors(folder / NUMBERS, state)
    run = {**config.to_json(), "fold": "", "exchanges": [], "options": without_folders(config.options)}
    content = {
        "format": FORMAT,
        "site": site,
        "model_sha256": model_hash(state),
        "run": run,
        "about": about(config, parts),
        "inputs": described(parts.task.site_data(site_of_client(config, parts.task)[site])),
        "event": event,
        "decision": dict(told),
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
    expected(MIX, set(content) == KEYS, f"keys {', '.join(sorted(KEYS))}", ", ".join(map(str, sorted(content))))
    whose = content["site"]
    expected(f"{MIX}: site", isinstance(whose, str) and bool(whose), "a hospital's name", whose)
    expected("--site", site in ("", whose), f"{whose}, whose mix this is", site)
    for key in ("run", "about", "inputs"):
        expected(f"{MIX}: {key}", isinstance(content[key], dict), "keys and values", content[key])
    expected(f"{MIX}: about", isinstance(content["about"].get("sites"), dict), "the task's", content["about"])
    config = RunConfig.from_json(content["run"])
    parts = build_parts(config, at_site=True)
    table = parts.task.table_inputs()
    if table is None or len(parts.task.classes) != 2:
        raise UserError(f"{MIX}: expected a table of two classes, got {config.task}")
    event = content["event"]
    expected(f"{MIX}: event", event in (0, 1) and type(event) is int, "0 or 1", event)
    network = Mix(len(table.numbers) + len(table.plain), event)
    model = read_model(folder / NUMBERS)
    fit_network(network, model)
    share, sha256 = float(cast(Tensor, network.share)), model_hash(model)
    expected(f"{NUMBERS}: share", 0 <= share <= 1, "a share from 0 to 1", share)
    expected(f"{NUMBERS}: SHA-256", sha256 == content["model_sha256"], f"that of {MIX}", sha256)
    kept = content["inputs"]
    scaling = table.fixed or Scaling.from_json(kept.get("scaling"), len(table.numbers))
    used, rounds = dataclasses.replace(parts, network=network), int(config.training.rounds)
    words = f"mix: {1 - share:.0%} own model, {share:.0%} member model"
    named, about_task = {whose: conversion_of(kept)}, content["about"]
    trained = tuple(one for one in about_task["sites"] if one != config.leave_out)
    how: dict[str, Any] = {"inputs": (kept,), "scaling": scaling, "finished": rounds, "trained": trained}
    how["remarks"] = (words,)
    return Opened(folder, config, about_task, used, whose, MIXED, sha256, None, **how, conversions=named)


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
    rows = [(float(int(y) == mix.event), float(risks[0]), float(risks @ mix.weights)) for y, risks in found_risks]
    return once(rows, cases.patients("test"))
