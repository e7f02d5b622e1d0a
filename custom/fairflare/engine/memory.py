# SPDX-License-Identifier: Apache-2.0
"""What a site keeps on its own disk: models, its optimizer's state, and what it was asked for after the last round."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import torch

from fairflare.core.errors import DataError, UserError
from fairflare.core.execution import plainly
from fairflare.core.types import Round, StateDict
from fairflare.engine import files
from fairflare.privacy.egress import all_finite
from fairflare.privacy.referee import named

PERSONAL_ENDING = ".personal"
"""What the name of a personal model's file has before its suffix; no site's name ends so."""
AFTER_ENDING, ASKED_ENDING, INPUTS_ENDING = ".after.json", ".asked.json", ".inputs.json"
"""Of what a site has fitted, of what it was asked for, after the last round, and of what prepares new inputs."""
DECISION_ENDING = ".decision.json"
"""Of a site's own decision whether to join."""
ALONE_ENDING, WORK_ENDING = f".solo{files.SUFFIX}", f".solo-work{files.SUFFIX}"
"""Of a model that a site has trained alone, or is training, with what the training goes on from."""
RESULTS_ENDING = ".results.json"
"""Of a site's own results, in a run whose privacy budget lets none of them leave without noise."""
SPENT_ENDING = ".privacy.json"
"""What the name of a site's file of spent privacy budgets ends in; no run's end takes it away."""
ANSWERED_ENDING = ".answered.jsonl"
"""Of the history of secure sums that a site has answered, over jobs."""
MOST_ANSWERED = 1 << 30
"""Bytes of that history."""
ENDINGS = (AFTER_ENDING, ASKED_ENDING, DECISION_ENDING, INPUTS_ENDING, ALONE_ENDING, WORK_ENDING, RESULTS_ENDING)
WAIT = 30.0
"""Seconds that a job which continues a federation gives the process of the job before to end."""


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Within: no other process keeps its memory in ``path``, where a killed one may have left a half-written file.

    Raises:
        DataError: another job of the same federation is at work at this site.
    """
    files.private_folder(path.parent)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(files.locked(path.parent, f"{path.name}.lock", wait=WAIT))
        except files.Busy:
            raise DataError("memory", f"{path.stem}: another job of this federation is at work at this site") from None
        own = {path.name, personal_file(path).name, *(path.stem + ending for ending in ENDINGS)}
        files.clear_half_written(path.parent, own.__contains__)
        yield


def personal_file(path: Path) -> Path:
    """Where a site's personal model lies, beside its memory: "site-1.personal.safetensors"."""
    return beside(path, f"{PERSONAL_ENDING}{files.SUFFIX}")


def beside(path: Path, ending: str) -> Path:
    """Another of a site's files beside its memory: "site-1.after.json" beside "site-1.safetensors"."""
    return path.with_name(path.stem + ending)


def forget(folder: Path, sites: Iterable[str]) -> None:
    """Delete what ``sites`` in ``folder`` have noted of what a run asked that has ended; any other file there stays.

    Memories stay too, from which a next segment goes on, and models, which are results.
    """
    own = {
        f"{site}{ending}"
        for site in sites
        for ending in (f"{files.SUFFIX}.lock", ASKED_ENDING, WORK_ENDING, ANSWERED_ENDING)
    }
    with contextlib.suppress(OSError):  # nothing reads them any more
        files.remove_files(folder, own.__contains__)


class SpentFile:
    """``core.types.Ledger`` in a site's file, under the key ``run``; without a path in this object alone."""

    def __init__(self, path: Path | None, run: str) -> None:
        self._path, self._run = path, run
        self._runs: dict[str, Any] = {}
        self._held = False

    def read(self) -> dict[str, Any]:
        """What this run has written last; empty at first."""
        if self._path is not None and files.is_there(self._path):
            self._runs = files.read_json(self._path)["runs"]
        return dict(self._runs.get(self._run, {}))

    def write(self, content: dict[str, Any]) -> None:
        """Keep ``content`` beside what other runs have written, of other processes at the same time too."""
        with self.held():
            self.read()
            self._runs = {**self._runs, self._run: content}
            if self._path is not None:
                files.save_json(self._path, {"runs": self._runs})

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Within: nobody else writes to the file, of other processes neither; this object may hold it already."""
        with contextlib.ExitStack() as stack:
            if self._path is not None and not self._held:
                files.private_folder(self._path.parent)
                stack.enter_context(files.locked(self._path.parent, f".{self._path.name}.lock", wait=WAIT))
                self._held = True
                stack.callback(setattr, self, "_held", False)
            yield


class AnsweredFile:
    """``privacy.referee.History`` in a site's file: a JSON object a line; a set of sites has a line of its own.

    A line that a kill has cut short is of a sum whose shares were not handed out.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[dict[str, Any]]:
        """All entries; raises UserError where the file is no such history."""
        if not files.is_there(self._path):
            return []
        lines = files.read_bytes(self._path, MOST_ANSWERED).split(b"\n")[:-1]
        try:
            found = [json.loads(line) for line in lines if line]
            sets = {one["set"]: one["sites"] for one in found if "sites" in one}
            return [one if "set" not in one else {**one, "sites": sets[one["set"]]} for one in found if "run" in one]
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{self._path.name}: expected a site's history of secure sums") from None

    def add(self, entry: Mapping[str, Any]) -> None:
        """Append ``entry``, flushed to disk."""
        lines = [dict(entry)]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with files.locked(self._path.parent, f".{self._path.name}.lock", wait=WAIT):
            if "sites" in entry:
                sites = sorted(lines[0].pop("sites"))
                lines[0]["set"] = named(sites)
                if not any(one.get("set") == lines[0]["set"] for one in self.read()):
                    lines.insert(0, {"set": lines[0]["set"], "sites": sites})
            files.append_lines(self._path, lines)


class SiteMemory:
    """Values of the last two rounds, so that a round which is asked for again starts from where it started before.

    ``path`` is a file that survives a restart.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._rounds: dict[int, dict[str, Any]] = {}
        if path is None:
            return
        if path.is_file():
            content = files.read_tensors(path)
            rounds = content.items() if isinstance(content, dict) else [("", None)]
            if any(type(number) is not int or type(values) is not dict for number, values in rounds):
                raise UserError(f"{path.name}: expected a site's memory, which is mappings by round")
            self._rounds = content

    def before(self, round: int) -> dict[str, Any]:
        """A copy of what was kept by the latest round before ``round``; empty when there is none."""
        earlier = [r for r in self._rounds if r < round]
        return _copied(self._rounds[max(earlier)]) if earlier else {}

    def at(self, round: int) -> dict[str, Any]:
        """A copy of what ``round`` itself has kept; empty when it kept nothing."""
        return _copied(self._rounds.get(round, {}))

    def save_personal(self, model: StateDict) -> None:
        """Write the site's personal model as a state dict beside the memory's file, where there is one."""
        if self._path is not None:
            files.save_tensors(personal_file(self._path), _copied(model))

    def save_inputs(self, content: Mapping[str, Any]) -> None:
        """Write what the site needs to prepare new inputs beside the memory's file, where there is one."""
        if self._path is not None and content:
            files.save_json(beside(self._path, INPUTS_ENDING), content)

    def save_results(self, content: Mapping[str, Any]) -> None:
        """Write the site's own results, which stay there, beside the memory's file, where there is one."""
        if self._path is not None:
            files.save_json(beside(self._path, RESULTS_ENDING), content)

    def has(self, round: int) -> bool:
        return bool(self._rounds.get(round))

    def discard(self, round: int) -> None:
        """Forget what ``round`` has kept, which went on without this site: it stands as before that round."""
        self._forget({round})

    def go_back(self, counted: int, round: int) -> None:
        """Forget what the rounds between ``counted``, the last that went on with this site, and ``round`` have kept."""
        self._forget({r for r in self._rounds if counted < r < round})

    def _forget(self, rounds: Set[int]) -> None:
        if not rounds.isdisjoint(self._rounds):
            self._rounds = {r: values for r, values in self._rounds.items() if r not in rounds}
            self._save()

    def keep(self, round: int, values: Mapping[str, Any]) -> None:
        """Keep ``values`` as those of ``round``; of the rounds before, only the latest is kept beside it."""
        earlier = [r for r in self._rounds if r < round]
        self._rounds = {max(earlier): self._rounds[max(earlier)]} if earlier else {}
        self._rounds[round] = _copied(values)
        if any(self._rounds.values()):
            self._save()

    def _save(self) -> None:
        if files.LASTING.get():
            self.save()

    def save(self) -> None:
        """Write what is kept to the memory's file, where there is one."""
        if self._path is not None and (any(self._rounds.values()) or self._path.is_file()):
            files.save_tensors(self._path, self._rounds)


def is_finite(value: Any) -> bool:
    """Whether what would be kept holds no NaN and no infinity, however deep."""
    if isinstance(value, torch.Tensor):
        return not value.is_floating_point() or all_finite(value.detach())
    if isinstance(value, (dict, Mapping)):
        return all(is_finite(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return all(is_finite(item) for item in value)
    return not isinstance(value, float) or math.isfinite(value)


def _copied(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _detached(item) for key, item in values.items()}


def _detached(value: Any) -> Any:
    """Tensors as copies on the CPU: what is kept must not change when the network trains on."""
    if isinstance(value, torch.Tensor):
        return plainly(value)
    if isinstance(value, Mapping):
        return {key: _detached(item) for key, item in value.items()}
    return [_detached(item) for item in value] if isinstance(value, (list, tuple)) else value


class AskedAgain(Exception):
    """Something that a site does not do a second time, or not yet; the text holds no number of the site's."""


class Asked:
    """What was asked after the last round: of one model, with one set of sites, told one total, once per run.

    A second model would show its cases from another side, and two sums that differ by a site would show that site's
    own. The same question may come again, as after a kill, and is answered the same; without a path it is forgotten.

    Each segment of a federation is a ``run`` of its own here: another job, to which the site's policy applies anew.
    """

    def __init__(self, path: Path | None = None, run: str = "") -> None:
        self._path, self._run = path, run
        self._runs: dict[str, Any] = files.read_json(path) if path is not None and files.is_there(path) else {}
        self._first: dict[str, Any] = self._runs.get(run, {})

    def check(self, model: str, sites: Sequence[str], total: Sequence[float] | None = None) -> None:
        """Raise AskedAgain for another question than the first, or for results before the sums.

        Args:
            model: hash of the model whose outputs the cases are of.
            sites: those in a sum that hides each of them; none in the clear.
            total: the sums over all sites that results are asked for with; None: the site's own sums are asked for.
        """
        question = _question(model, sites, total)
        if total is not None and "sites" not in self._first:
            raise AskedAgain("results before the sums")
        for name, value in question.items():
            if self._first.get(name, value) != value:
                raise AskedAgain(f"another {name} than the first after the last round")

    def is_of(self, model: str) -> bool:
        """Whether nothing was asked so far of another model; from now on nothing will be answered of another."""
        if self._first.get("model", model) != model:
            return False
        self._note({"model": model})
        return True

    def keep(self, model: str, sites: Sequence[str], total: Sequence[float] | None = None) -> None:
        """Take note of what was checked and is about to be answered."""
        self._note(_question(model, sites, total))

    def once(self, name: str, model: str) -> None:
        """Take note of the model that ``name`` is asked with; raise AskedAgain for another than the first."""
        if self._first.get(name, model) != model:
            raise AskedAgain(f"{name} with another model than the first after the last round")
        self._note({name: model})

    def _note(self, question: Mapping[str, Any]) -> None:
        first = {**self._first, **question}
        if first != self._first and self._path is not None:
            files.save_json(self._path, {**self._runs, self._run: first})
        self._first = first


def check_last(round: Round, rounds: int) -> None:
    """Raise AskedAgain unless it is the last of ``rounds``."""
    if round != Round(rounds, rounds):
        raise AskedAgain("before the last round")


def _question(model: str, sites: Sequence[str], total: Sequence[float] | None) -> dict[str, Any]:
    question: dict[str, Any] = {"model": model, "sites": sorted(sites)}
    if total is not None:
        question["total"] = hashlib.sha256(json.dumps([float(value) for value in total]).encode()).hexdigest()
    return question
