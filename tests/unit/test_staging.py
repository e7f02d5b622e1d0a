# SPDX-License-Identifier: Apache-2.0
"""What a job carries of the package: at a site what its executor reaches, and nothing that stays at the desk."""

import ast
import dataclasses
import functools
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import fairflare
from fairflare.cli.main import main
from fairflare.core import imports, manifest, registry, user_code
from fairflare.core.errors import UserError
from fairflare.engine.setup import tasks
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.method_defaults import default_parts
from fairflare.flare import staging
from fairflare.flare.recipe import FairRecipe
from fairflare.flare.staging import copy_package, copy_plugin_packages, modules_of_run, needed, own_files
from fairflare.networks.own_class import MONAI
from own_folder import write_images, write_tables

SOURCE = Path(fairflare.__file__).parent
OWN = {
    "tabular": {"site_names": "a,b", "labels": "2"},
    "classification": {"site_names": "a,b", "labels": "2", "channels": 1, "size": 32},
    "segmentation": {"site_names": "a,b", "labels": "lesion", "channels": 1, "size": 32},
    "regression": {"site_names": "a,b", "labels": "stay"},
    "multilabel": {"site_names": "a,b", "labels": "edema,mass"},
    "ordinal": {"site_names": "a,b", "labels": "low,middle,high"},
    "image-regression": {"site_names": "a,b", "labels": "volume", "channels": 1, "size": 32},
    "image-multilabel": {"site_names": "a,b", "labels": "edema,mass", "channels": 1, "size": 32},
    "image-ordinal": {"site_names": "a,b", "labels": "low,middle,high", "channels": 1, "size": 32},
    "volume-classification": {"site_names": "a,b", "labels": "2"},
    "volume-segmentation": {"site_names": "a,b", "labels": "lesion"},
    "script": {"site_names": "a,b", "script": "train.network", "labels": "2"},
}
SITE = ["fairflare.flare.executor.FairExecutor", "fairflare.flare.egress.EgressFilter"]
SERVER = ["fairflare.flare.controller.FairController", "fairflare.flare.persistor.FairPersistor"]
DESK = {"cli", "studies", "import_data", "report", "papers", "testing", "inference", "datasets"}
"""What a site is not sent, of a job for a hospital's own data."""
MOST_FILES, MOST_LINES = 114, 18_930
"""Of a site's copy: what a reviewer reads in an afternoon."""


@functools.cache
def of_task(task):
    """Preset and options; of a task that names no sites here, or finds them by itself, the task's defaults."""
    if task not in OWN:
        return None, {}
    made = make_config("fedavg", task, values=OWN[task])
    return made.preset, made.options


class Run:
    """As much of a configuration as decides what is carried."""

    def __init__(self, method, task, after="none"):
        entry = registry.get_method(method)
        self.method, self.task, self.evaluation, self.fold, self.after = method, task, False, "", after
        self.join, self.site_epsilon, self.secure_sum, self.solo, self.exchanges = {}, 0.0, "none", False, []
        self.tune = "all"
        self.preset, self.options = of_task(task)
        kinds = ("trainer", "selector", "server_optimizer")
        self.parts = {kind: getattr(entry, kind) for kind in kinds}


@pytest.fixture(autouse=True, scope="module")
def read_once():
    """The package stays as it is meanwhile; no two tests' own files have one path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "module_files", functools.cache(staging.module_files))
        patch.setattr(imports, "imports", functools.cache(imports.imports))
        yield


def at_site(method, task, after="none"):
    """The files of a site's copy, relative to the package."""
    return needed([*SITE, *modules_of_run(Run(method, task, after))], own_files())


def carried(folder, method, task):
    """Writes into ``folder`` what a site's app holds of this package and of installed packages of plugins."""
    copy_package(folder / "fairflare", at_site(method, task))
    copy_plugin_packages(folder, [*SITE, *modules_of_run(Run(method, task))], own_files())


def of_lab(method, task):
    """The files of the research distribution that a site is sent."""
    modules = staging._modules()
    reached = staging._reached([*SITE, *modules_of_run(Run(method, task))], own_files(), modules)
    return {modules[name] for name in reached if name.startswith("fairflare_lab.")}


@functools.cache
def lines(path):
    """Of a file that is text; 0 of others."""
    return manifest.entry_of(SOURCE / path)["lines"] or 0


def lines_of(files):
    return sum(map(lines, files))


def staged(folder, method, task, **values):
    """The two apps of an exported job: server's, sites'."""
    FairRecipe(make_config(method, task, values=values), name="job", simulation=False).export(str(folder))
    return folder / "job" / "app_server", folder / "job" / "app_sites"


def datasets(task):
    """Names below datasets/ that a site's copy has."""
    found = at_site("fedavg", task)
    return {path.relative_to("datasets").as_posix() for path in found if path.parts[0] == "datasets"}


def test_every_method_keeps_below_the_line():
    """Own data: at most so many files and lines, and nothing of what stays at the desk.

    What a method and a task bring is what each brings beside another one: imports are followed from each by itself.
    """
    by_method = {method: (at_site(method, "tabular"), of_lab(method, "tabular")) for method in registry.methods()}
    by_task = {task: (at_site("fedavg", task), of_lab("fedavg", task)) for task in OWN}
    for method, task in (("fedce", "segmentation"), ("glm", "regression"), ("fedproto", "volume-classification")):
        both = (at_site(method, task) - by_task[task][0], of_lab(method, task) - by_task[task][1])
        assert all(one <= own for one, own in zip(both, by_method[method])), (method, task)
    for task, of_task in by_task.items():
        for method, of_method in by_method.items():
            files, own = (one | other for one, other in zip(of_task, of_method))
            lines, tops = lines_of(files | own), {path.parts[0] for path in files}
            said = f"{method} on {task}: {len(files)} files, {lines} lines"
            assert len(files) <= MOST_FILES and lines <= MOST_LINES, said
            assert not tops & DESK, f"{said}: {sorted(tops & DESK)}"


def test_a_decision_keeps_below_the_line():
    """Of own tables, which a decision is of."""
    run = Run("glm", "tabular")
    run.fold, run.exchanges = "all", ["decide"]
    files = needed([*SITE, *modules_of_run(run)], own_files())
    lines, desk = lines_of(files), {path.parts[0] for path in files} & DESK
    assert len(files) <= MOST_FILES and lines <= MOST_LINES and not desk, (lines, desk)
    print(f"a decision: {len(files)} files, {lines} lines")


def test_a_job_with_a_hospitals_budget_carries_its_noise():
    run, noise = Run("fedavg", "tabular"), Path("privacy/differential_privacy.py")
    without = needed([*SITE, *modules_of_run(run)], own_files())
    run.site_epsilon = 1.0
    assert noise in needed([*SITE, *modules_of_run(run)], own_files()) - without


def test_a_site_is_sent_no_server():
    """The loop, the gate, the log's readers and what weighs updates stay at the server."""
    names = {path.as_posix() for path in at_site("fedavg", "tabular")}
    server = ("loop", "gate", "norms", "best", "scoring", "history", "combination", "server_sums")
    assert not names & {f"engine/{name}.py" for name in server}
    assert not names & {"engine/setup/assembly.py", "engine/setup/parts.py"}
    assert not names & {"flare/controller.py", "aggregators/bounded.py"}
    assert {"flare/script.py", "flare/script_side.py"} <= {p.as_posix() for p in at_site("fedavg", "script")} - names
    assert "data/readers/pictures.py" not in names, "a run on tables reads no images"


def test_a_job_carries_its_own_kind_of_task_and_no_other():
    """A run on classes is sent no line of what other outcomes need."""
    kinds = {"tabular": (), "regression": ("amounts",), "multilabel": ("labels",), "ordinal": ()}
    every = {f"tasks/kinds/{name}.py" for own in kinds.values() for name in own}
    for task, own in kinds.items():
        names = {path.as_posix() for path in at_site("fedavg", task)}
        assert names & every == {f"tasks/kinds/{name}.py" for name in own}, task
        homes = {f"tasks/metrics_{task}.py"} if own else set()
        assert {name for name in names if name.startswith("tasks/metrics_")} == homes, task
        assert not names & {"data/readers/pictures.py", "data/readers/files.py", "networks/images.py"}, task


def test_every_task_brings_its_own_module_and_no_other_data_set():
    modules = {task: cls.__module__ for task, cls in tasks.every().items() if task not in tasks.ADDED}
    for task, module in modules.items():
        files = at_site("fedavg", task)
        home = Path(*module.split(".")[1:]).with_suffix(".py")
        if module.startswith("fairflare_lab."):
            brought = {path.name for path in of_lab("fedavg", task)}
            assert home.name in brought and "tcga_brca.py" not in brought - {home.name}, task
            continue
        assert home in files, task
        assert (home.parts[0] == "datasets") == any(path.parts[0] == "datasets" for path in files), task
        assert not {path.parts[0] for path in files} & (DESK - {"datasets"}), task


def test_whatever_a_carried_file_declares_is_whole():
    """Discovery at a site finds no method whose parts are not there."""
    for method in registry.methods():
        files = at_site(method, "tabular")
        homes = {f"fairflare.{'.'.join(path.with_suffix('').parts)}" for path in files}
        for other, entry in registry.methods().items():
            if registry.home(other) in homes:
                missing = {cls.__module__ for cls in registry.owners(entry).values()} - homes
                assert not missing, f"a job of {method} declares {other} without {missing}"


def test_imports_by_name_are_known():
    """What a job carries follows from import statements, so whoever imports by name is listed here and carried."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        calls = [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Call)]
        if any(ast.unparse(call.func).endswith(("import_module", "__import__")) for call in calls):
            found[path.relative_to(SOURCE).as_posix()] = True
    known = {"__init__.py", "engine/setup/tasks.py", "core/plugins.py", "core/registry.py", "core/user_code.py"}
    known |= {"networks/monai_networks.py", "core/metric.py", "flare/executor.py", "engine/setup/at_site.py"}
    known |= {
        "engine/setup/site_parts.py",
        "engine/setup/tuning.py",
        "engine/setup/method_parts.py",
        "engine/setup/config_checks.py",
    }
    known |= {f"engine/exchanges/{name}.py" for name in ("base", "clinical", "sums")}
    known |= {"flare/egress.py", "flare/staging.py", "networks/own.py", "privacy/secure_sums.py"}
    known |= {"data/inputs.py", "engine/setup/config.py", "networks/hugging_face.py", "networks/own_class.py"}
    known |= {"tasks/preflight.py", "tasks/own/tabular.py", "networks/builtin.py"}  # of files and bags, of images
    known |= {"data/site_config.py"}  # of tables
    known |= {"trainers/newton.py", "tasks/bundle_parts.py"}  # of a bundle MONAI's and PyTorch's listed classes
    assert not {name for name in found if name.split("/")[0] not in DESK - {"datasets"}} - known, sorted(found)


def test_a_job_carries_its_own_step_after_the_last_round_and_no_other():
    for step, own in {
        "none": set(),
        "recalibrate": {"__init__.py", "base.py", "recalibrate.py"},
        "conformal": {"__init__.py", "base.py", "conformal.py"},
    }.items():
        files = at_site("glm", "volume-segmentation", step)
        assert {path.name for path in files if path.parent == Path("engine/after")} == own
        assert lines_of(files) <= MOST_LINES


def test_code_for_networks_by_class_travels_with_a_class_alone():
    run = Run("fedavg", "tabular")
    assert MONAI not in modules_of_run(run)
    run.options = {"model": '{"class_path": "monai.networks.nets.UNet"}'}
    assert MONAI in modules_of_run(run)


def test_a_job_with_images_carries_nothing_of_tables():
    names = {path.as_posix() for path in at_site("fedavg", "classification")}
    assert not names & {"data/inputs.py", "data/table_columns.py", "data/readers/table_features.py"}


def test_code_of_volumes_travels_with_their_tasks_alone():
    for task in OWN:
        names = {path.as_posix() for path in at_site("fedavg", task)}
        brought = {"data/readers/volumes.py", "networks/volumes.py", "networks/monai_networks.py"} & names
        assert len(brought) == 3 * task.startswith("volume"), f"{task}: {sorted(brought)}"


def test_a_table_brings_itself_alone():
    assert datasets("support2") == {
        "__init__.py",
        "support2.py",
        "data/README.md",
        "data/support2.csv.gz",
        "partition.py",
        "patients.py",
    }


def test_another_table_brings_its_own_files_alone():
    found = datasets("heart")
    hospitals = ("cleveland", "hungarian", "switzerland", "va")
    brought = {name for name in found if name.startswith("data/")}
    assert brought == {"data/README.md", *(f"data/processed.{name}.data" for name in hospitals)}
    assert {"heart.py", "patients.py"} <= found and "support2.py" not in found
    assert {name for name in datasets("ist") if name.startswith("data/")} == {"data/README.md", "data/ist.csv.gz"}


FORKS = """
import importlib.machinery, json, os, pathlib, sys
import nvflare.app_common.executors.client_api_executor, nvflare.app_common.abstract.fl_model, torch, pandas, yaml
(code, jobs), compiled = json.load(open(sys.argv[1])), {}
def compiled_once(self, data, path):
    if data not in compiled:
        compiled[data] = compile(data, path, "exec", dont_inherit=True)
    return compiled[data]
importlib.machinery.SourceFileLoader.source_to_code = compiled_once
for folder, *words in jobs:
    for path in pathlib.Path(folder).rglob("*.py") if folder else ():
        compiled_once(None, path.read_bytes(), str(path))
for folder, *words in jobs:
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0, words[0]
        continue
    try:
        sys.path[:0] = [folder] if folder else []
        exec(code, {"folder": folder, "words": words})
        sys.stdout.flush()
        os._exit(0)
    except BaseException as error:
        print(words[0], type(error).__name__, error, flush=True)
        os._exit(1)
"""


def in_forks(home, code, jobs):
    """What ``code`` prints for each job, (a folder that comes first on the path, words that it is given).

    One process imports the libraries and compiles each file once, and a child of it runs each.
    """
    (home / "jobs.json").write_text(json.dumps([code, jobs]))
    environment = {"PATH": "", "HOME": str(home)}
    command = [sys.executable, "-c", FORKS, str(home / "jobs.json")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=home, timeout=300, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


KEYS = """
from fairflare.engine.setup.tasks import load
from fairflare_lab.datasets import cache
print(words[0], cache.__file__, cache._key(load(words[0]), "site-1"))
"""


def test_a_job_keeps_rendered_data_under_the_same_name(tmp_path):
    """What FLARE's processes render with the files that their job carries, the next command finds."""
    names = ("ich-phantom", "brain-seg", "digits")
    for task in names:
        carried(tmp_path / task, "fedavg", task)
    jobs = [(folder, task) for task in names for folder in (str(tmp_path / task), "")]
    found = [line.split(" ", 2) for line in in_forks(tmp_path, KEYS, jobs).splitlines()]
    for (task, there, key), (same, here, own) in zip(found[::2], found[1::2], strict=True):
        assert task == same and there != here and key == own != ""
    assert len(found) == len(jobs)


def test_both_copies_have_the_package_s_hash_until_one_is_changed(tmp_path):
    """Server and sites have different files of the same program, and preflight compares their hashes."""
    server, sites = (app / "custom" / "fairflare" for app in staged(tmp_path, "fedavg", "support2"))
    for copy in (server, sites):
        assert manifest.sha256_of(copy) == manifest.package_sha256()
        assert manifest.read_manifest(copy.parents[1])["package"]["sha256"] == manifest.package_sha256()
    (sites / "datasets" / "support2.py").write_text("")
    assert manifest.sha256_of(sites) != manifest.package_sha256()


LOAD = """
import fairflare
assert fairflare.__file__.startswith(folder)
from fairflare.engine.setup import tasks
from fairflare.core import registry
assert words[0] in tasks.every() and len(tasks.every()) <= 3, sorted(tasks.every())
assert len(registry.methods()) <= 4, sorted(registry.methods())
import fairflare.flare.executor, fairflare.flare.egress
task = tasks.load(words[0])
task.network(), task.sites()
"""


def test_a_published_task_loads_from_what_its_job_carries(tmp_path):
    """Two tables, a simulated task and one that reads files."""
    names = ("support2", "heart", "ich-phantom", "digits5")
    for task in names:
        carried(tmp_path / task, "fedavg", task)
    in_forks(tmp_path, LOAD, [(str(tmp_path / task), task) for task in names])


PARTS = """
import fairflare.flare.egress, fairflare.flare.executor
from fairflare.engine.setup import tasks
from fairflare.engine.setup.method_parts import method_parts
from fairflare.core import registry
method, settings = words
assert fairflare.__file__.startswith(folder)
method_parts(registry.get_method(method), settings), registry.methods(), tasks.known("tabular")
"""


def test_every_method_s_parts_are_built_from_what_its_sites_are_sent(tmp_path):
    jobs = []
    for method in registry.methods():
        carried(tmp_path / method, method, "tabular")
        parts = default_parts(method).by_owner().items()
        settings = {f"{owner}.{name}": value for owner, one in parts for name, value in dataclasses.asdict(one).items()}
        jobs.append((str(tmp_path / method), method, settings))
    in_forks(tmp_path, PARTS, jobs)


def test_own_files_bring_what_they_import(tmp_path, monkeypatch):
    code, plugin = tmp_path / "mine.py", tmp_path / "my_probe.py"
    code.write_text("def f():\n    from fairflare.datasets import patients\n")
    plugin.write_text("import fairflare.datasets.heart\n")
    monkeypatch.setenv(user_code.VARIABLE, str(code))
    monkeypatch.setenv(registry.PLUGINS, str(plugin))
    for app in staged(tmp_path / "out", "fedavg", "segmentation", **OWN["segmentation"]):
        package = app / "custom" / "fairflare"
        assert (package / "datasets" / "patients.py").is_file()
        assert (package / "datasets" / "heart.py").is_file()
        assert not (package / "datasets" / "support2.py").exists()
        assert (package / "aggregators" / "my_probe.py").is_file() and (app / "custom" / "mine.py").is_file()
        assert {"mine.py", "fairflare/aggregators/my_probe.py"} <= set(manifest.read_manifest(app)["files"])


def test_a_script_that_asks_for_the_python_interface_gets_it(tmp_path, monkeypatch):
    """``from fairflare import NAME`` imports the module of the name when it is first used."""
    code = tmp_path / "mine.py"
    code.write_text("from fairflare import Federation\n")
    monkeypatch.setenv(user_code.VARIABLE, str(code))
    assert Path("api.py") in at_site("fedavg", "tabular")


def test_an_unknown_task_is_refused():
    with pytest.raises(UserError, match="unknown task: 'lungs'; known: "):
        at_site("fedavg", "lungs")


def test_a_plugin_with_a_rule_s_name_is_refused(tmp_path, monkeypatch):
    (tmp_path / "fedce.py").write_text("")
    monkeypatch.setenv(registry.PLUGINS, str(tmp_path / "fedce.py"))
    with pytest.raises(UserError, match="plugin fedce.py: the package has a rule file of that name"):
        copy_package(tmp_path / "fairflare", at_site("fedavg", "tabular"))


BUILD = """
import json, sys
sys.path.insert(0, sys.argv[1])
import fairflare
assert fairflare.__file__.startswith(sys.argv[1])
from fairflare.engine.setup.at_site import build_site
from fairflare.engine.setup.run_config import RunConfig
from fairflare.engine.setup.site_parts import site_parts
import fairflare.flare.executor, fairflare.flare.egress
assert not [name for name in sys.modules if name.startswith("fairflare.datasets")]
from fairflare.flare.paths import unescaped
config = RunConfig.from_json(unescaped(json.loads(sys.argv[2])))
parts = site_parts(config)
site = build_site(config, parts, "north")
found, data = site.look()
assert data is not None and not [one for one in found if one.level == "error"], found
"""


@pytest.mark.parametrize("task", [pytest.param("segmentation", marks=pytest.mark.slow), "tabular"])  # loads MONAI
def test_an_exported_job_builds_without_data_sets(task, tmp_path):
    """The zip that a site gets, unpacked: it reads the hospital's files."""
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
    assert "app_sites/custom/fairflare/tasks/base.py" in names
    assert not [name for name in names if "/datasets" in name]
    zipfile.ZipFile(archive).extractall(tmp_path / "site")
    server = json.loads((tmp_path / "job" / "app_server" / "config" / "config_fed_server.json").read_text())
    config = json.dumps(server["workflows"][0]["args"]["config"])
    command = [sys.executable, "-c", BUILD, str(tmp_path / "site" / "app_sites" / "custom"), config]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
