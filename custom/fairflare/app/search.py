# SPDX-License-Identifier: Apache-2.0
"""Looks for a method's settings with Optuna, by validation alone: trials score no test split at all.

A trial is a run whose sites have no test examples and whose server scores no shared test set; only at the end the best
settings are run as any run is, and its tests are the only ones that are looked at. The study is a SQLite file in the
folder, trials are folders beside it: the same command goes on where another has stopped.
"""

from __future__ import annotations

import shlex
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairflare.app import console
from fairflare.app.folders import created, opened
from fairflare.app.parallel import Cluster, Workers, budget, side_by_side
from fairflare.app.run_file import as_text
from fairflare.app.runs import run_once
from fairflare.app.search_space import Space, sampled
from fairflare.app.search_trials import TRIAL, best_of, run_trial
from fairflare.app.study import Study
from fairflare.core.errors import RunFailed, UserError
from fairflare.core.seeds import derive
from fairflare.core.validation import expected
from fairflare.engine.best import Choice
from fairflare.engine.setup.config import RunConfig, make_config
from fairflare.engine.setup.parts import build_parts
from fairflare.engine.state import save_json, save_text
from fairflare.report.page import render_search, trials_csv
from fairflare.tasks.own.script import Script

if TYPE_CHECKING:
    import optuna

STUDY, RESULT, PAGE, TABLE = "study.db", "search.json", "search.html", "trials.csv"
TRIALS, BEST = "trials", "best"
NAME = "fairflare"


@dataclass(frozen=True)
class Search:
    """What is looked for.

    Attributes:
        method: id.
        task: name or name:preset.
        space: setting -> where its values come from.
        objective: "mean", "worst" or "trade-off", of the headline metric on the sites' validation splits.
        weight: w of the trade-off, mean - w (mean - worst).
        trials: how many in all, those of earlier commands included.
        choices: rounds, sites, seed and further settings, as ``make_config`` takes them.
    """

    method: str
    task: str
    space: Space
    objective: str = "mean"
    weight: float = 0.5
    trials: int = 20
    choices: Mapping[str, Any] = field(default_factory=dict)

    def config(self, values: Mapping[str, Any]) -> RunConfig:
        """The run with these values of the searched settings; raises UserError."""
        texts = {key: as_text(value) for key, value in values.items()}
        return make_config(self.method, self.task, **self.choices, over=texts)


def run_search(search: Search, folder: Path, *, workers: Workers | None = 1) -> dict[str, Any]:
    """Run trials up to ``search.trials``, then the best settings once with tests; returns ``search.json``'s content.

    Args:
        search: what is looked for.
        folder: holds study and trials; that of the same search goes on.
        workers: trials side by side, see ``parallel.budget``.

    Raises:
        UserError: Optuna is not installed, a setting or its range is wrong, there are no validation examples, or the
            folder holds another search.
        RunFailed: no trial ended.
    """
    first = checked(search)
    with created(folder), opened(folder):
        study = _study(search, folder)
        at_once = budget(workers, "local", {"trial": first})
        _again(study)
        while left := search.trials - _finished(study):
            count = min(left, side_by_side(at_once))
            _batch(study, search, folder, count, at_once if isinstance(at_once, Cluster) else count)
        rows = _rows(study, search)
        best = best_of(rows)
        if best is None:
            raise RunFailed(f"search: none of {len(rows)} trials ended; {rows[-1]['reason']}")
        report = run_once(search.config(best["values"]), folder / BEST, workers=1)
        found = _result(search, rows, best, report, folder)
        save_json(folder / RESULT, found)
        save_text(folder / TABLE, trials_csv(found))
        save_text(folder / PAGE, render_search(found))
    return found


def checked(search: Search) -> RunConfig:
    """The run at the low end of every range, when both ends can be built; raises UserError."""
    _optuna()
    low, high = ({key: one.ends[k] for key, one in search.space.items()} for k in (0, 1))
    search.config(high)
    config = search.config(low)
    expected("search", config.task != Script.name, "a task whose splits this package reads, no script's", config.task)
    return config


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise UserError("search: needs Optuna, which is not installed: pip install 'fairflare[search]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _study(search: Search, folder: Path) -> Any:
    """The folder's study; a new one where there is none."""
    import warnings

    optuna = _optuna()
    known = {"method": search.method, "task": search.task, "objective": search.objective, "weight": search.weight}
    known |= {"space": {key: str(one) for key, one in search.space.items()}}
    known |= {"base": search.config({}).sha256()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what Optuna calls experimental
        opened = partial(sqlite3.connect, (folder / STUDY).resolve(), check_same_thread=False)
        # Not by the address alone, in which "?" and "%" of a folder's name would mean something.
        storage = optuna.storages.RDBStorage(f"sqlite:///{STUDY}", engine_kwargs={"creator": opened})
        made = optuna.create_study(storage=storage, study_name=NAME, direction="maximize", load_if_exists=True)
        before = made.user_attrs.get("search")
        if before is not None and before != known:
            key = next(key for key in known if before.get(key) != known[key])
            raise UserError(f"--out {folder}: holds a search with another {key}; give another folder")
        made.set_user_attr("search", known)
        # Another seed for every command: one that goes on would otherwise draw its first trials again.
        seed = derive(int(search.choices.get("seed") or 0), "search", len(made.trials)) % 2**32
        made.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    return made


def _again(study: optuna.Study) -> None:
    """What a killed command was about to try is tried first."""
    optuna = _optuna()
    for trial in study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        study.set_user_attr(f"cut short {trial.number}", True)
        study.enqueue_trial(trial.params)


def _ended(study: optuna.Study) -> list[Any]:
    """The trials that came to an end, by themselves."""
    states = _optuna().trial.TrialState
    ended = study.get_trials(states=(states.COMPLETE, states.FAIL))
    return [trial for trial in ended if f"cut short {trial.number}" not in study.user_attrs]


def _finished(study: optuna.Study) -> int:
    return len(_ended(study))


def _batch(study: optuna.Study, search: Search, folder: Path, count: int, workers: Workers) -> None:
    """Run ``count`` trials side by side and tell the study."""
    asked = [study.ask() for _ in range(count)]
    values = {trial.number: sampled(trial, search.space) for trial in asked}
    runs = {f"{TRIALS}/{number:04d}": search.config(one) for number, one in values.items()}
    (folder / TRIALS).mkdir(exist_ok=True)
    found = Study(runs).make(folder, partial(run_trial, choice=_choice(search)), workers)
    for trial, one in zip(asked, found.values(), strict=True):
        for key in (*TRIAL, "reason"):
            trial.set_user_attr(key, one.get(key))
        state = None if one.get("score") is not None else _optuna().trial.TrialState.FAIL
        study.tell(trial, one.get("score"), state=state)
        console.note(f"trial {trial.number}: {_shown(one)}  {_pairs(values[trial.number])}")


def _choice(search: Search) -> Choice:
    parts = build_parts(search.config({}))
    metric = parts.task.metric(parts.task.headline)
    return Choice(search.objective, search.weight, metric.name, metric.higher_is_better)


def _shown(one: Mapping[str, Any]) -> str:
    score = one.get("score")
    return f"failed: {one.get('reason')}" if score is None else f"{score:.4f}"


def _pairs(values: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={as_text(value)}" for key, value in values.items())


def _rows(study: optuna.Study, search: Search) -> list[dict[str, Any]]:
    """A row per trial, in their order."""
    rows = []
    for trial in _ended(study):
        own = {key: trial.user_attrs.get(key) for key in (*TRIAL, "reason")}
        values = {key: one.of(trial.params[key]) for key, one in search.space.items()}
        rows.append({"trial": trial.number, "values": values, **own})
    return rows


def _result(
    search: Search, rows: Sequence[Mapping[str, Any]], best: Mapping[str, Any], report: Mapping[str, Any], folder: Path
) -> dict[str, Any]:
    words = ["fairflare", "run", search.method, "--task", search.task]
    words += [part for key in ("rounds", "sites", "seed") if search.choices.get(key) for part in _flag(search, key)]
    settings = {**(search.choices.get("values") or {}), **best["values"]}
    words += [part for key, value in settings.items() for part in ("--set", f"{key}={as_text(value)}")]
    fairness = report["fairness"]
    return {
        "method": search.method,
        "task": report["task"],
        "objective": search.objective,
        "weight": search.weight if search.objective == "trade-off" else None,
        "metric": fairness["metric"],
        "over": {key: str(one) for key, one in search.space.items()},
        "trials": list(rows),
        "best": dict(best),
        "command": shlex.join(words),
        "test": {key: fairness[key] for key in ("mean", "worst", "worst_site", "gap")},
        "folder": BEST,
    }


def _flag(search: Search, key: str) -> tuple[str, str]:
    return f"--{key}", str(search.choices[key])
