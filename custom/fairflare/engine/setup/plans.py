# SPDX-License-Identifier: Apache-2.0
"""Where a run's defaults come from when its data are a user's own: the sites' fingerprints, where they can be read.

A machine that has all sites' lists (``--datalists``) looks at them before the run's configuration is fixed. In a
deployed federation no machine does: each site's people write its fingerprint to a file (``fairflare fingerprint``), and
whoever exports the job makes a plan of them (``fairflare plan``), which is given as settings (``--plan``). Nothing of
this travels in a job by itself.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairflare.core import validation
from fairflare.core.errors import DataError, UserError
from fairflare.core.findings import may_go_on
from fairflare.core.settings import bare, owner_of
from fairflare.data.table_columns import as_text, names_of, read_columns
from fairflare.data.table_fingerprint import filled, without_levels
from fairflare.engine.files import MOST_JSON, read_bytes, save_json
from fairflare.engine.setup import tasks
from fairflare.tasks.base import Task
from fairflare.tasks.fingerprint import Fingerprint, fingerprint, of_rows
from fairflare.tasks.forms import FORMS
from fairflare.tasks.kinds.own import OwnData
from fairflare.tasks.own.tabular import Tabular
from fairflare.tasks.planning import AGAIN, Choice, cautions, plan

if TYPE_CHECKING:
    from fairflare.engine.setup.config import RunConfig

LEAST = 10
"""Images that a median is of here, where all lists are on one machine; a site's own file may ask for more."""
FORMAT = 1
OF_DATA = ("task.channels", "task.size", "task.window", "task.mean", "task.std", "task.model")
OF_VOLUMES = ("task.spacing", "task.shape", "task.patch")
OF_TABLES = ("task.columns", "task.scaling", "task.outcome_scale")
LINEAR = ("optimizer", "momentum", "lr", "weight_decay")
TRAINING = ("batch_size", "epochs", "local_steps", "fewest_steps", "most_steps", "rounds", *LINEAR)
SETTINGS = (*OF_DATA, *OF_VOLUMES, *OF_TABLES, *(f"train.{name}" for name in TRAINING), "run.best_by", "run.headline")
"""What a plan may set."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """Choices for one kind of data, and what the sites differ in that no setting mends."""

    kind: str
    choices: tuple[Choice, ...] = ()
    cautions: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The content of a plan's file."""
        rows = {one.setting: {"value": one.value, "reason": one.reason} for one in self.choices}
        return {"format": FORMAT, "kind": self.kind, "settings": rows, "cautions": list(self.cautions)}

    def values(self, owner: str, given: Collection[str]) -> dict[str, Any]:
        """Own name -> value of an owner's settings, without those that ``given`` names or leaves without a meaning.

        A value of the mapping ``given`` that is the plan's own leaves every other setting its meaning.
        """
        own = {bare(one.setting): one.value for one in self.choices if owner_of(one.setting) == owner}
        others = [key for key in given if not isinstance(given, Mapping) or given[key] != own.get(key)]
        off = {*given, *(name for key in others if key != READ_BY for name in BESIDE.get(key, ()))}
        off |= {*map(bare, OF_TABLES)}
        return {name: value for name, value in own.items() if name not in off}

    def agreed(self, options: Mapping[str, Any]) -> dict[str, str]:
        """What a table's sites have to have in common: levels where ``options`` have none, scaling unless they say it.

        It holds beside a named preset too, which says how to train and not what a feature is.
        """
        found = {bare(one.setting): str(one.value) for one in self.choices if one.setting in OF_TABLES}
        columns, names = str(options.get("columns", "")), names_of(str(options.get("features", "")))
        if "columns" in found:
            found["columns"] = filled(columns, found["columns"], names)
        return {name: value for name, value in found.items() if name == "columns" or not options.get(name)}

    def reasons(self, values: Mapping[str, Any]) -> list[str]:
        """A line for each choice that holds in a run whose settings are ``values`` by full name, then the cautions."""
        return [str(one) for one in self.choices if values.get(one.setting) == one.value] + list(self.cautions)


NOTHING = Plan("")
STEPS = ("fewest_steps", "most_steps")
BESIDE: Mapping[str, tuple[str, ...]] = {
    "epochs": STEPS,
    "local_steps": ("epochs", *STEPS),
    "model": LINEAR,
    "optimizer": LINEAR,
    "best_by": ("headline",),
    "secure_sum": ("best_by", "headline"),
    "channels": ("mean", "std"),
    "mean": ("std",),
    "std": ("mean",),
    "window": ("mean", "std"),
    "spacing": ("shape", "patch"),
    "shape": ("spacing", "patch"),
    "patch": (),
}
"""A setting of the user's -> those of a plan that mean nothing beside it."""
READ_BY = "window"
"""A setting that a plan may set, and by which images are read where the user has."""


def plan_for(name: str, options: Mapping[str, Any]) -> Plan:
    """The plan for a task without a named preset, from the training data of all sites where this machine has them.

    Returns:
        A plan without choices for every other task, for data that a function builds, and where no site's data can be
        read, which preflight then says.
    """
    if not issubclass(tasks.known(name), OwnData) or not options.get("datalists"):
        return NOTHING
    folder = Path(str(options["datalists"]))
    if not folder.is_dir():
        return NOTHING
    key = _key(name, options, folder)
    _asked.add(key)
    return _looked_at(*key)


def reasons(config: RunConfig) -> list[str]:
    """Why a run that was configured in this process has the defaults it has, a line each; [] where no plan was made."""
    folder = Path(str(config.options.get("datalists") or ""))
    if not config.options.get("datalists") or not folder.is_dir():
        return []
    unset = {READ_BY: ""} if READ_BY in config.options else {}
    keys = [_key(config.task, options, folder) for options in (config.options, {**config.options, **unset})]
    key = next((one for one in keys if one in _asked), None)
    if key is None:
        return []
    found = _looked_at(*key)
    run = {"best_by": config.best_by, "headline": config.headline}
    owned = (("task", config.options), ("train", dataclasses.asdict(config.training)), ("run", run))
    values = {f"{owner}.{name}": value for owner, own in owned for name, value in own.items()}
    usual = tasks.known(config.task).presets[config.preset].training.lr
    usual = found.values("train", ()).get("lr", usual)
    again = config.init_from and config.training.lr == AGAIN * usual
    lower = f"lr {AGAIN * usual:g}: starts from trained weights, {AGAIN:g} of the usual {usual:g} (--set lr={usual:g})"
    return found.reasons(values) + ([lower] if again else [])


_asked: set[tuple[Any, ...]] = set()
"""What plans have been made of in this process."""


def _key(name: str, options: Mapping[str, Any], folder: Path) -> tuple[str, str, tuple[Any, ...]]:
    """What a plan follows from: the task, its options but for those that it sets alone, and the lists as they are."""
    whole = dataclasses.asdict(tasks.load(name, None, **options))
    read = {key: value for key, value in whole.items() if f"task.{key}" not in SETTINGS or key == READ_BY}
    if whole.get("columns"):
        read["columns"] = as_text(without_levels(read_columns(whole["columns"], names_of(whole["features"]))))
    return name, json.dumps(read, sort_keys=True), _stamp(folder)


def plan_of(kind: str, prints: Mapping[str, Fingerprint]) -> Plan:
    """The plan that the fingerprints of the sites lead to."""
    return Plan(kind, tuple(plan(kind, prints)), tuple(cautions(prints)))


def fingerprints(task: OwnData, min_count: int | None = LEAST) -> dict[str, Fingerprint]:
    """Site -> fingerprint, of the sites whose lists are on this machine; {} where one of them cannot be read.

    Without tables of too few rows, which a run leaves out where two sites or more, and most, have enough.
    """
    found, small = dict[str, Fingerprint](), list[DataError]()
    for site in task.sites():
        one = fingerprint(task, site, None, min_count)
        if one is None:
            try:
                if isinstance(task, Tabular) and task.lacks_levels:
                    of_rows(task, task.located(site, None), min_count)  # says why, as nothing later can
            except DataError as error:
                if error.code != "few_examples":
                    raise
                small.append(error)
                continue
            return {}  # preflight refuses the run, and says why
        found[site] = one
    if small and not may_go_on(len(found), len(small)):
        raise small[0]
    return found


@lru_cache(maxsize=16)
def _looked_at(name: str, options: str, stamp: tuple[Any, ...]) -> Plan:
    """Reading images takes a while, and a comparison asks once for every run; ``stamp`` tells changed lists apart."""
    task: Task = tasks.load(name, None, **json.loads(options))
    assert isinstance(task, OwnData)  # ``plan_for`` has looked
    return plan_of(name, fingerprints(task))


def _stamp(folder: Path) -> tuple[Any, ...]:
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return tuple((path.name, found.st_mtime_ns, found.st_size) for path in files for found in (path.stat(),))


def write_plan(found: Plan, path: Path) -> None:
    """Write a plan as ``read_plan`` reads it."""
    save_json(path, found.to_json())


def read_plan(path: Path) -> tuple[str, dict[str, str]]:
    """Kind of data, and setting -> value as ``--set`` takes it; UserError for a file that is none."""
    what = f"--plan {path.name}"
    content = _read_json(path, what)
    rows = content.get("settings") if isinstance(content, Mapping) else None
    if not isinstance(rows, Mapping) or content.get("format") != FORMAT or content.get("kind") not in FORMS:
        raise UserError(f"{what}: expected what `fairflare plan` writes")
    values = {}
    for name, row in rows.items():
        value = row.get("value") if isinstance(row, Mapping) else None
        if name not in SETTINGS or type(value) not in (int, float, str):
            raise UserError(f"{what}: expected settings among {', '.join(SETTINGS)}, got {validation.shown(name)}")
        values[name] = str(value)
    return str(content["kind"]), values


def read_fingerprint(path: Path) -> tuple[str, str, Fingerprint]:
    """Kind of data, site, and its fingerprint, from a file of ``fairflare fingerprint``; UserError for any other."""
    content = _read_json(path, path.name)
    whole = isinstance(content, Mapping) and set(content) == {"format", "kind", "site", "fingerprint"}
    kind, site = (content["kind"], content["site"]) if whole else (None, None)
    if not whole or content["format"] != FORMAT or kind not in FORMS or not isinstance(site, str):
        raise UserError(f"{path.name}: expected what `fairflare fingerprint` writes")
    return str(kind), site, Fingerprint.from_json(content["fingerprint"], validation.shown(site))


def _read_json(path: Path, what: str) -> Any:
    try:
        return json.loads(read_bytes(path, MOST_JSON))
    except (OSError, ValueError, RecursionError, UserError):
        raise UserError(f"{what}: expected a JSON file that can be read") from None
