# SPDX-License-Identifier: Apache-2.0
"""``fairflare watch --web``: the view of a terminal as a page, for a browser on this machine that knows the token."""

from __future__ import annotations

import hmac
import logging
import secrets
from pathlib import Path
from typing import Any

from flask import Flask, Response, abort, request
from werkzeug.serving import make_server

from fairflare.cli import console
from fairflare.cli.live_view import Watched, headlines, looked, site_rows, watched_in
from fairflare.core.errors import UserError
from fairflare.report.values import rendered
from fairflare.studies.display import clean

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
