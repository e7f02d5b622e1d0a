# SPDX-License-Identifier: Apache-2.0
"""Rendered data on disk, so that a comparison renders once: a file per site and one of the shared test sets.

A file is named by all that its content depends on: task, options, site, the source of all code that renders, the
versions of what that code uses and how this processor computes. What does not fit is rendered again, and what cannot be
written is not kept. Of processes that want the same at once one renders and the others wait.

Only what is drawn is kept, and only by the package's own tasks. Files of a data set, whosever they are, are read where
they lie.

They are safetensors, never a pickle, in a folder of bounded size. The header holds the key, and the SHA-256 of the
tensors with their names, kinds and shapes. A file that is not whole, another user's or of another key is not read,
whatever lies there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import platform
import re
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from fairflare.core import seeds, tensor_files
from fairflare.core.errors import UserError
from fairflare.core.findings import SPLIT_NAMES
from fairflare.core.imports import module_files, reached
from fairflare.core.plugins import top_packages
from fairflare.data.tensors import Split

CACHE = "FAIRFLARE_CACHE"
"""Environment variable: the folder, or "off". Unset: ``fairflare`` in XDG_CACHE_HOME, which is ~/.cache by default."""
OFF = "off"
FORMAT = 2
NOT_RENDERED = ("model", "norm", "augment", "pretrained_weights")
"""Options that choose what happens to images after they are rendered."""
LIBRARIES = (
    "numpy", "scipy", "torch", "monai", "pillow", "nilearn", "nibabel", "scikit-learn", "scikit-image", "mlxtend",
    "matplotlib",
)  # fmt: skip
"""Packages that draw, or whose files are drawn on."""
ROOM = "fairflare.datasets."
"""Where all code that renders lies, but for the seeds and what the tasks derive from."""


def rendered(task: Any, part: str, render: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """What ``render()`` returns, from disk if it is there, bit for bit."""
    where = folder()
    if where is None or not _is_ours(type(task)):
        return render()
    key = _key(task, part)
    path = where / f"{task.name}-{part}-{hashlib.sha256(key.encode()).hexdigest()[:40]}{SUFFIX}"
    if (kept := read(path, key)) is not None:
        return kept
    with alone(path):
        if (kept := read(path, key)) is not None:  # another process was at it
            return kept
        found = render()
        with contextlib.suppress(OSError):
            keep(path, key, found)
    return found


def kept_splits(task: Any, site: str, render: Callable[[str], Split]) -> dict[str, Split]:
    """The splits of a site of a simulated task, which ``render`` returns by name; see ``rendered``."""

    def render_all() -> dict[str, Tensor]:
        splits = {name: render(name) for name in SPLIT_NAMES}
        inputs = {f"{name} inputs": split.inputs for name, split in splits.items()}
        return inputs | {f"{name} targets": split.targets for name, split in splits.items()}

    found = rendered(task, site, render_all)
    return {name: Split(found[f"{name} inputs"], found[f"{name} targets"]) for name in SPLIT_NAMES}


def folder() -> Path | None:
    """Where rendered data are kept; None: nowhere."""
    named = os.environ.get(CACHE, "")
    if named.lower() == OFF:
        return None
    with contextlib.suppress(RuntimeError):  # there is no home
        if named:
            return Path(os.path.abspath(Path(named).expanduser()))
        home = os.environ.get("XDG_CACHE_HOME", "")
        return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "fairflare"
    return None


def _is_ours(task: type) -> bool:
    """Whether all code of the class is the package's or an installed task package's, so that its source tells all."""
    tops = {"fairflare", "abc", "builtins", *top_packages()}
    return all(cls.__module__.partition(".")[0] in tops for cls in task.__mro__)


def _key(task: Any, part: str) -> str:
    options = {key: value for key, value in dataclasses.asdict(task).items() if key not in NOT_RENDERED}
    content = {
        "format": FORMAT,
        "task": task.name,
        "part": part,
        "options": options,
        "code": _code(type(task)),  # type: ignore[arg-type]  # a class is hashable, whatever its objects are
        "versions": _versions(),
        "machine": platform.machine(),
        "arithmetic": _arithmetic(),
    }
    return json.dumps(content, sort_keys=True)


@functools.cache
def _code(task: type) -> str:
    """SHA-256 of the source of what renders: the task's classes, all that they import of the room, and the seeds.

    A job carries just these files of the room, so that FLARE's processes name the same content alike.
    """
    package = Path(seeds.__file__).parents[1]
    modules = {name: path for name, path in module_files(package).items() if name.startswith(ROOM)}
    tops = {package.name, task.__module__.partition(".")[0]}
    named = [cls.__module__ for cls in task.__mro__ if cls.__module__.partition(".")[0] in tops]
    for top in tops - {package.name}:  # a distribution of its own
        if folder := getattr(sys.modules[top], "__path__", None):
            modules |= module_files(Path(next(iter(folder))))
    files = {seeds.__name__: Path(seeds.__file__), **{name: Path(str(sys.modules[name].__file__)) for name in named}}
    files |= {name: modules[name] for name in reached((*named, __name__), modules)}
    digest = hashlib.sha256()
    for name in sorted(files):
        content = files[name].read_bytes()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


@functools.cache
def _versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


@functools.cache
def _arithmetic() -> str:
    """What this processor makes of some functions: NumPy has several forms of each, of which some round otherwise."""
    found = hashlib.sha256()
    for kind in (np.float32, np.float64):
        x = np.random.default_rng(7).standard_normal(4099).astype(kind)
        for values in (np.sin(x), np.cos(x), np.exp(x), np.log(abs(x)), np.sqrt(abs(x)), np.tanh(x), abs(x) ** 1.7):
            found.update(values.tobytes())
        found.update(np.einsum("i,i->", x, x).tobytes() + x.sum().tobytes() + np.hypot(x, 1).tobytes())
    return found.hexdigest()[:16]


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
            tensors, head = tensor_files.read_with_header(path)
            if head.get("key") == key and head.get("sha256") == _digest(tensors):
                with contextlib.suppress(OSError):
                    os.utime(path)  # used now
                return tensors
    return None


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
    if sum(value.nbytes for value in tensors.values()) > LARGEST // 2 or not kinds <= set(
        tensor_files.file_types().values()
    ):
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=TEMPORARY, dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            tensor_files.write(file, tensors, key=key, sha256=_digest(tensors))
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
