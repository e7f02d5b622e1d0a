# SPDX-License-Identifier: Apache-2.0
"""kill -9 of a random process of a simulated run at random moments, again and again: the same final bits, none stuck.

In `make test` each is killed at a chosen moment: a site and the server in test_personal_flare.py, to the same bits, the
command in test_run_ends.py, all at once in test_join_sim.py. Runs in one process: tests/attacks/test_random_kills.py.
"""

import os
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest
from federation_processes import simulated_processes

from fairflare.cli.main import main
from fairflare.report.write import verify_run

pytestmark = pytest.mark.flare
KILLS = 2
"""Of each run, which one more command brings to its end."""
ROUNDS = 8
SMALL = ["--task", "support2:dirichlet", "--sites", "2", "--rounds", str(ROUNDS), "--no-solo", "--set", "epochs=1"]
RUNS = [(method, seed) for method in ("fedce", "fedheal", "fedism-plus", "fedlwr", "fedufo") for seed in range(2)]
LIMIT = 150
"""Seconds for one command."""


def start(words):
    command = [sys.executable, "-m", "fairflare", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def rounds(folder):
    log = folder / "audit.jsonl"
    return log.read_text().count('"event": "round"') if log.is_file() else -1


def kill_someone(child, folder, chance):
    """At a random moment: the command or a process of FLARE's. Whoever waits in vain for it then ends the run."""
    until, pause, wanted = time.monotonic() + LIMIT, chance.uniform(0, 1), chance.randrange(-1, ROUNDS)
    while rounds(folder) < wanted and child.poll() is None:
        assert time.monotonic() < until, "stuck"
        time.sleep(0.02)
    time.sleep(pause if wanted >= 0 else 8 * pause)
    victims = sorted(simulated_processes(folder), key=lambda process: process.pid)
    victim = chance.choice([psutil.Process(child.pid), *victims]) if child.poll() is None else None
    if victim is not None:
        victim.kill()
    time.sleep(1)
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
    _, said = child.communicate(timeout=60)
    return victim is not None, said


def finish(words):
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    return stop.value.code


@pytest.mark.long
@pytest.mark.parametrize("method, seed", RUNS)
def test_killed_at_random_a_simulated_run_ends_in_the_same_bits(method, seed, tmp_path, capsys):
    chance, folder = random.Random(f"simulated kills of {method}{seed or ''}"), tmp_path / "run"
    assert finish(["run", method, *SMALL, "--out", tmp_path / "whole"]) == 0
    wanted = verify_run(tmp_path / "whole")[-1]["model_sha256"]
    run = ["run", method, *SMALL, "--env", "sim", "--out", folder]
    kills, said = 0, []
    try:
        for _ in range(2 * KILLS):
            begun = (folder / "config.json").is_file()
            child = start(["resume", folder] if begun else run)
            killed, words = kill_someone(child, folder, chance)
            kills, said = kills + killed, [*said, words]
            if kills == KILLS or child.returncode == 0:
                break
    finally:
        for process in simulated_processes(folder):
            process.kill()
    code = finish(["resume", folder] if (folder / "config.json").is_file() else run)
    assert code == 0 or "the run is complete" in capsys.readouterr().err, said
    entries = verify_run(folder)
    assert entries[-1]["model_sha256"] == wanted and entries[-1]["status"] == "completed", said
    assert not simulated_processes(folder) and not [name for name in os.listdir(folder) if name.startswith(".")]
    assert kills == KILLS, said
