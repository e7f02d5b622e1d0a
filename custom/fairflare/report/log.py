# SPDX-License-Identifier: Apache-2.0
"""The run's log for people: one line per event."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairflare.core.full_disk import naming

LOG = "log.txt"


class RunLog:
    """Appends a line to ``log.txt`` for every audit entry."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOG

    def saw(self, entry: Mapping[str, Any]) -> None:
        """Write the line."""
        with self._path.open("a", encoding="utf-8") as file:
            try:
                file.write(f"{entry['time']} {line(entry)}\n")
                file.flush()
            except OSError as error:
                raise naming(error, self._path)  # noqa: B904  # the same error


def line(entry: Mapping[str, Any]) -> str:
    """One audit entry in words."""
    if entry["event"] == "start":
        return f"start: {entry['method']} on {entry['task']}, seed {entry['seed']}, {len(entry['sites'])} sites"
    if entry["event"] == "round":
        seconds = sum(entry["seconds"].values())
        left_out = "".join(f"; {s} left out: {r['code']} ({r['detail']})" for s, r in entry["rejected"].items())
        return f"round {entry['round']} of {entry['rounds']}: {len(entry['accepted'])} sites, {seconds:.2f} s{left_out}"
    if entry["event"] == "scores":
        sets, seconds = len(entry["test_sets"]), sum(entry["seconds"].values())
        return f"model of round {entry['round']} scored on {sets} shared test sets, {seconds:.2f} s"
    if entry["event"] == "round_failed":
        return f"round {entry['round']}: too few sites; " + "; ".join(
            f"{s}: {r['code']}" for s, r in entry["rejected"].items()
        )
    if entry["event"] == "resume":
        return f"resumed after round {entry['from_round']}"
    if entry["event"] == "finish":
        return f"{entry['status']}{': ' + entry['reason'] if entry['reason'] else ''}"
    return entry["event"]
