# SPDX-License-Identifier: Apache-2.0
"""Checkpoint and model of a run's folder, held against the log, whose lines name their hashes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairflare.core.errors import UserError
from fairflare.engine.files import AUDIT, CHECKPOINT, MODEL, is_there, read_model, refuse_earlier
from fairflare.engine.hashes import model_hash, state_hash
from fairflare.engine.history import RunHistory
from fairflare.engine.log_lines import alike
from fairflare.engine.state import Checkpoint, load_checkpoint


def left_behind(checkpoint: Checkpoint) -> dict[str, Any]:
    """What the log's line of a round says of the checkpoint that is written after it."""
    return {
        "model_sha256": model_hash(checkpoint.model),
        "state_sha256": memory_hash(checkpoint),
        "declared": dict(checkpoint.declared),
    }


def memory_hash(checkpoint: Checkpoint) -> str:
    """SHA-256 over what the server keeps beside the model: the rule's state and the gate's history of norms.

    Where there are any, the server optimizer's state, that of the trainer's server half and the sites' own models too.
    """
    more = {"server": checkpoint.server, "models": checkpoint.models, "trainer": checkpoint.trainer}
    kept = {name: value for name, value in more.items() if value}
    return state_hash({"rule": checkpoint.state, "history": checkpoint.history, **kept})


def read_standing(folder: Path, run_history: RunHistory) -> Checkpoint | None:
    """The folder's checkpoint, which is the one that the log ends with; None before the first.

    A kill between a round's line and its checkpoint leaves the checkpoint of the round before; that round is repeated.

    Raises:
        UserError: the checkpoint is missing, unreadable or another one.
    """
    refuse_earlier(folder / CHECKPOINT)
    allowed = [standing for standing in (run_history.standing, run_history.before) if standing is not None]
    if not is_there(folder / CHECKPOINT):
        if any(standing.round == 0 for standing in allowed):
            return None
        raise UserError(f"{CHECKPOINT}: is missing; {AUDIT} holds {run_history.standing.round} finished rounds")
    found = load_checkpoint(folder / CHECKPOINT)
    logged = next((standing for standing in allowed if standing.round == found.round), None)
    if logged is None:
        raise UserError(
            f"{CHECKPOINT}: is of round {found.round}, the last one of {AUDIT} is {run_history.standing.round}"
        )
    for what, same in (
        ("the model", logged.model == model_hash(found.model)),
        ("the rule's or the gate's state", logged.state == memory_hash(found)),
        ("the declared numbers of examples", alike(logged.declared, found.declared)),
        ("the log's line", logged.entry == found.entry),
    ):
        if not same:
            raise UserError(f"{CHECKPOINT}: {what} is not what {AUDIT} says of round {found.round}")
    return found


def read_final(folder: Path, run_history: RunHistory) -> dict[str, Any] | None:
    """The folder's ``model.safetensors``, which is the one that the log's end names; None when there is none.

    Raises:
        UserError: it is unreadable or another one, or the log has no end, which is written before the model.
    """
    refuse_earlier(folder / MODEL)
    if not is_there(folder / MODEL):
        return None
    if not run_history.finish:
        raise UserError(f"{AUDIT}: the last entry is missing: {MODEL} is there, and the log does not say so")
    model = read_model(folder / MODEL)
    if model_hash(model) != run_history.finish["model_sha256"]:
        raise UserError(f"{MODEL}: is not the model that {AUDIT} ends with")
    return model
