# SPDX-License-Identifier: Apache-2.0
"""Models of single rounds in a folder of the run's: a file each, which goes when it is needed no more."""

from __future__ import annotations

import contextlib
from pathlib import Path

from fairflare.core.errors import UserError
from fairflare.core.types import StateDict
from fairflare.engine.files import SUFFIX, is_there
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
