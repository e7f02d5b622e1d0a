# SPDX-License-Identifier: Apache-2.0
"""The command line in this process."""

import pytest

from fairflare.cli.main import main


def call(capsys, *arguments):
    """Exit code, output and errors of a command."""
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    streams = capsys.readouterr()
    return stop.value.code, streams.out, streams.err
