# SPDX-License-Identifier: Apache-2.0
"""Messages between two processes of one run, whose tensors lie in memory that both of them map.

A message is one block of memory: the pickled message, then its tensors, each on a boundary of 64 bytes as torch's own.
A small block goes through the socket. A larger one is written once, into memory without a name, and its descriptor goes
through the socket; the receiver's tensors are views of it, and it is gone with the last of them. So nothing is left
behind however the processes end, and a container's small /dev/shm does not limit a model's size.

Both ends belong to one command and one user: what is unpickled here comes from nobody else.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import socket
import struct
import tempfile
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

INLINE = 3000
"""Bytes of a block that goes through the socket: a few of these fit into its buffer, so that sending does not wait."""
ALIGNED = 64
HEADER = struct.Struct("<QQ?")
"""Bytes of the block, bytes of the pickled message in it, whether a descriptor comes with it."""


@dataclass(frozen=True)
class Packed:
    """A message ready to be sent, as often as one likes.

    Attributes:
        header: see ``HEADER``.
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
        """The next message.

        Raises:
            EOFError: the other end is closed.
        """
        size, length, shared = HEADER.unpack(self._read_header())
        if not shared:
            return _unpacked(bytearray(self._read(size)), length)
        try:
            block = mmap.mmap(self._descriptor, size, access=mmap.ACCESS_COPY)  # whoever writes into it has a copy
        finally:
            os.close(self._descriptor)
        return _unpacked(block, length)

    def _read_header(self) -> bytes:
        """The header; a descriptor comes with its first byte and is kept in ``_descriptor``."""
        try:
            start, descriptors, _, _ = socket.recv_fds(self._socket, HEADER.size, 1)
        except ConnectionResetError:
            raise EOFError from None
        if not start:
            raise EOFError
        self._descriptor = descriptors[0] if descriptors else -1
        return start + self._read(HEADER.size - len(start))

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
    if size <= INLINE:
        block, descriptor = bytearray(size), -1
        _fill(block, pickled, start, pickler)
        return Packed(HEADER.pack(size, len(pickled), False), block)
    descriptor = _memory(size)
    shared = mmap.mmap(descriptor, size)
    _fill(shared, pickled, start, pickler)
    return Packed(HEADER.pack(size, len(pickled), True), shared, descriptor)


def _fill(block: mmap.mmap | bytearray, pickled: bytes, start: int, pickler: _Pickler) -> None:
    block[: len(pickled)] = pickled
    for tensor, place in pickler.tensors:
        _view(block, start, place).copy_(tensor)


def _unpacked(block: mmap.mmap | bytearray, length: int) -> Any:
    return _Unpickler(block, length).load()


Place = tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...]]
"""Where a tensor lies behind the message, its type, shape and strides."""


class _Pickler(pickle.Pickler):
    """Leaves the tensors out, and says where each of them is to lie."""

    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self.tensors: list[tuple[Tensor, Place]] = []
        self.size = 0
        self._places: dict[int, Place] = {}

    def persistent_id(self, value: Any) -> Place | None:
        """The place of a plain tensor of this machine's memory; other values are pickled as usual."""
        if type(value) is not Tensor or value.device.type != "cpu" or value.layout != torch.strided:
            return None
        if value.is_quantized or value.requires_grad:
            return None
        if id(value) not in self._places:
            dense = torch.empty_like(value, device="meta").stride()  # a layout such as channels-last stays what it is
            place = (self.size, value.dtype, tuple(value.shape), tuple(dense))
            self._places[id(value)] = place
            self.tensors.append((value, place))
            self.size += _aligned(value.nbytes)
        return self._places[id(value)]


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
