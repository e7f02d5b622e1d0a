# SPDX-License-Identifier: Apache-2.0
"""A run on a real MLflow server, whose REST answers are compared with report.json.

MLflow brings too much for one environment with the rest: ``make mlflow`` makes one of its own and runs this with it.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import time

import pytest
import requests

from model_use import call, run

MLFLOW = os.environ.get("FAIRFLARE_MLFLOW") or shutil.which("mlflow")
needs_mlflow = pytest.mark.skipif(not MLFLOW, reason="no mlflow; make mlflow runs it")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "heart"
    return run(folder, "fedism-plus", "--task", "heart:full", "--rounds", 2)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    home, port = tmp_path_factory.mktemp("mlflow"), free_port()
    uri = f"http://127.0.0.1:{port}"
    given = ["--backend-store-uri", f"sqlite:///{home}/db.sqlite", "--artifacts-destination", str(home / "files")]
    with (home / "log").open("w") as log:
        started = subprocess.Popen(
            [MLFLOW, "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1", *given],
            stdout=log,
            stderr=log,
            cwd=home,
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},  # seven processes that nobody asks
            start_new_session=True,
        )
        try:
            for _ in range(300):
                try:
                    if requests.get(f"{uri}/health", timeout=2).ok:
                        break
                except requests.RequestException:
                    time.sleep(1)
            else:
                raise AssertionError((home / "log").read_text()[-2000:])
            yield uri
        finally:
            os.killpg(started.pid, signal.SIGKILL)  # its workers, too
            started.wait(60)


def told(server):
    """Runs of the experiment by id, their metrics and parameters as plain mappings."""
    api = f"{server}/api/2.0/mlflow"
    found = requests.get(f"{api}/experiments/get-by-name", params={"experiment_name": "hospitals"}, timeout=60).json()
    ids = [found["experiment"]["experiment_id"]]
    runs = requests.post(f"{api}/runs/search", json={"experiment_ids": ids, "max_results": 100}, timeout=60).json()
    return {one["info"]["run_id"]: one for one in runs["runs"]}


def plain(one, kind):
    return {row["key"]: row["value"] for row in one["data"].get(kind, [])}


@needs_mlflow
def test_a_federations_run_with_a_child_for_each_site(server, finished, capsys):
    code, said, _ = call(capsys, "report", finished, "--mlflow", server, "--experiment", "hospitals", "--json")
    assert code == 0 and not json.loads(said)["remarks"]
    report = json.loads((finished / "report.json").read_text())
    fairness, name = report["detail"]["fairness"], report["fairness"]["metric"]
    runs = told(server)
    parent = runs[json.loads(said)["run"]]
    metrics, params = plain(parent, "metrics"), plain(parent, "params")
    assert metrics[f"mean_{name}"] == fairness["mean"] and metrics[f"gap_{name}"] == fairness["gap"]
    assert metrics[f"worst_{name}"] == fairness["worst"]["value"]
    assert [metrics.get(f"mean_{name}_{end}") for end in ("low", "high")] == [
        fairness["ci"][e] for e in ("low", "high")
    ]
    assert params["method"] == "fedism-plus" and params["seed"] == "0" and params["task"] == "heart:full"
    assert float(params["train.lr"]) == report["detail"]["training"]["lr"]
    assert params["model_sha256"] == report["detail"]["provenance"]["model_sha256"]
    children = {plain(one, "tags")["fairflare.site"]: one for one in runs.values() if one is not parent}
    assert set(children) == set(report["sites"]) and len(runs) == len(children) + 1
    intervals = 0
    for site, one in children.items():
        assert plain(one, "tags")["mlflow.parentRunId"] == parent["info"]["run_id"]
        own = plain(one, "metrics")
        assert one["info"]["status"] == "FINISHED"
        for key, value in report["sites"][site]["metrics"].items():
            assert own[f"test_{key}"] == value
        assert own["weight"] == report["sites"][site]["weight"][-1]
        intervals += sum(key.endswith("_low") for key in own)
    assert intervals >= len(children)
    steps = requests.get(
        f"{server}/api/2.0/mlflow/metrics/get-history",
        params={"run_id": parent["info"]["run_id"], "metric_key": f"val_worst_{name}"},
        timeout=60,
    ).json()["metrics"]
    rounds = {one["round"]: one["worst"]["value"] for one in report["detail"]["rounds"]}
    assert {one["step"]: one["value"] for one in steps} == rounds
    assert str(finished.parent) not in json.dumps(runs)


@needs_mlflow
def test_the_report_is_an_artifact(server, finished):
    parent = next(one for one in told(server).values() if "fairflare.method" in plain(one, "tags"))
    where = parent["info"]["artifact_uri"].removeprefix("mlflow-artifacts:/")
    for name in ("report.html", "report.json"):
        got = requests.get(f"{server}/api/2.0/mlflow-artifacts/artifacts/{where}/{name}", timeout=60)
        assert got.content == (finished / name).read_bytes()


def test_without_a_server_it_is_one_line(finished, capsys):
    code, _, said = call(capsys, "report", finished, "--mlflow", f"http://127.0.0.1:{free_port()}")
    assert code == 1 and said.startswith("fairflare: MLflow") and len(said.strip().splitlines()) == 1
    assert call(capsys, "report", finished, "--mlflow", "file:///tmp/x")[0] == 2
