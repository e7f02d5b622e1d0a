# SPDX-License-Identifier: Apache-2.0
"""Folders of earlier versions: checked and reported as they are, used and continued once they are converted."""

import re
import shutil
from pathlib import Path

import pytest
import torch

import fairflare
from fairflare.engine.files import read_model, read_tensors
from fairflare.engine.hashes import model_hash
from fairflare.engine.memory import SiteMemory
from fairflare.studies import folders
from run_folders import Dies, call, edit_bytes, files, make_folders


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_folders(tmp_path_factory.mktemp("earlier"), only=("done", "heal", "cut", "early"))


@pytest.fixture
def old(root, tmp_path):
    """A run's folder as an earlier version left it."""

    def made(name):
        folder = tmp_path / name
        shutil.copytree(root / name, folder)
        for path in folder.rglob("*.safetensors"):
            torch.save(read_tensors(path), path.with_suffix(".pt"))
            path.unlink()
        return folder

    return made


class Harm:
    """What runs when the pickle is loaded without care."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return open, (str(self.mark), "w")


def test_what_is_converted_is_what_this_version_writes(root, old, capsys):
    for name in ("done", "cut", "early"):
        folder = old(name)
        assert call("convert", folder) == 0 and call("convert", folder) == 0
        assert "checkpoint.pt" in capsys.readouterr().out.replace("\n", "")
        assert files(folder) == files(root / name)


@pytest.mark.parametrize("name, whole", [("cut", "heal"), ("early", None)])
def test_a_run_of_an_earlier_version_goes_on(name, whole, root, old, capsys):
    folder = old(name)
    untouched = files(folder)
    assert call("resume", folder) == 2 and files(folder) == untouched
    assert "checkpoint.pt: was written by an earlier version" in capsys.readouterr().err.replace("\n", " ")
    assert call("convert", folder) == 0 and call("resume", folder) == 0 and call("verify", folder) == 0
    if whole:
        models = [model_hash(read_model(place / "model.safetensors")) for place in (folder, root / whole)]
        assert models[0] == models[1]


def test_reports_and_verify_need_no_conversion(old):
    folder = old("done")
    untouched = files(folder)
    assert call("verify", folder) == 0 and files(folder) == untouched
    (folder / "report.html").unlink()
    assert call("verify", folder) == 2 and call("report", folder) == 0 and call("verify", folder) == 0
    assert files(folder) == untouched, "the report is what it was, and no file of tensors was touched"


@pytest.mark.parametrize("name", ["checkpoint.pt", "model.pt"])
@pytest.mark.parametrize("change", ["numbers", "code", "half", "gone"])
def test_a_tampered_folder_of_an_earlier_version_is_noticed(name, change, old, tmp_path):
    folder, mark = old("done"), tmp_path / "harm"
    if change == "numbers":
        content = torch.load(folder / name, weights_only=True)
        next(iter(content.get("model", content).values())).add_(1)
        torch.save(content, folder / name)
    elif change == "code":
        torch.save({"round": Harm(mark)}, folder / name)
    elif change == "half":
        edit_bytes(folder / name, lambda data: data[: len(data) // 2])
    else:
        (folder / name).unlink()
    untouched = files(folder)
    assert call("verify", folder) == 2 and files(folder) == untouched
    if change in ("code", "half"):
        assert call("convert", folder) == 2 and (folder / name).exists()
    assert not mark.exists()


def test_a_killed_conversion_goes_on(root, old, monkeypatch):
    folder, save, calls = old("done"), folders.save_tensors, []

    def dying(path, content):
        calls.append(path)
        if len(calls) == 2:
            raise Dies
        save(path, content)

    monkeypatch.setattr(folders, "save_tensors", dying)
    with pytest.raises(Dies):
        folders.convert(folder)
    assert call("verify", folder) == 0, "half of its files are this version's"
    monkeypatch.setattr(folders, "save_tensors", save)
    assert call("convert", folder) == 0 and files(folder) == files(root / "done")


def test_a_newer_file_is_not_replaced_by_the_earlier_one(root, old):
    folder = old("done")
    shutil.copy(folder / "model.pt", folder / "checkpoint.pt")
    shutil.copy(root / "done" / "checkpoint.safetensors", folder)
    assert call("convert", folder) == 0 and files(folder) == files(root / "done")


def test_a_sites_memory_of_an_earlier_version_is_not_taken_for_none(tmp_path):
    path = tmp_path / "sites" / "site-1.safetensors"
    content = {2: {"own": torch.arange(3), "x": [1.5, [None, "a"]]}, 3: {}}
    path.parent.mkdir()
    torch.save(content, path.with_suffix(".pt"))
    with pytest.raises(Exception, match="site-1.pt: was written by an earlier version"):
        SiteMemory(path)
    assert folders.convert(tmp_path) == ["sites/site-1.pt"]
    assert str(SiteMemory(path).at(2)) == str(content[2])


def test_a_link_and_a_folder_of_something_else_stay(old, tmp_path, capsys):
    folder = old("done")
    (folder / "model.pt").rename(tmp_path / "kept.pt")
    (folder / "model.pt").symlink_to(tmp_path / "kept.pt")
    assert call("convert", folder) == 0 and (tmp_path / "kept.pt").is_file()
    assert call("convert", tmp_path / "none") == 2


READ_PICKLES = {
    "engine/pickled.py": "what a user names for --init-from, and earlier versions' files for convert",
    "engine/setup/parts.py": "a user's file from before torch 1.6",
    "networks/builtin.py": "a user's pretrained_weights",
    "inference/apply.py": "an exported bundle's own weights",
    "inference/export.py": "nothing: the line is for an export's model card",
    "core/workers.py": "messages between processes of one command",
    "datasets/digits5.py": "a published data set, array constructors alone",
    "datasets/on_disk.py": "the same: it names these constructors",
}


def test_no_other_code_reads_pickles():
    package = Path(fairflare.__file__).parent
    reads = re.compile(r"torch\.load\(|^\s*import pickle|allow_pickle=True", re.MULTILINE)
    found = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if reads.search(path.read_text())}
    assert found == set(READ_PICKLES)
    calls = {
        path.relative_to(package).as_posix() for path in package.rglob("*.py") if "read_pickled" in path.read_text()
    }
    assert calls == {"engine/pickled.py", "engine/setup/parts.py", "studies/folders.py"}
