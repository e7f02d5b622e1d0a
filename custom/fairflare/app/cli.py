# SPDX-License-Identifier: Apache-2.0
"""The command line: thin. Errors are one line; exit code 2 for a user's mistake, 1 for a failed run."""

from __future__ import annotations

import importlib
import shlex
import sys
from pathlib import Path

import click

from fairflare import __version__
from fairflare.app.failures import explained
from fairflare.app.waiting import starting
from fairflare.core.errors import UserError
from fairflare.core.processes import ends_by_signal
from fairflare.core.validation import CONTROL, shown

COMMANDS = {
    "after": "after",
    "compare": "compare",
    "contribution": "contribution",
    "convert": "convert",
    "describe": "describe",
    "evaluate": "evaluate",
    "export": "export",
    "export-model": "export_model",
    "fingerprint": "plan",
    "init": "init",
    "inspect": "inspection",
    "list": "listing",
    "new": "new",
    "paper": "paper",
    "plan": "plan",
    "predict": "predict",
    "preflight": "data",
    "prepare": "data",
    "report": "report",
    "resume": "run",
    "riders": "riders",
    "run": "run",
    "search": "search",
    "tasks": "listing",
    "verify": "report",
    "watch": "watch",
}
"""Command -> the module in ``app.commands`` that has it, which is imported when the command is asked for."""


class Commands(click.Group):
    """``COMMANDS``, each with the whole first sentence of its help, which click cuts to what is left of one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"fairflare.app.commands.{COMMANDS[name]}")
        return next(one for one in vars(module).values() if isinstance(one, click.Command) and one.name == name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            formatter.write_dl([(name, first_sentence(one)) for name, one in found.items() if one])


def first_sentence(command: click.Command) -> str:
    """The first paragraph of a command's help, in one line."""
    return " ".join((command.help or "").partition("\n\n")[0].split())


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="fairflare")
def cli() -> None:
    """Fair federated learning for hospitals, as NVIDIA FLARE jobs."""


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the console script."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        for word in given:
            if CONTROL.search(word):
                raise UserError(f"expected arguments that are text without control characters, got {shown(word)}")
        command = shlex.join(["fairflare", *(_without_folders(word) for word in given)])
        with starting(given), ends_by_signal():
            code = cli.main(given, standalone_mode=False, obj=command) or 0
    except click.exceptions.NoArgsIsHelpError as help:
        click.echo(help.format_message())
        code = 0
    except (KeyboardInterrupt, Exception) as error:
        code = explained(error)
    sys.exit(code if isinstance(code, int) else 0)


def _without_folders(word: str) -> str:
    """An absolute path as its last part, since result files that keep the command are shared."""
    key, equals, value = word.rpartition("=")
    return f"{key}{equals}{Path(value).name}" if Path(value).is_absolute() else word


if __name__ == "__main__":
    main()
