# SPDX-License-Identifier: Apache-2.0
"""A training loop of the user's own: what it receives and reports, under which rules, and what stops it.

FLARE's Client API is a queue here; tests/flare/test_client_script.py runs the real one.
"""

import dataclasses
import json
import threading

import pytest
import torch
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, TensorDataset

from command_line import code_of as call
from fairflare import client
from fairflare.core import user_code
from fairflare.core.errors import DataError, EgressRefused, RunFailed, UserError
from fairflare.core.types import Batch, LocalWork, Round, Training
from fairflare.engine.audit import verify
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import LocalSites, run_local
from fairflare.engine.setup.parts import build_parts
from fairflare.flare import script, script_side, site_policy
from fairflare.flare.site_policy import Policy
from fairflare.flare.wire import answer_from_model, instruction_to_model
from fairflare.probes.cka import LayerSimilarity
from fairflare.probes.groups import GroupLoss
from fairflare.probes.sharpness import Sharpness
from fairflare.studies.run_file import own_script
from own_script import SITES, ScriptThread, forget_script, script_text, write_script

PLAIN = script_text().replace("work.report(numbers)", "work.report()")
FEDLWR = PLAIN.replace(
    "evaluate=score)", "evaluate=score, compare=lambda net, anchor: client.layer_similarity(net, anchor, fixed))"
)
FEDUFO = script_text().replace(
    "client.sharpness(net, fixed, cross_entropy, work.rho)",
    "client.group_losses(net, DataLoader(TensorDataset(*data.tensors, data.tensors[1])), cross_entropy, work.groups)",
)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setenv(user_code.VARIABLE, "")
    yield
    forget_script()


class Scripted:
    """Runs a federation in this process whose sites are scripts in threads."""

    def __init__(self, config, path, monkeypatch):
        self.config, self.parts = config, build_parts(config)
        self.scripts = {site: ScriptThread(path) for site in SITES}
        self._own = threading.local()
        monkeypatch.setattr(script_side, "flare", self)
        monkeypatch.setattr(script_side, "here", self)

    def __getattr__(self, name):
        """FLARE's API, and what a site knows, of the script whose thread asks."""
        thread = threading.current_thread()
        site = next(site for site, one in self.scripts.items() if one._thread is thread)
        return getattr(self.scripts[site].flare, name, None) or getattr(self._here(site), name)

    def _here(self, site):
        task = self.parts.task
        config = self.config
        training = dataclasses.asdict(config.training)
        known = {"settings": config.settings, "training": training, "groups": self.parts.grouping.names}
        more = {"min_count": config.min_count, "wanted": self.parts.rule.wanted}
        return script_side.Here(site=site, folder=task.folder(site, None), **known, **more)

    def answer(self, site, instruction):
        found = answer_from_model(self.scripts[site].ask(instruction.task, instruction_to_model(instruction)), site)
        script.refuse_small_groups(found.scalars, self.config.min_count)
        return found if found.update is not None else dataclasses.replace(found, update_kind="diff")

    def run(self, folder):
        folder.mkdir()
        try:
            with LocalSites(self.config, folder, self.parts) as sites:
                for name, site in sites.transport._sites.items():
                    site.script = lambda instruction, name=name: self.answer(name, instruction)
                run_local(self.config, folder, parts=self.parts, sites=sites)
        finally:
            for thread in self.scripts.values():
                thread.end()
        return verify(folder / "audit.jsonl")


def scripted(tmp_path, monkeypatch, method, text=None, **values):
    path, data = write_script(tmp_path / "code", text)
    user_code.use([path])
    task, given = own_script(path, data, None)
    config = make_config(method, task, rounds=2, values={**given, "train.lr": 0.1, **values})
    return Scripted(config, path, monkeypatch)


def rounds_of(entries):
    return [entry for entry in entries if entry["event"] == "round"]


def test_the_pages_script_under_fedism_plus(tmp_path, monkeypatch):
    entries = scripted(tmp_path, monkeypatch, "fedism-plus").run(tmp_path / "run")
    for entry in rounds_of(entries):
        assert set(entry["weights"]) == set(SITES) and not entry["rejected"]
        assert len(set(entry["weights"].values())) == 3, "weighed by sharpness"
    inputs = rounds_of(entries)[0]["accepted"]["north"]
    assert inputs["n_examples"] == 40 and inputs["steps"] == 3 and inputs["scalars"]["sharpness"] > 0
    evaluation = next(entry for entry in entries if entry["event"] == "evaluation")["sites"]
    assert evaluation["west"]["n"] == {"val": 20.0, "test": 30.0} and 0 <= evaluation["west"]["test"]["accuracy"] <= 1


def test_a_script_and_the_same_run_again_make_the_same_bits(tmp_path, monkeypatch):
    heads = []
    for name in ("first", "second"):
        entries = scripted(tmp_path / name, monkeypatch, "fedavg", PLAIN).run(tmp_path / name / "run")
        heads.append(rounds_of(entries)[-1]["model_sha256"])
        forget_script()
    assert heads[0] == heads[1]


def test_fed_lwrs_second_exchange(tmp_path, monkeypatch):
    entries = scripted(tmp_path, monkeypatch, "fedlwr", FEDLWR, **{"train.lr": 2.0}).run(tmp_path / "run")
    last = rounds_of(entries)[-1]
    layers = last["notes"]["layer_weights"]
    assert not last["rejected"] and set(layers) == {"0", "2"}
    assert all(len(set(rho.values())) == 3 for rho in layers.values()), "each site's features moved otherwise"


def test_fedufos_groups(tmp_path, monkeypatch):
    entries = scripted(tmp_path, monkeypatch, "fedufo", FEDUFO, group_by="label").run(tmp_path / "run")
    first = rounds_of(entries)[0]
    assert not first["rejected"]
    sent = first["accepted"]["west"]["scalars"]
    assert sent["group_count/class 0"] + sent["group_count/class 1"] == 80 and sent["group_loss/class 0"] > 0


@pytest.mark.parametrize(
    "change, message",
    [
        (("work.report(numbers)", "pass"), "was not reported"),
        (("work.report(numbers)", "work.report({'patients': 3.0})"), "egress"),
        (("work.report(numbers)", "work.report({'sharpness': float('nan')})"), "egress"),
        (('"accuracy": right', '"accuracy": right + 1'), "egress"),
    ],
)
def test_what_a_script_says_is_checked_as_any_answer_is(change, message, tmp_path, monkeypatch):
    """Nothing of it counts: no site is accepted, and the run ends with its first model."""
    text = script_text().replace(*change)
    assert text != script_text()
    run = scripted(tmp_path, monkeypatch, "fedism", text)
    with pytest.raises((RunFailed, UserError), match=message if message != "egress" else "egress|accepted"):
        try:
            run.run(tmp_path / "run")
        finally:
            entries = verify(tmp_path / "run" / "audit.jsonl")
            assert not rounds_of(entries)


def test_a_second_report_of_a_round_ends_the_script(tmp_path, monkeypatch):
    text = script_text().replace("work.report(numbers)", "work.report(numbers), work.report(numbers)")
    with pytest.raises(UserError, match="expected once in a round"):
        scripted(tmp_path, monkeypatch, "fedism", text).run(tmp_path / "run")


def test_only_a_script_of_a_federation_runs_as_one(tmp_path):
    path, _ = write_script(tmp_path)
    (tmp_path / "other.py").write_text("open('owned', 'w')\n")
    user_code.use([path, tmp_path / "other.py"])
    assert script.script_file("train") == path
    for name, message in (("other", "does not import fairflare.client"), ("gone", "is not here"), ("json", "not here")):
        with pytest.raises(DataError, match=message):
            script.script_file(name)


def test_a_policy_lists_the_scripts_that_a_job_may_name(tmp_path):
    path, _ = write_script(tmp_path)
    values = {"script": "train.network", "site_names": "A,B"}
    content = make_config("fedavg", "script", values=values).to_json()
    site_policy.check_config(content, Policy(names=["train.network"]), [path.parent])
    for policy, homes in ((Policy(names=["train.other"]), [path.parent]), (Policy(), [tmp_path / "empty"])):
        with pytest.raises(UserError, match="script: expected"):
            site_policy.check_config(content, policy, homes)


def test_numbers_of_small_groups_stay():
    script.refuse_small_groups({"loss": 1.0, "group_loss/f": 0.5, "group_count/f": 10.0}, 10)
    for scalars in ({"group_loss/f": 0.5, "group_count/f": 9.0}, {"group_loss/f": 0.5}, {"group_count/f": None}):
        with pytest.raises(EgressRefused, match="group_"):
            script.refuse_small_groups(scalars, 10)
    with pytest.raises(EgressRefused):
        script.refuse_small_groups({"group_loss/f": 0.5, "group_count/f": 900.0}, None)


@pytest.mark.parametrize(
    "key, value",
    [
        ("trainer", "feddyn"),
        ("trainer", "ditto"),
        ("secure_sum", "masks"),
        ("after", "recalibrate"),
        ("stacked", True),
        ("solo", True),
    ],
)
def test_what_a_script_cannot_be_combined_with(key, value):
    values = {"script": "train.network", "site_names": "A,B,C", key: value}
    with pytest.raises(UserError, match=f"{key}: expected .* with a script"):
        make_config("fedism", "script", values=values)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"script": "network"}, "script: expected module.Name"),
        ({"script": "fairflare.client"}, "this package's"),
        ({"scores": "auc,auc"}, "scores: expected different names"),
        ({"scores": "a b"}, "scores: expected names of letters"),
    ],
)
def test_wrong_options_are_one_line(values, message):
    with pytest.raises(UserError, match=message):
        make_config("fedavg", "script", values={"site_names": "A,B", **values})


@pytest.mark.parametrize("body, message", [("return 3", "got int"), ("return 1 / 0", "ZeroDivisionError")])
def test_a_network_that_is_none(body, message, tmp_path):
    path, _ = write_script(tmp_path, f"from fairflare import client\n\n\ndef network():\n    {body}\n")
    user_code.use([path])
    config = make_config("fedavg", "script", values={"site_names": "A,B"})
    with pytest.raises(UserError, match=message):
        build_parts(config)


def test_outside_a_federation_the_loop_says_how_to_start_it():
    with pytest.raises(UserError, match="fairflare run METHOD --script FILE --data DIR"):
        next(client.rounds(torch.nn.Linear(1, 1), 3))
    for ask in (client.site_name, client.data_folder):
        with pytest.raises(UserError, match="no site of a federation"):
            ask()


def test_a_job_carries_the_script(tmp_path):
    path, data = write_script(tmp_path)
    assert call("export", "fedism-plus", "--script", path, "--data", data, "--out", tmp_path / "job") == 0
    assert (tmp_path / "job" / "app_sites" / "custom" / "train.py").read_text() == path.read_text()
    text = (tmp_path / "job" / "app_sites" / "config" / "config_fed_client.json").read_text()
    assert str(tmp_path) not in text and '"script": "train.network"' in text


def test_a_job_without_code_names_the_script(tmp_path):
    settings = ("--set", "script=train.network", "--set", "site_names=A,B", "--preinstalled")
    assert call("export", "fedavg", "--task", "script", *settings, "--out", tmp_path / "job") == 0
    assert not list((tmp_path / "job").glob("*/custom"))
    server = json.loads((tmp_path / "job" / "app_server" / "config" / "config_fed_server.json").read_text())
    flow = server["workflows"][0]
    assert flow["args"]["config"]["options"]["script"] == "train.network" and not flow["args"]["config"].get("code")


def test_mistakes_on_the_command_line(tmp_path, capsys):
    path, data = write_script(tmp_path)
    for arguments, message in (
        (("--script", path, "--task", "heart"), "--script: goes with --data DIR, without --task"),
        (("--script", path, "--data", path), "expected a folder with a folder per site"),
        (("--script", tmp_path / "gone.py", "--data", data), "expected a .py file"),
        (
            ("--script", path, "--data", data, "--trainer", "feddyn"),
            "trainer: expected one that exchanges models alone",
        ),
    ):
        assert call("run", "fedavg", *arguments, "--out", tmp_path / "run") == 2
        err = capsys.readouterr().err
        assert message in err and err.strip().count("\n") == 0, err


# The probes as plain functions


def examples():
    draw = torch.Generator().manual_seed(3)
    inputs, targets = torch.randn(40, 5, generator=draw), torch.randint(0, 3, (40,), generator=draw)
    return inputs, targets, targets % 2


def small_network():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))


class Data:
    """A site's data as the package has them."""

    class_counts = torch.ones(3, dtype=torch.int64)
    group_counts = torch.bincount(examples()[2])

    def size(self, split):
        return 40

    def fixed(self, split, batch_size, at_most=None):
        yield from map(Batch._make, zip(*(part.split(batch_size) for part in examples())))


def site_work(network):
    return LocalWork(network, Data(), Training(), Round(1, 1), 0, groups=("a", "b"))


def loader(parts=2, size=64):
    return DataLoader(TensorDataset(*examples()[:parts]), batch_size=size)


@pytest.mark.parametrize("loss", [cross_entropy, torch.nn.CrossEntropyLoss(), lambda z, y: cross_entropy(z, y)])
def test_sharpness_is_the_probes(loss):
    network = small_network()
    before = {key: value.clone() for key, value in network.state_dict().items()}
    found = client.sharpness(network, loader(), loss, 0.3)
    assert found == pytest.approx(Sharpness(rho_max=0.3, rho_tau=0.0).measure(site_work(network)), rel=1e-5)
    assert found["sharpness"] > 0 and all(torch.equal(before[k], v) for k, v in network.state_dict().items())


def test_group_losses_are_the_probes():
    network = small_network()
    work = site_work(network)
    work.min_count = 5
    found = client.group_losses(network, loader(3), cross_entropy, ("a", "b"), min_count=5)
    assert found == GroupLoss().measure(work) and set(found) > {"loss", "group_loss/a", "group_count/b"}
    assert set(client.group_losses(network, loader(3), cross_entropy, ("a", "b"), min_count=39)) == {"loss"}
    with pytest.raises(UserError, match="reduction='none'"):
        client.group_losses(network, loader(3), lambda z, y: mse_loss(z, z), ("a", "b"))


def test_layer_similarity_is_the_probes():
    network, anchor = small_network(), {k: v + 0.1 for k, v in small_network().state_dict().items()}
    work = site_work(network)
    work.received = anchor
    expected = LayerSimilarity(cka_batch=64).measure(work)
    assert client.layer_similarity(network, anchor, loader()) == expected and len(expected) == 2
    assert client.layer_similarity(network, network.state_dict(), loader())["similarity/0"] == pytest.approx(1)


def test_layer_features_are_the_layers_outputs():
    network = small_network()
    found = client.layer_features(network, loader(size=16))
    inputs = examples()[0]
    assert list(found) == ["0", "2"] and torch.allclose(found["2"], network(inputs)) and found["0"].shape == (40, 6)


def test_a_loader_of_something_else_is_named():
    with pytest.raises(UserError, match="loader: expected batches"):
        client.sharpness(small_network(), [torch.zeros(3)], cross_entropy, 0.1)
