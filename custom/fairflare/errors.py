# SPDX-License-Identifier: Apache-2.0
"""The two ways a run can end badly, told apart by whose turn it is to act."""


class FairFlareError(Exception):
    """Base class: its text is one line, written for the person at the keyboard."""

    exit_code = 1


class UserError(FairFlareError):
    """Something the user can put right: an unknown name, a bad value, an unwritable folder (exit code 2)."""

    exit_code = 2


class RunFailed(FairFlareError):
    """A run that started and could not go on, e.g. too few accepted sites (exit code 1)."""

    exit_code = 1
