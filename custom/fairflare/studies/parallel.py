# SPDX-License-Identifier: Apache-2.0
"""Several runs, side by side within a budget of cores.

Each run has a process of its own: torch's threads, the random generators and the handling of
signals belong to a process. No process pool (loky, concurrent.futures) is used: when one of its processes dies all are
ended, and nobody is told which run it was; it forks none once there are threads, so that every process imports
everything anew; and its processes show nothing of what they do.

A run that fails takes no other with it. A mistake that the user has to put right begins no further run: the others
would most likely meet it too. Whatever ends this process ends all of them, and the same command goes on.
"""

from __future__ import annotations

import contextlib
import importlib
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fairflare.core.errors import RunFailed, UserError
from fairflare.core.processes import GRACE
from fairflare.core.workers import Channel, Worker, portable, ready, start_method, stop, usable_cores
from fairflare.engine.setup.config import RunConfig
from fairflare.studies import display
from fairflare.studies.display import Board
from fairflare.studies.lockstep import in_lockstep, make_together

EVERYONES = ["jinja2", "matplotlib.figure", "matplotlib.backends.backend_svg"]
EVERYONES += ["tensorboard.compat.proto.event_pb2", "tensorboard.summary.writer.record_writer"]
"""What every run imports on its way: once before the processes are forked, two thirds of a CPU second for each."""
FASTER = 3
"""Processes from which runs one by one end sooner than in lockstep, which takes half of their CPU time on one core."""
Report = Mapping[str, Any]
One = Callable[..., Report]
"""(configuration, folder, workers=) -> the run's report; can be pickled."""
Failure = tuple[Exception, str]
Outcome = tuple[Report | None, Failure | None]
"""A run's report, or why there is none."""


def budget(wanted: int | None, env: str, configs: Mapping[str, RunConfig]) -> int:
    """How many processes compute side by side for several runs.

    None: as many as there are cores, and one where a GPU would be shared or in the simulator ("sim"), whose runs have
    processes of their own and take turns.
    """
    if env != "local":
        if (wanted or 1) > 1:
            raise UserError(f"--workers: expected --env local, got --env {env}")
        return 1
    if wanted is None:
        threads = max((config.threads for config in configs.values()), default=1)
        return 1 if torch.cuda.device_count() else max(1, usable_cores() // threads)
    return wanted


def run_all(
    runs: Mapping[str, RunConfig],
    folder: Path,
    one: One,
    workers: int,
    lockstep: bool = False,
) -> tuple[dict[str, Report], dict[str, Failure]]:
    """What came of the runs: the reports of those that ended well, and why others have none.

    The names of ``runs`` are of folders below ``folder``, and may lead through one that is there. ``workers`` are as
    ``budget`` gives them. ``lockstep``: runs of small models are trained together, see ``studies.lockstep``.
    """
    found = _Outcomes(Board(runs))
    together = in_lockstep(runs, folder) if lockstep and workers < FASTER else {}
    others = {name: config for name, config in runs.items() if name not in together}
    here = partial(_noted, found, folder, one)
    if others and workers > 1:
        _in_processes(others, folder, one, workers, found)
    elif others:
        with found.board:
            for name, config in others.items():
                here(name, config)
    if together and not found.mistaken:
        with found.board:
            make_together(together, here)
    return found.reports, found.failures


class _Outcomes:
    """What came of runs up to now, shown on a board."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.reports: dict[str, Report] = {}
        self.failures: dict[str, Failure] = {}

    @property
    def mistaken(self) -> bool:
        """Whether the user has something to put right."""
        return any(isinstance(error, UserError) for error, _ in list(self.failures.values()))

    def note(self, name: str, report: Report | None, failure: Failure | None) -> None:
        """A run is over."""
        if failure is None:
            self.reports[name] = report or {}
        else:
            self.failures[name] = failure
        self.board.ended(name, "finished" if failure is None else f"failed: {failure[0]}")


def _noted(found: _Outcomes, folder: Path, one: One, name: str, config: RunConfig) -> None:
    """One run, made in this thread."""
    if found.mistaken:
        return
    found.board.began(name)
    with display.told_to(partial(found.board.heard, name)):
        found.note(name, *_outcome(one, config, folder / name, 1))


def _in_processes(runs: Mapping[str, RunConfig], folder: Path, one: One, workers: int, found: _Outcomes) -> None:
    """In processes that live as long as there are runs for them; they start before any thread does."""
    count, started = min(workers, len(runs)), list[Worker]()
    waiting, busy = deque(runs.items()), dict[Worker, str]()
    for module in EVERYONES if start_method() == "fork" else []:
        importlib.import_module(module)

    def start() -> Worker:
        started.append(Worker(_serve, folder, one, method=start_method(), siblings=started))
        return started[-1]

    try:
        idle = [start() for _ in range(count)]
        with found.board:
            while busy or (waiting and not found.mistaken):
                while idle and waiting and not found.mistaken:
                    worker, (name, config) = idle.pop(), waiting.popleft()
                    found.board.began(name)
                    busy[worker] = name
                    with contextlib.suppress(OSError):  # it has ended, which whoever listens to it finds
                        worker.channel.send((name, config, workers // count))
                for worker in ready(busy):
                    name = busy[worker]
                    if (outcome := _heard(worker, folder / name, partial(found.board.heard, name))) is None:
                        continue
                    del busy[worker]
                    found.note(name, *outcome)
                    if worker.is_alive:
                        idle.append(worker)
                    elif waiting:
                        idle.append(start())
    finally:
        stop(started, grace=2 * GRACE)  # each may have workers of its own to end


def _heard(worker: Worker, folder: Path, tell: Callable[..., None]) -> Outcome | None:
    """What has come of the run that ``worker`` makes in ``folder``; None where it goes on, and ``tell`` knows how."""
    try:
        kind, *content = worker.channel.receive()
    except (EOFError, OSError, ValueError):  # the last two of a channel that is closed here
        how = worker.how_it_ended()
        return None, (RunFailed(f"{folder}: its process ended early ({how}); the same command goes on"), "")
    if kind == "ended":
        report, failure = content
        return report, failure
    tell(*content)
    return None


def _outcome(one: One, config: RunConfig, folder: Path, workers: int) -> Outcome:
    try:
        return one(config, folder, workers=workers), None
    except Exception as error:
        return None, portable(error)


def _serve(channel: Channel, folder: Path, one: One) -> None:
    """What a process does: the runs that it is given, one after the other."""
    with display.told_to(lambda *said: channel.send(("said", *said))):
        while True:
            name, config, workers = channel.receive()
            channel.send(("ended", *_outcome(one, config, folder / name, workers)))
