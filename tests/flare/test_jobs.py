# SPDX-License-Identifier: Apache-2.0
"""jobs/ and app_configs/: each job exports what is committed, and runs from its script."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
JOBS = sorted(p.parent.name for p in (ROOT / "jobs").glob("*/job.py"))


def test_app_configs_are_in_sync():
    command = [sys.executable, str(ROOT / "jobs" / "export_configs.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", JOBS)
def test_jobs_have_a_readme_and_short_intervals(name):
    assert (ROOT / "jobs" / name / "README.md").is_file()
    configs = ROOT / "app_configs" / name
    server = json.loads((configs / "config_fed_server.json").read_text())
    client = json.loads((configs / "config_fed_client.json").read_text())
    assert server["server"]["task_request_interval"] == 0.02
    assert server["workflows"][0]["args"]["task_check_period"] == 0.02
    assert client["default_task_fetch_interval"] == 0.02


def test_production_export_keeps_flares_intervals(tmp_path):
    script = ROOT / "jobs" / "fedavg_support2" / "job.py"
    command = [sys.executable, str(script), "--production", "--export", "--export-dir", str(tmp_path)]
    assert subprocess.run(command, capture_output=True, timeout=120).returncode == 0
    job = tmp_path / "fedavg_support2" / "app"
    assert "task_request_interval" not in (job / "config" / "config_fed_server.json").read_text()
    assert "task_fetch_interval" not in (job / "config" / "config_fed_client.json").read_text()
    assert (job / "custom" / "fairflare" / "flare" / "executor.py").is_file()


@pytest.mark.flare
def test_a_job_script_runs_in_the_simulator(tmp_path):
    script = ROOT / "jobs" / "fedavg_support2" / "job.py"
    command = [sys.executable, str(script), "--rounds", "1", "--workspace", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:]
    folder = tmp_path / "fedavg_support2" / "server" / "simulate_job" / "fairflare"
    assert json.loads((folder / "report.json").read_text())["status"] == "completed"
