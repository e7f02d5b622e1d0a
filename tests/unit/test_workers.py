# SPDX-License-Identifier: Apache-2.0
"""Sites in worker processes: the bits of one process, and no process that stays, however a run ends."""

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time

import psutil
import pytest
import torch

from fairflare.cli.main import main
from fairflare.core import workers
from fairflare.core.errors import RunFailed, UserError
from fairflare.core.schema import Instruction
from fairflare.core.types import Round
from fairflare.core.validation import some
from fairflare.engine.audit import verify
from fairflare.engine.files import read_tensors
from fairflare.engine.hashes import model_hash
from fairflare.engine.in_process import InWorkers, shares
from fairflare.engine.setup import local
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import LocalSites, run_local
from fairflare.engine.setup.parts import build_parts
from fairflare.report.write import check_resumable, verify_run
from fairflare.studies.runs import workers_for
from helpers import initial_model, make_sites
from plugin_files import loaded

PROGRESS = ("start: ", "round ")
"""How the lines begin with which a run says how far it is."""

TASK = "support2:dirichlet"
SMALL = {"epochs": 1, "group_by": "sex"}
pytestmark = pytest.mark.usefixtures("forks")
FORK = multiprocessing.get_context("fork")
LONG = ["run", "fedism-plus", "--task", TASK, "--sites", "4", "--rounds", "400", "--workers", "2"]


def config_of(method, sites=3, rounds=2, **values):
    return make_config(method, TASK, rounds=rounds, sites=sites, values=SMALL | values)


def outcome(config, folder, count):
    """What a run with so many workers ends in: hashes of the model, the state and the sites' own models, results."""
    folder.mkdir(exist_ok=True)
    parts = build_parts(config)
    with LocalSites(config, folder, parts, count) as sites:
        final = run_local(config, folder, parts=parts, sites=sites)
    results = (".personal.safetensors", ".solo.safetensors", ".inputs.json")
    left = {path.name for path in (folder / "sites").glob("*") if not path.name.endswith(results)}
    assert left <= {f"{site}.safetensors" for site in sites.transport.sites()}
    entries = verify(folder / "audit.jsonl")
    last = [entry for entry in entries if entry["event"] == "round"][-1]
    own = {path.name: model_hash(read_tensors(path)) for path in sorted(folder.rglob("*.personal.safetensors"))}
    found = {key: last.get(key) for key in ("weights", "scalars", "accepted", "state_sha256", "bytes")}
    results = next(entry for entry in entries if entry["event"] == "evaluation")["sites"]
    return {**found, "model": model_hash(final), "own": own, "results": results}


@pytest.mark.parametrize(
    "method, values",
    [
        ("fedism-plus", {}),
        ("fedlwr", {}),
        ("fedce", {}),
        ("fedheal", {}),
        ("fedufo", {}),
        ("ditto", {}),
        ("scaffold", {"optimizer": "sgd"}),
        ("fedproto", {}),
        ("solo", {}),
        ("fedism", {"secure_sum": "masks"}),
        ("fedavg", {"selector": "share", "select.share": 0.5, "leave_out": "site-3"}),
    ],
)
def test_workers_make_the_same_bits(method, values, tmp_path):
    config = config_of(method, **values)
    one, two = (outcome(config, tmp_path / str(count), count) for count in (1, 2))
    assert one == two


@pytest.mark.parametrize("method, values", [("echo", {})])
def test_plugins_make_the_same_bits(method, values, tmp_path):
    """Tensors and numbers both ways."""
    with loaded(method):
        config = config_of(method, **values)
        assert outcome(config, tmp_path / "1", 1) == outcome(config, tmp_path / "3", 3)


def test_shares_are_alike_where_sites_become_smaller():
    names = [f"site-{k}" for k in range(1, 8)]
    assert shares(names, 2) == [[f"site-{k}" for k in (1, 4, 5)], [f"site-{k}" for k in (2, 3, 6, 7)]]
    assert shares(names, 3) == [[f"site-{k}" for k in row] for row in ((1, 6, 7), (2, 5), (3, 4))]
    assert shares(names[:2], 5) == [["site-1"], ["site-2"]]


def small_sites(names, announce, tell):
    for name in names:
        announce(name)
    made = make_sites()
    return {name: made[name] for name in names}


@contextlib.contextmanager
def small(build=small_sites, **more):
    names = list(make_sites())
    with InWorkers(names, 2, build, workers.start_method(), **more) as transport:
        yield transport


def asked(task, round=1, model=None):
    model = initial_model() if model is None else model
    return {name: Instruction(task, Round(round, 3), model) for name in make_sites()}


def test_sites_say_what_they_do_before_they_answer():
    said = []
    with small(announce=said.append) as transport:
        answers = list(transport.exchange(asked("preflight", model={})))
        assert sorted(answer.site for answer in answers) == sorted(said) == transport.sites()


def failing(names, announce, tell):
    found = small_sites(names, announce, tell)
    for site in found.values():
        site.handle = lambda instruction: {}["what a site lacks"]
    return found


def test_an_exception_of_a_site_is_raised_here_with_its_traceback():
    with small(failing) as transport, pytest.raises(KeyError, match="what a site lacks") as caught:
        list(transport.exchange(asked("train")))
    assert "in failing" in str(caught.value.__cause__) or "<lambda>" in str(caught.value.__cause__)


def unbuildable(names, announce, tell):
    raise UserError("no such site")


def test_sites_that_cannot_be_built_are_the_users_to_mend():
    with small(unbuildable) as transport, pytest.raises(UserError, match="no such site"):
        list(transport.exchange(asked("train")))


def test_answers_of_an_exchange_that_was_broken_off_are_dropped():
    with small() as transport:
        next(iter(transport.exchange(asked("train", 1))))
        answers = list(transport.exchange(asked("train", 2)))
    assert sorted(answer.site for answer in answers) == transport.sites()
    assert {answer.round for answer in answers} == {2}


def test_sites_of_one_worker_may_have_different_models():
    """Alternating, so that a worker holds now one model and now the other."""
    models = [initial_model(), {key: value + 1 for key, value in initial_model().items()}]
    wanted = {name: Instruction("train", Round(1, 3), models[k % 2]) for k, name in enumerate(sorted(make_sites()))}
    with small() as transport:
        found = {answer.site: model_hash(answer.update) for answer in transport.exchange(wanted)}
    alone = {name: make_sites()[name].handle(wanted[name]) for name in wanted}
    assert found == {name: model_hash(answer.update) for name, answer in alone.items()}


def dying(names, announce, tell):
    found = small_sites(names, announce, tell)
    for site in found.values():
        site.handle = lambda instruction: os.kill(os.getpid(), signal.SIGKILL)
    return found


def test_a_dead_worker_is_one_line_that_names_its_sites():
    before = psutil.Process().children()  # multiprocessing's own, which other tests have started
    with small(dying) as transport, pytest.raises(RunFailed, match="the worker process of site-.*SIGKILL.*resumed"):
        list(transport.exchange(asked("train")))
    assert set(psutil.Process().children()) <= set(before)


def test_names_in_a_line_are_few():
    assert some([f"s{k}" for k in range(300)]) == "s0, s1, s2, s3, s4 and 295 more"


def test_a_fork_needs_one_thread_and_no_gpu(monkeypatch):
    assert workers.start_method() == ("fork" if sys.platform == "linux" else "spawn")
    assert workers.start_method(threads=2) == "spawn"
    other = threading.Thread(target=time.sleep, args=(0.3,))
    other.start()
    assert workers.start_method() == "spawn"
    other.join()
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "device_count", lambda: 1)
        assert workers.start_method() == "spawn"
    monkeypatch.setitem(sys.modules, "tenseal", None)
    assert workers.start_method() == "spawn"


def test_auto_is_no_more_than_sites_and_cores(monkeypatch):
    config = config_of("fedavg")
    parts = build_parts(config)
    monkeypatch.setattr("fairflare.studies.runs.usable_cores", lambda: 2)
    assert workers_for(None, config, parts) == 2 and workers_for(7, config, parts) == 3
    monkeypatch.setattr("fairflare.studies.runs.usable_cores", lambda: 64)
    assert workers_for(None, config, parts) == 3
    monkeypatch.setattr("fairflare.studies.runs.start_method", lambda threads: "spawn")
    assert workers_for(None, config, parts) == 1 and workers_for(2, config, parts) == 2


def child_of(*arguments, patch=lambda: None, said=os.devnull):
    """The command line in a process of its own, which leads its group."""

    def run():
        gc.freeze()  # another file's test may have left objects that crash where they are collected in a fork
        os.setpgrp()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with open(said, "w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            patch()
            main([str(a) for a in arguments])

    child = FORK.Process(target=run)
    child.start()
    return child


def until(found, seconds=60):
    deadline = time.monotonic() + seconds
    while not (what := found()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return what


@pytest.fixture
def at_work(tmp_path):
    """A run with two workers that has finished a round: its process, its workers, its folder and what it says."""
    folder, said = tmp_path / "run", tmp_path / "said"
    child = child_of(*LONG, "--out", folder, said=said)
    try:
        until(lambda: (folder / "checkpoint.safetensors").is_file() or not child.is_alive())
        assert child.is_alive(), (child.exitcode, said.read_text())
        family = psutil.Process(child.pid).children(recursive=True)
        assert len(family) == 2, family
        yield child, family, folder, said
    finally:
        child.kill()
        child.join()


def goes_on(folder):
    """All of the folder fits together, and nothing half-written lies in it."""
    assert check_resumable(folder).start["method"] == "fedism-plus"  # or it raises what does not fit
    assert not [name for name in os.listdir(folder) if name.startswith(".")]
    assert not [path for path in folder.rglob(".*.tmp")]


@pytest.mark.parametrize("number, code, word", [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interr")])
def test_a_signal_leaves_no_process_and_a_folder_that_goes_on(number, code, word, at_work):
    child, family, folder, said = at_work
    os.killpg(child.pid, number)
    child.join(30)
    lines = [line for line in said.read_text().splitlines() if line.strip() and not line.startswith(PROGRESS)]
    assert child.exitcode == code and len(lines) == 1 and lines[0].startswith(f"fairflare: {word}"), lines
    assert not any(process.is_running() for process in family)
    goes_on(folder)


def test_workers_end_with_a_killed_command_and_leave_its_folder(at_work):
    child, family, folder, said = at_work
    child.kill()
    child.join()
    summary = child_of("report", folder, said=said)  # at once: it waits until the last of them has let go
    summary.join(60)
    assert summary.exitcode == 0, said.read_text()
    until(lambda: not any(process.is_running() for process in family), 5)
    goes_on(folder)


def test_a_killed_worker_ends_the_run_with_one_line(at_work):
    child, family, folder, said = at_work
    family[1].kill()
    child.join(60)
    lines = [line for line in said.read_text().splitlines() if line.strip() and not line.startswith(PROGRESS)]
    assert child.exitcode == 1 and len(lines) == 1
    assert lines[0].startswith("fairflare: the worker process of site-2, site-3 ended early (SIGKILL"), lines
    assert not family[0].is_running()
    goes_on(folder)
    assert verify_run(folder)[-1]["status"] == "failed"


def killed_in_round_two(folder, count):
    """A run with so many workers whose command is killed before it writes its second checkpoint."""

    def patch():
        from fairflare.engine import loop

        save = loop.save_checkpoint

        def dies(path, checkpoint):
            if checkpoint.round == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            save(path, checkpoint)

        loop.save_checkpoint = dies

    run = ["run", "fedce", "--task", TASK, "--sites", "3", "--rounds", "3", "--workers", count, "--out", folder]
    child = child_of(*run, patch=patch)
    child.join(60)
    assert child.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("before, after", [(2, 1), (1, 3)])
def test_a_killed_run_goes_on_with_other_workers_in_the_same_bits(before, after, tmp_path):
    whole = outcome(make_config("fedce", TASK, rounds=3, sites=3), tmp_path / "whole", 1)
    killed_in_round_two(tmp_path / "run", before)
    child = child_of("resume", tmp_path / "run", "--workers", after, said=tmp_path / "said")
    child.join(60)
    assert child.exitcode == 0, (tmp_path / "said").read_text()
    assert verify_run(tmp_path / "run")[-1]["model_sha256"] == whole["model"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["echo", "ditto"])
def test_spawned_workers_have_plugins_and_personal_models(method, tmp_path, monkeypatch):
    """Where no fork is possible they import everything anew."""
    monkeypatch.setattr(local, "start_method", lambda threads: "spawn")
    with loaded("echo"):
        config = config_of(method)
        assert outcome(config, tmp_path / "1", 1) == outcome(config, tmp_path / "2", 2)


@pytest.mark.slow
def test_encrypted_sums(tmp_path):
    """In a process of its own, since TenSEAL's objects crash in forks. CKKS rounds by its key, drawn for every run."""
    pytest.importorskip("tenseal")

    def run():
        gc.freeze()
        config = config_of("fedism", secure_sum="ckks")
        one, two = (outcome(config, tmp_path / str(count), count) for count in (1, 2))
        assert one["accepted"] == two["accepted"] and one["weights"] == pytest.approx(two["weights"], abs=1e-5)

    child = FORK.Process(target=run)
    child.start()
    child.join(120)
    assert child.exitcode == 0
