# SPDX-License-Identifier: Apache-2.0
"""A site's veto: FLARE asks it about every job before anything of the job is built or run.

In the site's ``local/resources.json``:

    "app_validator": {"path": "fairflare.flare.site_policy.SitePolicy", "args": {}}

It runs in the client's long-lived process, which has this package installed or in ``local/custom``, and only reads: no
file of the job is imported. What cannot be read is refused. FLARE sends the reason to whoever submitted the job. The
site's own rules are ``local/fairflare_policy.yaml``, which no job can read or change.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Annotated, Any

from nvflare.apis.app_validation import AppValidator
from nvflare.apis.job_def import is_valid_job_id
from pydantic.dataclasses import dataclass

from fairflare.core import plugins, registry
from fairflare.core.errors import FairFlareError, UserError
from fairflare.core.manifest import check_code
from fairflare.core.user_code import check_name
from fairflare.core.validation import STRICT, Entries, Range, Text, check_plain, one_line
from fairflare.core.validation import expected as expect
from fairflare.engine.files import read_json
from fairflare.engine.memory import SPENT_ENDING
from fairflare.engine.setup import tasks
from fairflare.engine.setup.at_site import spender
from fairflare.engine.setup.method_parts import NO_STEP
from fairflare.engine.setup.run_config import JSON_NAMES, RunConfig
from fairflare.flare.compat import harden_client
from fairflare.flare.kit_dates import out_of_date
from fairflare.flare.paths import STATE, unescaped
from fairflare.networks import monai_networks
from fairflare.networks.own_class import class_path
from fairflare.privacy.schemes import NONE

FILES = ("fairflare_policy.yaml", "fairflare_policy.yml", "fairflare_policy.json")
SOLO, JOIN = "solo", "join"
"""In ``after``: the benefit of joining for the site, of the run's own models, and in a job that asks nothing else."""
HERE = "this site's policy file"
"""What a submitter reads in place of its path."""
SHARES = "a list of numbers between 0 and 1"
Names = Annotated[list[Annotated[str, Text()]], Entries(words="a list of names")]
Count = Annotated[int, Range(0, 10**18)]


@one_line
@dataclass(frozen=True, config=STRICT)
class Policy:
    """What a site allows; without a file, whatever FLARE's own policies do.

    Attributes:
        allow_code: False refuses jobs that bring code, whoever submits them.
        methods: ids of the methods; None: all.
        tasks: names of the tasks; None: all.
        max_rounds: the most rounds of a job; None: any number.
        min_count: the least ``min_count`` of a job; None: any.
        secure_sum: True takes jobs with secure sums only.
        after: steps after the last round that jobs may have, which ask for numbers over single cases: "recalibrate",
            "conformal", "solo" for the benefit of joining, "join" for jobs that ask it fold by fold, and ids
            of exchanges of plugins. None: all.
        thresholds: risks from which on jobs may count patients as flagged (the run key ``threshold``, else the task's),
            since two that lie close tell of the few between; None: all.
        epsilon: the most that jobs together may spend of it, by their sum in the site's ``*.privacy.json``; then every
            job's trainer must be private (dp-sgd). None: any, spent or not.
        delta: the same, of delta.
        columns: columns of the site's table, or keys of its list, that jobs may name; None: all but those of patients.
        names: what jobs may name in the site's own ``local/custom``, as module.Name; None: everything defined there.
        classes: FLARE components that jobs may have beside this package's and FLARE's privacy filters.
    """

    allow_code: bool = True
    methods: Names | None = None
    tasks: Names | None = None
    max_rounds: Count | None = None
    min_count: Count | None = None
    secure_sum: bool = False
    after: Names | None = None
    thresholds: Annotated[list[Annotated[float, Range(0, 1)]], Entries(words=SHARES)] | None = None
    epsilon: Annotated[float, Range(0, 1e6)] | None = None
    delta: Annotated[float, Range(0, 1)] | None = None
    columns: Names | None = None
    names: Names | None = None
    classes: Names = dataclasses.field(default_factory=list)

    def check(self, config: RunConfig) -> None:
        """Raise UserError, which says what this site expects, unless ``config`` keeps to it."""
        for key, chosen, allowed in (("method", config.method, self.methods), ("task", config.task, self.tasks)):
            if allowed is not None and chosen not in allowed:
                raise UserError(f"{key}: expected one of {', '.join(allowed)}, got {chosen!r}")
        rounds, count = config.training.rounds, config.min_count
        if self.max_rounds is not None and not (type(rounds) is int and rounds <= self.max_rounds):
            raise UserError(f"rounds: expected at most {self.max_rounds}, got {rounds!r}")
        if self.min_count is not None and count is not None and not (type(count) is int and count >= self.min_count):
            raise UserError(f"min_count: expected at least {self.min_count}, got {count!r}")
        if self.secure_sum and config.secure_sum == NONE:
            raise UserError("secure_sum: expected masks or ckks, got none")
        if self.after is not None and config.after not in (NO_STEP, *self.after):
            raise UserError(f"after: expected one of {', '.join((NO_STEP, *self.after))}, got {config.after!r}")
        if self.after is not None and config.solo and SOLO not in self.after:
            raise UserError("solo: expected false, for this site does not report its benefit of joining")
        if self.after is not None and "/" in config.fold and JOIN not in self.after:
            raise UserError(f"fold: expected none, for this site is not tested fold by fold, got {config.fold!r}")
        others = [name for name in config.exchanges if self.after is not None and name not in self.after]
        if others:
            raise UserError(f"exchanges: expected some of {', '.join(self.after or ())}, got {others[0]!r}")
        if self.thresholds is not None or self.columns is not None:
            self._check_task(config)
        private = config.components.trainer.private
        if private and config.settings.get("trainer.draws") == "seed":
            raise UserError("trainer.draws: expected system, got seed")
        for key, left in (("epsilon", self.epsilon), ("delta", self.delta)):
            if left is not None and not private:
                raise UserError(f"trainer: expected dp-sgd, got {config.trainer!r}")
            if left is not None and not config.settings[f"trainer.{key}"] <= left:
                words = f"at most {left:g}, which is left of this site's budget"
                raise UserError(f"trainer.{key}: expected {words}, got {config.settings[f'trainer.{key}']:g}")

    def _check_task(self, config: RunConfig) -> None:
        task = tasks.load(config.task, config.preset, **config.options)
        others = [name for name in getattr(task, "named", ()) if self.columns is not None and name not in self.columns]
        if others:
            raise UserError(f"columns: expected some of {', '.join(self.columns or ())}, got {others[0]!r}")
        own = task.threshold if config.threshold is None else config.threshold
        for chosen in (own if task.event is not None else None, config.decision.get("threshold")):
            if chosen is not None and self.thresholds is not None and chosen not in self.thresholds:
                known = ", ".join(f"{value:g}" for value in self.thresholds) or "none"
                raise UserError(f"threshold: expected one of {known}, got {chosen}")
        missed = task.kind.has_classes and getattr(config.after_step, "loss", "") == "missed"
        if self.thresholds is not None and missed:
            # Its thresholds follow from alpha, which is any number.
            raise UserError("after.loss: expected sets, for this site lists its thresholds, got missed")


def after_spending(policy: Policy, state: Path, config: RunConfig) -> Policy:
    """``policy`` with what the site's ledgers in ``state`` leave to ``config``: other runs' budgets are theirs."""
    own = config.federation and spender(config)  # a new federation has spent nothing
    ledgers = [read_json(path)["runs"] for path in state.glob(f"*{SPENT_ENDING}")]
    runs = [run for ledger in ledgers for name, run in ledger.items() if not (own and name.startswith(own))]
    left = {
        key: max(0.0, whole - sum(run.get(granted, run[key]) for run in runs))
        for key, granted, whole in (("epsilon", "budget", policy.epsilon), ("delta", "delta", policy.delta))
        if whole is not None
    }
    return dataclasses.replace(policy, **left)


def read_policy(local: Path, name: str = "") -> Policy:
    """The rules in ``local``: in the file ``name``, which must be there, or in the first of ``FILES``, if any.

    Raises:
        UserError: the file is missing, not a mapping, or has an unknown key or a value of another kind.
    """
    import yaml

    found = [local / name] if name else [local / file for file in FILES if os.path.lexists(local / file)]
    if not found:
        return Policy()
    try:
        content = yaml.safe_load(found[0].read_text(encoding="utf-8"))  # JSON is YAML too
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise UserError(f"{HERE} cannot be read ({type(error).__name__}); its administrator has to mend it") from None
    if len(found) > 1 or not isinstance(content, dict):
        raise UserError(f"{HERE}: expected one file with keys and values")
    try:
        check_plain("keys and values", content)
        for key, value in content.items():  # an empty line is no rule that lets everything in
            expect(key, value is not None, "a value, or no such line", value)
        return Policy(**content)
    except UserError as error:
        raise UserError(f"{HERE}: {str(error).partition(', got ')[0]}") from None  # no job reads what stands there


EXECUTOR = "fairflare.flare.executor.FairExecutor"
EGRESS = "fairflare.flare.egress.EgressFilter"
FILTERS = (
    "nvflare.app_common.filters.exclude_vars.ExcludeVars",
    "nvflare.app_common.filters.percentile_privacy.PercentilePrivacy",
    "nvflare.app_common.filters.svt_privacy.SVTPrivacy",
)
"""What else a job may have. FLARE's own list is too long: its ``JobLogStreamer`` sends any file of the job's folder at
the site to the server, the texts among them that stay there, and its events pass no filter."""
CLIENT = "config_fed_client"
"""FLARE takes the first file of this name that it finds in the app, in any of several formats."""
SIMULATED = "simulate_job"
"""The id that FLARE's simulator gives."""
LARGEST = 2**20
"""Bytes of a site's configuration in a job."""
LONGEST = 400
"""Characters of a reason."""
TOP = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""A top-level key: others make variables that FLARE puts into the configuration after it was checked."""
OUT = (None, "out", "inout")
PATHS = ("path", "class_path", "name")
"""Keys by which FLARE finds a component's class."""

log = logging.getLogger(__name__)
LOG_BEGINS = 5.0
"""Seconds after which FLARE's client has a log."""


def harden() -> None:
    """Take from a site's client what lets a server read and delete its files, which FLARE 2.9 checks by no policy."""
    harden_client(_job_id)


def _job_id(given: Any) -> str:
    expect("job", is_valid_job_id(given) or given == SIMULATED, "an id as FLARE gives it", given)
    return str(given)


class SitePolicy(AppValidator):
    """Accepts FairFLARE jobs that keep to this site's rules; refuses all others, and all other jobs.

    Checked are that the code is what ``MANIFEST.json`` lists, the whole configuration, the classes, networks and
    functions that it names, that everything leaves through ``EgressFilter``, and what the site's own
    ``fairflare_policy.yaml`` says, see ``Policy``. It also closes two doors of the site's client, see ``harden``.
    """

    def __init__(self, policy: str = "") -> None:
        """``policy``: a file in the site's ``local/`` that must be there; empty: ``fairflare_policy.yaml`` if it is."""
        self.policy = policy
        harden()
        if problem := out_of_date(Path.cwd()):  # FLARE's client is in its kit by now, and its log begins a moment later
            print(problem, file=sys.stderr)
            threading.Timer(LOG_BEGINS, log.error, [problem]).start()
        registry.methods()  # imported now: FLARE's server waits ten seconds for a site's answer to a job

    def validate(self, app_folder: str) -> tuple[str, dict[str, Any]]:
        """The reason why the job in ``app_folder`` is refused, in one line without paths; empty: it may run."""
        app = Path(app_folder).resolve()
        try:
            self._check(app)
        except FairFlareError as error:
            reason = " ".join(str(error).replace(str(app.parents[1]), "...").split())[:LONGEST]
        except Exception as error:  # whatever cannot be checked does not run
            log.warning("a job cannot be checked: %s", type(error).__name__)
            reason = f"the job's configuration cannot be read ({type(error).__name__})"
        else:
            return "", {}
        return f"refused by this site's policy: {reason}", {}

    def _check(self, app: Path) -> None:
        local = app.parents[1] / "local"
        if not local.is_dir():
            raise UserError("this site's folder local/ was not found")
        policy = read_policy(local, self.policy)
        brings_code = (app / "custom").exists()
        if brings_code and not policy.allow_code:
            raise UserError("the job brings code (app/custom); this site takes jobs without code only")
        homes = [local / "custom", *([app / "custom"] if brings_code else [])]
        check_app(app, policy, homes, local.parent / STATE)


def check_app(app: Path, policy: Policy, homes: list[Path], state: Path | None = None) -> None:
    """Raise UserError unless the sites' app of a job is one that a site takes part in; nothing of it is imported.

    ``app`` is its folder; ``homes`` are those whose modules the run may name, ``state`` that of the site's ledgers.
    """
    content = _read_job(app)
    executor, tasks_of = _executor(content)
    _check_filters(content, tasks_of)
    _check_classes(content, executor, policy, (app / "custom").exists())
    check_config(executor, policy, homes, state)
    check_code(app, fresh=True)
    libraries = {*sys.stdlib_module_names, *packages_distributions(), "sitecustomize", "usercustomize"}
    libraries -= {"fairflare", *plugins.top_packages()}  # of which a job carries a copy
    for path in sorted((app / "custom").glob("*")):  # one of these would run in a library's place, or before all else
        fits = path.name.partition(".")[0] not in libraries
        expect("custom", fits, "no module in the place of a library's", path.name)


def _read_job(app: Path) -> Mapping[str, Any]:
    """The site's configuration in the job, with nothing in it that FLARE would replace later."""
    found = [path for path in app.rglob(f"{CLIENT}.*")]
    if found != [app / "config" / f"{CLIENT}.json"] or found[0].is_symlink() or not found[0].is_file():
        raise UserError(f"expected one {CLIENT}.json, in config/")
    if found[0].stat().st_size > LARGEST:
        raise UserError(f"{CLIENT}.json: expected at most {LARGEST} bytes")
    content = json.loads(found[0].read_bytes(), object_pairs_hook=_without_repeats, parse_constant=_refuse_constant)
    expect(CLIENT, isinstance(content, dict), "an object", content)
    for key, value in content.items():
        expect(CLIENT, TOP.fullmatch(key) is not None, "plain names as keys", key)
        for text in _strings(value):
            network = text.startswith('{"') and class_path(text)
            expect(CLIENT, bool(network) or not {"{", "}"} & set(text), "no variables", text)
    return content


def _executor(content: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The configuration that the one executor gets, and the tasks that it does."""
    executors = _as_list("executors", content.get("executors"))
    expect("executors", len(executors) == 1, f"one, {EXECUTOR}", len(executors))
    entry = _plain("executors", executors[0], ("tasks", "executor"))
    component = _as_object("executor", entry.get("executor"))
    config = _config_of(component, EXECUTOR, "executor")
    names = _as_list("executors: tasks", entry.get("tasks"))
    expect("executors: tasks", all(isinstance(n, str) and "*" not in n for n in names), "names of tasks", names)
    return config, names


def _check_filters(content: Mapping[str, Any], names: list[str]) -> None:
    """Raise unless every task's answer passes the egress filter last."""
    last: dict[str, list[Any]] = {name: [] for name in names}
    for entry in _as_list("task_result_filters", content.get("task_result_filters")):
        chain = _plain("task_result_filters", entry, ("tasks", "filters", "direction"))
        filters = _as_list("task_result_filters: filters", chain.get("filters"))
        for key in (key for one in filters for key in _as_object("task_result_filters: filters", one)):
            expect("task_result_filters: filters", TOP.fullmatch(key) is not None, "plain names as keys", key)
        covered = _as_list("task_result_filters: tasks", chain.get("tasks"))
        if chain.get("direction") in OUT:
            for name in {name for name in covered if name in last}:
                last[name].append(filters[-1])
    for name, found in last.items():
        expect(f"task_result_filters: {name}", len(found) == 1, f"one chain that ends with {EGRESS}", len(found))
        last_one = _as_object("task_result_filters", found[0])
        expect(f"task_result_filters: {name}: last", last_one.get("path") == EGRESS, EGRESS, last_one.get("path"))


def _plain(where: str, value: Any, keys: Collection[str]) -> dict[str, Any]:
    """An object of these keys alone: FLARE follows others, as ``filters.#9``, into what was checked."""
    found = _as_object(where, value)
    expect(where, set(found) <= {*keys}, f"the keys {', '.join(keys)}", sorted(found))
    return found


def _config_of(component: dict[str, Any], expected: str, where: str) -> dict[str, Any]:
    """The argument ``config`` of a component that is of the class ``expected`` and says nothing else."""
    expect(where, component.get("path") == expected, expected, component.get("path"))
    expect(where, set(component) <= {"id", "path", "args"}, "id, path and args", sorted(component))
    args = _as_object(where, component.get("args"))
    expect(f"{where}: args", set(args) == {"config"}, "config alone", sorted(args))
    return _as_object(f"{where}: config", args["config"])


def _check_classes(content: Mapping[str, Any], config: dict[str, Any], policy: Policy, brings_code: bool) -> None:
    """Raise when a component is none of ours, of ``FILTERS`` or the site's, unless code is let in anyway."""
    allowed = {EXECUTOR, EGRESS, *FILTERS, *policy.classes}
    for component in _components(content):
        path, *others = (component[key] for key in PATHS if key in component)
        if not brings_code:
            expect("components", not others and path in allowed, "classes that this site allows", path)
            expect("components", "path" in component, "path", component)
        if path == EXECUTOR:
            expect(path, _config_of(component, path, path) == config, "the executor's configuration", "another")
        if path == EGRESS:
            bare = set(component) <= {"id", "path", "args"} and not component.get("args")
            expect(path, bare, "no arguments: its configuration is the executor's", "some")


def _components(content: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every object that FLARE could build, but for the run's own configuration."""
    found: list[Any] = [content]
    while found:
        value = found.pop()
        if isinstance(value, list):
            found.extend(value)
        elif isinstance(value, dict):
            if set(PATHS) & set(value):
                yield value
            if value.get("path") not in (EXECUTOR, EGRESS):
                found.extend(value.values())


def check_config(content: Mapping[str, Any], policy: Policy, homes: list[Path], state: Path | None = None) -> None:
    """Raise UserError unless the run ``content``, a ``RunConfig`` as JSON, is one that this site takes part in."""
    known = {"format", *JSON_NAMES}
    expect("config", set(content) <= known, f"keys among {', '.join(sorted(known))}", sorted(set(content) - known))
    config = RunConfig.from_json(unescaped(content))
    named = config.options.get("datalists")
    expect("options: datalists", not named, "none, for no job names a path at a site", "one")
    for key, name in _names(config):
        _check_home(key, name, policy, homes)
    policy = after_spending(policy, state, config) if state else policy
    policy.check(config)


def _names(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Where a run names a class or function outside MONAI; ``tasks.load`` has checked how options are written."""
    if name := config.options.get("script"):
        yield "script", str(name)
    if (name := class_path(str(config.options.get("model", "")))) and not monai_networks.is_listed(name):
        yield "model", name
    if "." in (name := str(config.decision.get("own_model", ""))):  # the package's own are single words
        yield "decision: own_model", name


def _check_home(key: str, name: str, policy: Policy, homes: list[Path]) -> None:
    """Raise unless a file or package of the site, or of a job whose code is let in, holds the module of ``name``."""
    top = check_name(name, key)
    there = any((home / f"{top}.py").is_file() or (home / top / "__init__.py").is_file() for home in homes)
    expect(key, there, "a name in the site's local/custom or in code that the job brings", name)
    expect(key, policy.names is None or name in policy.names, "a name that this site's policy lists", name)


def _strings(value: Any) -> Iterator[str]:
    """Every text below ``value``, keys included."""
    found = [value]
    while found:
        value = found.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            found.extend([*value, *value.values()])
        elif isinstance(value, list):
            found.extend(value)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    expect(CLIENT, len({key for key, _ in pairs}) == len(pairs), "each key once", sorted(key for key, _ in pairs))
    return dict(pairs)


def _refuse_constant(text: str) -> None:
    raise UserError(f"{CLIENT}: expected finite numbers, got {text}")


def _as_list(where: str, value: Any) -> list[Any]:
    expect(where, isinstance(value, list) and bool(value), "a list", value)
    return value


def _as_object(where: str, value: Any) -> dict[str, Any]:
    expect(where, isinstance(value, dict), "an object", value)
    return value
