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


def looked(tmp_path, one_each, seconds):
    """A heartbeat over no processes, with a clock of its own, and the sites that it has named."""
    named, clock = [], iter(range(1, 99))
    beat = Heartbeat(2**22 - 1, tmp_path, tmp_path / "log", one_each, named.append, lambda: next(clock))
    return beat, named, lambda: [beat.look() for _ in range(seconds)]


def test_flares_log_names_a_site_where_processes_come_and_go(tmp_path):
    (tmp_path / "log").write_text("ERROR - Communication error with client site-9: of an earlier command\n")
    _, named, look = looked(tmp_path, False, int(PATIENCE) + 2)
    look()
    with (tmp_path / "log").open("a") as file:
        file.write(
            "ERROR - Subprocess died for client site-1, exit code: -9\nERROR - Communication error with client si"
        )
        file.flush()
        look()
        assert named == ["site-1"]
        file.write("te-2: \n")
        file.flush()
    look(), look()
    assert named == ["site-1", "site-2"]


def test_after_the_end_of_the_run_nobody_is_named(tmp_path):
    (tmp_path / "audit.jsonl").write_text('{"event": "finish"}\n')
    _, named, look = looked(tmp_path, False, int(PATIENCE) + 2)
    (tmp_path / "log").write_text("Communication error with client site-1: \n")
    with (tmp_path / "audit.jsonl").open("a") as file:
        file.write('{"event": "resume"}\n{"event": "finish"}\n')
    look()
    assert named == []
    (tmp_path / "audit.jsonl").write_text('{"event": "finish"}\n{"event": "resume"}\n')
    look()
    assert named == ["site-1"]
