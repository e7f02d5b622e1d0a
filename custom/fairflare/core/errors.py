# SPDX-License-Identifier: Apache-2.0
"""The two ways a run can end badly, by who can mend it, and a full disk told from other refusals of the system."""

from __future__ import annotations

import errno
from pathlib import Path


class FairFlareError(Exception):
    """Base class: its text is one line, written for the person at the keyboard."""

    exit_code = 1


class UserError(FairFlareError):
    """Something the user can put right: an unknown name, a bad value, an unwritable folder (exit code 2)."""

    exit_code = 2


class DataError(UserError):
    """Something about a site's data; its text may name files and stays at the site, its code may leave it.

    ``code`` is a short name, the same for the same cause, e.g. "unreadable".
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.code, str(self))


class MissingData(UserError):
    """A file or folder of a data set is not there; ``tree`` says in several lines which files are expected."""

    def __init__(self, text: str, tree: str) -> None:
        super().__init__(text)
        self.tree = tree

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (str(self), self.tree)


class RunFailed(FairFlareError):
    """A run that started and could not go on, e.g. too few accepted sites (exit code 1)."""

    exit_code = 1


class EgressRefused(Exception):
    """Something was about to leave the site that is not on the list; the text holds names only, never values."""


NO_SPACE = "no space left on the disk"
"""The reason that a log gives for the end of such a run."""
FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
"""A full disk, and a quota that is used up."""


def is_full(error: BaseException) -> bool:
    """Whether ``error`` says that there is no room, or came about while such an error was being dealt with."""
    seen: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and found not in seen:
        if isinstance(found, OSError) and found.errno in FULL:
            return True
        seen.append(found)
        found = found.__cause__ or found.__context__
    return False


def naming(error: OSError, path: Path) -> OSError:
    """``error``, which names ``path`` from here on where it named no file: a write says nothing of its file."""
    if error.filename is None:
        error.filename = str(path)
    return error
