# SPDX-License-Identifier: Apache-2.0
"""kill -9 at random moments, every method, the commands that go on killed as well: the same final bits, none stuck.

The simulator's kills are in tests/flare/test_random_kills_sim.py.
"""

import contextlib
import gc
import multiprocessing
import os
import random
import signal
import time

import pytest

from cases import each
from fairflare.cli.main import main
from fairflare.core.registry import methods
from fairflare.engine import files
from fairflare.engine.audit import AuditLog
from fairflare.engine.site import Site
from fairflare.report import write
from fairflare.report.write import verify_run
from fairflare.trainers.base import Trainer
from mechanisms import representatives

KILLS, ATTEMPTS = 5, 15
"""Of a run of one of the papers' methods: so many kills, in at most so many commands."""
PAPERS = ("fedavg", "fedce", "fedheal", "fedism", "fedism-plus", "fedlwr", "fedufo")
SMALL = ["--task", "support2:dirichlet", "--sites", "3", "--set", "epochs=1"]
SCORED = ["--task", "digits", "--sites", "4", "--set", "epochs=1", "--set", "images_per_site=24",
          "--set", "test_images=20", "--set", "site_test_images=8"]  # fmt: skip
"""A task whose models are scored on shared test sets."""
ONE_STEP = ["--no-solo", "--set", "local_steps=1"]
TASKS = {"table": [*SMALL, *ONE_STEP], "images": [*SCORED, *ONE_STEP]}
"""What every method trains on for two rounds."""
SGD = ["--set", "optimizer=sgd", "--set", "momentum=0", "--set", "weight_decay=0"]
NEEDS = {
    ("scaffold", "table"): SGD,
    ("scaffold", "images"): SGD,
    ("fedbn", "images"): ["--set", "model=small-cnn-bn"],
    ("silobn", "images"): ["--set", "model=small-cnn-bn"],
    ("fedper", "table"): ["--set", "model=mlp"],
    ("fedrep", "table"): ["--set", "model=mlp"],
}
"""What a method needs of the training or of the network."""
REFUSED = {
    ("fedbn", "table"): "expected a network with BatchNorm",
    ("silobn", "table"): "expected a network with BatchNorm",
    ("fedrdn", "table"): "expected a network of convolutions",
    ("glm", "images"): "got 'regression'",
}
"""What cannot be: no network of the table has such layers, nor is there an exact regression of images."""
ONCE = [(method, task, seed) for method in sorted(methods()) for task in TASKS for seed in range(3)]
MECHANISMS = representatives()


def _is_of_a_mechanism(method, task, seed):
    """What is killed in every run of the tests: a method of each mechanism, on the table where it can be."""
    on_images = (method, "table") in REFUSED
    return not seed and method in MECHANISMS and (task == "table" or on_images)


FORK = multiprocessing.get_context("fork")
POINTS = [
    (files.os, "replace"), (files.os, "fsync"), (files.os, "open"), (files.tempfile, "mkstemp"), (AuditLog, "append"),
    (Site, "handle"), (Trainer, "train"), (write, "render_run"), (os, "unlink"), (os, "mkdir"), (os, "rmdir"),
]  # fmt: skip
"""Calls before and after which a process can be killed."""


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def at_call(number, counter=None):
    """Be killed at the call of this number among all of ``POINTS``, before it or after; or count them."""
    count = iter(range(10**9))

    def pass_by():
        here = next(count)
        if counter is not None:
            counter.value = here + 1
        if here == number:
            die()

    for place, name in POINTS:
        original = getattr(place, name)

        def called(*args, original=original, **kwargs):
            pass_by()
            result = original(*args, **kwargs)
            pass_by()
            return result

        setattr(place, name, called)


def after(seconds):
    """Be killed so many seconds from now."""
    signal.signal(signal.SIGALRM, lambda *ignored: die())
    signal.setitimer(signal.ITIMER_REAL, seconds)


def command(arguments, prepare, said):
    """The exit code of the command line in a process that has torch loaded already, and the seconds it took."""

    def run():
        os.setpgrp()
        gc.freeze()  # what other files have left is collected in no fork
        with said.open("w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            prepare()
            main([str(a) for a in arguments])

    child, started = FORK.Process(target=run), time.monotonic()
    child.start()
    child.join(120)
    assert child.exitcode is not None, f"{arguments} is stuck"
    return child.exitcode, time.monotonic() - started


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory):
    """Everything that a run imports is loaded before processes are forked: they start in milliseconds."""
    with pytest.raises(SystemExit) as stop:
        main(["run", "fedavg", *SMALL, "--rounds", "1", "--out", str(tmp_path_factory.mktemp("warm") / "run")])
    assert stop.value.code == 0


@each("method", PAPERS, short=["fedism-plus"])
def test_killed_at_random_a_run_ends_in_the_same_bits(method, tmp_path):
    _kill_at_random(method, SMALL, tmp_path)


@pytest.mark.slow
@each("method, task, seed", ONCE, short=[one for one in ONCE if _is_of_a_mechanism(*one)])
def test_every_method_trains_and_is_killed_once(method, task, seed, tmp_path):
    options = [*TASKS[task], *NEEDS.get((method, task), ())]
    if reason := REFUSED.get((method, task)):
        code, _ = command(["run", method, *options, "--out", tmp_path / "run"], int, tmp_path / "said")
        assert code == 2 and reason in " ".join((tmp_path / "said").read_text().split())
    else:
        _kill_at_random(method, options, tmp_path, kills=1, rounds=2, seed=seed)


def test_killed_at_random_a_run_says_the_same_scores_once(tmp_path):
    _kill_at_random("fedavg", SCORED, tmp_path)
    whole, *others = (_scores(log.parent) for log in sorted(tmp_path.glob("*/audit.jsonl"), key=_is_whole))
    assert whole and others and all(found == whole for found in others)


def _is_whole(log):
    return log.parent.name != "whole"


def _scores(folder):
    found = [(e["round"], e["model_sha256"], e["test_sets"]) for e in verify_run(folder) if e["event"] == "scores"]
    return sorted(found, key=lambda one: one[0])


@each("method", ["fedce", "fedlwr"], short=["fedlwr"])
def test_killed_at_random_a_run_with_workers_ends_in_the_same_bits(method, tmp_path, monkeypatch, forks):
    """Workers inherit the points: a kill may take one of them in place of the command."""
    monkeypatch.setenv("FAIRFLARE_WORKERS", "2")
    _kill_at_random(method, SMALL, tmp_path)


def _kill_at_random(method, options, tmp_path, kills=KILLS, rounds=3, seed=0):
    chance, said = random.Random(f"kills of {method}{seed or ''}"), tmp_path / "said"
    run = ["run", method, *options, "--rounds", str(rounds), "--out"]
    calls = FORK.Value("i")
    code, seconds = command([*run, tmp_path / "whole"], lambda: at_call(-1, calls), said)
    assert code == 0, said.read_text()
    wanted, killed, moments = _bits(verify_run(tmp_path / "whole")), 0, []
    folder, done = tmp_path / "run", False
    words = [*run, folder]
    for _ in range(ATTEMPTS):
        if killed < kills:
            moment, number = chance.uniform(0, seconds), chance.randrange(calls.value)
            by_time = chance.random() < 0.4
            prepare = (lambda t=moment: after(t)) if by_time else (lambda n=number: at_call(n))
            moments.append(f"{moment:.2f} s" if by_time else f"call {number}")
        else:
            prepare = int  # nothing
        code, _ = command(words, prepare, said)
        if code == -signal.SIGKILL or (code == 1 and "ended early (SIGKILL" in said.read_text()):
            killed += 1
        elif code == 0 or "the run is complete" in said.read_text():
            done = True
            if killed >= kills:
                break
            # Not killed, and over: another run, so that the kills are as many as was said.
            _check(folder, wanted, moments)
            folder, done = tmp_path / f"run{len(moments)}", False
        else:
            assert code == 2 and "`fairflare run` begins" in said.read_text(), (moments, said.read_text())
            words = [*run, folder]
            continue
        words = ["resume", folder] if folder.exists() else [*run, folder]
    assert done and killed >= kills, (killed, moments)
    _check(folder, wanted, moments)


def _bits(entries):
    """The final model, and what every site says of it and of its own."""
    return entries[-1]["model_sha256"], next(entry["sites"] for entry in entries if entry["event"] == "evaluation")


def _check(folder, wanted, moments):
    entries = verify_run(folder)
    assert _bits(entries) == wanted and entries[-1]["status"] == "completed", moments
    results = (".personal.safetensors", ".solo.safetensors", ".inputs.json")
    memories = {f"{site}.safetensors" for site in entries[0]["sites"]}  # of a next segment
    names = {path.name for path in (folder / "sites").rglob("*") if not path.name.endswith(results)}
    kept = names - memories
    assert not [p for p in folder.parent.rglob(".*")] and not kept, (moments, kept)
