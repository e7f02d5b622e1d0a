# SPDX-License-Identifier: Apache-2.0
"""What the audit log of a run says: read back with superseded records left out, line by line, and to TensorBoard."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from fairflare.core.errors import naming
from fairflare.core.notes import numbers
from fairflare.report.values import in_order, number

Entry = Mapping[str, Any]
PERSONAL = "personal"
"""What stands in the log for results of sites' own models, and in config.json for what a run's results are of."""
CLINICAL, SUMMARISED = "clinical", ("calibration", "brier", "ece")
"""What stands there for calibration and decisions, and what of it a summary over sites has."""


@dataclass
class Trail:
    """The records of one run that count.

    Attributes:
        start: the "start" record, empty if there is none.
        rounds: one record per round, ascending; of several for one round the latest, with the scores of its model.
        resumes: the "resume" records in their order.
        evaluation, best, benefit, risk, finish: the last record of that kind after the last resume, else empty: results
            of the final model, the model that the run chose, the benefit of joining for each site, how well it can be
            told whose records the model was trained on, and how the run ended.
        after: "step/by/split" -> the last "after" of that kind since then: what a step after the last round came to.
        n_entries: records in the log, superseded ones included, records of reports not.
        head: hash of the last of these; with it the chain up to there can be checked.
        times: times of the first and the last record, ISO 8601 UTC.
    """

    start: Entry = field(default_factory=dict)
    rounds: list[Entry] = field(default_factory=list)
    resumes: list[Entry] = field(default_factory=list)
    evaluation: Entry = field(default_factory=dict)
    best: Entry = field(default_factory=dict)
    after: dict[str, Entry] = field(default_factory=dict)
    benefit: Entry = field(default_factory=dict)
    risk: Entry = field(default_factory=dict)
    finish: Entry = field(default_factory=dict)
    n_entries: int = 0
    head: str | None = None
    times: tuple[str | None, str | None] = (None, None)

    @property
    def status(self) -> str:
        return str(self.finish.get("status") or "unfinished")

    def sites(self) -> list[str]:
        named = set(self.start.get("sites") or ()) | set(self.evaluation.get("sites") or ())
        for record in self.rounds:
            named.update(record.get("accepted") or (), record.get("rejected") or ())
        return in_order(named)

    def test_sets(self) -> Mapping[str, Any]:
        """The last model's scores on the shared test sets: those of the last round of all, or of a failed run's end."""
        last = self.rounds[-1] if self.rounds else {}
        final = bool(last) and last["round"] == last["rounds"] and last.get("model_sha256") == self.model_sha256()
        return (last if final else self.finish).get("test_sets") or {}

    def of_best_model(self) -> Trail:
        """The same records, with the results of the chosen model as the run's; as they are where it is the last one."""
        sites = self.best.get("sites") or {}
        return replace(self, evaluation={**self.evaluation, "sites": sites} if sites else self.evaluation)

    def with_clinical_of(self, other: Trail) -> Trail:
        """This one where its sites say how they are calibrated, else ``other``: they say it of one model alone."""
        sites = self.evaluation.get("sites") or {}
        return self if any(CLINICAL in (found or {}) for found in sites.values()) else other

    def of_own_models(self) -> Trail:
        """The same records, with the results of each site's own model as its results; none where it has no such."""
        found = self.evaluation.get("sites") or {}
        sites = {site: (splits or {}).get(PERSONAL) or {} for site, splits in found.items()}
        return replace(self, evaluation={**self.evaluation, "sites": sites} if sites else self.evaluation)

    def model_sha256(self) -> str | None:
        records = (self.finish, self.evaluation, *reversed(self.rounds), self.start)
        return next((record["model_sha256"] for record in records if record.get("model_sha256")), None)


def read_trail(entries: Iterable[Entry]) -> Trail:
    """The records that count of ``entries``, audit records in the order in which they were written."""
    trail, rounds, scores = Trail(), {}, {}
    records = [e for e in entries if e.get("event") not in ("report", "countersigned")]
    for record in records:
        event = record.get("event")
        if event == "start":
            trail.start = record
        elif event == "round":
            rounds[record["round"]] = record
        elif event == "scores":
            scores[record["round"]] = record
        elif event == "resume":
            trail.resumes.append(record)
            trail.evaluation, trail.best, trail.benefit, trail.risk, trail.finish, trail.after = {}, {}, {}, {}, {}, {}
        elif event == "after":
            trail.after["/".join(str(record.get(key)) for key in ("step", "by", "split"))] = record
        elif event in ("evaluation", "best", "benefit", "risk", "finish"):
            setattr(trail, event, record)
    for of, record in sorted(rounds.items()):  # the model's scores stood in the record itself until format 2
        own = scores.get(of) or {}
        scored = own and own["model_sha256"] == record.get("model_sha256")
        trail.rounds.append({**record, "test_sets": own["test_sets"]} if scored else record)
    trail.n_entries = len(records)
    if records:
        trail.head = records[-1].get("hash")
        trail.times = (records[0].get("time"), records[-1].get("time"))
    return trail


def timing(trail: Trail) -> dict[str, Any]:
    """Wall time between first and last record, pauses included, and seconds per phase, summed over rounds."""
    phases: dict[str, float] = {}
    for record in trail.rounds:
        for phase, seconds in (record.get("seconds") or {}).items():
            phases[phase] = phases.get(phase, 0.0) + (number(seconds) or 0.0)
    wall = None
    with contextlib.suppress(ValueError):  # of no time
        started, ended = (datetime.fromisoformat(str(time).replace("Z", "+00:00")) for time in trail.times)
        wall = (ended - started).total_seconds()
    found = {"started": trail.times[0], "ended": trail.times[1], "wall_seconds": wall}
    return {**found, "phases": phases, "rounds": len(trail.rounds)}


def traffic(trail: Trail) -> dict[str, int | None]:
    """Bytes "down" to the sites and "up" from them over the recorded rounds; None where the log counts none."""
    counted = [found for record in trail.rounds for found in (record.get("bytes") or {}).values()]
    totals = {way: int(sum(number(found.get(way)) or 0 for found in counted)) for way in ("down", "up")}
    return {way: total if counted else None for way, total in totals.items()}


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
    """An entry of the audit log in words, on one line, without its time."""
    if entry["event"] == "start":
        return f"start: {entry['method']} on {entry['task']}, seed {entry['seed']}, {len(entry['sites'])} sites"
    if entry["event"] == "round":
        seconds = sum(entry["seconds"].values())
        left_out = "".join(f"; {s} left out: {r['code']} ({r['detail']})" for s, r in entry["rejected"].items())
        left_out += "".join(f"; {words}" for words in bounded_words(entry))
        return f"round {entry['round']} of {entry['rounds']}: {len(entry['accepted'])} sites, {seconds:.2f} s{left_out}"
    if entry["event"] == "scores":
        sets, seconds = len(entry["test_sets"]), sum(entry["seconds"].values())
        return f"model of round {entry['round']} scored on {sets} shared test sets, {seconds:.2f} s"
    if entry["event"] == "round_failed":
        why = "; ".join(f"{site}: {one['code']}" for site, one in entry["rejected"].items())
        return f"round {entry['round']}: too few sites; {why}"
    if entry["event"] == "resume":
        return f"resumed after round {entry['from_round']}"
    if entry["event"] == "finish":
        return f"{entry['status']}{': ' + entry['reason'] if entry['reason'] else ''}"
    return entry["event"]


def bounded_words(entry: Mapping[str, Any]) -> list[str]:
    """What a round's bounds on single sites took, site by site."""
    notes = entry.get("notes") or {}
    clipped, capped = notes.get("clip_factor") or {}, notes.get("capped_at") or {}
    words = [f"{site} clipped to {kept:.2g} of its update" for site, kept in clipped.items() if kept < 1]
    return words + [f"weight of {site} capped at {cap:.2g}" for site, cap in capped.items()]


def bounded_sites(entry: Mapping[str, Any]) -> set[str]:
    """The sites whose update a round's bounds shortened, or whose weight they capped."""
    notes = entry.get("notes") or {}
    clipped = {site for site, kept in (notes.get("clip_factor") or {}).items() if kept < 1}
    return clipped | set(notes.get("capped_at") or {})


EVENTS = "tb_events"


class TensorBoard:
    """Writes ``weight/<site>``, ``<number>/<site>``, ``fairness/worst_|mean_<metric>`` and ``time/<phase>``.

    Of the rule's notes (``core.notes.Note.to_json``) it writes ``note_<name>`` and ``note_<name>/<site or group>``.
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
        replies = entry["accepted"].values()
        for name in sorted({name for reply in replies for name in reply["metrics"]} - {"loss", "train_loss"}):
            values = [reply["metrics"][name] for reply in replies if name in reply["metrics"]]
            yield f"fairness/worst_{name}", min(values)
            yield f"fairness/mean_{name}", sum(values) / len(values)
