# SPDX-License-Identifier: Apache-2.0
"""A deployable model for each hospital of a join: its own model and the candidates, by the weights that join found.

The candidates are trained once more, on all patients of all hospitals, and so is each own model. Every hospital's mix
is a folder of its own, which ``inference.mix`` writes and reads.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fairflare.core.errors import UserError
from fairflare.core.validation import SITE, expected
from fairflare.engine.files import CONFIG, is_there, read_json, read_tensors, save_json, save_tensors
from fairflare.engine.hashes import model_hash
from fairflare.engine.memory import inputs_file
from fairflare.engine.setup.config import RunConfig, site_of_client
from fairflare.engine.setup.local import SITES
from fairflare.engine.setup.parts import Parts, build_parts, without_folders
from fairflare.functional.decision import Array, own_model
from fairflare.inference import mix
from fairflare.inference.atomic_output import MARK, check, whole_folder
from fairflare.studies import display
from fairflare.studies.candidates import SHARES, federation_odds, logits_of, model_for, moved, on_fold
from fairflare.studies.folders import JOIN, OWN_MODELS
from fairflare.studies.labels import folder_name
from fairflare.studies.parallel import Workers
from fairflare.studies.runs import run_once
from fairflare.studies.study import Study
from fairflare.tasks.folds import ALL, everyone

KIND = "mixes"
CLOSE = 1e-6
"""The largest difference between the risks of scikit-learn's model and of what is stored of it."""
Json = dict[str, Any]


def combine(folder: Path, out: Path, *, force: bool = False, workers: Workers | None = 1) -> Json:
    """Train what a join in ``folder`` would deploy, and write each hospital's mix to a folder below ``out``.

    Args:
        folder: of a finished ``join``; gets the runs on all patients, which are reused.
        out: gets a folder for each hospital that was answered.
        force: replaces earlier mixes in ``out``.
        workers: see ``parallel.budget``.

    Returns:
        site -> member -> weight.

    Raises:
        UserError: the folder holds no finished join, or a model cannot be stored.
    """
    found = read_join(folder)
    if found.get("event"):
        raise UserError(f"{JOIN}: expected a join of two classes, got one of {found['event']} against all others")
    runs = deployed_runs(folder, found)
    built = {label: build_parts(config, at_site=True) for label, config in runs.items()}
    for label, parts in built.items():
        mix.check_mixable(label, parts)
    check(out, KIND, force)
    places = {label: f"{folder_name(label)}-all" for label in runs}
    display.note(f"{len(runs)} federated trainings on all patients, and an own model for each site")
    study = Study({places[label]: config for label, config in runs.items()})
    weights: dict[str, dict[str, float]] = {}
    with study.finished(folder, partial(run_once), workers=workers), whole_folder(out, KIND, force=force) as scratch:
        trained = {label: Trained(built[label], config, folder / places[label]) for label, config in runs.items()}
        for client in found["sites"]:
            made = mix_of(client, found, trained)
            (scratch / client).mkdir()
            mix.save_mix(made, scratch / client)
            weights[client] = {member.name: member.weight for member in made.members}
        save_json(scratch / MARK, {"join": folder.name, "task": found["task"], "weights": weights})
    return weights


def read_join(folder: Path) -> Json:
    """What ``join`` has found in ``folder``; raises UserError where that is not there, or not whole."""
    if not is_there(folder / JOIN):
        raise UserError(f"{folder}: expected the folder of a finished join, found no {JOIN}")
    found = read_json(folder / JOIN)
    brier = found.get("score", "brier") == "brier"
    expected(f"{JOIN}: score", brier, "the Brier score, of which alone there is a mix", found.get("score"))
    sites, weights, methods = found.get("sites"), found.get("weights"), found.get("methods")
    shares = [_share(row) for row in sites.values()] if isinstance(sites, dict) else []
    proper = bool(shares) and None not in shares and all(SITE.fullmatch(site) for site in dict(sites or {}))
    expected(f"{JOIN}: sites", proper, "hospitals with the share of their mix", sites)
    known = isinstance(weights, dict) and all(type(w) is float and 0 <= w <= 1 for w in weights.values())
    expected(f"{JOIN}: weights", known and abs(sum(dict(weights or {}).values()) - 1) < 1e-6, "those of a mix", weights)
    named = isinstance(methods, list) and bool(methods) and all(isinstance(label, str) for label in methods)
    expected(f"{JOIN}: methods", named and type(found.get("folds")) is int, "the methods that were asked", methods)
    return found


def _share(row: Any) -> float | None:
    share = row.get("mix", {}).get("share") if isinstance(row, dict) and isinstance(row.get("mix"), dict) else None
    return share if type(share) is float and 0 <= share <= 1 else None


def deployed_runs(folder: Path, found: Mapping[str, Any]) -> dict[str, RunConfig]:
    """Label -> the run of each method that a mix needs, on all patients, as the join's folds had it."""
    weights: Mapping[str, float] = found["weights"]
    used = [label for label in found["methods"] if any(w and _of(name, label) for name, w in weights.items())]
    runs = {}
    for label in used:
        fold = folder / f"{folder_name(label)}-fold0of{found['folds']}-deal0"
        runs[label] = on_fold(RunConfig.from_json(read_json(fold / CONFIG)), ALL)
    return runs


def _of(candidate: str, label: str) -> bool:
    return candidate == label or candidate.startswith(f"{label} + ")


@dataclasses.dataclass(frozen=True)
class Trained:
    """A method's run on all patients."""

    parts: Parts
    config: RunConfig
    folder: Path

    @cached_property
    def odds(self) -> float:
        """``federation_odds``: the same for every hospital."""
        return federation_odds(self.parts, self.config, mix.event_index(self.parts))


def mix_of(client: str, found: Mapping[str, Any], trained: Mapping[str, Trained]) -> mix.Made:
    """A hospital's mix, from its own patients and the models that it was sent."""
    share, weights = found["sites"][client]["mix"]["share"], found["weights"]
    first = next(iter(trained.values()))
    event = mix.event_index(first.parts)
    data = first.parts.task.site_data(site_of_client(first.config, first.parts.task)[client])
    whole = everyone(data)
    if len(whole.inputs.shape) != 2:
        raise UserError(f"combine: expected a task on a table, got {first.config.task}")
    x, y = np.asarray(whole.inputs, dtype=np.float64), (whole.labels.numpy() == event).astype(np.float64)
    own = read_own(first.folder.parent, client, x, y) or as_module(*own_model(x, y), x)
    members, runs = [mix.Member(mix.OWN, mix.OWN, 1.0 - share)], {}
    networks: dict[str, nn.Module] = {mix.OWN: own}
    for label, one in trained.items():
        described = read_json(one.folder / CONFIG)
        runs[label] = {**described, "fold": "", "options": without_folders(described["options"])}
        state = model_for(one.parts, one.folder, client)
        fit, labels = logits_of(one.parts, one.config, state, data, "train", event)
        odds = one.odds if label + SHARES in weights else None
        for name, by in moved(one.parts, one.config, label, fit, labels, odds).items():
            if share * weights.get(name, 0.0):
                members.append(mix.Member(name, label, share * weights[name], by))
                networks[label] = one.parts.network
    kept = read_json(inputs_file(first.folder / SITES / f"{client}.safetensors"))
    told = {key: found["sites"][client]["mix"][key] for key in ("share", "benefit", "low", "high", "p_harm")}
    told |= {"margin": found["margin"], "patients": len(y)}
    return mix.Made(client, _needed(runs, members), own.shape, members, mix.Mix(networks, members, event), kept, told)


def _needed(runs: Mapping[str, Json], members: Sequence[mix.Member]) -> dict[str, Json]:
    """The runs of the members' networks; at least one, which says how inputs are prepared."""
    sources = {member.source for member in members}
    found = {label: run for label, run in runs.items() if label in sources}
    return found or dict(list(runs.items())[:1])


def as_module(model: Any, kind: str, x: Array) -> mix.Regression | mix.Trees:
    """The own model as plain numbers, which need no pickle; compared with the model on the rows ``x`` (N, F).

    Raises:
        UserError: scikit-learn keeps its trees in another way than is known here.
    """
    import torch

    made = _regression(model) if kind == mix.REGRESSION else _trees(model)
    rows = torch.from_numpy(x).float()
    found = torch.sigmoid(made(rows)).numpy()
    if not np.abs(found - model.predict_proba(rows.double().numpy())[:, 1]).max() < CLOSE:
        raise UserError(f"own model: this version of scikit-learn keeps {kind} in another way; expected the same risks")
    return made


def keep_own(folder: Path, client: str, fitted: tuple[Any, str], x: Array, y: Array) -> None:
    """Keep the own model of these patients in a join's folder for ``read_own``, if it can be stored."""
    with contextlib.suppress(UserError):  # combine fits it again, and says so
        made = as_module(*fitted, x)
        (folder / OWN_MODELS).mkdir(exist_ok=True)
        content = {"patients": _patients(x, y), "shape": made.shape, "state": made.state_dict()}
        save_tensors(folder / OWN_MODELS / f"{client}.safetensors", content)


def read_own(folder: Path, client: str, x: Array, y: Array) -> mix.Regression | mix.Trees | None:
    """The own model that a join has kept of just these patients."""
    place = folder / OWN_MODELS / f"{client}.safetensors"
    kept = read_tensors(place) if is_there(place) else {}
    if kept.get("patients") != _patients(x, y):
        return None
    made = mix.own_of(kept["shape"], x.shape[1])
    made.load_state_dict(kept["state"])
    return made


def _patients(x: Array, y: Array) -> str:
    import torch

    return model_hash({"x": torch.from_numpy(x), "y": torch.from_numpy(y)})


def _regression(model: Any) -> mix.Regression:
    made = mix.Regression(model.coef_.shape[1])
    _fill(made, coefficients=model.coef_[0], intercept=model.intercept_[0])
    return made


def _trees(model: Any) -> mix.Trees:
    """A leaf leads to itself; what fills up a smaller tree is never reached."""
    every = [tree[0].nodes for tree in model._predictors]
    shape = len(every), max(len(nodes) for nodes in every)
    made = mix.Trees(*shape, max(1, *(int(nodes["depth"].max()) for nodes in every)))
    ends = np.broadcast_to(np.arange(shape[1]), shape)
    found = {"feature": np.zeros(shape), "threshold": np.zeros(shape), "value": np.zeros(shape)}
    found |= {"left": ends.copy(), "right": ends.copy()}
    for k, nodes in enumerate(every):
        inner = np.flatnonzero(nodes["is_leaf"] == 0)
        for name, field in (("feature", "feature_idx"), ("threshold", "num_threshold"), ("left", "left")):
            found[name][k, inner] = nodes[field][inner]
        found["right"][k, inner] = nodes["right"][inner]
        found["value"][k, : len(nodes)] = nodes["value"]
    _fill(made, first=model._baseline_prediction.ravel()[0], **found)
    return made


def _fill(made: mix.Regression | mix.Trees, **values: Any) -> None:
    import torch

    for name, value in values.items():
        own = getattr(made, name)
        own.copy_(torch.as_tensor(np.asarray(value)).to(own.dtype))
