# SPDX-License-Identifier: Apache-2.0
"""A run's rounds as TensorBoard shows them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairflare.core.metric import named
from fairflare.core.notes import numbers
from fairflare.engine.files import private, private_folder
from fairflare.report.audit_reader import EVENTS
from fairflare.report.sections import quantities


class TensorBoard:
    """Writes ``weight/<site>``, ``<number>/<site>``, ``fairness/<quantity>_<metric>`` and ``time/<phase>``.

    Of the rule's notes (``core.notes.Note.to_json``) it writes ``note_<name>`` and ``note_<name>/<site or group>``.
    """

    def __init__(self, folder: Path, notes: Sequence[Mapping[str, Any]] = ()) -> None:
        # Not torch's SummaryWriter: it writes an event per number, which takes 40 times as long; nor TensorBoard's own
        # writer of files, which hands each event to a thread.
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._notes = notes
        self._over = {name: one.over for name, one in quantities().items() if one.over}
        private_folder(folder / EVENTS)
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._writer = RecordWriter(open(folder / EVENTS / name, "wb", opener=private))  # noqa: SIM115  (closed with this object)
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def _write(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())
        self._writer.flush()

    def saw(self, entry: Mapping[str, Any]) -> None:
        if entry["event"] != "round":
            return
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in self._numbers(entry)]
        self._write(Event(wall_time=time.time(), step=entry["round"], summary=Summary(value=values)))

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
        replies = entry["accepted"]
        for name in sorted({name for reply in replies.values() for name in reply["metrics"]} - {"loss", "train_loss"}):
            values = {site: reply["metrics"].get(name) for site, reply in replies.items()}
            for quantity, over in self._over.items():
                if (found := over(values, named(name).higher_is_better)) is not None:
                    yield f"fairness/{quantity}_{name}", found
