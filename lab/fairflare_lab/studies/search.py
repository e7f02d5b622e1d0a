# SPDX-License-Identifier: Apache-2.0
"""Looks for a method's settings with Optuna, by validation alone: trials score no test split at all.

A trial is a run whose sites have no test examples and whose server scores no shared test set; only at the end the best
settings are run as any run is, and its tests are the only ones that are looked at. The study is a SQLite file in the
folder, trials are folders beside it: the same command goes on where another has stopped.
"""

from __future__ import annotations

import math
import re
import shlex
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairflare.core.errors import RunFailed, UserError
from fairflare.core.findings import Finding
from fairflare.core.seeds import derive
from fairflare.core.types import Batch, SiteData, SplitName
from fairflare.core.validation import expected, shown
from fairflare.engine import audit
from fairflare.engine.best import Choice
from fairflare.engine.files import AUDIT, save_json, save_text
from fairflare.engine.in_process import InProcess
from fairflare.engine.memory import forget
from fairflare.engine.setup.assembly import build_federation, save_config
from fairflare.engine.setup.config import RunConfig, make_config, site_of_client
from fairflare.engine.setup.local import SITES, LocalSites
from fairflare.engine.setup.parts import build_parts
from fairflare.report.audit_reader import PERSONAL
from fairflare.report.personal import as_used
from fairflare.studies import display
from fairflare.studies.folders import created, fresh_folder, opened
from fairflare.studies.labels import as_text
from fairflare.studies.parallel import budget
from fairflare.studies.runs import run_once
from fairflare.studies.study import Study
from fairflare.tasks.own.script import Script
from fairflare_lab.report.search import render_search, trials_csv

if TYPE_CHECKING:
    import optuna

FORM = "KEY=LOW..HIGH, KEY=LOW..HIGH:log, or KEY=A,B,C"
MOST_CHOICES = 1000
TRIAL = ("score", "mean", "worst", "worst_site", "model_sha256")
"""What a trial comes to, on validation."""
STUDY, RESULT, PAGE, TABLE = "study.db", "search.json", "search.html", "trials.csv"
TRIALS, BEST = "trials", "best"
NAME = "fairflare"


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, whole ones where both are written so; ``log``: even in their logarithm."""

    low: float
    high: float
    log: bool = False

    def __str__(self) -> str:
        return f"{self.low}..{self.high}{':log' if self.log else ''}"

    def draw(self, trial: optuna.Trial, key: str) -> float:
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(key, self.low, self.high, log=self.log)
        return trial.suggest_float(key, self.low, self.high, log=self.log)


@dataclass(frozen=True)
class Choices:
    """One of some values, as texts of the command line."""

    values: tuple[str, ...]

    def __str__(self) -> str:
        return ",".join(self.values)

    def draw(self, trial: optuna.Trial, key: str) -> str:
        return str(trial.suggest_categorical(key, self.values))


Space = Mapping[str, Range | Choices]


def parse_over(texts: Sequence[str]) -> dict[str, Range | Choices]:
    """ "rule.q=0.1..10:log" -> {"rule.q": Range(0.1, 10, True)}; raises UserError on anything else."""
    found: dict[str, Range | Choices] = {}
    for text in texts:
        key, equals, values = (part.strip() for part in text.partition("="))
        if not (key and equals and values):
            raise UserError(f"--over: expected {FORM}, got {shown(text)}")
        if key in found:
            raise UserError(f"--over: {shown(key)} is given twice")
        found[key] = _values(key, values)
    if not found:
        raise UserError(f"--over: expected at least one setting to search: {FORM}")
    return found


def _values(key: str, text: str) -> Range | Choices:
    match = re.fullmatch(r"([^,:]+?)\.\.([^,:]+?)(:log)?", text)
    if match is None:
        choices = tuple(part.strip() for part in text.split(","))
        if len(set(choices)) < len(choices) or not all(choices) or not 2 <= len(choices) <= MOST_CHOICES:
            raise UserError(f"--over {key}: expected a range or at least two different values, got {shown(text)}")
        return Choices(choices)
    low, high, log = _number(key, match[1]), _number(key, match[2]), match[3] is not None
    if not low < high:
        raise UserError(f"--over {key}: expected LOW below HIGH, got {shown(text)}")
    if log and low <= 0:
        raise UserError(f"--over {key}: expected LOW above 0 with :log, got {shown(text)}")
    return Range(low, high, log)


def _number(key: str, text: str) -> float:
    try:
        number = float(text) if not re.fullmatch(r"[+-]?\d{1,9}", text.strip()) else int(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"--over {key}: expected numbers on both sides of .., got {shown(text)}")
    return number


class Untested:
    """A site's data without its test split: nothing can be measured on it."""

    def __init__(self, data: SiteData) -> None:
        self._data = data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)

    def size(self, split: SplitName) -> int:
        return 0 if split == "test" else self._data.size(split)

    def fixed(self, split: SplitName, batch_size: int, at_most: int | None = None) -> Iterator[Batch]:
        return iter(()) if split == "test" else self._data.fixed(split, batch_size, at_most)


def run_trial(config: RunConfig, folder: Path, *, choice: Choice, workers: int = 1) -> dict[str, Any]:
    """Run ``config`` without tests into ``folder`` and return ``TRIAL``; "reason" where the run failed.

    What a killed command has left in the folder goes. ``workers`` is not used, since trials run side by side. Raises
    UserError where a site has no validation examples.
    """
    parts = build_parts(config)
    parts.task.check_data()
    with fresh_folder(folder, force=True):
        save_config(config, parts, folder, "local")
        try:
            with LocalSites(config, folder, parts) as sites:
                transport = sites.transport
                assert isinstance(transport, InProcess)
                for site in transport.members():
                    site.look = partial(_untested, site.look)
                federation = build_federation(config, parts, transport, folder, "local", (), sites.at_server)
                federation.score = None  # the shared test sets
                federation.run(parts.model)
        except RunFailed as failed:
            return {"score": None, "reason": str(failed)}
        forget(folder / SITES, site_of_client(config, parts.task))
        own = parts.has_personal or parts.counts_own
        return scored(audit.Entries(folder / AUDIT, torn=False), choice, own=own)


def scored(entries: Sequence[Mapping[str, Any]], choice: Choice, *, own: bool = False) -> dict[str, Any]:
    """What a trial's log says of the final model on the validation splits; raises UserError where a site has none.

    ``own``: of each site's own model, where it has one.
    """
    evaluation = next(entry for entry in entries if entry["event"] == "evaluation")
    used = {site: own and found.get(PERSONAL) or found for site, found in evaluation["sites"].items()}
    values = {site: found["val"].get(choice.metric) for site, found in used.items()}
    missing = sorted(site for site, value in values.items() if value is None)
    if missing or not values:
        raise UserError(f"search: site {missing[0] if missing else '?'}: has no {choice.metric} on a validation split")
    last = next(entry for entry in reversed(entries) if "model_sha256" in entry)
    worst = (min if choice.higher else max)(sorted(values), key=lambda site: values[site])
    found = {"score": choice.score(values), "mean": sum(values.values()) / len(values)}
    return {**found, "worst": values[worst], "worst_site": worst, "model_sha256": last["model_sha256"]}


def best_of(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The row with the largest score, the first of equals; None where no trial has one."""
    known = [row for row in rows if row["score"] is not None]
    return max(known, key=lambda row: row["score"], default=None)


def _untested(look: Any) -> tuple[list[Finding], SiteData | None]:
    found, data = look()
    return found, None if data is None else Untested(data)


@dataclass(frozen=True)
class Search:
    """What is looked for."""

    method: str
    task: str
    space: Space
    objective: str = "mean"
    """ "mean", "worst" or "trade-off", of the headline metric on the sites' validation splits."""
    weight: float = 0.5
    """w of the trade-off, mean - w (mean - worst)."""
    trials: int = 20
    """How many in all, those of earlier commands included."""
    choices: Mapping[str, Any] = field(default_factory=dict)
    """Rounds, sites, seed and further settings, as ``make_config`` takes them."""

    def config(self, values: Mapping[str, Any]) -> RunConfig:
        """The run with these values of the searched settings; raises UserError."""
        texts = {key: as_text(value) for key, value in values.items()}
        return make_config(self.method, self.task, **self.choices, over=texts)


def run_search(search: Search, folder: Path, *, workers: int | None = 1) -> dict[str, Any]:
    """Run trials up to ``search.trials``, then the best settings once with tests; returns ``search.json``'s content.

    The study and the trials that ``folder`` holds go on. ``workers``: trials side by side, see ``parallel.budget``.
    Raises UserError: Optuna is not installed, a setting or its range is wrong, there are no validation examples, or the
    folder holds another search; RunFailed: no trial ended.
    """
    first = checked(search)
    with created(folder), opened(folder):
        study = _study(search, folder)
        at_once = budget(workers, "local", {"trial": first})
        _again(study)
        while left := search.trials - len(_ended(study)):
            count = min(left, at_once)
            _batch(study, search, folder, count)
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
    both = {key: (one.low, one.high) if isinstance(one, Range) else one.values for key, one in search.space.items()}
    search.config({key: ends[-1] for key, ends in both.items()})
    config = search.config({key: ends[0] for key, ends in both.items()})
    expected("search", config.task != Script.name, "a task whose splits this package reads, no script's", config.task)
    return config


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise UserError("search: needs Optuna, which is not installed: pip install 'fairflare-lab[search]'") from None
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


def _batch(study: optuna.Study, search: Search, folder: Path, count: int) -> None:
    """Run ``count`` trials side by side and tell the study."""
    asked = [study.ask() for _ in range(count)]
    values = {trial.number: {key: one.draw(trial, key) for key, one in search.space.items()} for trial in asked}
    runs = {f"{TRIALS}/{number:04d}": search.config(one) for number, one in values.items()}
    (folder / TRIALS).mkdir(exist_ok=True)
    task = build_parts(search.config({})).task
    metric = task.metric(task.headline)
    choice = Choice(search.objective, search.weight, metric.name, metric.higher_is_better)
    found = Study(runs).make(folder, partial(run_trial, choice=choice), count)
    for trial, one in zip(asked, found.values(), strict=True):
        for key in (*TRIAL, "reason"):
            trial.set_user_attr(key, one.get(key))
        failed = one["score"] is None
        study.tell(trial, one["score"], state=_optuna().trial.TrialState.FAIL if failed else None)
        said = f"failed: {one.get('reason')}" if failed else f"{one['score']:.4f}"
        pairs = " ".join(f"{key}={as_text(value)}" for key, value in values[trial.number].items())
        display.note(f"trial {trial.number}: {said}  {pairs}")


def _rows(study: optuna.Study, search: Search) -> list[dict[str, Any]]:
    return [
        {"trial": trial.number, "values": {key: trial.params[key] for key in search.space}}
        | {key: trial.user_attrs.get(key) for key in (*TRIAL, "reason")}
        for trial in _ended(study)
    ]


def _result(
    search: Search, rows: Sequence[Mapping[str, Any]], best: Mapping[str, Any], report: Mapping[str, Any], folder: Path
) -> dict[str, Any]:
    pairs = [(f"--{key}", value) for key in ("rounds", "sites", "seed") if (value := search.choices.get(key))]
    settings = {**(search.choices.get("values") or {}), **best["values"]}
    pairs += [("--set", f"{key}={as_text(value)}") for key, value in settings.items()]
    words = ["fairflare", "run", search.method, "--task", search.task, *(str(part) for pair in pairs for part in pair)]
    fairness = as_used(report["detail"])["fairness"]
    worst = {"worst": fairness["worst"]["value"], "worst_site": fairness["worst"]["site"]}
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
        "test": {"mean": fairness["mean"], **worst, "gap": fairness["gap"]},
        "folder": BEST,
    }
