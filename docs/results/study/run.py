# SPDX-License-Identifier: Apache-2.0
"""Makes the study's runs, one task after the other, and keeps what their final models say of every patient.

    python docs/results/study/run.py FOLDER [--only ist,heart-full] [--first] [--workers 2]

FOLDER keeps runs and predictions: the same command goes on with what is missing. What was chosen is written to
``chosen.csv`` beside this script. The predictions stay in FOLDER; ``tables.py`` makes the committed files from them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import answers
import numpy as np
import plan
import tables
import torch

from fairflare.core.types import StateDict
from fairflare.datasets.patients import TableTask
from fairflare.engine.after.recalibrate import FAR
from fairflare.engine.checkpoint import load_checkpoint
from fairflare.engine.evaluation import predict
from fairflare.engine.files import CHECKPOINT, MODEL, SUFFIX, read_model
from fairflare.engine.history import read_final, read_standing
from fairflare.engine.memory import personal_file
from fairflare.engine.setup.assembly import save_config
from fairflare.engine.setup.config import RunConfig, site_of_client, with_step
from fairflare.engine.setup.local import SITES, LocalSites, run_local, step_after
from fairflare.engine.setup.parts import Parts, build_parts
from fairflare.functional.recalibration import limited
from fairflare.report.write import verified_run
from fairflare.studies.folders import fresh_folder
from fairflare.studies.parallel import budget
from fairflare.studies.study import Study, arms

HERE = Path(__file__).resolve().parent
CHOSEN = HERE / "chosen.csv"
Run = tuple[str, RunConfig]
Predicted = dict[str, np.ndarray]
"""SITE/SPLIT/z: the logit of the second class, or of each of more than two; SITE/SPLIT/y: the classes; SITE/SPLIT/id:
of a table whose patients each seed deals out anew, each patient's row; SITE/train/n: how many it has trained with."""


def main() -> None:
    """Choose, run, recalibrate, predict."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", help="keys of tasks")
    parser.add_argument("--first", action="store_true", help="those arms alone that are run first")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    asked = [study for study in plan.STUDIES if options.only is None or study.key in options.only.split(",")]
    for first in (True,) if options.first else (True, False):
        for study in asked:
            make(study, options.folder / study.key, options.workers, first)


def choose(study: plan.Study, folder: Path, workers: int, first: bool) -> dict[str, str]:
    """Key of an arm -> METHOD with what was chosen on validation patients; runs what is missing."""
    trained = [arm for arm in study.arms(first) if arm.chosen]
    labels = {arm.key: plan.candidates(arm, study) for arm in trained}
    losses: dict[str, float] = {}
    if study.tuned:
        plain = [arm for arm in trained if not arm.settings]
        losses = tried([label for arm in plain for label in labels[arm.key]], study, folder, workers)
        rates = {arm.key: with_further(losses, labels[arm.key]) for arm in plain}
        for arm in plain:
            labels[arm.key] = plan.candidates(arm, study, rates[arm.key])
        losses |= tried(
            [label for arm in plain for label in labels[arm.key][len(plan.STEPS) :]], study, folder, workers
        )
        served = ranked(losses, labels["fedavg"], rates["fedavg"])[:2]
        for arm in trained:
            if arm.settings:
                labels[arm.key] = plan.candidates(arm, study, served)
        others = [label for arm in trained if arm.settings for label in labels[arm.key]]
        losses |= tried(others, study, folder, workers)
    rows: list[list[object]] = [["task", "arm", "candidate", "validation_brier", "chosen"]]
    chosen = {}
    for arm in trained:
        means = {label: losses.get(label, float("nan")) for label in labels[arm.key]}
        chosen[arm.key] = min(means, key=lambda label: means[label])
        rows += [[study.key, arm.key, label, f"{mean:.6f}", label == chosen[arm.key]] for label, mean in means.items()]
    tables.replace(CHOSEN, study.key, rows)
    return chosen


def tried(labels: Sequence[str], study: plan.Study, folder: Path, workers: int) -> dict[str, float]:
    """METHOD -> the loss on validation patients, a mean over the tuning seeds."""
    seeds, each = plan.TUNING[study.natural], list(dict.fromkeys(labels))
    kept = iter(together(configured(each, study, seeds), folder / "tuning", workers)) if each else iter(())
    return {label: float(np.mean([loss(next(kept)) for _ in seeds])) for label in each}


def with_further(losses: Mapping[str, float], labels: Sequence[str]) -> tuple[float, ...]:
    """The rates of an arm's candidates, and the one beyond its best where that is the first or the last."""
    best = plan.STEPS[min(range(len(labels)), key=lambda place: losses[labels[place]])]
    return (*plan.STEPS, *((plan.FURTHER[best],) if best in plan.FURTHER else ()))


def ranked(losses: Mapping[str, float], labels: Sequence[str], rates: Sequence[float]) -> tuple[float, ...]:
    """The rates of the candidates, times the preset's, the best first."""
    return tuple(rates[place] for place in sorted(range(len(labels)), key=lambda place: losses[labels[place]]))


def loss(predicted: Predicted) -> float:
    """Brier score on validation patients, a mean over sites that have any."""
    sites = sorted(tables.sites_in(predicted))
    found = [answers.squared(predicted[f"{site}/val/z"], predicted[f"{site}/val/y"]) for site in sites]
    return float(np.mean([np.mean(one) for one in found if len(one)]))


def make(study: plan.Study, folder: Path, workers: int, first: bool) -> None:
    """The reported runs and their recalibrations; what each says of the test patients goes to ``predictions``."""
    chosen = choose(study, folder, workers, first)
    usual = [arm for arm in study.arms(first) if arm.key in chosen]
    runs = {arm.key: configured([chosen[arm.key]], study, plan.SEEDS) for arm in usual}
    together([run for found in runs.values() for run in found], folder / "runs", workers)
    for arm in study.arms(first):
        if arm.like:
            runs[arm.key] = configured([chosen[arm.like]], study, plan.SEEDS, round(arm.longer * study.rounds))
            together(runs[arm.key], folder / arm.key, workers)
        of = "fedavg" if arm.trivial else arm.of or arm.key
        for seed, run in zip(plan.SEEDS, runs[of], strict=True):
            keep(folder, arm, seed, run)


def keep(folder: Path, arm: plan.Arm, seed: int, run: Run) -> None:
    """What one final model, recalibrated where the arm says so, tells of the test patients."""
    kept = folder / "predictions" / f"{arm.key}-seed{seed}.npz"
    if not kept.is_file():
        place = folder / (arm.key if arm.like else "runs") / run[0]
        found = recalibrated(place, run[1], arm.after[1]) if arm.after else beside(place)
        found = with_prior(run[1], found, alone=arm.trivial) if arm.trivial or arm.prior else found
        write(kept, {key: values for key, values in found.items() if "/val/" not in key})


def configured(labels: Sequence[str], study: plan.Study, seeds: Sequence[int], rounds: int | None = None) -> list[Run]:
    """(folder name, run) of every label with every seed."""
    values = {"group_by": study.group_by, "robust": "off", **study.settings}
    return arms(labels, study.task, seeds, rounds=rounds, values=values)


def together(runs: Sequence[Run], folder: Path, workers: int) -> list[Predicted]:
    """The predictions of all runs, of which the missing ones are made."""
    folder.mkdir(parents=True, exist_ok=True)
    if missing := {name: config for name, config in runs if not beside_file(folder / name).is_file()}:
        Study(missing).make(folder, run_and_predict, budget(workers, "local", missing))
    return [beside(folder / name) for name, _ in runs]


def run_and_predict(config: RunConfig, folder: Path, workers: int = 1) -> Mapping[str, Any]:
    """One run without its report, and beside its folder what its final model says of validation and test patients."""
    parts = build_parts(config)
    with fresh_folder(folder, force=True):
        save_config(config, parts, folder, "local")
        with LocalSites(config, folder, parts, workers) as sites:
            run_local(config, folder, parts=parts, sites=sites)
    write(beside_file(folder), predictions(folder, config))
    return {}


def beside_file(folder: Path) -> Path:
    """The file of a run's predictions."""
    return folder.with_name(f"{folder.name}.npz")


def beside(folder: Path) -> Predicted:
    """A run's predictions."""
    with np.load(beside_file(folder)) as kept:
        return dict(kept)


def write(path: Path, found: Predicted) -> None:
    """All or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (scratch := path.with_name(f".{path.name}")).open("wb") as file:
        np.savez_compressed(file, **found)  # type: ignore[arg-type]
    scratch.rename(path)


def predictions(folder: Path, config: RunConfig) -> Predicted:
    """What each site's patients are told by the model that serves them: its own, where it has one."""
    parts = build_parts(config)
    shared = read_model(folder / MODEL)
    found: Predicted = {}
    for client, site in site_of_client(config, parts.task).items():
        parts.network.load_state_dict(serving(folder, client, parts, shared))
        data = parts.trainer.site_data(parts.task.site_data(site))
        found[f"{site}/train/n"] = np.array(data.size("train"))
        rows = parts.task.rows(site) if isinstance(parts.task, TableTask) else {}
        found |= {f"{site}/{split}/id": rows[split] for split in ("val", "test") if split in rows}
        for split in ("val", "test"):
            outputs, targets, _ = predict(parts.network, data.fixed(split, 256), torch.device("cpu"))
            two = len(outputs) and outputs.shape[1] == 2
            z = (outputs[:, 1] - outputs[:, 0]) if two else outputs
            found |= {f"{site}/{split}/z": z.double().numpy(), f"{site}/{split}/y": targets.numpy().astype(np.int8)}
    return found


def serving(folder: Path, client: str, parts: Parts, shared: StateDict) -> StateDict:
    """The model that a site uses in the end."""
    if parts.rule.counts_own:
        return load_checkpoint(folder / CHECKPOINT).models[client]
    kept = personal_file(folder / SITES / f"{client}{SUFFIX}")
    return {**shared, **read_model(kept)} if kept.is_file() else shared


def with_prior(config: RunConfig, like: Predicted, alone: bool) -> Predicted:
    """The predictions of a run with the shares of each site's own training patients added, or these shares alone."""
    parts, found = build_parts(config), dict(like)
    for site in site_of_client(config, parts.task).values():
        counts, name = parts.task.site_data(site).class_counts.numpy(), f"{site}/test/z"
        shares = answers.of_prior(counts, len(like[name]))
        found[name] = shares if alone else like[name] + shares
    return found


def recalibrated(folder: Path, config: RunConfig, settings: dict[str, str]) -> Predicted:
    """The predictions of a run after the step, whose parameters the sites have kept."""
    history, _ = verified_run(folder)
    model, standing = read_final(folder, history), read_standing(folder, history)
    assert model is not None and standing is not None  # the run has ended
    step_after(with_step(config, "recalibrate", settings), folder, model, standing)
    found = predictions(folder, config)
    for client, site in site_of_client(config, build_parts(config).task).items():
        line = json.loads((folder / SITES / f"{client}.after.json").read_text())["own"]
        if line:
            z = limited(found[f"{site}/test/z"], FAR)
            found[f"{site}/test/z"] = line["intercept"] + line["slope"] * z
    return found


if __name__ == "__main__":
    sys.exit(main())
