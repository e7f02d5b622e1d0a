# SPDX-License-Identifier: Apache-2.0
"""The options that several commands share, and what their texts mean."""

from __future__ import annotations

import errno
import functools
import math
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairflare.cli import console
from fairflare.core import user_code
from fairflare.core.errors import UserError
from fairflare.core.validation import SITE, shown, unlisted
from fairflare.studies.labels import CACHE, at_most, environment, parse_pairs
from fairflare.studies.waiting import started
from fairflare.tasks.forms import FORMS

if TYPE_CHECKING:
    from fairflare.engine.setup.config import RunConfig

Values = Mapping[str, str]
"""Setting -> its text."""
DAY = 86400.0
LONGEST_WAIT = 30 * DAY
MOST_WORKERS = 1024
ROBUST = {"robust": "mixed"}
"""The run's setting that ``--robust`` stands for."""


class AnyPath(click.Path):
    """A path that the system can look up; whether it is there, and what it is, is the command's to say."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not os.fspath(value):
            self.fail("expected a path, got none", param, ctx)
        try:
            os.stat(value)
        except OSError as error:
            if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
                self.fail(f"{shown(os.fspath(value))}: {error.strerror}", param, ctx)
        except ValueError:
            self.fail(f"{shown(os.fspath(value))}: is no path", param, ctx)
        return super().convert(value, param, ctx)


PATH = AnyPath(path_type=Path)
option = functools.partial(click.option, show_default=True)
Told = tuple[Any, str | Callable[[], None]]
"""A command's result as JSON values, and what people read of it, or a function that shows it."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for a program to read.")
rounds_option = click.option("--rounds", type=int, metavar="N", help="Communication rounds; the preset's by default.")
sites_option = click.option("--sites", type=int, metavar="K", help="Number of sites; the preset's by default.")
set_option = click.option(
    "--set",
    "values",
    multiple=True,
    metavar="KEY=VALUE",
    callback=lambda ctx, param, pairs: parse_pairs(pairs),
    help="A parameter; repeat for more.",
)
require_option = click.option(
    "--require", metavar="all|N", help="Named sites that must be there before the first round; else nothing begins."
)
accept_option = click.option(
    "--accept", multiple=True, metavar="CODE", help="Preflight's errors of this code are warnings; repeat for more."
)
without_option = click.option(
    "--without", multiple=True, metavar="SITE", help="A site of your own data that is left out; repeat for more."
)
weights_option = click.option(
    "--init-from",
    "--pretrained-weights",
    "init_from",
    type=AnyPath(path_type=str),
    metavar="RUN|FILE|BUNDLE",
    help="Weights to start from: an earlier run's, a state dict or a MONAI bundle's; a line says what fits.",
)
tune_option = click.option(
    "--tune",
    type=click.Choice(["all", "head", "norm", "lora"]),
    help="What trains and travels: all, the last layer, normalisation too, or adapters too; the rest is frozen.",
)
env_option = option("--env", type=click.Choice(["local", "sim"]), default="local", help="Where the federation runs.")
threads_option = click.option(
    "--sim-threads", type=int, metavar="N", help="Simulator threads; one per site by default."
)


class Workers(click.ParamType):
    """A number of worker processes; None for "auto", as without the option."""

    name = "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        text = str(value)
        if text == "auto":
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 5 and 1 <= int(text) <= MOST_WORKERS):
            self.fail(f"expected a number from 1 to {MOST_WORKERS} or auto, got {shown(text)}", param, ctx)
        return int(text)


workers_option = click.option(
    "--workers",
    type=Workers(),
    metavar="N|auto",
    envvar="FAIRFLARE_WORKERS",
    show_envvar=True,
    help="Processes that compute side by side in --env local, by default as many as are of use (auto).",
)


def spread_options(command: Callable[..., None]) -> Callable[..., None]:
    """Where a command's runs take place: ``workers`` is a number, None or a ``parallel.Cluster``."""

    @workers_option
    @option(
        "--backend",
        type=click.Choice(["processes", "dask"]),
        default="processes",
        help="Where runs are made: in processes of this machine, or on the machines of a Dask cluster.",
    )
    @click.option("--scheduler", metavar="ADDRESS", help="Of --backend dask, e.g. tls://10.0.0.5:8786.")
    @functools.wraps(command)
    def with_spread(*, workers: int | None, backend: str, scheduler: str | None, **others: Any) -> None:
        if (backend == "dask") != bool(scheduler):
            raise UserError("--backend dask and --scheduler ADDRESS: go together")
        if scheduler:
            source = click.get_current_context().get_parameter_source("workers")
            if workers is not None and source is click.core.ParameterSource.COMMANDLINE:
                raise UserError("--workers: counts processes of this machine; with --backend dask the cluster's count")
            from fairflare.studies.parallel import Cluster

            return command(workers=Cluster(scheduler), **others)
        return command(workers=workers, **others)

    return with_spread


force_option = click.option("--force", is_flag=True, help="Replace --out if it holds an earlier run.")
out_option = click.option("--out", type=PATH, metavar="DIR", help="Where results go.")


def cache_option(command: Callable[..., None]) -> Callable[..., None]:
    """Whether simulated data that were rendered before are used again, and new ones kept."""

    @click.option("--no-cache", is_flag=True, help="Render simulated data anew, and keep none of them.")
    @functools.wraps(command)
    def with_cache(*, no_cache: bool, **others: Any) -> None:
        with environment({CACHE: "off"} if no_cache else {}):
            command(**others)

    return with_cache


def grid_options(command: Callable[..., Told | None]) -> Callable[..., None]:
    """Where and how the runs of a command that makes several take place, and what becomes of the results."""
    return spread_options(cache_option(out_option(force_option(as_json(command)))))


def as_json(command: Callable[..., Told | None]) -> Callable[..., None]:
    """``json_option``, by which the command's result is printed in one form or the other; None: nothing more is."""

    @json_option
    @functools.wraps(command)
    def with_json(*, as_json: bool, **others: Any) -> None:
        content, words = command(**others) or (None, "")
        if as_json and content is not None:
            console.dump(content)
        elif not as_json and words:
            console.say(words) if isinstance(words, str) else words()

    return with_json


def task_option(command: Callable[..., None]) -> Callable[..., None]:
    """What is learnt, from which data: a task, or a folder of datalists, which becomes a task and settings."""

    @click.option("--task", metavar="T[:PRESET]", help="Task and preset; see `fairflare tasks`.")
    @click.option("--datalists", "--data", type=PATH, metavar="DIR", help="Your own data, after `fairflare init DIR`.")
    @click.option("--kind", type=click.Choice([*FORMS]), help="What --datalists are of.")
    @click.option("--classes", metavar="N", help="Classes or structures of --datalists: a number, or names A,B,C.")
    @click.option(
        "--code",
        type=PATH,
        multiple=True,
        metavar="FILE",
        help="Your own .py file or package that the run needs, for a network or build_data; repeat for more.",
    )
    @click.option(
        "--script", type=PATH, metavar="FILE", help="Your own training loop, on fairflare.client; FLARE runs it."
    )
    @without_option
    @click.option("--plan", type=PATH, metavar="FILE", help="Defaults that `fairflare plan` made of fingerprints.")
    @functools.wraps(command)
    def with_task(
        *, script: Path | None, plan: Path | None, without: tuple[str, ...], values: Values, code: Any, **others: Any
    ) -> None:
        user_code.use((*code, *([script] if script else [])))
        told = {key: others.pop(key) for key in ("task", "datalists", "kind", "classes")}
        if script:
            if told["task"] or told["kind"] or plan:
                raise UserError("--script: goes with --data DIR, without --task, --kind and --plan")
            chosen, own = own_script(script, told["datalists"], told["classes"])
        elif others.get("continued") and others["continued"].is_dir():
            chosen, own = "", members(others["continued"], told)
        else:
            chosen, own = own_data(**told)
        folds = click.get_current_context().info_name == "join"  # whose folds have no best round
        named = {"trainer": others["trainer"]} if others.get("trainer") else {}
        planned = plan_values(plan, chosen, {**values, **named, **({"best_by": "none"} if folds else {})})
        command(task=chosen, values=without_sites(united(beneath(own, values), planned), without), **others)

    return with_task


def parts_option(command: Callable[..., None]) -> Callable[..., None]:
    """Parts in place of the method's own and the step after the last round: the same as ``--set`` with its kind."""

    @click.option("--trainer", metavar="ID", help="Another trainer than METHOD's, or another method's: scaffold.")
    @click.option("--rule", metavar="ID", help="Another rule: moon --rule fedheal is fedheal --trainer moon.")
    @click.option("--selector", metavar="ID", help="Another selector; see `fairflare list --parts`.")
    @click.option("--server-optimizer", metavar="ID", help="Another server optimizer.")
    @click.option("--robust", is_flag=True, help="Against sites that lie: clip, mix and cap; see docs/robustness.md.")
    @click.option(
        "--after", metavar="STEP", help="After the last round: recalibrate, shares or conformal; see docs/after.md."
    )
    @functools.wraps(command)
    def with_parts(*, values: Values, robust: bool, **others: Any) -> None:
        values = beneath(ROBUST, values, "run.") if robust else values
        named = {kind: others.pop(kind) for kind in ("trainer", "rule", "selector", "server_optimizer", "after")}
        command(values=united(values, {kind: id for kind, id in named.items() if id is not None}), **others)

    return with_parts


def run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Where one run takes place; the command gets ``env``, and ``deployment`` where that is a running federation."""

    @option(
        "--env",
        type=click.Choice(["local", "sim", "poc", "prod"]),
        default="local",
        help="Where the federation runs; poc and prod are one that is up.",
    )
    @click.option("--kit", type=PATH, metavar="DIR", help="Who submits: a user's startup kit.")
    @click.option("--preinstalled", is_flag=True, help="The sites have this package: the job brings no code.")
    @click.option(
        "--wait", type=click.FloatRange(1, LONGEST_WAIT), metavar="S", help="Seconds until the job must be over; a day."
    )
    @functools.wraps(command)
    def with_env(*, env: str, kit: Path | None, preinstalled: bool, wait: float | None, **others: Any) -> None:
        if wait is not None and math.isnan(wait):
            raise UserError("--wait: expected a number of seconds, got nan")
        chosen = {"--kit": kit, "--preinstalled": preinstalled, "--wait": wait}
        given = [name for name, value in chosen.items() if value]
        if env in ("local", "sim"):
            if given:
                raise UserError(f"{given[0]}: expected --env poc or --env prod, got --env {env}")
            return command(env=env, deployment=None, **others)
        if others.get("sim_threads") is not None:
            raise UserError(f"--sim-threads: expected --env sim, got --env {env}")
        if (others.get("workers") or 1) > 1:
            raise UserError(f"--workers: expected --env local, got --env {env}")
        deployment = {"env": env, "kit": kit, "preinstalled": preinstalled, "timeout": wait or DAY}
        return command(env=env, deployment=deployment, **others)

    return with_env


def say_reasons(config: RunConfig) -> None:
    """Why a run on a user's own data has the defaults it has, a line each; UserError where no run can be made of it."""
    if not config.options.get("datalists"):
        return
    from fairflare.engine.setup.parts import build_parts
    from fairflare.engine.setup.plans import reasons
    from fairflare.studies import display

    if lines := reasons(config):
        build_parts(config)  # before anything is shown: what is wrong with it is the user's to mend
    for line in lines:
        display.note(line)


def choices_options(command: Callable[..., None]) -> Callable[..., None]:
    """On what METHOD is run, and how: the command gets ``task``, and ``choices`` as ``make_config`` takes them."""

    @task_option
    @rounds_option
    @sites_option
    @parts_option
    @set_option
    @accept_option
    @require_option
    @weights_option
    @tune_option
    @functools.wraps(command)
    def with_choices(*, values: Values, accept: tuple[str, ...], **others: Any) -> None:
        given = {key: others.pop(key) for key in ("init_from", "tune", "require")} | {"accept": ",".join(accept)}
        choices = {key: others.pop(key) for key in ("rounds", "sites")}
        command(choices={**choices, "values": united(values, {k: v for k, v in given.items() if v})}, **others)

    return with_choices


def config_options(command: Callable[..., None]) -> Callable[..., None]:
    """METHOD and everything that makes one run of it; the command gets them as ``config``."""

    @click.argument("method", required=False)
    @click.option(
        "--continue",
        "continued",
        type=PATH,
        metavar="RUN|ID",
        help="The next segment of the federation in the folder RUN, without METHOD, or of the job ID.",
    )
    @choices_options
    @option(
        "--seed",
        type=int,
        default=0,
        help="Seeds the initial model and all local work; the data have --set data_seed=N.",
    )
    @functools.wraps(command)
    def with_config(
        *, method: str | None, task: str, seed: int, choices: dict[str, Any], continued: Path | None, **others: Any
    ) -> None:
        from fairflare.engine.setup.config import make_config

        if continued is not None and continued.is_dir():
            from fairflare.studies.segments import next_segment

            ctx = click.get_current_context()
            for name in ("method", "sites", "seed"):
                if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
                    raise UserError(f"--continue {continued}: goes on with the run's own {name}")
            config = next_segment(continued, choices["rounds"], choices["values"])
        else:
            own = {"federation": str(continued)} if continued else {}
            config = make_config(str(method), task, seed=seed, **{**choices, "values": united(choices["values"], own)})
            continued = None
        say_reasons(config)
        started()  # processes may be forked from here on
        command(config=config, continued=continued, **others)

    return with_config


def own_data(task: str | None, datalists: Path | None, kind: str | None, classes: str | None) -> tuple[str, Values]:
    """The task and the settings that ``--task`` or ``--datalists DIR --kind K --classes N`` stand for.

    A folder that ``fairflare prepare`` wrote says itself what kind of data it holds. Raises UserError where neither is
    given, or the folder holds no lists.
    """
    from fairflare.engine.setup import tasks
    from fairflare.tasks.kinds.own import OwnData, folder_of_lists, read_description, sites_in

    if datalists is None:
        if task is None and kind is not None and classes is not None:
            return kind, {"labels": classes}  # every site has its own configuration
        if task is None:
            raise UserError("--task: expected a task, or your own data: --data DIR")
        if kind or classes:
            raise UserError("--kind and --classes: go with --datalists DIR")
        return task, {}
    shown_as, datalists = datalists, folder_of_lists(datalists)
    if not datalists.is_dir():
        raise UserError(f"--data {shown_as}: expected a folder, with a list or table per site in it")
    described = read_description(datalists)
    chosen, classes = task or kind or described.get("kind"), classes or ",".join(described.get("classes", ()))
    if chosen is None or chosen.partition(":")[0] not in FORMS:
        kinds = f"expected --kind with it, one of {', '.join(FORMS)}"
        text = f"got task {chosen}" if chosen else f"or that `fairflare init {shown_as}` writes down what it holds"
        raise UserError(f"--datalists {shown_as}: {kinds}; {text}")
    kind_of_data = tasks.known(chosen.partition(":")[0])
    assert issubclass(kind_of_data, OwnData)  # as every one of FORMS is
    suffixes = kind_of_data.suffixes
    names = sites_in(datalists, suffixes)
    if not names:
        lists = f"expected a folder with a <SITE>{suffixes[0]} per site"
        raise UserError(f"--datalists {shown_as}: {lists}; `fairflare init {shlex.quote(str(shown_as))}` writes them")
    values = {"datalists": str(datalists.resolve()), "site_names": ",".join(names)}
    values |= {key: str(value) for key, value in described.get("options", {}).items()}
    return chosen, values | ({"labels": classes} if classes else {})


def members(folder: Path, told: Mapping[str, Any]) -> Values:
    """The sites of the run in ``folder``, or those whose files lie in the folder that ``--data`` names now."""
    from fairflare.engine.files import CONFIG, read_json
    from fairflare.engine.setup.run_config import MEMBERS
    from fairflare.studies.folders import require_run

    require_run(folder)
    if told["task"] or told["kind"] or told["classes"]:
        raise UserError("--continue: goes on with its own task; --data DIR may name other sites")
    before = read_json(folder / CONFIG)
    found = own_data(**{**told, "task": before["task"]})[1] if told["datalists"] else before["options"]
    return {key: found[key] for key in MEMBERS if found.get(key)}


def own_script(script: Path, data: Path | None, classes: str | None) -> tuple[str, Values]:
    """The task and the settings that ``--script FILE --data DIR --classes N`` stand for: a site per folder in DIR.

    Without ``--data`` the sites are named with ``--set site_names``, and each has its own site file. Raises UserError
    where no folder is in DIR.
    """
    values = {"script": f"{script.stem}.network"}
    if data is not None:
        names = sorted(path.name for path in data.iterdir() if path.is_dir()) if data.is_dir() else []
        names = [name for name in names if SITE.fullmatch(name)]
        if not names:
            raise UserError(f"--data {data}: expected a folder with a folder per site")
        values |= {"datalists": str(data.resolve()), "site_names": ",".join(names)}
    return "script", values | ({"labels": classes} if classes else {})


def beneath(own: Values, given: Values, owner: str = "task.") -> Values:
    """The settings ``own``, of a folder of datalists, and on top of them those that the user has ``given``."""
    keys = {key.removeprefix(owner) for key in given}
    return {key: value for key, value in own.items() if key not in keys} | dict(given)


def united(some: Values, others: Values) -> Values:
    """Both; UserError where one is in both."""
    for key in some.keys() & others.keys():
        raise UserError(f"--set: {key[:80]} is given twice")
    return {**some, **others}


def without_sites(values: Values, left_out: Sequence[str]) -> Values:
    """``values`` whose ``site_names`` lack those that are left out; UserError where one is unknown or none is left."""
    if not left_out:
        return values
    key = "task.site_names" if "task.site_names" in values else "site_names"
    if key not in values:
        raise UserError("--without: goes with your own data, --data DIR, or with --set site_names=A,B")
    names = [name.strip() for name in values[key].split(",")]
    for one in left_out:
        if one not in names:
            raise UserError(f"--without: {unlisted('site', one, names)}")
    rest = ",".join(name for name in names if name not in left_out)
    if not rest:
        raise UserError("--without: no site would be left")
    return {**values, key: rest}


def plan_values(plan: Path | None, task: str, given: Values) -> Values:
    """The settings of a plan's file, but for those that the user has ``given`` or that mean nothing beside them."""
    if plan is None:
        return {}
    from fairflare.core import registry
    from fairflare.engine.setup.plans import BESIDE, read_plan

    trainer = str(given.get("trainer", given.get("run.trainer", "")))
    private = trainer in registry.trainers() and registry.get_trainer(trainer).private
    if private or any(key in given for key in ("site_epsilon", "run.site_epsilon")):
        raise UserError(f"--plan {plan.name}: expected none with a privacy budget, which does not cover fingerprints")
    kind, values = read_plan(plan)
    if task.partition(":")[0] != kind:
        raise UserError(f"--plan {plan.name}: is of {kind} data, expected {task.partition(':')[0]}")
    keys = {key.rpartition(".")[2] for key in given}
    off = {name for key in keys for name in (key, *BESIDE.get(key, ()))}
    own = {name.rpartition(".")[2]: value for name, value in values.items()}
    return {name: value for name, value in own.items() if name not in off}


def own_names(values: Mapping[str, Any], *owners: str) -> dict[str, Any]:
    """{"task.size": 32, "labels": 3} -> {"size": 32, "labels": 3}, for commands that know these owners alone."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        owner, _, name = key.rpartition(".")
        bare = name if owner in owners else key
        if bare in found:
            raise UserError(f"--set: {shown(bare)} is given twice")
        found[bare] = value
    return found


def parse_seeds(text: str) -> list[int]:
    """ "0,1,2" -> [0, 1, 2]; raises UserError on anything else."""
    try:
        at_most("--seeds", text.count(",") + 1)
        seeds = [int(s) for s in text.split(",")]
    except ValueError:
        raise UserError(f"--seeds: expected whole numbers such as 0,1,2, got {shown(text)}") from None
    if min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds: expected different numbers of at least 0, got {shown(text)}")
    return seeds


def parse_pareto(text: str) -> tuple[str, str]:
    """ "mean,worst" -> ("mean", "worst"); raises UserError, before anything runs, on anything but two quantities."""
    from fairflare.report.quantities import QUANTITIES

    found = tuple(part.strip() for part in text.split(","))
    if len(found) != 2 or not set(found) <= set(QUANTITIES):
        raise UserError(f"--pareto: expected two of {', '.join(QUANTITIES)}, got {shown(text)}")
    return found[0], found[1]
