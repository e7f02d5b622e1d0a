# SPDX-License-Identifier: Apache-2.0
"""Where an initial model comes from: runs, files of weights and bundles, what of them fits, and what is refused."""

import json
import os
import shutil

import pytest
import torch
from torch import nn

from command_line import call
from fairflare.cli.main import main
from fairflare.core.errors import UserError
from fairflare.engine.audit import verify
from fairflare.engine.files import read_model
from fairflare.engine.hashes import model_hash
from fairflare.engine.setup.config import RunConfig, make_config
from fairflare.engine.setup.local import run_local
from fairflare.engine.setup.parts import build_parts
from fairflare.engine.setup.weights import VARIABLE, named, source_of, start_from, tensors_of, unwrapped
from helpers import small_network

TASK = ["--task", "support2", "--rounds", "1", "--no-solo", "--set", "model=linear"]


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    """A run of one round."""
    folder = tmp_path_factory.mktemp("initial") / "earlier"
    with pytest.raises(SystemExit) as stop:
        main(["run", "fedavg", *TASK, "--out", str(folder)])
    assert stop.value.code == 0
    return folder


def kept(content, path):
    torch.save(content, path)
    return path


def start(path, network, local=()):
    return start_from(named(path), network, local)


def test_a_whole_state_dict_is_the_initial_model(tmp_path):
    given, network = small_network(1), small_network(2)
    found = start(kept(given.state_dict(), tmp_path / "w.pt"), network)
    assert model_hash(network.state_dict()) == model_hash(given.state_dict())
    assert (found.matched, found.entries, found.taken) == (9, 9, found.numbers) and not found.other + found.missing
    assert found.lines() == ["init-from: 9 of the network's 9 entries are in the file (69 of 69 numbers)"]


def test_what_does_not_fit_starts_as_without_and_is_named(tmp_path):
    given, network = small_network(1).state_dict(), small_network(2)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    given["4.weight"], given["extra"] = torch.zeros(7, 6), torch.ones(3)
    del given["4.bias"]
    found = start(kept(given, tmp_path / "w.pt"), network)
    after = network.state_dict()
    assert torch.equal(after["0.weight"], given["0.weight"])
    assert all(torch.equal(after[key], before[key]) for key in ("4.weight", "4.bias"))
    assert found.other == ("4.weight (7 x 6 in the file, 2 x 6 here)",)
    assert (found.missing, found.unused) == (("4.bias",), ("extra",))
    assert found.lines()[1:] == [
        "init-from: random as without it: 4.weight (7 x 6 in the file, 2 x 6 here), 4.bias (not in the file)",
        "init-from: in the file alone, not used: extra",
    ]


def test_entries_that_stay_at_the_sites_are_left_to_them(tmp_path):
    given, network = small_network(1).state_dict(), small_network(2)
    before = network.state_dict()["1.weight"].clone()
    given["1.weight"] = torch.full((6,), 5.0)
    found = start(kept(given, tmp_path / "w.pt"), network, {"1.weight"})
    assert torch.equal(network.state_dict()["1.weight"], before) and found.entries == 8 and not found.unused


@pytest.mark.parametrize("prefix", ["module.", "model.", "module.model.", "_orig_mod."])
def test_names_behind_a_wrapper(prefix):
    own = small_network(1).state_dict()
    assert unwrapped({prefix + key: value for key, value in own.items()}, own) == own
    assert unwrapped(own, own) == own


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict", "model"])
def test_a_checkpoint_has_it_inside(key, tmp_path):
    content = {"epoch": 3, key: small_network(1).state_dict(), "optimizer": {"lr": 0.1}}
    assert tensors_of(named(kept(content, tmp_path / "c.ckpt"))).keys() == small_network().state_dict().keys()


def test_half_precision_and_safetensors(tmp_path):
    short = {key: value.to(torch.bfloat16) for key, value in small_network(1).state_dict().items()}
    found = tensors_of(named(kept(short, tmp_path / "w.pt")))
    assert all(value.dtype is torch.float32 for value in found.values())
    save_file = pytest.importorskip("safetensors.torch").save_file
    save_file(found, tmp_path / "w.safetensors")
    assert named(tmp_path / "w.safetensors") == named(tmp_path / "w.pt")


def test_the_hash_is_of_the_tensors_and_the_file_may_change_its_name(tmp_path):
    first = named(kept(small_network(1).state_dict(), tmp_path / "a.pt"))
    shutil.copy(tmp_path / "a.pt", tmp_path / "b.pt")
    assert named(tmp_path / "b.pt") == first == named(first) and named("") == named("none") == ""
    assert named(kept(small_network(2).state_dict(), tmp_path / "c.pt")) != first
    kept(small_network(3).state_dict(), tmp_path / "a.pt")
    (tmp_path / "b.pt").unlink()
    with pytest.raises(UserError, match="weights are not here: expected their file with --init-from"):
        tensors_of(first)


class Code:
    def __reduce__(self):
        return os.mkdir, ("/tmp/fairflare-was-here",)


def program(path):
    torch.jit.script(nn.Linear(2, 2)).save(str(path))


def text(path):
    path.write_text("weights")


def infinite(path):
    kept({"0.weight": torch.tensor([float("inf")])}, path)


BAD = {
    "program": (program, "w.pt is a program .TorchScript.: expected weights, as a state dict or .safetensors"),
    "text": (text, "w.pt: expected weights that torch.load reads"),
    "code": (lambda path: kept({"a": Code()}, path), "expected tensors that torch.load reads with weights_only"),
    "infinite": (infinite, "w.pt: '0.weight' holds numbers that are not finite"),
    "counts": (lambda path: kept({"n": torch.tensor(3)}, path), "w.pt: expected a state dict, found no weights"),
    "list": (lambda path: kept([1, 2], path), "w.pt: expected a state dict, which is tensors by name"),
    "missing": (lambda path: None, "no such file or folder: w.pt"),
    "folder": (lambda path: path.mkdir(), "w.pt: expected a run's folder or a MONAI bundle"),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", BAD)
def test_what_is_no_file_of_weights_is_one_line_without_its_folder(name, tmp_path):
    make, message = BAD[name]
    make(tmp_path / "w.pt")
    with pytest.raises(UserError, match=f"init_from: .*{message}") as caught:
        named(tmp_path / "w.pt")
    assert str(tmp_path) not in str(caught.value) and "\n" not in str(caught.value)
    assert not os.path.exists("/tmp/fairflare-was-here")


def test_another_network_s_file_is_refused(tmp_path):
    with pytest.raises(UserError, match="no entry of the file fits the network: it has conv; the network has 0.weight"):
        start(kept({"conv": torch.ones(3)}, tmp_path / "w.pt"), small_network())


@pytest.mark.slow
def test_every_task_takes_them_and_the_configuration_holds_their_hash(tmp_path):
    for task, settings in {"support2": {}, "ich-phantom:small": {"model": "resnet18"}, "brain-seg:small": {}}.items():
        plain = build_parts(make_config("fedavg", task, values=settings)).model
        other = {key: value + 1 for key, value in plain.items()}
        path = kept(other, tmp_path / "w.pt")
        config = make_config("fedavg", task, values={**settings, "init_from": str(path)})
        assert model_hash(build_parts(config).model) == model_hash(other) == config.init_from
        assert model_hash(build_parts(config, at_site=True).model) == model_hash(plain)
        assert RunConfig.from_json(config.to_json()) == config and str(tmp_path) not in json.dumps(config.to_json())
    assert "init_from" not in make_config("fedavg", "support2").to_json()


def test_a_run_starts_from_another_and_goes_on_without_the_file(earlier, tmp_path, capsys):
    config = make_config("fedavg", "support2", rounds=1, values={"model": "linear", "init_from": str(earlier)})
    given = read_model(earlier / "model.safetensors")
    assert model_hash(build_parts(config).model) == model_hash(given) == config.init_from
    out = tmp_path / "run"
    code, _, err = call(capsys, "run", "fedavg", *TASK, "--init-from", earlier, "--out", out)
    assert code == 0 and "init-from: 2 of the network's 2 entries are in the file" in err, err
    assert json.loads((out / "config.json").read_text())["init_from"] == config.init_from
    assert model_hash(read_model(out / "initial.safetensors")) == config.init_from
    assert str(earlier) not in (out / "report.html").read_text() + (out / "config.json").read_text()
    final = read_model(out / "model.safetensors")
    for name in ("audit.jsonl", "checkpoint.safetensors", "model.safetensors", "report.json", "report.html", "log.txt"):
        (out / name).unlink()
    os.environ.pop(VARIABLE)  # a new process, to which nobody has named a file
    assert call(capsys, "resume", out)[0] == 0
    assert model_hash(read_model(out / "model.safetensors")) == model_hash(final)
    kept({key: value + 1 for key, value in given.items()}, out / "initial.safetensors")
    for name in ("audit.jsonl", "checkpoint.safetensors", "model.safetensors", "report.json", "report.html"):
        (out / name).unlink()
    os.environ.pop(VARIABLE)
    code, _, err = call(capsys, "resume", out)
    assert code == 2 and "init_from: the run's initial weights are not here" in err


@pytest.mark.slow
def test_arms_of_a_comparison(earlier, tmp_path, capsys):
    out = tmp_path / "compare"
    with_given = f"fedavg:init_from={earlier}"
    code, _, err = call(capsys, "compare", "fedavg", with_given, *TASK[:4], "--set", "model=linear", "--out", out)
    assert code == 0, err
    table = json.loads((out / "compare.json").read_text())
    assert "init_from" in json.dumps(table) and str(earlier) not in json.dumps(table)
    started = [len(list(folder.glob("initial.safetensors"))) for folder in sorted(out.glob("fedavg*"))]
    assert sorted(started) == [0, 1]


def test_a_job_brings_them_to_the_server_and_names_no_path(earlier, tmp_path, capsys):
    arguments = ["export", "fedavg", *TASK[:4], "--set", "model=linear", "--init-from", earlier, "--preinstalled"]
    code, _, err = call(capsys, *arguments, "--out", tmp_path / "job")
    assert code == 0 and "init-from: 2 of the network's 2" in err, err
    job = tmp_path / "job"
    texts = [path.read_text() for path in job.glob("app_*/config/config_fed_*.json")]
    sha256 = model_hash(read_model(job / "app_server" / "config" / "initial.safetensors"))
    assert [sha256 in one and str(earlier) not in one for one in texts] == [True, True]
    assert not list(job.glob("*/custom")) and not (job / "app_sites" / "config" / "initial.safetensors").exists()
    code, _, err = call(capsys, *arguments, "--out", tmp_path / "job", "--force")
    assert code == 0, err


def test_a_bundle_is_one_too(tmp_path):
    (tmp_path / "models").mkdir()
    given = small_network(1).state_dict()
    kept(given, tmp_path / "models" / "model.pt")
    assert named(tmp_path) == model_hash(given)
    assert source_of(tmp_path) == (tmp_path / "models" / "model.pt").resolve()


@pytest.mark.slow
def test_layers_that_stay_at_the_sites_start_alike_in_process_and_at_a_deployed_site(tmp_path):
    plain = build_parts(make_config("fedbn", "brain-seg:small", values={"norm": "batch"}))
    path = kept({key: value + 1 for key, value in plain.model.items()}, tmp_path / "w.pt")
    config = make_config("fedbn", "brain-seg:small", values={"norm": "batch", "init_from": str(path)})
    server, site = build_parts(config), build_parts(config, at_site=True)
    assert server.personal and server.origin and server.origin.entries == len(plain.model) - len(server.personal)
    assert all(torch.equal(server.model[key], site.model[key]) for key in server.personal)
    assert not any(torch.equal(server.model[key], site.model[key]) for key in server.shared)


def test_the_log_begins_with_a_configuration_that_has_the_hash(earlier, tmp_path):
    config = make_config("fedavg", "support2", rounds=1, values={"model": "linear", "init_from": str(earlier)})
    run_local(config, tmp_path)
    assert verify(tmp_path / "audit.jsonl")[0]["config_sha256"] == config.sha256()
    other = make_config("fedavg", "support2", rounds=1, values={"model": "linear"})
    assert other.sha256() != config.sha256()
