# SPDX-License-Identifier: Apache-2.0
"""A study on a Dask cluster: the bits of this machine's runs, and those of a killed worker made again."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from cases import later
from cluster_runs import KILLED, fails, kills_its_worker
from fairflare import Cluster, Study
from fairflare.cli.main import main
from fairflare.core.errors import RunFailed, UserError
from fairflare.core.manifest import all_versions
from fairflare.engine.setup.config import make_config
from fairflare.report.write import verify_run
from fairflare.studies.parallel import budget
from fairflare.studies.runs import run_once

distributed = later("distributed")
pytestmark = pytest.mark.slow
TASK = ["--task", "support2:dirichlet", "--sites", "3", "--rounds", "1"]


@pytest.fixture(scope="module")
def cluster():
    """Two workers under Dask's nannies, as `dask worker` starts them."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None, silence_logs=50
    ) as made:
        yield made


def runs(*names, rounds=1):
    values = {"epochs": 1}
    return {
        name: make_config("fedavg", "support2:dirichlet", rounds=rounds, sites=3, seed=k, values=values)
        for k, name in enumerate(names)
    }


def ends(folder):
    return {log.parent.name: verify_run(log.parent)[-1]["model_sha256"] for log in folder.glob("*/audit.jsonl")}


def call(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    streams = capsys.readouterr()
    return stop.value.code, streams.out, streams.err


def test_a_comparison_on_a_cluster_has_the_same_bits(cluster, tmp_path, capsys):
    words = ["compare", "fedavg", "fedism", *TASK]
    code, _, err = call(capsys, *words, "--workers", "1", "--one-by-one", "--out", tmp_path / "here")
    assert code == 0, err
    far = ["--backend", "dask", "--scheduler", cluster.scheduler_address, "--out", tmp_path / "far"]
    code, _, err = call(capsys, *words, *far)
    assert code == 0, err
    assert sorted(line[:8] for line in err.splitlines() if line.startswith("run ")) == ["run 1 of", "run 2 of"]
    assert ends(tmp_path / "far") == ends(tmp_path / "here") and len(ends(tmp_path / "far")) == 2
    code, _, err = call(capsys, *words, *far)
    assert code == 0 and err.count("finished before, reused") == 2


def test_the_runs_of_a_killed_worker_are_made_again(cluster, tmp_path):
    """The run's process goes with its worker; the run goes on elsewhere to the same bits."""
    asked = runs("a", "b", rounds=4)
    Study(asked).make(tmp_path / "here", run_once, 1)
    (tmp_path / "far").mkdir()
    study = Study(asked)
    study.make(tmp_path / "far", kills_its_worker, Cluster(cluster.scheduler_address))
    assert ends(tmp_path / "far") == ends(tmp_path / "here") and set(study.reports) == set(asked)
    assert not any(psutil.pid_exists(int(pid)) for pid in (tmp_path / "far" / KILLED).read_text().split())


def test_a_run_that_fails_or_whose_process_dies_takes_no_other_with_it(cluster, tmp_path):
    study = Study(runs("a", "dies", "fails", "b"))
    with pytest.raises(RunFailed, match=r"dies: its process ended early \(SIGKILL"):
        study.make(tmp_path, fails, Cluster(cluster.scheduler_address))
    assert set(study.reports) == {"a", "b"} and set(study.failures) == {"dies", "fails"}
    assert os.getpid() not in {report["pid"] for report in study.reports.values()}


def test_what_nobody_waits_for_any_more_is_ended(cluster, tmp_path):
    """As after Ctrl-C at the desk."""
    code = f"""
import sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from cluster_runs import waits
from fairflare import Cluster, Study
from fairflare.engine.setup.config import make_config
config = make_config("fedavg", "support2:dirichlet", rounds=1, sites=3)
Study({{"a": config, "b": config}}).make(Path({str(tmp_path)!r}), waits, Cluster({cluster.scheduler_address!r}))
"""
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as desk:
        until(lambda: len(list(tmp_path.glob("*.pid"))) == 2)
        pids = [int(path.read_text()) for path in tmp_path.glob("*.pid")]
        assert all(psutil.pid_exists(pid) for pid in pids)
        desk.send_signal(signal.SIGINT)
        assert desk.wait(60) != 0
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def until(true, seconds=60):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_machine_with_other_software_is_refused(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr("fairflare.studies.parallel.all_versions", lambda: {**all_versions(), "torch": "1.0"})
    with pytest.raises(UserError, match="has another torch than where the study was begun"):
        Study(runs("a")).make(tmp_path, fails, Cluster(cluster.scheduler_address))


class Unreadable:
    """What no worker can unpickle."""

    def __reduce__(self):
        return int, ("no number",)


def test_what_dask_gives_up_is_said(cluster, tmp_path):
    """joblib alone would wait for ever."""
    with pytest.raises(RunFailed, match="--scheduler tcp.*the same command goes on"):
        Study(runs("a")).make(tmp_path, Unreadable(), Cluster(cluster.scheduler_address))


@pytest.mark.parametrize(
    "words, text",
    [
        (["--backend", "dask"], "--backend dask and --scheduler ADDRESS: go together"),
        (["--scheduler", "tcp://127.0.0.1:1"], "--backend dask and --scheduler ADDRESS: go together"),
        (["--backend", "dask", "--scheduler", "nonsense://x"], "--scheduler nonsense://x: cannot be reached"),
        (["--backend", "dask", "--scheduler", "tcp://127.0.0.1:1", "--workers", "2"], "--workers: counts processes"),
    ],
)
def test_mistakes_are_one_line(words, text, tmp_path, capsys):
    code, _, err = call(capsys, "compare", "fedavg", *TASK, "--out", tmp_path / "out", *words)
    assert code == 2 and err.startswith("fairflare: ") and text in err and len(err.splitlines()) == 1, err
    assert not (tmp_path / "out").exists()


def test_the_simulator_stays_here_and_a_cluster_has_workers(tmp_path):
    with pytest.raises(UserError, match="--backend dask: expected --env local, got --env sim"):
        budget(Cluster("tcp://127.0.0.1:1"), "sim", runs("a"))
    with (
        distributed.LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address=None, silence_logs=50) as empty,
        pytest.raises(UserError, match="has no worker; `dask worker"),
    ):
        budget(Cluster(empty.scheduler_address), "local", runs("a"))


def test_without_dask_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UserError, match=r"pip install 'fairflare\[dask\]'"):
        Cluster("tcp://127.0.0.1:1").slots()
