# SPDX-License-Identifier: Apache-2.0
"""Several runs: side by side within a budget of cores, or through joblib on the machines of a Dask cluster.

Each run has a process of its own, wherever it is made: torch's threads, the random generators and the handling of
signals belong to a process. No process pool (loky, concurrent.futures) is used: when one of its processes dies all are
ended, and nobody is told which run it was; it forks none once there are threads, so that every process imports
everything anew; and its processes show nothing of what they do.

A run that fails takes no other with it. A mistake that the user has to put right begins no further run: the others
would most likely meet it too (on a cluster a few may have begun). Whatever ends this process ends all of them, and the
same command goes on.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from joblib import Parallel, delayed

from fairflare.core import plugins, user_code
from fairflare.core.errors import RunFailed, UserError
from fairflare.core.manifest import all_versions, differences
from fairflare.core.processes import GRACE
from fairflare.core.workers import Channel, Worker, portable, ready, start_method, stop, usable_cores
from fairflare.engine.setup.config import RunConfig
from fairflare.studies import display
from fairflare.studies.display import Board, Seconds
from fairflare.studies.labels import set_variables
from fairflare.studies.lockstep import in_lockstep, make_together

EVERYONES = ["jinja2", "matplotlib.figure", "matplotlib.backends.backend_svg"]
EVERYONES += ["tensorboard.compat.proto.event_pb2", "tensorboard.summary.writer.event_file_writer"]
"""What every run imports on its way: once before the processes are forked, two thirds of a CPU second for each."""
OWN_FILES = (plugins.VARIABLE, user_code.VARIABLE)
"""Environment variables that name files which a run's bits depend on."""
FASTER = 3
"""Processes from which runs one by one end sooner than in lockstep, which takes .37 of their CPU time on one core."""
Report = Mapping[str, Any]
One = Callable[..., Report]
"""(configuration, folder, workers=) -> the run's report; can be pickled."""
Failure = tuple[Exception, str]
Outcome = tuple[Report | None, Failure | None]
"""A run's report, or why there is none."""


@dataclass(frozen=True)
class Cluster:
    """Machines that a Dask scheduler knows: each thread of its workers makes one run at a time.

    They see the folders of the runs under the same paths, and have the same versions.

    Attributes:
        scheduler: its address, e.g. "tls://10.0.0.5:8786". Who answers there is trusted: results are unpickled.
    """

    scheduler: str

    @contextlib.contextmanager
    def connected(self) -> Iterator[Any]:
        """A client of the scheduler; when it is closed, what it has asked for is cancelled. Raises UserError."""
        try:
            import distributed
        except ImportError:
            needs = "needs Dask, which is not installed: pip install 'fairflare[dask]'"
            raise UserError(f"--backend dask: {needs}") from None
        try:
            client = distributed.Client(self.scheduler, set_as_default=False)
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            raise UserError(f"--scheduler {self.scheduler}: cannot be reached ({error})") from None
        with client:
            yield client

    def slots(self) -> int:
        """How many runs it makes side by side; raises UserError where there is no worker."""
        with self.connected() as client:
            found = sum(client.ncores().values())
        if not found:
            raise UserError(f"--scheduler {self.scheduler}: has no worker; `dask worker {self.scheduler}` starts one")
        return int(found)


Workers = int | Cluster
"""How many processes compute side by side on this machine, or the cluster that runs are spread over."""


def budget(wanted: Workers | None, env: str, configs: Mapping[str, RunConfig]) -> Workers:
    """How many processes compute side by side for several runs, or the cluster that is ``wanted``.

    None: as many as there are cores, and one where a GPU would be shared or in the simulator ("sim"), whose runs have
    processes of their own and take turns.
    """
    if isinstance(wanted, Cluster):
        if env != "local":
            raise UserError(f"--backend dask: expected --env local, got --env {env}")
        wanted.slots()
        return wanted
    if env != "local":
        if (wanted or 1) > 1:
            raise UserError(f"--workers: expected --env local, got --env {env}")
        return 1
    if wanted is None:
        threads = max((config.threads for config in configs.values()), default=1)
        return 1 if torch.cuda.device_count() else max(1, usable_cores() // threads)
    return wanted


def side_by_side(workers: Workers) -> int:
    return workers.slots() if isinstance(workers, Cluster) else workers


def run_all(
    runs: Mapping[str, RunConfig],
    folder: Path,
    one: One,
    workers: Workers,
    seconds: Seconds | None = None,
    lockstep: bool = False,
) -> tuple[dict[str, Report], dict[str, Failure]]:
    """What came of the runs: the reports of those that ended well, and why others have none.

    The names of ``runs`` are of folders below ``folder``, and may lead through one that is there. ``workers`` are as
    ``budget`` gives them. ``lockstep``: runs of small models are trained together, see ``studies.lockstep``.
    """
    found = _Outcomes(Board(runs, seconds))
    if isinstance(workers, Cluster):
        _on_cluster(runs, folder.resolve(), one, workers, found)
        return found.reports, found.failures
    together = in_lockstep(runs, folder) if lockstep and workers < FASTER else {}
    others = {name: config for name, config in runs.items() if name not in together}
    if others and workers > 1:
        _in_processes(others, folder, one, workers, found)
    elif others:
        _here(others, folder, one, found)
    if together and not found.mistaken:
        with found.board:
            make_together(together, partial(_noted, found, folder, one))
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


def _here(runs: Mapping[str, RunConfig], folder: Path, one: One, found: _Outcomes) -> None:
    """In this process, one after the other."""
    with found.board:
        for name, config in runs.items():
            _noted(found, folder, one, name, config)


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
                    _ask(worker, name, config, workers // count)
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


def _on_cluster(runs: Mapping[str, RunConfig], folder: Path, one: One, cluster: Cluster, found: _Outcomes) -> None:
    """On the machines of a cluster; the runs of a worker that is lost are made again by another."""
    from joblib._dask import DaskDistributedBackend  # which joblib.parallel names by "dask" alone

    class Backend(DaskDistributedBackend):
        """joblib's, which is not told of a task that Dask has given up, and would wait for it for ever."""

        def submit(self, func: Any, callback: Any = None) -> Any:
            future = super().submit(func, callback)
            future.add_done_callback(lambda done: callback(done.exception()) if done.exception() else None)
            return future

    topic, own = f"fairflare-{uuid4().hex}", dict[str, str]()
    for name in OWN_FILES:
        paths = filter(None, os.environ.get(name, "").split(os.pathsep))
        own[name] = os.pathsep.join(str(Path(path).resolve()) for path in paths)
    far = partial(_far, folder=folder, one=one, here=all_versions(), environment=own, topic=topic)
    with cluster.connected() as client, found.board:
        client.subscribe_topic(topic, lambda event: found.board.heard(*event[1]))
        # Without arguments: joblib keeps large ones at one worker, with which they are lost.
        tasks = (delayed(partial(far, *run))() for run in runs.items() if not found.mistaken)
        how = {"batch_size": 1, "pre_dispatch": "n_jobs", "return_as": "generator_unordered"}
        many = Parallel(backend=Backend(client=client), **how)
        try:
            for name, report, failure in many(tasks):
                found.note(name, report, failure)
        except Exception as error:  # Dask's own
            text = " ".join(str(error).split())[:300]
            raise RunFailed(f"--scheduler {cluster.scheduler}: {text}; the same command goes on") from error


Texts = Mapping[str, str]


def _far(
    name: str, config: RunConfig, *, folder: Path, one: One, here: Texts, environment: Texts, topic: str
) -> tuple[str, Report | None, Failure | None]:
    """A run by a worker of a cluster, in a process of its own.

    ``here`` are ``all_versions`` where the study was begun, ``environment`` the variables of ``OWN_FILES`` there, and
    events of the ``topic`` say what the run does.
    """
    from distributed import get_worker

    own, others = differences(here, all_versions())
    if own or others:
        words = f"another {', '.join(own + others)} than where the study was begun; results would not be the same bits"
        return name, None, (UserError(f"--backend dask: {socket.gethostname()} has {words}"), "")
    dask, key = get_worker(), get_worker().get_current_task()

    def tell(*said: Any) -> None:
        dask.log_event(topic, [name, *said])

    def still_wanted() -> None:
        task = dask.state.tasks.get(key)
        if task is None or task.state == "cancelled":
            raise RunFailed(f"{name}: nobody waits for it any more")

    # A worker under Dask's nanny is a daemon, and multiprocessing lets no daemon have children: they might outlive it.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # ours ends with it
    tell("began")
    worker = Worker(_serve, folder, one, environment, method="spawn", name="fairflare-run")
    try:
        _ask(worker, name, config, 1)
        while True:
            ready([worker], still_wanted)
            if outcome := _heard(worker, folder / name, tell):
                return name, *outcome
    finally:
        stop([worker])


def _ask(worker: Worker, name: str, config: RunConfig, share: int) -> None:
    with contextlib.suppress(OSError):  # it has ended, which whoever listens to it finds
        worker.channel.send((name, config, share))


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


def _serve(channel: Channel, folder: Path, one: One, environment: Mapping[str, str] | None = None) -> None:
    """What a process does: the runs that it is given, one after the other."""
    set_variables({key: text or None for key, text in (environment or {}).items()})
    with display.told_to(lambda *said: channel.send(("said", *said))):
        while True:
            name, config, workers = channel.receive()
            channel.send(("ended", *_outcome(one, config, folder / name, workers)))
