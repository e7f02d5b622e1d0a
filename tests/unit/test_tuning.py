# SPDX-License-Identifier: Apache-2.0
"""A frozen body and low-rank adapters: what trains, what travels, what averages mean, and what is refused."""

import copy
import csv
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from nvflare.fuel.utils import fobs
from torch import nn

from cases import each, needs
from command_line import call
from fairflare.cli.main import main
from fairflare.core import user_code
from fairflare.core.errors import DataError, UserError
from fairflare.data.site_config import SiteConfig
from fairflare.engine.audit import verify
from fairflare.engine.exchanges.train import REST, shortened
from fairflare.engine.files import INITIAL, START, read_model, save_tensors
from fairflare.engine.hashes import model_hash
from fairflare.engine.in_process import InProcess
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import LocalSites, run_local
from fairflare.engine.setup.parts import build_parts
from fairflare.engine.setup.tuning import sizes, tuned, whole
from fairflare.engine.setup.weights import VARIABLE, find_body
from fairflare.flare.wire import answer_to_shareable
from fairflare.networks import builtin
from own_folder import write_tables
from runs import bits, interrupted, run

pytestmark = needs("peft")
TASK = "support2:dirichlet"
SMALL = {"model": "mlp", "n_sites": 3}
TUNES = ("head", "lora")
HOUSE = ("fedavg", "fedism-plus", "fedlwr", "fedce", "fedufo", "fedheal")
IMAGES = {"resnet18": (3, 2), "small-cnn": (1, 2), "small-cnn-bn": (1, 2), "unet": (1, 1)}


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


def settings(tune, **more):
    return SimpleNamespace(**{"tune": tune, "tune_rank": 4, "tune_alpha": 0.0, "tune_layers": "", "seed": 1, **more})


def network_of(name):
    torch.manual_seed(0)
    return builtin.build(name, *IMAGES[name])


def images(name, n=4):
    return torch.randn(n, IMAGES[name][0], 32, 32, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("tune", ["head", "norm", "lora"])
@pytest.mark.parametrize("name", IMAGES)
def test_only_what_trains_is_in_the_state_dict_and_a_step_moves_nothing_else(name, tune):
    plain, network = network_of(name), tuned(network_of(name), settings(tune))
    x = images(name)
    assert torch.equal(network.eval()(x), plain.eval()(x))
    names = {name for name, _ in network.named_parameters()}
    moving = ("running_mean", "running_var", "num_batches_tracked")
    assert {key for key in network.state_dict() if not key.endswith(moving)} == names
    assert any(key.endswith(moving) for key in network.state_dict()) == (tune == "norm" and name not in ("small-cnn",))
    before = {key: value.clone() for key, value in network.named_buffers()}
    network.train()(x).square().sum().backward()
    with torch.no_grad():
        for parameter in network.parameters():
            assert parameter.grad is not None
            parameter -= 0.01 * parameter.grad
    still = {key: value for key, value in network.named_buffers() if key not in network.state_dict()}
    assert still and all(torch.equal(value, before[key]) for key, value in still.items())
    assert sum(value.numel() for value in network.parameters()) < 0.2 * sum(p.numel() for p in plain.parameters())


@pytest.mark.parametrize("tune", ["head", "norm", "lora"])
@pytest.mark.parametrize("name", IMAGES)
def test_a_whole_network_has_the_entries_of_the_plain_one_and_computes_the_same(name, tune):
    network, x = tuned(network_of(name), settings(tune)), images(name)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))
    expected = network.eval()(x)
    other = copy.deepcopy(network)
    other.load_state_dict(dict(network.state_dict()))  # as from a file, without torch's versions of modules
    merged, plain = whole(network).eval(), network_of(name)
    assert {key: value.shape for key, value in merged.state_dict().items()} == {
        key: value.shape for key, value in plain.state_dict().items()
    }
    torch.testing.assert_close(merged(x), expected, rtol=1e-4, atol=1e-5)
    plain.load_state_dict(merged.state_dict())
    torch.testing.assert_close(plain.eval()(x), expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(other.eval()(x), expected)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ModuleDict({"qkv": nn.Linear(width, 3 * width), "proj": nn.Linear(width, width)})
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, 4 * width), "fc2": nn.Linear(4 * width, width)})

    def forward(self, x):
        q, k, v = self.attn["qkv"](self.norm1(x)).chunk(3, -1)
        x = x + self.attn["proj"](nn.functional.scaled_dot_product_attention(q, k, v))
        return x + self.mlp["fc2"](nn.functional.gelu(self.mlp["fc1"](self.norm2(x))))


class LikeTimm(nn.Module):
    """A vision transformer under timm's names."""

    def __init__(self, width=16, depth=2):
        super().__init__()
        self.cls_token, self.pos_embed = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.zeros(1, 17, width))
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, width, 8, 8)})
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 2)

    def forward(self, x):
        x = self.patch_embed["proj"](x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), 1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


BLOCKS, HEAD = ("blocks.0", "blocks.1"), {"head.weight", "head.bias"}
NORMS = {f"{b}.norm{k}.{e}" for b in BLOCKS for k in (1, 2) for e in ("weight", "bias")} | {"norm.weight", "norm.bias"}


def adapters(*layers):
    return {f"{block}.{layer}.lora_B.default.weight" for block in BLOCKS for layer in layers}


@each(
    "tune, layers, expected",
    [
        ("head", "", set()),
        ("norm", "", NORMS),
        ("lora", "", adapters("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")),
        ("lora", "qkv", adapters("attn.qkv")),
        ("lora", "blocks.0.attn.qkv, fc2", adapters("mlp.fc2") | {"blocks.0.attn.qkv.lora_B.default.weight"}),
    ],
)
def test_a_vision_transformer_under_timm_s_names_is_tuned_by_these(tune, layers, expected):
    torch.manual_seed(0)
    plain, x = LikeTimm(), torch.randn(4, 3, 32, 32)
    network = tuned(copy.deepcopy(plain), settings(tune, tune_layers=layers))
    assert set(network.state_dict()) == expected | HEAD
    assert torch.equal(network.eval()(x), plain.eval()(x))
    network.train()(x).square().sum().backward()
    assert all(value.grad is not None and bool(value.grad.abs().sum() > 0) for value in network.parameters())
    with torch.no_grad():
        for value in network.parameters():
            value -= 0.1 * value.grad
    moved = network.eval()(x)
    merged = whole(network).eval()
    assert set(merged.state_dict()) == set(plain.state_dict())
    torch.testing.assert_close(merged(x), moved, rtol=1e-4, atol=1e-5)
    changed = {name for name, value in plain.state_dict().items() if not torch.equal(value, merged.state_dict()[name])}
    assert changed == {name.replace("lora_B.default.", "") for name in expected} | HEAD


def test_dropout_of_the_body_is_off_and_running_statistics_stay():
    network = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    x = torch.randn(16, 8)
    expected = tuned(network, settings("head")).eval()(x)
    assert torch.equal(network.train()(x), expected) and network.training


def test_adapters_have_orthonormal_rows_so_that_norms_and_cosines_are_those_of_the_effective_update():
    network = tuned(network_of("resnet18"), settings("lora"))
    for layer in network.modules():
        if hasattr(layer, "lora_A"):
            a = layer.lora_A["default"].weight.flatten(1).numpy()
            np.testing.assert_allclose(a @ a.T, np.eye(4), atol=1e-6)
            b = np.random.default_rng(0).normal(size=(2, layer.lora_B["default"].weight.shape[0], 4))
            both = b @ a
            assert np.linalg.norm(both[0]) == pytest.approx(np.linalg.norm(b[0]), rel=1e-6)
            assert (both[0] * both[1]).sum() == pytest.approx((b[0] * b[1]).sum(), rel=1e-5, abs=1e-5)
            assert "lora_A" not in " ".join(key for key, _ in layer.named_parameters())
    again = tuned(network_of("resnet18"), settings("lora"))
    assert all(torch.equal(a, b) for a, b in zip(network.buffers(), again.buffers(), strict=True))


class Watched(InProcess):
    """Keeps the updates that sites send, and may change an answer."""

    def __init__(self, sites, change=lambda answer: answer):
        super().__init__(sites)
        self.answers, self.change = [], change

    def exchange(self, instructions):
        for answer in super().exchange(instructions):
            found = self.change(answer)
            if found.update:
                self.answers.append(found)
            yield found


def watched(method, folder, values, change=lambda answer: answer, rounds=1):
    config = make_config(method, TASK, rounds=rounds, values={**SMALL, **values})
    folder.mkdir(exist_ok=True)
    parts = build_parts(config)
    with LocalSites(config, folder, parts) as sites:
        sites.transport = Watched({site.name: site for site in sites.transport.members()}, change)
        model = run_local(config, folder, parts=parts, sites=sites)
    rounds_of = [entry for entry in verify(folder / "audit.jsonl") if entry["event"] == "round"]
    return model, parts, sites.transport.answers, rounds_of


@pytest.mark.parametrize("method", [*HOUSE[:-1], "qffl"])
def test_a_weighted_average_of_adapters_is_that_of_the_effective_updates(method, tmp_path):
    """By NumPy from what sites sent: the mean of B A, of all three layers' weights."""
    model, parts, answers, (entry,) = watched(method, tmp_path, {"tune": "lora", "robust": "off", "tune_rank": 3})
    layers = {n: m for n, m in parts.network.named_modules() if hasattr(m, "lora_A")}
    assert layers
    for name, layer in layers.items():
        a, key = layer.lora_A["default"].weight.double().numpy(), f"{name}.lora_B.default.weight"
        sent = {one.site: one.update[key].double().numpy() for one in answers}
        weights = entry["notes"].get("layer_weights", {}).get(f"{name}.lora_B.default", entry["weights"])
        expected = sum(weights[site] * (update @ a) for site, update in sent.items())
        np.testing.assert_allclose(model[key].double().numpy() @ a, expected, atol=1e-6)
        assert np.abs(expected).max() > 1e-4


def test_fedheal_averages_what_it_keeps_of_the_effective_updates(tmp_path):
    """By NumPy over three rounds: masks from the signs of B, distances and averages of what is left of B A."""
    tau, beta = 0.6, 0.4
    values = {"tune": "lora", "robust": "off", "tune_rank": 3, "tau": tau, "beta": beta}
    model, parts, answers, entries = watched("fedheal", tmp_path, values, rounds=3)
    layers = {f"{n}.lora_B.default.weight": m.lora_A for n, m in parts.network.named_modules() if hasattr(m, "lora_A")}
    rows = {key: a["default"].weight.double().numpy() for key, a in layers.items()}
    sites = sorted({one.site for one in answers})
    n = {one.site: one.n_examples for one in answers}
    p = {site: n[site] / sum(n.values()) for site in sites}
    dp, moved, dropped = dict.fromkeys(sites, 0.0), dict.fromkeys(rows, 0.0), 0
    ups = {site: {key: np.zeros(value.shape) for key, value in answers[0].update.items()} for site in sites}
    for t, entry in enumerate(entries, 1):
        sent = {one.site: one.update for one in answers[(t - 1) * len(sites) : t * len(sites)]}
        kept, effective = {}, {}
        for site in sites:
            for key, value in sent[site].items():
                u = value.double().numpy()
                ups[site][key] += u >= 0
                share = ups[site][key] / t
                kept[site, key] = np.where(u >= 0, share, 1 - share) >= tau
                effective[site, key] = (kept[site, key] * u) @ rows.get(key, np.eye(u.shape[-1]))
                dropped += (~kept[site, key]).sum() if key in rows else 0
        far = {site: sum((effective[site, key] ** 2).sum() for key in sent[site]) for site in sites}
        dp = {site: (1 - beta) * dp[site] + beta * far[site] / sum(far.values()) for site in sites}
        p = {site: p[site] + dp[site] for site in sites}
        p = {site: value / sum(p.values()) for site, value in p.items()}
        assert entry["weights"] == pytest.approx(p, abs=1e-6)
        for key, a in rows.items():  # the share that counts differs by entries of B: those of B A share theirs
            mass = sum(p[site] * kept[site, key] for site in sites)
            step = sum(p[site] * kept[site, key] * sent[site][key].double().numpy() for site in sites)
            moved[key] += np.divide(step, mass, out=np.zeros_like(step), where=mass > 0) @ a
    assert rows and dropped
    for key, a in rows.items():
        np.testing.assert_allclose(model[key].double().numpy() @ a, moved[key], atol=1e-6)
        assert np.abs(moved[key]).max() > 1e-4


WIDE = """
from torch import nn


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 4096), nn.ReLU())
        self.head = nn.Linear(4096, 2)

    def forward(self, x):
        return self.head(self.body(x))
"""
BODY = 4 * (2 * 64 + 64 + 64 * 4096 + 4096)


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Four sites' tables, and an own network of 1.1 MB, almost all of it body."""
    folder = write_tables(tmp_path_factory.mktemp("wide") / "data")
    (folder.parent / "wide_net.py").write_text(WIDE)
    own = {"datalists": str(folder), "site_names": "east,north,south,west", "labels": "lived,died"}
    model = json.dumps({"class_path": "wide_net.Wide"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(user_code.VARIABLE, str(folder.parent / "wide_net.py"))
        yield {**own, "label": "outcome", "features": "age,score", "model": model}


@each("method, tune", [(method, tune) for method in HOUSE for tune in TUNES])
def test_bytes_of_a_reply_and_of_each_file_are_those_of_what_trains(method, tune, wide, tmp_path):
    """As FLARE sends it, at most 1.05 times the numbers that train; nothing that a run keeps holds the body."""
    layers = {"tune_layers": "body.2"} if tune == "lora" else {}
    values = {**wide, **layers, "tune": tune, "solo": True, "best_by": "worst"}
    config = make_config(method, "tabular", rounds=2, values=values)
    parts = build_parts(config)
    assert sum(4 * value.numel() for value in parts.network.buffers()) >= BODY
    with LocalSites(config, tmp_path, parts) as sites:
        sites.transport = Watched({site.name: site for site in sites.transport.members()})
        run_local(config, tmp_path, parts=parts, sites=sites)
    trained, shapes = 4 * sizes(parts.network)[0], {key: one.shape for key, one in parts.network.named_parameters()}
    assert all({key: one.shape for key, one in a.update.items()} == shapes for a in sites.transport.answers)
    sent = {len(fobs.dumps(answer_to_shareable(one))) for one in sites.transport.answers}
    assert trained <= min(sent) and max(sent) <= 1.05 * trained, (trained, sent)
    kept = {path.relative_to(tmp_path).as_posix(): path.stat().st_size for path in tmp_path.rglob("*.safetensors")}
    assert {"checkpoint.safetensors", "model.safetensors", "best.safetensors", "sites/east.solo.safetensors"} <= {*kept}
    for name, size in kept.items():
        memory = name.count("/") and ".solo" not in name  # Fed-LWR and FedCE keep the last update beside the model
        signs = method == "fedheal" and name.startswith("checkpoint")  # a byte for each entry and site
        assert size <= (2 if memory or signs else 1) * trained + 4096, (name, size, trained)


@each("method", HOUSE)
def test_half_the_bytes_travel_and_the_model_is_nearly_the_same(method, tmp_path):
    """Also of a run that is cut off, whose sites keep what rounding has left."""
    models = {}
    for exchange in ("float32", "bfloat16", "float16"):
        folder = tmp_path / exchange
        models[exchange], _, answers, _ = watched(method, folder, {"tune": "head", "exchange": exchange}, rounds=3)
        kinds = {value.dtype for answer in answers for value in answer.update.values()}
        assert kinds == {getattr(torch, exchange)}
    moved = max(float(value.abs().max()) for value in models["float32"].values())
    for exchange, most in (("bfloat16", 2e-2), ("float16", 2e-3)):
        far = [(models[exchange][key] - value).abs().max() for key, value in models["float32"].items()]
        assert 0 < max(far) < most * moved


def test_what_rounding_leaves_is_sent_with_the_next_updates():
    """The sum of what was sent is that of the updates, but for one rounding; statistics keep 32 bits."""
    rng, memory, sent, true = torch.Generator().manual_seed(0), {}, torch.zeros(50), torch.zeros(50)
    for _ in range(200):
        update = {"w": 1e-3 * torch.randn(50, generator=rng) + 1e-3, "bn.running_mean": torch.ones(2) / 3}
        answer = shortened(update, {"w"}, memory, torch.bfloat16)
        assert answer["w"].dtype is torch.bfloat16 and answer["bn.running_mean"].dtype is torch.float32
        sent, true = sent + answer["w"].float(), true + update["w"]
    assert float((sent + memory[REST]["w"] - true).abs().max()) < 1e-5
    assert float((sent - true).abs().max()) < 1e-4
    assert bool(shortened({"w": torch.full((2,), 1e6)}, {"w"}, {}, torch.float16)["w"].isfinite().all())


@pytest.mark.parametrize("tune", TUNES)
def test_an_answer_that_touches_one_bit_of_a_frozen_number_is_refused(tune, tmp_path):
    def touched(answer):
        if not answer.update or answer.site != last:
            return answer
        one = torch.zeros_like(frozen).view(torch.int32)
        one.view(-1)[0] = 1  # the least number above 0
        return dataclasses.replace(answer, update=answer.update | {name: one.view(torch.float32)})

    config = make_config("fedavg", TASK, values={**SMALL, "tune": tune})
    parts = build_parts(config)
    last = sorted(parts.task.sites())[-1]
    name, frozen = next((key, one) for key, one in parts.network.named_buffers() if one.ndim == 2)
    _, _, _, (entry,) = watched("fedavg", tmp_path, {"tune": tune}, touched)
    assert list(entry["rejected"]) == [last] and last not in entry["weights"]
    assert entry["rejected"][last]["code"] == "keys", entry["rejected"]


def test_without_tune_nothing_changes():
    plain, named = (make_config("fedavg", TASK, values={**SMALL, **more}) for more in ({}, {"tune": "all"}))
    assert plain.sha256() == named.sha256() and not {"tune", "body"} & set(plain.to_json())


WAYS = {
    "robust": {"robust": "mixed"},
    "secure sums": {"secure_sum": "masks", "n_sites": 4},
    "records": {"trainer": "dp-sgd", "trainer.epsilon": 8.0, "trainer.draws": "seed", "optimizer": "sgd"},
    "hospitals": {"secure_sum": "masks", "n_sites": 4, "site_epsilon": 10.0},
    "benefit": {"solo": True},
    "best": {"best_by": "worst"},
    "16 bits": {"exchange": "bfloat16"},
}


@pytest.mark.parametrize("tune", TUNES)
@each("method, way", [(method, way) for method in HOUSE for way in WAYS], short=[("fedavg", way) for way in WAYS])
def test_what_a_run_can_be_told_works_on_what_trains_or_is_refused_in_a_line(method, way, tune, tmp_path):
    if way == "records":
        pytest.importorskip("opacus")
    try:
        model, parts, _, rounds = watched(method, tmp_path / "run", {"tune": tune, **WAYS[way]}, rounds=2)
    except UserError as error:
        assert method != "fedavg" and "\n" not in str(error) and len(str(error)) < 300
        with pytest.raises(UserError):  # nor can a whole network be told so
            build_parts(make_config(method, TASK, values={**SMALL, **WAYS[way]}))
        return
    assert model.keys() == dict(parts.network.named_parameters()).keys() and len(rounds) == 2
    assert rounds[-1]["model_sha256"] == model_hash(model)


METHODS = ("fedadam", "fedavgm", "fedprox", "moon", "ditto", "scaffold", "median", "trimmed-mean", "multi-krum")
METHODS += ("fedism", "fedyogi", "afl", "term")


@pytest.mark.parametrize("tune", TUNES)
def test_every_method_trains_adapters_or_refuses_in_a_line(tune, tmp_path):
    done, refused = [], {}
    from fairflare.core import registry

    for method in sorted(registry.methods()):
        try:
            model, *_ = watched(method, tmp_path / method, {"tune": tune})
            assert 0 < len(model) < 6 and all(bool(v.isfinite().all()) for v in model.values())
            done.append(method)
        except UserError as error:
            refused[method] = str(error)
    assert set(METHODS) & set(registry.methods()) <= set(done) | set(refused)
    assert all("\n" not in text and len(text) < 300 for text in refused.values()), refused
    assert len(done) >= 0.7 * len(registry.methods()), refused


CUT = [(method, tune, "float32") for method in HOUSE for tune in TUNES] + [("fedism-plus", "lora", "bfloat16")]


@each("method, tune, exchange", CUT, short=[one for one in CUT if one[0] in ("fedism-plus", "fedheal")])
def test_a_run_that_is_cut_off_goes_on_to_the_same_bits(method, tune, exchange, tmp_path, monkeypatch):
    values = {**SMALL, "tune": tune, "exchange": exchange}
    whole_run = run(method, tmp_path / "whole", values)
    assert bits(interrupted(method, tmp_path / "cut", values, monkeypatch)) == bits(whole_run)


COMMAND = ("--task", "support2", "--rounds", "1", "--no-solo", "--set", "model=mlp")


@pytest.fixture(scope="module")
def body(tmp_path_factory):
    """A run of whole models, whose final one is the body of others."""
    folder = tmp_path_factory.mktemp("body") / "earlier"
    with pytest.raises(SystemExit) as stop:
        main(["run", "fedavg", *COMMAND, "--out", str(folder)])
    assert not stop.value.code
    return folder


@pytest.mark.parametrize("tune", TUNES)
def test_a_given_body_is_kept_once_and_a_finished_run_exports_the_whole_network(tune, body, tmp_path, capsys):
    folder = tmp_path / "run"
    code, _, said = call(capsys, "run", "fedheal", *COMMAND, "--init-from", body, "--tune", tune, "--out", folder)
    assert code == 0 and f"tune {tune}: " in said, said
    whole_model, model = read_model(body / "model.safetensors"), read_model(folder / "model.safetensors")
    assert sum(value.numel() for value in model.values()) < sum(value.numel() for value in whole_model.values()) / 2
    assert model_hash(read_model(folder / INITIAL)) == model_hash(whole_model)
    assert json.loads((folder / "config.json").read_text())["about"]["trained"]["numbers"] == sum(
        value.numel() for value in model.values()
    )
    code, _, said = call(capsys, "verify", folder)
    assert code == 0, said
    code, _, said = call(capsys, "export-model", folder, "--format", "state-dict", "--out", tmp_path / "out")
    assert code == 0, said
    exported = torch.load(tmp_path / "out" / "model.pt", weights_only=True)
    assert exported.keys() == whole_model.keys()
    changed = [key for key in exported if not torch.equal(exported[key], whole_model[key])]
    head = list(whole_model)[-2:]
    assert set(head) <= set(changed) and (changed == head if tune == "head" else len(changed) > 2)


USES = [(method, tune) for method in HOUSE for tune in TUNES]


@each("method, tune", USES, short=[("fedism-plus", "head"), ("fedheal", "lora")])
def test_every_method_s_run_is_verified_exported_and_predicts_what_it_evaluates(method, tune, wide, tmp_path, capsys):
    own = ["--datalists", wide["datalists"], "--kind", "tabular", "--classes", wide["labels"], "--rounds", 2]
    own += ["--set", "label=outcome", "--set", "features=age,score", "--set", "model=mlp", "--set", "tune_rank=1"]
    folder, table = tmp_path / "run", Path(wide["datalists"], "east.csv")
    new = tmp_path / "new.csv"
    new.write_text("\n".join(line.replace(".", ".1") for line in table.read_text().splitlines()) + "\n")
    tuned = own if tune == "lora" else own[:-2]
    for words in (
        ["run", method, *tuned, "--tune", tune, "--workers", 1, "--out", folder],
        ["verify", folder],
        ["export-model", folder, "--format", "state-dict", "--out", tmp_path / "exported"],
        ["predict", folder, new, "--plain", "--out", tmp_path / "p"],
        ["evaluate", folder, new, "--name", "new", "--out", tmp_path / "e"],
    ):
        code, _, said = call(capsys, *words)
        assert code == 0, (words, said)
    exported = torch.load(tmp_path / "exported" / "model.pt", weights_only=True)
    assert exported.keys() == builtin.build("mlp", 2, 2).state_dict().keys()
    with (tmp_path / "p" / "predictions.csv").open() as file, new.open() as true:
        hits = [row["class"] == own["outcome"] for row, own in zip(csv.DictReader(file), csv.DictReader(true))]
    found = json.loads((tmp_path / "e" / "evaluation.json").read_text())["sites"]["new"]["metrics"]
    assert np.mean(hits) == pytest.approx(found["accuracy"]["value"]) and len(hits) == 80


@pytest.mark.parametrize("tune", TUNES)
def test_a_server_has_the_bits_of_what_trains_and_nothing_of_the_body(tune, body, tmp_path, monkeypatch):
    given = {"model": "mlp", "tune": tune, "init_from": str(body)}
    config = make_config("fedavg", "support2", values=given)
    parts = build_parts(config)
    save_tensors(tmp_path / START, parts.model)
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(UserError, match="initial weights are not here"):
        build_parts(config)
    lean = build_parts(config, start=tmp_path / START)
    assert model_hash(lean.model) == model_hash(parts.model) and lean.trainable == parts.trainable
    frozen = {key: value for key, value in lean.network.named_buffers() if key not in lean.model}
    assert frozen and all(value.is_meta for value in frozen.values())
    assert sizes(lean.network) == sizes(parts.network)


def test_a_site_takes_its_body_from_its_own_file_and_no_other(body, tmp_path):
    sha256 = model_hash(read_model(body / "model.safetensors"))
    with pytest.raises(DataError, match="expected the file of the run's weights"):
        find_body(sha256, tmp_path, None)
    with pytest.raises(DataError, match="expected weights of SHA-256 000000000000, got"):
        find_body("0" * 64, tmp_path, SiteConfig(weights=str(body / "model.safetensors")))
    with pytest.raises(DataError, match="no such file"):
        find_body(sha256, tmp_path, SiteConfig(weights=str(tmp_path / "none.safetensors")))
    content = bytearray((body / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "flipped.safetensors").write_bytes(content)
    with pytest.raises(DataError, match=f"expected weights of SHA-256 {sha256[:12]}, got"):
        find_body(sha256, tmp_path, SiteConfig(weights=str(tmp_path / "flipped.safetensors")))
    (tmp_path / "evil.pt").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(DataError, match=r"evil\.pt"):
        find_body(sha256, tmp_path, SiteConfig(weights=str(tmp_path / "evil.pt")))
    find_body(sha256, tmp_path, SiteConfig(weights=str(body / "model.safetensors")))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"tune": "lora", "tune_layers": "nowhere"}, "tune_layers: expected layers, or ends of their names, of"),
        ({"tune": "lora", "tune_rank": 1000}, "tune_rank: expected at most"),
        ({"tune": "norm"}, "tune: expected a network with normalisation layers for norm, got one without"),
        ({"tune": "head", "model": "linear"}, "tune: expected all for a network of one layer"),
        ({"tune_layers": "0"}, "tune_layers: expected none"),
        ({"tune": "head", "stacked": True}, "stacked: expected false with tune"),
        ({"tune": "head", "body": "site"}, "init_from: expected the weights that sites have, with body=site"),
        ({"body": "site"}, "body: expected job without tune"),
        ({"exchange": "float16", "secure_sum": "masks", "n_sites": 4}, "exchange: expected float32 with secure sums"),
        ({"tune_views": 2}, "tune_views: expected 0 without tune=head"),
        ({"tune": "half"}, "tune: expected one of all, head, norm, lora"),
    ],
)
def test_what_cannot_be_tuned_is_refused_in_a_line(values, words):
    with pytest.raises(UserError) as refused:
        build_parts(make_config("fedavg", TASK, values={**SMALL, **values}))
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_named_layers_get_adapters_and_attention_keeps_its_projection():
    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.fc1 = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 8)
            self.fc2, self.head = nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x):
            x, _ = self.attention(x, x, x)
            return self.head(self.fc2(self.fc1(x)).mean(1))

    names = {"": {"fc1", "fc2"}, "fc2": {"fc2"}}
    for layers, expected in names.items():
        network = tuned(Attends(), settings("lora", tune_layers=layers))
        found = {key.split(".")[0] for key in network.state_dict() if "lora" in key}
        assert found == expected
        network(torch.randn(2, 3, 8)).sum().backward()
