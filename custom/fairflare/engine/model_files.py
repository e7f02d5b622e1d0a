# SPDX-License-Identifier: Apache-2.0
"""Models of single rounds in a folder of the run's: a file each, which goes when it is needed no more."""

from __future__ import annotations

import contextlib
from pathlib import Path

from fairflare.core.errors import UserError
from fairflare.core.types import StateDict
from fairflare.engine.files import AUDIT, SUFFIX, UNSCORED, is_there, read_model
from fairflare.engine.hashes import model_hash
from fairflare.engine.history import RunHistory
from fairflare.engine.state import HALF_WRITTEN, clear_half_written, save_tensors


class ModelFiles:
    """The files of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, round: int, model: StateDict) -> None:
        """Put the model of ``round`` there, durably and whole or not at all."""
        self.folder.mkdir(exist_ok=True)
        save_tensors(self.path(round), model)

    def clear(self, keep: set[int]) -> None:
        """Remove every model but those of the rounds in ``keep``, what a killed process was writing, and the folder."""
        clear_half_written(self.folder, lambda name: number_of(name) is not None)
        for path in self.all():
            if number_of(path.name) not in {None, *keep}:
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # there is none, or something is left in it
            self.folder.rmdir()

    def all(self) -> list[Path]:
        """What lies there, but for what a killed process was writing; raises UserError where there is no folder."""
        if not is_there(self.folder):
            return []
        if self.folder.is_symlink() or not self.folder.is_dir():
            raise UserError(f"{self.folder.name}: expected a folder, found something else")
        return sorted(path for path in self.folder.iterdir() if not HALF_WRITTEN.fullmatch(path.name))

    def path(self, round: int) -> Path:
        return self.folder / f"{round}{SUFFIX}"


def number_of(name: str) -> int | None:
    """The round of which a file of this name holds the model; None for another file."""
    number = name.removesuffix(SUFFIX)
    own = number.isascii() and number.isdigit() and len(number) < 10 and f"{int(number)}{SUFFIX}" == name
    return int(number) if own else None


class Unscored(ModelFiles):
    """Those of a run's last rounds whose scores on the shared test sets are owed: each goes when it is scored.

    The log's line of a round says that its model is unscored and names it by its hash; the file is written after that
    line and before the round's checkpoint, so that whatever a killed process leaves, each model is scored once.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / UNSCORED)

    def read(self, round: int, sha256: str) -> StateDict:
        """The model of ``round``; raises UserError unless it is there, and the one of which the log says ``sha256``."""
        if not is_there(self.path(round)):
            raise UserError(f"{UNSCORED}/{round}{SUFFIX}: is missing, and {AUDIT} holds no scores of round {round}")
        model = read_model(self.path(round))
        if model_hash(model) != sha256:
            raise UserError(f"{UNSCORED}/{round}{SUFFIX}: is not the model that {AUDIT} says round {round} left")
        return model

    def check(self, run_history: RunHistory, round: int) -> None:
        """Raise UserError unless all that is owed scores up to ``round`` is there, and nothing that the log lacks."""
        found = {number for number in run_history.unscored if number <= round}
        for path in self.all():
            number = number_of(path.name)
            if number is None or number not in run_history.left or run_history.completed:
                raise UserError(f"{UNSCORED}/{path.name[:80]}: {AUDIT} says nothing of such a file")
            found.add(number)
        for number in sorted(found):
            self.read(number, run_history.left[number])
