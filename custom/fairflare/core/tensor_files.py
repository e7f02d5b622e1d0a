# SPDX-License-Identifier: Apache-2.0
"""Tensors in files: safetensors, and tensors of this process that lie in a file until somebody asks for them.

A state dict has its entries under their own names, as any reader of safetensors finds them; in other content a tensor's
name is the path to it. A file whose tensors are not exactly those that the JSON tells of is refused, so that every
reader sees the same. Nothing in a file is executed.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from fairflare.core.errors import UserError

MAPPED = 1 << 18
"""Bytes from which on mapping a file costs less than reading it."""


@dataclass(frozen=True, eq=False)
class Stored:
    """A dense tensor as plain bytes in a file, which nothing else writes to.

    Attributes:
        offset: bytes before the tensor's first one.
        dtype: of its entries, in this machine's byte order.
        owner: what deletes the file once nobody holds it.
    """

    file: Path
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    owner: Any = None

    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel() * self.dtype.itemsize

    def materialize(self) -> torch.Tensor:
        """The tensor; a large one mapped: its pages are read when they are looked at, and given back with the tensor.

        Raises:
            OSError, ValueError: the file is gone, or shorter than the tensor.
        """
        if self.nbytes < MAPPED:
            return self.part(slice(None)).view(self.shape)
        mapped = np.memmap(self.file, np.uint8, "c", self.offset, (self.nbytes,))
        return torch.from_numpy(mapped).view(self.dtype).view(self.shape)

    def part(self, block: slice) -> torch.Tensor:
        """(B,): the entries of a block of positions, read from the file; raises as ``materialize``."""
        start, stop, _ = block.indices(self.numel())
        size = max(stop - start, 0) * self.dtype.itemsize
        found = bytearray(size)
        place = self.offset + start * self.dtype.itemsize
        with self.file.open("rb", buffering=0) as file:
            read = os.preadv(file.fileno(), [found], place)
        if read != size:
            raise ValueError(f"a tensor in a file: expected {size} bytes, found {read}")
        return torch.frombuffer(found, dtype=self.dtype) if size else torch.empty(0, dtype=self.dtype)


class Entries(Mapping[str, "torch.Tensor"]):
    """An update some of whose entries lie in files: each is read when it is asked for, and kept by nobody here."""

    def __init__(self, held: Mapping[str, torch.Tensor | Stored], dtypes: Mapping[str, torch.dtype]) -> None:
        """
        Args:
            held: key -> entry, wherever it lies; not copied: hundreds of sites have hundreds of entries each.
            dtypes: key -> the type that it is given.
        """
        self._held, self._dtypes = held, dtypes

    def __getitem__(self, key: str) -> torch.Tensor:
        held = self._held[key]
        return (held.materialize() if isinstance(held, Stored) else held).to(self._dtypes[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: object) -> bool:
        return key in self._held

    def part(self, key: str, block: slice) -> torch.Tensor:
        """(B,): the entry's values at a block of its positions."""
        held = self._held[key]
        return (held.part(block) if isinstance(held, Stored) else held.reshape(-1)[block]).to(self._dtypes[key])

    @property
    def held(self) -> dict[str, torch.Tensor | Stored]:
        """Key -> entry, wherever it lies."""
        return dict(self._held)


def held(update: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor | Stored]:
    """The entries of an update where they lie: none is read."""
    return update.held if isinstance(update, Entries) else dict(update)


def gathered(
    held: Mapping[str, torch.Tensor | Stored], dtypes: Mapping[str, torch.dtype]
) -> Mapping[str, torch.Tensor]:
    """The entries that ``dtypes`` names, in its order: a plain dictionary unless one lies in a file.

    One in memory is of its type already, one in a file is given it where it is used.
    """
    found: dict[str, Any] = {key: held[key] for key in dtypes}
    return Entries(found, dtypes) if Stored in set(map(type, found.values())) else found


SUFFIX = ".safetensors"
CONTENT = "fairflare"
"""Key of the JSON in the header."""
LONGEST_HEADER = 100_000_000
"""Bytes; no reader of the format takes a longer one."""
MOST_VALUES = 1_000_000
"""Values in a file, containers included."""
DEEPEST = 32
OPEN_FILES = "/dev/fd"
"""Folder of a process's open files by number, where the system has one."""
SHARED = 64
"""How often the tensors of a file may be used in its content, in sizes of the file."""
PLAIN = (str, int, float, bool, type(None))


@cache
def file_types() -> dict[str, torch.dtype]:
    """safetensors' name -> type; a function, for what is imported to list methods uses no torch."""
    names = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "U8": "uint8", "BOOL": "bool"}
    names |= {f"I{size}": f"int{size}" for size in (8, 16, 32, 64)}
    return {name: getattr(torch, dtype) for name, dtype in names.items()}


@cache
def _names() -> dict[torch.dtype, str]:
    return {dtype: name for name, dtype in file_types().items()}


def write(file: BinaryIO, content: Any, **about: str) -> None:
    """Write mappings, lists, tuples, plain values and dense tensors, one tensor copied to memory at a time.

    Args:
        content: what ``read`` returns, bit for bit; keys are plain values.
        about: more entries of the header.

    Raises:
        TypeError: it holds anything else.
        ValueError: it holds more tensors than a header can name.
    """
    entries: dict[str, Tensor] = {}
    form = json.dumps(_Writing(entries).form(content, ()), allow_nan=False, separators=(",", ":"))
    # Wide types first: then each entry begins where its type may, without a gap, which the format has none of.
    order = sorted(entries.items(), key=lambda item: -item[1].dtype.itemsize)
    header: dict[str, Any] = {"__metadata__": {"format": "pt", CONTENT: form, **about}}
    place = 0
    for name, tensor in order:
        end = place + tensor.nbytes
        header[name] = {"dtype": _names()[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > LONGEST_HEADER:
        raise ValueError(f"expected at most {LONGEST_HEADER} bytes of names and plain values, got {len(text)}")
    file.write(struct.pack("<Q", len(text)) + text)
    for _, tensor in order:
        file.write(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)


def read(path: Path) -> Any:
    """What ``write`` wrote, in memory of its own; of another program's file the tensors by name.

    Raises:
        UserError: it is no such file, or its header does not hold together, with itself or with the file's size.
    """
    return read_with_header(path)[0]


def read_with_header(path: Path) -> tuple[Any, dict[str, str]]:
    """What ``read`` returns, and the header's text entries; raises as ``read``."""
    try:
        with _opened(path) as (same, size), safe_open(same, framework="pt") as file:
            about = file.metadata() or {}
            return _Reading(file, SHARED * size).content(about.get(CONTENT)), about
    except _Refused as error:
        raise UserError(f"{path.name}: {error}") from None
    except OSError as error:
        raise UserError(f"{path.name}: cannot be read ({error.strerror or type(error).__name__})") from None
    except (Exception, MemoryError) as error:
        raise UserError(f"{path.name}: expected tensors in a {SUFFIX} file ({type(error).__name__})") from None


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[str, int]]:
    """A name of the file that stands for it even when ``path`` is replaced meanwhile, and the file's size in bytes.

    ``safe_open`` opens its argument twice, first for the header and then for the tensors.
    """
    file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # else opening a pipe waits for its other end
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise _Refused("expected a file, found something else")
        yield f"{OPEN_FILES}/{file}" if os.path.exists(f"{OPEN_FILES}/{file}") else str(path), found.st_size
    finally:
        os.close(file)


class _Refused(ValueError):
    """Content that this package does not write; the text says what."""


class _Names:
    """Path -> name of the tensor there; the same for whoever walks through the same content in the same order."""

    def __init__(self) -> None:
        self.given = {"__metadata__"}

    def at(self, path: tuple[Any, ...]) -> str:
        name = "/".join(map(str, path)).encode(errors="backslashreplace").decode()
        while name in self.given:
            name += "'"
        self.given.add(name)
        return name


@dataclass
class _Writing:
    """Makes JSON of content: containers but lists and whatever JSON has no word for are objects with one key."""

    entries: dict[str, Tensor]
    names: _Names = field(default_factory=_Names)
    same: dict[Any, str] = field(default_factory=dict)
    """Where a tensor lies in memory, and how -> its name."""

    def form(self, value: Any, path: tuple[Any, ...]) -> Any:
        if type(value) is str or (type(value) is float and math.isfinite(value)):
            return value
        if isinstance(value, (dict, Mapping)):
            return {"map": [[_key(_plain(key)), self.form(item, (*path, key))] for key, item in value.items()]}
        if isinstance(value, (list, tuple)):
            found = [self.form(item, (*path, k)) for k, item in enumerate(value)]
            return found if isinstance(value, list) else {"tuple": found}
        return self._tensor(value, path) if isinstance(value, Tensor) else _plain(value)

    def _tensor(self, value: Tensor, path: tuple[Any, ...]) -> Any:
        if value.dtype not in _names() or value.layout is not torch.strided:
            raise TypeError(f"a file of tensors cannot hold a tensor of {value.dtype}, {value.layout}")
        lies = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
        # The same model of several sites is there once; a state dict has every entry, whoever reads it.
        if len(path) > 1 and value.numel() and lies in self.same:
            return {"same": self.same[lies]}
        self.same[lies] = name = self.names.at(path)
        self.entries[name] = value
        return {"tensor": 0}


def _plain(value: Any) -> Any:
    for kind in (bool, int, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
    if value is not None:
        raise TypeError(f"a file of tensors cannot hold a {type(value).__name__}")
    return None


class _Reading:
    """Makes content of JSON and a file's tensors."""

    def __init__(self, file: Any, most: int) -> None:
        """
        Args:
            most: bytes that all tensors of the content may have together.
        """
        self.file, self.left, self.count = file, most, 0
        self.tensors: dict[str, Tensor] = {}
        self.names = _Names()

    def content(self, form: str | None) -> Any:
        names = set(self.file.keys())
        if len(names) > MOST_VALUES:
            raise _Refused(f"expected at most {MOST_VALUES} tensors")
        if form is None:
            return {name: self._tensor(name) for name in self.file.offset_keys()}
        found = self._value(json.loads(form, parse_constant=_no_constant), ())
        if names != set(self.tensors):
            raise _Refused("holds tensors that it does not tell of")
        return found

    def _value(self, form: Any, path: tuple[Any, ...]) -> Any:
        self.count += 1
        if self.count > MOST_VALUES or len(path) > DEEPEST:
            raise _Refused(f"expected at most {MOST_VALUES} values, nested at most {DEEPEST} deep")
        if isinstance(form, list):
            return list(self._items(form, path))
        if not isinstance(form, dict):
            return form
        ((kind, value),) = form.items()
        if kind == "map":
            found = {_key(key): self._value(item, (*path, key)) for key, item in value}
            if len(found) != len(value):
                raise _Refused("holds a key twice")
            return found
        if kind == "tuple":
            return tuple(self._items(value, path))
        if kind == "float":
            return struct.unpack(">d", bytes.fromhex(value))[0]
        if kind == "same":
            return self._counted(self.tensors[value])
        if kind != "tensor":
            raise _Refused("expected content as this package writes it")
        return self._tensor(self.names.at(path))

    def _items(self, forms: list[Any], path: tuple[Any, ...]) -> Iterator[Any]:
        return (self._value(item, (*path, k)) for k, item in enumerate(forms))

    def _tensor(self, name: str) -> Tensor:
        if self.file.get_slice(name).get_dtype() not in file_types():
            raise _Refused("expected tensors of torch's usual types")
        # A copy: the file goes back to the system, and entries lie where torch's own do, whatever precedes them there.
        self.tensors[name] = self.file.get_tensor(name).clone()
        return self._counted(self.tensors[name])

    def _counted(self, found: Tensor) -> Tensor:
        self.left -= found.nbytes
        if self.left < 0:
            raise _Refused("its tensors are larger than the file")
        return found


def _key(key: Any) -> Any:
    if not isinstance(key, PLAIN):
        raise _Refused("expected plain values as keys")
    return key


def _no_constant(text: str) -> None:
    raise ValueError(text)
