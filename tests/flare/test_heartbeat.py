# SPDX-License-Identifier: Apache-2.0
"""A simulated site whose process is killed is named on the screen within 15 seconds, and no site of a whole run is."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from test_run_ends import assert_nothing_is_left, scratches_of

from fairflare.cli.main import main
from fairflare.flare import simulate
from fairflare.flare.simulate import PATIENCE, Heartbeat, clients
from fairflare.report.write import verify_run

RUN = ["run", "fedavg", "--task", "support2:dirichlet", "--sites", "3", "--no-solo", "--set", "epochs=1"]
WITHIN = 15
ENDED = "its process has ended"


class Said:
    """The lines of a command's stderr, and when each came."""

    def __init__(self, child):
        self.lines = []
        self._thread = threading.Thread(target=self._read, args=(child.stderr,), daemon=True)
        self._thread.start()

    def _read(self, stream):
        for text in stream:
            self.lines.append((time.monotonic(), text))

    def of(self, word):
        return [(when, text) for when, text in self.lines if word in text]

    def end(self):
        self._thread.join(timeout=30)


def start(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "fairflare", *map(str, words)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background jobs, and what they start, are born ignoring Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def wait_for(condition, child, seconds=150):
    until = time.monotonic() + seconds
    while not condition():
        assert child.poll() is None, "the run has ended"
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.1)


@pytest.mark.flare
def test_a_killed_site_is_named_and_the_rounds_go_on_by_their_rules(tmp_path, capsys):
    """Of three sites two answers end a round: the run goes on without the third, until Ctrl-C, which leaves nothing."""
    values = ["--set", "min_responses=2", "--set", "grace=1"]
    child = start(*RUN, "--rounds", 400, *values, "--env", "sim", "--out", tmp_path / "run")
    said, log = Said(child), tmp_path / "run" / "audit.jsonl"
    try:
        wait_for(lambda: log.is_file() and '"event": "round"' in log.read_text(), child)
        wait_for(lambda: "site-2" in clients(child.pid), child)
        clients(child.pid)["site-2"].kill()
        killed, before = time.monotonic(), log.read_text().count('"event": "round"')
        wait_for(lambda: said.of(ENDED), child)
        when, text = said.of(ENDED)[0]
        busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # processes that each core is shared by
        assert when - killed < WITHIN * busy and text.startswith("site-2: ")
        assert "rounds end without it (2 answers and 1 s)" in text and f"`fairflare resume {tmp_path / 'run'}`" in text
        wait_for(lambda: log.read_text().count('"event": "round"') > before + 1, child)
        assert (scratches := scratches_of(tmp_path / "run"))
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=60) == 130
        said.end()
        assert said.lines[-1][1].startswith("fairflare: interr")
        assert_nothing_is_left(tmp_path / "run", scratches)
        assert len(said.of(ENDED)) == 1, "said once, and not of those that Ctrl-C ended"
    finally:
        child.kill()
    assert verify_run(tmp_path / "run")


@pytest.mark.flare
@pytest.mark.long
def test_at_the_end_of_a_run_nobody_is_missed(tmp_path, capfd):
    """In every run of the tests: test_own_data_sim.py."""
    with pytest.raises(SystemExit) as stop:
        main([*map(str, (*RUN, "--sites", 2, "--rounds", 1, "--env", "sim", "--out", tmp_path / "run"))])
    assert stop.value.code == 0 and ENDED not in capfd.readouterr().err


def looked(tmp_path, monkeypatch, *alive, during=lambda: None):
    """The sites that a heartbeat names whose looks find ``alive``, the last of these for longer than its patience.

    ``during`` happens after it has begun.
    """
    named, clock = [], iter(range(1, 99))
    beat = Heartbeat(os.getpid(), tmp_path, named.append, lambda: next(clock))
    during()
    for there in (*alive, *[alive[-1]] * (int(PATIENCE) + 1)):
        monkeypatch.setattr(simulate, "clients", lambda pid, there=there: dict.fromkeys(there))
        beat.look()
    return named


def test_a_site_is_named_once_and_not_for_one_look(tmp_path, monkeypatch):
    assert looked(tmp_path, monkeypatch, ["a", "b"], ["a"], ["a", "b"], ["a", "b"]) == []
    assert looked(tmp_path, monkeypatch, ["a", "b", "c"], ["c"]) == ["a", "b"]
    assert looked(tmp_path, monkeypatch, ["a", "b"], []) == [], "all go where the simulator ends"


def test_after_the_end_of_the_run_nobody_is_named(tmp_path, monkeypatch):
    (tmp_path / "audit.jsonl").write_text('{"event": "finish"}\n')
    whole, left = ["a", "b"], ["a"]
    assert looked(tmp_path, monkeypatch, whole, left) == ["b"], "that end is of an earlier command"

    def end():
        with (tmp_path / "audit.jsonl").open("a") as file:
            file.write('{"event": "resume"}\n{"event": "finish"}\n')

    assert looked(tmp_path, monkeypatch, whole, left, during=end) == []
