# SPDX-License-Identifier: Apache-2.0
"""The audit log: one JSON object per line, each holding the SHA-256 of the one before.

Whoever keeps the last hash can tell whether any earlier line was changed, dropped or reordered. What the lines must say
one after the other is in ``history``.

A long line keeps its long parts, what each site of a round said, in a file of columns beside it and holds their hash;
a segment that is full is followed by the next, whose first line holds the hash of the last line before
(``privacy.log_files``). Reading goes line by line: no more than one line is in memory. What could not be read again is
not written.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO, overload

from fairflare.core.errors import UserError, naming
from fairflare.engine.files import LASTING, is_there, private, reading, size_of
from fairflare.privacy import log_files
from fairflare.privacy.log_files import COLUMNS

GENESIS = "0" * 64
CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
PLAIN = json.JSONEncoder(allow_nan=False)
LONG_LINE, LONG_PART = 1 << 15, 1 << 10
"""Bytes of a line from which its parts of so many bytes go into columns: a round of some sixty sites."""
MAX_LINE = 1 << 26
"""Bytes of a line."""
MAX_SEGMENT = 1 << 26
"""Bytes of lines, or of columns, from which on a new segment begins."""
Entry = dict[str, Any]


class Entries(Sequence[Entry]):
    """The entries of a log's unbroken chain, in memory one at a time: each look reads and checks the file again.

    Attributes:
        events, hashes: of every entry.
    """

    def __init__(self, path: Path, *, torn: bool = True, each: Callable[[Entry], Any] = lambda entry: None) -> None:
        """Read the log once, calling ``each`` with every entry.

        Args:
            torn: whether what a killed process did not write to its end is left out, in place of refused.

        Raises:
            UserError: names the first line that does not fit.
        """
        self.path = path
        self.events, self.hashes, self._places = list[str](), list[str](), list[_Place]()
        self.end = _Place(1, 0, 0)
        for entry, place, self.end in _chained(path, torn):
            self.events.append(str(entry.get("event")))
            self.hashes.append(entry["hash"])
            self._places.append(place)
            each(entry)

    def without(self, *events: str) -> Entries:
        """Those of other events."""
        found, kept = copy.copy(self), [k for k, event in enumerate(self.events) if event not in events]
        found.events, found.hashes = ([own[k] for k in kept] for own in (self.events, self.hashes))
        found._places = [self._places[k] for k in kept]
        return found

    def last(self, event: str) -> int | None:
        """The place of the last entry of this event."""
        return next((k for k in reversed(range(len(self))) if self.events[k] == event), None)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, at: int) -> Entry: ...

    @overload
    def __getitem__(self, at: slice) -> list[Entry]: ...

    def __getitem__(self, at: int | slice) -> Entry | list[Entry]:
        if isinstance(at, slice):
            return list(self._read(range(len(self))[at]))
        return next(self._read([range(len(self))[at]]))

    def __iter__(self) -> Iterator[Entry]:
        return self._read(range(len(self)))

    def __reversed__(self) -> Iterator[Entry]:
        return self._read(range(len(self) - 1, -1, -1))

    def _read(self, places: Sequence[int]) -> Iterator[Entry]:
        with contextlib.ExitStack() as stack:
            number, segment = 0, None
            for k in places:
                place = self._places[k]
                if segment is None or place.segment != number:
                    stack.close()
                    number, segment = place.segment, _Segment(self.path, place.segment, stack)
                segment.seek(place)
                entry = segment.parsed(segment.line(), f"{segment.name}: entry {k}")
                if entry["hash"] != self.hashes[k]:
                    raise UserError(f"{segment.name}: was changed while it was read")
                yield segment.whole(entry, f"{segment.name}: entry {k}")


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a line begins or ends: the segment's number, and bytes of its lines and of its columns."""

    segment: int
    line: int
    columns: int


class AuditLog:
    """Appends entries to a log; opening an existing one continues its chain and changes nothing before ``append``.

    ``first`` and ``last`` are its first and last entry, empty when there is none.
    """

    def __init__(self, path: Path, each: Callable[[Entry], Any] = lambda entry: None) -> None:
        """Call ``each`` with every entry that the file holds; raises UserError when its chain is broken."""
        self.path = path
        self.first, self.last = Entry(), Entry()

        def note(entry: Entry) -> None:
            self.first, self.last = self.first or entry, entry
            each(entry)

        self.entries = Entries(path, each=note)
        """What the log held when it was opened."""
        last = len(_segments(path)) or 1
        end = self.entries.end
        self._end = end if end.segment == last else _Place(last, 0, 0)
        self._torn, self._cut = _size(log_files.segment(path, last)) - self._end.line, False

    def head(self) -> dict[str, Any]:
        """The log by its first entry, and place and hash of its last; empty before the first."""
        return {"log": self.first["hash"], "seq": self.last["seq"], "hash": self.last["hash"]} if self.first else {}

    def append(self, event: str, **content: Any) -> Entry:
        """Write one entry durably and return it, with its ``seq``, ``time``, ``prev`` and ``hash``.

        What a killed process left without its end is cut off first.

        Raises:
            UserError: the file is not as this object left it, or the entry is too long to be read again; then it is
                left alone.
        """
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        seq, head = (self.last["seq"] + 1, self.last["hash"]) if self.first else (0, GENESIS)
        entry = {"seq": seq, "time": now, "event": event, **content, "prev": head}
        line, columns = _parted(entry)
        entry["hash"] = line["hash"] = entry_hash(line)
        data = (PLAIN.encode(line) + "\n").encode()
        if len(data) > MAX_LINE:
            raise UserError(f"{self.path.name}: expected at most {MAX_LINE} bytes in a line, got {len(data)}: {event}")
        path, end = log_files.segment(self.path, self._end.segment), self._end
        if _size(path) != end.line + self._torn:
            raise UserError(f"{path.name}: was changed by somebody else while the run went on")
        if not self._cut:
            self._cut_off(path)
        if max(end.line, end.columns) > MAX_SEGMENT:
            end = _Place(end.segment + 1, 0, 0)
            path = log_files.segment(self.path, end.segment)
        if columns:
            _write(log_files.columns_of(path), columns, end.columns)
        _write(path, data, end.line)
        self._end = _Place(end.segment, end.line + len(data), end.columns + len(columns))
        self.first, self.last = self.first or entry, entry
        return entry

    def _cut_off(self, path: Path) -> None:
        """Cut off what a killed process left behind the last whole line."""
        for left in log_files.spare(self.path):
            left.unlink()
        for file, size in ((path, self._end.line), (log_files.columns_of(path), self._end.columns)):
            if _size(file) > size:
                os.truncate(file, size)
        self._cut, self._torn = True, 0


def _write(path: Path, data: bytes, at: int) -> None:
    """Write ``data`` as the end of a file, from ``at`` on."""
    # Closing a buffered file would write what a full disk refused.
    with open(path, "ab", buffering=0, opener=private) as file:
        if file.seek(0, os.SEEK_END) != at:
            raise UserError(f"{path.name}: was changed by somebody else while the run went on")
        try:
            while data:
                data = data[file.write(data) :]
            if LASTING.get():
                os.fsync(file.fileno())
        except OSError as error:
            os.ftruncate(file.fileno(), at)  # a full disk leaves no half line before the entry that says so
            raise naming(error, path)  # noqa: B904  # the same error


def _parted(entry: Entry) -> tuple[Entry, bytes]:
    """A long entry's line, and the block that its long parts make; a short entry as it is.

    Raises ValueError for what is no JSON, UserError where the block could not be read again.
    """
    if COLUMNS in entry:
        raise ValueError(f"{COLUMNS}: expected another name for a part of an entry")
    texts = {key: PLAIN.encode(value) for key, value in entry.items()}
    long = [key for key, text in texts.items() if len(text) >= LONG_PART]
    if sum(map(len, texts.values())) < LONG_LINE or not long:
        return dict(entry), b""
    try:
        packed = log_files.pack({key: json.loads(texts[key]) for key in long})
    except ValueError as error:
        raise UserError(f"{entry['event']}: cannot be written to the log ({error})") from None
    about = {COLUMNS: {"names": long, "bytes": len(packed), "sha256": hashlib.sha256(packed).hexdigest()}}
    line = Entry()
    for key, value in entry.items():
        line |= about if key == long[0] else {} if key in long else {key: value}
    return line, packed


def is_begun(path: Path) -> bool:
    """Whether the log has a first entry; raises UserError where its first line is none."""
    return next(_chained(path), None) is not None


def first_entry(path: Path) -> Entry:
    """The first entry, {} while no whole, valid line is there; raises UserError where the file cannot be read."""
    size_of(path)
    try:
        return next((entry for entry, *_ in _chained(path, True)), {})
    except UserError:
        return {}


def verify(path: Path, *, torn: bool = False) -> list[Entry]:
    """All entries of an unbroken chain, as for a short log; see ``Entries``."""
    size_of(path)
    entries = list[Entry]()
    Entries(path, torn=torn, each=entries.append)
    return entries


class Tail:
    """Follows a log that another process writes, whose chain is not checked."""

    def __init__(self, path: Path) -> None:
        self._path, self._place = path, _Place(1, 0, 0)

    def new(self) -> Iterator[Entry]:
        """The entries since the last call, as far as they are whole.

        Raises ValueError or UserError where the log holds anything else.
        """
        while is_there(self._path):
            place = self._place
            more = log_files.segment(self._path, place.segment + 1).is_file()  # asked before: then this one is full
            with contextlib.ExitStack() as stack:
                segment = _Segment(self._path, place.segment, stack)
                segment.seek(place)
                while (line := segment.line()).endswith(b"\n"):
                    entry = segment.whole(json.loads(line), segment.name)
                    self._place = segment.place()
                    yield entry
            if not more:
                return
            self._place = _Place(place.segment + 1, 0, 0)


def entry_hash(line: Mapping[str, Any]) -> str:
    """SHA-256 over the line without its own hash, as canonical JSON."""
    content = {key: value for key, value in line.items() if key != "hash"}
    return hashlib.sha256(CANONICAL.encode(content).encode()).hexdigest()


class _Segment:
    """One segment's files, open for reading until ``stack`` closes."""

    def __init__(self, log: Path, number: int, stack: contextlib.ExitStack) -> None:
        self.number, self._path, self._stack = number, log_files.segment(log, number), stack
        self.name, self._lines = self._path.name, stack.enter_context(reading(self._path))
        self._columns: BinaryIO | None = None
        self._at = 0

    def seek(self, place: _Place) -> None:
        self._lines.seek(place.line)
        self._at = place.columns

    def place(self) -> _Place:
        return _Place(self.number, self._lines.tell(), self._at)

    def line(self) -> bytes:
        line = self._lines.readline(MAX_LINE + 1)
        if len(line) > MAX_LINE:
            raise UserError(f"{self.name}: expected at most {MAX_LINE} bytes in a line")
        return line

    def parsed(self, line: bytes, where: str) -> Entry:
        """A whole line as JSON; raises UserError unless it is as it was written."""
        entry = _entry(line[:-1], where)
        if entry.get("hash") != entry_hash(entry):
            raise _broken(where)
        return entry

    def whole(self, line: Entry, where: str) -> Entry:
        """A line's entry with what lies in the columns, which go on behind it; UserError where they do not fit."""
        path = log_files.columns_of(self._path)
        try:
            _, size, _ = log_files.block(line)
            if not size:
                return line
            if self._columns is None:
                self._columns = self._stack.enter_context(reading(path))
            self._columns.seek(self._at)
            found = log_files.whole(line, self._columns.read(size))
        except ValueError as error:
            raise UserError(f"{where}: {error}") from None
        self._at += size
        return found


def _chained(log: Path, torn: bool = True) -> Iterator[tuple[Entry, _Place, _Place]]:
    """The entries of an unbroken chain, and where each line begins and ends; none of a file that is not there.

    Raises UserError for anything that ``append`` does not write, and for what a kill leaves unless ``torn``: a last
    line or block without its end.
    """
    head, seq = GENESIS, 0
    files = _segments(log)
    for number, path in enumerate(files, 1):
        with contextlib.ExitStack() as stack:
            segment, in_file = _Segment(log, number, stack), 0
            while line := segment.line():
                in_file += 1
                where = f"{path.name}: line {in_file}"
                if b"\r" in line:
                    raise UserError(
                        f"{path.name}: has line ends (CR) that it was not written with; it was left as it is"
                    )
                if not line.endswith(b"\n"):
                    begin = f'{{"seq": {seq}, "'.encode()
                    if line[: len(begin)] != begin[: len(line)] or not all(32 <= byte < 127 for byte in line):
                        raise UserError(f"{where} is not JSON, nor the begin of an entry")
                    if not torn or number < len(files):
                        raise UserError(f"{where} has no end: whoever wrote it was killed, or it was cut")
                    return
                before = dataclasses.replace(segment.place(), line=segment.place().line - len(line))
                entry = segment.parsed(line, where)
                if entry.get("seq") != seq or entry.get("prev") != head:
                    raise _broken(where)
                entry = segment.whole(entry, where)
                head, seq = entry["hash"], seq + 1
                yield entry, before, segment.place()
            end, columns = segment.place(), log_files.columns_of(path)
        if not end.line and number > 1 and not (torn and number == len(files)):
            raise UserError(f"{path.name}: is empty: whoever wrote it was killed, or it was cut")
        if _size(columns) != end.columns and not (torn and number == len(files)):
            raise UserError(f"{columns.name}: expected {end.columns} bytes, as the lines say, got {_size(columns)}")
    if not torn and (left := log_files.spare(log)):
        raise UserError(f"{left[0].name}: no line of the log speaks of it")


def _segments(log: Path) -> list[Path]:
    try:
        return log_files.segments(log)
    except ValueError as error:
        raise UserError(str(error)) from None


def _size(path: Path) -> int:
    return size_of(path) if is_there(path) else 0


def _entry(line: bytes, where: str) -> Entry:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        raise UserError(f"{where} is not JSON") from None
    if not isinstance(entry, dict):
        raise UserError(f"{where} is not a JSON object")
    try:
        written = PLAIN.encode(entry).encode()
    except (ValueError, RecursionError):
        written = b""
    # A second key of the same name or a space more would leave the parsed entry, and so its hash, as it was.
    if written != line:
        raise _broken(where, "it is not as it was written")
    return entry


def _broken(where: str, why: str = "it or a line before it was changed") -> UserError:
    name, _, line = where.rpartition(": ")
    return UserError(f"{name}: the chain is broken at {line}: {why}")
