# SPDX-License-Identifier: Apache-2.0
"""A run's folder: whatever is wrong with a file is one line that names it, nothing is executed, and one command writes.

The lock is the operating system's and ends with its process however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fairflare.core.errors import UserError, naming

if TYPE_CHECKING:
    import torch

CONFIG = "config.json"
SUFFIX = ".safetensors"
"""Of a file of tensors."""
CHECKPOINT = f"checkpoint{SUFFIX}"
MODEL = f"model{SUFFIX}"
INITIAL = f"initial{SUFFIX}"
"""What the initial model was made of, where that was given; see ``engine.setup.weights``."""
START = f"start{SUFFIX}"
"""In a job, of a network with a frozen body: the initial values of what trains, all that the server has of it."""
BEST = f"best{SUFFIX}"
"""The model that a run has chosen among those of its rounds."""
BEST_MODELS = "best"
"""Folder of the best model so far."""
AUDIT = "audit.jsonl"
JOINED = "joined"
"""Folder of the checkpoints of rounds after which a site joined."""
LOCAL_LOG = "fairflare_errors.txt"
LOCAL_FINDINGS = "fairflare_preflight.txt"
"""Files of the site's own, in the job's folder there."""

LASTING: ContextVar[bool] = ContextVar("LASTING", default=True)
"""Whether a run can go on after a kill. A short one in a study is made again: it flushes nothing to disk, and a round
leaves nothing that only a run that goes on reads."""
MOST_JSON = 1 << 28
"""Bytes of a JSON file."""


def private_folder(path: Path) -> None:
    """Make a folder, unless it is there, that nobody but this user can look into (0700): of site data or models."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def private(name: str, flags: int) -> int:
    """An opener for ``open``: a file that it makes is this user's alone (0600)."""
    return os.open(name, flags, 0o600)


def append_lines(path: Path, lines: Iterable[Any]) -> None:
    """Append JSON values, a line each, flushed to disk; a line that a kill has cut short is taken out first."""
    with open(path, "ab+", opener=private) as file:
        if size := file.seek(0, os.SEEK_END):
            file.seek(size - 1)
            if file.read(1) != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        file.write("".join(json.dumps(line) + "\n" for line in lines).encode())
        file.flush()
        os.fsync(file.fileno())


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
def reading(path: Path, most: int | None = None) -> Iterator[BinaryIO]:
    """A file to read; raises UserError when it cannot be read or has more than ``most`` bytes."""
    if (size := size_of(path)) > (size if most is None else most):
        raise UserError(f"{path.name}: expected at most {most} bytes, got {size}")
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


LOCK = ".fairflare.lock"
"""The lock of the command that works in a folder. A file of this name that nobody holds says nothing."""
SERVER_LOCK = ".server.lock"
"""The lock of the server's process in a federation's folder, which in the simulator is the command's as well."""
OPENED = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Not through a link, which could stand for a file that is not ours; not waiting for the other end of a pipe."""
POLL = 0.2
ENDING = 3.0
"""Seconds that a killed command's worker processes, which inherit its locks, may take to end."""


class Busy(UserError):
    """Somebody else holds the lock."""


@contextlib.contextmanager
def locked(folder: Path, name: str = LOCK, *, wait: float = 0.0) -> Iterator[None]:
    """Within: no other process holds the lock ``name`` of ``folder``, which exists. The file goes with the lock.

    Raises:
        Busy: another holds it, after ``wait`` seconds still.
        UserError: no lock can be put there.
    """
    path, begun = folder / name, time.monotonic()
    while (file := _try(path)) is None:
        if time.monotonic() - begun > (max(wait, ENDING) if _holder_is_gone(path) else wait):
            who = "" if (number := _holder_number(path)) is None else f" (process {number})"
            raise Busy(f"{folder}: another command is at work there{who}; wait until it has ended")
        time.sleep(POLL)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # while it is still held, so that it is nobody else's
        file.close()


def at_work(folder: Path, names: Sequence[str] = (LOCK, SERVER_LOCK)) -> str:
    """Who holds a lock of ``folder`` now, as "process 4711"; empty: nobody, as after a kill. It changes nothing."""
    for name in names:
        path = folder / name
        try:
            descriptor = os.open(path, os.O_RDONLY | OPENED)
        except (OSError, ValueError):
            continue
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                _lock(descriptor, shared=True)
        except BlockingIOError:
            number = _holder_number(path)
            return "another command" if number is None else f"process {number}"
        finally:
            os.close(descriptor)  # and with it the lock, if it was free
    return ""


def _try(path: Path) -> BinaryIO | None:
    """The locked file, or None while somebody else has it."""
    while True:
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(open(path, "r+b", buffering=0, opener=_open))
            except OSError as error:
                raise UserError(f"{path.parent}: cannot be locked ({error.strerror})") from None
            _refuse_other_file(path, file.fileno())
            try:
                _lock(file.fileno())
            except BlockingIOError:
                return None
            if _same(path, file.fileno()):  # else its holder before has removed it: the next attempt makes a new one
                _refuse_other_file(path, file.fileno())  # it may have got a second name since
                file.truncate()
                file.write(b" %d" % os.getpid())
                stack.pop_all()
                return file


def _open(name: str, flags: int) -> int:
    """A descriptor that child processes do not inherit; the file is made where there is none."""
    return os.open(name, os.O_RDWR | os.O_CREAT | OPENED, 0o644)


def _refuse_other_file(path: Path, descriptor: int) -> None:
    """Raise UserError unless this is a regular file of one name, so that writing to it changes no other file."""
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode):
        raise UserError(f"{path.parent}: cannot be locked: {path.name} is not a regular file")
    if about.st_nlink > 1:  # 0: its holder has just removed it
        raise UserError(f"{path.parent}: cannot be locked: {path.name} is a hard link to another file")


def _lock(descriptor: int, *, shared: bool = False) -> None:
    """Raises BlockingIOError while another holds it. Some network disks have no locks.

    ``shared``: beside others who only look whether it is held.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return


def _same(path: Path, descriptor: int) -> bool:
    """Whether the file that was locked is still the one in the folder: its holder before may have removed it."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _holder_is_gone(path: Path) -> bool:
    """Whether the process that took the lock has ended, so that only processes of its own can still hold it."""
    number = _holder_number(path)
    if number is None:
        return False
    import psutil

    try:
        return psutil.Process(number).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
    except (psutil.Error, ValueError, OverflowError):
        return False


def _holder_number(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
        file.seek(1)
        return int(file.read(20))
    return None


TEMPORARY = ".tmp"
"""How the name of a file that is being written ends: ".report.json.x1y2z3_a.tmp"."""
HALF_WRITTEN = re.compile(rf"\.(?P<name>.+)\.[a-z0-9_]{{8}}{re.escape(TEMPORARY)}")
"""Such a name, whole: without its ending it may be somebody's copy, as ".report.json.mybackup"."""


def save_tensors(path: Path, content: Any) -> None:
    """Write what ``read_tensors`` reads, see ``core.tensor_files``; a state dict is one for every reader."""
    from fairflare.core.tensor_files import write  # only where tensors are written: seconds for a command without

    write_atomically(path, lambda file: write(file, content))


def save_json(path: Path, content: Any) -> None:
    """Write strict JSON (no NaN), indented."""
    save_text(path, json_text(content))


def json_text(content: Any) -> str:
    """Strict JSON (no NaN), indented, as it stands in a file."""
    from pydantic_core import PydanticSerializationError, to_json  # many commands only read

    text = json.dumps(content, allow_nan=False)
    try:
        return to_json(json.loads(text), indent=2).decode() + "\n"  # in a tenth of the time of json's own indent
    except PydanticSerializationError:  # half a character, as a file's name may have
        return json.dumps(content, indent=2) + "\n"


def save_text(path: Path, text: str) -> None:
    write_atomically(path, lambda file: file.write(text.encode()))


def write_atomically(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Call ``write`` on a temporary file beside ``path``, flush it to disk and rename it over ``path``.

    Its folder is made where it is not there yet. The file is the user's alone (0600).
    """
    private_folder(path.parent)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=TEMPORARY, dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            if LASTING.get():
                os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            naming(error, path)
        raise


def clear_half_written(folder: Path, is_own: Callable[[str], bool]) -> None:
    """Delete the files in ``folder`` that a killed process was writing; ``is_own``: the names that it may write."""
    for item in folder.iterdir() if folder.is_dir() and not folder.is_symlink() else ():
        found = HALF_WRITTEN.fullmatch(item.name)
        if found and is_own(found["name"]) and item.is_file() and not item.is_symlink():
            item.unlink(missing_ok=True)


def remove_files(folder: Path, is_own: Callable[[str], bool]) -> None:
    """Delete the files in ``folder`` of which ``is_own`` holds, whole or half written; the folder too if it is empty.

    A link, a folder and whatever has another name stay, and ``folder`` with them.
    """
    if not folder.is_dir() or folder.is_symlink():
        return
    for item in folder.iterdir():
        half = HALF_WRITTEN.fullmatch(item.name)
        if is_own(half["name"] if half else item.name) and item.is_file() and not item.is_symlink():
            item.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # something else lies there
        folder.rmdir()
