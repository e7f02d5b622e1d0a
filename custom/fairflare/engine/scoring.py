# SPDX-License-Identifier: Apache-2.0
"""Scores the models of a run's last rounds on the shared test sets, off the rounds' path.

The models wait in files. Where the sites compute on other machines, one thread scores them while the server waits for
answers; what is left is scored after the last round. One model is in memory at a time, and no round waits for a score.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from fairflare.core.errors import RunFailed, UserError
from fairflare.core.types import StateDict
from fairflare.engine.best import Unscored
from fairflare.engine.history import RunHistory

LAST = 5
"""Rounds that a mean in the FedISM+ tables is over."""
Score = Callable[[StateDict, bool, Callable[[], None]], dict[str, Any]]
"""(A model, whether it is the final one, what to call before every batch) -> test set -> metrics."""


class Beside(IntEnum):
    """What the sites may be doing while the server scores."""

    NOTHING = 0
    """They compute in this process and in its network."""
    EVALUATION = 1
    """They compute on the cores of this machine, which a training round has a better use for."""
    ROUNDS = 2
    """They compute elsewhere."""


@dataclass(frozen=True)
class Scored:
    """What one model got, as the log's line says it.

    Attributes:
        test_sets: test set -> "corrupted", "n" and "metrics".
        seconds: "score": wall time, in which the thread may have waited for the server's own work.
    """

    round: int
    model_sha256: str
    test_sets: dict[str, Any]
    seconds: dict[str, float]


@dataclass
class Backlog:
    """The models that scores are owed for.

    Attributes:
        score: None where the task has no shared test sets.
        owed: round -> hash of its model, which is in a file.
    """

    folder: Path
    rounds: int
    score: Score | None
    beside: Beside
    last: int = LAST
    owed: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._files = Unscored(self.folder)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scoring")  # which begins with the first model
        self._found: dict[int, Future[Scored]] = {}
        self._may_work, self._closed = threading.Event(), False

    def check(self, run_history: RunHistory, round: int) -> None:
        self._files.check(run_history, round)

    def go_on(self, run_history: RunHistory, round: int) -> None:
        """Take over what a process has left that came to the end of ``round``."""
        self.owed = {number: run_history.left[number] for number in sorted(run_history.unscored) if number <= round}
        self._files.clear(set(self.owed))

    def wants(self, round: int) -> bool:
        return self.score is not None and round > self.rounds - self.last

    def owe(self, round: int, model: StateDict, sha256: str) -> None:
        """Keep the model of ``round``, of which the log has just said ``sha256``."""
        self._files.write(round, model)
        self.owed[round] = sha256

    @contextlib.contextmanager
    def while_sites(self, do: Beside) -> Iterator[None]:
        """Within: the thread may work, if it may beside what the sites do; outside it waits, after the batch it is at.

        Its priority is the process's: a thread of a lower one that holds Python's lock would keep the others waiting.
        """
        if self.beside < do or self.score is None:
            yield
            return
        for number in self.owed:
            if number not in self._found:
                self._found[number] = self._thread.submit(self._scored, number)
        self._may_work.set()
        try:
            yield
        finally:
            self._may_work.clear()

    def ready(self) -> Iterator[Scored]:
        """What the thread has found, in the order of the rounds; without waiting."""
        for number in list(self.owed):
            future = self._found.get(number)
            if future is None or not future.done() or future.exception():
                return
            yield future.result()

    def rest(self, round: int) -> Iterator[Scored]:
        """What is owed up to ``round``, waited for; raises RunFailed where a file is not the model of the log."""
        self._may_work.set()
        for number in [number for number in self.owed if number <= round]:
            future = self._found.pop(number, None)
            yield future.result() if future else self._scored(number)

    def logged(self, scored: Scored) -> None:
        """The log holds it: the model's file is needed no more."""
        del self.owed[scored.round]
        self._found.pop(scored.round, None)
        self._files.clear(set(self.owed))

    def now(self, model: StateDict) -> dict[str, Any]:
        """The scores of a run's last model on all test sets, once nothing else is to be scored."""
        self.close()
        self._thread.shutdown(wait=True)  # it uses the same network
        return self.score(model, True, lambda: None) if self.score is not None else {}

    def close(self) -> None:
        """The thread ends after the batch that it is at, and begins with no other model."""
        self._closed = True
        self._may_work.set()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _scored(self, number: int) -> Scored:
        self._wait()
        assert self.score is not None  # else nothing is owed
        started, sha256 = time.monotonic(), self.owed[number]
        found = self.score(self._read(number, sha256), number == self.rounds, self._wait)
        return Scored(number, sha256, found, {"score": time.monotonic() - started})

    def _read(self, number: int, sha256: str) -> StateDict:
        try:
            return self._files.read(number, sha256)
        except UserError as error:
            raise RunFailed(str(error)) from None

    def _wait(self) -> None:
        self._may_work.wait()
        if self._closed:
            raise RunFailed("the run has ended")
