# SPDX-License-Identifier: Apache-2.0
"""A full disk under FLARE's simulator: the line names the folder and the command that goes on, to the same bits."""

from pathlib import Path

import pytest

from fairflare.app.cli import main
from fairflare.core.full_disk import NO_SPACE
from fairflare.engine import state
from fairflare.report.write import verify_run

pytestmark = pytest.mark.flare
RUN = ["run", "fedavg", "--task", "support2:dirichlet", "--sites", "2", "--rounds", "3", "--no-solo"]


def call(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    return stop.value.code, " ".join(capsys.readouterr().err.split())


def test_a_full_disk_at_the_server(tmp_path, capsys, monkeypatch):
    whole, folder = tmp_path / "whole", tmp_path / "run"
    assert call(capsys, *RUN, "--out", whole)[0] == 0
    monkeypatch.setattr(state, "write_atomically", state.write_atomically)  # the plugin's goes with this test
    monkeypatch.setenv("FAIRFLARE_PLUGINS", str(Path(__file__).parent / "full_disk.py"))
    monkeypatch.setenv("FULL_DISK_MARKER", str(tmp_path / "was_full"))
    code, said = call(capsys, *RUN, "--env", "sim", "--out", folder)
    assert code == 1 and f"{folder}: {NO_SPACE}; make room, then `fairflare resume {folder}` goes on" in said, said
    assert (tmp_path / "was_full").exists()
    assert call(capsys, "resume", folder)[0] == 0
    assert verify_run(folder)[-1]["model_sha256"] == verify_run(whole)[-1]["model_sha256"]
