# SPDX-License-Identifier: Apache-2.0
"""What survives a restart: after every round one file holds the model, the rule's state and the round."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fairflare.core.errors import UserError, naming
from fairflare.engine.files import checked_model, read_tensors

if TYPE_CHECKING:
    from fairflare.core.types import StateDict

TEMPORARY = ".tmp"
"""How the name of a file that is being written ends: ".report.json.x1y2z3_a.tmp"."""
HALF_WRITTEN = re.compile(rf"\.(?P<name>.+)\.[a-z0-9_]{{8}}{re.escape(TEMPORARY)}")
"""Such a name, whole: without its ending it may be somebody's copy, as ".report.json.mybackup"."""


@dataclass(frozen=True)
class Checkpoint:
    """A federation between two rounds.

    Attributes:
        round: the last finished round, 0 before the first.
        declared: site -> n_examples it declared in its first accepted answer.
        history: site -> kind -> sizes of its last accepted updates, see ``norms.remembered``.
        entry: hash of the audit log's line of this round.
        models: site -> the model of its own that it is sent next, where the rule has given it one.
    """

    round: int
    model: StateDict
    state: Mapping[str, Any] = field(default_factory=dict)
    declared: Mapping[str, int] = field(default_factory=dict)
    history: Mapping[str, Any] = field(default_factory=dict)
    entry: str = ""
    server: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, StateDict] = field(default_factory=dict)
    trainer: Mapping[str, Any] = field(default_factory=dict)


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write the checkpoint; a crash at any moment leaves the old file or the new one, never a mixture."""
    save_tensors(path, {one.name: getattr(checkpoint, one.name) for one in fields(checkpoint)})


def load_checkpoint(path: Path) -> Checkpoint:
    """Read what ``save_checkpoint`` wrote, which is data; raises UserError where the file holds anything else."""
    content = read_tensors(path)
    # Checkpoints from before there were such states hold none.
    later = ("server", "models", "trainer")
    if not isinstance(content, dict) or {*content, *later} != {field.name for field in fields(Checkpoint)}:
        raise UserError(f"{path.name}: expected a checkpoint as this version writes it")
    checkpoint = Checkpoint(**content)
    counts = checkpoint.declared.items() if isinstance(checkpoint.declared, dict) else [(None, None)]
    proper = (
        type(checkpoint.round) is int and checkpoint.round > 0,
        all(isinstance(getattr(checkpoint, name), Mapping) for name in ("state", "history", "server", "trainer")),
        all(isinstance(site, str) and type(count) is int for site, count in counts),
        isinstance(checkpoint.entry, str),
        isinstance(checkpoint.models, dict) and all(isinstance(site, str) for site in checkpoint.models),
    )
    if not all(proper):
        raise UserError(f"{path.name}: expected a checkpoint's round, state and declared numbers of examples")
    for model in (checkpoint.model, *checkpoint.models.values()):
        checked_model(model, path.name)
    return checkpoint


def save_tensors(path: Path, content: Any) -> None:
    """Write what ``read_tensors`` reads, see ``core.tensor_files``; a state dict is one for every reader."""
    from fairflare.core.tensor_files import write  # only where tensors are written: seconds for a command without

    write_atomically(path, lambda file: write(file, content))


def save_json(path: Path, content: Any) -> None:
    """Write strict JSON (no NaN), indented."""
    save_text(path, json_text(content))


def json_text(content: Any) -> str:
    """Strict JSON (no NaN), indented, as it stands in a file."""
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def save_text(path: Path, text: str) -> None:
    write_atomically(path, lambda file: file.write(text.encode()))


def write_atomically(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Call ``write`` on a temporary file beside ``path``, flush it to disk and rename it over ``path``."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=TEMPORARY, dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
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
