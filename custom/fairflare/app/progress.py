# SPDX-License-Identifier: Apache-2.0
"""A run that says how far it is: round, mean and worst score, time left, from the first round on.

A terminal shows a bar; a redirected stream gets one line per round.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from fairflare.app.terminal import clean, err
from fairflare.app.waiting import Waiting, started
from fairflare.core.findings import Finding
from fairflare.core.metric import LOSSES, named
from fairflare.engine.files import AUDIT
from fairflare.report.log import line
from fairflare.report.values import number

MOST_ERRORS = 20
"""Of preflight, at all sites together, that are printed while it looks."""
NEAR_ZERO = 0.05
"""Balanced accuracy of a site below which a line says what that means: chance is 1 over the number of its classes."""


class Follower:
    """Reads an audit log that another process writes."""

    def __init__(self) -> None:
        self._read = 0
        """Bytes of the audit log that have been shown."""

    def saw(self, entry: Mapping[str, Any]) -> None:
        """An audit entry was written."""

    def follow(self, folder: Path) -> None:
        """Catch up with the audit log in ``folder``: only what was written since the last call is read."""
        with contextlib.suppress(OSError, json.JSONDecodeError), (folder / AUDIT).open("rb") as file:
            file.seek(self._read)
            for text in file:
                if not text.endswith(b"\n"):  # being written, or torn by a kill
                    break
                self.saw(json.loads(text))
                self._read += len(text)


class TimeLeft(ProgressColumn):
    """What is left at the speed of all that was done since ``begun``; rich's own column needs two steps first."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        """ "about 3 min left", or nothing before the first step."""
        done = task.completed - task.fields.get("begun", 0)
        if done <= 0 or not task.total or task.elapsed is None or task.total <= task.completed:
            return Text("")
        return Text(time_left(task.elapsed, done, task.total - task.completed), style="progress.remaining")


class Progress(Follower):
    """Progress over rounds, fed as an observer of the round loop or by following an audit log."""

    def __init__(self, title: str, rounds: int, sites: int, starting: bool = False, headline: str = "") -> None:
        """
        Args:
            title: what runs.
            rounds: T.
            sites: number of sites, for the bar over their data.
            starting: True while processes start first, as in the simulator.
            headline: the metric of which mean and worst site are shown, where sites send it; a loss otherwise.
        """
        super().__init__()
        self._errors = 0
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn())
        self._bar = RichProgress(
            *columns,
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            TimeLeft(),
            console=err,
            transient=True,
            disable=not err.is_terminal,
        )
        self._title, self._rounds, self._sites, self._headline = escape(title), rounds, sites, headline
        self._task = self._bar.add_task("starting FLARE" if starting else "preparing", total=None, state="")
        self._since: tuple[float, int] | None = None
        """When rounds began, and after which one."""
        self._doing = "starting FLARE" if starting else "preparing"
        self._waiting = Waiting(lambda: self._doing)
        """Speaks in a pipe, where no bar is seen: soon, and where nothing is said for long."""

    def __enter__(self) -> Progress:
        started()
        self._bar.start()
        if not err.is_terminal:
            self._waiting.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._waiting.stop()
        self._bar.stop()

    def preparing(self, site: str) -> None:
        """A site's data are about to be built."""
        done = int(self._bar.tasks[0].completed) + 1
        self._doing = clean(f"data of {site} ({done} of {self._sites} sites)")
        self._bar.update(self._task, description=f"data of {escape(site)}", total=self._sites, completed=done)

    def found(self, site: str, finding: Finding) -> None:
        """Preflight found something at a site; warnings are in the report."""
        self._errors += finding.level == "error"
        if finding.level == "error" and self._errors <= MOST_ERRORS:
            self._print(f"{site}: {finding}")
            if self._errors == MOST_ERRORS:
                self._print("further errors of preflight are in audit.jsonl")

    def lost(self, text: str) -> None:
        """A site's process has ended; ``text`` names the site and says what follows, in one line."""
        self._print(clean(text))

    def saw(self, entry: Mapping[str, Any]) -> None:
        """An audit entry was written."""
        if entry["event"] in ("start", "resume"):
            first = entry.get("from_round", 0)
            self._since = (time.monotonic(), first)
            self._bar.reset(self._task, total=self._rounds, completed=first, begun=first, state="")
            self._bar.update(self._task, description=self._title)
            self._doing = clean(f"{self._title}: round {first + 1} of {self._rounds}")
            self._say(f"{line(entry)}, {self._rounds} rounds")
        elif entry["event"] == "round":
            self._round(entry)
        elif entry["event"] == "evaluation":
            self._doing = "scoring, writing the report"
            self._bar.update(self._task, description=self._doing, state="")

    def _round(self, entry: Mapping[str, Any]) -> None:
        words = score_words(entry, self._headline)
        last = entry["round"] == entry["rounds"]
        description = "final evaluation" if last else self._title
        self._doing = clean(description if last else f"{self._title}: round {entry['round'] + 1} of {entry['rounds']}")
        self._bar.update(self._task, completed=entry["round"], description=description, state=escape(words))
        if entry["rejected"]:
            self._print(line(entry))
        left = "" if last else self._left(entry["round"])
        count = f"{len(entry.get('accepted') or ())} sites"
        self._say(", ".join(filter(None, (f"round {entry['round']} of {entry['rounds']}: {count}", words, left))))

    def _left(self, done: int) -> str:
        begun, first = self._since or (time.monotonic(), 0)
        return time_left(time.monotonic() - begun, done - first, self._rounds - done)

    def _print(self, text: str) -> None:
        self._waiting.spoken()
        err.print(escape(text), soft_wrap=True)

    def _say(self, text: str) -> None:
        """A line where no bar is shown."""
        if not err.is_terminal:
            self._print(text)


class Counter:
    """How far a command is with things whose number it may know: a bar at a terminal, lines now and then in a pipe."""

    def __init__(self, title: str) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeLeft())
        self._bar = RichProgress(*columns, console=err, transient=True, disable=not err.is_terminal)
        self._title = self._doing = title
        self._task = self._bar.add_task(escape(title), total=None)
        self._waiting = Waiting(lambda: clean(self._doing))

    def __enter__(self) -> Counter:
        started()
        if err.is_terminal:
            self._bar.start()
        else:
            self._waiting.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._waiting.stop()
        self._bar.stop()

    def saw(self, part: str, done: int, total: int | None = None) -> None:
        """``done`` of ``total`` are done, or of nobody knows how many; the last one belonged to ``part``."""
        self._bar.update(self._task, description=f"{escape(self._title)}: {escape(part)}", completed=done, total=total)
        self._doing = f"{self._title}: {part} {done}{f' of {total}' if total else ''}"

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Within: a terminal shows no bar, as while somebody is asked."""
        self._bar.stop()
        yield
        if err.is_terminal:
            self._bar.start()


def score_words(entry: Mapping[str, Any], headline: str) -> str:
    """Mean and worst site of a round, as in "validation dice 0.710, worst 0.620 (VA)"; "" where no site sent anything.

    Args:
        entry: the round as the audit log has it. The sites measured the model that they received.
        headline: the metric; where no site sends it (no validation split, secure sums), a loss takes its place, of
            which the largest is the worst.
    """
    name, values = scored(entry, headline)
    if not values:
        return ""
    worst = min if named(name).higher_is_better else max
    site = worst(sorted(values), key=values.__getitem__)
    mean = sum(values.values()) / len(values)
    words = {"train_loss": "training loss"}.get(name, f"validation {name.replace('_', ' ')}")
    return f"{words} {mean:.3f}, worst {values[site]:.3f} ({site}){_why_near_zero(name, values)}"


def _why_near_zero(name: str, values: Mapping[str, float]) -> str:
    """What a balanced accuracy near 0 means, which looks like a fault: only the classes that a site has count there."""
    low = sum(value < NEAR_ZERO for value in values.values()) if name == "balanced_accuracy" else 0
    return f"; near 0 at {low}: the model names hardly any of the classes that these sites have" if low else ""


def scored(entry: Mapping[str, Any], headline: str) -> tuple[str, dict[str, float]]:
    """What a round is scored by, and site -> value: the headline metric or else a loss, whichever a site has sent."""
    sent = {site: answer.get("metrics") or {} for site, answer in entry.get("accepted", {}).items()}
    for name in (headline, *LOSSES):
        values = {site: number(found.get(name)) for site, found in sent.items()}
        if known := {site: value for site, value in values.items() if value is not None}:
            return name, known
    return headline, {}


def time_left(seconds: float, done: float, remaining: float) -> str:
    """ "about 3 min left" at the speed of the ``done`` steps that took ``seconds``; "" before the first one."""
    return f"about {duration(seconds / done * remaining)} left" if done > 0 else ""


def duration(seconds: float) -> str:
    """ "12 s", "3 min" or "2 h 5 min"."""
    if seconds < 90:
        return f"{max(1, math.ceil(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
