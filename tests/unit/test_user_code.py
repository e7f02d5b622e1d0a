# SPDX-License-Identifier: Apache-2.0
"""A user's own network: named on the command line, checked, fingerprinted, and refused in one line."""

import inspect
import json
import sys

import pytest

from command_line import call
from fairflare.core import user_code
from fairflare.core.errors import DataError, UserError
from fairflare.engine.audit import verify
from fairflare.networks import own as own_network
from own_code import write_code
from own_folder import write_images

A_CLASS = (inspect.isclass, "a class")
A_FUNCTION = (inspect.isfunction, "a function")
MODEL = '{"class_path": "my_net.Net", "args": {"width": 6}}'


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """No code named before, and none left imported."""
    monkeypatch.setenv(user_code.VARIABLE, "")
    yield
    for name in ("my_net", "my_package"):
        sys.modules.pop(name, None)


def own(folder, *extra, model=MODEL):
    net, data = write_code(folder), folder / "images"
    if not data.is_dir():
        write_images(data, masks=False, sites=("a", "b"))
    settings = (f"model={model}", "size=32", "channels=1")
    pairs = [part for pair in (*settings, *extra) for part in ("--set", pair)]
    return ("--datalists", data, "--kind", "classification", "--classes", "2", "--code", net, *pairs)


def test_own_network_trains(tmp_path, capsys):
    code, out, err = call(
        capsys, "run", "fedism-plus", *own(tmp_path), "--rounds", "2", "--no-solo", "--out", tmp_path / "run", "--json"
    )
    assert code == 0, err
    assert {row["n_train"] for row in json.loads(out)["report"]["sites"].values()} == {12}
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert set(config["code"]) == {"my_net"} and len(config["code"]["my_net"]) == 64
    assert config["normalisation"] == "none" and str(tmp_path) not in json.dumps(config["code"])


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_have_the_users_code(method, tmp_path, monkeypatch, capsys):
    """A forked worker has what the command has imported, a spawned one imports it itself."""
    monkeypatch.setattr("fairflare.engine.setup.local.start_method", lambda threads: method)
    heads = []
    for count in ("1", "2"):
        command = (
            "run",
            "fedavg",
            *own(tmp_path),
            "--rounds",
            "1",
            "--no-solo",
            "--out",
            tmp_path / count,
            "--workers",
            count,
        )
        code, _, err = call(capsys, *command)
        assert code == 0, err
        heads.append(verify(tmp_path / count / "audit.jsonl")[-1]["model_sha256"])
    assert heads[0] == heads[1]


def test_attributes_of_own_data_make_groups(tmp_path, capsys):
    grouped = ("attribute_values=sex=f|m", "group_by=sex", "min_count=1")
    code, _, err = call(
        capsys, "run", "fedufo", *own(tmp_path, *grouped), "--rounds", "1", "--no-solo", "--out", tmp_path / "run"
    )
    assert code == 0, err
    evaluation = next(e for e in verify(tmp_path / "run" / "audit.jsonl") if e["event"] == "evaluation")
    assert {g: c["n"] for g, c in evaluation["sites"]["a"]["groups"]["test"].items()} == {"f": 4.0, "m": 2.0}


@pytest.mark.parametrize(
    "model, message",
    [
        ('{"class_path": "my_net.Nothing"}', "model: my_net.Nothing cannot be imported"),
        ('{"class_path": "Net"}', "model: expected module.Name, got 'Net'"),
        ('{"class_path": "my_net.Net", "args": {"classes": 3}}', "expected shape (2, 2), got (2, 3)"),
        ('{"class_path": "my_net.Net", "args": {"depth": 3}}', "model: my_net.Net failed on two examples of shape"),
        ('{"class_path": "my_net.Net", "arg": {}}', "model: unknown key 'arg'; did you mean args"),
        ('{"class_path": "my_net.Plain", "args": {}}', "my_net.Plain is no torch.nn.Module"),
        ('{"class_path": "my_net.made", "args": {}}', "my_net.made is no torch.nn.Module"),
        ("{", "model: expected"),
        ("resnet19", "model: expected one of small-cnn, resnet18, or"),
    ],
)
def test_a_network_that_does_not_fit_is_refused_in_one_line(model, message, tmp_path, capsys):
    code, _, err = call(capsys, "run", "fedavg", *own(tmp_path, model=model), "--out", tmp_path / "run")
    assert code == 2 and message in err and err.strip().count("\n") == 0
    assert not (tmp_path / "run").exists()


def test_only_what_is_named_can_be_imported(tmp_path):
    net = write_code(tmp_path)
    (tmp_path / "my_other.py").write_text(net.read_text())
    user_code.use([net])
    assert user_code.load_object("my_net.Net", "model", *A_CLASS).__name__ == "Net"
    with pytest.raises(UserError, match="script: my_other.made cannot be imported"):
        user_code.load_object("my_other.made", "script", *A_FUNCTION)


def test_a_package_folder_is_code_too(tmp_path):
    folder = tmp_path / "my_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("from my_package.inner import build\n")
    (folder / "inner.py").write_text("def build(own):\n    return 7\n")
    user_code.use([folder])
    for name in ("my_package.build", "my_package.inner.build"):
        assert user_code.load_object(name, "script", *A_FUNCTION)(None) == 7
    before = user_code.fingerprints()
    (folder / "inner.py").write_text("def build(own):\n    return 8\n")
    assert user_code.fingerprints() != before


def test_a_run_refuses_code_that_changed_or_is_missing(tmp_path, monkeypatch):
    net = write_code(tmp_path)
    user_code.use([net])
    expected = user_code.fingerprints()
    user_code.check(expected)
    net.write_text(net.read_text() + "\n# changed\n")
    with pytest.raises(DataError, match="not the one that the run was made with"):
        user_code.check(expected)
    monkeypatch.setenv(user_code.VARIABLE, "")
    with pytest.raises(DataError, match="needs the module 'my_net', which is not here"):
        user_code.check(expected)


@pytest.mark.parametrize("name, message", [("fairflare.py", "this package's"), ("a-b.py", "expected a .py file")])
def test_names_that_cannot_be_modules(name, message, tmp_path):
    (tmp_path / name).write_text("")
    with pytest.raises(UserError, match=message):
        user_code.use([tmp_path / name])
    with pytest.raises(UserError, match="expected a .py file"):
        user_code.use([tmp_path / "gone.py"])


def test_a_folder_that_is_vouched_for_and_monais_networks_can_be_named(tmp_path, monkeypatch):
    write_code(tmp_path / "custom")
    monkeypatch.syspath_prepend(tmp_path / "custom")
    monkeypatch.setattr(user_code, "_vouched", [])
    with pytest.raises(UserError, match="none of your files"):
        user_code.load_object("my_net.Net", "model", *A_CLASS)
    user_code.vouch([tmp_path / "custom"])
    assert user_code.load_object("my_net.Net", "model", *A_CLASS).__name__ == "Net"
    model = {"class_path": "monai.networks.nets.UNet", "args": {"spatial_dims": 2, "in_channels": 1, "out_channels": 1}}
    model["args"] |= {"channels": [4, 8], "strides": [2]}
    assert own_network.build(json.dumps(model), (1, 32, 32), (1, 32, 32))


def test_a_module_of_the_same_name_from_elsewhere_does_not_stay(tmp_path, monkeypatch):
    """The declared file is what is imported and what is fingerprinted, whatever was imported before."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        text = f"from torch import nn\n\n\nclass Net(nn.Module):\n    home = '{name}'\n"
        (tmp_path / name / "twin_net.py").write_text(text)
        monkeypatch.setenv(user_code.VARIABLE, str(tmp_path / name / "twin_net.py"))
        user_code.check(user_code.fingerprints())
        found = user_code.load_object("twin_net.Net", "model", lambda kind: True, "a network")
        assert found.home == name
    sys.modules.pop("twin_net")
