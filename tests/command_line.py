# SPDX-License-Identifier: Apache-2.0
"""The command line in this process."""

import pytest

from fairflare.cli.main import main


def code_of(*arguments):
    """Exit code of a command."""
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    return stop.value.code or 0


def call(capsys, *arguments):
    """Exit code, output and errors of a command."""
    return code_of(*arguments), *capsys.readouterr()


def succeed(*arguments):
    """A command that ends well."""
    assert code_of(*arguments) == 0, arguments
