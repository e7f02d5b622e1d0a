# SPDX-License-Identifier: Apache-2.0
"""One display over several runs, wherever they are: a bar over all with the time left, one for each that is at work."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from fairflare.app import terminal
from fairflare.app.describe import relative_cost
from fairflare.app.progress import Follower, TimeLeft, score_words
from fairflare.core import registry
from fairflare.core.findings import Finding
from fairflare.engine.setup.config import RunConfig
from fairflare.report.log import line

Say = Callable[..., None]
"""Called with what a run says of itself: a kind and its values, which can be sent to another process."""


class Board:
    """Shows runs that say what they do; a line for each that has ended, which is all that a redirected stream gets.

    Several threads may tell it something.
    """

    def __init__(self, runs: Mapping[str, RunConfig], seconds: Mapping[str, float | None] | None = None) -> None:
        """
        Args:
            runs: the name and the configuration of every run.
            seconds: name -> what a run is expected to take, where runs of several tasks are side by side; used if it
                is known of all.
        """
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            TimeLeft(),
            console=terminal.err,
            transient=True,
            disable=not terminal.err.is_terminal,
        )
        self._rounds = {name: int(config.training["rounds"]) for name, config in runs.items()}
        self._costs = {name: relative_cost(registry.get_method(config.method)) for name, config in runs.items()}
        if seconds and None not in seconds.values():
            self._costs = {name: (seconds[name] or 0.0) / max(1, self._rounds[name]) for name in runs}
        self._left = {name: self._costs[name] * rounds for name, rounds in self._rounds.items()}
        self._work, self._begun = 0.0, time.monotonic()
        self._ended: set[str] = set()
        self._all = self._bar.add_task(self._title(), total=sum(self._left.values()), state="")
        self._rows: dict[str, TaskID] = {}
        self._lock = threading.RLock()

    def __enter__(self) -> Board:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def began(self, name: str) -> None:
        """A run is about to be made, for the first time or again."""
        with self._lock:
            if name not in self._rows and name not in self._ended:
                self._rows[name] = self._bar.add_task(escape(name), total=None, state="")

    def heard(self, name: str, kind: str, *content: Any) -> None:
        """What a run says, see ``Elsewhere``."""
        if kind == "note":
            text = content[0] if content[0].startswith(name) else f"{name}: {content[0]}"
            self._bar.console.print(escape(text), soft_wrap=True)
            return
        with self._lock:
            if kind == "began":
                self.began(name)
            elif name not in self._rows:  # what a cluster says may come late
                return
            elif kind == "doing":
                self._bar.update(self._rows[name], state=escape(content[0]))
            else:
                self._reached(name, *content)

    def ended(self, name: str, how: str) -> None:
        """A run is over, however it ended."""
        with self._lock:
            self._left[name] = 0.0
            self._ended.add(name)
            if name in self._rows:
                self._bar.remove_task(self._rows.pop(name))
            self._show()
            if len(self._left) > 1:
                count = f"run {len(self._ended)} of {len(self._left)}"
                text = f"{count}: {name} {how}, {time.monotonic() - self._begun:.0f} s"
                self._bar.console.print(escape(text), soft_wrap=True)

    def _reached(self, name: str, number: int, begins: bool, scores: str) -> None:
        """A run has finished round ``number`` with ``scores``, or goes on after it."""
        before, cost = self._left[name], self._costs[name]
        self._left[name] = cost * (self._rounds[name] - number)
        self._work += 0.0 if begins else before - self._left[name]
        total = self._rounds[name]
        state = ", ".join(filter(None, (f"round {number} of {total}", scores)))
        self._bar.update(self._rows[name], total=total, completed=number, state=escape(state))
        self._show()

    def _show(self) -> None:
        total = self._work + sum(self._left.values())
        self._bar.update(self._all, description=self._title(), total=total, completed=self._work)

    def _title(self) -> str:
        return f"{len(self._ended)} of {len(self._left)} runs"


class Elsewhere:
    """What a run shows, said to a board: in the place of the terminal, see ``console.shown_by``."""

    def __init__(self, say: Say) -> None:
        self._say = say

    def note(self, text: str) -> None:
        """A remark."""
        self._say("note", text)

    @contextlib.contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """Something of which nobody knows how long it takes."""
        self._say("doing", text)
        yield

    def progress(self, title: str, rounds: int, sites: int, starting: bool = False, headline: str = "") -> SaidProgress:
        """In the place of a progress bar of the run's own."""
        return SaidProgress(self._say, starting, headline)


class SaidProgress(Follower):
    """Says to a board what ``progress.Progress`` shows."""

    def __init__(self, say: Say, starting: bool, headline: str = "") -> None:
        super().__init__()
        self._say, self._starting, self._headline = say, starting, headline

    def __enter__(self) -> SaidProgress:
        self._say("doing", "starting FLARE" if self._starting else "preparing")
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def preparing(self, site: str) -> None:
        """A site's data are about to be built."""
        self._say("doing", f"data of {site}")

    def found(self, site: str, finding: Finding) -> None:
        """Preflight found something at a site; warnings are in the report."""
        if finding.level == "error":
            self._say("note", f"{site}: {finding}")

    def lost(self, text: str) -> None:
        """A site's process has ended; see ``progress.Progress.lost``."""
        self._say("note", text)

    def saw(self, entry: Mapping[str, Any]) -> None:
        """An audit entry was written."""
        if entry["event"] in ("start", "resume"):
            self._say("reached", entry.get("from_round", 0), True, "")
        elif entry["event"] == "round":
            self._say("reached", entry["round"], False, score_words(entry, self._headline))
            if entry["rejected"]:
                self._say("note", line(entry))
        elif entry["event"] == "evaluation":
            self._say("doing", "scoring")
