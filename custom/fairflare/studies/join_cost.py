# SPDX-License-Identifier: Apache-2.0
"""What a join costs: fewer repetitions, then fewer folds, where a budget asks for it, and never fewer patients."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from functools import partial
from pathlib import Path

from fairflare.core.errors import UserError
from fairflare.engine import audit
from fairflare.engine.files import AUDIT
from fairflare.functional.decision import Design
from fairflare.studies import display
from fairflare.studies.candidates import on_fold
from fairflare.studies.join import OneSplit, Question
from fairflare.studies.labels import folder_name
from fairflare.studies.parallel import Workers, budget
from fairflare.studies.runs import run_once
from fairflare.studies.study import Study
from fairflare.tasks.folds import ALL, FEWEST


def within(
    question: Question, folder: Path, minutes: float, *, force: bool = False, workers: Workers | None = 1
) -> Question:
    """The question with as many repetitions and folds as its trainings have time for.

    Each method is first trained once on all patients, which ``combine`` needs anyhow; how long that took is in the
    run's log, so that the same command makes the same of it again. Own models are not counted.

    Args:
        question: with the most repetitions and folds.
        folder: of the join.
        minutes: for all trainings.
        force: makes the runs on all patients again.
        workers: see ``parallel.budget``.

    Raises:
        UserError: there is no time for one repetition of two folds.
    """
    runs = {f"{folder_name(label)}-{ALL}": on_fold(config, ALL) for label, config in question.each().items()}
    with Study(runs).finished(folder, partial(run_once, force=force), workers=workers):
        each = sum(seconds_of(folder / name) for name in runs)
    found = budget(workers, "local", question.runs())
    at_once = found if isinstance(found, int) else 1
    left = 60 * minutes - each / at_once
    design = next((one for one in fewer(question.design) if trainings(one) * each / at_once <= left), None)
    if design is None:
        least = each / at_once * (1 + trainings(fewer(question.design)[-1])) / 60
        raise UserError(f"--budget: expected at least {least:.1f} minutes, got {minutes:g}")
    took = display.duration(trainings(design) * each / at_once)
    display.note(f"--budget {minutes:g}: {design.folds} folds, {design.repeats} repetitions, about {took} of training")
    return dataclasses.replace(question, design=design)


def fewer(design: Design) -> list[Design]:
    """The design, then with fewer repetitions, then of one repetition with fewer folds."""
    if isinstance(design, OneSplit):
        return [design]
    sizes = [(design.folds, repeats) for repeats in range(design.repeats, 0, -1)]
    sizes += [(folds, 1) for folds in range(design.folds - 1, FEWEST - 1, -1)]
    return [dataclasses.replace(design, folds=folds, repeats=repeats) for folds, repeats in sizes]


def trainings(design: Design) -> float:
    """How many trainings on all patients its trainings take as long as; each has (K - 1) / K of them."""
    return (1 if isinstance(design, OneSplit) else design.repeats * design.folds) * (design.folds - 1) / design.folds


def seconds_of(folder: Path) -> float:
    """From a run's first line in its log to its last."""
    first, *_, last = (datetime.fromisoformat(entry["time"]) for entry in audit.verify(folder / AUDIT))
    return (last - first).total_seconds()
