# SPDX-License-Identifier: Apache-2.0
"""Models of the last rounds whose scores on the shared test sets are owed: a file each, which goes when it is scored.

The log's line of a round says that its model is unscored and names it by its hash; the file is written after that line
and before the round's checkpoint, so that whatever a killed process leaves, each model is scored once.
"""

from __future__ import annotations

from pathlib import Path

from fairflare.core.errors import UserError
from fairflare.core.types import StateDict
from fairflare.engine.files import AUDIT, SUFFIX, UNSCORED, is_there, read_model
from fairflare.engine.hashes import model_hash
from fairflare.engine.history import RunHistory
from fairflare.engine.model_files import ModelFiles, number_of


class Unscored(ModelFiles):
    """The files of one run."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / UNSCORED)

    def read(self, round: int, sha256: str) -> StateDict:
        """The model of ``round``.

        Raises:
            UserError: there is none, or another than the one of which the log says ``sha256``.
        """
        if not is_there(self.path(round)):
            raise UserError(f"{UNSCORED}/{round}{SUFFIX}: is missing, and {AUDIT} holds no scores of round {round}")
        model = read_model(self.path(round))
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

    def _rounds(self, run_history: RunHistory) -> set[int]:
        """The rounds of which files are there; the log names all of them."""
        found = set()
        for path in self.all():
            number = number_of(path.name)
            if number is None or number not in run_history.left or run_history.completed:
                raise UserError(f"{UNSCORED}/{path.name[:80]}: {AUDIT} says nothing of such a file")
            found.add(number)
        return found
