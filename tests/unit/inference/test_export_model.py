# SPDX-License-Identifier: Apache-2.0
"""One model in five forms: run folder, MONAI bundle, TorchScript, ONNX and state dict say the same."""

import csv
import json
import re
import sys

import numpy as np
import pytest
import torch

from cases import each
from fairflare.datasets import heart
from fairflare.engine.files import read_tensors
from fairflare.inference.export import COPIED, copied
from model_use import call, reported, rows, run_bundle, write_patients

pytestmark = pytest.mark.slow
CLOSE = 1e-4


def probabilities(folder):
    return np.array([[float(v) for k, v in row.items() if k.startswith(("p_", "share_"))] for row in rows(folder)])


def exported(capsys, folder, form, out, *more):
    code, _, err = call(capsys, "export-model", folder, "--format", form, "--out", out, *more)
    assert code == 0, err
    return out


def in_torch(folder, inputs):
    return torch.jit.load(str(folder / "model.ts"))(inputs).detach().numpy()


def in_onnx(folder, inputs):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    return session.run(None, {"inputs": inputs.numpy()})[0]


def verified(bundle):
    """MONAI's own check that the network takes and gives what the metadata says of channels, shapes and types.

    Its other one, of the metadata's schema, would fetch the schema.
    """
    from monai.bundle import verify_net_in_out  # takes seconds, which not every process of the tests is to spend

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(bundle)
        patch.syspath_prepend(str(bundle))
        verify_net_in_out("network_def", "configs/metadata.json", "configs/inference.json", device="cpu")


def test_a_table_in_every_form_and_the_sites_own_figure(heart_run, tmp_path, capsys):
    from fairflare.engine.setup import tasks

    site = "Hungary"
    labels = write_patients(tmp_path / "t.csv", site)
    code, _, err = call(capsys, "predict", heart_run, tmp_path / "t.csv", "--site", site, "--out", tmp_path / "p")
    assert code == 0, err
    expected = probabilities(tmp_path / "p")
    log = [json.loads(line) for line in (heart_run / "audit.jsonl").read_text().splitlines()]
    brier = next(line for line in log if line["event"] == "after")["sites"][site]["own.brier"]
    assert np.mean((expected[:, 1] - labels) ** 2) == pytest.approx(brier, abs=1e-6)
    with (tmp_path / "t.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    columns = {name: [row[name] for row in cells] for name in heart.COLUMNS[:-1]}
    raw = torch.from_numpy(np.concatenate(tasks.load("heart", "full").table_inputs().features("", columns), 1)).float()
    own = ("--site", site)
    assert (
        np.abs(in_torch(exported(capsys, heart_run, "torchscript", tmp_path / "ts", *own), raw) - expected).max()
        < CLOSE
    )
    assert np.abs(in_onnx(exported(capsys, heart_run, "onnx", tmp_path / "onnx", *own), raw) - expected).max() < CLOSE
    bundle = exported(capsys, heart_run, "bundle", tmp_path / "bundle", *own)
    assert np.abs(probabilities(run_bundle(bundle, tmp_path / "t.csv", tmp_path / "out")) - expected).max() < CLOSE


def test_a_classification_in_every_form(photo_run, photos, tmp_path, capsys):
    from fairflare.inference.loaded_run import open_run

    folder = photos / "east"
    images = [path for path in sorted(folder.glob("*.png")) if "mask" not in path.name][:5]
    only = tmp_path / "images"
    only.mkdir()
    for path in images:
        (only / path.name).write_bytes(path.read_bytes())
    code, _, err = call(capsys, "predict", photo_run, only, "--out", tmp_path / "p")
    assert code == 0, err
    expected = {row["file"]: float(row["p_ill"]) for row in rows(tmp_path / "p")}
    reader = open_run(photo_run).task.image_inputs().reader
    pixels = torch.stack([reader.image(path) for path in images]).float()
    wanted = np.array([expected[path.name] for path in images])
    for form, use in (("torchscript", in_torch), ("onnx", in_onnx)):
        assert np.abs(use(exported(capsys, photo_run, form, tmp_path / form), pixels)[:, 1] - wanted).max() < CLOSE
    bundle = exported(capsys, photo_run, "bundle", tmp_path / "bundle")
    verified(bundle)
    found = {row["file"]: float(row["p_ill"]) for row in rows(run_bundle(bundle, only, tmp_path / "out"))}
    assert found.keys() == expected.keys() and max(abs(found[k] - expected[k]) for k in found) < CLOSE


def test_a_segmentation_in_every_form(mask_run, mask_data, tmp_path, capsys):
    from PIL import Image

    from fairflare.data.tensors import as_float, normalised
    from fairflare.inference.loaded_run import open_run

    lists = json.loads((mask_data / "client_north.json").read_text())["testing"]
    only = tmp_path / "images"
    only.mkdir()
    for one in lists:
        (only / one["image"].rpartition("/")[2]).write_bytes((mask_data / one["image"]).read_bytes())
    same = only / "of another patient" / lists[0]["image"].rpartition("/")[2]
    same.parent.mkdir()
    same.write_bytes((mask_data / lists[1]["image"]).read_bytes())
    same.with_name(f"{same.stem}_mask.png").write_bytes((mask_data / lists[1]["label"]).read_bytes())
    opened = open_run(mask_run)
    inputs = opened.task.image_inputs()
    stored = torch.stack([inputs.reader.image(mask_data / one["image"]) for one in lists])
    pixels, ready = stored.float(), normalised(as_float(stored), inputs.mean, inputs.std)
    wanted = opened.network(ready).sigmoid().numpy()
    for form, use in (("torchscript", in_torch), ("onnx", in_onnx)):
        assert np.abs(use(exported(capsys, mask_run, form, tmp_path / form), pixels) - wanted).max() < CLOSE
    bundle = exported(capsys, mask_run, "bundle", tmp_path / "bundle")
    verified(bundle)
    out = run_bundle(bundle, only, tmp_path / "out")
    code, _, err = call(capsys, "predict", mask_run, only, "--out", tmp_path / "p")
    assert code == 0, err
    files = [{(row["file"], row["mask"]) for row in rows(place)} for place in (out, tmp_path / "p")]
    assert files[0] == files[1] and len(files[0]) == len(lists) + 1
    assert all((out / mask).is_file() for _, mask in files[0])
    dice = []
    for one in lists:
        name = one["image"].rpartition("/")[2].replace(".png", "_mask.png")
        found, own = (np.asarray(Image.open(place / "masks" / name)) for place in (out, tmp_path / "p"))
        assert np.array_equal(found, own)
        truth = np.asarray(Image.open(mask_data / one["label"])) > 0
        dice.append(2 * ((found > 0) & truth).sum() / ((found > 0).sum() + truth.sum()))
    assert np.mean(dice) == pytest.approx(reported(mask_run, "north")["dice"], abs=1e-9)


def test_a_card_says_what_it_is_of(heart_run, tmp_path, capsys):
    folder = exported(capsys, heart_run, "state-dict", tmp_path / "s")
    text = (folder / "README.md").read_text()
    for words in ("Not a medical device", "CC BY 4.0", "3 rounds over 4 sites", "| Switzerland |", "preprocessing"):
        assert words in text
    model = torch.load(folder / "model.pt", weights_only=True)
    final = read_tensors(heart_run / "model.safetensors")
    assert all(torch.equal(model[key], final[key]) for key in final)
    code, _, err = call(capsys, "export-model", heart_run, "--format", "state-dict", "--out", folder)
    assert code == 2 and "--force" in err
    code, _, err = call(
        capsys, "export-model", heart_run, "--format", "onnx", "--which", "best", "--out", tmp_path / "b"
    )
    assert code == 2 and "has chosen none" in err


def test_without_onnx_one_line_says_what_to_install(heart_run, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    code, _, err = call(capsys, "export-model", heart_run, "--format", "onnx", "--out", tmp_path / "o")
    assert code == 2 and "pip install 'fairflare[onnx]'" in err and not (tmp_path / "o").exists()


@each("name", COPIED)
def test_what_a_bundle_carries_imports_nothing_of_this_package(name):
    text = copied(name)
    assert "import fairflare" not in text and "from fairflare" not in text
    carried = {file.rpartition("/")[2].removesuffix(".py") for file in COPIED}
    assert len(carried) == len(COPIED), "two of them would be one file in scripts/"
    assert set(re.findall(r"from scripts\.(\w+) import", text)) <= carried
