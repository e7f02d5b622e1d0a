# SPDX-License-Identifier: Apache-2.0
"""A disk without room, at any write of a run: one line says where and how to go on, to the same bits."""

import errno
import os

import pytest

from cases import each
from fairflare.cli.main import main
from fairflare.core.errors import NO_SPACE, is_full
from fairflare.report.write import verify_run

RUN = ["run", "fedce", "--task", "support2:dirichlet", "--sites", "3", "--rounds", "3", "--no-solo", "--workers", "1"]
WRITES = 18
"""Flushes to disk in one such run, at least: of the configuration, lines of the log, checkpoints and memories."""


def call(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    streams = capsys.readouterr()
    return stop.value.code, " ".join(streams.err.split())


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.raises(SystemExit) as stop:
        main([*RUN, "--out", str(folder)])
    assert stop.value.code == 0
    return verify_run(folder)[-1]["model_sha256"]


def full_from(monkeypatch, first, number=errno.ENOSPC):
    """From the flush ``first`` on (0: the first one) none succeeds; the list of flushes that came about grows."""
    original, flushed = os.fsync, []

    def fsync(descriptor):
        if len(flushed) >= first:
            raise OSError(number, os.strerror(number))
        flushed.append(descriptor)
        return original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return flushed


@each("first", range(0, WRITES, 2))
def test_a_full_disk_is_told_and_the_run_goes_on_to_the_same_bits(first, wanted, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "my run"
    with monkeypatch.context() as patch:
        flushed = full_from(patch, first, (errno.ENOSPC, errno.EDQUOT)[first % 4 // 2])
        code, said = call(capsys, *RUN, "--out", folder)
    assert len(flushed) == first and code == 1
    (line,) = [part for part in said.split("fairflare: ")[1:] if NO_SPACE in part]
    assert line.startswith(f"{folder}{os.sep}") and "Traceback" not in said
    half = [path for path in tmp_path.rglob("*") if path.name.endswith(".tmp")]
    assert not half, half
    if not folder.exists():
        assert "start the run again" in line and first <= 4, "nothing had begun"
        assert call(capsys, *RUN, "--out", folder)[0] == 0
    else:
        assert f"`fairflare resume '{folder}'` goes on" in line
        assert (folder / "audit.jsonl").read_bytes().endswith(b"\n"), "no half line"
        assert call(capsys, "resume", folder)[0] == 0
    entries = verify_run(folder)
    assert entries[-1]["model_sha256"] == wanted and entries[-1]["status"] == "completed"


def test_another_refusal_of_the_system_is_not_called_a_full_disk(tmp_path, capsys, monkeypatch):
    full_from(monkeypatch, 8, errno.EIO)
    code, said = call(capsys, *RUN, "--out", tmp_path / "run")
    assert code == 1 and NO_SPACE not in said and os.strerror(errno.EIO) in said
    assert not is_full(OSError(errno.EIO, "x")) and is_full(OSError(errno.ENOSPC, "x"))


@each(("first", "begun"), [(0, False), (8, True)])
def test_ctrl_c_says_how_a_run_that_has_begun_goes_on(first, begun, tmp_path, capsys, monkeypatch):
    original, flushed = os.fsync, []

    def fsync(descriptor):
        if len(flushed) == first:
            raise KeyboardInterrupt
        flushed.append(descriptor)
        return original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    code, said = call(capsys, *RUN, "--out", tmp_path / "my run")
    assert code == 130 and (f"interrupted; `fairflare resume '{tmp_path / 'my run'}'` goes on" in said) == begun
