# SPDX-License-Identifier: Apache-2.0
"""Worker processes of one command: how many, how they start, and that none of them outlives it.

A fork starts in milliseconds and has everything that the command has imported and built. It copies one thread only: a
lock that another one holds stays locked for ever, OpenMP waits for threads that are not there, and CUDA refuses to
work. So a process is forked where none of this can be, on Linux, before a progress display or TensorBoard has started
its thread, without a GPU, with one torch thread and without TenSEAL, whose objects crash when a fork collects them;
NumPy's OpenBLAS, whose threads start with the import, ends them before a fork by itself. Anywhere else a process is
spawned, which imports everything anew: two to three seconds of CPU time, and on a GPU a CUDA context of its own.

A message between two of these processes is one block of memory that both map: the pickled message, then its tensors,
each on a boundary of 64 bytes as torch's own. A small block goes through the socket. A larger one is written once, into
memory without a name, and its descriptor goes through the socket; the receiver's tensors are views of it, and it is
gone with the last of them. So nothing is left behind however the processes end, and a container's small /dev/shm does
not limit a model's size.

Both ends belong to one command and one user: what is unpickled here comes from nobody else.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import mmap
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor

from fairflare.core.processes import GRACE, LOOK
from fairflare.core.signals import ends_by_signal

INLINE = 3000
"""Bytes of a block that goes through the socket: a few of these fit into its buffer, so that sending does not wait."""
ALIGNED = 64
HEADER = struct.Struct("<QQ?")
"""Bytes of the block, bytes of the pickled message in it, whether a descriptor comes with it."""


@dataclass(frozen=True)
class Packed:
    """A message ready to be sent, as often as one likes.

    Attributes:
        block: the message and its tensors; a map that other processes can share, or bytes for the socket.
        descriptor: of the shared memory, -1 without; closed with this object.
    """

    header: bytes
    block: mmap.mmap | bytearray
    descriptor: int = -1

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


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

    def send_packed(self, packed: Packed) -> None:
        """Send what ``pack`` made; the receiver gets memory of its own to map, which costs no copy."""
        if packed.descriptor >= 0:
            socket.send_fds(self._socket, [packed.header], [packed.descriptor])
        else:
            self._socket.sendall(packed.header + bytes(packed.block))

    def receive(self) -> Any:
        """The next message. Raises EOFError: the other end is closed."""
        try:  # a descriptor comes with the header's first byte
            start, descriptors, _, _ = socket.recv_fds(self._socket, HEADER.size, 1)
        except ConnectionResetError:
            raise EOFError from None
        size, length, shared = HEADER.unpack(start + self._read(HEADER.size - len(start)))
        if not shared:
            return _Unpickler(bytearray(self._read(size)), length).load()
        try:
            block = mmap.mmap(descriptors[0], size, access=mmap.ACCESS_COPY)  # whoever writes into it has a copy
        finally:
            os.close(descriptors[0])
        return _Unpickler(block, length).load()

    def _read(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            more = self._socket.recv(count - len(found))
            if not more:
                raise EOFError
            found += more
        return found


def connected() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection, for two channels."""
    return socket.socketpair()


def pack(message: Any) -> Packed:
    """``message`` as one block; its tensors are copied once."""
    buffer = io.BytesIO()
    pickler = _Pickler(buffer, pickle.HIGHEST_PROTOCOL)
    pickler.dump(message)
    pickled = buffer.getvalue()
    start = _aligned(len(pickled))
    size = start + pickler.size
    descriptor = _memory(size) if size > INLINE else -1
    block = mmap.mmap(descriptor, size) if size > INLINE else bytearray(size)
    block[: len(pickled)] = pickled
    for tensor, place in pickler.places.values():
        _view(block, start, place).copy_(tensor)
    return Packed(HEADER.pack(size, len(pickled), size > INLINE), block, descriptor)


Place = tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...]]
"""Where a tensor lies behind the message, its type, shape and strides."""


class _Pickler(pickle.Pickler):
    """Leaves the tensors out, and says where each of them is to lie."""

    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self.places: dict[int, tuple[Tensor, Place]] = {}
        self.size = 0

    def persistent_id(self, value: Any) -> Place | None:
        """The place of a plain tensor of this machine's memory; other values are pickled as usual."""
        if type(value) is not Tensor or value.device.type != "cpu" or value.layout != torch.strided:
            return None
        if value.is_quantized or value.requires_grad:
            return None
        if id(value) not in self.places:
            dense = torch.empty_like(value, device="meta").stride()  # a layout such as channels-last stays what it is
            self.places[id(value)] = value, (self.size, value.dtype, tuple(value.shape), tuple(dense))
            self.size += _aligned(value.nbytes)
        return self.places[id(value)][1]


class _Unpickler(pickle.Unpickler):
    def __init__(self, block: mmap.mmap | bytearray, length: int) -> None:
        super().__init__(io.BytesIO(block[:length]))
        self._block, self._start = block, _aligned(length)

    def persistent_load(self, place: Place) -> Tensor:
        """The tensor at ``place``: a view of shared memory, a copy of what came through the socket."""
        found = _view(self._block, self._start, place)
        return found.clone() if isinstance(self._block, bytearray) else found


def _view(block: mmap.mmap | bytearray, start: int, place: Place) -> Tensor:
    offset, dtype, shape, strides = place
    count = torch.Size(shape).numel()
    if not count:
        return torch.empty_strided(shape, strides, dtype=dtype)
    return torch.frombuffer(block, dtype=dtype, count=count, offset=start + offset).as_strided(shape, strides)


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def _memory(size: int) -> int:
    """Descriptor of so many bytes of memory that has no name; where a system lacks that, of a file without one."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("fairflare")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


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
    os.kill(os.getpid(), signal.SIGKILL)
