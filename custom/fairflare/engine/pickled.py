# SPDX-License-Identifier: Apache-2.0
"""Reading what ``torch.save`` wrote: weights that a user names, and files of earlier versions; nothing is executed.

No file of a run is one, and no command reads one but those that are given it.
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from fairflare.core.errors import UserError
from fairflare.core.tensor_files import DEEPEST, MOST_VALUES, PLAIN, SHARED
from fairflare.engine.files import size_of

DEVICES = ("cpu", "cuda")


def read_pickled(path: Path) -> Any:
    """What ``torch.save`` wrote: mappings, lists, plain values and dense tensors, and nothing else.

    Raises:
        UserError: it is no such file, or what it holds would take far more memory than the file has bytes.
    """
    size = size_of(path)
    # ``torch.save`` compresses nothing: an archive that does could grow without bound when it is read.
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (Exception, MemoryError) as error:
        raise UserError(f"{path.name}: expected tensors as torch.save writes them ({type(error).__name__})") from None
    plain = all(m.compress_type == zipfile.ZIP_STORED for m in members)
    if not plain or sum(m.file_size for m in members) > size:
        raise UserError(f"{path.name}: expected tensors as torch.save writes them, found a compressed archive")
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
