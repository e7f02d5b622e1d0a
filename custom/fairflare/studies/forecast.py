# SPDX-License-Identifier: Apache-2.0
"""Alone, use, or join, for a hospital that is outside: at the hospital, from the federation's question and its table.

The question holds what the others are in the decision's formulas: the coefficients and the negative Hessian of all
their patients, and how a table is prepared. Nothing goes back. Two questions of a federation that differ by one
hospital would show this hospital's sums.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fairflare.core.errors import DataError, UserError
from fairflare.core.validation import expected
from fairflare.data.site_config import SiteConfig
from fairflare.decision.regression import Array, Training
from fairflare.decision.study import outside_decision_of
from fairflare.engine.files import read_json
from fairflare.engine.setup.config import RunConfig
from fairflare.engine.setup.parts import build_parts, without_folders
from fairflare.studies.folders import QUESTION
from fairflare.tasks.external import labelled
from fairflare.tasks.folds import everyone, untestable

KEYS = {"run", "event", "rows", "coefficients", "hessian"}
Json = dict[str, Any]


def question_of(config: RunConfig, event: int, rows: int, training: Training) -> Json:
    """The federation's question, without a path of its machine."""
    run = {**config.to_json(), "fold": "", "options": without_folders(config.options)}
    sums = {"coefficients": training.coefficients.tolist(), "hessian": training.hessian.tolist()}
    return {"run": run, "event": event, "rows": rows, **sums}


def answer(question: Path, table: Path, threshold: float | None = None, worthwhile: float = 0.0) -> Json:
    """As ``decision.study.decision_of``, of the hospital with this table.

    Raises UserError: another file than a question, a table that lacks what the models take, or too few patients.
    """
    asked = read_json(question)
    expected(question.name, set(asked) == KEYS, f"keys {', '.join(sorted(KEYS))}", ", ".join(map(str, asked)))
    whole_number = all(type(asked[key]) is int and asked[key] >= 0 for key in ("event", "rows"))
    expected(
        question.name, whole_number and isinstance(asked["run"], dict), "what `join decide` writes", "something else"
    )
    parts = build_parts(RunConfig.from_json(asked["run"]), at_site=True)
    try:
        data = labelled(parts.task, "outside", SiteConfig(data_root=str(table.parent), datalist=table.name))
    except (DataError, ValueError) as error:
        raise UserError(f"{table.name}: {error}") from None
    whole = everyone(data)
    if why := untestable(whole.labels.numpy(), whole.patients):
        raise UserError(f"{table.name}: {why}")
    width = whole.inputs.shape[1] + 1
    sums = (_numbers(asked, key, (width,) * power) for key, power in (("coefficients", 1), ("hessian", 2)))
    return outside_decision_of(whole, asked["event"], Training(*sums), asked["rows"], threshold, worthwhile)


def _numbers(asked: Json, key: str, shape: tuple[int, ...]) -> Array:
    try:
        found = np.array(asked[key], dtype=np.float64)
    except (TypeError, ValueError):
        found = np.zeros(0)
    proper = found.shape == shape and bool(np.isfinite(found).all())
    expected(f"{QUESTION}: {key}", proper, f"finite numbers of shape {shape}", "others")
    return found
