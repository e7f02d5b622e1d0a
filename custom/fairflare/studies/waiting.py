# SPDX-License-Identifier: Apache-2.0
"""Signs of life while somebody waits: before anything heavy is imported, and where a pipe can show no bar.

Nothing but the standard library is imported here, so that the first words do not wait for what they announce.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat

SOON = 1.0
"""Seconds after which something is said: who waits for less needs no words."""
REDRAWN = 0.5
"""Seconds between two pictures of a terminal's line."""
LINES = (9.0, 10.0, 10.0, 10.0, 10.0, 10.0)
"""Seconds between the first lines in a pipe; from then on ``RARELY`` lie between two."""
RARELY = 60.0
LOOKS = {"init": "looking at the data", "preflight": "looking at the data", "run": "starting the run"}
"""Command -> what it does first."""
OWN_DATA = ("--data", "--datalists")


class Waiting:
    """Says on stderr what is going on: one line that is drawn again at a terminal, ever rarer lines in a pipe."""

    def __init__(self, text: Callable[[], str]) -> None:
        """``text``: what is going on by now, one line without control characters."""
        self._text, self._stream, self._drawn = text, sys.stderr, False
        self._began, self._ended = time.monotonic(), threading.Event()
        self._last = self._began
        self._pauses: Iterator[float] = chain((SOON,), LINES, repeat(RARELY))
        self._thread = threading.Thread(target=self._speak, daemon=True)

    def __enter__(self) -> Waiting:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End it, and take the line off a terminal; no thread is left. May be called again."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._drawn:
            self._drawn = False
            self._write("\r\x1b[K")

    def spoken(self) -> None:
        """Something else was said: from here on only long silences are broken."""
        self._last, self._pauses = time.monotonic(), repeat(RARELY)

    def _speak(self) -> None:
        with contextlib.suppress(ValueError):  # a stream that is closed
            if at_terminal(self._stream):
                self._redraw()
                return
            while True:
                pause = next(self._pauses)
                while (left := self._last + pause - time.monotonic()) > 0:
                    if self._ended.wait(left):
                        return
                self._last = time.monotonic()
                self._write(f"{self._said()}\n")

    def _redraw(self) -> None:
        pause = SOON
        while not self._ended.wait(pause):
            self._drawn, pause = True, REDRAWN
            self._write(f"\r\x1b[K{self._said()[:78]}")

    def _said(self) -> str:
        seconds = time.monotonic() - self._began
        return f"{self._text()} ..." if seconds < 2 else f"{self._text()} ... {seconds:.0f} s"

    def _write(self, text: str) -> None:
        with contextlib.suppress(AttributeError, OSError, ValueError):  # no stream, nobody listens, signs it lacks
            self._stream.write(text)
            self._stream.flush()


_starting: list[Waiting] = []
"""What ``starting`` has begun and nothing has ended yet."""


@contextlib.contextmanager
def starting(words: Sequence[str]) -> Iterator[None]:
    """Within: a command line that looks at a user's own data says so soon; others do at a terminal alone."""
    command = words[0] if words else ""
    own = command != "run" or any(word.partition("=")[0] in OWN_DATA for word in words)
    if command in LOOKS and (own or at_terminal(sys.stderr)):
        _starting.append(Waiting(lambda: LOOKS[command]).__enter__())
    try:
        yield
    finally:
        started()


def started() -> None:
    """Something else is shown from here on, or processes are forked, beside which no thread may run."""
    while _starting:
        _starting.pop().stop()


def at_terminal(stream: object) -> bool:
    """Whether somebody sees what is written to ``stream`` as it comes."""
    try:
        return bool(stream.isatty())  # type: ignore[attr-defined]  # None where there is none
    except (AttributeError, ValueError):
        return False
