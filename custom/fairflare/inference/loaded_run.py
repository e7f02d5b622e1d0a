# SPDX-License-Identifier: Apache-2.0
"""A run's folder opened for use: which model, how inputs are prepared, what is done with its outputs;
and what a user names as hospitals' labelled data for it: lists, sites' configurations or a table."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fairflare.core.errors import UserError
from fairflare.core.signals import command
from fairflare.core.types import StateDict
from fairflare.core.validation import SITE, expected, in_order, shown, some
from fairflare.data.inputs import Scaling
from fairflare.data.readers.datalist import PREFIX, read_lists
from fairflare.data.site_config import CONVERSION, FILES, SiteConfig, read_site_config
from fairflare.data.tensors import LABEL
from fairflare.engine.after.base import AfterStep, Fit, Shape, fit_of
from fairflare.engine.after.conformal import Conformal, class_scores
from fairflare.engine.after.recalibrate import Recalibrate
from fairflare.engine.exchanges.after import shape_of
from fairflare.engine.files import BEST, CONFIG, SUFFIX, is_file, read_json, read_model
from fairflare.engine.hashes import model_hash
from fairflare.engine.history import read_final, read_standing
from fairflare.engine.memory import AFTER_ENDING, INPUTS_ENDING, PERSONAL_ENDING
from fairflare.engine.setup.at_site import of_run
from fairflare.engine.setup.config import RunConfig, with_step
from fairflare.engine.setup.local import SITES
from fairflare.engine.setup.parts import Parts, build_parts
from fairflare.engine.setup.weights import find
from fairflare.report.write import verified_run
from fairflare.tasks.base import Task
from fairflare.tasks.forms import FORMS, IMAGES, VOLUMES
from fairflare.tasks.kind import TaskKind
from fairflare.tasks.kinds.own import folder_of_lists, read_description, root_of, sites_in
from fairflare.tasks.own.tabular import Tabular

HALF = 0.5


@dataclass(frozen=True)
class Adjustment:
    """A step with what it has fitted.

    Attributes:
        step: what was done.
        fits: index of a group -> what holds for its cases; -1: for all others.
        shape: of the task.
        words: what it is, for people.
    """

    step: AfterStep
    fits: Mapping[int, Fit]
    shape: Shape
    words: str

    @property
    def by_group(self) -> bool:
        return self.step.by == "group"

    def probabilities(self, outputs: Tensor, members: Tensor) -> np.ndarray:
        """float64 (N, C) of logits (N, C): recalibrated where the step does that, else softmax.

        ``members``: (N,) index of each case's group, -1 where it is in none.
        """
        if isinstance(self.step, Recalibrate):
            return self.step.probabilities(outputs.double().numpy(), members.numpy(), self.fits, self.shape)
        return outputs.double().softmax(1).numpy()

    def lambdas(self, members: Tensor) -> np.ndarray:
        """(N,) of a conformal step, nan where there is none."""
        found = [fit_of(self.fits, int(member)).get("threshold", math.nan) for member in members]
        return np.array(found, dtype=np.float64)

    @property
    def flags(self) -> bool:
        """Whether cases (pixels) of the second class (a structure) are flagged from a threshold on."""
        return isinstance(self.step, Conformal) and (self.step.loss == "missed" or self.shape.has_masks)

    @property
    def makes_sets(self) -> bool:
        return isinstance(self.step, Conformal) and not self.flags

    def sets(self, probabilities: np.ndarray, members: Tensor) -> list[list[int]]:
        """The classes in each case's set; all of them where there is no threshold."""
        assert isinstance(self.step, Conformal)
        scores = class_scores(probabilities, self.step.score)
        limits = np.nan_to_num(self.lambdas(members), nan=1.0)
        return [[int(c) for c in np.flatnonzero(row <= limit)] for row, limit in zip(scores, limits)]


def adjustment_of(
    config: RunConfig, parts: Parts, entries: Sequence[Mapping[str, Any]], site: str, place: Path, sha256: str
) -> tuple[Adjustment | None, list[str]]:
    """What holds for ``site``, and remarks; None where the run has no such step, or no site is named.

    The site's own file says it; without one the run's log, as far as the site's own numbers left it. UserError where
    the file is of another model, or holds what no step fits.
    """
    logged = [entry for entry in entries if entry.get("event") == "after"]
    if not logged:
        return None, []
    last = logged[-1]
    if not site:
        return None, [f"the run has a step after its last round ({last['step']}): --site NAME applies it"]
    path = site_file(place, site, AFTER_ENDING)
    content = read_json(path) if path is not None else _from_log(last, site)
    if content is None:
        return None, [f"what {last['step']} has fitted for {site} is not in {place}, nor in the log: not applied"]
    if path is not None and content.get("model") != sha256:
        raise UserError(f"{path.name}: was fitted to another model than the one that is used; --plain leaves it out")
    name, settings = str(content.get("step")), content.get("settings")
    stepped = config
    if name != config.after or isinstance(settings, dict):
        stepped = with_step(config, name, {**(settings if isinstance(settings, dict) else {}), "by": content.get("by")})
    step = stepped.after_step
    assert step is not None  # with_step has refused any other
    shape = shape_of(of_run(stepped, parts))
    fits = _fits(content, step, shape)
    if not any(fits.values()):
        return None, [f"{name} had too few cases to fit anything for {site}: not applied"]
    source = "" if path is not None else ", as far as the log says"
    return Adjustment(step, fits, shape, f"{name} by {step.by}{source}"), []


def members_of(parts: Parts, attributes: Mapping[str, Sequence[str]], n: int) -> Tensor:
    """(N,) index of each case's group in the run's grouping; -1 where it is not known, or goes by the label."""
    keys = parts.grouping.keys
    if not keys or LABEL in keys or any(key not in attributes for key in keys):
        return torch.full((n,), -1)
    return parts.grouping.index(n, torch.empty(0, dtype=torch.int64), attributes)


def _from_log(entry: Mapping[str, Any], site: str) -> dict[str, Any] | None:
    numbers = entry["sites"].get(site)
    if not isinstance(numbers, dict):
        return None
    own = {key[len("own.") :]: value for key, value in numbers.items() if key.startswith("own.")}
    shared: dict[str, dict[str, float]] = {"": {}}
    for key, value in {**(entry.get("shared") or {}), **numbers}.items():
        if key.startswith("shared."):
            name, _, group = key[len("shared.") :].partition("/")
            shared.setdefault(group, {})[name] = value
    about = {key: entry[key] for key in ("step", "by")}
    return {**about, "own": own if entry["by"] == "site" else {}, "shared": shared}


def _fits(content: Mapping[str, Any], step: AfterStep, shape: Shape) -> dict[int, Fit]:
    """Index of a group -> its parameters, each checked against the step's ranges."""
    own, shared = content.get("own"), content.get("shared")
    if not isinstance(own, dict) or not isinstance(shared, dict):
        raise UserError("the step's parameters: expected own and shared ones")
    if step.by == "site":
        return {-1: _checked(own or shared.get("", {}), step)}
    groups = {g: _checked(shared.get(name, {}), step) for g, name in enumerate(shape.groups)}
    return {-1: _checked(shared.get("", {}), step), **groups}


def _checked(fit: Any, step: AfterStep) -> dict[str, float]:
    if not isinstance(fit, dict):
        raise UserError("the step's parameters: expected numbers by name")
    for name, value in fit.items():
        low, high, _ = step.parameters.get(name, (0.0, 0.0, ""))
        if name not in step.parameters or type(value) not in (int, float) or not low <= value <= high:
            raise UserError(f"the step's parameters: {str(name)[:40]}: expected a number in {low:g}..{high:g}")
    return {name: float(value) for name, value in fit.items()}


def site_file(place: Path, site: str, ending: str) -> Path | None:
    """``SITE<ending>`` in ``place``, or a deployed site's ``SITE.<hash><ending>``; None where there is none.

    UserError where there are several, of several configurations or users.
    """
    if (place / f"{site}{ending}").is_file():
        return place / f"{site}{ending}"
    name = re.compile(rf"{re.escape(site)}\.[0-9a-f]{{32}}{re.escape(ending)}")
    items = sorted(place.iterdir()) if place.is_dir() else []
    found = [path for path in items if name.fullmatch(path.name) and path.is_file()]
    if len(found) > 1:
        raise UserError(f"{place}: holds {len(found)} files {site}.*{ending}; give the folder of one federation's")
    return found[0] if found else None


MOST_INPUTS = 64
"""Sites whose kept inputs are compared with, where no site is named."""


@dataclass(frozen=True)
class Opened:
    """A run in use.

    Attributes:
        about: what ``config.json`` says of the task.
        parts: its objects; the network holds the model and is in evaluation mode.
        site: whose model, scaling and thresholds are used; empty: no site's.
        whose: "shared", "own" (the rule's) or "personal" (the trainer's).
        adjustment: recalibration or thresholds; None: the model as it is.
        inputs: what sites keep of their training inputs: of the named site, or of all that lie in the folder.
        scaling: of a table's numbers; None: no table, or each site scales by its own rows and none is named.
        finished: the last finished round.
        trained: the sites whose answers a round up to it accepted, of all segments.
        remarks: what a user should know, one line each.
        with_baseline: the task's kind with a hospital's baseline hazard; None: without.
        conversions: site -> what of its file converted its table in training, as far as the folder has its own files.
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
    trained: tuple[str, ...]
    remarks: tuple[str, ...]
    with_baseline: TaskKind | None = None
    conversions: Mapping[str, SiteConfig] = field(default_factory=dict)

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
    expected("which", which in ("", "final", "best"), "final or best", which)
    which = which or ("best" if config.headline == "best" and is_file(folder / BEST) else "final")
    known = list(about["sites"])
    if site and site not in known:
        raise UserError(f"--site: expected one of {shown(', '.join(known))}, got {shown(site)}")
    find(config.init_from, folder)
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
    model, whose = _model_of(parts, site, shared, {} if best else standing.models, place)
    if not site and parts.counts_own:
        remarks.append("the run's results are those of the sites' own models: --site NAME uses one")
    fit_network(parts.network, model)
    sha256 = model_hash(model)
    adjustment = None
    if not plain:
        adjustment, said = adjustment_of(config, parts, entries, site, place, sha256)
        remarks += said
    files = {one: site_file(place, one, INPUTS_ENDING) for one in ([site] if site else known[:MOST_INPUTS])}
    kept = {one: read_json(path) for one, path in files.items() if path is not None}
    inputs = tuple(kept.values())
    table = parts.task.table_inputs()
    scaling = table.fixed if table is not None else None
    if table is not None and scaling is None and site and inputs:
        scaling = Scaling.from_json(inputs[0].get("scaling"), len(table.numbers))
    done = standing.round
    trained = tuple(in_order(run_history.counted_until(done)))
    if parts.selector.pools:  # one site answers with the records of all
        trained = tuple(one for one in known if one != config.leave_out)
    return Opened(
        folder, config, about, parts, site, whose, sha256, adjustment, inputs, scaling, done, trained, tuple(remarks),
        conversions={one: conversion_of(content) for one, content in kept.items()},
    )  # fmt: skip


def conversion_of(kept: Mapping[str, Any]) -> SiteConfig:
    """``scale``, ``shift`` and ``recode`` of what a site keeps of its inputs; UserError where they are none."""
    content = kept.get("conversion", {})
    expected("conversion", isinstance(content, dict) and {*content} <= {*CONVERSION}, some(CONVERSION), content)
    return SiteConfig(**content)


def _model_of(
    parts: Parts, site: str, shared: StateDict, models: Mapping[str, StateDict], place: Path
) -> tuple[StateDict, str]:
    if site and parts.has_personal:
        name = f"{PERSONAL_ENDING}{SUFFIX}"
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


CONFIGURATIONS = (".yaml", ".yml")
LISTS = (".json",)
CLASSES_SHOWN = 80


def hospitals(
    opened: Opened, data: Path, name: str = "", converting: SiteConfig | None = None
) -> dict[str, SiteConfig]:
    """Name -> where its data are, in natural order.

    Args:
        data: a folder that ``fairflare init`` has written lists for, a folder of lists or of sites' configurations, one
            such configuration, one list, or one table.
        name: what one hospital is called, or of several the one that is meant; empty: as its file, or all.
        converting: the file that says how one hospital's table is converted; None: its configuration, or what the site
            has kept of its training.

    Raises:
        UserError: there is nothing of the kind, or it is of other classes than the run's.
    """
    suffixes = Tabular.suffixes if opened.task.table_inputs() is not None else LISTS
    if data.is_dir():
        found = _in_folder(opened, data, suffixes)
        if name:
            if len(found) > 1 and name not in found:
                raise UserError(f"--name: expected one of {shown(', '.join(found))}, got {shown(name)}")
            found = {name: found.get(name) or next(iter(found.values()))}
    elif not data.is_file():
        raise UserError(f"{data}: no such file or folder")
    elif data.suffix in CONFIGURATIONS:
        home = data.resolve().parent  # of the usual file in a startup kit the folder "local"
        kit = home.parent.name if home.name == "local" else home.name
        found = {name or (kit if data.name in FILES else data.stem): read_site_config(data)}
    else:
        if data.suffix.lower() not in suffixes:
            raise UserError(f"{data.name}: expected a folder of lists, or a file {' or '.join(suffixes)}, for this run")
        _same_classes(opened, read_description(data.parent), data.parent)
        found = {name or data.stem.removeprefix(PREFIX): config_of(data)}
    for site in found:
        expected("--name", bool(SITE.fullmatch(site)), "letters, digits, spaces, - . and _", site)
    if converting and len(found) > 1:
        raise UserError(f"--site-config: expected one hospital (--name NAME), got {some([*found])}")
    for site, own in found.items():
        by = converting or (own if own.conversion else opened.conversions.get(site, own))
        found[site] = dataclasses.replace(own, site=site, **by.conversion)
    return {site: found[site] for site in in_order(found)}


def _in_folder(opened: Opened, data: Path, suffixes: tuple[str, ...]) -> dict[str, SiteConfig]:
    """One for each list, or for each configuration where there are no lists."""
    folder = folder_of_lists(data)
    _same_classes(opened, read_description(folder), data)
    if names := sites_in(folder, suffixes):
        return {site: config_of(_files(folder, site, suffixes)[0]) for site in names}
    found = {path.stem: read_site_config(path) for path in sorted(data.iterdir()) if path.suffix in CONFIGURATIONS}
    if not found:
        lists = f"expected a list (<SITE>{suffixes[0]}) for each hospital in it, or a table"
        raise UserError(f"{data}: {lists}; {command('init', data)} writes them")
    return found


def _files(folder: Path, site: str, suffixes: Sequence[str]) -> list[Path]:
    return [path for p in ("", PREFIX) for s in suffixes if (path := folder / f"{p}{site}{s}").is_file()]


def config_of(path: Path) -> SiteConfig:
    """Of a list or table that somebody names."""
    root, links = root_of(path.parent)
    return SiteConfig(data_root=str(root), datalist=str(path.relative_to(root)), links=links, min_count=0)


def _same_classes(opened: Opened, described: Mapping[str, Any], data: Path) -> None:
    """Raise UserError where ``dataset.json`` says that the data are of another kind, or of other classes."""
    if not described:
        return
    kind, task, form = described["kind"], opened.config.task, FORMS.get(described["kind"])
    images = opened.task.image_inputs()
    takes = opened.task.table_inputs() is not None, opened.task.kind.has_masks, images is not None and images.volumes
    other = task in FORMS and form is not None and FORMS[task].classes != form.classes
    if form is None or (form.table, form.masks, form.volumes) != takes or other:
        raise UserError(f"{data}: holds data of kind {shown(kind)}, expected what task {task} takes")
    theirs, ours = described["classes"], list(opened.task.classes)
    named = not getattr(opened.task, "numbered", False)
    same = theirs == ours if form.masks or not named else set(theirs) <= set(ours)
    if theirs and not same and (named or len(theirs) != len(ours)):
        raise UserError(f"{data}: classes: expected {_some(ours)}, as the run has them, got {_some(theirs)}")
    values, own = (options.get("mask_values") or "" for options in (described["options"], opened.config.options))
    if form.masks and values != own:
        raise UserError(f"{data}: mask_values: expected {shown(own)}, as the run has them, got {shown(values)}")
    if form in (IMAGES, VOLUMES) and named and theirs and theirs != ours:
        folder = folder_of_lists(data)
        for site in sites_in(folder, LISTS):
            path = _files(folder, site, LISTS)[0]
            entries = [entry for part in read_lists(path).values() for entry in part if isinstance(entry, dict)]
            if any(type(entry.get("label")) is int for entry in entries):
                text = "expected classes by name, since their numbers are other classes' in the run"
                raise UserError(f"{path.name}: label: {text}, got a number")


def _some(names: list[str]) -> str:
    text = ", ".join(names)
    return shown(text if len(text) <= CLASSES_SHOWN else f"{text[:CLASSES_SHOWN]} ...")


def refuse_trained(opened: Opened, found: Mapping[str, SiteConfig]) -> None:
    """Raise UserError where a hospital took part in the training: by its name, or by its list's content.

    A site that a run left out of the training is none of them; one that left after an earlier segment is.
    """
    trained = opened.trained
    folder = Path(str(opened.config.options.get("datalists") or ""))
    there = trained if folder.name and folder.is_dir() else []  # as far as the run's lists are on this machine
    lists = {_hash(path): site for site in there for path in _files(folder, site, (*Tabular.suffixes, *LISTS))}
    for site, own in found.items():
        same = next((one for one in trained if one.lower() == site.lower()), None)
        file = Path(own.data_root, own.datalist)
        same_list = lists.get(_hash(file)) if file.is_file() else None
        if same_list or same:
            way = "--split test takes its test patients alone"
            other = "" if same_list else "; --name NAME if it is another hospital"
            raise UserError(f"{site}: took part in the run's training as {shown(same_list or same)}: {way}{other}")


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
