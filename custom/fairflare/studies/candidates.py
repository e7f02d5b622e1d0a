# SPDX-License-Identifier: Apache-2.0
"""The models that a METHOD's run offers a hospital: shared, so with an intercept or class shares of its own, or own;
and what it has alone beside ``own_model``: the best network that it trains, and Cox's regression of times.

``combine`` makes a deployable model for each hospital of a join by the weights that it found: candidates are trained
once more on all patients, and each own model too; ``inference.mix`` writes and reads the mix.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fairflare.core import registry
from fairflare.core.errors import UserError
from fairflare.core.execution import Execution, default_device, placed
from fairflare.core.seeds import derive
from fairflare.core.types import LocalWork, Round, StateDict
from fairflare.core.validation import SITE, expected
from fairflare.data.tensors import Grouping, Split, TensorData
from fairflare.engine.files import CONFIG, MODEL, is_there, read_json, read_model, read_tensors, save_json, save_tensors
from fairflare.engine.hashes import model_hash
from fairflare.engine.memory import INPUTS_ENDING, beside, personal_file
from fairflare.engine.setup.config import RunConfig, site_of_client
from fairflare.engine.setup.join_plan import INTERCEPT
from fairflare.engine.setup.local import SITES
from fairflare.engine.setup.parts import Parts, build_parts, without_folders
from fairflare.functional.calibration import fitted
from fairflare.functional.decision import INNER, Array, Owners, own_model, own_risks
from fairflare.functional.slopes import sigmoid
from fairflare.inference import mix
from fairflare.inference.atomic_output import MARK, check, whole_folder
from fairflare.inference.loaded_run import open_run
from fairflare.studies import display
from fairflare.studies.folders import JOIN, OWN_MODELS
from fairflare.studies.labels import folder_name
from fairflare.studies.parallel import Workers
from fairflare.studies.runs import predicted, run_once
from fairflare.studies.study import Study
from fairflare.tasks.folds import ALL, everyone, numbered
from fairflare.tasks.folds import part as rows_of
from fairflare.tasks.kinds.masks import soft_loss
from fairflare.tasks.kinds.survival import efron_loss

SHARES = " + class shares"


def on_fold(config: RunConfig, fold: str) -> RunConfig:
    """The run on a fold, or on ``folds.ALL`` patients, where a site that tests none is no error."""
    return dataclasses.replace(config, fold=fold, accept=sorted({*config.accept, "empty_split"}))


def log_odds(labels: Array) -> float:
    """Of the event, among labels (N,) of 0 and 1, both there."""
    return float(np.log(labels.sum() / (len(labels) - labels.sum())))


def federation_odds(parts: Parts, config: RunConfig, event: int) -> float:
    """``log_odds`` among the patients of all sites that have trained a run."""
    trained = [parts.task.site_data(site).splits["train"] for site in site_of_client(config, parts.task).values()]
    return log_odds(np.concatenate([(part.labels.numpy() == event).astype(np.float64) for part in trained]))


def moved(
    parts: Parts, config: RunConfig, label: str, logits: Array, labels: Array, odds: float | None = None
) -> dict[str, float]:
    """Candidate -> what it adds to the logits of the method's model.

    Class shares: a model trained with logits adjusted by each site's own shares (``logit_tau``) is balanced, and gets
    tau log(n_1 / n_0) back (Menon et al., ICLR 2021, equation 10 read backwards). Any other has the federation's
    shares, for which it gets the site's own (Saerens et al., Neural Computation 14, 2002, equation 2.4); with equal
    ones nothing changes. Logits and labels, 0 and 1, are (N,) of the site's training patients; odds are
    ``federation_odds``, None: class shares are a candidate after ``logit_tau`` alone.
    """
    if parts.has_personal or parts.counts_own:
        return {label: 0.0}
    found = {label: 0.0, label + INTERCEPT: fitted(logits, labels).intercept}
    tau = 0.0 if parts.trainer.sums_only else float(config.training.logit_tau)  # an exact fit adjusts no logits
    if tau or odds is not None:
        found[label + SHARES] = tau * log_odds(labels) if tau else log_odds(labels) - (odds or 0.0)
    return found


@dataclasses.dataclass(frozen=True)
class Trained:
    """A method's run that has ended, and the index of the class whose risk is asked for; -1: of times or masks."""

    parts: Parts
    config: RunConfig
    folder: Path
    event: int = -1

    @cached_property
    def odds(self) -> float:
        """``federation_odds``: the same for every hospital."""
        return federation_odds(self.parts, self.config, self.event)

    def model_for(self, client: str) -> StateDict:
        """What the run has for a site: a personal model, one of the rule's, or the shared."""
        if self.parts.has_personal:
            return read_model(personal_file(self.folder / SITES / f"{client}.safetensors"))
        if self.parts.counts_own:
            return dict(open_run(self.folder, client, plain=True).network.state_dict())
        return read_model(self.folder / MODEL)

    def outputs(self, model: StateDict, data: TensorData, split: Any, *, plain: bool = False) -> tuple[Tensor, Tensor]:
        """``predicted`` by this model."""
        self.parts.network.load_state_dict(model)
        return predicted(self.parts, self.config, data, split, plain=plain)

    def logits(self, model: StateDict, data: TensorData, split: Any, *, plain: bool = False) -> tuple[Array, Array]:
        """(N,) logits of the event, against all other classes, in a split, and its labels, 0 or 1."""
        outputs, targets = self.outputs(model, data, split, plain=plain)
        found = outputs.double()
        others = found[:, [k for k in range(found.shape[1]) if k != self.event]].logsumexp(1)
        return (found[:, self.event] - others).numpy(), (targets.numpy() == self.event).astype(np.float64)

    def scores(self, model: StateDict, data: TensorData, split: Any, *, plain: bool = False) -> Array:
        """(N,) log risks of a split's patients, or of masks each image's Dice, the mean over structures."""
        task = self.parts.task
        cases: Any = task.kind.cases(*self.outputs(model, data, split, plain=plain), task.classes)
        # where an output is not finite, so is the loss, but not the Dice
        found = cases.risks if task.kind.has_times else cases.dice.mean(1) + 0 * soft_loss(cases.outputs, cases.targets)
        return np.asarray(found, dtype=np.float64)

    def risks(self, label: str, client: str, data: TensorData, shares: bool, of: Any = "test") -> dict[str, Array]:
        """Candidate -> its risks of the site's patients in the split ``of``."""
        model = self.model_for(client)
        if self.event < 0:
            return {label: self.scores(model, data, of)}
        fit, labels = self.logits(model, data, "train")
        new = fit if of == "train" else self.logits(model, data, of)[0]
        moves = moved(self.parts, self.config, label, fit, labels, self.odds if shares else None)
        return {name: sigmoid(new + by) for name, by in moves.items()}

    def own(self, data: TensorData) -> tuple[Array, str]:
        """The risks of the test patients by the best model of the site's own training patients, and its kind."""
        train, test = data.splits["train"], data.splits["test"]
        assert isinstance(train, Split) and isinstance(test, Split)  # in memory
        x, new = (np.asarray(part.inputs, dtype=np.float64) for part in (train, test))
        if self.parts.task.kind.has_times and x.ndim == 2:
            return own_log_risks(x, np.asarray(train.targets, dtype=np.float64), new, train.patients), COX
        if x.ndim == 2:
            return own_risks(x, (train.labels.numpy() == self.event).astype(np.float64), new, train.patients)
        model = own_network(self, data)
        if self.event < 0:
            return self.scores(model, data, "test", plain=True), NETWORK
        return sigmoid(self.logits(model, data, "test", plain=True)[0]), NETWORK


COX, NETWORK = "cox", "network"
PENALTIES = np.logspace(0, 3, 4)
"""Of Cox's regression."""
RATES = (1.0, 0.3)
"""Times the task's learning rate."""
HELD_OUT = 5
"""One of so many patients chooses; then all train."""


def own_network(run: Trained, data: TensorData) -> StateDict:
    """The task's network, trained on the site's training patients alone for at most the epochs of the run.

    A fifth of the patients chooses the learning rate and the epoch by the least loss, so that the network stops early;
    it is then trained on all of them. Of the run its seed, settings and network count.
    """
    whole = data.splits["train"]
    assert isinstance(whole, Split)
    owner = numbered(np.zeros(len(whole), dtype=np.int64), whole.patients)
    dealing = np.random.default_rng(derive(run.config.seed, "own network"))
    held = (dealing.permutation(owner.max() + 1) % HELD_OUT == 0)[owner]
    inner = copy.copy(data)
    inner.splits = {**data.splits, "train": rows_of(whole, ~held), "val": rows_of(whole, held)}
    inner = inner.grouped(Grouping())
    best, rate, epochs = np.inf, 1.0, 0
    for tried in RATES:
        for epoch, model in enumerate(_epochs(run, inner, tried)):
            loss = _loss(run, inner, model)
            if loss < best:
                best, rate, epochs = loss, tried, epoch
    return next(itertools.islice(_epochs(run, data, rate), epochs, None))


def _epochs(run: Trained, data: TensorData, rate: float) -> Iterator[StateDict]:
    """The model before training, then after each epoch."""
    parts, training = run.parts, run.config.training
    rounds, per_round = training.rounds, dataclasses.replace(training, lr=rate * training.lr, keep_optimizer=True)
    network = copy.deepcopy(parts.network)
    network.load_state_dict(parts.model)
    yield dict(copy.deepcopy(network.state_dict()))
    memory: dict[str, object] = {}
    device = default_device()
    for number in range(1, rounds + 1):
        seed = derive(run.config.seed, "own network", number)
        how: dict[str, Any] = {"execution": Execution(device), "memory": memory, "objective": parts.task.objective}
        work = LocalWork(placed(network, device), data.on(device), per_round, Round(number, rounds), seed, **how)
        registry.get_trainer("sgd")().train(work)
        yield {key: value.cpu() for key, value in copy.deepcopy(network.state_dict()).items()}


def _loss(run: Trained, data: TensorData, model: StateDict) -> float:
    """The task's mean loss of the held-out patients: cross-entropy of classes."""
    task = run.parts.task
    return task.kind.loss(task.kind.cases(*run.outputs(model, data, "val", plain=True), task.classes))


def own_log_risks(x: Array, y: Array, new: Array, patients: Owners | None = None) -> Array:
    """Log risks (M,) of rows ``new`` (M, F) by a ridge Cox regression of rows x (N, F) with times and events y (N, 2).

    The penalty is that of the largest cross-validated partial likelihood (Verweij and van Houwelingen, Statistics in
    Medicine 12, 1993), with all rows of a patient (``patients``: (N,), whose row each is) in one of its parts.
    """
    owner = numbered(np.zeros(len(x), dtype=np.int64), patients)
    place = (np.random.default_rng(0).permutation(owner.max() + 1) % INNER)[owner]
    rows, times = torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(np.ascontiguousarray(y))
    parts = [(rows[place != fold], times[place != fold]) for fold in range(INNER)]

    def lost(penalty: float) -> float:
        found = [(part, _ridge(*part, penalty)) for part in parts]
        return sum(float(_cox_loss(rows, times, at) - _cox_loss(*part, at)) for part, at in found)

    return np.asarray(new @ _ridge(rows, times, min(PENALTIES, key=lost)).numpy())


def _cox_loss(rows: Tensor, times: Tensor, at: Tensor) -> Tensor:
    return efron_loss((rows @ at)[:, None], times) * len(rows)


def _ridge(rows: Tensor, times: Tensor, penalty: float) -> Tensor:
    """(F,) Cox's coefficients with a ridge penalty."""
    at = torch.zeros(rows.shape[1], dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS([at], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        search.zero_grad()
        found = _cox_loss(rows, times, at) + penalty * at @ at / 2
        found.backward()
        return found

    search.step(loss)
    return at.detach()


KIND = "mixes"
CLOSE = 1e-6
"""The largest difference between the risks of scikit-learn's model and of what is stored of it."""
Json = dict[str, Any]


def combine(folder: Path, out: Path, *, force: bool = False, workers: Workers | None = 1) -> Json:
    """Train what a join would deploy, write each hospital's mix below ``out`` and return site -> member -> weight.

    The ``folder`` of the finished join gets the runs on all patients, which are reused; ``force`` replaces earlier
    mixes. Raises UserError: the folder holds no finished join, or a model cannot be stored.
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
        trained = {
            label: Trained(parts, runs[label], folder / places[label], mix.event_index(parts))
            for label, parts in built.items()
        }
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
    names = [name for name, weight in weights.items() if weight]
    used = [m for m in found["methods"] if any(name == m or name.startswith(f"{m} + ") for name in names)]
    runs = {}
    for label in used:
        fold = folder / f"{folder_name(label)}-fold0of{found['folds']}-deal0"
        runs[label] = on_fold(RunConfig.from_json(read_json(fold / CONFIG)), ALL)
    return runs


def mix_of(client: str, found: Mapping[str, Any], trained: Mapping[str, Trained]) -> mix.Made:
    """A hospital's mix, from its own patients and the models that it was sent."""
    share, weights = found["sites"][client]["mix"]["share"], found["weights"]
    first = next(iter(trained.values()))
    event = first.event
    data = first.parts.task.site_data(site_of_client(first.config, first.parts.task)[client])
    whole = everyone(data)
    if len(whole.inputs.shape) != 2:
        raise UserError(f"combine: expected a task on a table, got {first.config.task}")
    x, y = np.asarray(whole.inputs, dtype=np.float64), (whole.labels.numpy() == event).astype(np.float64)
    own = read_own(first.folder.parent, client, x, y) or as_module(*own_model(x, y, whole.patients), x)
    members, runs = [mix.Member(mix.OWN, mix.OWN, 1.0 - share)], {}
    networks: dict[str, nn.Module] = {mix.OWN: own}
    for label, one in trained.items():
        described = read_json(one.folder / CONFIG)
        runs[label] = {**described, "fold": "", "options": without_folders(described["options"])}
        fit, labels = one.logits(one.model_for(client), data, "train")
        odds = one.odds if label + SHARES in weights else None
        for name, by in moved(one.parts, one.config, label, fit, labels, odds).items():
            if share * weights.get(name, 0.0):
                members.append(mix.Member(name, label, share * weights[name], by))
                networks[label] = one.parts.network
    kept = read_json(beside(first.folder / SITES / f"{client}.safetensors", INPUTS_ENDING))
    told = {key: found["sites"][client]["mix"][key] for key in ("share", "benefit", "low", "high", "p_harm")}
    told |= {"margin": found["margin"], "patients": len(y)}
    needed = {label: run for label, run in runs.items() if label in networks}
    needed = needed or dict(list(runs.items())[:1])  # at least one, which says how inputs are prepared
    return mix.Made(client, needed, own.shape, members, mix.Mix(networks, members, event), kept, told)


def as_module(model: Any, kind: str, x: Array) -> mix.Regression | mix.Trees:
    """The own model as plain numbers, which need no pickle; compared with the model on the rows ``x`` (N, F).

    Raises UserError: scikit-learn keeps its trees in another way than is known here.
    """
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
    place = folder / OWN_MODELS / f"{client}.safetensors"
    kept = read_tensors(place) if is_there(place) else {}
    if kept.get("patients") != _patients(x, y):
        return None
    made = mix.own_of(kept["shape"], x.shape[1])
    made.load_state_dict(kept["state"])
    return made


def _patients(x: Array, y: Array) -> str:
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
    for name, value in values.items():
        own = getattr(made, name)
        own.copy_(torch.as_tensor(np.asarray(value)).to(own.dtype))
