# SPDX-License-Identifier: Apache-2.0
"""One writer per folder: a lock of the operating system's, which ends with its process however that ends."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import psutil

from fairflare.core.errors import UserError

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]  # absent on this system
try:
    import msvcrt
except ImportError:  # not Windows
    msvcrt = None  # type: ignore[assignment]  # absent on this system

LOCK = ".fairflare.lock"
"""The lock of the command that works in a folder. A file of this name that nobody holds says nothing."""
SERVER_LOCK = ".server.lock"
"""The lock of the server's process in a federation's folder, which in the simulator is the command's as well."""
OPENED = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Not through a link, which could stand for a file that is not ours; not waiting for the other end of a pipe."""
POLL = 0.2
ENDING = 3.0
"""Seconds that a killed command's worker processes, which inherit its locks, may take to end."""


class Busy(UserError):
    """Somebody else holds the lock."""


@contextlib.contextmanager
def locked(folder: Path, name: str = LOCK, *, wait: float = 0.0) -> Iterator[None]:
    """Within: no other process holds the lock ``name`` of ``folder``, which exists. The file goes with the lock.

    Raises:
        Busy: another holds it, after ``wait`` seconds still.
        UserError: no lock can be put there.
    """
    path, begun = folder / name, time.monotonic()
    while (file := _try(path)) is None:
        if time.monotonic() - begun > (max(wait, ENDING) if _holder_is_gone(path) else wait):
            who = "" if (number := _holder_number(path)) is None else f" (process {number})"
            raise Busy(f"{folder}: another command is at work there{who}; wait until it has ended")
        time.sleep(POLL)
    try:
        yield
    finally:
        # While it is still held, so that it is nobody else's; Windows keeps the file until it is closed.
        with contextlib.suppress(OSError):
            path.unlink()
        file.close()
        if os.name == "nt":
            with contextlib.suppress(OSError):
                path.unlink()


def at_work(folder: Path, names: Sequence[str] = (LOCK, SERVER_LOCK)) -> str:
    """Who holds a lock of ``folder`` now, as "process 4711"; empty: nobody, as after a kill. It changes nothing."""
    for name in names:
        path = folder / name
        try:
            descriptor = os.open(path, os.O_RDONLY | OPENED)
        except (OSError, ValueError):
            continue
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                _lock(descriptor, shared=True)
        except (BlockingIOError, PermissionError):
            number = _holder_number(path)
            return "another command" if number is None else f"process {number}"
        finally:
            os.close(descriptor)  # and with it the lock, if it was free
    return ""


def _try(path: Path) -> BinaryIO | None:
    """The locked file, or None while somebody else has it."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | OPENED, 0o644)  # which child processes do not inherit
        except OSError as error:
            raise UserError(f"{path.parent}: cannot be locked ({error.strerror})") from None
        try:
            _refuse_other_file(path, descriptor)
            file = os.fdopen(descriptor, "r+b", buffering=0)
        except BaseException:
            os.close(descriptor)
            raise
        try:
            _lock(descriptor)
        except (BlockingIOError, PermissionError):
            file.close()
            return None
        if _same(path, descriptor):
            try:
                _refuse_other_file(path, descriptor)  # it may have got a second name since
            except UserError:
                file.close()
                raise
            file.truncate()
            file.write(b" %d" % os.getpid())
            return file
        file.close()  # its holder before has removed it: the next attempt makes a new one


def _refuse_other_file(path: Path, descriptor: int) -> None:
    """Raise UserError unless this is a regular file of one name, so that writing to it changes no other file."""
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode):
        raise UserError(f"{path.parent}: cannot be locked: {path.name} is not a regular file")
    if about.st_nlink > 1:  # 0: its holder has just removed it
        raise UserError(f"{path.parent}: cannot be locked: {path.name} is a hard link to another file")


def _lock(descriptor: int, *, shared: bool = False) -> None:
    """Raises BlockingIOError (Windows: PermissionError) while another holds it. Some network disks have no locks.

    ``shared``: beside others who only look whether it is held.
    """
    if fcntl is not None:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            return
    elif msvcrt is not None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # the first byte: the pid behind it can be read


def _same(path: Path, descriptor: int) -> bool:
    """Whether the file that was locked is still the one in the folder: its holder before may have removed it."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _holder_is_gone(path: Path) -> bool:
    """Whether the process that took the lock has ended, so that only processes of its own can still hold it."""
    number = _holder_number(path)
    if number is None:
        return False
    try:
        return psutil.Process(number).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
    except (psutil.Error, ValueError, OverflowError):
        return False


def _holder_number(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
        file.seek(1)
        return int(file.read(20))
    return None
