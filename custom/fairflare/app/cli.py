# SPDX-License-Identifier: Apache-2.0
"""The command line: thin. Errors are one line; exit code 2 for a user's mistake, 1 for a failed run."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from fairflare import __version__
from fairflare.app.commands import about, data, folders, model, run, studies
from fairflare.app.failures import explained
from fairflare.app.waiting import starting
from fairflare.core.errors import UserError
from fairflare.core.processes import ends_by_signal
from fairflare.core.validation import CONTROL, shown

COMMANDS = (
    about.describe,
    about.list_methods,
    about.list_tasks,
    about.new,
    data.fingerprint,
    data.init,
    data.plan,
    data.preflight,
    data.prepare,
    folders.after,
    folders.convert,
    folders.inspect,
    folders.report,
    folders.verify,
    folders.watch,
    model.evaluate,
    model.export_model,
    model.predict,
    run.export,
    run.resume,
    run.run,
    studies.compare,
    studies.contribution,
    studies.paper,
    studies.riders,
    studies.search,
)


class WholeSentences(click.Group):
    """Commands with the whole first sentence of each, which click cuts to what is left of one line."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the section "Commands"."""
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            formatter.write_dl([(name, first_sentence(one)) for name, one in found.items() if one])


def first_sentence(command: click.Command) -> str:
    """The first paragraph of a command's help, in one line."""
    return " ".join((command.help or "").partition("\n\n")[0].split())


@click.group(cls=WholeSentences, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="fairflare")
def cli() -> None:
    """Fair federated learning for hospitals, as NVIDIA FLARE jobs."""


for one in COMMANDS:
    cli.add_command(one)


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
