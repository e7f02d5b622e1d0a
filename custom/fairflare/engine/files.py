# SPDX-License-Identifier: Apache-2.0
"""Reading the files of a run's folder: whatever is wrong with one is one line that names it; nothing is executed."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fairflare.core.errors import UserError

if TYPE_CHECKING:
    import torch

CONFIG = "config.json"
SUFFIX, EARLIER = ".safetensors", ".pt"
"""Of a file of tensors, and of those that earlier versions wrote: pickles."""
CHECKPOINT = f"checkpoint{SUFFIX}"
MODEL = f"model{SUFFIX}"
INITIAL = f"initial{SUFFIX}"
"""What the initial model was made of, where that was given; see ``engine.setup.parts``."""
BEST = f"best{SUFFIX}"
"""The model that a run has chosen among those of its rounds."""
BEST_MODELS = "best"
"""Folder of the best model so far."""
AUDIT = "audit.jsonl"
JOINED = "joined"
"""Folder of the checkpoints of rounds after which a site joined."""
UNSCORED = "unscored"
"""Folder of the models whose scores are owed."""
LOCAL_LOG = "fairflare_errors.txt"
LOCAL_FINDINGS = "fairflare_preflight.txt"
"""Files of the site's own, in the job's folder there."""

MOST_JSON = 1 << 28
"""Bytes of a JSON file."""
MOST_LOG = 1 << 30
"""Bytes of an audit log."""


def is_file(path: Path) -> bool:
    """Whether a file is there, or a link to one; False for a path that no file can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_there(path: Path) -> bool:
    """Whether anything of this name is there, a folder or a broken link too."""
    try:
        return os.path.lexists(path)
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def reading(path: Path, most: int) -> Iterator[BinaryIO]:
    """A file to read; raises UserError when it cannot be read or has more than ``most`` bytes."""
    if size_of(path) > most:
        raise UserError(f"{path.name}: expected at most {most} bytes, got {size_of(path)}")
    try:
        with path.open("rb") as file:
            yield file
    except (OSError, MemoryError) as error:
        raise UserError(f"{path.name}: cannot be read ({_words(error)})") from None


def read_bytes(path: Path, most: int) -> bytes:
    """A file's content; raises UserError as ``reading``."""
    with reading(path, most) as file:
        return file.read()


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; raises UserError when there is none."""
    data = read_bytes(path, MOST_JSON)
    try:
        content = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError, MemoryError):
        raise UserError(f"{path}: expected a JSON file") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a JSON object")
    return content


def read_tensors(path: Path) -> Any:
    """What a file of tensors holds, see ``core.tensor_files``; raises UserError when it is no such file."""
    from fairflare.core.tensor_files import read  # only where tensors are read: seconds for a command that reads none

    return read(path)


def is_earlier(path: Path) -> bool:
    """Whether an earlier version's file of tensors lies in place of ``path``."""
    return is_there(path.with_suffix(EARLIER)) and not is_there(path)


def refuse_earlier(path: Path) -> None:
    """Raise UserError where ``is_earlier``: such files are pickles, which one command alone reads."""
    if is_earlier(path):
        name, text = path.with_suffix(EARLIER).name, "was written by an earlier version of this package"
        raise UserError(f"{name}: {text}; `fairflare convert FOLDER` makes this version's files of the folder's")


def read_model(path: Path) -> dict[str, torch.Tensor]:
    """A state dict, tensors by name; raises UserError when the file holds anything else."""
    return checked_model(read_tensors(path), path.name)


def checked_model(content: Any, name: str) -> dict[str, torch.Tensor]:
    """``content`` as a state dict; raises UserError that names the file ``name`` when it is none."""
    import torch

    found = content.items() if isinstance(content, Mapping) else ()
    if not found or not all(isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in found):
        raise UserError(f"{name}: expected a model, which is tensors by name")
    return dict(content)


def size_of(path: Path) -> int:
    """Bytes of the file; raises UserError when there is none."""
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path.name}: cannot be read ({_words(error)})") from None
    if not stat.S_ISREG(found.st_mode):
        raise UserError(f"{path.name}: expected a file, found something else")
    return found.st_size


def _refuse_constant(text: str) -> None:
    raise ValueError(text)


def _words(error: BaseException) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
