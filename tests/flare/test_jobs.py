# SPDX-License-Identifier: Apache-2.0
"""jobs/ and app_configs/: each job exports what is committed, and runs from its script."""

import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import nvflare
import pytest
from stock_simulator import attempt

from cases import each
from fairflare.core import registry
from fairflare.engine.setup.config import make_config
from fairflare.flare import job

ROOT = Path(__file__).parents[2]
JOBS = sorted(p.parent.name for p in (ROOT / "jobs").glob("*/job.py"))
STOCK = {"stock_recipe"}
"""Jobs of FLARE's own recipes, whose intervals are FLARE's."""


def test_app_configs_are_in_sync():
    command = [sys.executable, str(ROOT / "jobs" / "export_configs.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@each("name", JOBS)
def test_jobs_have_a_readme(name):
    assert (ROOT / "jobs" / name / "README.md").is_file()


@each("name", JOBS)
def test_no_filter_is_registered_for_a_star(name):
    """FLARE looks filters up by a task's own name: one for "*", which its documentation calls all tasks, never runs."""
    for file in (ROOT / "app_configs" / name).glob("config_fed_*.json"):
        config = json.loads(file.read_text())
        for chain in config["task_data_filters"] + config["task_result_filters"]:
            assert chain["tasks"] and "*" not in chain["tasks"], f"{file.name}: {chain}"


@each("name", sorted(set(JOBS) - STOCK))
def test_jobs_have_short_intervals(name):
    configs = ROOT / "app_configs" / name
    server = json.loads((configs / "config_fed_server.json").read_text())
    client = json.loads((configs / "config_fed_client.json").read_text())
    assert server["server"]["task_request_interval"] == 0.25
    assert server["workflows"][0]["args"]["task_check_period"] == 0.02
    assert client["default_task_fetch_interval"] == 0.25


@each("name", sorted(set(JOBS) - STOCK))
def test_a_job_names_its_method_and_task_and_nothing_else(name):
    lines = (ROOT / "jobs" / name / "job.py").read_text().splitlines()
    assert len(lines) < 10 and f'"{name}"' in lines[-1] and "from fairflare.flare.job import main" in lines


def test_a_job_s_command_line_reaches_the_recipe(monkeypatch):
    ran = []
    monkeypatch.setattr(job.FairRecipe, "execute", lambda recipe, env: ran.append((recipe, env)))
    arguments = ["--rounds", "3", "--seed", "4", "--workspace", "w", "--production"]
    job.main("fedufo", "support2", "mine", arguments=arguments, group_by="label+sex")
    ((recipe, env),) = ran
    assert (recipe.name, recipe.config.method, recipe.config.task) == ("mine", "fedufo", "support2")
    assert (recipe.config.training.rounds, recipe.config.seed, recipe.config.group_by) == (3, 4, "label+sex")
    assert not recipe.simulation and env.workspace_root == "w"


def test_production_export_keeps_flares_intervals(tmp_path):
    script = ROOT / "jobs" / "fedavg_support2" / "job.py"
    command = [sys.executable, str(script), "--production", "--export", "--export-dir", str(tmp_path)]
    assert subprocess.run(command, capture_output=True, timeout=120).returncode == 0
    made = tmp_path / "fedavg_support2"
    assert "task_request_interval" not in (made / "app_server" / "config" / "config_fed_server.json").read_text()
    assert "task_fetch_interval" not in (made / "app_sites" / "config" / "config_fed_client.json").read_text()
    assert (made / "app_sites" / "custom" / "fairflare" / "flare" / "executor.py").is_file()
    texts = [file.read_text() for file in made.glob("app_*/config/*.json")]
    classes = {one for text in texts for one in re.findall(r'"path": "\S+\.(\w+)"', text)}
    assert [text.count('"config": {') for text in texts] == [1, 1] and "FairPersistor" in classes
    assert not [one for one in classes if f"| `{one}` |" not in (made / "README.md").read_text()], "each has its reason"


@pytest.mark.parametrize("poll, asked, looked", [(None, None, 0.5), (0.25, 0.25, 0.25), (1.0, 1.0, 0.5)])
def test_a_deployed_job_may_have_its_sites_ask_more_often(poll, asked, looked, tmp_path):
    """As ``fairflare run --env poc`` has it; FLARE's own interval otherwise."""
    recipe = job.FairRecipe(make_config("fedavg", "support2"), name="j", simulation=False, preinstalled=True, poll=poll)
    recipe.export(str(tmp_path))
    server, client = (
        json.loads((tmp_path / "j" / name).read_text())
        for name in ("app_server/config/config_fed_server.json", "app_sites/config/config_fed_client.json")
    )
    assert (server.get("server") or {}).get("task_request_interval") == asked
    assert client.get("default_task_fetch_interval") == asked
    assert server["workflows"][0]["args"]["task_check_period"] == looked


@pytest.fixture(scope="module")
def research(tmp_path_factory):
    folder = tmp_path_factory.mktemp("research")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["export_research.py", str(folder)])
        runpy.run_path(str(ROOT / "jobs" / "export_research.py"), run_name="__main__")
    return folder


SECTIONS = ["Abstract", "Papers and Links", "Objective", "Method Summary", "Repository Layout", "Setup"]
SECTIONS += ["Data Preparation", "Run Instructions", "Expected Results", "License", "Requirements", "Citation"]


@each("name", {"fedism-plus": "ich", "fedlwr": "brain", "fedheal": "ich", "fedufo": "support2"}.items())
def test_a_research_folder_has_what_flare_asks_for(name, research):
    """Its job is one of jobs/, whose export is compared above."""
    method, data = name
    job = f"{method.replace('-', '_')}_{data}"
    assert (research / method / "job.py").read_text() == (ROOT / "jobs" / job / "job.py").read_text()
    readme = (research / method / "README.md").read_text()
    assert re.findall(r"^## (.*)$", readme, re.M) == SECTIONS and readme.startswith("# ")
    assert all(body.strip() for body in re.split(r"^#+ .*$", readme, flags=re.M)[2:])
    links = re.findall(r"\]\(([^)]*)\)", readme)
    assert links and all(link.startswith("https://") for link in links)
    assert registry.get_method(method).paper.url in readme
    package, flare = (research / method / "requirements.txt").read_text().split()
    assert flare == f"nvflare~={nvflare.__version__}" and package in {
        f"./{path.name}" for path in (research / method).glob("fairflare-*.whl")
    }, "no index has it"


@pytest.mark.flare
def test_a_research_folder_runs_from_itself_alone(research, tmp_path):
    """In FLARE's simulator, as the script of jobs/ that it is a copy of."""
    folder = shutil.copytree(research / "fedufo", tmp_path / "fedufo")
    workspace = folder / "runs" / "fedufo_support2" / "fedufo_support2"
    status, said = attempt([sys.executable, "job.py", "--rounds", "1"], workspace, cwd=folder)
    assert status == 0, said[-2000:]
    run = workspace / "server" / "simulate_job"
    assert json.loads((run / "fairflare" / "report.json").read_text())["status"] == "completed"
    summary = json.loads((run / "metrics" / "metrics_summary.json").read_text())
    told = (folder / "README.md").read_text()
    assert f"`{summary['key_metric']['name']}` as their key metric" in told
    assert summary["key_metric"]["name"] in {one["name"] for one in summary["final_aggregated_metrics"]}
