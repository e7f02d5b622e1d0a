# SPDX-License-Identifier: Apache-2.0
"""What is seen of runs while they go on: one observer of a run, and the bars that show one or several of them.

A run tells an ``Observer``, by calls or by its audit log, which passes it on: to a ``Board`` over several runs, or to
nobody. ``Progress`` is one that shows it: a bar at a terminal, a line per round in a redirected stream.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress as RichProgress
from rich.progress import ProgressColumn, Task, TaskID
from rich.text import Text

from fairflare.core.findings import Finding
from fairflare.core.metric import LOSSES, named
from fairflare.engine.audit import Tail
from fairflare.engine.files import AUDIT
from fairflare.report.audit_reader import bounded_sites, line
from fairflare.report.values import number

if TYPE_CHECKING:
    from typing_extensions import Self

    from fairflare.engine.setup.config import RunConfig

MOST_ERRORS = 20
"""Of preflight, at all sites together, that are printed while it looks."""
LEADS = {metric: ("auc", "auc_ovr") for metric in ("accuracy", "balanced_accuracy")}
"""Headline that a threshold decides -> what a round is scored by where sites send it, as the tables of a run are."""
UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What commands a terminal, or turns the direction of what follows, and shows nothing itself; not tab and line feed."""
Say = Callable[..., None]
"""Called with what a run says of itself: a kind ("note", "doing", "reached") and its values, which can be pickled."""
_listener: ContextVar[Say | None] = ContextVar("_listener", default=None)
"""What notes and progress of a thread go to in the place of the terminal."""


def clean(text: str) -> str:
    """``text`` as it may be shown: what it quotes, such as a file's name, must not command the terminal."""
    return UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


class Terminal(Console):
    """A console that shows no text's control characters."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(clean(text), **options)


out = Terminal(highlight=False)
"""For results."""
err = Terminal(stderr=True, highlight=False)
"""For progress and notes."""


def note(text: str) -> None:
    if say := _listener.get():
        say("note", text)
    else:
        err.print(escape(text))


def busy(text: str) -> contextlib.AbstractContextManager[Any]:
    """Within: a spinner on stderr."""
    if not (say := _listener.get()):
        return err.status(escape(text))
    say("doing", text)
    return contextlib.nullcontext()


def progress(
    title: str, rounds: int, sites: int, starting: bool = False, headline: str = "", solo: bool = False
) -> Observer:
    say = _listener.get()
    return Observer(say, starting, headline) if say else Progress(title, rounds, sites, starting, headline, solo)


@contextlib.contextmanager
def told_to(say: Say) -> Iterator[None]:
    """Within: notes and progress of this thread go to ``say``."""
    token = _listener.set(say)
    try:
        yield
    finally:
        _listener.reset(token)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Within: nobody sees notes and progress; for who works from Python and looks at the result alone."""
    before, err.quiet = err.quiet, True
    try:
        with told_to(lambda *said: None):
            yield
    finally:
        err.quiet = before


class Observer:
    """Is told of a run, by calls or by its audit log, and says it to ``say``: to nobody, a board or another process."""

    SCORING = "scoring"

    def __init__(self, say: Say = lambda *said: None, starting: bool = False, headline: str = "") -> None:
        """``starting``: processes start first, as in the simulator; ``headline``: the metric that is shown, see
        ``score_words``."""
        self._first, self.headline = "starting FLARE" if starting else "preparing", headline
        self._say = say
        self._tails = dict[Path, Tail]()
        self._bounded: set[str] = set()

    def __enter__(self) -> Self:
        self.doing(self._first)
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def note(self, text: str) -> None:
        self._say("note", text)

    def doing(self, text: str) -> None:
        self._say("doing", text)

    def began(self, entry: Mapping[str, Any], first: int) -> None:
        self._say("reached", first, True, "")

    def reached(self, entry: Mapping[str, Any], words: str) -> None:
        self._say("reached", entry["round"], False, words)
        if self._is_news(entry):
            self.note(line(entry))

    def _is_news(self, entry: Mapping[str, Any]) -> bool:
        """Whether a site was left out, or others are bounded than in the round before."""
        before, self._bounded = self._bounded, bounded_sites(entry)
        return bool(entry["rejected"] or self._bounded - before)

    def preparing(self, site: str) -> None:
        self.doing(f"data of {site}")

    def found(self, site: str, finding: Finding) -> None:
        """Preflight found something at a site; warnings are in the report."""
        if finding.level == "error":
            self.note(f"{site}: {finding}")

    def saw(self, entry: Mapping[str, Any]) -> None:
        if entry["event"] in ("start", "segment", "resume"):
            self.began(entry, entry.get("from_round", 0))
        elif entry["event"] == "round":
            self.reached(entry, score_words(entry, self.headline))
        elif entry["event"] == "evaluation":
            self.doing(self.SCORING)

    def follow(self, folder: Path) -> None:
        """Catch up with the audit log that another process writes in ``folder``, from where the last call ended."""
        with contextlib.suppress(json.JSONDecodeError):
            for entry in self._tails.setdefault(folder, Tail(folder / AUDIT)).new():
                self.saw(entry)


SILENCE = 10.0
"""Seconds between two lines in a pipe on what is done."""
BAR = 20
"""Characters of a bar."""
SHORTEST = 8
"""Characters that a title keeps."""


class OneLine(ProgressColumn):
    """A task in one line of the terminal: where it is too narrow the bar goes first, counts and time left last."""

    max_refresh = 0.5

    def __init__(self, counted: bool) -> None:
        """``counted``: whether steps are things that can be counted."""
        super().__init__()
        self._counted = counted

    def render(self, task: Task) -> Text:
        done, total, took = int(task.completed), task.total, round(task.elapsed or 0)
        left, since = "", task.completed - task.fields.get("begun", 0)
        if since > 0 and total and task.elapsed is not None and total > task.completed:
            left = time_left(task.elapsed, since, total - task.completed)
        count = f"{done}/{int(total) if total else '?'}" if self._counted and (total or done) else ""
        clock = f"{took // 3600}:{took // 60 % 60:02}:{took % 60:02}"
        filled, signs = round(BAR * task.completed / total) if total else 0, "#-" if err.options.ascii_only else "━─"
        bar = signs[0] * filled + signs[1] * (BAR - filled) if total else ""
        state = str(task.fields.get("state", "")).split(", ")
        title, states = str(task.description), [", ".join(state[:k]) for k in range(len(state), -1, -1)]
        parts = [(bar, count, states[0], clock, left), (count, states[0], clock, left)]
        parts += [(count, one, left) for one in states]
        shown = Text(clean(title), no_wrap=True, overflow="ellipsis")
        for place, part in enumerate(parts):
            rest = "".join(f"  {clean(one)}" for one in part if one)
            room = err.width - 1 - cell_len(rest)
            if shown.cell_len <= room or (place >= len(parts) - 2 and room >= SHORTEST) or place == len(parts) - 1:
                shown.truncate(max(1, room), overflow="ellipsis")
                return shown.append(rest)
        return shown


def _bar(counted: bool = True) -> RichProgress:
    """Bars that a terminal alone shows, and that go when they end."""
    return RichProgress(OneLine(counted), console=err, transient=True, disable=not err.is_terminal)


class _Lively:
    """Shows ``_bar`` at a terminal; a pipe, where no bar is seen, is told now and then what is done."""

    _bar: RichProgress

    def _show_on(self, bar: RichProgress, doing: str) -> TaskID:
        self._bar, self._spoken = bar, time.monotonic()
        return bar.add_task(doing, total=None, state="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def _now_and_then(self, text: str) -> None:
        if not err.is_terminal and time.monotonic() - self._spoken > SILENCE:
            self._spoken = time.monotonic()
            err.print(escape(text), soft_wrap=True)


class Progress(_Lively, Observer):
    """Shows one run."""

    SCORING = "scoring, writing the report"

    def __init__(
        self, title: str, rounds: int, sites: int, starting: bool = False, headline: str = "", solo: bool = False
    ) -> None:
        """``sites``: how many, for the bar over their data; ``starting`` and ``headline`` as of ``Observer``; ``solo``:
        whether each site trains a model of its own after the last round, which may take as long as the rounds."""
        super().__init__(starting=starting, headline=headline)
        self._ending = "each site's own model, final evaluation" if solo else "final evaluation"
        self._title, self._rounds, self._sites, self._errors = title, rounds, sites, 0
        self._task = self._show_on(_bar(), self._first)
        self._since = time.monotonic(), 0
        """When rounds began, and after which one."""

    def note(self, text: str) -> None:
        self._spoken = time.monotonic()
        err.print(escape(text), soft_wrap=True)

    def doing(self, text: str) -> None:
        self._bar.update(self._task, description=text, state="")
        self._now_and_then(text)

    def preparing(self, site: str) -> None:
        site, _, far = site.partition(": ")
        if far:
            self.doing(f"data of {site}: {far}")
            return
        done = int(self._bar.tasks[0].completed) + 1
        self.doing(f"data of {site} ({done} of {self._sites} sites)")
        self._bar.update(self._task, total=self._sites, completed=done)

    def found(self, site: str, finding: Finding) -> None:
        self._errors += finding.level == "error"
        if self._errors <= MOST_ERRORS:
            super().found(site, finding)
            if self._errors == MOST_ERRORS and finding.level == "error":
                self.note("further errors of preflight are in audit.jsonl")

    def began(self, entry: Mapping[str, Any], first: int) -> None:
        self._since = (time.monotonic(), first)
        self._bar.reset(self._task, total=self._rounds, completed=first, begun=first, state="")
        self._bar.update(self._task, description=self._title)
        self._line(f"{line(entry)}, {self._rounds} rounds")

    def reached(self, entry: Mapping[str, Any], words: str) -> None:
        done, last = entry["round"], entry["round"] == entry["rounds"]
        self._bar.update(self._task, completed=done, description=self._ending if last else self._title, state=words)
        if self._is_news(entry):
            self.note(line(entry))
        begun, first = self._since
        left = "" if last else time_left(time.monotonic() - begun, done - first, self._rounds - done)
        count = f"{len(entry.get('accepted') or ())} sites"
        self._line(", ".join(filter(None, (f"round {done} of {entry['rounds']}: {count}", words, left))))

    def _line(self, text: str) -> None:
        """Where no bar is shown."""
        if not err.is_terminal:
            self.note(text)


class Counter(_Lively):
    """How far a command is with things whose number it may know: a bar at a terminal, lines now and then in a pipe."""

    def __init__(self, title: str) -> None:
        self._title, self._task = title, self._show_on(_bar(), title)

    def saw(self, part: str, done: int, total: int | None = None) -> None:
        """``done`` of ``total`` are done, or of nobody knows how many; the last one belonged to ``part``."""
        self._bar.update(self._task, description=f"{self._title}: {part}", completed=done, total=total)
        self._now_and_then(f"{self._title}: {part} {done}{f' of {total}' if total else ''}")

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Within: a terminal shows no bar, as while somebody is asked."""
        self._bar.stop()
        yield
        self._bar.start()


class Board:
    """Shows runs, wherever they are: a bar over all with the time left, one for each that is at work; a line for each
    that has ended, which is all that a redirected stream gets. Several threads may tell it something.
    """

    def __init__(self, runs: Mapping[str, RunConfig]) -> None:
        from fairflare.core import registry
        from fairflare.studies.describe import relative_cost

        self._bar = _bar(counted=False)
        self._rounds = {name: int(config.training.rounds) for name, config in runs.items()}
        self._costs = {name: relative_cost(registry.get_method(config.method)) for name, config in runs.items()}
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
        with self._lock:
            if name not in self._rows and name not in self._ended:
                self._rows[name] = self._bar.add_task(name, total=None, state="")

    def heard(self, name: str, kind: str, *content: Any) -> None:
        """What a run says, see ``Say``."""
        if kind == "note":
            self._print(content[0] if content[0].startswith(name) else f"{name}: {content[0]}")
            return
        with self._lock:
            if kind == "began":
                self.began(name)
            elif kind == "doing":
                self._bar.update(self._rows[name], state=content[0])
            else:
                self._reached(name, *content)

    def ended(self, name: str, how: str) -> None:
        with self._lock:
            self._left[name] = 0.0
            self._ended.add(name)
            if name in self._rows:
                self._bar.remove_task(self._rows.pop(name))
            self._show()
            if len(self._left) > 1:
                count = f"run {len(self._ended)} of {len(self._left)}"
                self._print(f"{count}: {name} {how}, {time.monotonic() - self._begun:.0f} s")

    def _print(self, text: str) -> None:
        self._bar.console.print(escape(text), soft_wrap=True)

    def _reached(self, name: str, number: int, begins: bool, scores: str) -> None:
        """A run has finished round ``number`` with ``scores``, or goes on after it."""
        before, cost, total = self._left[name], self._costs[name], self._rounds[name]
        self._left[name] = cost * (total - number)
        self._work += 0.0 if begins else before - self._left[name]
        state = ", ".join(filter(None, (f"round {number} of {total}", scores)))
        self._bar.update(self._rows[name], total=total, completed=number, state=state)
        self._show()

    def _show(self) -> None:
        total = self._work + sum(self._left.values())
        self._bar.update(self._all, description=self._title(), total=total, completed=self._work)

    def _title(self) -> str:
        return f"{len(self._ended)} of {len(self._left)} runs"


def score_words(entry: Mapping[str, Any], headline: str) -> str:
    """Mean and worst site of a round, "validation Dice score 0.710, worst 0.620 (VA)"; "" where no site sent any.

    The sites measured the model that they received. Where none sends the ``headline`` metric (no validation split,
    secure sums), a loss takes its place, of which the largest is the worst.
    """
    name, values = scored(entry, headline)
    if not values:
        return ""
    worst = min if named(name).higher_is_better else max
    site = worst(sorted(values), key=values.__getitem__)
    mean = sum(values.values()) / len(values)
    words = {"train_loss": "training loss", "auc_ovr": "validation AUC"}.get(name, f"validation {named(name).label}")
    return f"{words} {mean:.3f}, worst {values[site]:.3f} ({site})"


def scored(entry: Mapping[str, Any], headline: str) -> tuple[str, dict[str, float]]:
    """What a round is scored by, and site -> value: the headline or what leads it, else a loss, as sites have sent."""
    sent = {site: answer.get("metrics") or {} for site, answer in entry.get("accepted", {}).items()}
    for name in (*LEADS.get(headline, ()), headline, *LOSSES):
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
