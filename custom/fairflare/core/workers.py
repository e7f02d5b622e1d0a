# SPDX-License-Identifier: Apache-2.0
"""Worker processes of one command: how many, how they start, and that none of them outlives it.

A fork starts in milliseconds and has everything that the command has imported and built. It copies one thread only: a
lock that another one holds stays locked for ever, OpenMP waits for threads that are not there, and CUDA refuses to
work. So a process is forked where none of this can be, on Linux, before a progress display or TensorBoard has started
its thread, without a GPU, with one torch thread and without TenSEAL, whose objects crash when a fork collects them;
NumPy's OpenBLAS, whose threads start with the import, ends them before a fork by itself. Anywhere else a process is
spawned, which imports everything anew: two to three seconds of CPU time, and on a GPU a CUDA context of its own.

A message between two of these processes is pickled, its tensors in their own layout. The receiver's are copies that
begin on a boundary of 64 bytes, as torch's own do: some kernels round by the alignment.

Both ends belong to one command and one user: what is unpickled here comes from nobody else.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from multiprocessing.connection import wait
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from torch import Tensor

from fairflare.core.processes import GRACE, LOOK
from fairflare.core.signals import ends_by_signal

SIZE = struct.Struct("<Q")


def pack(message: Any) -> bytes:
    """``message`` ready to be sent, as often as one likes."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(message)
    return buffer.getvalue()


class _Pickler(pickle.Pickler):
    """Writes plain tensors of this machine's memory as their bytes; other values as usual."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not Tensor or value.device.type != "cpu" or value.layout != torch.strided:
            return NotImplemented
        if value.is_quantized or value.requires_grad:
            return NotImplemented
        dense = value if value.is_contiguous() else value.clone()  # a layout such as channels-last stays what it is
        flat = dense.as_strided((dense.numel(),), (1,)).view(torch.uint8).numpy()
        return _tensor, (flat, value.dtype, tuple(value.shape), dense.stride())


def _tensor(flat: np.ndarray, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(flat).clone().view(dtype).as_strided(shape, strides)


class Channel:
    """One end of a connection to another process of the same run."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def fileno(self) -> int:
        """For whoever waits for several channels."""
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def shut(self) -> None:
        """Nothing comes any more but what is there already."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def send(self, message: Any) -> None:
        self.send_packed(pack(message))

    def send_packed(self, packed: bytes) -> None:
        """Send what ``pack`` made; waits until the receiver has taken all but what the socket's buffer holds."""
        self._socket.sendall(SIZE.pack(len(packed)))
        self._socket.sendall(packed)

    def receive(self) -> Any:
        """The next message. Raises EOFError: the other end is closed."""
        (size,) = SIZE.unpack(self._read(SIZE.size))
        return pickle.loads(self._read(size))

    def _read(self, count: int) -> bytearray:
        found, start = bytearray(count), 0
        while start < count:
            try:
                more = self._socket.recv_into(memoryview(found)[start:])
            except ConnectionResetError:
                more = 0
            if not more:
                raise EOFError
            start += more
        return found


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


class Worker:
    """A process that runs ``target(channel, *arguments)`` and ends with this one, however that ends."""

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
            siblings: the workers that were started before; a forked process closes its copies of their channels.
        """
        own, its = socket.socketpair()
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
        words = ", as happens when memory runs out" if -code == signal.SIGKILL else ""
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
    """Those that have said something or have ended, as soon as there is one; ``each`` is called every second."""
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
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).prctl(DIE_WITH_PARENT, int(signal.SIGKILL))
    if os.getppid() != parent:  # it has ended already
        os._exit(1)
    if sys.platform != "linux":
        threading.Thread(target=partial(_watch, parent), name="fairflare-parent", daemon=True).start()
    for other in inherited:
        other.close()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt), ends_by_signal():
        target(Channel(end), *arguments)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK)
    os.kill(os.getpid(), signal.SIGKILL)
