# SPDX-License-Identifier: Apache-2.0
"""A federation between two rounds, as its server keeps it; sites have no such file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairflare.core.errors import UserError
from fairflare.core.validation import misfit
from fairflare.engine.files import checked_model, read_tensors, save_tensors

if TYPE_CHECKING:
    from fairflare.core.types import StateDict


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


SHAPE: dict[str, Any] = dict.fromkeys(("state", "history", "server", "trainer"), dict)
SHAPE |= {"round": int, "declared": {str: int}, "entry": str, "models": {str: object}}


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write the checkpoint; a crash at any moment leaves the old file or the new one, never a mixture."""
    save_tensors(path, {one.name: getattr(checkpoint, one.name) for one in fields(checkpoint)})


def load_checkpoint(path: Path) -> Checkpoint:
    """Read what ``save_checkpoint`` wrote, which is data; raises UserError where the file holds anything else."""
    content = read_tensors(path)
    if not isinstance(content, dict) or set(content) != {field.name for field in fields(Checkpoint)}:
        raise UserError(f"{path.name}: expected a checkpoint as this version writes it")
    checkpoint = Checkpoint(**content)
    if misfit(content, SHAPE, path.name) or checkpoint.round < 1:
        raise UserError(f"{path.name}: expected a checkpoint's round, state and declared numbers of examples")
    for model in (checkpoint.model, *checkpoint.models.values()):
        checked_model(model, path.name)
    return checkpoint
