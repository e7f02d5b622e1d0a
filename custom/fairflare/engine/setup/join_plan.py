# SPDX-License-Identifier: Apache-2.0
"""What a join consists of: federations for each deal, fold and candidate, and on all patients; sums over hospitals.

A job's configuration is that of its first candidate; ``join`` says in what the others differ, and how patients are
tested. Server and sites number the phases alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fairflare.core import registry
from fairflare.core.errors import UserError
from fairflare.core.validation import expected
from fairflare.engine.setup.run_config import RunConfig
from fairflare.functional.decision import Design
from fairflare.functional.exchange import PLACES, Known

OWN_KEYS = ("method", "trainer", "selector", "server_optimizer", "settings", "training")
"""What is a candidate's own of a configuration."""
NONE_OF_THESE = {"after": "none", "best_by": "none", "leave_out": "", "evaluation": False, "solo": False, "fold": ""}
NONE_OF_THESE |= {"exchanges": []}
BOUNDS = {"folds": (2, 20), "repeats": (1, 20), "margin": (0, 0.1), "new_size": (30, 100_000), "features": (0, 200)}
INTERCEPT = " + intercept"
"""After the name of a candidate: its shared model with an intercept that the hospital fits."""
ON_ALL = "all"
"""The fold of a run that all patients train, and none tests; ``tasks.folds.ALL``."""
LEAST_SECRET = 5
"""Hospitals below which a sum of theirs hides too little."""


def with_join(
    runs: Mapping[str, RunConfig], design: Design, margin: float, new_size: int, features: int = 0
) -> RunConfig:
    """The configuration of a job that joins: ``runs`` are the candidates, which differ in ``OWN_KEYS`` alone."""
    first, *others = (run.to_json() for run in runs.values())
    for other in others:
        wrong = [key for key in other if key not in OWN_KEYS and other[key] != first.get(key)]
        expected("join", not wrong, "candidates that differ in method and training alone", ", ".join(wrong))
    candidates = {label: {key: run.to_json()[key] for key in OWN_KEYS} for label, run in runs.items()}
    told = {"folds": design.folds, "repeats": design.repeats, "margin": margin, "new_size": new_size}
    joined = {"candidates": candidates, **told, "features": features}
    made = dataclasses.replace(next(iter(runs.values())), join=joined)
    plan_of(made)
    return made


@dataclass(frozen=True)
class Plan:
    """A join.

    Attributes:
        runs: candidate -> its configuration, without folds.
        new_size: patients of a hospital that is not in.
        features: columns of the table, of which hospitals' regressions are; 0: none is asked.
    """

    runs: Mapping[str, RunConfig]
    design: Design
    margin: float
    new_size: int
    features: int

    @property
    def tested(self) -> int:
        """Federations that leave a fold out."""
        return self.design.repeats * self.design.folds * len(self.runs)

    @property
    def folds(self) -> int:
        """Federations in all; the last ones are of all patients, where regressions are asked."""
        return self.tested + (len(self.runs) if self.features else 0)

    @property
    def nothing_known(self) -> Known:
        """Before the first sum."""
        return Known(len(self.names), self.design, self.features and self.features + 1)

    @property
    def phases(self) -> int:
        """Of one attempt; where a hospital has dropped out, the next ones follow."""
        return self.folds + PLACES

    @property
    def first(self) -> RunConfig:
        return next(iter(self.runs.values()))

    @property
    def secure(self) -> bool:
        return self.first.secure_sum != "none"

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What is answered of: a shared model with and without an own intercept, a personal one alone."""
        found: list[str] = []
        for label, run in self.runs.items():
            found += [label] if registry.get_trainer(run.trainer)().keeps_personal_model else [label, label + INTERCEPT]
        return tuple(found)

    def fold(self, index: int) -> tuple[str, int, int, RunConfig]:
        """(candidate, deal, fold, configuration) of a federation, 0 <= index < folds."""
        turn, candidate = divmod(index, len(self.runs))
        deal, number = divmod(turn, self.design.folds)
        label = list(self.runs)[candidate]
        run, fold = self.runs[label], f"{number}/{self.design.folds}/{deal}"
        if index >= self.tested:
            run, fold = dataclasses.replace(run, accept=sorted({*run.accept, "empty_split"})), ON_ALL
        return label, deal, number, dataclasses.replace(run, fold=fold)


def plan_of(config: RunConfig) -> Plan:
    """What ``config.join`` says, from whoever it comes; raises UserError."""
    said = config.join
    expected("join", set(said) == {"candidates", *BOUNDS}, f"keys candidates, {', '.join(BOUNDS)}", ", ".join(said))
    for key, (low, high) in BOUNDS.items():
        number = type(said[key]) in ((int,) if key != "margin" else (int, float)) and low <= said[key] <= high
        expected(f"join: {key}", number, f"a number from {low:g} to {high:g}", said[key])
    for key, value in NONE_OF_THESE.items():
        expected(f"join: {key}", getattr(config, key) == value, f"{value or 'none'}", getattr(config, key))
    candidates = said["candidates"]
    expected("join: candidates", isinstance(candidates, Mapping) and 0 < len(candidates) <= 8, "1 to 8", candidates)
    shared = {key: value for key, value in config.to_json().items() if key not in (*OWN_KEYS, "join")}
    runs = {label: _candidate(label, own, shared) for label, own in candidates.items()}
    if config.secure_sum != "none" and config.min_sites < LEAST_SECRET:
        raise UserError(f"join: min_sites: expected at least {LEAST_SECRET} with secure_sum, got {config.min_sites}")
    return Plan(runs, Design(said["folds"], said["repeats"]), float(said["margin"]), said["new_size"], said["features"])


def _candidate(label: str, own: Any, shared: Mapping[str, Any]) -> RunConfig:
    expected("join: candidates", isinstance(own, Mapping) and set(own) == set(OWN_KEYS), ", ".join(OWN_KEYS), own)
    run = RunConfig.from_json({**shared, **own})
    trainer = registry.get_trainer(run.trainer)()
    if not trainer.shares_model:
        raise UserError(f"join: {label}: expected a method with one shared model, or a personal one beside it")
    return run
