# SPDX-License-Identifier: Apache-2.0
"""What is published: the sdist holds all that a packager needs; the wheel built from it runs where it is installed."""

import configparser
import email
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from bare_libraries import link_libraries
from fairflare import __version__

ROOT = Path(__file__).parents[2]
NOT_SOURCE = shutil.ignore_patterns(".git", ".venv", ".*_cache", "runs", "dist", "__pycache__", "*.egg-info")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
BUILD = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"

pytestmark = pytest.mark.slow


def call(*command, cwd):
    """Run without what makes this checkout importable, and without the network."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" and not k.startswith("FAIRFLARE_")}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=kept, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The source distribution of the working tree."""
    folder = tmp_path_factory.mktemp("sdist")
    shutil.copytree(ROOT, folder / "tree", ignore=NOT_SOURCE)
    call(sys.executable, "-c", BUILD, folder, cwd=folder / "tree")
    (found,) = folder.glob("*.tar.gz")
    return found


@pytest.fixture(scope="module")
def dated():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        yield


@pytest.fixture(scope="module")
def wheel(sdist, dated, tmp_path_factory):
    """The wheel, built from the source distribution alone, with one date for all files."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [*PIP, "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", folder, sdist]
    call(*command, cwd=folder)
    (found,) = folder.glob("*.whl")
    return found


def test_the_sdist_holds_tests_docs_and_all_that_make_needs(sdist):
    with tarfile.open(sdist) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert sdist.name == f"fairflare-{__version__}.tar.gz"
    wanted = """
    LICENSE README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md CITATION.cff Makefile constraints.txt setup.cfg
    pyproject.toml .ci/run docs/security.md docs/methods/fedism.md docs/results/README.md
    docs/images/disparity.png docs/images/joining.svg
    tests/conftest.py tests/golden/cka.npz tests/unit/test_architecture.py
    jobs/fedavg_ich/job.py app_configs/fedavg_ich/meta.json benchmarks/cka.py poc_workspace/project.yml
    custom/fairflare/py.typed custom/fairflare/report/run.html.j2 custom/fairflare/datasets/data/support2.csv.gz
    custom/fairflare/datasets/data/processed.va.data custom/fairflare/datasets/data/ist.csv.gz
    custom/fairflare/engine/setup/config.py lab/pyproject.toml lab/fairflare_lab/papers/data/fedce.yaml
    """
    assert not set(wanted.split()) - names
    assert not [name for name in names if name.endswith(".pyc") or "__pycache__" in name or name.startswith("runs")]


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    package = ROOT / "custom" / "fairflare"
    sources = {
        path.relative_to(package.parent).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
    assert {name for name in names if name.startswith("fairflare/")} == sources
    assert {"fairflare/py.typed", "fairflare/report/run.html.j2"} <= sources
    data = ("support2.csv.gz", "ist.csv.gz", "processed.cleveland.data")
    assert {f"fairflare/datasets/data/{name}" for name in data} <= sources
    assert {name.partition("/")[0] for name in names} == {"fairflare", f"fairflare-{__version__}.dist-info"}


def test_the_wheel_is_the_same_bytes_wherever_it_is_built(sdist, wheel, dated, tmp_path):
    """From the source distribution again, elsewhere, with other dates of its files and without pip."""
    with tarfile.open(sdist) as file:
        file.extractall(tmp_path / "again", filter="data")
    (tree,) = (tmp_path / "again").iterdir()
    for path in tree.rglob("*.py"):
        os.utime(path, (1e9, 1e9))
    call(sys.executable, "-c", BUILD.replace("sdist", "wheel"), tmp_path, cwd=tree)
    (found,) = tmp_path.glob("*.whl")
    assert found.read_bytes() == wheel.read_bytes()


def test_the_lock_holds_every_dependency_with_hashes():
    """Of each supported Python and system; what `make lock` writes."""
    blocks = re.split(r"\n(?=[a-z0-9])", (ROOT / "requirements.lock.txt").read_text().lower())
    pinned = {}
    for block in blocks:
        one = Requirement(block.partition("\\")[0].strip())
        assert "--hash=sha256:" in block and str(one.specifier).startswith("=="), one.name
        pinned.setdefault(one.name, []).append(str(one.specifier).removeprefix("=="))
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    for text in settings["options"]["install_requires"].split():
        wanted = Requirement(text)
        assert all(wanted.specifier.contains(version) for version in pinned[wanted.name]), text


def test_the_bill_of_materials_names_the_wheels_files_and_dependencies(wheel):
    bill = json.loads(call(sys.executable, ROOT / "jobs" / "sbom.py", wheel, cwd=ROOT))
    found = {one["name"]: one for one in bill["components"]}
    with zipfile.ZipFile(wheel) as file:
        assert {name for name, one in found.items() if one["type"] == "file"} == set(file.namelist())
        content = file.read("fairflare/core/schema.py")
    assert found["fairflare/core/schema.py"]["hashes"][0]["content"] == hashlib.sha256(content).hexdigest()
    assert {"torch", "nvflare", "cryptography"} <= found.keys() and bill["bomFormat"] == "CycloneDX"


def test_the_wheel_s_metadata(wheel):
    folder = f"fairflare-{__version__}.dist-info"
    with zipfile.ZipFile(wheel) as file:
        metadata = email.message_from_bytes(file.read(f"{folder}/METADATA"))
        assert any(name.endswith("/LICENSE") for name in file.namelist())
        assert "fairflare = fairflare.cli.main:main" in file.read(f"{folder}/entry_points.txt").decode()
    assert metadata["Name"] == "fairflare" and metadata["Version"] == __version__
    licences = metadata["License-Expression"] or metadata["License"]
    assert licences == "Apache-2.0 AND CC-BY-4.0 AND ODC-By-1.0", "of the code, and of the data that come with it"
    assert "custom/fairflare/datasets/data/README.md" in metadata.get_all("License-File")
    assert metadata["Requires-Python"] == "<3.14,>=3.10"
    assert metadata["Author"] and metadata["Keywords"] and metadata["Project-URL"]
    assert "Typing :: Typed" in metadata.get_all("Classifier")
    assert metadata["Description-Content-Type"] == "text/markdown" and "# FairFLARE" in metadata.get_payload()


def test_the_installed_wheel_runs(wheel, tmp_path):
    """In an environment that has this one's other packages, and from another folder."""
    folder = tmp_path / "environment"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    call(*PIP, "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    site = Path(call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    (site / "others.pth").write_text(str(link_libraries(tmp_path / "libraries")))
    where = call(python, "-c", "import fairflare; print(fairflare.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(site)
    command = [folder / "bin" / "fairflare", "run", "fedavg", "--task", "support2", "--rounds", "2"]
    call(*command, "--out", "here", cwd=tmp_path)
    assert (tmp_path / "here" / "report.html").is_file() and (tmp_path / "here" / "model.safetensors").is_file()
    assert call(folder / "bin" / "fairflare", "--version", cwd=tmp_path).strip().endswith(__version__)
