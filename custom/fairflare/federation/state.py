# SPDX-License-Identifier: Apache-2.0
"""What survives a restart: after every round one file holds the model, the rule's state and the round."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch

from fairflare.contracts import StateDict


@dataclass(frozen=True)
class Checkpoint:
    """A federation between two rounds.

    Attributes:
        round: the last finished round, 0 before the first.
        model: w^{t+1}.
        state: the rule's state.
        declared: site -> n_examples it declared in its first accepted answer.
    """

    round: int
    model: StateDict
    state: Mapping[str, Any] = field(default_factory=dict)
    declared: Mapping[str, int] = field(default_factory=dict)


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write the checkpoint; a crash at any moment leaves the old file or the new one, never a mixture."""
    content = {
        "round": checkpoint.round,
        "model": dict(checkpoint.model),
        "state": _plain(checkpoint.state),
        "declared": dict(checkpoint.declared),
    }
    write_atomically(path, lambda file: torch.save(content, file))


def load_checkpoint(path: Path) -> Checkpoint:
    """Read what ``save_checkpoint`` wrote; the file is data, so nothing in it is executed."""
    return Checkpoint(**torch.load(path, map_location="cpu", weights_only=True))


def save_model(path: Path, model: StateDict) -> None:
    """Write a plain state dict that ``torch.load(path, weights_only=True)`` reads."""
    write_atomically(path, lambda file: torch.save(dict(model), file))


def save_json(path: Path, content: Any) -> None:
    """Write strict JSON (no NaN), indented."""
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))


def save_text(path: Path, text: str) -> None:
    """Write UTF-8 text."""
    write_atomically(path, lambda file: file.write(text.encode()))


def write_atomically(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Call ``write`` on a temporary file beside ``path``, flush it to disk and rename it over ``path``."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _plain(value: Any) -> Any:
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value
