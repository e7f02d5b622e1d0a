# SPDX-License-Identifier: Apache-2.0
"""TensorBoard scalars of a federation, written by whoever runs the round loop (no site sends events)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairflare.core.notes import numbers

FOLDER = "tb_events"


class TensorBoard:
    """Writes ``weight/<site>``, ``<number>/<site>``, ``fairness/worst_|mean_<metric>`` and ``time/<phase>``.

    Of the rule's notes it writes ``note_<name>`` (per round) and ``note_<name>/<site or group>``.

    Args:
        folder: the run's folder.
        notes: what the rule declares, see ``core.notes.Note.to_json``.
    """

    def __init__(self, folder: Path, notes: Sequence[Mapping[str, Any]] = ()) -> None:
        # Not torch's SummaryWriter: it writes an event per number, which takes 40 times as long.
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._notes = notes
        self._writer = EventFileWriter(str(folder / FOLDER))

    def saw(self, entry: Mapping[str, Any]) -> None:
        """Write one round's numbers as one event; other entries are not for plots."""
        if entry["event"] != "round":
            return
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in self._numbers(entry)]
        self._writer.add_event(Event(wall_time=time.time(), step=entry["round"], summary=Summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()

    def _numbers(self, entry: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
        """Names and values."""
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
