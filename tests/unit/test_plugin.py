# SPDX-License-Identifier: Apache-2.0
"""A rule in one file outside the package: listed, runnable, exported, and under the contract tests."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairflare.core import registry

ROOT = Path(__file__).parents[2]
TOY = Path(__file__).parent / "toy_rule.py"
COMMANDS = """
import contextlib, io, json, sys
from fairflare.cli.main import main
from fairflare.testing import check_method

ended = []
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            main(arguments)
        except SystemExit as end:
            ended.append((end.code, out.getvalue()))
check_method("loss-share")
print(json.dumps(ended))
"""


@pytest.fixture(scope="module")
def environment():
    return {**os.environ, "FAIRFLARE_PLUGINS": str(TOY)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("plugin")


@pytest.fixture(scope="module")
def ended(environment, folder):
    """Exit code and output of ``list``, ``run`` and ``export`` in one process that has the variable."""
    support2 = [
        "loss-share",
        "--task",
        "support2",
        "--set",
        "robust=off",
    ]  # which leaves the weights as the rule has them
    commands = [
        ["list", "--json"],
        ["run", *support2, "--rounds", "2", "--no-solo", "--out", str(folder / "run"), "--json"],
        ["export", *support2, "--out", str(folder / "job")],
    ]
    command = [sys.executable, "-c", COMMANDS, json.dumps(commands)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_is_listed(ended):
    code, out = ended[0]
    row = next(r for r in json.loads(out) if r["id"] == "loss-share")
    assert code == 0 and row["title"] == "LossShare" and row["parameters"]["smoothing"] == 0.0


def test_it_runs(ended, folder):
    assert ended[1][0] == 0
    entries = [json.loads(line) for line in (folder / "run" / "audit.jsonl").read_text().splitlines()]
    first = entries[1]
    total = sum(r["scalars"]["loss"] for r in first["accepted"].values())
    for site, reply in first["accepted"].items():
        assert first["weights"][site] == pytest.approx(reply["scalars"]["loss"] / total)


def test_its_job_carries_it(ended, folder):
    assert ended[2][0] == 0
    shipped = folder / "job" / "app_sites" / "custom" / "fairflare" / "aggregators" / "toy_rule.py"
    assert shipped.read_text() == TOY.read_text()


OF_EVERY_METHOD = (
    "test_laws.py::test_contract",
    "test_faults.py::test_every_fault_leaves_no_trace_whatever_the_method",
    "test_absences.py::test_sites_come_and_go",
    "test_product.py::test_every_trainer_and_server_optimizer_under",
)


@pytest.mark.slow  # in a session of their own
def test_it_is_under_the_contract_tests(environment):
    tests = [f"tests/laws/{name}" for name in OF_EVERY_METHOD]
    command = [sys.executable, "-m", "pytest", *tests, "--only", "loss-share", "-v", "-p", "no:xdist"]
    environment = {key: value for key, value in environment.items() if key != "PYTEST_ADDOPTS"}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:]
    assert all(f"{name} PASSED" in done.stdout for name in OF_EVERY_METHOD), done.stdout[-4000:]


def test_it_is_gone_without_the_variable(ended):
    assert registry.PLUGINS not in os.environ and "loss-share" not in registry.methods()


def test_a_missing_plugin_is_one_line(environment):
    command = [sys.executable, "-m", "fairflare", "list"]
    environment = {**environment, "FAIRFLARE_PLUGINS": "nowhere.py,other.py"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "nowhere.py" in done.stderr
    assert f"(expected {os.pathsep!r} between files)" in done.stderr
