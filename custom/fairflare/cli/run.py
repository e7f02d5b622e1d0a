# SPDX-License-Identifier: Apache-2.0
"""Commands that make one run, or the job of one, from options or a YAML file that becomes a command line.

So whatever a command can be told, the file can say, with the same checks, and both make the same model. Relative
paths start at the file. What the user gives beside the file wins. click's ``default_map`` would let a variable of the
environment win over the file, and an option that is repeated on the command line would drop the file's values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairflare.cli import console, options
from fairflare.core.errors import UserError
from fairflare.core.validation import check_plain, expected, shown, unlisted
from fairflare.studies.labels import as_text, flat_settings

if TYPE_CHECKING:
    from fairflare.engine.setup.config import RunConfig


LARGEST = 65_536
"""Bytes of a file."""
SUFFIXES = (".yaml", ".yml")
METHOD, SETTINGS = "method", "set"
"""Keys of the method and of the settings; all others are names of options."""
NOT_HERE = frozenset({"help", "json", "force", "continue"})
"""Options that are of one call: what is shown, and that an earlier run may be replaced."""
OF_A_RUN = frozenset({"env", "kit", "wait", "pooled", "sim_threads", "workers", "no_cache", "out"})
"""Keys that say where and how a run takes place; an export of the same file leaves them aside."""


class RunCommand(click.Command):
    """A command whose METHOD may be a YAML file that says everything but its ``skips``: keys that mean nothing here."""

    def __init__(self, *arguments: Any, skips: frozenset[str] = frozenset(), **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.skips = skips

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given, _, _ = self.make_parser(ctx).parse_args(list(args))
        named = given.get(METHOD)
        if isinstance(named, str) and named.endswith(SUFFIXES):
            args = with_file(self, Path(named), args, given.get("values") or ())
        rest = super().parse_args(ctx, args)
        if ctx.params.get(METHOD, "") is None and not (ctx.params["continued"] and ctx.params["continued"].is_dir()):
            raise click.MissingParameter(ctx=ctx, param_hint="'METHOD'", param_type="argument")
        return rest


def with_file(command: RunCommand, path: Path, arguments: Sequence[str], pairs: Sequence[str]) -> list[str]:
    """``arguments`` of ``command``, one of which is ``path``, with what the file says in its place.

    ``pairs`` are the ``--set`` pairs among the arguments. Raises UserError, which names file, key, what was expected
    and what came.
    """
    where = f"run file {path.name}"
    content = {key: value for key, value in read_run_file(path).items() if key not in command.skips}
    expected(where, METHOD in content, f"the key {METHOD!r}", list(content))
    method, *own = as_arguments(command, {METHOD: None, **content}, where, path.resolve().parent, pairs)
    place = list(arguments).index(str(path)) if str(path) in arguments else 0
    return [*own, *arguments[:place], method, *arguments[place + 1 :]]


def as_arguments(
    command: click.Command, content: Mapping[str, Any], where: str, home: Path, pairs: Sequence[str] = ()
) -> list[str]:
    """The command line that a file, or a call with keywords, stands for: the method first, where there is one.

    The options of ``command`` are the keys that ``content`` may have. ``where`` begins messages, ``home`` is where
    relative paths start, and ``pairs`` are settings given elsewhere, whose keys are left out.
    """
    options = [one for one in command.params if isinstance(one, click.Option)]
    keys = {name.removeprefix("--").replace("-", "_"): one for one in options for name in one.opts}
    keys = {METHOD: keys[SETTINGS], **{key: one for key, one in keys.items() if key not in NOT_HERE}}
    given = dict(content)
    for key in given:
        if key not in keys:
            raise UserError(f"{where}: {unlisted('key', str(key), list(keys))}")
    found = []
    if METHOD in given:
        method = given.pop(METHOD)
        fits = isinstance(method, str) and method and not method.startswith("-") and not method.endswith(SUFFIXES)
        expected(f"{where}: {METHOD}", bool(fits), "a method's id", method)
        found = [method]
    won = {pair.partition("=")[0].strip() for pair in pairs}
    settings = flat_settings(given.pop(SETTINGS, None) or {}, where)
    found += [f"--set={key}={value}" for key, value in settings if key not in won]
    for key, value in given.items():
        found += _option(keys[key], value, f"{where}: {key}", home)
    return found


def _option(option: click.Option, value: Any, where: str, home: Path) -> list[str]:
    name = option.opts[0]
    if value is None:
        return []
    if option.is_flag:
        expected(where, isinstance(value, bool), "true or false", value)
        return [name] if value else []
    values = value if option.multiple and isinstance(value, (list, tuple)) else [value]
    for one in values:
        expected(where, not isinstance(one, Mapping), "a value or a list of values", one)
    is_path = isinstance(option.type, click.Path)
    return [f"{name}={home / str(one) if is_path else as_text(one)}" for one in values]


def read_run_file(path: Path, what: str = "run file") -> dict[str, Any]:
    """The keys and values of a YAML file, read as plain data.

    Raises UserError: no such file, no mapping, a key twice, too large, or other values than text, numbers, lists and
    mappings.
    """
    import yaml

    from fairflare.engine.files import read_bytes

    where = f"{what} {path.name}"
    try:
        content = yaml.load(read_bytes(path, LARGEST).decode("utf-8"), Loader=_loader())
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise UserError(f"{where}: {line}{error.problem or 'is no YAML'}") from None
    except (ValueError, yaml.YAMLError, RecursionError, TypeError) as error:
        raise UserError(f"{where}: expected a YAML file ({type(error).__name__})") from None
    is_list = isinstance(content, list)  # it is not shown: its aliases may make a small file long
    expected(where, isinstance(content, dict), "keys and values", "a list" if is_list else content)
    check_plain(where, content)
    found: dict[str, Any] = content
    return found


def _loader() -> Any:
    """YAML's safe loader, which makes plain data only, but refuses a key that is there twice."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            for name in names:
                if names.count(name) > 1:
                    raise yaml.MarkedYAMLError(problem=f"{shown(name)} is given twice", problem_mark=node.start_mark)
            return super().construct_mapping(node, deep)

    return Loader


@click.command(cls=RunCommand)
@options.config_options
@click.option(
    "--solo/--no-solo",
    default=None,
    help="Each site also trains alone, and reports its benefit of joining; by default on tables and your own data.",
)
@click.option("--pooled", is_flag=True, help="Beside it one model on all sites' data, where these may be pooled.")
@options.run_options
@options.threads_option
@options.workers_option
@options.cache_option
@options.out_option
@options.force_option
@options.as_json
def run(
    config: RunConfig,
    continued: Path | None,
    solo: bool | None,
    pooled: bool,
    env: str,
    deployment: dict[str, Any] | None,
    out: Path | None,
    **how: Any,
) -> options.Told:
    """Run one federation of METHOD and write its report.

    METHOD may be a YAML file whose keys are these options: docs/python.md. What is given beside it wins.

    With --pooled DIR holds a folder for this run and one for the pooled one, with their comparison, site by site; the
    same command goes on with what is missing.
    """
    from fairflare.studies.runs import default_folder, execute, execute_deployed, resumable
    from fairflare.studies.runs import resume as resume_run

    folder = out or continued or default_folder(config)
    config = config if continued else with_solo(config, solo, env)
    if pooled:
        if deployment:
            raise UserError(f"--pooled: expected --env local or --env sim, got --env {env}")
        from fairflare.cli import results
        from fairflare.studies.comparison import compare_all
        from fairflare.studies.study import with_references

        folder = out or folder.with_name(f"{folder.name}-with-pooled")
        comparison = compare_all(with_references(config, ["pooled"]), folder, env=env, **how)
        return comparison, partial(results.comparison, comparison, folder)
    if deployment:
        summary = execute_deployed(config, folder, force=how["force"] or folder == continued, **deployment)
    elif continued:
        if folder != continued or how.pop("force"):
            raise UserError("--continue: the run's folder goes on, without --out and --force")
        with resumable(folder):
            summary = resume_run(folder, config, **how)
    else:
        with resumable(folder):
            summary = execute(config, folder, env=env, **how)
    from fairflare.cli import results  # and with it the report's modules, which no run waits for

    return {"folder": str(folder), "report": summary}, partial(results.run_result, summary, folder)


def with_solo(config: RunConfig, solo: bool | None, env: str) -> RunConfig:
    """``config`` with what ``--solo`` or ``--no-solo`` says, else with ``--set solo=...``, else as it goes by itself.

    ``solo``: None where neither was given. A deployed federation has to be asked.
    """
    from fairflare.engine.setup.config import asks_by_itself, with_benefit

    if solo is None:
        given = click.get_current_context().params["values"].keys()
        by_itself = env in ("local", "sim") and asks_by_itself(config)
        solo = config.solo if given & {"solo", "run.solo"} else by_itself
    return with_benefit(config, solo)


@click.command()
@click.argument("folder", type=options.PATH)
@options.threads_option
@options.cache_option
@options.workers_option
@options.as_json
def resume(folder: Path, **how: Any) -> options.Told:
    """Continue the interrupted or failed run in FOLDER after its last finished round."""
    from fairflare.cli import results
    from fairflare.studies.runs import resumable
    from fairflare.studies.runs import resume as resume_run

    with resumable(folder):
        summary = resume_run(folder, **how)
    return {"folder": str(folder), "report": summary}, partial(results.run_result, summary, folder)


@click.command(cls=RunCommand, skips=OF_A_RUN)
@options.config_options
@click.option("--out", type=options.PATH, required=True, metavar="DIR", help="The job folder to write.")
@click.option("--name", help="The job's name; made of method and task by default.")
@click.option("--solo/--no-solo", default=None, help="Each site also trains alone, and reports its benefit of joining.")
@click.option("--simulation", is_flag=True, help="Short polling intervals, for the simulator only.")
@click.option("--preinstalled", is_flag=True, help="Without code, for sites that have this package.")
@options.force_option
def export(config: RunConfig, continued: Path | None, out: Path, solo: bool | None, **how: Any) -> None:
    """Write a deployable FLARE job folder: meta.json, and an app each for server and sites with what of this package
    they run, see `fairflare inspect`.

    METHOD may be a YAML file as `fairflare run` takes it, whose keys on where and how it runs are left aside.
    """
    from fairflare.cli.jobs import export_job
    from fairflare.engine.setup.config import with_benefit

    config = with_benefit(config, config.solo if solo is None else solo)
    export_job(config, out, **how)
    console.say(f"job folder: {out}\nsubmit it:  nvflare job submit -j {out}")
