# SPDX-License-Identifier: Apache-2.0
"""Files of tensors in a folder of bounded size: a line of JSON, then bytes, never a pickle.

The line holds the key, the tensors' names, kinds and shapes, and the SHA-256 of these and of the bytes. A file that is
not whole, another user's or of another key is not read, whatever lies there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

try:
    import fcntl
except ImportError:  # not a POSIX system: processes that want the same at once all render it
    fcntl = None  # type: ignore[assignment]  # absent on this system

LARGEST = 5 * 10**9
"""Bytes of all files together; those that were used longest ago go first."""
ABANDONED = 3600.0
"""Seconds after which a temporary file's or a lock's process has gone."""
LONGEST_WAIT = 600.0
"""Seconds that a process waits for another one's rendering before it renders itself."""
POLL = 0.05
LONGEST_HEAD = 1 << 20
"""Bytes of a file's first line."""
KINDS = {str(kind).removeprefix("torch."): kind for kind in (torch.uint8, torch.int64, torch.float32)}
SUFFIX, TEMPORARY, LOCK = ".rendered", ".tmp", ".lock"
KEPT = re.compile(rf"[\w.-]+-[0-9a-f]{{40}}{re.escape(SUFFIX)}")
PASSING = re.compile(rf"\.[\w.-]+-[0-9a-f]{{40}}(\.[a-z0-9_]{{8}}{re.escape(TEMPORARY)}|{re.escape(LOCK)})")
"""The names that this module gives: the user may keep other files in the folder, and they stay."""


def read(path: Path, key: str) -> dict[str, Tensor] | None:
    """The content of ``path``; None unless it is there, whole, this user's and of ``key``."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, MemoryError, RecursionError):
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        with open(descriptor, "rb") as file:
            about = os.fstat(descriptor)
            own = about.st_uid == getattr(os, "geteuid", lambda: about.st_uid)()
            if own and stat.S_ISREG(about.st_mode) and about.st_size <= LARGEST:
                tensors = _tensors(file, about.st_size, key)
                with contextlib.suppress(OSError):
                    os.utime(path)  # used now
                return tensors
    return None


def _tensors(file: BinaryIO, size: int, key: str) -> dict[str, Tensor]:
    """What is in ``file`` of ``size`` bytes; raises ValueError, TypeError or KeyError unless it is of ``key``."""
    line = file.readline(LONGEST_HEAD)
    head, rest = json.loads(line), size - len(line)
    if not line.endswith(b"\n") or head["key"] != key:
        raise ValueError("another key, or not whole")
    digest, tensors = _digest(head["tensors"]), {}
    for name, kind, shape in head["tensors"]:
        tensors[str(name)], data = _tensor(file, rest, KINDS[kind], shape)
        rest -= len(data)
        digest.update(data)
    if rest or digest.hexdigest() != head["sha256"]:
        raise ValueError("not what was written")
    return tensors


def _tensor(file: BinaryIO, most: int, kind: torch.dtype, shape: list[int]) -> tuple[Tensor, bytearray]:
    """The next tensor, which has at most ``most`` bytes, and these bytes."""
    if not all(type(n) is int and n >= 0 for n in shape) or math.prod(shape) * kind.itemsize > most:
        raise ValueError("no shape")
    data = bytearray(math.prod(shape) * kind.itemsize)
    if file.readinto(data) != len(data):  # type: ignore[attr-defined]  # a file has it
        raise ValueError("not whole")
    return (torch.frombuffer(data, dtype=kind) if data else torch.empty(0, dtype=kind)).reshape(shape), data


def _digest(tensors: list[list[Any]]) -> Any:
    return hashlib.sha256(json.dumps(tensors).encode())


def keep(path: Path, key: str, tensors: dict[str, Tensor]) -> None:
    """Write ``path`` whole or not at all, and make room; nothing is kept that is too large or of another kind.

    Raises:
        OSError: it cannot be written.
    """
    about = [[name, str(value.dtype).removeprefix("torch."), list(value.shape)] for name, value in tensors.items()]
    if sum(value.nbytes for value in tensors.values()) > LARGEST // 2 or any(kind not in KINDS for _, kind, _ in about):
        return
    arrays = [value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy() for value in tensors.values()]
    digest = _digest(about)
    for array in arrays:
        digest.update(array)
    head = json.dumps({"key": key, "sha256": digest.hexdigest(), "tensors": about}, sort_keys=True)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=TEMPORARY, dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(head.encode() + b"\n")
            for array in arrays:
                file.write(array.data)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _make_room(path)


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Within: no other process renders what ``path`` is to hold, or it is not known how to find out.

    The lock is the operating system's and ends with its process; its file goes with it.
    """
    lock, until, file = path.with_name(f".{path.stem}{LOCK}"), time.monotonic() + LONGEST_WAIT, None
    try:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            while fcntl and (file := _locked(lock)) is None and time.monotonic() < until:
                time.sleep(POLL)
        yield
    finally:
        if file is not None:
            with contextlib.suppress(OSError):
                lock.unlink()  # while it is held, so that it is nobody else's
            os.close(file)


def _locked(lock: Path) -> int | None:
    """A descriptor of the locked file; None where another process holds it.

    Raises:
        OSError: there can be no such file, or no locks.
    """
    file = os.open(lock, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file), os.lstat(lock)):  # not one that its holder has removed since
            return file
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(file)
        raise
    os.close(file)
    return None


def _make_room(newest: Path) -> None:
    """Remove what was used longest ago until all files fit, and what killed processes left."""
    sizes = {}
    for path in newest.parent.iterdir():
        with contextlib.suppress(OSError):  # another process was faster
            about = path.lstat()
            if not stat.S_ISREG(about.st_mode):
                continue
            if PASSING.fullmatch(path.name) and time.time() - about.st_mtime > ABANDONED:
                path.unlink()
            elif KEPT.fullmatch(path.name):
                sizes[path] = about
    total = sum(about.st_size for about in sizes.values())
    for path in sorted(sizes, key=lambda path: sizes[path].st_mtime_ns):
        if total <= LARGEST:
            return
        if path != newest:
            with contextlib.suppress(OSError):
                path.unlink()
                total -= sizes[path].st_size
