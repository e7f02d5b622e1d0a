# SPDX-License-Identifier: Apache-2.0
"""Every command that README and docs print runs as printed, here or in the test that is named for it.

Only the sizes behind the names differ: presets train two rounds on few images, so that a page takes seconds. FLARE's
simulator, which tests/flare starts, is one process here.
"""

from __future__ import annotations

import dataclasses
import glob
import re
import shlex
import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from printed_commands import ROOT, Printed, printed_commands

from cases import each
from external_data import write_hospital
from fairflare.cli import main as cli
from fairflare.core import plugins, registry, user_code
from fairflare.engine import benefit
from fairflare.engine.loop import Federation
from fairflare.engine.setup import tasks
from fairflare.tasks import planning
from own_code import write_code
from own_folder import SITES, write_class_folders, write_images, write_tables
from quality_tree import write_tree

SMALL = {"images_per_site": 60, "test_images": 20, "site_test_images": 20}
FEWER = {"ich-phantom": {"images": 240}, "brain-seg": {"images": 160, "size": 32}, "ist": {"least": 100}}
DEPLOYMENT = "tests/flare/test_deploy_page.py"
ELSEWHERE = {
    r"make demo(-imaging)?": "tests/docs/test_printed_commands.py::test_make_runs_what_it_says",
    r"make test": "tests/docs/test_printed_commands.py::test_make_runs_what_it_says",
    r"python jobs/\w+/job.py( --production --export --export-dir \S+)?$": "tests/flare/test_jobs.py",
    r"python jobs/export_research.py": "tests/flare/test_jobs.py",
    r"fairflare (preflight sites/|(run fedism-plus|export fedavg) --task support2:dirichlet )": DEPLOYMENT,
    r"python poc_workspace/federation.py |nvflare (--format json job submit|system (status|shutdown all)) ": DEPLOYMENT,
    r"nvflare job submit": "tests/flare/test_deploy_poc.py",
    r"nvflare job (wait|download)": "tests/flare/test_deploy_poc.py",
    r"poc_workspace/poc.sh": "tests/flare/test_deploy_poc.py",
    r"poc_workspace/provisioned.sh": "tests/flare/test_deploy_provisioned.py",
    r"FAIRFLARE_PLUGINS=\S+ pytest tests/laws": "tests/unit/test_plugin.py",
    r"fairflare join .*--env sim": "tests/flare/test_decide_sim.py",
    r"fairflare run .*--set vectors=": "tests/unit/test_features.py",
    r"python job.py": "tests/flare/test_stock_recipe.py",
    r"nvflare (provision|system shutdown client) ": "tests/flare/test_deploy_life.py",
    r"fairflare (run fedism-plus --data tables|run --continue) ": "tests/flare/test_deploy_life.py",
    r"(NVFLARE_POC_WORKSPACE=\S+ )?fairflare run .*--env (poc|prod)": "tests/flare/test_deploy_poc.py",
    r"fairflare run fedism-plus --script": "tests/flare/test_client_script.py",
    r"fairflare export fedism-plus --script": "tests/unit/test_client.py::test_a_job_carries_the_script",
    r"fairflare export fedavg --task script": "tests/unit/test_client.py::test_a_job_without_code_names_the_script",
    r"fairflare inspect .*--(sign|root) ": "tests/unit/test_inspection.py",
    r"fairflare run .*--tune ": "tests/unit/test_pretrained.py",
    r"fairflare search ": "lab/tests/studies/test_search.py",
    r"python hospitals.py": "tests/docs/test_printed_commands.py::world",
    r"python docs/notebooks/make.py": "tests/docs/test_notebooks.py",
    r"fairflare (run|export) run.yaml": "tests/unit/test_python.py::test_the_pages_examples_are_one_run",
    r"python benchmarks/": "tests/unit/test_benchmarks.py",
    r"fairflare (init|run) .*(--kind (regression|multilabel|ordinal) |--data covid )": "tests/unit/test_outcomes.py",
    r"fairflare (init|run|predict) .*(scans/|\.nii\.gz)": "tests/unit/test_volume_runs.py",
    r"fairflare (init|predict|evaluate) .*--mapping": "tests/unit/test_patient_rows.py",
    r"fairflare export-model RUN --format bundle": "tests/unit/test_bundle.py",
    r"fairflare \w+ .*(FOLDER|NEW\.csv|OTHER\.csv)": "tests/unit/test_survival_tables.py",
    r"fairflare (run fedavg --task |paper flamby-)tcga-brca": "lab/tests/datasets/test_tcga_brca.py",
    r"fairflare risk ": "lab/tests/studies/test_membership.py",
    r"fairflare forget ": "lab/tests/studies/test_forget.py",
    r"fairflare new ": "lab/tests/test_new.py",
    r"FAIRFLARE_PLUGINS=my_rule.py": "lab/tests/test_new.py",
    r"pytest test_my_rule.py": "lab/tests/test_new.py",
    r"python docs/draw_architecture.py": "tests/unit/test_architecture.py",
    r"python lab/regimes/\w+.py": "lab/tests/studies/test_regimes.py",
    r"(FAIRFLARE_DATA=FOLDER )?python lab/leaderboard/\w+.py": "lab/tests/studies/test_leaderboard.py",
    r"fairflare compare .* --task office-caltech:paper ": "lab/tests/studies/test_regimes.py",
    r"python docs/results/quote.py": "tests/docs/test_results.py",
    r"python docs/results/study/(run|tables|check|ablations).py": "tests/docs/test_study.py",
    r"python docs/results/drift/drift_(run|tables|page).py": "tests/docs/test_drift.py",
    r"python docs/results/recalibration.py": "tests/docs/test_results.py::test_recalibration_is_measured_at_toy_size",
    r"fairflare compare .*--tables docs/results/": "tests/docs/test_results.py",
    r"fairflare paper \S+": "lab/tests/papers/test_paper_command.py",
}
"""What needs processes or hours of its own: a pattern, and the test that runs it."""

COMMANDS = printed_commands()
TUTORIAL = ROOT / "docs" / "tutorial.md"


def bare(text: str) -> str:
    """A command without its comment and without the environment's folder."""
    return " ".join(shlex.split(text, comments=True)).replace(".venv/bin/", "")


def elsewhere(text: str) -> str | None:
    """The test that runs a command, None where it runs here."""
    plain = bare(text)
    return next((test for pattern, test in ELSEWHERE.items() if re.match(pattern, plain)), None)


HERE = [one for one in COMMANDS if elsewhere(one.text) is None]


@pytest.fixture
def reader(world, request, monkeypatch):
    """The folder in which a page's commands run one after the other; every page has its own."""
    folder = world.parent / re.sub(r"\W", "_", request.getfixturevalue("one").page)
    if not folder.exists():
        shutil.copytree(world, folder, symlinks=True)
    monkeypatch.setenv(user_code.VARIABLE, "")  # what a command's --code names is for that command
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with what a reader of the pages has: own images, a table, a site file, code, and an interrupted run."""
    folder = tmp_path_factory.mktemp("reader") / "world"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        shrink(patch)
        for name, masks in (("masks", True), ("photos", False)):
            write_images(folder / name, masks=masks)
        write_class_folders(folder / "hospitals")
        write_tables(folder / "tables")
        write_hospital(folder / "harbour.csv")
        write_code(folder)
        tutorial = re.search(r"^```python\n(# hospitals.py.*?)^```", TUTORIAL.read_text(encoding="utf-8"), re.S | re.M)
        exec(tutorial[1], {})  # writes heart/
        write_tree(folder / "SOURCE" / "ICH_20", (220, 340, 300, 360, 580), (4, 5, 4, 5, 8), ".png", False, ())
        (folder / "fairflare_site.yaml").write_text(f"data_root: masks\ndatalist: client_{SITES[0]}.json\n")
        (folder / "local").mkdir()
        (folder / "local" / "fairflare_site.yaml").write_text(
            f"data_root: ../masks\ndatalist: client_{SITES[0]}.json\n"
        )
        (folder / "tests").symlink_to(ROOT / "tests")
        interrupt(patch, folder / "runs" / "interrupted")
        yield folder


def shrink(patch):
    """Every preset trains two rounds, on few images; so does what a user's own data ask for. Resamples are few, too."""
    patch.setattr(benefit, "DRAWS", 100)
    short = {"rounds": 2, "most_rounds": 2, "fewest_steps": 2}
    efforts = {kind: dataclasses.replace(effort, **short) for kind, effort in planning.EFFORTS.items()}
    patch.setattr(planning, "EFFORTS", efforts)
    patch.setattr(planning, "LINEAR", dataclasses.replace(planning.LINEAR, **short))
    for name in tasks.every():
        kind = type(tasks.load(name))
        known = {field.name for field in dataclasses.fields(kind)}
        few = {key: value for key, value in SMALL.items() if key in known}
        few |= FEWER.get(name, {})
        presets = {
            key: dataclasses.replace(
                preset,
                options={**preset.options, **(few if key in ("small", "default", "hospitals") else {})},
                training=dataclasses.replace(preset.training, rounds=min(2, preset.training.rounds)),
            )
            for key, preset in kind.presets.items()
        }
        patch.setattr(kind, "presets", presets)


def interrupt(patch, folder):
    """A run that Ctrl-C stopped in its second round."""
    original = Federation._round

    def stopped(self, standing, round):
        if round.number == 2:
            raise KeyboardInterrupt
        return original(self, standing, round)

    with pytest.MonkeyPatch.context() as inner:
        inner.setattr(Federation, "_round", stopped)
        assert call(["run", "fedavg", "--task", "support2", "--out", str(folder)]) == 130


def call(arguments):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    return stop.value.code


@pytest.fixture
def own_registry(monkeypatch):
    """What a command's plugins register is gone after it, and can be imported again."""
    registry.methods()  # the package's own are there before
    monkeypatch.setattr(registry, "_methods", dict(registry._methods))
    monkeypatch.setattr(registry, "_parts", {kind: dict(table) for kind, table in registry._parts.items()})
    yield
    plugins._done.clear()


@pytest.mark.parametrize("one", HERE, ids=[f"{c.page}:{' '.join(c.words)[:70]}" for c in HERE])
def test_a_printed_command_runs(one: Printed, reader, own_registry, monkeypatch, capsys):
    words = one.words
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):
        key, _, value = words.pop(0).partition("=")
        monkeypatch.setenv(key, value)
    program, *patterns = words
    arguments = [name for word in patterns for name in (sorted(glob.glob(word)) or [word])]  # as a shell does
    assert Path(program).name == "fairflare", f"{one.page}: no test runs {shlex.join(words)}"
    for before, place in zip(arguments, range(1, len(arguments))):  # as short as the presets are here
        if before == "--rounds":
            arguments[place] = str(min(3, int(arguments[place])))
        if before in ("--folds", "--repeats"):
            arguments[place] = str(min(2, int(arguments[place])))
        if before in ("--seeds", "--grid"):  # two of each are a comparison
            arguments[place] = ",".join(arguments[place].split(",")[:2])
        if (before, arguments[place]) == ("--env", "sim"):  # whose processes are those of tests/flare
            arguments[place] = "local"
    code = call(arguments)
    streams = capsys.readouterr()
    assert code == 0, streams.err[-600:]


def test_the_pages_still_print_commands():
    assert len(HERE) >= 18 and any(one.page == "README.md" for one in HERE)


@each("test", sorted(set(ELSEWHERE.values())))
def test_a_test_that_runs_a_command_elsewhere_exists(test):
    file, _, name = test.partition("::")
    assert (ROOT / file).is_file(), file
    assert not name or f"def {name}(" in (ROOT / file).read_text(), name


def test_every_pattern_is_printed_somewhere():
    plain = [bare(one.text) for one in COMMANDS]
    unused = [pattern for pattern in ELSEWHERE if not any(re.match(pattern, text) for text in plain)]
    assert not unused, unused


def test_make_runs_what_it_says():
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^demo: .*\n\t@\$\(BIN\)/python jobs/demo.py \$\(DEMO_OUT\)\n", makefile, re.M)
    assert re.search(r"^demo-imaging: .*\n\t@\$\(BIN\)/fairflare compare fedavg fedism-plus ", makefile, re.M)
    assert re.search(r"^test: .*\n(\t.*\n)*\t@\$\(BIN\)/python -m pytest", makefile, re.M)
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_pictures_of_the_pages_exist():
    for page in {one.page for one in COMMANDS}:
        text = (ROOT / page).read_text(encoding="utf-8")
        for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text):
            picture = (ROOT / page).parent / target
            if picture.suffix == ".svg":
                assert len(ElementTree.parse(picture).getroot()) > 1, picture
                continue
            with Image.open(picture) as image:
                assert np.asarray(image).std() > 0, picture
