# SPDX-License-Identifier: Apache-2.0
"""Hugging Face folders: a small ViT that the test writes, its weights, and what such a folder may not bring."""

import json
import shutil

import pytest
import torch

from cases import each, later, needs
from command_line import call
from fairflare.core.errors import UserError
from fairflare.engine.files import read_model
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.parts import build_parts
from fairflare.engine.setup.weights import VARIABLE
from own_folder import write_images

transformers = later("transformers")
pytestmark = needs("peft")
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
SITES = "east,north,south,west"


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    """A ViT of ten classes on 32 pixels, as ``save_pretrained`` writes it."""
    folder = tmp_path_factory.mktemp("hub") / "vit"
    torch.manual_seed(3)
    config = transformers.ViTConfig(image_size=32, patch_size=8, num_labels=10, **SIZES)
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    prepared = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.2, 0.2], "size": {"height": 32, "width": 32}}
    (folder / "preprocessor_config.json").write_text(json.dumps(prepared))
    return folder


def configured(folder, **values):
    values = {"model": str(folder), "site_names": SITES, "labels": "2", **values}
    return make_config("fedavg", "classification:small", rounds=1, values=values)


@each("tune", ["head", "lora", "norm"])
def test_a_folder_is_the_network_its_weights_and_its_scaling(tune, vit):
    config = configured(vit, init_from=str(vit), tune=tune)
    assert {config.options[key] for key in ("mean", "std")} == {"0.5,0.4,0.3", "0.2,0.2,0.2"}
    assert (config.options["size"], config.options["channels"]) == (32, 3) and str(vit) not in json.dumps(
        config.to_json()
    )
    parts = build_parts(config)
    assert parts.origin.matched == parts.origin.entries - 2  # the head has two classes
    theirs = transformers.ViTForImageClassification.from_pretrained(vit, local_files_only=True).eval()
    x, inside = torch.randn(3, 3, 32, 32), []
    parts.network.eval().classifier.register_forward_pre_hook(lambda layer, given: inside.append(given[0]))
    parts.network(x)
    expected = theirs.vit(x).last_hidden_state[:, 0]
    torch.testing.assert_close(inside[0], expected, atol=1e-5, rtol=1e-5)
    kinds = {"head": "classifier", "lora": "lora_B", "norm": "layernorm"}
    assert any(kinds[tune] in name for name in parts.model) and len(parts.model) < 20
    assert tune != "lora" or not any("embeddings" in name for name in parts.model)


def test_a_body_without_a_head_is_found_under_its_name_in_the_network(vit, tmp_path):
    from safetensors.torch import load_file, save_file

    shutil.copytree(vit, tmp_path / "body")
    entries = load_file(vit / "model.safetensors")
    body = {key.removeprefix("vit."): value for key, value in entries.items() if key.startswith("vit.")}
    save_file(body, tmp_path / "body" / "model.safetensors")
    origin = build_parts(configured(vit, init_from=str(tmp_path / "body"), tune="head")).origin
    assert origin.matched == origin.entries - 2


def test_a_run_from_a_folder_ends_in_a_whole_network(vit, tmp_path, capsys):
    images = write_images(tmp_path / "images", masks=False)
    own = ("--data", images, "--kind", "classification", "--classes", "2", "--set", f"model={vit}")
    given = ("--init-from", vit, "--tune", "head", "--rounds", "2", "--no-solo", "--out", tmp_path / "run")
    code, _, said = call(capsys, "run", "fedavg", *own, *given)
    assert code == 0 and "tune head: 66 of" in said, said
    assert set(read_model(tmp_path / "run" / "model.safetensors")) == {"classifier.weight", "classifier.bias"}
    shutil.rmtree(vit.parent / "away", ignore_errors=True)
    code, _, said = call(capsys, "predict", tmp_path / "run", images / "east" / "0.png", "--out", tmp_path / "p")
    assert code == 0, said
    code, _, said = call(capsys, "export-model", tmp_path / "run", "--format", "state-dict", "--out", tmp_path / "x")
    assert code == 0, said
    exported = torch.load(tmp_path / "x" / "model.pt", weights_only=True)
    theirs = transformers.ViTForImageClassification.from_pretrained(vit, local_files_only=True).state_dict()
    assert exported.keys() == theirs.keys()
    assert all(torch.equal(exported[key], theirs[key]) for key in theirs if not key.startswith("classifier"))


@each(
    ("change", "words"),
    [
        (
            {"auto_map": {"AutoModel": "evil.Net"}},
            "model: vit: expected a folder without code of its own, got 'auto_map'",
        ),
        ({"model_type": "llama"}, "model: model_type: expected one of beit, convnext"),
        ({"backbone": "microsoft/resnet-50"}, "model: 'backbone': expected a setting of the network alone"),
        ({"hidden_act": "../../x.py"}, "model: 'hidden_act': expected a setting of the network alone"),
        ({"num_attention_heads": 0}, "model: transformers.AutoModelForImageClassification failed on two examples"),
        ({"hidden_size": 80_000}, "model: 'hidden_size': expected a setting of the network alone"),
        ({"hidden_size": 8192, "num_hidden_layers": 32}, "model: expected at most 1,500,000,000 parameters, got '"),
        (None, "model: vit: expected a JSON object in config.json"),
    ],
)
def test_a_folder_that_asks_for_more_than_a_network_is_refused_in_a_line(change, words, vit, tmp_path):
    shutil.copytree(vit, tmp_path / "vit")
    content = json.loads((vit / "config.json").read_text())
    (tmp_path / "vit" / "config.json").write_text("[]" if change is None else json.dumps({**content, **change}))
    with pytest.raises(UserError) as refused:
        build_parts(configured(tmp_path / "vit"))
    assert words in str(refused.value) and "\n" not in str(refused.value)


@each(
    ("files", "words"),
    [
        (["pytorch_model.bin"], "expected model.safetensors, not pickled nor in parts, got pytorch_model.bin"),
        ([], "expected model.safetensors, not pickled nor in parts, got"),
        (["model-00001-of-00002.safetensors"], "not pickled nor in parts, got model-00001-of-00002.safetensors"),
    ],
)
def test_weights_that_are_not_one_file_of_tensors_are_refused_in_a_line(files, words, vit, tmp_path):
    shutil.copytree(vit, tmp_path / "vit", ignore=shutil.ignore_patterns("*.safetensors"))
    for name in files:
        (tmp_path / "vit" / name).write_bytes(b"x")
    with pytest.raises(UserError) as refused:
        configured(vit, init_from=str(tmp_path / "vit"))
    assert words in str(refused.value) and "\n" not in str(refused.value)
