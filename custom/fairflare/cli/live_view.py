# SPDX-License-Identifier: Apache-2.0
"""A run that goes on elsewhere, followed by its audit log: each site's score and weight, and who is away.

``--web`` shows the same as a page, for a browser on this machine that knows the token.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fairflare.cli import console
from fairflare.core.errors import UserError
from fairflare.engine.files import AUDIT, is_file
from fairflare.report.values import in_order, rendered
from fairflare.studies.display import Observer, clean, duration, out, score_words, scored, time_left

if TYPE_CHECKING:
    from flask import Flask, Response

T = TypeVar("T")
BARS = "▁▂▃▄▅▆▇█"
SCORED = "scored"
"""Key under which a round's line has what the sites scored."""
WIDTH = 16
"""Rounds that a line of bars shows: the last ones."""
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
        if entry["event"] in ("start", "resume"):
            self.start = entry if entry["event"] == "start" else self.start
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
        away = 0
        for entry in reversed(self.rounds):
            if site not in entry["rejected"]:
                break
            away += 1
        since = f" for {away} rounds" if away > 1 else ""
        return f"away{since}: {last['rejected'][site].get('code', '')}"


def watch(folder: Path, *, once: bool, every: float) -> None:
    """Show the run in ``folder`` until it ends, looking ``every`` so many seconds, or its state ``once``.

    Where nobody looks at a terminal, the state is printed. Raises UserError where no run is there.
    """
    watched = watched_in(folder)
    first = _look(watched, folder)
    if once or not out.is_terminal:
        out.print(first)
        return
    with Live(first, console=out, auto_refresh=False) as live:
        while not watched.finish:
            time.sleep(every)
            live.update(_look(watched, folder), refresh=True)


def watched_in(folder: Path) -> Watched:
    """What follows the run in ``folder``; raises UserError where no run is there."""
    from fairflare.engine.files import read_json
    from fairflare.engine.setup import tasks
    from fairflare.engine.setup.assembly import CONFIG

    if not is_file(folder / CONFIG) and not is_file(folder / AUDIT):
        raise UserError(f"{str(folder)!r}: expected the folder of a run, found no {CONFIG} and no {AUDIT}")
    task = str((read_json(folder / CONFIG) if is_file(folder / CONFIG) else {}).get("task"))
    return Watched(tasks.known(task).headline if task in tasks.every() else "")


def _look(watched: Watched, folder: Path) -> RenderableType:
    return looked(watched, folder, picture)


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
    for name in ("score", f"last {WIDTH} rounds", "weight", "", "state"):
        shown.add_column(name, justify="right" if name in ("score", "weight") else "left", no_wrap=True)
    rows = site_rows(watched)
    for row in rows:
        shown.add_row(*map(escape, row))
    left_out = len(watched.start["sites"]) - len(rows)
    return Group(*lines, shown, *([Text(f"and {left_out} more sites")] if left_out else []))


def site_rows(watched: Watched) -> list[list[str]]:
    """Site, score, its bars, weight, its bars, and state, of the sites that are listed."""
    found = []
    for site in _listed(watched, list(watched.start["sites"])):
        scores, weights = watched.scores(site), watched.weights(site)
        found.append([site, _last(scores), bars(scores), _last(weights), bars(weights), watched.state(site)])
    return found


def headlines(watched: Watched, folder: Path) -> list[str]:
    """The run, how far it is, and its mean and worst score."""
    if not watched.start:
        return [f"{folder.name}: has not begun"]
    done, total = (watched.rounds[-1]["round"] if watched.rounds else 0), watched.start["rounds"]
    found = [f"{watched.start['method']} on {watched.start['task']}, seed {watched.start['seed']}"]
    words = score_words(watched.rounds[-1], watched.headline) if watched.rounds else ""
    if watched.finish:
        reason = watched.finish.get("reason")
        state = f"{watched.finish['status']}{f': {reason}' if reason else ''}"
    else:
        state = _still(watched, done, total)
    return [*found, ", ".join(filter(None, (f"round {done} of {total}", words))), state]


def bars(values: list[float | None]) -> str:
    """The last values as bars between their smallest and largest; a dot where there is none."""
    known = [value for value in values[-WIDTH:] if value is not None]
    if not known:
        return ""
    low, spread = min(known), max(known) - min(known)
    return "".join(
        "·" if value is None else BARS[round((value - low) / spread * (len(BARS) - 1)) if spread else 3]
        for value in values[-WIDTH:]
    )


def _still(watched: Watched, done: int, total: int) -> str:
    silent = (datetime.now(timezone.utc) - watched.last).total_seconds()
    since = f"last line {duration(silent)} ago"
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


def _last(values: list[float | None]) -> str:
    found = next((value for value in reversed(values) if value is not None), None)
    return "-" if found is None else f"{found:.3f}"


HERE = "127.0.0.1"
LOG, LINES = "log.txt", 15
"""The run's log, and how many of its last lines are shown."""
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def serve(folder: Path, *, port: int, every: float) -> None:
    """Serve the page until Ctrl-C; raises UserError where no run is there, or the port cannot be used."""
    from werkzeug.serving import make_server

    token = secrets.token_urlsafe(24)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line per request would show the token
    application = page_of(folder, token, every)
    try:
        server = make_server(HERE, port, application)
    except (OSError, SystemExit):  # werkzeug says why, and ends the process
        raise UserError(f"--port: expected a port of {HERE} that is free, got {port}") from None
    console.say(f"http://{HERE}:{server.port}/?token={token}")
    try:
        server.serve_forever()
    finally:
        server.server_close()


def page_of(folder: Path, token: str, every: float) -> Flask:
    """A site with one page, read-only: it answers those alone who know ``token`` and ask for this machine by name."""
    from flask import Flask, abort, request

    watched, site = watched_in(folder), Flask("fairflare")
    site.config["TRUSTED_HOSTS"] = [HERE, "localhost"]  # a page elsewhere whose name leads here is not one of them

    @site.get("/")
    def page() -> str:
        if not hmac.compare_digest(request.args.get("token", "").encode(), token.encode()):
            abort(403)
        return rendered("watch", every=round(every), **looked(watched, folder, shown))

    @site.after_request
    def guarded(response: Response) -> Response:
        response.headers.update(HEADERS)
        return response

    return site


def shown(watched: Watched, folder: Path) -> dict[str, Any]:
    """What the page has: headlines, a row per site, the log's last lines, and whether the run goes on."""
    rows = site_rows(watched) if watched.start else []
    log = folder / LOG
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LINES:] if log.is_file() else []
    title, *heads = map(clean, headlines(watched, folder))
    left_out = len(watched.start["sites"]) - len(rows) if watched.start else 0
    texts = {"title": title, "heads": heads, "log": [clean(line) for line in lines]}
    return {**texts, "rows": rows, "left_out": left_out, "goes_on": not watched.finish}
