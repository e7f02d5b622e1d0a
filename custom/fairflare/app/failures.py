# SPDX-License-Identifier: Apache-2.0
"""How a command that cannot go on ends: one line that names what is wrong, and an exit code."""

from __future__ import annotations

import errno
import os

import click

from fairflare.core.errors import FairFlareError, MissingData
from fairflare.core.processes import how_it_ended
from fairflare.core.validation import shown

LONGEST = 1500
"""Characters of the line."""
MISTAKES = frozenset(
    (
        errno.EACCES,
        errno.EEXIST,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ENXIO,
        errno.EPERM,
        errno.EROFS,
    )
)
"""Refusals of the system that another argument would not meet; a full disk, say, is a failed run."""


def explained(error: BaseException) -> int:
    """Say what ``error`` means on stderr.

    Returns:
        The exit code: 2 for a user's mistake, 1 for a failed run, 130 for Ctrl-C,
        another for a signal. With ``FAIRFLARE_DEBUG`` an error
        that nobody has foreseen is raised again, so that its traceback shows.
    """
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
