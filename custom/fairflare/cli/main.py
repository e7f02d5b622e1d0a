# SPDX-License-Identifier: Apache-2.0
"""The command line: thin. Errors are one line; exit code 2 for a user's mistake, 1 for a failed run."""

from __future__ import annotations

import errno
import gc
import importlib
import io
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from fairflare import __version__
from fairflare.core import lab, plugins
from fairflare.core.errors import FairFlareError, MissingData, UserError
from fairflare.core.signals import ends_by_signal, how_it_ended
from fairflare.core.validation import CONTROL, shown, unlisted

LONGEST = 1500
"""Characters of the line."""
GARBAGE = 5_000
"""New objects after which Python looks for cycles: at its own 700 a tenth of the time that imports take goes there."""
MISTAKES = {errno.EACCES, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
MISTAKES |= {errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.EPERM, errno.EROFS}
"""Refusals of the system that another argument would not meet; a full disk, say, is a failed run."""
LOOKS = ("init", "preflight")
OWN_DATA = ("--data", "--datalists")
MODULES = {
    "about": "describe list tasks",
    "data": "fingerprint init plan preflight",
    "decision": "join join-forecast join-sheet monitor",
    "folders": "after inspect report verify watch",
    "model": "evaluate export-model predict",
    "run": "export resume run",
    "studies": "compare",
}
DAILY = "run compare join predict"
"""Verbs that also stand alone."""
GROUPS = {
    "data": ("Look at data and prepare them.", "init preflight plan fingerprint"),
    "run": ("Train, and read what came of it.", "resume watch report verify after"),
    "join": ("Decide on joining.", "forecast=join-forecast sheet=join-sheet"),
    "use": ("Use a finished run's model.", "predict evaluate export=export-model monitor"),
    "study": ("Compare methods, and see what there is.", "compare list tasks describe"),
    "job": ("NVIDIA FLARE jobs.", "export inspect"),
}
"""Group -> its purpose, and its verbs, each with the command that it is where that has another name."""
VERBS = {
    (group, verb): command or verb
    for group, (_, verbs) in GROUPS.items()
    for verb, _, command in (one.partition("=") for one in verbs.split())
}
"""(group, verb) -> command."""
COMMANDS = {command: module for module, commands in MODULES.items() for command in commands.split()}
"""Command -> the module of this package that has it, which is imported when the command is asked for."""


def explained(error: BaseException) -> int:
    """Say what ``error`` means on stderr; returns the exit code: 2 for a user's mistake, 1 for a failed run, 130 for
    Ctrl-C, another for a signal. With ``FAIRFLARE_DEBUG`` an error that nobody has foreseen is raised again, so that
    its traceback shows."""
    if isinstance(error, click.ClickException):
        return _complain(error.format_message(), 2)
    if isinstance(error, FairFlareError):
        code = _complain(str(error), error.exit_code)
        if isinstance(error, MissingData):
            click.echo(error.tree, err=True)
        return code
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        if isinstance(error.__cause__, EOFError):  # click takes the end of a file for an abort
            return _complain("a file ends too early", 2)
        return _complain(*how_it_ended(error))
    if os.environ.get("FAIRFLARE_DEBUG"):
        raise error
    return _unforeseen(error)


def _unforeseen(error: BaseException) -> int:
    """What no command has put into words: the system's refusals, and mistakes of this package."""
    if isinstance(error, OSError) and error.strerror:
        names = [name for name in (error.filename, error.filename2) if isinstance(name, (str, bytes, os.PathLike))]
        where = "".join(f"{shown(os.fsdecode(name))}: " for name in names)
        return _complain(f"{where}{error.strerror}", 2 if error.errno in MISTAKES else 1)
    if isinstance(error, MemoryError):
        return _complain("not enough memory", 1)
    return _complain(f"internal error: {type(error).__name__}: {error} (FAIRFLARE_DEBUG=1 shows where)", 1)


def _complain(text: str, code: int) -> int:
    """One line, whatever a message quotes: no control characters, and not longer than a screen."""
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))
    click.echo(f"fairflare: {line if len(line) <= LONGEST else line[:LONGEST] + ' ...'}", err=True)
    return code


class Commands(click.Group):
    """``COMMANDS``, each with the whole first sentence of its help, which click cuts to what is left of one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*COMMANDS, *plugins.modules_by_name(plugins.COMMANDS)})

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Also of a group's verb, which has a short name too."""
        group, verb = (*args, "", "")[:2]
        if old := VERBS.get((group, verb)) or (verb if group in ("study", "run") and verb in lab.COMMANDS else None):
            return f"{group} {verb}", self.get_command(ctx, old), args[2:]
        if group in GROUPS and group not in COMMANDS:
            if ctx.resilient_parsing:  # a shell completes the line
                verbs = {one: self.get_command(ctx, old) for (of, one), old in VERBS.items() if of == group}
                return (
                    group,
                    click.Group(group, commands={one: known for one, known in verbs.items() if known}),
                    args[1:],
                )
            if verb not in ("", *ctx.help_option_names):
                raise UserError(
                    f"fairflare {group}: {unlisted('verb', verb, [one for of, one in VERBS if of == group])}"
                )
            click.echo("\n".join(f"fairflare {one} {words}" for one, words in self.rows(group)))
            ctx.exit()
        return super().resolve_command(ctx, args)

    def rows(self, group: str) -> list[tuple[str, str]]:
        """Each verb of a group, with what it does."""
        known = {verb: self.get_command(click.Context(self), old) for (of, verb), old in VERBS.items() if of == group}
        return [(f"{group} {verb}", first_sentence(one)) for verb, one in known.items() if one]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        from fairflare.cli.options import for_every_command

        if name not in COMMANDS:
            for point in plugins.in_group(plugins.COMMANDS):
                if point.name == name:
                    return for_every_command(point.load())
            if name in lab.COMMANDS:
                raise UserError(f"fairflare {name}: {lab.WHERE}")
            return None
        module = importlib.import_module(f"fairflare.cli.{COMMANDS[name]}")
        known = vars(module).values()
        return for_every_command(next(one for one in known if isinstance(one, click.Command) and one.name == name))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Daily verbs, groups and plugins, not the names that verbs had before."""
        found = super().shell_complete(ctx, incomplete)
        groups = [CompletionItem(one, help=words) for one, (words, _) in GROUPS.items() if one.startswith(incomplete)]
        old = {*GROUPS, *VERBS.values()} - {*DAILY.split()} | {*GROUPS}
        return [*groups, *(one for one in found if one.value not in old)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Those of every day, then by group; what plugins bring is in a section of its own."""
        known = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        daily = DAILY.split()
        others = [name for name in known if name not in (*VERBS.values(), *daily)]
        alone = [(name, first_sentence(one)) for name in (*daily, *others) if (one := known.get(name))]
        sections = {"Every day, and of plugins": alone}
        sections |= {title: self.rows(group) for group, (title, _) in GROUPS.items()}
        for title, rows in sections.items():
            with formatter.section(title.rstrip(".")):
                formatter.write_dl(rows)


def first_sentence(command: click.Command) -> str:
    """The first paragraph of a command's help, in one line."""
    return " ".join((command.help or "").partition("\n\n")[0].split())


def first_screen() -> str:
    """What ``fairflare`` alone shows: the verbs of each group, and where more is."""
    verbs = {group: ", ".join(verb for of, verb in VERBS if of == group) for group in GROUPS}
    head = "Fair federated learning for hospitals, as NVIDIA FLARE jobs: fairflare GROUP VERB"
    rows = [f"  {group:5}  {names}" for group, names in {"": DAILY.replace(" ", ", "), **verbs}.items()]
    return "\n".join([head, *rows, "fairflare --help says what each does; fairflare GROUP VERB --help, how."])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="fairflare")
def cli() -> None:
    """Fair federated learning for hospitals, as NVIDIA FLARE jobs."""


def main(arguments: list[str] | None = None) -> None:
    given = sys.argv[1:] if arguments is None else arguments
    gc.set_threshold(GARBAGE)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's products are small: a second thread only waits, busily
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":  # a locale may lack the minus sign
            stream.reconfigure(errors="backslashreplace")
    try:
        for word in given:
            if CONTROL.search(word):
                raise UserError(f"expected arguments that are text without control characters, got {shown(word)}")
        command = shlex.join(["fairflare", *(_without_folders(word) for word in given)])
        own = any(word.partition("=")[0] in OWN_DATA for word in given)
        if at_terminal() and (own or any(word in LOOKS for word in given[:2])) and "--quiet" not in given:
            click.echo("looking at the data ...", err=True)  # before anything heavy is imported
        with ends_by_signal():
            code = cli.main(given, standalone_mode=False, obj=command) or 0
    except click.exceptions.NoArgsIsHelpError as help:
        click.echo(first_screen() if help.ctx and help.ctx.command is cli else help.format_message())
        code = 0
    except (KeyboardInterrupt, Exception) as error:
        if arguments is None:  # the process ends: a second Ctrl-C would be a traceback of what libraries do at exit
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        code = explained(error)
    sys.exit(code if isinstance(code, int) else 0)


def at_terminal() -> bool:
    """Whether somebody sees what is written to stderr as it comes."""
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def _without_folders(word: str) -> str:
    """An absolute path as its last part, since result files that keep the command are shared."""
    key, equals, value = word.rpartition("=")
    return f"{key}{equals}{Path(value).name}" if Path(value).is_absolute() else word


if __name__ == "__main__":
    main()
