# SPDX-License-Identifier: Apache-2.0
"""What an audit log says of a run: its lines followed from the first to the last, each checked against those before.

A log is a start, then rounds in order, each with the hashes of what it left; a resume goes on from the last round, or
from the one before it where the process died between the line and the checkpoint; an evaluation and a finish end it.
A segment goes on likewise, after an end too, with other sites, rounds or settings, which hold until the next segment.
A "best" line behind the evaluation names the model that a run chooses. A round's line may say that its model is
"unscored"; then one "scores" line, anywhere between it and a completed run's end, holds what the model got on the
shared test sets. A "report" line may stand anywhere behind: it holds the hashes of the report's files.
A "countersigned" line holds the sites' signatures of the line before it.

``SHAPES`` says what the line of each event holds at least.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairflare.core.errors import UserError
from fairflare.core.validation import misfit
from fairflare.engine import files
from fairflare.engine.audit import Entries
from fairflare.engine.checkpoint import Checkpoint, load_checkpoint
from fairflare.engine.hashes import model_hash, state_hash

Entry = Mapping[str, Any]
FORMAT = 4
"""Of the log; in format 3 every line was whole."""
READABLE = (3, FORMAT)
FURTHER = "exchange"
"""Event of an exchange of a plugin."""
REPORT, COUNTERSIGNED, COMPLETED = "report", "countersigned", "completed"
"""Events of lines that record a report, and sites' signatures of the log; the status of a run that came to its end."""

NUMBER = (int, float)
NUMBERS = {str: NUMBER}
COUNTS = {str: int}
REJECTED = {str: {"code": str, "detail": str}}
OF_MODEL = {"rejected": REJECTED, "model_sha256": str}
CHOICE = {"by": str, "weight": NUMBER, "metric": str, "higher": bool}
LEFT = {"model_sha256": str, "state_sha256": str, "declared": COUNTS}
SHAPES: dict[str, dict[Any, Any]] = {
    "start": {"log_format": int, "rounds": int, "sites": [str], "preflight": {str: dict}, "rejected": REJECTED, **LEFT},
    "resume": {"from_round": int, "preflight": {str: dict}, "rejected": REJECTED, **LEFT},
    "segment": {
        **{"from_round": int, "rounds": int, "sites": [str], "config_sha256": str, "config_json_sha256": str},
        **{"preflight": {str: dict}, "rejected": REJECTED, **LEFT},
    },
    "round": {
        "round": int,
        "rounds": int,
        "accepted": {str: {"n_examples": int, "scalars": NUMBERS, "metrics": NUMBERS}},
        "rejected": REJECTED,
        "weights": NUMBERS,
        "notes": dict,
        "site_seconds": {str: NUMBERS},
        "seconds": NUMBERS,
        **LEFT,
    },
    "round_failed": {"round": int, **OF_MODEL},
    "scores": {"round": int, "model_sha256": str, "test_sets": {str: {"metrics": NUMBERS}}, "seconds": NUMBERS},
    "evaluation": {"sites": {str: dict}, **OF_MODEL},
    "best": {**CHOICE, "round": int, "values": {str: NUMBERS}, "sites": {str: dict}, **OF_MODEL},
    "after": {"step": str, "by": str, "split": str, "sites": {str: NUMBERS}, **OF_MODEL},
    "benefit": {"trainer": str, "draws": int, "level": NUMBER, "sites": {str: NUMBERS}, **OF_MODEL},
    FURTHER: {"exchange": str, "sites": {str: NUMBERS}, **OF_MODEL},
    "risk": {"shadows": int, "level": NUMBER, "sites": {str: NUMBERS}, **OF_MODEL},
    "finish": {"status": str, "reason": str, "model_sha256": str},
    COUNTERSIGNED: {"of": str, "signed": {str: dict}},
    REPORT: {"of": str, "status": str, "model_sha256": str, "files": {str: str}},
}
"""Event -> what its line holds at least."""


def events(entries: Sequence[Entry]) -> Sequence[Entry]:
    """What happened in the federation: all lines but those that record reports and signatures of it."""
    if isinstance(entries, Entries):
        return entries.without(REPORT, COUNTERSIGNED)
    return [entry for entry in entries if entry.get("event") not in (REPORT, COUNTERSIGNED)]


def alike(one: Any, other: Any) -> bool:
    """Equal as JSON, where 1, 1.0 and true differ."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


OLD = f"{files.AUDIT}: was written by an older version of this package, which alone can go on with it or verify it"


@dataclass(frozen=True)
class Standing:
    """A federation between two rounds, as the log tells of it.

    Attributes:
        round: the last finished round, 0 before the first.
        state: hash of the rule's and the server optimizer's state and the gate's history.
        declared: site -> the number of examples it declared.
        entry: hash of the line that says so.
    """

    round: int
    model: str
    state: str
    declared: Mapping[str, int]
    entry: str


@dataclass
class RunHistory:
    """What the lines of one log say together.

    Attributes:
        segment: the line that says what holds of sites, rounds and settings: the start or the last segment's.
        before: what the round before it left, while the checkpoint of the last one may not have been written.
        finish: the line that ended the run, empty while it goes on.
        evaluated: whether the final model has been evaluated since the run last went on.
        reports: the lines that record a report, in their order.
        unscored: rounds whose models' scores are still owed.
        models: round -> hash of the model that it left.
        chosen: the line that names the best model, since the run last went on; empty: none does.
        choices: hashes of all models that such a line has named.
        counted, counted_before: site -> the last round in which its answer was accepted, up to the last round and to
            the one before it.
    """

    start: Entry
    segment: Entry
    standing: Standing
    before: Standing | None = None
    finish: Entry = field(default_factory=dict)
    evaluated: bool = False
    last: Entry = field(default_factory=dict)
    reports: list[Entry] = field(default_factory=list)
    unscored: set[int] = field(default_factory=set)
    models: dict[int, str] = field(default_factory=dict)
    chosen: Entry = field(default_factory=dict)
    choices: list[str] = field(default_factory=list)
    counted: Mapping[str, int] = field(default_factory=dict)
    counted_before: Mapping[str, int] = field(default_factory=dict)

    @property
    def completed(self) -> bool:
        return self.finish.get("status") == COMPLETED

    def counted_until(self, round: int) -> dict[str, int]:
        """Site -> the last round up to ``round`` (the last one, or the one before) in which its answer was accepted."""
        return dict(self.counted if round == self.standing.round else self.counted_before)


def read_history(entries: Iterable[Entry]) -> RunHistory:
    """Follow the lines of an unbroken chain; raises UserError that names the first which cannot stand there."""
    follower = Follower()
    for entry in entries:
        follower.saw(entry)
    return follower.history


class Follower:
    """Follows the lines of a log one by one, as ``read_history``."""

    def __init__(self) -> None:
        self._run: RunHistory | None = None
        self._lines = 0

    @property
    def history(self) -> RunHistory:
        """Raises UserError where no line was there."""
        if self._run is None:
            raise UserError(f"{files.AUDIT}: is empty")
        return self._run

    def saw(self, entry: Entry) -> None:
        """Raises UserError where ``entry`` cannot stand here."""
        self._lines += 1
        number, run, event = self._lines, self._run, entry.get("event")
        if run is None and event == "start" and "log_format" not in entry:
            raise UserError(OLD)
        if not isinstance(event, str) or event not in SHAPES or (event == "start") != (run is None):
            raise UserError(f"{files.AUDIT}: line {number}: {str(event)[:40]!r} cannot stand here")
        if wrong := misfit(entry, SHAPES[event]):
            raise UserError(f"{files.AUDIT}: line {number}: {event} without a proper {wrong!r}")
        if run is None:
            if entry["log_format"] not in READABLE:
                raise UserError(f"{files.AUDIT}: expected format {FORMAT}, got {str(entry['log_format'])[:20]}")
            self._run = RunHistory(start=entry, segment=entry, standing=_standing(0, entry), last=entry)
            return
        if event == REPORT:
            known = [s.model for s in (run.standing, run.before) if s is not None]
            if entry["of"] != run.last["hash"] or entry["model_sha256"] not in known:
                raise UserError(f"{files.AUDIT}: line {number}: records a report of something else")
            run.reports.append(entry)
        elif event != COUNTERSIGNED:
            _STEPS[event](run, entry, number)
            run.last = entry


def standing_rounds(entries: Iterable[Entry], until: int | None = None) -> Iterator[Entry]:
    """The rounds' lines up to round ``until``, each once no later line of the same round has come: that one counts."""
    held: Entry = {}
    for entry in entries:
        if entry.get("event") == "round" and (until is None or entry["round"] <= until):
            if held and entry["round"] > held["round"]:
                yield held
            held = entry
    if held:
        yield held


def _round(run: RunHistory, entry: Entry, number: int) -> None:
    expected = run.standing.round + 1
    if run.finish or run.evaluated or entry["round"] != expected or expected > run.segment["rounds"]:
        raise UserError(f"{files.AUDIT}: line {number}: round {str(entry['round'])[:20]} cannot follow here")
    _keep_declared(run, entry, number)
    run.before, run.standing = run.standing, _standing(expected, entry)
    run.models[expected] = entry["model_sha256"]
    run.counted_before, run.counted = run.counted, {**run.counted, **dict.fromkeys(entry["accepted"], expected)}
    if entry.get("unscored", True) is not True:
        raise UserError(f"{files.AUDIT}: line {number}: round without proper scores")
    if "unscored" in entry:
        run.unscored.add(expected)


def _scores(run: RunHistory, entry: Entry, number: int) -> None:
    scored = entry["round"]
    owed = scored in run.unscored and scored <= run.standing.round
    if run.finish or not owed or entry["model_sha256"] != run.models[scored]:
        raise UserError(f"{files.AUDIT}: line {number}: no scores of round {str(scored)[:20]} can stand here")
    run.unscored.remove(scored)
    if scored == run.standing.round:
        run.before = None  # its checkpoint is written before its model is scored


def _round_failed(run: RunHistory, entry: Entry, number: int) -> None:
    if run.finish or entry["round"] != run.standing.round + 1:
        raise UserError(f"{files.AUDIT}: line {number}: round {str(entry['round'])[:20]} cannot fail here")
    _same_model(run, entry, number)


def _evaluation(run: RunHistory, entry: Entry, number: int) -> None:
    if run.finish or run.evaluated or run.standing.round != run.segment["rounds"]:
        raise UserError(f"{files.AUDIT}: line {number}: no evaluation can stand here")
    _same_model(run, entry, number)
    run.evaluated = True


def _best(run: RunHistory, entry: Entry, number: int) -> None:
    """Once, between the evaluation and the end; the model is one that a round left."""
    early = not run.evaluated or run.finish or run.chosen
    known = run.models.get(entry["round"]) == entry["model_sha256"]
    if early or run.last["event"] != "evaluation" or not known:
        raise UserError(f"{files.AUDIT}: line {number}: no choice of a model can stand here")
    run.chosen = entry
    run.choices.append(entry["model_sha256"])


def _after(run: RunHistory, entry: Entry, number: int) -> None:
    """After the evaluation, and behind the end of a run too: it changes neither model nor state."""
    if not run.evaluated or (run.finish and not run.completed):
        raise UserError(f"{files.AUDIT}: line {number}: no step after the last round can stand here")
    _same_model(run, entry, number)


def _finish(run: RunHistory, entry: Entry, number: int) -> None:
    if run.finish or (entry["status"] == COMPLETED and (run.unscored or not run.evaluated)):
        what = "its rounds, their scores or its evaluation are missing"
        raise UserError(f"{files.AUDIT}: line {number}: the run cannot end here, {what}")
    before = run.before
    if before is not None and entry["model_sha256"] == before.model:
        # The last round's checkpoint could not be written, as on a full disk: the run ended with the round before.
        if run.standing.model != before.model:
            _back_to(run, before)
    else:
        _same_model(run, entry, number)
    run.finish = entry


def _resume(run: RunHistory, entry: Entry, number: int) -> None:
    allowed = [s for s in (run.standing, run.before) if s is not None and s.round == entry["from_round"]]
    if not allowed:
        raise UserError(f"{files.AUDIT}: line {number}: cannot be resumed after round {str(entry['from_round'])[:20]}")
    if (allowed[0].model, allowed[0].state) != (entry["model_sha256"], entry["state_sha256"]):
        raise UserError(f"{files.AUDIT}: line {number}: resumed from another model or state than the round before left")
    _back_to(run, allowed[0])
    _keep_declared(run, entry, number)
    run.finish, run.evaluated, run.chosen = {}, False, {}


def _segment(run: RunHistory, entry: Entry, number: int) -> None:
    if entry["rounds"] < entry["from_round"]:
        raise UserError(f"{files.AUDIT}: line {number}: a segment of fewer rounds than are finished")
    _resume(run, entry, number)
    run.segment = entry


def _back_to(run: RunHistory, standing: Standing) -> None:
    """The run stands there: a round behind it, if there is one, is repeated and then leaves a model of its own."""
    if standing is run.before:
        run.counted = run.counted_before
    run.standing, run.before = standing, None
    run.unscored = {number for number in run.unscored if number <= standing.round}


_STEPS = {
    "round": _round,
    "scores": _scores,
    "round_failed": _round_failed,
    "evaluation": _evaluation,
    "best": _best,
    "after": _after,
    "benefit": _after,
    FURTHER: _after,
    "risk": _after,
    "finish": _finish,
    "resume": _resume,
    "segment": _segment,
}


def _standing(round: int, entry: Entry) -> Standing:
    return Standing(round, entry["model_sha256"], entry["state_sha256"], entry["declared"], entry["hash"])


def _same_model(run: RunHistory, entry: Entry, number: int) -> None:
    if entry["model_sha256"] != run.standing.model:
        raise UserError(f"{files.AUDIT}: line {number}: names another model than the round before left")
    run.before = None


def _keep_declared(run: RunHistory, entry: Entry, number: int) -> None:
    """The first word counts: a site's number of examples never changes."""
    now, before = entry["declared"], run.standing.declared
    if not alike({site: now.get(site) for site in before}, before):
        raise UserError(f"{files.AUDIT}: line {number}: another number of examples than a site declared before")


def left_behind(checkpoint: Checkpoint) -> dict[str, Any]:
    """What the log's line of a round says of the checkpoint that is written after it."""
    hashes = {"model_sha256": model_hash(checkpoint.model), "state_sha256": memory_hash(checkpoint)}
    return {**hashes, "declared": dict(checkpoint.declared)}


def memory_hash(checkpoint: Checkpoint) -> str:
    """SHA-256 over what the server keeps beside the model: the rule's state and the gate's history of norms.

    Where there are any, the server optimizer's state, that of the trainer's server half and the sites' own models too.
    """
    more = {"server": checkpoint.server, "models": checkpoint.models, "trainer": checkpoint.trainer}
    kept = {name: value for name, value in more.items() if value}
    return state_hash({"rule": checkpoint.state, "history": checkpoint.history, **kept})


def read_standing(folder: Path, run: RunHistory) -> Checkpoint | None:
    """The folder's checkpoint, which is the one that the log ends with; None before the first.

    A kill between a round's line and its checkpoint leaves the checkpoint of the round before; that round is repeated.

    Raises:
        UserError: the checkpoint is missing, unreadable or another one.
    """
    allowed = [standing for standing in (run.standing, run.before) if standing is not None]
    if not files.is_there(folder / files.CHECKPOINT):
        if any(standing.round == 0 for standing in allowed):
            return None
        raise UserError(f"{files.CHECKPOINT}: is missing; {files.AUDIT} holds {run.standing.round} finished rounds")
    found = load_checkpoint(folder / files.CHECKPOINT)
    logged = next((standing for standing in allowed if standing.round == found.round), None)
    if logged is None:
        raise UserError(
            f"{files.CHECKPOINT}: is of round {found.round}, the last one of {files.AUDIT} is {run.standing.round}"
        )
    for what, same in (
        ("the model", logged.model == model_hash(found.model)),
        ("the rule's or the gate's state", logged.state == memory_hash(found)),
        ("the declared numbers of examples", alike(logged.declared, found.declared)),
        ("the log's line", logged.entry == found.entry),
    ):
        if not same:
            raise UserError(f"{files.CHECKPOINT}: {what} is not what {files.AUDIT} says of round {found.round}")
    return found


def read_final(folder: Path, run: RunHistory) -> dict[str, Any] | None:
    """The folder's ``model.safetensors``, which is the one that the log's end names; None when there is none.

    Raises:
        UserError: it is unreadable or another one, or the log has no end, which is written before the model.
    """
    if not files.is_there(folder / files.MODEL):
        return None
    if not run.finish:
        raise UserError(
            f"{files.AUDIT}: the last entry is missing: {files.MODEL} is there, and the log does not say so"
        )
    model = files.read_model(folder / files.MODEL)
    if model_hash(model) != run.finish["model_sha256"]:
        raise UserError(f"{files.MODEL}: is not the model that {files.AUDIT} ends with")
    return model
