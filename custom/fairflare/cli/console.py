# SPDX-License-Identifier: Apache-2.0
"""What commands say in the terminal: lines, lists, and a run that goes on elsewhere, followed by its audit log."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fairflare.core.errors import UserError
from fairflare.core.findings import Finding, merged
from fairflare.core.validation import some
from fairflare.engine.files import AUDIT, is_file
from fairflare.report.values import in_order
from fairflare.studies.display import Observer, clean, duration, out, score_words, scored, time_left
from fairflare.studies.labels import as_text


def say(text: str) -> None:
    """Plain text on stdout."""
    click.echo(clean(text))


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> None:
    """A table on stdout, of which the first ``left`` columns begin at the left."""
    shown = Table(title=escape(title))
    for number, name in enumerate(columns):
        shown.add_column(escape(name), justify="left" if number < left else "right")
    for row in rows:
        shown.add_row(*map(escape, row))
    out.print(shown)


def dump(content: Any) -> None:
    click.echo(json.dumps(content, indent=2, allow_nan=False))


def methods(rows: Sequence[Mapping[str, Any]]) -> None:
    """The table of ``fairflare list``."""
    for row in rows:
        made_of = f"trainer {row['trainer']}, probes {', '.join(row['probes']) or 'none'}, rule {row['rule']}"
        others = (("selector", "all"), ("server_optimizer", "none"))
        made_of += "".join(f", {kind.replace('_', ' ')} {row[kind]}" for kind, usual in others if row[kind] != usual)
        parameters = ", ".join(f"{key}={value}" for key, value in row["parameters"].items())
        origin = "" if row["package"] == "fairflare" else f", from {row['package']}"
        _entry(row["id"], f"{row['title']} ({row['paper']}), {row['cost']:g} x FedAvg{origin}")
        _indented(row["summary"], made_of, parameters)


def parts(rows: Sequence[Mapping[str, Any]]) -> None:
    """The table of ``fairflare list --parts``."""
    for row in rows:
        _entry(f"{row['kind']} {row['id']}", row["summary"])
        if row["parameters"]:
            _indented(", ".join(f"{key}={value}" for key, value in row["parameters"].items()))


def tasks(rows: Sequence[Mapping[str, Any]]) -> None:
    """The table of ``fairflare tasks``."""
    for row in rows:
        _entry(row["name"], row["title"])
        _indented(f"real: {row['real']}", f"simulated: {row['simulated']}")
        _indented(f"metrics: {', '.join(row['metrics'])}; fairness in {row['headline']}")
        if row["primary"]:
            _indented(f"primary endpoint: {row['primary']}")
        if row["attributes"]:
            _indented(f"sensitive attributes: {', '.join(row['attributes'])}")
        for preset in row["presets"]:
            rounds, count = preset["training"]["rounds"], len(preset["sites"])
            sites = f"{count} sites" if count else "your sites"
            _indented(f":{preset['preset']}  {sites}, {rounds} rounds; {preset['summary']}")


def _entry(name: str, text: str) -> None:
    out.print(f"[bold]{escape(name)}[/bold]  {escape(text)}")


def _indented(*texts: str) -> None:
    out.print(*(Padding(escape(text), (0, 0, 0, 4)) for text in texts))


def findings(found: Mapping[str, Sequence[Finding]], several: bool) -> None:
    """The lines of ``fairflare preflight``: one for each site and kind of problem."""
    for site, own in found.items():
        for one in merged(own):
            say(f"{f'{site}: ' if several else ''}{one} [{one.code}]")
    clean = [site for site, own in found.items() if not own]
    warned = [site for site, own in found.items() if own and not any(one.level == "error" for one in own)]
    for usable, words in ((clean, "nothing found"), (warned, "no errors")):
        if usable:
            say(f"{f'{some(usable)}: ' if several else ''}{words}: the data can be used")


def settings(found: Mapping[str, Any]) -> None:
    """What ``describe.about`` found."""
    _entry(found["name"], found["title"])
    _indented(*found["about"])
    for row in found["settings"]:
        name = row["name"] if row["name"] == row["full"] else f"{row['name']}  ({row['full']})"
        whose = f", {row['of']}" if row["of"] else ""
        out.print(f"\n[bold]{escape(name)}[/bold]{escape(whose)}")
        _indented(f"default {_value(row['default'])}; {row['allowed']}", row["meaning"])
        if others := [full for full in row.get("sets", ()) if full != row["full"]]:
            _indented(f"sets {', '.join(others)} as well")
    out.print()
    out.print(escape(found["use"]))


def _value(value: Any) -> str:
    """As ``--set`` takes it."""
    if value in ("", [], ()):
        return "empty"
    return f"{value:g}" if isinstance(value, float) else as_text(value)


T = TypeVar("T")
SCORED = "scored"
"""Key under which a round's line has what the sites scored."""
MOST_SITES = 40
"""Sites that are listed, those away and those with the lowest scores first."""


class Watched(Observer):
    """What the log has said up to now."""

    def __init__(self, headline: str) -> None:
        super().__init__(headline=headline)
        self.start: Mapping[str, Any] = {}
        self.first = 0
        """The round after which the run last began or went on."""
        self.begun = self.last = datetime.now(timezone.utc)
        """Of the last beginning, and of the last line."""
        self.rounds: list[Mapping[str, Any]] = []
        """Of each round the line, and with it what every site scored."""
        self.finish: Mapping[str, Any] = {}

    def saw(self, entry: Mapping[str, Any]) -> None:
        self.last = datetime.fromisoformat(entry["time"])
        if entry["event"] in ("start", "segment", "resume"):
            self.start = self.start if entry["event"] == "resume" else entry
            self.first, self.begun, self.finish = entry.get("from_round", 0), self.last, {}
            self.rounds = [one for one in self.rounds if one["round"] <= self.first]
        elif entry["event"] == "round":
            self.rounds.append({**entry, SCORED: scored(entry, self.headline)[1]})
        elif entry["event"] == "finish":
            self.finish = entry

    def scores(self, site: str) -> list[float | None]:
        """The site's score in each round, None where it sent none."""
        return [entry[SCORED].get(site) for entry in self.rounds]

    def weights(self, site: str) -> list[float | None]:
        """The site's aggregation weight in each round, None where it has none."""
        return [(entry.get("weights") or {}).get(site) for entry in self.rounds]

    def state(self, site: str) -> str:
        """Whether the site took part in the last round, and since when it is away."""
        if not self.rounds:
            return ""
        last = self.rounds[-1]
        if site in last["accepted"]:
            return "in"
        if site not in last["rejected"]:
            return "not asked"
        away = sum(1 for _ in takewhile(lambda entry: site in entry["rejected"], reversed(self.rounds)))
        since = f" for {away} rounds" if away > 1 else ""
        return f"away{since}: {last['rejected'][site].get('code', '')}"


EVERY = 2.0
"""Seconds between two looks at a run's log."""


def watch(folder: Path) -> None:
    """Show the run in ``folder`` until it ends; where nobody looks at a terminal, print its state.

    Raises UserError where no run is there.
    """
    watched = watched_in(folder)
    first = looked(watched, folder, picture)
    if not out.is_terminal:
        out.print(first)
        return
    with Live(first, console=out, auto_refresh=False) as live:
        while not watched.finish:
            time.sleep(EVERY)
            live.update(looked(watched, folder, picture), refresh=True)


def watched_in(folder: Path) -> Watched:
    """What follows the run in ``folder``; raises UserError where no run is there."""
    from fairflare.engine.files import read_json
    from fairflare.engine.setup import tasks
    from fairflare.engine.setup.assembly import CONFIG

    if not is_file(folder / CONFIG) and not is_file(folder / AUDIT):
        raise UserError(f"{str(folder)!r}: expected the folder of a run, found no {CONFIG} and no {AUDIT}")
    task = str((read_json(folder / CONFIG) if is_file(folder / CONFIG) else {}).get("task"))
    return Watched(tasks.known(task).headline if task in tasks.every() else "")


def looked(watched: Watched, folder: Path, show: Callable[[Watched, Path], T]) -> T:
    """What the log says by now; raises UserError where it is no log: it may be another's, or cut in two."""
    try:
        watched.follow(folder)
        return show(watched, folder)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        kind = type(error).__name__
        raise UserError(f"{AUDIT}: expected a run's log; `fairflare verify` says more ({kind})") from None


def picture(watched: Watched, folder: Path) -> RenderableType:
    """What is shown, made for 80 columns."""
    lines = [Text(clean(line)) for line in headlines(watched, folder)]
    if not watched.start:
        return Group(*lines)
    shown = Table(box=None, pad_edge=False)
    shown.add_column("site", max_width=20)
    for name in ("score", "weight", "state"):
        shown.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
    for row in (rows := site_rows(watched)):
        shown.add_row(*map(escape, row))
    left_out = len(watched.start["sites"]) - len(rows)
    return Group(*lines, shown, *([Text(f"and {left_out} more sites")] if left_out else []))


def site_rows(watched: Watched) -> list[list[str]]:
    """Site, last score, last weight and state, of the sites that are listed."""
    found = []
    for site in _listed(watched, list(watched.start["sites"])):
        values = (watched.scores(site), watched.weights(site))
        last = (next((one for one in reversed(each) if one is not None), None) for each in values)
        found.append([site, *("-" if one is None else f"{one:.3f}" for one in last), watched.state(site)])
    return found


def headlines(watched: Watched, folder: Path) -> list[str]:
    """The run, how far it is, and its mean and worst score."""
    if not watched.start:
        return [f"{folder.name}: has not begun"]
    done, total = (watched.rounds[-1]["round"] if watched.rounds else 0), watched.start["rounds"]
    found = [f"{watched.start['method']} on {watched.start['task']}, seed {watched.start['seed']}"]
    words = score_words(watched.rounds[-1], watched.headline) if watched.rounds else ""
    ended = ": ".join(filter(None, (watched.finish.get("status"), watched.finish.get("reason"))))
    state = ended if watched.finish else _still(watched, folder, done, total)
    return [*found, ", ".join(filter(None, (f"round {done} of {total}", words))), state]


def _still(watched: Watched, folder: Path, done: int, total: int) -> str:
    from fairflare.engine.files import CONFIG, at_work, read_json

    silent = (datetime.now(timezone.utc) - watched.last).total_seconds()
    since = f"last line {duration(silent)} ago"
    here = is_file(folder / CONFIG) and read_json(folder / CONFIG).get("env") in ("local", "sim")
    if here and not at_work(folder):
        return f"stopped, {since}; {shlex.join(['fairflare', 'resume', str(folder)])} goes on"
    if done >= total:
        return f"evaluating, {since}"
    left = time_left((watched.last - watched.begun).total_seconds(), done - watched.first, total - done)
    return ", ".join(filter(None, ("running", left, since)))


def _listed(watched: Watched, sites: list[str]) -> list[str]:
    """The sites in natural order; of very many those away and the worst."""
    if len(sites) <= MOST_SITES:
        return in_order(sites)

    def need(site: str) -> tuple[bool, float]:
        last = next((value for value in reversed(watched.scores(site)) if value is not None), float("inf"))
        return not watched.state(site).startswith("away"), last

    return in_order(sorted(sites, key=need)[:MOST_SITES])


def shown(watched: Watched, folder: Path) -> dict[str, Any]:
    """The same for a program: headlines, a row per site, and whether the run goes on."""
    rows = site_rows(watched) if watched.start else []
    title, *heads = map(clean, headlines(watched, folder))
    left_out = len(watched.start["sites"]) - len(rows) if watched.start else 0
    return {"title": title, "heads": heads, "rows": rows, "left_out": left_out, "goes_on": not watched.finish}
