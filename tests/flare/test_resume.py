# SPDX-License-Identifier: Apache-2.0
"""kill -9 at named points, then ``fairflare resume``: the model of an uninterrupted run, bit for bit."""

import gc
import json
import multiprocessing
import shutil
import signal
from pathlib import Path

import pytest
from killed_runs import kill_one_process

from command_line import code_of as call
from fairflare.cli.main import main
from fairflare.engine.audit import verify
from fairflare.engine.in_process import InProcess
from fairflare.report.write import verify_run
from killing import POINTS

FORK = multiprocessing.get_context("fork")
KILLING = Path(__file__).parents[1] / "killing.py"
AT_THE_SERVER = ["between the exchanges", "writing state", "between rounds"]
"""A simulator's dies "training" and "writing state" in test_personal_flare.py, "sending" in test_plugins_sim.py."""
RUN = ["run", "fedlwr", "--task", "support2:dirichlet", "--rounds", "3"]
SMALL = ["n_sites=3", "epochs=1"]


@pytest.fixture(scope="module")
def command():
    return [*RUN, *(part for pair in SMALL for part in ("--set", pair))]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, command):
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert call(*command, "--out", folder) == 0
    return folder


def model_of(folder):
    return verify(folder / "audit.jsonl")[-1]["model_sha256"]


def run_and_die(point, arguments):
    """In a process that has torch loaded already."""
    gc.freeze()  # what other files have left is collected in no fork
    POINTS[point]()
    main(arguments)


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_run_ends_in_the_same_model(point, command, uninterrupted, tmp_path):
    folder = tmp_path / "run"
    killed = FORK.Process(target=run_and_die, args=(point, [*command, "--out", str(folder)]))
    killed.start()
    killed.join(120)
    assert killed.exitcode == -signal.SIGKILL
    assert call("resume", folder) == 0
    entries = verify_run(folder)
    assert entries[-1]["model_sha256"] == model_of(uninterrupted) and entries[-1]["status"] == "completed"
    resumed = next(e for e in entries if e["event"] == "resume")
    assert resumed["from_round"] == 1
    finished = [e["round"] for e in entries if e["event"] == "round"]
    # A round whose checkpoint was lost is repeated, and the repetition is what counts.
    assert finished == ([1, 2, 2, 3] if point == "writing state" else [1, 2, 3])
    report = json.loads((folder / "report.json").read_text())
    assert report["rounds"] == 3 and all(len(row["weight"]) == 3 for row in report["sites"].values())
    results = (".solo.safetensors", ".inputs.json", *(f"site-{k}.safetensors" for k in (1, 2, 3)))
    assert all(path.name.endswith(results) for path in (folder / "sites").glob("*"))


@pytest.mark.long
@pytest.mark.parametrize("point", AT_THE_SERVER)
def test_the_simulators_server_is_killed(point, command, uninterrupted, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    kill_one_process([*command, "--env", "sim", "--out", folder], point, (KILLING,), tmp_path, monkeypatch)
    assert [e["round"] for e in verify(folder / "audit.jsonl") if e["event"] == "round"] in ([1], [1, 2])
    assert call("resume", folder) == 0
    entries = verify_run(folder)
    assert entries[-1]["model_sha256"] == model_of(uninterrupted) and entries[-1]["status"] == "completed"
    assert [e["from_round"] for e in entries if e["event"] == "resume"] == [1]


def test_what_cannot_be_resumed(uninterrupted, tmp_path, capsys):
    assert call("resume", tmp_path) == 2 and "expected the folder of a run" in capsys.readouterr().err
    folder = shutil.copytree(uninterrupted, tmp_path / "run")
    assert call("resume", folder) == 2 and "the run is complete" in capsys.readouterr().err
    config = json.loads((folder / "config.json").read_text())
    for change in ({"env": "prod"}, {"seed": 9}):
        (folder / "config.json").write_text(json.dumps({**config, **change}))
        assert call("resume", folder) == 2 and "another configuration" in capsys.readouterr().err
    deployed = tmp_path / "deployed"
    deployed.mkdir()
    (deployed / "config.json").write_text(json.dumps({**config, "env": "prod"}))
    assert (
        call("resume", deployed) == 2 and f"fairflare run --continue {deployed} --env prod" in capsys.readouterr().err
    )


def test_a_run_that_failed_for_too_few_sites_goes_on_when_they_are_back(command, tmp_path, capsys):
    folder = tmp_path / "run"
    original = InProcess.exchange

    def some(self, instructions):
        first = next(iter(instructions.values()))
        alone = first.task == "train" and first.round.number == 2
        return (a for a in original(self, instructions) if not alone or a.site == "site-1")

    InProcess.exchange = some
    try:
        assert call(*command, "--out", folder) == 1
    finally:
        InProcess.exchange = original
    assert "1 accepted sites, 2 needed" in capsys.readouterr().err
    assert call("resume", folder) == 0
    entries = verify_run(folder)
    assert [e["event"] for e in entries].count("finish") == 2 and entries[-1]["status"] == "completed"
