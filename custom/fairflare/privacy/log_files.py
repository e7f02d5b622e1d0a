# SPDX-License-Identifier: Apache-2.0
"""The files of an audit log: its segments in their order, and the columns in which long lines keep what each site said.

``audit.jsonl`` is the first segment, ``audit-2.jsonl`` the second; the columns of a segment lie in ``audit.columns``,
``audit-2.columns``. A line whose text would be long keeps its long parts there: its "columns" hold their names, and the
bytes and SHA-256 of the packed block. Blocks lie one after the other in the order of the lines. Nothing but the
standard library is imported: whoever checks a log (``log_verifier``) reads it with this module alone.
"""

from __future__ import annotations

import io
import json
import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

COLUMNS = "columns"
"""The key of a line that says which of its parts lie in the segment's columns, and the ending of that file's name."""
MAX_BLOCK = 1 << 26
"""Bytes of an unpacked block."""
MAX_CELLS = 1 << 22
"""Values in a block."""
SEGMENT = re.compile(rf"(?P<stem>.+?)(-(?P<number>[1-9]\d{{0,8}}))?\.(jsonl|{COLUMNS})")
Shape = Any


class Wrong(ValueError):
    """What does not hold."""


def segment(log: Path, number: int) -> Path:
    """The file of the lines of a log's segment, from 1 on."""
    return log if number == 1 else log.with_name(f"{log.stem}-{number}{log.suffix}")


def columns_of(path: Path) -> Path:
    """The file of a segment's columns, which is there once a line needs it."""
    return path.with_suffix(f".{COLUMNS}")


def is_log_file(name: str, log: str) -> bool:
    """Whether a file of this name belongs to the log whose first segment is called ``log``."""
    found = SEGMENT.fullmatch(name)
    return found is not None and found["stem"] == Path(log).stem and found["number"] != "1"


def log_files(log: Path) -> list[Path]:
    """The files of a log that are there, lines before columns, segment by segment."""
    found = (path for path in log.parent.iterdir() if is_log_file(path.name, log.name)) if log.parent.is_dir() else ()
    return sorted(found, key=lambda path: (_number(path), path.suffix == f".{COLUMNS}"))


def remove_log(log: Path) -> None:
    """Delete the files of a log, the first one last."""
    for path in reversed(log_files(log)):
        path.unlink()


def segments(log: Path) -> list[Path]:
    """The segments of a log that are there; Wrong names the first one that is missing before another file."""
    there = log_files(log)
    last = max((_number(path) for path in there if path.suffix == log.suffix), default=0)
    for number in range(1, last + 1):
        if (path := segment(log, number)) not in there:
            raise Wrong(f"{path.name}: is missing, and {segment(log, last).name} is there")
    return [segment(log, number) for number in range(1, last + 1)]


def spare(log: Path) -> list[Path]:
    """Files of columns behind the last segment, as a kill leaves one before the first line of a new segment."""
    last = len(segments(log))
    return [path for path in log_files(log) if _number(path) > last]


def chained(log: Path) -> Iterator[dict[str, Any]]:
    """The entries of an unbroken chain, one by one; raises Wrong where a line or its columns do not fit."""
    number, before = 0, "0" * 64
    for path in segments(log):
        columns = columns_of(path)
        with path.open("rb") as lines, columns.open("rb") if columns.exists() else io.BytesIO() as blocks:
            for line in lines:
                entry = json.loads(line)
                content = {key: value for key, value in entry.items() if key != "hash"}
                text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
                proper = json.dumps(entry, allow_nan=False).encode() + b"\n" == line and entry["seq"] == number
                if not proper or entry["prev"] != before or entry["hash"] != sha256(text).hexdigest():
                    raise Wrong(f"the chain is broken at entry {number}: it or an entry before it was changed")
                yield whole(entry, blocks.read(block(entry)[1]))
                number, before = number + 1, entry["hash"]
            if blocks.read(1):
                raise Wrong(f"{columns.name}: holds more than the lines speak of")
    if left := spare(log):
        raise Wrong(f"{left[0].name}: no line of the log speaks of it")


def _number(path: Path) -> int:
    found = SEGMENT.fullmatch(path.name)
    return int(found["number"] or 1) if found else 0


def block(line: Mapping[str, Any]) -> tuple[tuple[str, ...], int, str]:
    """Names of the parts of a line that lie in a block, and its bytes and SHA-256; ((), 0, "") of a whole line.

    Raises Wrong for a "columns" that no log holds.
    """
    if COLUMNS not in line:
        return (), 0, ""
    about = line[COLUMNS]
    proper = isinstance(about, dict) and set(about) == {"names", "bytes", "sha256"} and type(about["bytes"]) is int
    names = about["names"] if proper else None
    if not isinstance(names, list) or not all(isinstance(name, str) and name not in line for name in names):
        raise Wrong(f"{COLUMNS}: expected names, bytes and sha256")
    if not 0 < about["bytes"] <= MAX_BLOCK or len(set(names)) != len(names):
        raise Wrong(f"{COLUMNS}: expected at most {MAX_BLOCK} bytes, and each name once")
    return tuple(names), about["bytes"], str(about["sha256"])


def whole(line: Mapping[str, Any], data: bytes) -> dict[str, Any]:
    """A line with the parts of its block ``data`` in their place; Wrong where that is another block."""
    names, size, digest = block(line)
    if not names:
        return dict(line)
    if len(data) != size or sha256(data).hexdigest() != digest:
        raise Wrong("its columns are missing or not those that it was written with")
    parts = unpack(data)
    if tuple(parts) != names:
        raise Wrong("its columns hold other parts than it names")
    found = dict[str, Any]()
    for key, value in line.items():
        found |= parts if key == COLUMNS else {key: value}
    return found


def pack(parts: Mapping[str, Any]) -> bytes:
    """JSON values by name as one block.

    Mappings of alike values become columns: floats as the planes of their bytes (IEEE 754, little endian), of which
    those of exponents shrink, the rest as JSON; all compressed (RFC 1950). ``unpack`` gives the same values, bit for
    bit. Wrong where it could not: the block would be too large, or a float is no finite number.
    """
    pool, planes = dict[tuple[str, ...], int](), list[bytes]()
    shapes = {name: _table(value, pool, planes) for name, value in parts.items()}
    head = json.dumps([[list(names) for names in pool], shapes], separators=(",", ":"), allow_nan=False).encode()
    data = head + b"\n" + b"".join(planes)
    if len(data) > MAX_BLOCK:
        raise Wrong(f"expected at most {MAX_BLOCK} bytes in a block, got {len(data)}")
    packed = zlib.compress(data, 6)
    if json.dumps(unpack(packed)) != json.dumps(dict(parts)):  # whatever was written can be read
        raise Wrong("expected JSON values")
    return packed


def unpack(packed: bytes) -> dict[str, Any]:
    """What ``pack`` was given; Wrong for anything that it does not make."""
    try:
        inflater = zlib.decompressobj()
        data = inflater.decompress(packed, MAX_BLOCK)
        if not inflater.eof or inflater.unused_data:
            raise Wrong("too long, or cut")
        head, _, planes = data.partition(b"\n")
        pool, shapes = json.loads(head)
        reader = _Columns([tuple(names) for names in pool], planes)
        parts = {name: reader.table(shape) for name, shape in shapes.items()}
        if reader.at != len(planes):
            raise Wrong("bytes that no column has")
    except (zlib.error, struct.error, LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise Wrong(f"its columns cannot be read ({error})"[:120]) from None
    return parts


def _table(value: Any, pool: dict[tuple[str, ...], int], planes: list[bytes]) -> Shape:
    """[names, rows] of a mapping, whose names stand in the pool; [value] of anything else."""
    if not isinstance(value, dict) or not value:
        return [value]
    return [pool.setdefault(tuple(value), len(pool)), _rows(list(value.values()), pool, planes)]


def _rows(rows: Sequence[Any], pool: dict[tuple[str, ...], int], planes: list[bytes]) -> Shape:
    """The same kind of value in several rows: floats, mappings (column by column), or anything, as it is."""
    if all(type(row) is float for row in rows):
        packed = struct.pack(f"<{len(rows)}d", *rows)
        if not all(row - row == 0 for row in rows):
            raise Wrong("expected finite numbers")
        planes.extend(packed[place::8] for place in range(8))
        return "floats"
    if not all(type(row) is dict for row in rows):
        return list(rows)
    kinds = {tuple(row): None for row in rows}
    keys = {key: None for kind in kinds for key in kind}
    if len(keys) > len(rows):  # of few long mappings each is a table of its own
        return {"each": [_table(row, pool, planes) for row in rows]}
    known = {kind: pool.setdefault(kind, len(pool)) for kind in kinds}
    which = [known[tuple(row)] for row in rows] if len(kinds) > 1 else next(iter(known.values()))
    columns = [_rows([row[key] for row in rows if key in row], pool, planes) for key in keys]
    return {"which": which, "of": columns}


class _Columns:
    """Reads shapes back; each value counts, so that a short block cannot stand for many."""

    def __init__(self, pool: Sequence[tuple[str, ...]], planes: bytes) -> None:
        self._pool, self._planes, self.at, self._cells = pool, planes, 0, 0

    def table(self, shape: Shape) -> Any:
        if len(shape) == 1:
            return shape[0]
        names = self._names(shape[0])
        return dict(zip(names, self._rows(shape[1], len(names)), strict=True))

    def _names(self, place: int) -> tuple[str, ...]:
        if type(place) is not int or place < 0:
            raise Wrong("expected a place in the pool of names")
        return self._pool[place]

    def _rows(self, shape: Shape, n: int) -> Sequence[Any]:
        self._cells += n
        if self._cells > MAX_CELLS:
            raise Wrong(f"more than {MAX_CELLS} values")
        if shape == "floats":
            return self._floats(n)
        if isinstance(shape, list) or "each" in shape:
            rows = shape if isinstance(shape, list) else [self.table(one) for one in shape["each"]]
            if len(rows) != n:
                raise Wrong(f"expected {n} values, got {len(rows)}")
            return rows
        which = shape["which"] if isinstance(shape["which"], list) else [shape["which"]] * n
        kinds = [self._names(place) for place in which]
        counts = dict[str, int]()
        for kind in dict.fromkeys(kinds):
            counts |= dict.fromkeys(kind, 0)
        for kind in kinds:
            for key in kind:
                counts[key] += 1
        columns = zip(counts, shape["of"], strict=True)
        values: dict[str, Iterator[Any]] = {key: iter(self._rows(one, counts[key])) for key, one in columns}
        return [{key: next(values[key]) for key in kind} for kind in kinds]

    def _floats(self, n: int) -> Sequence[float]:
        data = self._planes[self.at : self.at + 8 * n]
        packed = bytearray(8 * n)
        for place in range(8):
            packed[place::8] = data[place * n : (place + 1) * n]
        self.at += 8 * n
        return struct.unpack(f"<{n}d", packed)
