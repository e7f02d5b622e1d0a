# SPDX-License-Identifier: Apache-2.0
"""Whether somebody who knows a patient's record can tell that a model was trained on it: membership inference.

    phi(x)   = log p_y(x) / (1 - p_y(x)); where there are no classes, minus the loss
    score(x) = phi of the model - mean of phi over shadow models that were trained without x

The likelihood-ratio attack of Carlini et al., "Membership inference attacks from first principles", IEEE S&P 2022,
https://arxiv.org/abs/2112.03570, section VI, offline and with one variance for all records, which they advise for few
shadow models. These come in pairs: one is trained on a random half of the site's records (its training split and the
others), the second on the other half, both as a site alone would train, from the same first model.
Members are the training split, non-members the site's validation and test splits.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fairflare.core.errors import UserError
from fairflare.core.seeds import derive, seed_everything
from fairflare.core.signals import command
from fairflare.core.types import LocalWork, Round, StateDict
from fairflare.data.site_config import find_site_config
from fairflare.data.tensors import Grouping, Split, TensorData
from fairflare.engine import files
from fairflare.engine.audit import AuditLog
from fairflare.engine.evaluation import predict
from fairflare.engine.exchanges import benefit
from fairflare.engine.files import AUDIT, BEST, CONFIG, read_json
from fairflare.engine.history import RunHistory, read_final
from fairflare.engine.setup.assembly import site_names
from fairflare.engine.setup.at_site import build_site, of_run
from fairflare.engine.setup.config import RunConfig
from fairflare.engine.setup.parts import Parts, build_parts
from fairflare.engine.setup.weights import find
from fairflare.engine.site import Site
from fairflare.functional.intervals import of_auc, of_share
from fairflare.privacy.counts import released
from fairflare.report.write import verified_run, write_report
from fairflare.studies.folders import opened, require_run
from fairflare.trainers.base import Trainer

LEVEL = 0.95
SHADOWS = 8
FEWEST = 20
"""Records of a site below which no shadow models are trained."""
Array = npt.NDArray[np.float64]
Chosen = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Attack:
    """The attack on a run's model; shadow models, an even number, begin with ``first``; with 0 losses alone count."""

    model: StateDict
    first: StateDict
    trainer: Trainer
    classes: bool
    shadows: int = SHADOWS

    def at(self, site: Site) -> dict[str, float]:
        """What may leave of the attack at ``site``, whose data are there; nothing of too few patients.

        Returns:
            n_train, n_other (members and others), auc with low and high (95 %), loss (AUC of the loss alone), shadows,
            and auc, low and high of each "/group" of which enough are known in both.
        """
        data: Any = site.data
        members, others = data.size("train"), data.size("val") + data.size("test")
        if site.min_count is None or min(members, others) < max(site.min_count, 2):
            return {}
        there = np.repeat([True, False], (members, others))
        splits = [data.splits[name] for name in ("train", "val", "test")]
        site.network.load_state_dict(self.model)
        parts = [self._confidence(site, data, name) for name in ("train", "val", "test") if data.size(name)]
        own, groups = (np.concatenate(each) for each in zip(*parts))
        score = own
        shadows = self.shadows if all(isinstance(one, Split) for one in splits) and len(own) >= FEWEST else 0
        if shadows:
            score = own - self._without(site, data, splits, shadows)
        found = {"n_train": float(members), "n_other": float(others), "shadows": float(shadows)}
        found |= {**area(score, there), "loss": area(own, there)["auc"]}
        cells = [groups == number for number in range(len(site.groups))]
        counts = [[int((cell & kind).sum()) for cell in cells] for kind in (there, ~there)]
        free = [
            released(some, site.min_count, unknown=total - sum(some)) for some, total in zip(counts, (members, others))
        ]
        for name, cell, *allowed in zip(site.groups, cells, *free):
            if all(allowed) and min((cell & there).sum(), (cell & ~there).sum()) >= max(site.min_count, 2):
                found |= {f"{key}/{name}": value for key, value in area(score[cell], there[cell]).items()}
        return found

    def _without(self, site: Site, data: TensorData, splits: list[Any], shadows: int) -> Array:
        """(N,) mean confidence in each record of the shadow models that were trained without it."""
        inputs, targets = torch.cat([s.inputs for s in splits]), torch.cat([s.targets for s in splits])
        everything = _with_train(data, Split(inputs, targets))
        total = np.zeros(len(targets))
        for pair in range(shadows // 2):
            seed = derive(site.seed, "shadow", site.name, pair)
            order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed))
            for half in order.chunk(2):
                seed_everything(seed)
                self._train(site, _with_train(data, Split(inputs[half], targets[half])), seed)
                out = np.ones(len(targets), dtype=bool)
                out[half.numpy()] = False
                total += np.where(out, self._confidence(site, everything, "train")[0], 0.0)
        return total / (shadows // 2)

    def _train(self, site: Site, data: TensorData, seed: int) -> None:
        site.network.load_state_dict(self.first)
        memory: dict[str, Any] = {}
        rounds = site.training.rounds
        for number in range(1, rounds + 1):
            work = LocalWork(
                network=site.network,
                data=data,
                training=site.training,
                round=Round(number, rounds),
                seed=derive(seed, number),
                execution=site.execution,
                memory=memory,
                received={key: value.clone() for key, value in site.network.state_dict().items()},
                objective=site.objective,
                family=site.family,
                min_count=site.min_count,
            )
            self.trainer.train(work)

    def _confidence(self, site: Site, data: Any, split: Any) -> tuple[Array, npt.NDArray[np.int64]]:
        """(N,) phi of the loaded model, and the groups."""
        objective = site.objective(data.class_counts.to(site.execution.device), 0.0)

        def losses(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            each = objective(outputs.double(), targets, reduction="none")
            return each.reshape(len(each), -1).mean(1), targets

        batches = data.fixed(split, site.training.batch_size)
        found, _, groups = predict(site.network, batches, site.execution.device, losses)
        loss = found.double().numpy()
        phi = -np.log(np.expm1(loss.clip(1e-12, 500.0))) if self.classes else -loss
        return phi, groups.numpy()


def _with_train(data: TensorData, train: Split) -> TensorData:
    """``data`` with another training split, in no groups."""
    other = copy.copy(data)
    other.splits = {**data.splits, "train": train}
    if len(data.class_counts):
        other.class_counts = torch.bincount(train.labels, minlength=len(data.class_counts)).to(data.class_counts)
    return other.on(data.device).grouped(Grouping())


def area(score: Array, there: Chosen) -> Mapping[str, float]:
    """AUC of ``score`` for members, with the ends of its 95 % interval; none where all scores are alike.

    Args:
        score: (N,) larger for what is taken for a member.
        there: (N,) the members, at least one and not all.
    """
    order = np.argsort(np.argsort(score, kind="stable"), kind="stable")
    values, inverse = np.unique(score, return_inverse=True)
    ranks = np.bincount(inverse, weights=order + 1.0)[inverse] / np.bincount(inverse)[inverse]
    m, n = int(there.sum()), int((~there).sum())
    auc = float((ranks[there].sum() - m * (m + 1) / 2) / (m * n))
    ends = of_auc(score, there, LEVEL)
    if ends is None and auc in (0.0, 1.0):  # apart: as if each of the fewer kind were one trial
        ends = of_share(round(auc) * min(m, n), min(m, n), LEVEL)
    return {"auc": auc, **({} if ends is None or len(values) < 2 else {"low": ends[0], "high": ends[1]})}


FEW = "too few patients to tell their numbers"
LEFT = "trained in an earlier segment and left: its data are not read"


def measure_risk(folder: Path, shadows: int) -> dict[str, Any]:
    """Attack the model at every site that trained, log what may leave, and write the report anew; its content.

    Raises UserError: no complete run with one model for all sites, an odd number of shadows, a loss that mixes
    patients, or sites' data that are not on this machine.
    """
    _checked(folder, shadows)
    with opened(folder):
        config, parts, attack, run_history = _prepared(folder, shadows)
        if read_json(folder / CONFIG).get("env") not in ("local", "sim") and "site_names" in config.options:
            alone = "each of them can run this with --site, --site-data"
            raise UserError(f"{folder}: its sites' data are elsewhere; {alone}")
        parts.task.check_data()
        names = [name for name in site_names(config) if name != config.leave_out]
        left = [name for name in run_history.counted if name not in names]
        sites, rejected = dict[str, Any](), {name: {"code": "absent", "detail": LEFT} for name in left}
        for name in names:
            site = build_site(config, parts, name)
            _, site.data = site.look()
            if site.data is None:
                rejected[name] = {"code": "data", "detail": "its data have errors"}
            elif found := attack.at(site):
                sites[name] = found
            else:
                rejected[name] = {"code": "few_cases", "detail": FEW}
        about = {"shadows": shadows, "level": LEVEL, "sites": sites, "rejected": rejected}
        AuditLog(folder / AUDIT).append("risk", **about, model_sha256=run_history.finish["model_sha256"])
        return write_report(folder)


def risk_at(folder: Path, shadows: int, name: str, local: Path) -> dict[str, float]:
    """``Attack.at`` one hospital, by itself, on its own machine; the folder, a copy, stays as it is.

    ``name`` is the hospital's, as the run knows it, and ``local`` where its ``fairflare_site.yaml`` lies. Raises
    UserError: as ``measure_risk``; no such site or configuration, data with errors, or too few patients.
    """
    _checked(folder, shadows)
    if find_site_config(local, name) is None:
        raise UserError(f"--site-data: expected a folder with fairflare_site.yaml, got {local}")
    config, parts, attack, _ = _prepared(folder, shadows)
    if name not in (names := site_names(config)) or name == config.leave_out:
        raise UserError(f"--site: expected a site of the run's last segment ({', '.join(names)}), got {name}")
    site = build_site(config, parts, name, local=local)
    findings, site.data = site.look()
    if site.data is None:
        raise UserError(f"{name}: {next(one.text for one in findings if one.level == 'error')}")
    found = attack.at(site)
    if not found:
        raise UserError(f"{name}: {FEW}")
    return found


def _checked(folder: Path, shadows: int) -> None:
    require_run(folder)
    if shadows < 0 or shadows % 2:
        raise UserError(f"--shadows: expected an even number, got {shadows}")


def _prepared(folder: Path, shadows: int) -> tuple[RunConfig, Parts, Attack, RunHistory]:
    """The run, its parts, the attack on its model, and what the log says."""
    run_history, _ = verified_run(folder)
    config = RunConfig.from_json(read_json(folder / CONFIG))
    model = read_final(folder, run_history)
    if not run_history.completed or model is None:
        raise UserError(f"{folder}: the run is not complete; {command('resume', folder)} goes on")
    find(config.init_from, folder)
    parts = build_parts(config)
    if parts.has_personal or parts.rule.own_models:
        raise UserError(f"risk: {config.method} gives sites models of their own, expected one for all")
    if parts.task.kind.family == "cox":
        raise UserError("risk: the loss of one patient depends on the others at risk (choose model hazards)")
    if config.headline == "best":
        model = files.read_model(folder / BEST)
    first = {key: value.clone() for key, value in parts.model.items()}
    alone = benefit.EXCHANGE.at_site(of_run(config, parts)).alone
    attack = Attack(model, first, alone.trainer, parts.task.kind.has_classes, shadows)
    return config, parts, attack, run_history
