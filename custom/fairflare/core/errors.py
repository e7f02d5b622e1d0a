# SPDX-License-Identifier: Apache-2.0
"""The two ways a run can end badly, by who can mend it."""


class FairFlareError(Exception):
    """Base class: its text is one line, written for the person at the keyboard."""

    exit_code = 1


class UserError(FairFlareError):
    """Something the user can put right: an unknown name, a bad value, an unwritable folder (exit code 2)."""

    exit_code = 2


class DataError(UserError):
    """Something about a site's data; its text may name files and stays at the site, its code may leave it.

    Attributes:
        code: a short name, the same for the same cause, e.g. "unreadable".
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.code, str(self))


class MissingData(UserError):
    """A file or folder of a data set is not there.

    Attributes:
        tree: the files that are expected, several lines.
    """

    def __init__(self, text: str, tree: str) -> None:
        super().__init__(text)
        self.tree = tree

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (str(self), self.tree)


class RunFailed(FairFlareError):
    """A run that started and could not go on, e.g. too few accepted sites (exit code 1)."""

    exit_code = 1
