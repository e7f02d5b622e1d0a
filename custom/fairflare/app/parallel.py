# SPDX-License-Identifier: Apache-2.0
"""Several runs within a budget of cores: each in a process of its own, and where there are fewer runs than cores, each
with several workers.

A run that fails takes no other with it. A mistake that the user has to put right begins no further run: the others
would most likely meet it too. Whatever ends this process ends all of them, and the same command goes on.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fairflare.app import console
from fairflare.app.board import Board, Elsewhere
from fairflare.build.config import RunConfig
from fairflare.core.channel import Channel
from fairflare.core.errors import RunFailed, UserError
from fairflare.core.processes import GRACE
from fairflare.core.workers import (
    Worker,
    check_possible,
    portable,
    raise_here,
    ready,
    start_method,
    stop,
    usable_cores,
)

EVERYONES = (
    "jinja2",
    "matplotlib.figure",
    "matplotlib.backends.backend_svg",
    "tensorboard.compat.proto.event_pb2",
    "tensorboard.summary.writer.event_file_writer",
)
"""What every run imports on its way: once before the processes are forked, two thirds of a CPU second for each."""
One = Callable[..., Mapping[str, Any]]
"""(configuration, folder, workers=) -> the run's report; can be pickled."""
Failure = tuple[Exception, str]


def budget(wanted: int | None, env: str, configs: Sequence[tuple[str, RunConfig]]) -> int:
    """How many processes compute side by side for several runs.

    Args:
        wanted: a number; None: as many as there are cores, and one where a GPU would be shared or in the simulator.
        env: "local" or "sim", whose runs have processes of their own and take turns.
        configs: the runs.

    Raises:
        UserError: several are not possible.
    """
    if env != "local":
        if (wanted or 1) > 1:
            raise UserError(f"--workers: expected --env local, got --env {env}")
        return 1
    if wanted is None:
        try:
            check_possible()
        except UserError:
            return 1
        threads = max(config.threads for _, config in configs)
        return 1 if torch.cuda.device_count() else max(1, usable_cores() // threads)
    if wanted > 1:
        check_possible()
    return wanted


def run_all(
    configs: Sequence[tuple[str, RunConfig]],
    folder: Path,
    one: One,
    workers: int,
    seconds: Mapping[str, float | None] | None = None,
) -> list[Mapping[str, Any]]:
    """The reports of all runs, in their order.

    Args:
        configs: (folder name, run); the name may lead through a folder that is there.
        folder: holds a folder for each.
        one: makes one run.
        workers: processes that compute side by side.
        seconds: see ``Board``.

    Raises:
        FairFlareError: of the first run that failed, after the others have ended.
    """
    runs = _Runs(configs, folder, one, workers, seconds)
    runs.one_by_one() if workers == 1 else runs.side_by_side()
    for name, _ in configs:
        if name in runs.failures:
            raise_here(*runs.failures[name])
    return [runs.reports[name] for name, _ in configs]


class _Runs:
    def __init__(
        self,
        configs: Sequence[tuple[str, RunConfig]],
        folder: Path,
        one: One,
        workers: int,
        seconds: Mapping[str, float | None] | None = None,
    ) -> None:
        self._pending, self._folder, self._one, self._workers = deque(configs), folder, one, workers
        self._board = Board(configs, seconds)
        self._at_work: dict[Worker, str] = {}
        self.reports: dict[str, Mapping[str, Any]] = {}
        self.failures: dict[str, Failure] = {}

    def one_by_one(self) -> None:
        """In this process."""
        with self._board as board:
            while self._pending:
                name, config = self._pending.popleft()
                board.began(name)
                with console.shown_by(Elsewhere(lambda *said, name=name: board.heard(name, *said))):
                    self._note(name, *_outcome(self._one, config, self._folder / name, 1))

    def side_by_side(self) -> None:
        """In processes that live as long as there are runs for them; they start before the display's thread does."""
        method, started = start_method(), list[Worker]()
        for module in EVERYONES if method == "fork" else ():
            importlib.import_module(module)
        try:
            for _ in range(min(self._workers, len(self._pending))):
                started.append(Worker(_serve, self._folder, self._one, method=method, siblings=started))
            with self._board:
                for worker in started:
                    self._hand_out(worker)
                while self._at_work:
                    for worker in ready(self._at_work):
                        self._hear(worker, started)
        finally:
            stop(started, grace=2 * GRACE)  # each may have workers of its own to end

    def _hand_out(self, worker: Worker) -> None:
        if self._pending:
            name, config = self._pending.popleft()
            share = self._workers // min(self._workers, len(self._pending) + len(self._at_work) + 1)
            self._at_work[worker] = name
            self._board.began(name)
            worker.channel.send((name, config, share))

    def _hear(self, worker: Worker, started: list[Worker]) -> None:
        """What a process says: something of its run, or how that ended; another takes the place of one that died."""
        name = self._at_work[worker]
        try:
            kind, *content = worker.channel.receive()
        except EOFError:
            kind, how = "ended", worker.how_it_ended()
            lost = RunFailed(f"{self._folder / name}: its process ended early ({how}); the same command goes on")
            content = [None, (lost, "")]
        if kind == "said":
            self._board.heard(name, *content)
            return
        del self._at_work[worker]
        self._note(name, *content)
        if self._pending and not worker.is_alive:
            worker = Worker(_serve, self._folder, self._one, method=start_method(), siblings=started)
            started.append(worker)
        self._hand_out(worker)

    def _note(self, name: str, report: Mapping[str, Any] | None, failure: Failure | None) -> None:
        if failure is None:
            self.reports[name] = report or {}
            self._board.ended(name, "finished")
            return
        self.failures[name] = failure
        self._board.ended(name, f"failed: {failure[0]}")
        if isinstance(failure[0], UserError):
            self._pending.clear()


def _outcome(
    one: One, config: RunConfig, folder: Path, workers: int
) -> tuple[Mapping[str, Any] | None, Failure | None]:
    """A run's report, or why there is none."""
    try:
        return one(config, folder, workers=workers), None
    except Exception as error:
        return None, portable(error)


def _serve(channel: Channel, folder: Path, one: One) -> None:
    """What a process does: the runs that it is given, one after the other."""

    def say(*said: Any) -> None:
        channel.send(("said", *said))

    with console.shown_by(Elsewhere(say)):
        while True:
            name, config, workers = channel.receive()
            channel.send(("ended", *_outcome(one, config, folder / name, workers)))
