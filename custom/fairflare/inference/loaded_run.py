# SPDX-License-Identifier: Apache-2.0
"""A run's folder opened for use: which model, how inputs are prepared, what is done with its outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fairflare.core.errors import UserError
from fairflare.core.types import StateDict
from fairflare.core.validation import shown
from fairflare.data.inputs import Scaling
from fairflare.engine.files import BEST, CONFIG, SUFFIX, is_file, read_json, read_model
from fairflare.engine.hashes import model_hash
from fairflare.engine.history import read_final, read_standing
from fairflare.engine.memory import BEST_ENDING, INPUTS_ENDING, PERSONAL_ENDING
from fairflare.engine.setup.config import RunConfig
from fairflare.engine.setup.local import SITES
from fairflare.engine.setup.parts import Parts, build_parts
from fairflare.inference.adjustment import Adjustment, adjustment_of, site_file
from fairflare.report.write import verified_run
from fairflare.tasks.base import Task
from fairflare.tasks.kind import TaskKind

MOST_INPUTS = 64
"""Sites whose kept inputs are compared with, where no site is named."""


@dataclass(frozen=True)
class Opened:
    """A run in use.

    Attributes:
        folder: the run's.
        config: every choice of the run.
        about: what ``config.json`` says of the task.
        parts: its objects; the network holds the model and is in evaluation mode.
        site: whose model, scaling and thresholds are used; empty: no site's.
        whose: "shared", "own" (the rule's) or "personal" (the trainer's).
        model_sha256: hash of the model.
        adjustment: recalibration or thresholds; None: the model as it is.
        inputs: what sites keep of their training inputs: of the named site, or of all that lie in the folder.
        scaling: of a table's numbers; None: no table, or each site scales by its own rows and none is named.
        finished: the last finished round.
        remarks: what a user should know, one line each.
        with_baseline: the task's kind with a hospital's baseline hazard; None: without.
    """

    folder: Path
    config: RunConfig
    about: Mapping[str, Any]
    parts: Parts
    site: str
    whose: str
    model_sha256: str
    adjustment: Adjustment | None
    inputs: tuple[Mapping[str, Any], ...]
    scaling: Scaling | None
    finished: int
    remarks: tuple[str, ...]
    with_baseline: TaskKind | None = None

    @property
    def kind(self) -> TaskKind:
        """What outputs become."""
        return self.with_baseline or self.task.kind

    @property
    def task(self) -> Task:
        return self.parts.task

    @property
    def network(self) -> nn.Module:
        return self.parts.network


def open_run(
    folder: Path, site: str = "", *, which: str = "", site_files: Path | None = None, plain: bool = False
) -> Opened:
    """The run in ``folder``, verified, with its model loaded; no training data are read.

    Args:
        folder: of a run in process, in the simulator, or of a downloaded one.
        site: one of the run's sites, as its report names them.
        which: "final", or "best": the one that the run has chosen on validation data; "": whose results it shows.
        site_files: where the site keeps its own files, if not in the run's folder (a deployed site's workspace).
        plain: neither recalibration nor thresholds.

    Raises:
        UserError: the folder holds no run, something in it does not fit together, or there is no such site.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: expected the folder of a run, found no folder")
    run_history, entries = verified_run(folder)
    described = read_json(folder / CONFIG)
    config = RunConfig.from_json(described)
    about = described.get("about")
    if not isinstance(about, dict) or not isinstance(about.get("sites"), dict):
        raise UserError(f"{CONFIG}: was written by an older version of this package")
    standing, final = read_standing(folder, run_history), read_final(folder, run_history)
    if standing is None:
        raise UserError(f"{folder}: no round was finished, so there is no model")
    which = which or ("best" if config.headline == "best" and is_file(folder / BEST) else "final")
    known = list(about["sites"])
    if site and site not in known:
        raise UserError(f"--site: expected one of {shown(', '.join(known))}, got {shown(site)}")
    parts = build_parts(config, at_site=True)
    place = site_files or folder / SITES
    remarks = [] if run_history.completed else [f"the run has not ended: its model after round {standing.round}"]
    best = which == "best"
    if best and parts.rule.own_models:
        text = f"{config.method} gives sites models of their own, so that no round has one model to choose"
        raise UserError(f"--which best: {text}; expected --which final")
    if best and not is_file(folder / BEST):
        raise UserError(f"--which best: the run has chosen none ({BEST}); expected --which final")
    shared = read_model(folder / BEST) if best else final or standing.model
    model, whose = _model_of(parts, site, shared, {} if best else standing.models, place, best)
    if not site and parts.counts_own:
        remarks.append("the run's results are those of the sites' own models: --site NAME uses one")
    fit_network(parts.network, model)
    sha256 = model_hash(model)
    adjustment = None
    if not plain:
        adjustment, said = adjustment_of(config, parts, entries, site, place, sha256)
        remarks += said
    files = [site_file(place, one, INPUTS_ENDING) for one in ([site] if site else known[:MOST_INPUTS])]
    inputs = tuple(read_json(path) for path in files if path is not None)
    scaling = _scaling(parts.task, site, inputs)
    number = standing.round
    return Opened(
        folder, config, about, parts, site, whose, sha256, adjustment, inputs, scaling, number, tuple(remarks)
    )


def _model_of(
    parts: Parts, site: str, shared: StateDict, models: Mapping[str, StateDict], place: Path, best: bool
) -> tuple[StateDict, str]:
    if site and parts.has_personal:
        name = f"{BEST_ENDING if best else PERSONAL_ENDING}{SUFFIX}"
        path = site_file(place, site, name)
        if path is None:
            where = "name the folder with --site-files"
            raise UserError(f"--site {site}: its personal model {site}{name} is not in {place}; {where}")
        return read_model(path), "personal"
    if site and parts.rule.counts_own and site in models:
        return models[site], "own"
    return shared, "shared"


def fit_network(network: nn.Module, model: StateDict) -> None:
    """Load ``model``, whose entries must be the network's in name, shape and kind."""
    own = network.state_dict()
    for name in sorted({*own, *model}):
        if name not in own or name not in model or own[name].shape != model[name].shape:
            raise UserError(f"the model does not fit the run's network: {shown(name)}")
    network.load_state_dict(model)
    network.eval()
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    if not all(bool(torch.isfinite(v).all()) for v in model.values() if v.is_floating_point()):
        raise UserError("the model holds numbers that are not finite: the run has diverged")


def _scaling(task: Task, site: str, inputs: tuple[Mapping[str, Any], ...]) -> Scaling | None:
    table = task.table_inputs()
    if table is None or table.fixed is not None or not site or not inputs:
        return table.fixed if table is not None else None
    return Scaling.from_json(inputs[0].get("scaling"), len(table.numbers))
