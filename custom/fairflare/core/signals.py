# SPDX-License-Identifier: Apache-2.0
"""How a command ends on a signal or a full disk, and how messages quote a command."""

from __future__ import annotations

import contextlib
import shlex
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from fairflare.core.errors import NO_SPACE


class Terminated(KeyboardInterrupt):
    """A signal asked the command to end, which exits with ``code``, 128 + its number; all clears up as after Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.code = 128 + number


@contextlib.contextmanager
def ends_by_signal() -> Iterator[None]:
    """Within: SIGTERM and SIGHUP (unless ignored, as under nohup) raise ``Terminated``, once: clearing up takes time.

    Only a process's main thread can have it so; elsewhere nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    wanted = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in wanted if signal.getsignal(number) == signal.SIG_DFL}

    def end(number: int, frame: FrameType | None) -> None:
        for one in before:
            signal.signal(one, signal.SIG_IGN)
        raise Terminated(number)

    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def how_it_ended(error: BaseException) -> tuple[str, int]:
    """The line and the exit code for a command that Ctrl-C or a signal ended; click puts its own error around it."""
    found = error if isinstance(error, KeyboardInterrupt) else error.__cause__
    what, code = ("terminated", found.code) if isinstance(found, Terminated) else ("interrupted", 130)
    return "; ".join([what, *map(str, getattr(found, "args", ()))]), code


def command(*words: object) -> str:
    """A command of this package in backticks, as a shell takes it."""
    return f"`{shlex.join(['fairflare', *map(str, words)])}`"


def advice(error: BaseException | None, folder: Path, begun: bool) -> str:
    """What is full and what to do, in one line.

    Args:
        error: one of which ``is_full`` holds; None: another process had it.
        begun: whether its log has a line, so that it can go on.
    """
    named = error.filename if isinstance(error, OSError) else None
    where = named or (f"{folder} or {tempfile.gettempdir()}" if error is not None else folder)
    then = f"{command('resume', folder)} goes on after the last finished round" if begun else "start the run again"
    return f"{where}: {NO_SPACE}; make room, then {then}"
