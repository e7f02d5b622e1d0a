# SPDX-License-Identifier: Apache-2.0
"""A rule in one file outside the package: listed, runnable, exported, and under the contract tests."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOY = Path(__file__).parent / "toy_rule.py"


@pytest.fixture(scope="module")
def environment():
    return {**os.environ, "FAIRFLARE_PLUGINS": str(TOY)}


def fairflare(environment, *arguments):
    command = [sys.executable, "-m", "fairflare.cli", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def test_it_is_listed(environment):
    rows = json.loads(fairflare(environment, "list", "--json").stdout)
    row = next(r for r in rows if r["id"] == "loss-share")
    assert row["title"] == "LossShare" and row["parameters"]["smoothing"] == 0.0


def test_it_runs(environment, tmp_path):
    done = fairflare(
        environment, "run", "loss-share", "--task", "support2", "--rounds", 2, "--out", tmp_path / "run", "--json"
    )
    assert done.returncode == 0, done.stderr
    entries = [json.loads(line) for line in (tmp_path / "run" / "audit.jsonl").read_text().splitlines()]
    first = entries[1]
    total = sum(r["scalars"]["loss"] for r in first["accepted"].values())
    for site, reply in first["accepted"].items():
        assert first["weights"][site] == pytest.approx(reply["scalars"]["loss"] / total)


def test_it_is_under_the_contract_tests(environment):
    command = [sys.executable, "-m", "pytest", "tests/laws", "-k", "loss-share", "-q"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "12 passed" in done.stdout, done.stdout[-2000:]


def test_its_job_carries_it(environment, tmp_path):
    done = fairflare(environment, "export", "loss-share", "--task", "support2", "--out", tmp_path / "job")
    assert done.returncode == 0, done.stderr
    shipped = tmp_path / "job" / "app" / "custom" / "fairflare" / "rules" / "toy_rule.py"
    assert shipped.read_text() == TOY.read_text()


def test_it_is_gone_without_the_variable():
    known = json.loads(fairflare(dict(os.environ), "list", "--json").stdout)
    assert "loss-share" not in [r["id"] for r in known]


def test_a_missing_plugin_is_one_line(environment):
    done = fairflare({**environment, "FAIRFLARE_PLUGINS": "nowhere.py"}, "list")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "nowhere.py" in done.stderr
