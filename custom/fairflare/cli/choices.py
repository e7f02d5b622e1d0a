# SPDX-License-Identifier: Apache-2.0
"""The options of commands that make runs, generated from the fields of ``studies.run_file``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fairflare.cli.main import at_terminal
from fairflare.cli.options import PATH, listed, listed_text, option
from fairflare.core.errors import UserError
from fairflare.core.settings import parse_pairs
from fairflare.studies.run_file import (
    SUFFIXES,
    Choices,
    Flag,
    Given,
    Place,
    Run,
    RunFile,
    names_of,
    read_run_file,
    say_reasons,
)

M = TypeVar("M", bound=Given)
Command = TypeVar("Command", bound="Callable[..., None] | click.Command")


SECTIONS = {
    "Data": "task datalists kind classes without code script bundle init_from plan sites accept require",
    "Method and training": "rounds seed seeds values grid robust",
    "Where and how it runs": "continued env kit preinstalled wait workers no_cache",
}
"""Section of a command's help -> its options; all others are below."""


class Grouped(click.Command):
    """A command whose help shows its options by purpose."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = {one.name: row for one in self.get_params(ctx) if (row := one.get_help_record(ctx))}
        found = {title: [rows.pop(name) for name in names.split() if name in rows] for title, names in SECTIONS.items()}
        for title, own in {**found, "Results": list(rows.values())}.items():
            if own:
                with formatter.section(title):
                    formatter.write_dl(own)


class RunCommand(Grouped):
    """A command whose METHOD may be a YAML file; of its keys those count that are options here."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        if ctx.resilient_parsing:  # a shell completes the line
            return rest
        if (path := ctx.params.get("method") or "").endswith(SUFFIXES):
            line = click.core.ParameterSource.COMMANDLINE
            names = RunFile.model_fields.keys() & ctx.params.keys() - {"method"}
            given = {name: ctx.params[name] for name in names if ctx.get_parameter_source(name) is line}
            if "values" in given:
                given["values"] = parse_pairs(given["values"])
            found = read_run_file(Path(path)).beneath(given)
            ctx.params |= {name: getattr(found, name) for name in found.model_fields_set & ctx.params.keys()}
        continued = ctx.params.get("continued")
        if ctx.params.get("method", "") is None and not (continued and continued.is_dir()):
            raise click.MissingParameter(ctx=ctx, param_hint="'METHOD'", param_type="argument")
        return rest


def generated(model: type[BaseModel]) -> Callable[[Command], Command]:
    """Options of those fields of ``model`` that have a ``Flag``; the command gets them by the fields' names."""

    def decorate(command: Command) -> Command:
        for name, field in reversed(model.model_fields.items()):
            if flag := next((one for one in field.metadata if isinstance(one, Flag)), None):
                command = _option(name, field, flag)(command)
        return command

    return decorate


def _option(name: str, field: FieldInfo, flag: Flag) -> Callable[[Command], Command]:
    names = [name, *(f"--{one.replace('_', '-')}" for one in names_of(name, field))]
    of, inside = get_origin(field.annotation), get_args(field.annotation)
    kind = (
        field.annotation if of is Literal else next((one for one in inside if one is not type(None)), field.annotation)
    )
    many = of in (list, dict)
    if kind is bool:
        return click.option(*names, is_flag=True, help=flag.help)
    words = flag.words or (get_args(kind) if get_origin(kind) is Literal else ())
    if flag.listed:
        return (listed if many else listed_text)(*names, metavar=flag.metavar, help=flag.help)
    texts: Any = click.Choice(words) if words else PATH if kind is Path else str
    default: Any = None if many else field.default
    more = {"type": texts, "multiple": many, "default": default, "hidden": not flag.help}
    return option(*names, metavar=flag.metavar, help=flag.help, **more)


def _taken(model: type[M], given: dict[str, Any]) -> M:
    """A ``model`` of its fields, taken out of what was ``given``; a terminal shows what replaces an old option."""
    own = {key: given.pop(key) for key in model.model_fields if key in given}
    for name, field in model.model_fields.items():
        if own.get(name) is not None and Flag() in field.metadata and at_terminal():
            click.echo(f"fairflare: --{name.replace('_', '-')}: is now --set {name}={own[name]}", err=True)
    return model.read(own, "--")


def choices_options(command: Callable[..., None]) -> Callable[..., None]:
    """On what METHOD is run, and how: the command gets ``task``, and ``choices`` as ``make_config`` takes them."""

    @generated(Choices)
    @functools.wraps(command)
    def with_choices(**given: Any) -> None:
        chosen = _taken(Choices, given)
        task, choices = chosen.choices(folds=click.get_current_context().info_name == "join")
        command(task=task, choices=choices, **given)

    return with_choices


def config_options(command: Callable[..., None]) -> Callable[..., None]:
    """METHOD and everything that makes one run of it; the command gets them as ``config``.

    It gets ``continued``, too: the folder of the run whose next segment this is.
    """

    @click.argument("method", required=False)
    @generated(Run)
    @functools.wraps(command)
    def with_config(**given: Any) -> None:
        if given.get("advise"):
            if given["method"] != "fedavg":
                raise UserError(f"--advise: expected METHOD fedavg, got {given['method']}")
            given["method"] = "signs"
        if given["method"] is None:  # of a run that goes on
            del given["method"]
        chosen = _taken(Run, given)
        config = chosen.config()
        say_reasons(config)
        command(config=config, continued=chosen.continues, **given)

    return with_config


def run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Where one run takes place; the command gets ``env``, and ``deployment`` where that is a running federation."""

    @generated(Place)
    @functools.wraps(command)
    def with_env(**given: Any) -> None:
        place = _taken(Place, given)
        deployment = place.deployment(given.get("workers"))
        command(env=place.env, deployment=deployment, **given)

    return with_env
