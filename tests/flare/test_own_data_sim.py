# SPDX-License-Identifier: Apache-2.0
"""A folder of images, masks and datalists in FLARE's simulator: the same bits as in one process."""

import json

import numpy as np
import pytest
from PIL import Image

from fairflare.cli import main
from fairflare.federation.audit import verify


def write(root):
    for k, site in enumerate(("north", "south")):
        rng = np.random.default_rng(k)
        (root / site).mkdir(parents=True)
        found = {"training": [], "validation": [], "testing": []}
        for i in range(14):
            y, x = np.mgrid[:32, :32]
            mask = (y - rng.uniform(12, 20)) ** 2 + (x - rng.uniform(12, 20)) ** 2 < 49
            image = np.clip(0.3 + 0.1 * k + 0.4 * mask + rng.normal(0, 0.05, mask.shape), 0, 1)
            Image.fromarray((255 * image).astype(np.uint8)).save(root / site / f"{i}.png")
            Image.fromarray((255 * mask).astype(np.uint8)).save(root / site / f"{i}_mask.png")
            split = "training" if i < 6 else "validation" if i < 10 else "testing"
            found[split].append({"image": f"{site}/{i}.png", "label": f"{site}/{i}_mask.png"})
        (root / f"{site}.json").write_text(json.dumps(found))
    return root


def test_local_and_simulator_agree(tmp_path, capsys):
    data, hashes = write(tmp_path / "data"), []
    own = ["--datalists", str(data), "--kind", "segmentation", "--classes", "lesion", "--set", "size=32"]
    for env in ("local", "sim"):
        with pytest.raises(SystemExit) as end:
            main(["run", "fedlwr", *own, "--rounds", "2", "--env", env, "--out", str(tmp_path / env), "--json"])
        assert end.value.code == 0
        entries = verify(tmp_path / env / "audit.jsonl")
        assert not any(e["rejected"] for e in entries if e["event"] == "round")
        hashes.append(entries[-1]["model_sha256"])
    assert hashes[0] == hashes[1]
    log = (tmp_path / "sim" / "audit.jsonl").read_text()
    assert str(tmp_path) not in log, "a path left a site"
