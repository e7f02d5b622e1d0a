# SPDX-License-Identifier: Apache-2.0
"""Worker processes of one command: how many, how they start, and that none of them outlives it.

A fork starts in milliseconds and has everything that the command has imported and built. It copies one thread only: a
lock that another one holds stays locked for ever, OpenMP waits for threads that are not there, and CUDA refuses to
work. So a process is forked where none of this can be, on Linux, before a progress display or TensorBoard has started
its thread, without a GPU, with one torch thread and without TenSEAL, whose objects crash when a fork collects them;
NumPy's OpenBLAS, whose threads start with the import, ends them before a fork by itself. Anywhere else a process is
spawned, which imports everything anew: two to three seconds of CPU time, and on a GPU a CUDA context of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from multiprocessing.connection import wait
from typing import Any, Literal, NoReturn

import torch

from fairflare.core.channel import Channel, connected
from fairflare.core.errors import UserError
from fairflare.core.processes import GRACE, LOOK, ends_by_signal

StartMethod = Literal["fork", "spawn"]
DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of Linux's prctl."""


def usable_cores() -> int:
    """The cores that this process may use: fewer than the machine's under an affinity mask or in a container."""
    from joblib import cpu_count

    return int(cpu_count())


def start_method(threads: int = 1) -> StartMethod:
    """How a worker with so many torch threads can be started from here and now, see above."""
    alone = threading.current_thread() is threading.main_thread() and threading.active_count() == 1
    forks = sys.platform == "linux" and alone and threads == 1 and "tenseal" not in sys.modules
    return "fork" if forks and torch.cuda.device_count() == 0 else "spawn"


def check_possible() -> None:
    """Raise UserError where this system lacks what workers need."""
    if not hasattr(socket, "send_fds"):
        why = "which cannot share memory between processes this way"
        raise UserError(f"--workers: expected 1 on {sys.platform}, {why}")


class Worker:
    """A process that runs ``target(channel, *arguments)`` and ends with this one, however that ends.

    Attributes:
        channel: to the process.
    """

    def __init__(
        self,
        target: Callable[..., None],
        *arguments: Any,
        method: StartMethod,
        siblings: Sequence[Worker] = (),
        name: str = "fairflare-worker",
    ) -> None:
        """
        Args:
            target: called with the process's own channel and ``arguments``; "spawn" pickles them all.
            arguments: see ``target``.
            method: see ``start_method``.
            siblings: the workers that were started before; a forked process closes its copies of their channels.
            name: of the process, for people.
        """
        own, its = connected()
        self._end: socket.socket = own
        inherited = [own, *(sibling._end for sibling in siblings)] if method == "fork" else []
        self.channel = Channel(own)
        with its:
            context: Any = multiprocessing.get_context(method)
            about = (os.getpid(), its, inherited, target, arguments)
            self._process = context.Process(target=_run, args=about, name=name)
            self._process.start()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    @property
    def is_alive(self) -> bool:
        return bool(self._process.is_alive())

    def how_it_ended(self) -> str:
        self._process.join(GRACE)
        code = self._process.exitcode
        if code is None or code >= 0:
            return f"exit code {code}"
        words = ", as happens when memory runs out" if -code == getattr(signal, "SIGKILL", 0) else ""
        return f"{signal.Signals(-code).name}{words}"


def stop(workers: Iterable[Worker], grace: float = GRACE) -> None:
    """End workers by closing their channels and SIGTERM; those that are there after ``grace`` seconds are killed."""
    family, deadline = list(workers), time.monotonic() + grace
    for worker in family:
        worker.channel.close()
        worker._process.terminate()
    for worker in family:
        worker._process.join(max(0.0, deadline - time.monotonic()))
        if worker.is_alive:
            worker._process.kill()
        worker._process.join()


def ready(workers: Iterable[Worker], each: Callable[[], None] = lambda: None) -> list[Worker]:
    """Those that have said something or have ended, as soon as there is one.

    Args:
        workers: that are waited for.
        each: is called every second until then; what it raises ends the waiting.
    """
    of = {worker.channel.fileno(): worker for worker in workers}
    while True:
        if found := [of[int(number)] for number in wait(list(of), timeout=1.0)]:  # type: ignore[arg-type]  # as we gave
            return found
        # The end of a process shows on its channel, unless a process of its own has kept that open.
        if found := [worker for worker in of.values() if not worker.is_alive]:
            for worker in found:
                worker.channel.shut()
            return found
        each()


class ElsewhereError(Exception):
    """Why another exception was raised in a worker: its text is the traceback there."""


def portable(error: Exception) -> tuple[Exception, str]:
    """``error`` as it can be sent to another process, of its own type where possible, and its traceback."""
    text = "".join(traceback.format_exception(error))
    with contextlib.suppress(Exception):  # whatever an exception does when it is pickled
        copy = pickle.loads(pickle.dumps(error))
        if type(copy) is type(error):
            return copy, text
    return RuntimeError(f"{type(error).__name__}: {error}"), text


def raise_here(error: Exception, text: str) -> NoReturn:
    """Raise what ``portable`` made in another process."""
    raise error from ElsewhereError(text)


def _run(
    parent: int, end: socket.socket, inherited: Sequence[socket.socket], target: Callable[..., None], arguments: Any
) -> None:
    """What the process does: ``target``, until that returns, the command is gone or a signal comes."""
    gc.freeze()  # what a fork has inherited is its parent's: collecting it would copy it page by page, or destroy it
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the command says when its workers end
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    _end_with(parent)
    for other in inherited:
        other.close()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt), ends_by_signal():
        target(Channel(end), *arguments)


def _end_with(parent: int) -> None:
    """Have this process killed as soon as ``parent``, which started it, has ended."""
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).prctl(DIE_WITH_PARENT, int(signal.SIGKILL))
    if os.getppid() != parent:  # it has ended already
        os._exit(1)
    if sys.platform != "linux":
        threading.Thread(target=partial(_watch, parent), name="fairflare-parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK)
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
