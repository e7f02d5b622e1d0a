# SPDX-License-Identifier: Apache-2.0
"""What follows a run line by line: log.txt in words, and TensorBoard's events."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairflare.core.full_disk import naming
from fairflare.core.notes import numbers

LOG = "log.txt"


class RunLog:
    """Appends a line to ``log.txt`` for every audit entry."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOG

    def saw(self, entry: Mapping[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            try:
                file.write(f"{entry['time']} {line(entry)}\n")
                file.flush()
            except OSError as error:
                raise naming(error, self._path)  # noqa: B904  # the same error


def line(entry: Mapping[str, Any]) -> str:
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


EVENTS = "tb_events"


class TensorBoard:
    """Writes ``weight/<site>``, ``<number>/<site>``, ``fairness/worst_|mean_<metric>`` and ``time/<phase>``.

    Of the rule's notes it writes ``note_<name>`` (per round) and ``note_<name>/<site or group>``.

    Args:
        notes: what the rule declares, see ``core.notes.Note.to_json``.
    """

    def __init__(self, folder: Path, notes: Sequence[Mapping[str, Any]] = ()) -> None:
        # Not torch's SummaryWriter: it writes an event per number, which takes 40 times as long.
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._notes = notes
        self._writer = EventFileWriter(str(folder / EVENTS))

    def saw(self, entry: Mapping[str, Any]) -> None:
        if entry["event"] != "round":
            return
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in self._numbers(entry)]
        self._writer.add_event(Event(wall_time=time.time(), step=entry["round"], summary=Summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _numbers(self, entry: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
        for site, weight in entry["weights"].items():
            yield f"weight/{site}", weight
        for site, reply in entry["accepted"].items():
            yield from ((f"{name}/{site}", value) for name, value in reply["metrics"].items())
            yield from ((f"probe_{name}/{site}", value) for name, value in reply["scalars"].items())
        for phase, seconds in entry["seconds"].items():
            yield f"time/{phase}", seconds
        for note in self._notes:
            for name, value in numbers(note, entry["notes"].get(note["name"])).items():
                yield "/".join(filter(None, (f"note_{note['name']}", name))), value
        yield from _fairness(entry["accepted"])


def _fairness(accepted: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Worst site and mean over the sites of every metric but losses."""
    names = {name for reply in accepted.values() for name in reply["metrics"]}
    for name in sorted(names - {"loss", "train_loss"}):
        values = [r["metrics"][name] for r in accepted.values() if name in r["metrics"]]
        yield f"fairness/worst_{name}", min(values)
        yield f"fairness/mean_{name}", sum(values) / len(values)
