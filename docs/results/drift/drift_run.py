# SPDX-License-Identifier: Apache-2.0
"""Makes the runs of ``drift_plan.py`` and keeps what each final model says of every site's test patients.

    python docs/results/drift/drift_run.py FOLDER [--only heart,support2] [--workers 1]

FOLDER keeps runs and predictions: the same command goes on with what is missing. What was chosen is written to
``chosen.csv`` beside this script, one line per candidate. ``drift_tables.py`` makes the other files.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "study"))
import drift_plan as plan  # noqa: E402
import run as study  # noqa: E402

from fairflare.core.seeds import derive  # noqa: E402
from fairflare.data.site_config import SiteConfig  # noqa: E402
from fairflare.datasets.heart import Heart  # noqa: E402
from fairflare.datasets.ist import Ist  # noqa: E402
from fairflare.datasets.patients import TEST_SHARE, VAL_SHARE, CentreTask  # noqa: E402
from fairflare.engine.setup import tasks  # noqa: E402
from fairflare.studies.study import arms  # noqa: E402
from fairflare.tasks.base import SPLIT, expect  # noqa: E402

CHOSEN = HERE / "chosen.csv"
HEADER = ("task", "arm", "candidate", "validation_brier", "chosen")
INTERCEPT = {"slope": "false", "split": "train"}
VALUES = {"group_by": "none", "robust": "off"}
"""Settings of all runs. Bounds on a site's update and weight would change the averages that are compared."""


@dataclass(frozen=True)
class Dealt(CentreTask):
    """A task of natural centres whose patients ``data_seed`` shares out anew, each within its own centre."""

    data_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        expect("data_seed", self.data_seed >= 0, "at least 0", self.data_seed)

    def drawn(self) -> tuple[str, ...]:
        """The splits."""
        return (SPLIT,)

    def rows(self, site: str, own: SiteConfig | None = None) -> dict[str, np.ndarray]:
        """Split -> places of the site's patients: 30, 10 and 60 per cent for test, validation and training."""
        everyone = np.sort(np.concatenate(list(super().rows(site, own).values())))
        shuffled = np.random.default_rng(derive(self.data_seed, self.name, "deal", site)).permutation(everyone)
        n_test, n_val = round(TEST_SHARE * len(everyone)), round(VAL_SHARE * len(everyone))
        parts = zip(("test", "val", "train"), np.split(shuffled, (n_test, n_test + n_val)))
        return {split: np.sort(part) for split, part in parts}


@dataclass(frozen=True)
class HeartDealt(Dealt, Heart):
    """``heart``, dealt."""

    name = "heart-dealt"


@dataclass(frozen=True)
class IstDealt(Dealt, Ist):
    """``ist``, dealt; of patients whose outcome is known."""

    name = "ist-dealt"


DEALT = {"heart": HeartDealt, "ist": IstDealt}


def main() -> None:
    """Choose, run, keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", help="keys of tasks")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tasks.ADDED.update({task.name: task for task in DEALT.values()})
    for task in (task for task in plan.TASKS if options.only is None or task.key in options.only.split(",")):
        folder = options.folder / task.key
        chosen = choose(task, folder, options.workers)
        make(task, chosen, range(task.deals), folder, options.workers)
        if task.key == "heart":
            make(plan.NATURAL, chosen, (0,), options.folder / plan.NATURAL.key, options.workers)


def choose(task: plan.Measured, folder: Path, workers: int) -> dict[str, str]:
    """Key of a trained arm -> METHOD with the learning rate of the least Brier score on validation patients."""
    seeds = range(plan.FIRST_TUNING, plan.FIRST_TUNING + task.tuning)
    rows, chosen = [], {}
    for arm in (arm for arm in plan.arms(task) if arm.method):
        labels = plan.candidates(arm, task)
        losses = tried(labels, task, seeds, folder, workers) if arm.rate else dict.fromkeys(labels, float("nan"))
        best = plan.NEAR[min(range(len(labels)), key=lambda place: losses[labels[place]])] if arm.rate else None
        if best in plan.FAR:
            losses |= tried(plan.candidates(arm, task, (plan.FAR[best],)), task, seeds, folder, workers)
        chosen[arm.key] = min(losses, key=lambda label: losses[label])
        rows += [(task.key, arm.key, label, f"{loss:.6f}", label == chosen[arm.key]) for label, loss in losses.items()]
    old = [tuple(row.values()) for row in study.tables.read(CHOSEN) if row["task"] != task.key]
    order = [one.key for one in plan.TASKS]
    with CHOSEN.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(
            [HEADER, *sorted([*old, *rows], key=lambda row: order.index(row[0]))]
        )
    return chosen


def tried(
    labels: Sequence[str], task: plan.Measured, seeds: Sequence[int], folder: Path, workers: int
) -> dict[str, float]:
    """METHOD -> Brier score on validation patients, a mean over sites and deals."""
    kept = iter(study.together(configured(labels, task, seeds), folder / "tuning", workers))
    return {label: float(np.mean([study.loss(next(kept)) for _ in seeds])) for label in labels}


def configured(labels: Sequence[str], task: plan.Measured, seeds: Sequence[int]) -> list[study.Run]:
    """(folder name, run) of every label with every deal; the natural split stays as it is."""
    name, _, preset = task.task.partition(":")
    dealt = task is not plan.NATURAL and name in DEALT
    return arms(labels, f"{DEALT[name].name if dealt else name}:{preset}", seeds, values=VALUES)


def make(task: plan.Measured, chosen: dict[str, str], deals: Sequence[int], folder: Path, workers: int) -> None:
    """The reported runs and what follows from them; what each says of the test patients goes to ``predictions``."""
    runs = {key: configured([label], task, deals) for key, label in chosen.items()}
    for found in runs.values():
        study.together(found, folder / "runs", workers)
    for arm in plan.arms(task):
        for deal, run in zip(deals, runs[arm.of or (arm.key if arm.method else "fedavg")], strict=True):
            keep(folder, arm, deal, run)


def keep(folder: Path, arm: plan.Arm, deal: int, run: study.Run) -> None:
    """What one final model, with what is done to it afterwards, tells of the test patients."""
    kept = folder / "predictions" / f"{arm.key}-deal{deal}.npz"
    if kept.is_file():
        return
    place = folder / "runs" / run[0]
    found = study.recalibrated(place, run[1], INTERCEPT) if arm.after == "intercept" else study.beside(place)
    if arm.after == "shares" or not (arm.method or arm.of):
        found = study.with_prior(run[1], found, alone=not arm.of)
    study.write(kept, {key: values for key, values in found.items() if "/val/" not in key})


if __name__ == "__main__":
    main()
