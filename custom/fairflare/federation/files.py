# SPDX-License-Identifier: Apache-2.0
"""Reading the files of a run's folder: whatever is wrong with one is one line that names it; nothing is executed."""

from __future__ import annotations

import json
import os
import stat
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairflare.core.errors import UserError

if TYPE_CHECKING:
    import torch

CONFIG = "config.json"
CHECKPOINT = "checkpoint.pt"
MODEL = "model.pt"
INITIAL = "initial.pt"
"""What the initial model was made of, where that was given; see ``build.initial``."""
BEST = "best.pt"
"""The model that a run has chosen among those of its rounds."""
BEST_MODELS = "best"
"""Folder of the best model so far."""
AUDIT = "audit.jsonl"
UNSCORED = "unscored"
"""Folder of the models whose scores are owed."""

MOST_JSON = 1 << 28
"""Bytes of a JSON file."""
MOST_LOG = 1 << 30
"""Bytes of an audit log."""
MOST_VALUES = 1_000_000
"""Values in a file of tensors; references to one list, each inside the other, would make any number of them."""
DEEPEST = 32
SHARED = 64
"""How often the tensors of a file may use the same bytes of it."""
DEVICES = ("cpu", "cuda")
PLAIN = (str, int, float, bool, type(None))


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


def read_bytes(path: Path, most: int) -> bytes:
    """A file's content; raises UserError when it cannot be read or has more than ``most`` bytes."""
    if _size(path) > most:
        raise UserError(f"{path.name}: expected at most {most} bytes, got {_size(path)}")
    try:
        return path.read_bytes()
    except (OSError, MemoryError) as error:
        raise UserError(f"{path.name}: cannot be read ({_words(error)})") from None


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
    """What ``torch.save`` wrote: mappings, lists, plain values and dense tensors, and nothing else.

    Raises:
        UserError: it is no such file, or what it holds would take far more memory than the file has bytes.
    """
    import torch  # only where tensors are read: seconds for a command that reads none

    size = _size(path)
    _check_archive(path, size)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location=_on_cpu, weights_only=True)
    except (Exception, MemoryError) as error:
        reason = type(error).__name__
        raise UserError(f"{path.name}: expected tensors that torch.load reads with weights_only ({reason})") from None
    total = 0
    for number, value in enumerate(_leaves(content, path.name, 0)):
        if number > MOST_VALUES:
            raise UserError(f"{path.name}: expected at most {MOST_VALUES} values")
        total += _checked_size(value, path.name)
        if total > SHARED * size:
            raise UserError(f"{path.name}: its tensors are larger than the file")
    return content


def read_model(path: Path) -> dict[str, torch.Tensor]:
    """A state dict, tensors by name; raises UserError when the file holds anything else."""
    return checked_model(read_tensors(path), path.name)


def checked_model(content: Any, name: str) -> dict[str, torch.Tensor]:
    """``content`` as a state dict; raises UserError that names the file ``name`` when it is none."""
    import torch

    whole = isinstance(content, Mapping) and all(
        isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in content.items()
    )
    if not whole or not content:
        raise UserError(f"{name}: expected a model, which is tensors by name")
    return dict(content)


def _size(path: Path) -> int:
    """Bytes of the file; raises UserError when there is none."""
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path.name}: cannot be read ({_words(error)})") from None
    if not stat.S_ISREG(found.st_mode):
        raise UserError(f"{path.name}: expected a file, found something else")
    return found.st_size


def _check_archive(path: Path, size: int) -> None:
    """``torch.save`` compresses nothing: an archive that does could grow without bound when it is read."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (Exception, MemoryError) as error:
        raise UserError(f"{path.name}: expected tensors as torch.save writes them ({type(error).__name__})") from None
    plain = all(m.compress_type == zipfile.ZIP_STORED for m in members)
    if not plain or sum(m.file_size for m in members) > size:
        raise UserError(f"{path.name}: expected tensors as torch.save writes them, found a compressed archive")


def _leaves(content: Any, name: str, depth: int) -> Iterator[Any]:
    """Every value in ``content``, keys and the containers themselves included."""
    if depth > DEEPEST:
        raise UserError(f"{name}: expected values nested at most {DEEPEST} deep")
    if isinstance(content, Mapping):
        yield None
        for key, value in content.items():
            yield key
            yield from _leaves(value, name, depth + 1)
    elif isinstance(content, (list, tuple)):
        yield None
        for value in content:
            yield from _leaves(value, name, depth + 1)
    else:
        yield content


def _checked_size(value: Any, name: str) -> int:
    """Bytes of a tensor, 0 of a plain value; raises UserError for anything else."""
    import torch

    if isinstance(value, PLAIN):
        return 0
    if type(value) is not torch.Tensor:
        raise UserError(f"{name}: expected tensors and plain values, got a {type(value).__name__}")
    dense = value.layout is torch.strided and value.device.type == "cpu" and not value.is_quantized
    if not dense or value.is_conj() or value.is_neg() or value.requires_grad:
        raise UserError(f"{name}: expected plain dense tensors, got another kind")
    size = value.numel() * value.element_size()
    # A tensor that repeats its bytes is small in the file and of any size in memory.
    if size > value.untyped_storage().nbytes():
        raise UserError(f"{name}: its tensors are larger than the file")
    return size


def _on_cpu(storage: Any, location: str) -> Any:
    """Whatever the file says of where a tensor was; what is no device, no other reader of the file would take."""
    if location.partition(":")[0] not in DEVICES:
        raise ValueError(location)
    return storage


def _refuse_constant(text: str) -> None:
    raise ValueError(text)


def _words(error: BaseException) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
