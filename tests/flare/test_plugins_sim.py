# SPDX-License-Identifier: Apache-2.0
"""A plugin, a selector and a trainer's server half in FLARE's simulator: the bits of a run in process.

So they are after a kill -9, a full disk and two resumes.
"""

import os
from pathlib import Path

import pytest
from killed_runs import kill_one_process

from cases import each
from command_line import code_of as call
from fairflare.core.errors import NO_SPACE
from fairflare.engine import files
from fairflare.engine.audit import verify
from fairflare.report.write import verify_run
from plugin_files import loaded, paths

HERE = Path(__file__).parent
KILLING = HERE.parent / "killing.py"
SGD = ("optimizer=sgd", "momentum=0", "weight_decay=0", "lr=0.05", "batch_size=64")
SLOW = ("lr=0.01", "batch_size=64")
SETTINGS = {"scaffold": SGD, "fedproto": SLOW, "echo": (*SLOW, "selector=share", "select.share=0.6"), "solo": SLOW}
PLUGINS = ("echo",)
"""Of these, those of tests/plugins; the others are the package's."""
UNDER = {"scaffold": ("--rule", "fedheal")}
"""A trainer's server half beside a rule that is not its method's."""
SITES = {"scaffold": "2"}
"""Three otherwise; a run that is continued twice starts their processes three times."""


def command(method):
    settings = [part for pair in SETTINGS[method] for part in ("--set", pair)]
    return [
        "run",
        method,
        "--task",
        "support2:dirichlet",
        "--sites",
        SITES.get(method, "3"),
        "--rounds",
        "3",
        "--no-solo",
        *UNDER.get(method, ()),
        *settings,
    ]


def bits(entries):
    """Hashes of model and server state after each round, and what sites report of the final models."""
    rounds = {e["round"]: (e["model_sha256"], e["state_sha256"]) for e in entries if e["event"] == "round"}
    return rounds, next(e["sites"] for e in entries if e["event"] == "evaluation")


def in_process(method, tmp_path):
    """The bits of the method's run in this process."""
    assert call(*command(method), "--out", tmp_path / "whole") == 0
    return bits(verify(tmp_path / "whole" / "audit.jsonl"))


@each("method", SETTINGS, short=["echo"])
def test_the_same_bits(method, tmp_path):
    """So has Scaffold's, killed and continued; FLARE's messages of others are in test_five_papers.py."""
    with loaded(*PLUGINS):
        expected = in_process(method, tmp_path)
        assert call(*command(method), "--env", "sim", "--out", tmp_path / "run") == 0
    assert bits(verify_run(tmp_path / "run")) == expected


@pytest.mark.long  # test_personal_flare.py and test_full_disk.py assure each by itself
@pytest.mark.parametrize("method", ["scaffold", "echo"])
def test_killed_and_continued(method, tmp_path, capsys):
    """A site's process dies when it has trained and kept its memory of round 2. The run is resumed, the server's disk
    is full at the second checkpoint of that, and the command that the line names goes on.
    """
    folder = tmp_path / "run"
    run = [*command(method), "--env", "sim", "--out", folder]
    with loaded(*PLUGINS), pytest.MonkeyPatch.context() as monkeypatch:
        expected = in_process(method, tmp_path)
        kill_one_process(run, "sending", (paths(*PLUGINS), str(KILLING)), tmp_path, monkeypatch)
        monkeypatch.setattr(files, "write_atomically", files.write_atomically)  # the plugin's goes with this test
        plugins = os.pathsep.join((paths(*PLUGINS), str(HERE / "full_disk.py")))
        monkeypatch.setenv("FAIRFLARE_PLUGINS", plugins)
        monkeypatch.setenv("FULL_DISK_MARKER", str(tmp_path / "was_full"))
        capsys.readouterr()
        assert call("resume", folder) == 1
        said = " ".join(capsys.readouterr().err.split())
        assert f"{folder}: {NO_SPACE}; make room, then `fairflare resume {folder}` goes on" in said, said
        assert (tmp_path / "was_full").exists()
        assert call("resume", folder) == 0
    entries = verify_run(folder)
    assert [e["from_round"] for e in entries if e["event"] == "resume"] == [1, 2]
    assert bits(entries) == expected
