# SPDX-License-Identifier: Apache-2.0
"""Files of tensors in a folder of bounded size, as safetensors, never a pickle.

The header holds the key, and the SHA-256 of the tensors with their names, kinds and shapes. A file that is not whole,
another user's or of another key is not read, whatever lies there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from fairflare.core.errors import UserError
from fairflare.core.tensor_files import NAMES, read_with_header, write

LARGEST = 5 * 10**9
"""Bytes of all files together; those that were used longest ago go first."""
ABANDONED = 3600.0
"""Seconds after which a temporary file's or a lock's process has gone."""
LONGEST_WAIT = 600.0
"""Seconds that a process waits for another one's rendering before it renders itself."""
SUFFIX, TEMPORARY, LOCK = ".rendered", ".tmp", ".lock"
KEPT = re.compile(rf"[\w.-]+-[0-9a-f]{{40}}{re.escape(SUFFIX)}")
PASSING = re.compile(rf"\.[\w.-]+-[0-9a-f]{{40}}(\.[a-z0-9_]{{8}}{re.escape(TEMPORARY)}|{re.escape(LOCK)})")
"""The names that this module gives: the user may keep other files in the folder, and they stay."""


def read(path: Path, key: str) -> dict[str, Tensor] | None:
    """The content of ``path``; None unless it is there, whole, this user's and of ``key``."""
    with contextlib.suppress(OSError, UserError):
        about = path.lstat()
        own = about.st_uid == getattr(os, "geteuid", lambda: about.st_uid)()
        if own and stat.S_ISREG(about.st_mode) and about.st_size <= LARGEST:
            tensors, head = read_with_header(path)
            if head.get("key") == key and _is_tensors(tensors) and head.get("sha256") == _digest(tensors):
                with contextlib.suppress(OSError):
                    os.utime(path)  # used now
                return tensors
    return None


def _is_tensors(content: object) -> bool:
    return isinstance(content, dict) and all(isinstance(value, Tensor) for value in content.values())


def _digest(tensors: Mapping[str, Tensor]) -> str:
    about = [[name, str(value.dtype), list(value.shape)] for name, value in tensors.items()]
    found = hashlib.sha256(json.dumps(about).encode())
    for value in tensors.values():
        found.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def keep(path: Path, key: str, tensors: dict[str, Tensor]) -> None:
    """Write ``path`` whole or not at all, and make room; nothing is kept that is too large or of another kind.

    Raises:
        OSError: it cannot be written.
    """
    kinds = {value.dtype for value in tensors.values()}
    if sum(value.nbytes for value in tensors.values()) > LARGEST // 2 or not kinds <= set(NAMES):
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=TEMPORARY, dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            write(file, tensors, key=key, sha256=_digest(tensors))
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
    lock = FileLock(path.with_name(f".{path.stem}{LOCK}"), timeout=LONGEST_WAIT)
    try:
        with contextlib.suppress(OSError, NotImplementedError, Timeout):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock.acquire()
        yield
    finally:
        if lock.is_locked:
            with contextlib.suppress(OSError):
                os.unlink(lock.lock_file)  # while it is held, so that it is nobody else's
            lock.release()


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
