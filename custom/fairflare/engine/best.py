# SPDX-License-Identifier: Apache-2.0
"""Which round's model is the best by validation: over all sites, at the worst one, or a stated trade-off of the two.

A model's scores are what sites find on their validation splits when they receive it: those of round t stand in round
t + 1's line of the log, those of the last round in the final evaluation. So nothing leaves a site that did not leave it
before, and a run that goes on after a kill makes the same choice from the same lines. Two models are compared over the
sites that scored both, at least as many as a round needs: another set of sites would compare hospitals, not models.

``ModelFiles`` are models of single rounds in a folder of the run, a file each, which goes when it is needed no more.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairflare.core.errors import RunFailed, UserError
from fairflare.core.types import StateDict
from fairflare.engine.checks import NO_CHOICE
from fairflare.engine.files import (
    AUDIT,
    BEST,
    BEST_MODELS,
    HALF_WRITTEN,
    SUFFIX,
    clear_half_written,
    is_there,
    read_model,
    save_tensors,
)
from fairflare.engine.hashes import model_hash
from fairflare.engine.history import RunHistory, standing_rounds


class ModelFiles:
    """The files of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, round: int, model: StateDict) -> None:
        """Put the model of ``round`` there, durably and whole or not at all."""
        save_tensors(self.path(round), model)

    def clear(self, keep: set[int]) -> None:
        """Remove every model but those of the rounds in ``keep``, what a killed process was writing, and the folder."""
        clear_half_written(self.folder, lambda name: number_of(name) is not None)
        for path in self.all():
            if number_of(path.name) not in {None, *keep}:
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # there is none, or something is left in it
            self.folder.rmdir()

    def all(self) -> list[Path]:
        """What lies there, but for what a killed process was writing; raises UserError where there is no folder."""
        if not is_there(self.folder):
            return []
        if self.folder.is_symlink() or not self.folder.is_dir():
            raise UserError(f"{self.folder.name}: expected a folder, found something else")
        return sorted(path for path in self.folder.iterdir() if not HALF_WRITTEN.fullmatch(path.name))

    def path(self, round: int) -> Path:
        return self.folder / f"{round}{SUFFIX}"


def number_of(name: str) -> int | None:
    """The round of which a file of this name holds the model; None for another file."""
    number = name.removesuffix(SUFFIX)
    own = number.isascii() and number.isdigit() and len(number) < 10 and f"{int(number)}{SUFFIX}" == name
    return int(number) if own else None


Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Candidate:
    """A round's model, and site -> the metric that it got on its validation split."""

    round: int
    model_sha256: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class Choice:
    """How a run chooses among the models of its rounds.

    Attributes:
        weight: of the trade-off, w in mean - w (mean - worst); 0 is the mean, 1 the worst site.
        least: sites that must have scored both of two models.
        shown: whether the chosen model is the one that the run's results, and all that follows them, are of.
    """

    by: str = NO_CHOICE
    weight: float = 0.5
    metric: str = "balanced_accuracy"
    higher: bool = True
    least: int = 1
    shown: bool = False

    @property
    def chooses(self) -> bool:
        return self.by != NO_CHOICE

    def score(self, values: Mapping[str, float]) -> float:
        """mean - w (mean - worst) over the sites of ``values``, at least one; larger is better, whatever the metric."""
        known = [values[site] if self.higher else -values[site] for site in sorted(values)]
        weight = {"mean": 0.0, "worst": 1.0}.get(self.by, self.weight)
        mean, worst = sum(known) / len(known), min(known)
        # Not mean - w (mean - worst): at w = 1 that is the worst value but for rounding, and a tie would be none.
        return (1 - weight) * mean + weight * worst

    def gains(self, later: Candidate, earlier: Candidate) -> float | None:
        """By how much ``later`` scores above ``earlier`` over the same sites; None where they cannot be compared."""
        both = sorted(set(later.values) & set(earlier.values))
        if len(both) < max(1, self.least):
            return None
        scores = [self.score({site: found.values[site] for site in both}) for found in (later, earlier)]
        return scores[0] - scores[1]

    def best(self, earlier: Candidate | None, later: Candidate) -> Candidate:
        """The better of two models of a run, the later one where both score the same.

        Where they cannot be compared the earlier one stays: nothing says that the later one is better.
        """
        if earlier is None:
            return later
        gain = self.gains(later, earlier)
        return later if gain is not None and gain >= 0 else earlier

    def final(self, earlier: Candidate | None, last: Candidate) -> Candidate:
        """The choice of a run: an ``earlier`` model only where it scores above the ``last`` round's over same sites."""
        if earlier is None:
            return last
        gain = self.gains(last, earlier)
        return earlier if gain is not None and gain < 0 else last

    def so_far(self, entries: Sequence[Entry], until: int) -> Candidate | None:
        """The best model of a log whose scores are known by the end of round ``until``; None before the second.

        Args:
            entries: of the log; of several lines of one round the latest counts.
            until: the round after which the run stands; later lines are of rounds that are repeated.
        """
        found: Candidate | None = None
        for line, scored_in in itertools.pairwise(standing_rounds(entries, until)):
            found = self.best(found, self.candidate(line["round"], line["model_sha256"], scored_in))
        return found

    def candidate(self, round: int, model_sha256: str, scored_in: Entry) -> Candidate:
        """The model of ``round``, which the sites of the next round's line have scored."""
        found = {site: reply["metrics"].get(self.metric) for site, reply in scored_in["accepted"].items()}
        return Candidate(round, model_sha256, {site: value for site, value in found.items() if value is not None})

    def last(self, round: int, model_sha256: str, sites: Mapping[str, Entry]) -> Candidate:
        """The model of the last round, which the final evaluation has scored."""
        values = {site: (found.get("val") or {}).get(self.metric) for site, found in sites.items()}
        return Candidate(round, model_sha256, {site: value for site, value in values.items() if value is not None})


def of_line(entry: Entry, least: int) -> Choice:
    return Choice(entry["by"], entry["weight"], entry["metric"], entry["higher"], least)


def check_line(entries: Sequence[Entry], line: Entry, least: int, rounds: int) -> None:
    """Raise UserError where ``line``, the last choice that a log tells of, is not the one that its scores make."""
    evaluation = next(e for e in reversed(entries) if e["event"] == "evaluation")
    choice = of_line(line, least)
    last = choice.last(rounds, evaluation["model_sha256"], evaluation["sites"])
    found = choice.final(choice.so_far(entries, rounds), last)
    if (found.round, found.model_sha256) != (line["round"], line["model_sha256"]):
        raise UserError(f"{AUDIT}: the chosen model is of round {line['round']}, by its scores it is {found.round}'s")


@dataclass
class Best:
    """The best model so far, in a file below ``best``; that of a run that ended is in ``best.safetensors``, too.

    A new best model is written after the line that holds its scores and before that round's checkpoint, and the one
    before it goes after the checkpoint: whatever a kill leaves, the best model of the checkpoint's round is there.
    """

    folder: Path
    choice: Choice
    found: Candidate | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._files = ModelFiles(self.folder / BEST_MODELS)

    def go_on(self, entries: Sequence[Entry], round: int) -> None:
        if self.choice.chooses:
            self.found = self.choice.so_far(entries, round)
            self.settle()

    def challenge(self, round: int, model: StateDict, model_sha256: str, scored_in: Entry) -> None:
        """Keep the model of ``round`` if it is the best so far; the line of the round after it has just been logged."""
        if not self.choice.chooses or round < 1:
            return
        new = self.choice.candidate(round, model_sha256, scored_in)
        if self.choice.best(self.found, new) is new:
            self._files.write(round, model)
            self.found = new

    def settle(self) -> None:
        """The checkpoint is written: other models are needed no more."""
        if self.choice.chooses:
            self._files.clear({self.found.round} if self.found else set())

    def model(self) -> StateDict:
        """The best model so far; raises RunFailed where its file is another or missing."""
        assert self.found is not None  # there is one once it has been found better than another
        for path in (self._files.path(self.found.round), self.folder / BEST):
            if is_there(path) and model_hash(model := read_model(path)) == self.found.model_sha256:
                return model
        raise RunFailed(f"{BEST_MODELS}/{self.found.round}{SUFFIX}: is not the model that {AUDIT} says it is")

    def save(self, model: StateDict) -> None:
        save_tensors(self.folder / BEST, model)


def check_files(
    folder: Path, run_history: RunHistory, entries: Sequence[Entry], choice: Choice, round: int, *, ended: bool
) -> None:
    """Raise UserError unless the log names all below ``best`` and ``best.safetensors``, and none is missing."""
    files = ModelFiles(folder / BEST_MODELS)
    if not choice.chooses and (run_history.choices or files.all() or is_there(folder / BEST)):
        raise UserError(f"{BEST}: lies there, or {AUDIT} speaks of it, in a run that chooses no model")
    for path in files.all():
        named = {(e["round"], e["model_sha256"]) for e in entries if e["event"] == "round"}
        number = number_of(path.name)
        if number is None or (number, model_hash(read_model(path))) not in named:
            raise UserError(f"{BEST_MODELS}/{path.name[:80]}: is not a model that {AUDIT} names")
    found = choice.so_far(entries, round) if choice.chooses else None
    if found and round < run_history.segment["rounds"] and not is_there(files.path(found.round)):
        raise UserError(f"{BEST_MODELS}/{found.round}{SUFFIX}: is missing, and by {AUDIT} it is the best model so far")
    if is_there(folder / BEST):
        allowed = run_history.choices[-1:] if ended else run_history.choices
        if model_hash(read_model(folder / BEST)) not in allowed:
            raise UserError(f"{BEST}: is not the model that {AUDIT} says was chosen")
    elif ended and choice.chooses:
        raise UserError(f"{BEST}: is missing, and {AUDIT} says that the run ended")
