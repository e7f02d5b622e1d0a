# SPDX-License-Identifier: Apache-2.0
"""Models of the last rounds whose scores on the shared test sets are owed: a file each, which goes when it is scored.

The log's line of a round says that its model is unscored and names it by its hash; the file is written after that line
and before the round's checkpoint, so that whatever a killed process leaves, each model is scored once.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from fairflare.core.errors import UserError
from fairflare.core.types import StateDict
from fairflare.federation.audit import model_hash
from fairflare.federation.files import AUDIT, UNSCORED, is_there, read_model
from fairflare.federation.history import RunHistory
from fairflare.federation.state import HALF_WRITTEN, clear_half_written, save_model

SUFFIX = ".pt"


class Unscored:
    """The files of one run.

    Args:
        folder: the run's.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / UNSCORED

    def write(self, round: int, model: StateDict) -> None:
        """Put the model of ``round`` there, durably and whole or not at all."""
        self.folder.mkdir(exist_ok=True)
        save_model(self._path(round), model)

    def read(self, round: int, sha256: str) -> StateDict:
        """The model of ``round``.

        Raises:
            UserError: there is none, or another than the one of which the log says ``sha256``.
        """
        if not is_there(self._path(round)):
            raise UserError(f"{UNSCORED}/{round}{SUFFIX}: is missing, and {AUDIT} holds no scores of round {round}")
        model = read_model(self._path(round))
        if model_hash(model) != sha256:
            raise UserError(f"{UNSCORED}/{round}{SUFFIX}: is not the model that {AUDIT} says round {round} left")
        return model

    def check(self, run_history: RunHistory, round: int) -> None:
        """Every model that is owed scores up to ``round`` is there, and nothing that the log does not name.

        Raises:
            UserError: one line that says what does not fit.
        """
        owed = {number for number in run_history.unscored if number <= round}
        for number in sorted(self._rounds(run_history) | owed):
            self.read(number, run_history.left[number])

    def clear(self, keep: set[int]) -> None:
        """Remove every model but those of the rounds in ``keep``, what a killed process was writing, and the folder."""
        clear_half_written(self.folder, lambda name: _number(name) is not None)
        for path in self._files():
            if _number(path.name) not in {None, *keep}:
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # there is none, or something is left in it
            self.folder.rmdir()

    def _rounds(self, run_history: RunHistory) -> set[int]:
        """The rounds of which files are there; the log names all of them."""
        found = set()
        for path in self._files():
            number = _number(path.name)
            if number is None or number not in run_history.left or run_history.completed:
                raise UserError(f"{UNSCORED}/{path.name[:80]}: {AUDIT} says nothing of such a file")
            found.add(number)
        return found

    def _files(self) -> list[Path]:
        if not is_there(self.folder):
            return []
        if self.folder.is_symlink() or not self.folder.is_dir():
            raise UserError(f"{UNSCORED}: expected a folder, found something else")
        return sorted(path for path in self.folder.iterdir() if not HALF_WRITTEN.fullmatch(path.name))

    def _path(self, round: int) -> Path:
        return self.folder / f"{round}{SUFFIX}"


def _number(name: str) -> int | None:
    """The round of which a file of this name holds the model; None for another file."""
    number = name.removesuffix(SUFFIX)
    own = number.isascii() and number.isdigit() and len(number) < 10 and f"{int(number)}{SUFFIX}" == name
    return int(number) if own else None
