# SPDX-License-Identifier: Apache-2.0
"""What the audit log of a run says: read back with superseded records left out, line by line, and to TensorBoard."""

from __future__ import annotations

import contextlib
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from fairflare.core.errors import naming
from fairflare.engine.files import private
from fairflare.report.fairness import mean
from fairflare.report.values import in_order, number

Entry = Mapping[str, Any]
PERSONAL = "personal"
"""What stands in the log for results of sites' own models, and in config.json for what a run's results are of."""
CLINICAL, SUMMARISED = "clinical", ("calibration", "brier", "ece")
"""What stands there for calibration and decisions, and what of it a summary over sites has."""


MAX_SHOWN = 40_000
"""Sites times rounds of which a report holds every number; of more, rounds at equal distances and the last one."""


@dataclass
class Totals:
    """What all rounds of a run come to, however many of them a report shows.

    Attributes:
        rounds: how many there are.
        accepted, expected: site -> rounds that accepted its update, and that counted on it.
        rejected: site -> code -> rounds.
        rejections: round, site, code and detail of each rejection, as far as ``MAX_SHOWN`` goes.
        weights: site -> its aggregation weights, where it was accepted and has one.
        last: site -> the last round that accepted its update, what the log has of it, and its weight.
        means: metric -> mean over a round's sites, round by round where there is one, since sites last came or left.
        training: the sites that train.
        phases: phase -> seconds.
        traffic: "down" and "up" -> bytes; empty where the log counts none.
    """

    rounds: int = 0
    accepted: Counter[str] = field(default_factory=Counter)
    expected: Counter[str] = field(default_factory=Counter)
    rejected: dict[str, Counter[str]] = field(default_factory=dict)
    rejections: list[dict[str, Any]] = field(default_factory=list)
    weights: dict[str, array[float]] = field(default_factory=dict)
    last: dict[str, tuple[int, Entry, float | None]] = field(default_factory=dict)
    means: dict[str, list[float]] = field(default_factory=dict)
    training: frozenset[str] = frozenset()
    phases: dict[str, float] = field(default_factory=dict)
    traffic: dict[str, int] = field(default_factory=dict)

    def add(self, record: Entry, training: Sequence[str]) -> None:
        """Count a round that stands; ``training``: the sites that train in this run."""
        self.rounds += 1
        accepted, rejected = part(record, "accepted"), part(record, "rejected")
        arrived = "selected" not in record and bool(accepted.keys() - self.accepted.keys())
        if arrived or self.training != {*training}:  # means over other sites are no trend
            self.means, self.training = {}, frozenset(training)
        self.expected.update(expected_in(record, training))
        self.accepted.update(accepted.keys())
        for site, answer in accepted.items():
            weight = number(part(record, "weights").get(site))
            self.last[site] = record["round"], answer or {}, weight
            if weight is not None:
                self.weights.setdefault(site, array("d")).append(weight)
        for site in in_order(rejected):
            why = {key: (rejected[site] or {}).get(key) for key in ("code", "detail")}
            self.rejected.setdefault(site, Counter())[str(why["code"])] += 1
            if len(self.rejections) < MAX_SHOWN:
                self.rejections.append({"round": record["round"], "site": site, **why})
        metrics = [part(answer or {}, "metrics") for answer in accepted.values()]
        for name in {name for found in metrics for name in found}:
            if (centre := mean(found.get(name) for found in metrics)) is not None:
                self.means.setdefault(name, []).append(centre)
        for phase, seconds in part(record, "seconds").items():
            self.phases[phase] = self.phases.get(phase, 0.0) + (number(seconds) or 0.0)
        for found in part(record, "bytes").values():
            for way in ("down", "up"):
                self.traffic[way] = self.traffic.get(way, 0) + int(number(found.get(way)) or 0)


def part(record: Entry, key: str) -> Mapping[str, Any]:
    """A mapping inside a record, empty where it is missing or null."""
    return record.get(key) or {}


def away(record: Entry) -> list[str]:
    """The sites that a run, or a segment, names and that were not connected when it began."""
    return in_order(site for site, one in part(record, "rejected").items() if (one or {}).get("code") == "absent")


def expected_in(record: Entry, training: Sequence[str]) -> set[str]:
    """The sites that a round counted on: those selected for it, or all that train; a site left out trains nothing."""
    return {*record.get("selected", training), *part(record, "accepted"), *part(record, "rejected")}


@dataclass
class Trail:
    """The records of one run that count.

    Attributes:
        start: the "start" record, empty if there is none.
        rounds: one record per round, ascending; of several for one round the latest, with the scores of its model. Of
            a run with more than ``MAX_SHOWN`` answers, rounds at equal distances and the last one.
        totals: of all rounds.
        scored: "round" and "test_sets" of all rounds whose models were scored on shared test sets.
        segments: the "start" record and the "segment" records in their order.
        resumes: the "resume" records in their order.
        evaluation, best, benefit, risk, finish: the last record of that kind after the last of these, else empty:
            results of the final model, the model that the run chose, the benefit of joining for each site, how well it
            can be told whose records the model was trained on, and how the run ended.
        after: "step/by/split" -> the last "after" of that kind since then: what a step after the last round came to.
        n_entries: records in the log, superseded ones included, records of reports not.
        head: hash of the last of these; with it the chain up to there can be checked.
        times: times of the first and the last record, ISO 8601 UTC.
    """

    start: Entry = field(default_factory=dict)
    rounds: list[Entry] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)
    scored: list[Entry] = field(default_factory=list)
    segments: list[Entry] = field(default_factory=list)
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
    def segment(self) -> Entry:
        """The record that says what holds of sites and rounds: the last segment's."""
        return self.segments[-1] if self.segments else self.start

    @property
    def status(self) -> str:
        return str(self.finish.get("status") or "unfinished")

    @property
    def equal(self) -> bool:
        """Whether every site reported the same numbers of examples and steps, as under a hospital's privacy budget."""
        return "site_privacy" in self.start

    def sites(self) -> list[str]:
        named = set(self.evaluation.get("sites") or ())
        for one in self.segments:
            named |= {*(one.get("sites") or ()), *away(one)}
        return in_order(named.union(self.totals.accepted, self.totals.rejected))

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
    trail, scores, models = Trail(), dict[int, Entry](), dict[int, Any]()
    held: Entry = {}
    first: Entry = {}
    last: Entry = {}
    for record in entries:
        event = record.get("event")
        if event in ("report", "countersigned"):
            continue
        first, last, trail.n_entries = first or record, record, trail.n_entries + 1
        if event == "start":
            trail.start, trail.segments = record, [record]
        elif event == "round":
            if held and record["round"] > held["round"]:  # else the later one of a round counts
                _add(trail, held)
            held, models[record["round"]] = record, record.get("model_sha256")
        elif event == "scores":
            scores[record["round"]] = record
        elif event in ("resume", "segment"):
            if event == "segment":
                if held and held["round"] <= record["from_round"]:
                    _add(trail, held)
                held = {}
            (trail.resumes if event == "resume" else trail.segments).append(record)
            trail.evaluation, trail.best, trail.benefit, trail.risk, trail.finish, trail.after = {}, {}, {}, {}, {}, {}
        elif event == "after":
            trail.after["/".join(str(record.get(key)) for key in ("step", "by", "split"))] = record
        elif event in ("evaluation", "best", "benefit", "risk", "finish"):
            setattr(trail, event, record)
    if held:
        _add(trail, held, last=True)
    sets = {of: own["test_sets"] for of, own in scores.items() if of in models and own["model_sha256"] == models[of]}
    trail.scored = [{"round": of, "test_sets": found} for of, found in sorted(sets.items())]
    trail.rounds = [
        {**record, "test_sets": sets[record["round"]]} if record["round"] in sets else record for record in trail.rounds
    ]
    trail.head, trail.times = last.get("hash"), (first.get("time"), last.get("time"))
    return trail


def _add(trail: Trail, record: Entry, *, last: bool = False) -> None:
    """Count a round that stands, and keep it where a report shows it."""
    training = trail.segment.get("sites") or ()
    trail.totals.add(record, training)
    total, sites = record.get("rounds") or record["round"], len(expected_in(record, training))
    if last or (record["round"] - 1) % max(1, math.ceil(total * sites / MAX_SHOWN)) == 0:
        trail.rounds.append(record)


def timing(trail: Trail) -> dict[str, Any]:
    """Wall time between first and last record, pauses included, and seconds per phase, summed over rounds."""
    wall = None
    with contextlib.suppress(ValueError):  # of no time
        started, ended = (datetime.fromisoformat(str(time).replace("Z", "+00:00")) for time in trail.times)
        wall = (ended - started).total_seconds()
    found = {"started": trail.times[0], "ended": trail.times[1], "wall_seconds": wall}
    return {**found, "phases": trail.totals.phases, "rounds": trail.totals.rounds}


def traffic(trail: Trail) -> dict[str, int | None]:
    """Bytes "down" to the sites and "up" from them over the recorded rounds; None where the log counts none."""
    return {way: trail.totals.traffic.get(way) for way in ("down", "up")}


LOG = "log.txt"


class RunLog:
    """Appends a line to ``log.txt`` for every audit entry."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOG

    def saw(self, entry: Mapping[str, Any]) -> None:
        with open(self._path, "a", encoding="utf-8", opener=private) as file:
            try:
                file.write(f"{entry['time']} {line(entry)}\n")
                file.flush()
            except OSError as error:
                raise naming(error, self._path)  # noqa: B904  # the same error


def line(entry: Mapping[str, Any]) -> str:
    """An entry of the audit log in words, on one line, without its time."""
    if entry["event"] == "start":
        start = f"start: {entry['method']} on {entry['task']}, seed {entry['seed']}, {len(entry['sites'])} sites"
        return start + "".join(f"; {site} {entry['rejected'][site]['detail']}" for site in away(entry))
    if entry["event"] == "segment":
        segment = f"segment after round {entry['from_round']}, to round {entry['rounds']}: {', '.join(entry['sites'])}"
        return segment + "".join(f"; {site} {entry['rejected'][site]['detail']}" for site in away(entry))
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
