# SPDX-License-Identifier: Apache-2.0
"""Several runs within a budget of cores: the bits of one after the other, one display, and no process that stays."""

import contextlib
import gc
import io
import json
import multiprocessing
import os
import re
import signal
import time

import psutil
import pytest
from rich.console import Console

from command_line import call
from fairflare.cli.main import main
from fairflare.core.errors import RunFailed, UserError
from fairflare.engine.setup.config import make_config
from fairflare.report.write import check_resumable, verify_run
from fairflare.studies import display
from fairflare.studies.display import Board, Observer
from fairflare.studies.parallel import budget
from fairflare.studies.study import Study

TASK = ["--task", "support2:dirichlet", "--sites", "3"]
COMPARE = ["compare", "fedavg", "fedavg:weighting=uniform", "fedism", *TASK]
pytestmark = pytest.mark.usefixtures("forks")
FORK = multiprocessing.get_context("fork")


def configs(*names, rounds=1):
    values = {"epochs": 1}
    return {
        name: make_config("fedavg", "support2:dirichlet", rounds=rounds, sites=3, seed=k, values=values)
        for k, name in enumerate(names)
    }


def made(runs, folder, one, workers):
    return list(Study(runs).make(folder, one, workers).values())


def ends(folder):
    return {log.parent.name: verify_run(log.parent)[-1]["model_sha256"] for log in folder.glob("*/audit.jsonl")}


def test_a_comparison_is_the_same_side_by_side(tmp_path, capsys):
    found = {}
    for count in (1, 2):
        folder = tmp_path / str(count)
        code, _, err = call(capsys, *COMPARE, "--rounds", "1", "--workers", count, "--out", folder)
        assert code == 0, err
        lines = [line for line in err.splitlines() if line.startswith("run ")]
        assert sorted(line[:8] for line in lines) == ["run 1 of", "run 2 of", "run 3 of"] and " finished, " in lines[0]
        comparison = json.loads((folder / "compare.json").read_text())
        for method in comparison["methods"]:
            assert method["detail"]["cost"].pop("seconds")["mean"] > 0
        found[count] = ends(folder), comparison
    assert found[1] == found[2] and len(found[1][0]) == 3
    code, _, err = call(capsys, *COMPARE, "--rounds", "1", "--workers", "2", "--out", tmp_path / "1")
    assert code == 0 and err.count("finished before, reused") == 3


def test_contribution_side_by_side(tmp_path, capsys):
    found = []
    for count in (1, 2):
        command = ["contribution", "fedavg", *TASK, "--rounds", "1", "--workers", count, "--out", tmp_path / str(count)]
        code, out, err = call(capsys, *command, "--json")
        assert code == 0, err
        found.append(json.loads(out))
    assert found[0] == found[1]


def said(config, folder, workers):
    """A run that does what its folder's name says."""
    kind = folder.name.partition("-")[0]
    display.note(f"{folder.name} has {workers}")
    if kind == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "fails":
        raise RunFailed(f"{folder.name}: too few sites")
    if kind == "mistaken":
        raise UserError(f"{folder.name}: no such data")
    time.sleep(0.2)  # so that a mistake is known before the others are through, on a busy machine too
    return {"folder": folder.name, "pid": os.getpid()}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failed_run_takes_no_other_with_it(workers, tmp_path, capsys):
    with pytest.raises(RunFailed, match="fails-b: too few sites"):
        made(configs("a", "fails-b", "c", "fails-d"), tmp_path, said, workers)
    err = capsys.readouterr().err
    assert sorted(re.findall(r"of 4: (\S+) (finished|failed)", err)) == [
        ("a", "finished"), ("c", "finished"), ("fails-b", "failed"), ("fails-d", "failed")
    ]  # fmt: skip


@pytest.mark.parametrize("workers", [1, 2])
def test_a_mistake_begins_no_further_run(workers, tmp_path, capsys):
    names = ("mistaken-a", "b", "c", "d", "e", "f")
    with pytest.raises(UserError, match="no such data"):
        made(configs(*names), tmp_path, said, workers)
    assert capsys.readouterr().err.count(" has ") < len(names)


def children():
    """But for multiprocessing's own, which goes with this process."""
    return {one for one in psutil.Process().children() if "resource_tracker" not in " ".join(one.cmdline())}


def test_a_process_that_dies_is_replaced(tmp_path, capsys):
    before = children()
    with pytest.raises(RunFailed, match=r"dies-b: its process ended early \(SIGKILL.*the same command goes on"):
        made(configs("a", "dies-b", "c", "dies-d", "e"), tmp_path, said, 2)
    finished = re.findall(r"of 5: (\S+) finished", capsys.readouterr().err)
    assert sorted(finished) == ["a", "c", "e"] and children() <= before


@pytest.mark.slow
def test_processes_that_cannot_be_forked_are_spawned(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("fairflare.studies.parallel.start_method", lambda: "spawn")
    reports = made(configs("a", "b", "c"), tmp_path, said, 2)
    assert [report["folder"] for report in reports] == ["a", "b", "c"]


@pytest.mark.parametrize("runs, workers, shares", [(1, 4, {4}), (2, 4, {2}), (3, 4, {1}), (5, 2, {1})])
def test_the_budget_is_shared(runs, workers, shares, tmp_path, capsys):
    names = [f"r{k}" for k in range(runs)]
    reports = made(configs(*names), tmp_path, slow, workers)
    assert [report["folder"] for report in reports] == names
    assert {int(text) for text in re.findall(r"has (\d)", capsys.readouterr().err)} == shares
    assert len({report["pid"] for report in reports}) <= min(runs, workers) and reports[0]["pid"] != os.getpid()


def slow(config, folder, workers):
    time.sleep(0.3)
    return said(config, folder, workers)


def test_the_budget(monkeypatch):
    runs = configs("a", "b")
    monkeypatch.setattr("fairflare.studies.parallel.usable_cores", lambda: 6)
    assert budget(None, "local", runs) == 6 and budget(3, "local", runs) == 3 and budget(None, "sim", runs) == 1
    with pytest.raises(UserError, match="--workers: expected --env local, got --env sim"):
        budget(2, "sim", runs)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert budget(None, "local", runs) == 1


def test_one_bar_over_all_shows_what_is_left(monkeypatch):
    """In rounds, each at its method's cost; what an earlier command has done says nothing of this one's speed."""
    monkeypatch.setattr(display, "err", Console(force_terminal=True, file=io.StringIO()))
    runs = {**configs("a", rounds=4), "b": make_config("fedism-plus", "support2", rounds=4)}
    with Board(runs) as board:
        over = board._bar.tasks[0]
        cost = board._costs["b"]
        assert cost > 1 and over.total == 4 + 4 * cost and over.completed == 0
        for name in ("a", "b"):
            board.began(name)
        tell = Observer(lambda *what: board.heard("a", *what))
        tell.saw({"event": "resume", "from_round": 2})
        assert over.total == 2 + 4 * cost and over.completed == 0
        tell.saw({"event": "round", "round": 3, "rejected": {}})
        assert over.total == 2 + 4 * cost and over.completed == 1
        board.ended("b", "finished")  # reused: it did nothing
        assert over.total == 2 and over.completed == 1 and over.description == "1 of 2 runs"


def test_an_interrupted_comparison_leaves_no_process_and_folders_that_go_on(tmp_path):
    folder = tmp_path / "c"

    def run():
        gc.freeze()
        os.setpgrp()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with open(tmp_path / "said", "w") as file, contextlib.redirect_stderr(file):
            main([*COMPARE[:3], *TASK, "--rounds", "300", "--workers", "4", "--out", str(folder)])

    child = FORK.Process(target=run)
    child.start()
    deadline = time.monotonic() + 100
    while len(list(folder.glob("*/checkpoint.safetensors"))) < 2 and time.monotonic() < deadline and child.is_alive():
        time.sleep(0.02)
    family = psutil.Process(child.pid).children(recursive=True)
    assert len(family) == 6  # two runs of two workers each
    os.killpg(child.pid, signal.SIGINT)
    child.join(60)
    lines = [line for line in (tmp_path / "said").read_text().splitlines() if line.strip()]
    assert child.exitcode == 130 and lines == ["fairflare: interrupted"], lines
    assert not any(process.is_running() for process in family) and not list(folder.rglob(".*"))
    for run_folder in folder.iterdir():
        assert check_resumable(run_folder).start["method"] == "fedavg"  # or it raises what does not fit


@pytest.mark.parametrize(
    "words, text",
    [
        (["--workers", "0"], "0 is not in the range 1<=x<=1024"),
        (["--workers", "many"], "'many' is not a valid number or auto"),
        (["--workers", "²"], "'²' is not a valid number or auto"),
        (["--workers", "2", "--env", "sim"], "--workers: expected --env local, got --env sim"),
    ],
)
@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_wrong_number_is_one_line(command, words, text, tmp_path, capsys):
    code, _, err = call(capsys, command, "fedavg", *TASK, "--out", tmp_path / "out", *words)
    assert code == 2 and err.startswith("fairflare: ") and text in err and len(err.splitlines()) == 1, err
    assert not (tmp_path / "out").exists()
