# SPDX-License-Identifier: Apache-2.0
"""The tests themselves: SIGTERM ends a session within ten seconds, and a test's own handlers go with it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

TESTS = Path(__file__).parents[1]
FILE = """
import subprocess, time
from fairflare.core.signals import ends_by_signal

def test_first():
    with ends_by_signal():
        try:
            subprocess.run("sleep 300 & sleep 300 &", shell=True, start_new_session=True)
            time.sleep(300)
        except BaseException:
            pass

def test_second():
    time.sleep(300)
"""
LIMIT = 10
BEFORE = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]


def of(mark):
    """Processes, whoever's children they are, whose environment has the mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("OF_THIS_TEST") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "with workers"])
def test_sigterm_ends_a_session_and_what_its_tests_have_started(workers, tmp_path):
    for name in ("test_a.py", "test_b.py"):
        (tmp_path / name).write_text(FILE)
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent / "custom")])
    environment = {**os.environ, "PYTHONPATH": paths, "OF_THIS_TEST": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-p", "conftest", *workers, f"--basetemp={tmp_path / 'made'}", "."]
    child = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 120
        # a shell says that it has started while its children are still shells
        while len([each for each in of(str(tmp_path)) if each.name() == "sleep"]) < 2 * max(len(workers), 1):
            assert child.poll() is None and time.monotonic() < until
            time.sleep(0.1)
        begun = time.monotonic()
        child.send_signal(signal.SIGTERM)
        assert child.wait(timeout=60) == 143 and time.monotonic() - begun < LIMIT
        assert not of(str(tmp_path))
    finally:
        for process in of(str(tmp_path)):
            process.kill()


def test_a_test_may_take_a_signal():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def test_the_next_one_has_it_as_before():
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == BEFORE
    assert signal.SIG_IGN not in BEFORE[:1]
