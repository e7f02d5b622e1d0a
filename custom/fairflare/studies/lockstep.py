# SPDX-License-Identifier: Apache-2.0
"""Runs of small models in lockstep: their local steps are computed in one batched call over all sites of all runs.

Every run has a thread of its own, but one thread at a time goes on: a run keeps the turn until its sites train, and the
last of the runs that train computes the steps of all. So the random generators and everything else of the process are a
run's alone while it works, and its rounds, checks and logs are those of a run by itself. Models are equal to a run's by
itself within rounding (``trainers.vmap_training``).
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from fairflare.core.errors import FairFlareError
from fairflare.core.execution import default_device
from fairflare.core.types import LocalWork
from fairflare.engine.files import is_file, read_json
from fairflare.engine.in_process import LOCKSTEP, Together
from fairflare.engine.setup.assembly import CONFIG
from fairflare.engine.setup.config import RunConfig
from fairflare.engine.setup.parts import build_parts, stacks_well
from fairflare.studies.labels import DATA_SEED

MAX_RUNS = 64
"""Runs that are held in memory at once."""


def in_lockstep(runs: Mapping[str, RunConfig], folder: Path) -> dict[str, RunConfig]:
    """Those of ``runs`` that are trained together, with ``stacked`` set: two or more.

    They are of linear models; of small perceptrons where their configuration has ``stacked``, since ReLU amplifies a
    rounding over the rounds. A run that stands in ``folder`` already is made as it was begun.
    """
    if default_device().type != "cpu":
        return {}
    found = {}
    for name, config in runs.items():
        begun = folder / name / CONFIG
        if is_file(begun) and not read_json(begun).get("stacked"):
            continue
        stacked = dataclasses.replace(config, stacked=True)
        try:
            parts = build_parts(stacked)
        except FairFlareError:  # whoever makes the run by itself says what is wrong with it
            continue
        if stacks_well(parts, config) and (config.stacked or len(list(parts.network.parameters())) <= 2):
            found[name] = stacked
    return found if len(found) > 1 else {}


def make_together(runs: Mapping[str, RunConfig], one: Callable[[str, RunConfig], None]) -> None:
    """Call ``one`` with each run, at most ``MAX_RUNS`` of them side by side; what it raises ends them all."""
    waiting = iter(runs.items())
    while some := dict(islice(waiting, MAX_RUNS)):
        _Lockstep(len(some)).make(some, one)


@dataclass
class _Request:
    """What the sites of one run wait for; it is computed with the works of runs that are ``alike``."""

    alike: str
    works: Sequence[LocalWork]
    trainer: Any
    train: Together
    trained: list[Any] = field(default_factory=list)
    error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        return bool(self.trained) or self.error is not None


class _Lockstep:
    """``count`` runs that take turns."""

    def __init__(self, count: int) -> None:
        self._turn, self._at_work = threading.Condition(), count
        self._requests: list[_Request] = []
        self._error: BaseException | None = None

    def make(self, runs: Mapping[str, RunConfig], one: Callable[[str, RunConfig], None]) -> None:
        threads = [threading.Thread(target=self._run, args=(*run, one), daemon=True) for run in runs.items()]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException as error:  # Ctrl-C, which only this thread hears
            with self._turn:
                self._stop(error)
            for thread in threads:
                thread.join()
            raise
        if self._error is not None:
            raise self._error

    def _run(self, name: str, config: RunConfig, one: Callable[[str, RunConfig], None]) -> None:
        options = {key: value for key, value in config.options.items() if key != DATA_SEED}
        data = repr((config.task, config.preset, options, config.training))
        LOCKSTEP.set(lambda kind, *asked: self._train(_Request(data + kind, *asked)))
        with self._turn:
            try:
                if self._error is None:
                    one(name, config)
            except BaseException as error:
                self._stop(error)
            finally:
                self._at_work -= 1
                self._compute_if_all_wait()

    def _train(self, request: _Request) -> list[Any]:
        self._requests.append(request)
        self._compute_if_all_wait()
        while not request.is_done:
            self._turn.wait()
        if request.error is not None:
            raise request.error
        return request.trained

    def _stop(self, error: BaseException) -> None:
        self._error = self._error or error
        for request in self._requests:
            request.error = KeyboardInterrupt()
        self._requests = []
        self._turn.notify_all()

    def _compute_if_all_wait(self) -> None:
        if self._error is not None:
            self._stop(self._error)
        elif self._requests and len(self._requests) == self._at_work:
            groups: dict[str, list[_Request]] = {}
            for request in self._requests:
                groups.setdefault(request.alike, []).append(request)
            for group in groups.values():
                _train(group)
            self._requests = []
            self._turn.notify_all()


def _train(group: Sequence[_Request]) -> None:
    """The steps of the sites of all runs in ``group``."""
    try:
        works = [work for one in group for work in one.works]
        results = iter(group[0].train(works, [one.trainer for one in group for _ in one.works]))
    except Exception as error:  # every run must end: one that waits for ever would hold up the others
        for request in group:
            request.error = error
        return
    for request in group:
        request.trained = list(islice(results, len(request.works)))
