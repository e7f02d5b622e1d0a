# SPDX-License-Identifier: Apache-2.0
"""The options that several commands share, and what their texts mean."""

from __future__ import annotations

import contextlib
import csv
import errno
import functools
import io
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from fairflare.cli import console
from fairflare.core.errors import UserError
from fairflare.core.lab import CACHE
from fairflare.core.settings import parse_pairs
from fairflare.core.validation import shown
from fairflare.studies import display
from fairflare.studies.labels import MOST_WORKERS, at_most, environment


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

JSON_HELP = "Print JSON for a program to read."
json_option = click.option("--json", "as_json", is_flag=True, help=JSON_HELP)
set_option = click.option(
    "--set",
    "values",
    multiple=True,
    metavar="KEY=VALUE",
    callback=lambda ctx, param, pairs: parse_pairs(pairs),
    help="A parameter; repeat for more.",
)


def divided(ctx: click.Context, param: click.Parameter, texts: Sequence[str]) -> tuple[str, ...]:
    """The names of every line of CSV, each once: "A,B" is "A" and "B" given one by one."""
    names = [name.strip() for line in csv.reader(texts, skipinitialspace=True) for name in line]
    return tuple(dict.fromkeys(filter(None, names))) or tuple(texts[:1])


def joined(ctx: click.Context, param: click.Parameter, texts: Sequence[str]) -> str | None:
    """All that was given as one text with commas."""
    return ",".join(texts) if texts else None


listed = functools.partial(click.option, multiple=True, callback=divided)
listed_text = functools.partial(click.option, multiple=True, callback=joined, show_default=True)
accept_option = listed("--accept", metavar="CODE", help="Preflight's errors of this code are warnings.")
without_option = listed("--without", metavar="A,B", help="Sites of your own data that are left out.")
classes_option = listed_text("--classes", metavar="N|A,B", help="Classes or structures: a number, or their names.")
env_option = option("--env", type=click.Choice(["local", "sim"]), default="local", help="Where the federation runs.")


class Workers(click.IntRange):
    """A number of worker processes; None for "auto", as without the option."""

    name = "number or auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return None if value == "auto" else super().convert(value, param, ctx)


workers_option = click.option(
    "--workers",
    type=Workers(1, MOST_WORKERS),
    metavar="N|auto",
    envvar="FAIRFLARE_WORKERS",
    show_envvar=True,
    help="Processes that compute side by side in --env local, by default as many as are of use (auto).",
)


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


one_by_one_option = click.option(
    "--one-by-one", is_flag=True, help="No run is trained together with others: the bits of `fairflare run`."
)


def exported(job: Path) -> Told:
    """What is told of a job's folder that was written."""
    return {"job": str(job)}, f"job folder: {job}\nsubmit it:  nvflare job submit -j {shlex.quote(str(job))}"


def grid_options(command: Callable[..., Told | None]) -> Callable[..., None]:
    """Where and how the runs of a command that makes several take place, and what becomes of the results."""
    return workers_option(cache_option(out_option(force_option(as_json(command)))))


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


def for_every_command(command: click.Command) -> click.Command:
    """``command`` with --quiet; and with --json where it has no JSON of its own: the lines that it prints."""
    names = {one.name for one in command.params}
    if "quiet" not in names and (body := command.callback):
        lines_alone = "as_json" not in names

        @functools.wraps(body)
        def spoken(*, quiet: bool, **given: Any) -> Any:
            with display.silent() if quiet else contextlib.nullcontext():
                if not (lines_alone and given.pop("as_json")):
                    return body(**given)
                with contextlib.redirect_stdout(io.StringIO()) as printed:
                    body(**given)
            console.dump({"output": printed.getvalue().splitlines()})

        command.callback = spoken
        flags = [click.Option(["--quiet"], is_flag=True, help="Print the result alone: no progress, no notes.")]
        if lines_alone:
            flags.insert(0, click.Option(["--json", "as_json"], is_flag=True, help=JSON_HELP))
        command.params += flags
    return command


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
