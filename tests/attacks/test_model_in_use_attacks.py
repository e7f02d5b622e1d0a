# SPDX-License-Identifier: Apache-2.0
"""Run folders and sites' files that somebody else has made, given to ``predict`` and ``export-model``."""

import io
import json
import pickle
import tempfile
import zipfile
from pathlib import Path

import pytest
import torch

from cases import each
from fairflare.core.errors import UserError
from fairflare.core.validation import as_cell
from fairflare.engine.files import read_tensors, save_tensors
from fairflare.engine.pickled import read_pickled
from fairflare.inference.apply import RESULTS, _write, write_rows
from fairflare.inference.atomic_output import check
from fairflare.inference.export import _check_plain
from fairflare.inference.loaded_run import open_run, site_file
from run_folders import call, edit_json, run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("attack") / "run"
    run("ditto", made)
    return made


class Harm:
    """What runs where a file is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return open, (str(self.mark), "w")


@pytest.mark.parametrize("name", ["model.safetensors", "sites/site-1.personal.safetensors"])
def test_no_file_of_a_run_in_use_is_executed(folder, tmp_path, name):
    mark, path = tmp_path / "harm", folder / name
    before = path.read_bytes()
    try:
        torch.save({"head.weight": Harm(mark)}, path)
        for content in (path.read_bytes(), pickle.dumps(Harm(mark))):
            path.write_bytes(content)
            with pytest.raises(UserError):
                open_run(folder, "site-1")
            assert not mark.exists()
    finally:
        path.write_bytes(before)


def test_a_personal_model_of_another_network_or_not_finite_is_refused(folder):
    path = folder / "sites" / "site-1.personal.safetensors"
    before = path.read_bytes()
    model = read_tensors(path)
    first = next(iter(model))
    try:
        for wrong in (
            {**model, first: model[first][:1]},
            {**model, first: model[first] * float("nan")},
            {"x": model[first]},
        ):
            save_tensors(path, wrong)
            with pytest.raises(UserError):
                open_run(folder, "site-1")
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize("scaling", [None, {"fill": [0.0]}, {"fill": ["x"], "mean": [1], "std": [1]}, 7])
def test_a_sites_scaling_of_another_form_is_refused(folder, scaling):
    path = folder / "sites" / "site-1.inputs.json"
    before = path.read_bytes()
    try:
        edit_json(path, lambda content: content.update(scaling=scaling))
        with pytest.raises(UserError, match="scaling"):
            open_run(folder, "site-1")
    finally:
        path.write_bytes(before)


def test_no_site_leads_out_of_the_folder(folder, tmp_path):
    (tmp_path / "other.personal.safetensors").write_bytes(b"x")
    for name in ("../other", "site-1/../../other", "nobody", "", "."):
        if name:
            with pytest.raises(UserError, match="--site"):
                open_run(folder, name)
    assert site_file(folder / "sites", "site", ".personal.safetensors") is None  # not that of site-1


def test_force_replaces_nothing_but_what_this_package_has_made(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("x")
    for mark in (None, {"made": "model", "files": ["thesis.txt"]}, {"made": "predictions", "files": "all"}):
        if mark:
            (out / "fairflare.json").write_text(json.dumps(mark))
        with pytest.raises(UserError):
            check(out, "predictions", True)
    link = tmp_path / "link"
    link.symlink_to(out)
    with pytest.raises(UserError, match="not a folder"):
        check(link, "predictions", True)
    assert (out / "thesis.txt").read_text() == "x"


NAMES = ("$__import__('os')._exit(0)", "@network_def", "%configs/inference.json::imports", "x @#model")


def test_no_name_of_a_run_is_code_in_its_bundle(tmp_path, capsys):
    """MONAI evaluates "$..." in a bundle's configuration; whoever made the run, or its folders, names the classes."""
    data, out = tmp_path / "data", tmp_path / "bundle"
    data.mkdir()
    lines = [f"{('ill', NAMES[0])[i % 2]},{i % 7},{('train', 'train', 'val', 'test')[i // 2 % 4]}" for i in range(60)]
    for site in "ab":
        (data / f"{site}.csv").write_text("\n".join(["y,x,split", *lines]))
    given = ["--kind", "tabular", "--classes", f"ill,{NAMES[0]}", "--set", "label=y", "--set", "features=x"]
    quick = ["--rounds", "1", "--no-solo", "--workers", "1", "--out", tmp_path / "run"]
    assert call("run", "fedavg", "--datalists", data, *given, *quick) == 0
    capsys.readouterr()
    assert call("export-model", tmp_path / "run", "--format", "bundle", "--site", "a", "--out", out) == 2
    assert "do not begin with $, @ or %" in capsys.readouterr().err and not out.exists()


@each("name", NAMES)
@each("place", [lambda x: {"classes": [x]}, lambda x: {x: [1]}, lambda x: {"before": {"gaps": [x]}}])
def test_no_text_of_a_run_is_a_reference_in_its_bundle(name, place):
    with pytest.raises(UserError, match="do not begin with"):
        _check_plain(place(name), targets=True)


def test_no_argument_of_a_network_names_what_is_called():
    _check_plain({"network_def": {"_target_": "scripts.builtin.rebuilt", "sizes": [3], "norm": "group"}}, targets=True)
    for args in ({"_target_": "os.system"}, {"act": {"_target_": "os.system"}}, {"act": [{"_requires_": "x"}]}):
        with pytest.raises(UserError, match="no name that begins with _"):
            _check_plain(args)


def test_an_archive_that_grows_is_no_model(folder):
    path = folder / "sites" / "site-1.personal.safetensors"
    before = path.read_bytes()
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("archive/data.pkl", b"\0" * 10_000_000)
        with pytest.raises(UserError, match="expected tensors in a .safetensors file"):
            open_run(folder, "site-1")
        with pytest.raises(UserError, match="compressed"):
            read_pickled(path)
    finally:
        path.write_bytes(before)


def test_an_edited_configuration_is_not_used(folder, tmp_path):
    assert call("verify", folder) in (0, None)
    before = (folder / "config.json").read_bytes()
    try:
        edit_json(folder / "config.json", lambda content: content.update(seed=9))
        with pytest.raises(UserError, match="config.json"):
            open_run(folder)
    finally:
        (folder / "config.json").write_bytes(before)


def test_no_file_name_or_id_is_a_formula_in_the_results():
    """Results are opened in spreadsheets; a file's name comes from wherever the image does."""
    for text in ('=HYPERLINK("http://x","y").png', "+1+cmd|x", "-2+3", "@SUM(A1)", "\tx", "\r=1"):
        assert as_cell(text) == "'" + text
    for plain in ("a=b.png", "-12", "+3.5e-2", "12-3", "", 7, 0.5, "p_x"):
        assert as_cell(plain) == plain
    for write in (predicted, exported):
        found = write(["file", "=class"], [["=1+1.png", "ill"], ["-7", "-0.5"], ["x", -0.25]])
        assert found.splitlines() == ["file,'=class", "'=1+1.png,ill", "-7,-0.5", "x,-0.25"]


def predicted(header, rows):
    """As ``predict`` writes it."""
    text = io.StringIO()
    write_rows(text, header, rows)
    return text.getvalue()


def exported(header, rows):
    """The same by an exported bundle."""
    with tempfile.TemporaryDirectory() as folder:
        _write(folder, header, rows)
        return (Path(folder) / RESULTS).read_text()
