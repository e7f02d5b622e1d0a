# SPDX-License-Identifier: Apache-2.0
"""The door between the two distributions: what the lab brings, what is missing without it, and what a job carries."""

import json
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from cases import each
from fairflare.cli.main import main
from fairflare.core import lab, plugins, registry
from fairflare.core.errors import UserError
from fairflare.engine.setup import tasks
from fairflare.engine.setup.config import make_config
from fairflare.flare.recipe import FairRecipe
from fairflare.privacy.secure_sums import check_scheme

ROOT = Path(__file__).parents[2]
INSTALL = "pip install 'fairflare[lab]'"


@pytest.fixture
def without(monkeypatch):
    """An environment that has the house alone, as far as entry points say."""
    monkeypatch.setattr(plugins, "in_group", lambda group=plugins.GROUP: ())


def test_the_names_that_the_house_knows_are_what_the_lab_brings():
    brought = {id for id, entry in registry.methods().items() if entry.home.startswith("fairflare_lab.")}
    assert brought == lab.METHODS and len(brought) == 30 and len(registry.methods()) == 53
    assert {name for name, cls in tasks.every().items() if cls.__module__.startswith("fairflare_lab.")} == lab.TASKS
    assert plugins.modules_by_name(plugins.COMMANDS).keys() == lab.COMMANDS


@each("asked", (["run", "afl", "--task", "support2"], ["describe", "digits5"], ["paper"], ["riders", "fedavg"]))
def test_what_is_not_installed_is_one_line_that_says_how(asked, capsys):
    code = f"""if True:
        from fairflare.core import plugins
        plugins.in_group = lambda group=plugins.GROUP: ()
        from fairflare.cli.main import main
        main({asked!r})"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and INSTALL in done.stderr, done.stderr


def test_ckks_without_the_lab(without):
    with pytest.raises(UserError, match="fairflare-lab, which is not installed"):
        check_scheme("ckks")


def test_a_run_of_the_house_imports_nothing_of_the_lab(tmp_path):
    command = ["run", "fedavg", "--task", "support2", "--rounds", "1", "--no-solo", "--out", str(tmp_path / "run")]
    code = f"""if True:
        import sys
        from fairflare.cli.main import main
        try:
            main({command!r})
        except SystemExit as end:
            assert not end.code
        lab = [name for name in sys.modules if name.partition(".")[0] == "fairflare_lab"]
        assert not [name for name in lab if not hasattr(sys.modules[name], "__path__")], lab"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_job_carries_the_modules_and_the_entry_points_that_it_needs(tmp_path):
    config = make_config("ifca", "support2-survival", values={})
    FairRecipe(config, name="job", simulation=False).export(str(tmp_path))
    for app in ("app_server", "app_sites"):
        custom = tmp_path / "job" / app / "custom"
        there = {path.relative_to(custom).as_posix() for path in custom.rglob("*") if path.is_file()}
        assert "fairflare_lab/methods/cluster_loss.py" in there or app == "app_server"
        assert {"fairflare_lab/datasets/data/support2_times.csv.gz", "fairflare_lab/methods/ifca.py"} <= there
        assert "fairflare_lab/datasets/tcga_brca.py" not in there and "fairflare_lab/methods/afl.py" not in there
        (about,) = custom.glob("fairflare_lab-*.dist-info")
        assert "lab = fairflare_lab.methods" in (about / "entry_points.txt").read_text()
        listed = json.loads((custom.parent / "MANIFEST.json").read_text())["files"]
        assert there == set(listed), "every file that is carried is listed with its hash"


def test_an_entry_point_that_names_no_module_is_one_line(monkeypatch):
    entry = EntryPoint("gone", "no_such_package.methods", plugins.GROUP)
    monkeypatch.setattr(plugins, "in_group", lambda group=plugins.GROUP: (entry,) if group == plugins.GROUP else ())
    with pytest.raises(UserError, match="entry point gone of fairflare.plugins: ModuleNotFoundError"):
        registry.methods()


@pytest.mark.flare
def test_a_method_of_the_lab_runs_in_flares_simulator(tmp_path, capsys):
    """Its sites have the code that the job carries; the model is that of the run in one process, bit for bit."""
    models = []
    for env in ("local", "sim"):
        out = tmp_path / env
        command = ["run", "afl", "--task", "support2", "--rounds", "2", "--no-solo", "--env", env, "--out", str(out)]
        with pytest.raises(SystemExit) as end:
            main(command)
        assert not end.value.code, capsys.readouterr().err
        models.append((out / "model.safetensors").read_bytes())
    assert models[0] == models[1]
