# SPDX-License-Identifier: Apache-2.0
"""Every loader shows the tree it reads, in its docstring and when something is missing."""

import importlib

import pytest

from cases import each
from fairflare.cli.main import main
from fairflare.core.errors import MissingData
from fairflare.engine.setup.tasks import every, load
from fairflare.tasks.base import DATA_FOLDER
from fairflare_lab.datasets.on_disk import OnDisk

LOADERS = {name: cls for name, cls in every().items() if issubclass(cls, OnDisk)}
NAMED = {
    *("rsna-ich", "isic2019", "prostate", "fundus", "digits5", "office-caltech"),
    *("covid-brazil", "ctg", "support", "seer-prostate"),
}


def test_the_papers_data_have_loaders():
    assert set(LOADERS) >= NAMED


@each("name", LOADERS)
def test_a_missing_path_is_named_beside_the_tree_of_the_docstring(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(DATA_FOLDER, str(tmp_path))
    doc = LOADERS[name].shown_tree or importlib.import_module(LOADERS[name].__module__).__doc__
    with pytest.raises(MissingData) as error:
        load(name).check_data()
    assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)
    lines = error.value.tree.splitlines()
    assert lines and all(line in doc for line in lines) and all(line.startswith("    ") for line in lines)
    with pytest.raises(SystemExit) as stop:
        main(["run", "fedavg", "--task", name, "--out", str(tmp_path / "run")])
    told = capsys.readouterr().err
    assert stop.value.code == 2 and error.value.tree in told and "Traceback" not in told
    assert not (tmp_path / "run").exists()


@each("name", LOADERS)
def test_without_a_folder_it_says_which_variable_names_it(name, monkeypatch):
    monkeypatch.delenv(DATA_FOLDER, raising=False)
    with pytest.raises(MissingData, match=DATA_FOLDER):
        load(name).check_data()
