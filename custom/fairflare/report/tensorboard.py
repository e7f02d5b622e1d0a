# SPDX-License-Identifier: Apache-2.0
"""TensorBoard scalars of a federation, written by whoever runs the round loop (no site sends events)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        from torch.utils.tensorboard import SummaryWriter

        self._notes = notes
        self._writer = SummaryWriter(str(folder / FOLDER))

    def saw(self, entry: Mapping[str, Any]) -> None:
        """Write one round's numbers; other entries are not for plots."""
        if entry["event"] != "round":
            return
        step = entry["round"]
        for site, weight in entry["weights"].items():
            self._writer.add_scalar(f"weight/{site}", weight, step)
        for site, reply in entry["accepted"].items():
            for name, value in reply["metrics"].items():
                self._writer.add_scalar(f"{name}/{site}", value, step)
            for name, value in reply["scalars"].items():
                self._writer.add_scalar(f"probe_{name}/{site}", value, step)
        for phase, seconds in entry["seconds"].items():
            self._writer.add_scalar(f"time/{phase}", seconds, step)
        for note in self._notes:
            for name, value in numbers(note, entry["notes"].get(note["name"])).items():
                self._writer.add_scalar("/".join(filter(None, (f"note_{note['name']}", name))), value, step)
        self._fairness(entry["accepted"], step)
        self._writer.flush()

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()

    def _fairness(self, accepted: Mapping[str, Any], step: int) -> None:
        names = {name for reply in accepted.values() for name in reply["metrics"]}
        for name in sorted(names - {"loss", "train_loss"}):
            values = [r["metrics"][name] for r in accepted.values() if name in r["metrics"]]
            self._writer.add_scalar(f"fairness/worst_{name}", min(values), step)
            self._writer.add_scalar(f"fairness/mean_{name}", sum(values) / len(values), step)
