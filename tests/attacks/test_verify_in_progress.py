# SPDX-License-Identifier: Apache-2.0
"""``verify`` while a run goes on: it is no tampering, and tampering is found in it and after it as before."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from command_line import call
from fairflare.engine.files import LOCK, at_work, locked, read_tensors, save_tensors

RUN = ["run", "fedavg", "--task", "support2:dirichlet", "--sites", "3", "--no-solo", "--set", "epochs=1"]
IN_PROGRESS = 3


def rounds(folder):
    log = folder / "audit.jsonl"
    return log.read_text().count('"event": "round"') if log.is_file() else 0


@contextlib.contextmanager
def running(folder, number):
    """A run in a process of its own, killed (SIGKILL) in the end."""
    command = [sys.executable, "-m", "fairflare", *RUN, "--rounds", str(number), "--workers", "1", "--out", str(folder)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while rounds(folder) < 2 and time.monotonic() < deadline:
            assert child.poll() is None
            time.sleep(0.05)
        yield child
    finally:
        child.kill()
        child.wait()


@pytest.fixture
def finished(tmp_path, capsys):
    assert call(capsys, *RUN, "--rounds", 3, "--out", tmp_path / "whole")[0] == 0
    return tmp_path / "whole"


def test_a_run_that_goes_on_is_in_progress_at_any_moment_and_not_tampered_with(tmp_path, capsys):
    folder, seen = tmp_path / "run", set()
    with running(folder, 3000) as child:
        until = time.monotonic() + 6
        while time.monotonic() < until or len(seen) < 3:
            code, out, err = call(capsys, "verify", folder)
            assert (code, err) == (IN_PROGRESS, ""), err
            assert out.startswith(f"in progress (process {child.pid}), not verified yet: round "), out
            assert "verify again once it has ended" in out and len(out.splitlines()) == 1
            seen.add(out)
        found = json.loads(call(capsys, "verify", folder, "--json")[1])
        assert found["in_progress"] and not found["verified"] and not found["ended"] and found["entries"] > 2
    assert (folder / LOCK).exists(), "a kill leaves the file, and nobody holds it"
    code, out, err = call(capsys, "verify", folder)
    assert (code, "in progress" in out) == (0, False) and "not ended" in out or "no end" in err


def test_tampering_with_a_run_that_goes_on_is_found(tmp_path, capsys):
    with running(tmp_path / "run", 3000) as child:
        child.send_signal(signal.SIGSTOP)
        for name in os.listdir(tmp_path / "run"):
            if name.endswith(".tmp"):  # stopped while it wrote
                (tmp_path / "run" / name).unlink()
        shutil.copytree(tmp_path / "run", tmp_path / "kept")
        (tmp_path / "kept" / LOCK).unlink()

        def verified(change):
            with contextlib.ExitStack() as stack:
                folder = tmp_path / "copy"
                shutil.copytree(tmp_path / "kept", folder)
                stack.callback(shutil.rmtree, folder)
                change(folder)
                stack.enter_context(locked(folder))
                return call(capsys, "verify", folder)

        assert verified(lambda folder: None)[0] == IN_PROGRESS

        def model(folder):
            content = read_tensors(folder / "checkpoint.safetensors")
            next(iter(content["model"].values())).view(-1)[0] += 1
            save_tensors(folder / "checkpoint.safetensors", content)

        def line(folder):
            text = (folder / "audit.jsonl").read_text()
            (folder / "audit.jsonl").write_text(text.replace('"n_examples": ', '"n_examples": 1', 1))

        def config(folder):
            (folder / "config.json").write_text((folder / "config.json").read_text() + "\n")

        def shorter(folder):
            lines = (folder / "audit.jsonl").read_text().splitlines(keepends=True)
            (folder / "audit.jsonl").write_text(lines[0])

        def gone(folder):
            (folder / "audit.jsonl").unlink()

        for change, words in (
            (model, "checkpoint.safetensors: audit.jsonl names no round that left it"),
            (line, "the chain is broken at line 2"),
            (config, "config.json: is that of a run of another configuration"),
            (shorter, "checkpoint.safetensors: audit.jsonl names no round that left it"),
            (gone, "found no audit.jsonl"),
        ):
            code, out, err = verified(change)
            assert (code, out) == (2, "") and words in err, (change.__name__, out, err)


def test_a_tampered_run_that_has_ended_is_found_with_a_lock_that_nobody_holds(finished, capsys):
    (finished / LOCK).write_bytes(b" %d" % os.getpid())
    before = (finished / LOCK).read_bytes()
    assert call(capsys, "verify", finished)[0] == 0
    content = read_tensors(finished / "checkpoint.safetensors")
    save_tensors(finished / "checkpoint.safetensors", {**content, "round": 2})
    code, _, err = call(capsys, "verify", finished)
    assert code == 2 and "checkpoint.safetensors" in err
    assert (finished / LOCK).read_bytes() == before and not at_work(finished), "nothing is changed"


def test_who_is_at_work_is_seen_through_no_link_and_changes_nothing(tmp_path):
    assert at_work(tmp_path) == "" and not list(tmp_path.iterdir())
    other = tmp_path / "other"
    other.mkdir()
    with locked(tmp_path):
        assert at_work(tmp_path) == f"process {os.getpid()}"
        (other / LOCK).symlink_to(tmp_path / LOCK)
        assert at_work(other) == ""
    assert at_work(tmp_path) == ""
