# SPDX-License-Identifier: Apache-2.0
"""The package in a job: a hospital's own data bring no published or simulated data set."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import fairflare
from fairflare.app.cli import main
from fairflare.build import tasks
from fairflare.core import registry, user_code, versions
from fairflare.core.errors import UserError
from fairflare.flare.staging import needed_datasets, stage_package
from own_folder import write_images, write_tables

SOURCE = Path(fairflare.__file__).parent
OWN = ("classification", "segmentation", "tabular")


def datasets(package):
    folder = package / "datasets"
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("task", OWN)
def test_a_task_on_own_data_brings_no_data_set(task, tmp_path):
    package = stage_package(tmp_path, task)
    assert not (package / "datasets").exists()
    assert {p.name for p in SOURCE.iterdir() if p.is_dir()} - {"datasets", "__pycache__"} == {
        p.name for p in package.iterdir() if p.is_dir()
    }


def test_a_table_brings_itself_alone(tmp_path):
    assert datasets(stage_package(tmp_path, "support2")) == {
        "__init__.py",
        "support2.py",
        "data/README.md",
        "data/support2.csv.gz",
        "kinds/__init__.py",
        "kinds/partition.py",
        "kinds/patients.py",
        "kinds/rows.py",
        "readers/__init__.py",
        "readers/cohort.py",
    }


def test_another_table_brings_its_own_files_alone(tmp_path):
    found = datasets(stage_package(tmp_path, "heart"))
    hospitals = ("cleveland", "hungarian", "switzerland", "va")
    brought = {name for name in found if name.startswith("data/")}
    assert brought == {"data/README.md", *(f"data/processed.{name}.data" for name in hospitals)}
    assert {"heart.py", "readers/heart.py", "kinds/centres.py"} <= found and "support2.py" not in found
    (tmp_path / "other").mkdir()
    trial = datasets(stage_package(tmp_path / "other", "ist"))
    assert {name for name in trial if name.startswith("data/")} == {"data/README.md", "data/ist.csv.gz"}


def test_a_simulated_task_brings_no_table(tmp_path):
    package = stage_package(tmp_path, "ich-phantom")
    found = datasets(package)
    assert not [name for name in found if name.startswith(("data/", "readers/"))]
    assert {"ich_phantom.py", "simulated/phantom.py"} <= found
    assert not {"simulated/mr.py", "simulated/fundus.py", "simulated/numerals.py"} & found


@pytest.mark.parametrize("task", ["ich-phantom", "brain-seg", "digits"])
def test_a_job_keeps_rendered_data_under_the_same_name(task, tmp_path):
    """What FLARE's processes render with the files that their job carries, the next command finds."""
    stage_package(tmp_path, task)
    code = f"""if True:
        from fairflare.build.tasks import load
        from fairflare.datasets.simulated import cache
        print(cache.__file__)
        print(cache._key(load({task!r}), "site-1"))"""
    found = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env).stdout.split(
            "\n"
        )
        for env in ({"PATH": "", "PYTHONPATH": str(folder)} for folder in (tmp_path, SOURCE.parent))
    ]
    assert found[0][0] != found[1][0] and found[0][1] == found[1][1] != ""


@pytest.mark.parametrize("task", ["support2", "ich-phantom", "tabular"])
def test_the_copy_has_the_package_s_hash(task, tmp_path):
    """A server with the whole package and a site with a job's copy of it have the same program."""
    package = stage_package(tmp_path, task)
    assert versions._sha256(package) == versions.package_sha256()


@pytest.mark.parametrize("task", sorted(tasks.TASKS))
def test_every_task_brings_its_own_module(task):
    needed = needed_datasets(SOURCE, task)
    home = tasks.known(task).__module__.split(".")[1:]
    assert (Path(*home).with_suffix(".py") in needed) == (home[0] == "datasets") == bool(needed)


def test_data_sets_import_nothing_by_name():
    """What a job carries of them follows from the import statements alone."""
    for path in (SOURCE / "datasets").rglob("*.py"):
        assert "import_module" not in path.read_text() and "__import__" not in path.read_text(), path.name


LOAD = """
import sys
sys.path.insert(0, sys.argv[1])
import fairflare
assert fairflare.__file__.startswith(sys.argv[1])
from fairflare.build import tasks
assert sys.argv[2] in tasks.TASKS and len(tasks.TASKS) == 5, sorted(tasks.TASKS)
task = tasks.load(sys.argv[2])
task.network(), task.sites()
"""


@pytest.mark.slow  # a process each
@pytest.mark.parametrize("task", ["support2", "heart", "ich-phantom", "digits5"])
def test_a_published_task_loads_from_what_its_job_carries(task, tmp_path):
    """A table, a simulated task and one that reads files; the tasks on a hospital's own data are there too."""
    stage_package(tmp_path, task)
    command = [sys.executable, "-c", LOAD, str(tmp_path), task]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_changed_copy_has_another_hash(tmp_path):
    package = stage_package(tmp_path, "support2")
    (package / "datasets" / "support2.py").write_text("")
    assert versions._sha256(package) != versions.package_sha256()


def test_own_files_bring_what_they_import(tmp_path, monkeypatch):
    code, plugin = tmp_path / "mine.py", tmp_path / "my_probe.py"
    code.write_text("def f():\n    from fairflare.datasets.simulated import corruptions\n")
    plugin.write_text("import fairflare.datasets.kinds.partition\n")
    monkeypatch.setenv(user_code.VARIABLE, str(code))
    monkeypatch.setenv(registry.PLUGINS, str(plugin))
    (tmp_path / "job").mkdir()
    package = stage_package(tmp_path / "job", "segmentation")
    assert {"simulated/corruptions.py", "kinds/partition.py"} <= datasets(package)
    assert "support2.py" not in datasets(package)
    assert (package / "rules" / "my_probe.py").is_file()


def test_an_unknown_task_is_refused(tmp_path):
    with pytest.raises(UserError, match="unknown task: 'lungs'; known: "):
        stage_package(tmp_path, "lungs")


BUILD = """
import json, sys
sys.path.insert(0, sys.argv[1])
import fairflare
assert fairflare.__file__.startswith(sys.argv[1])
from fairflare.build.assembly import build_site
from fairflare.build.parts import build_parts
from fairflare.build.config import RunConfig
import fairflare.flare.controller, fairflare.flare.executor, fairflare.flare.egress, fairflare.flare.persistor
import fairflare.flare.aggregator, fairflare.flare.site_policy, fairflare.report.write
assert not [name for name in sys.modules if name.startswith("fairflare.datasets")]
from fairflare.flare.braces import shown
config = RunConfig.from_json(shown(json.loads(sys.argv[2])))
parts = build_parts(config)
site = build_site(config, parts, "north")
found, data = site.look()
assert data is not None and not [one for one in found if one.level == "error"], found
"""


@pytest.mark.parametrize("task", [pytest.param("segmentation", marks=pytest.mark.slow), "tabular"])  # loads MONAI
def test_an_exported_job_builds_without_data_sets(task, tmp_path):
    """The zip that a site gets, unpacked: its server builds the model and its site reads the hospital's files."""
    data = tmp_path / "data"
    if task == "tabular":
        write_tables(data)
        more = ["label=outcome", "features=age,score"]
    else:
        write_images(data, masks=True)
        more = ["size=32"]
    own = ["--datalists", data, "--kind", task, "--classes", "lived,died" if task == "tabular" else "lesion"]
    own += [part for pair in more for part in ("--set", pair)]
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in ("export", "fedavg", *own, "--rounds", "2", "--out", tmp_path / "job", "--simulation")])
    assert end.value.code == 0
    archive = tmp_path / "job.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in (tmp_path / "job").rglob("*"):
            file.write(path, path.relative_to(tmp_path / "job"))
    names = zipfile.ZipFile(archive).namelist()
    assert "app/custom/fairflare/clinic/base.py" in names
    assert not [name for name in names if "/datasets" in name]
    zipfile.ZipFile(archive).extractall(tmp_path / "site")
    server = json.loads((tmp_path / "job" / "app_server" / "config" / "config_fed_server.json").read_text())
    config = json.dumps(server["workflows"][0]["args"]["config"])
    command = [sys.executable, "-c", BUILD, str(tmp_path / "site" / "app" / "custom"), config]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
