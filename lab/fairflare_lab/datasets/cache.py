# SPDX-License-Identifier: Apache-2.0
"""Rendered data on disk, so that a comparison renders once: a file per site and one of the shared test sets.

A file is named by all that its content depends on: task, options, site, the source of the code that renders, and the
versions of what that code uses. Of processes that want the same at once one renders and the others wait. Only what is
drawn is kept, and only by tasks of the two distributions; files of a data set are read where they lie. The files are
safetensors, never a pickle, in a folder of bounded size.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from torch import Tensor

from fairflare.core import seeds, tensor_files
from fairflare.core.errors import UserError
from fairflare.core.findings import SPLIT_NAMES
from fairflare.core.imports import module_files, reached
from fairflare.core.lab import CACHE
from fairflare.data.tensors import Split

NOT_RENDERED = ("model", "norm", "augment")
"""Options that choose what happens to images after they are rendered."""
LIBRARIES = (
    "mlxtend", "monai", "nibabel", "nilearn", "numpy", "pillow", "scikit-image", "scikit-learn", "scipy", "torch",
)  # fmt: skip
"""Packages that draw, or whose files are drawn on."""
SUFFIX = ".rendered"
MAX_BYTES = 5 * 10**9
"""Of all files together; those that were used longest ago go first."""
MAX_WAIT = 600.0
"""Seconds that a process waits for another one's rendering before it renders itself."""


def folder() -> Path | None:
    """Where rendered data are kept: ``CACHE``, else ``fairflare`` in XDG_CACHE_HOME or ~/.cache; None: nowhere."""
    named = os.environ.get(CACHE, "")
    if named.lower() == "off":
        return None
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return Path(named).expanduser().absolute() if named else Path(base or Path.home() / ".cache") / "fairflare"
    except RuntimeError:  # there is no home
        return None


def rendered(task: Any, part: str, render: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """What ``render()`` returns, from disk if it is there, bit for bit; what cannot be written is not kept."""
    where = folder()
    if where is None or not all(cls.__module__.partition(".")[0] in _OURS for cls in type(task).__mro__):
        return render()
    key = _key(task, part)
    path = where / f"{task.name}-{part}-{hashlib.sha256(key.encode()).hexdigest()[:40]}{SUFFIX}"
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, NotImplementedError, Timeout):
            where.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = path.with_name(f".{path.stem}.lock")
            stack.enter_context(FileLock(lock, timeout=MAX_WAIT))
            stack.callback(lock.unlink, missing_ok=True)  # while it is held, so that it is nobody else's
        with contextlib.suppress(OSError, UserError):
            tensors, header = tensor_files.read_with_header(path)
            if header.get("key") == key:
                os.utime(path)  # used now
                return tensors
        tensors = render()
        with contextlib.suppress(OSError):
            _keep(path, key, tensors)
        return tensors


def kept_splits(task: Any, site: str, render: Callable[[str], Split]) -> dict[str, Split]:
    """The splits of a site of a simulated task, which ``render`` returns by name; see ``rendered``."""

    def render_all() -> dict[str, Tensor]:
        splits = {name: render(name) for name in SPLIT_NAMES}
        inputs = {f"{name} inputs": split.inputs for name, split in splits.items()}
        return inputs | {f"{name} targets": split.targets for name, split in splits.items()}

    tensors = rendered(task, site, render_all)
    return {name: Split(tensors[f"{name} inputs"], tensors[f"{name} targets"]) for name in SPLIT_NAMES}


_OURS = {"fairflare", "fairflare_lab", "abc", "builtins"}


def _key(task: Any, part: str) -> str:
    options = {key: value for key, value in dataclasses.asdict(task).items() if key not in NOT_RENDERED}
    content = {"task": task.name, "part": part, "options": options, "code": _code(type(task).__module__), **_versions()}
    return json.dumps(content, sort_keys=True)


@functools.cache
def _code(module: str) -> str:
    """SHA-256 of the source of what renders: all of this distribution that the task's module reaches, and the seeds.

    A job carries these files, so that FLARE's processes name the same content alike.
    """
    modules = module_files(Path(__file__).parents[1])
    files = [modules[name] for name in sorted(reached((module, __name__), modules))]
    digest = hashlib.sha256()
    for path in (*files, Path(seeds.__file__), Path(str(sys.modules["fairflare.tasks.base"].__file__))):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


@functools.cache
def _versions() -> Mapping[str, str]:
    found = {"machine": platform.machine()}
    for name in LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _keep(path: Path, key: str, tensors: dict[str, Tensor]) -> None:
    """Write ``path`` whole or not at all, and remove what was used longest ago until all files fit."""
    if sum(value.nbytes for value in tensors.values()) > MAX_BYTES // 2:
        return
    half = path.with_name(f".{path.stem}.{os.getpid()}")
    try:
        with open(half, "wb", opener=functools.partial(os.open, mode=0o600)) as file:
            tensor_files.write(file, tensors, key=key)
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
    kept = sorted(path.parent.glob(f"*{SUFFIX}"), key=lambda one: one.lstat().st_mtime_ns, reverse=True)
    total = 0
    for one in kept:
        total += one.lstat().st_size
        if total > MAX_BYTES and one != path and one.is_file() and not one.is_symlink():
            one.unlink()
