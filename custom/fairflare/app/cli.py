# SPDX-License-Identifier: Apache-2.0
"""The command line: thin. Errors are one line; exit code 2 for a user's mistake, 1 for a failed run."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from fairflare import __version__
from fairflare.app.commands.after import after
from fairflare.app.commands.compare import compare
from fairflare.app.commands.contribution import contribution
from fairflare.app.commands.convert import convert
from fairflare.app.commands.data import preflight, prepare
from fairflare.app.commands.describe import describe
from fairflare.app.commands.evaluate import evaluate
from fairflare.app.commands.export import export
from fairflare.app.commands.export_model import export_model
from fairflare.app.commands.init import init
from fairflare.app.commands.inspection import inspect
from fairflare.app.commands.listing import list_methods, list_tasks
from fairflare.app.commands.new import new
from fairflare.app.commands.paper import paper
from fairflare.app.commands.plan import fingerprint, plan
from fairflare.app.commands.predict import predict
from fairflare.app.commands.report import report, verify
from fairflare.app.commands.riders import riders
from fairflare.app.commands.run import resume, run
from fairflare.app.commands.search import search
from fairflare.app.commands.watch import watch
from fairflare.app.failures import explained
from fairflare.app.waiting import starting
from fairflare.core.errors import UserError
from fairflare.core.processes import ends_by_signal
from fairflare.core.validation import CONTROL, shown

COMMANDS = (
    after,
    compare,
    contribution,
    convert,
    describe,
    evaluate,
    export,
    export_model,
    fingerprint,
    init,
    inspect,
    list_methods,
    list_tasks,
    new,
    paper,
    plan,
    predict,
    preflight,
    prepare,
    report,
    resume,
    riders,
    run,
    search,
    verify,
    watch,
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
