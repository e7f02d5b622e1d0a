# SPDX-License-Identifier: Apache-2.0
"""HAM10000 by source: lesions in one split, attributes, spoilt sites, outlines, and what is wrong in one line."""

import csv
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fairflare.core.errors import DataError, MissingData, UserError
from fairflare.tasks.base import DATA_FOLDER
from fairflare_lab.datasets.ham10000 import DIAGNOSES, FOLDER, SITES, Ham10000, Ham10000Malignant, Ham10000Masks

REAL = Path(__file__).parents[4] / "shared" / "data" / "images" / "ham10000"
HEAD = ("image_id", "lesion_id", "site", "dx", "age", "sex")


def rows_of():
    """30 lesions a site, every third with two pictures."""
    rows = []
    for k, site in enumerate(SITES):
        for i in range(30):
            for j in range(1 + (i % 3 == 0)):
                age = "" if i == 0 else str(20 + 2 * i)
                rows.append(
                    [f"P{k}_{i:02d}_{j}", f"L{k}_{i}", site, DIAGNOSES[i % 7], age, ("female", "male", "")[i % 3]]
                )
    return rows


@pytest.fixture
def files(tmp_path, monkeypatch):
    def made(rows):
        with (tmp_path / FOLDER / "metadata.csv").open("w", newline="") as file:
            csv.writer(file).writerows([HEAD, *rows])

    rng = np.random.default_rng(0)
    for name, _, site, *_ in rows_of():
        for kind in ("images", "masks"):
            (tmp_path / FOLDER / kind / site).mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / FOLDER / "images" / site / f"{name}.jpg")
        mask = np.zeros((30, 40), bool)
        mask[:, :20] = True
        Image.fromarray(mask).save(tmp_path / FOLDER / "masks" / site / f"{name}.png")
    made(rows_of())
    monkeypatch.setenv(DATA_FOLDER, str(tmp_path))
    return made


def test_a_lesion_lies_in_one_split_and_ages_and_sexes_are_known(files):
    task = Ham10000(size=32)
    items = task.items(task.root(), "rosendahl")
    lesions = [{item.attributes["patient_id"] for item in part} for part in items.values()]
    assert sum(map(len, lesions)) == len(set.union(*lesions)) == 30
    assert sum(map(len, items.values())) == 40
    for part in items.values():
        for item in part:
            i = int(item.image.stem.split("_")[1])
            assert item.label == i % 7 and item.attributes.get("sex") == (("female", "male", None)[i % 3])
            assert ("age" in item.attributes) == (i > 0)
    one = Ham10000(size=32, pictures="one")
    assert sum(map(len, one.items(one.root(), "rosendahl").values())) == 30
    other = Ham10000(size=32, data_seed=1)
    assert other.items(other.root(), "rosendahl")["test"] != items["test"]


def test_a_spoilt_site_sees_other_pixels_and_the_others_the_same(files):
    plain, poor = Ham10000(size=32), Ham10000(size=32, poor="vienna_dias", severity=5)
    for site, alike in (("rosendahl", True), ("vienna_dias", False)):
        a, b = (next(iter(task.site_data(site).fixed("test", 8))) for task in (plain, poor))
        assert torch.equal(a.targets, b.targets) and torch.equal(a.inputs, b.inputs) == alike
    again = next(iter(Ham10000(size=32, poor="vienna_dias", severity=5).site_data("vienna_dias").fixed("test", 8)))
    assert torch.equal(again.inputs, b.inputs)


def test_malignant_and_outlines(files):
    task = Ham10000Malignant(size=32)
    labels = {item.attributes["patient_id"]: item.label for item in task.items(task.root(), "rosendahl")["train"]}
    assert all(label == (int(name.split("_")[1]) % 7 in (0, 1, 4)) for name, label in labels.items())
    batch = next(iter(Ham10000Masks(size=32).site_data("vidir_modern").fixed("train", 4)))
    assert batch.targets.shape == (4, 1, 32, 32) and batch.targets[..., :16].all() and not batch.targets[..., 16:].any()


@pytest.mark.parametrize(
    "change, error, words",
    [
        (lambda rows: rows[0].__setitem__(3, "cyst"), DataError, "metadata.csv: dx, row 2: expected akiec"),
        (lambda rows: rows[0].__setitem__(2, "graz"), DataError, "metadata.csv: site, row 2: expected rosendahl"),
        (lambda rows: rows.append(rows[0]), DataError, "image_id: expected each picture once, got 1 again"),
        (lambda rows: rows[0].__setitem__(0, "GONE"), MissingData, "no such file"),
    ],
)
def test_a_wrong_table_is_one_line(files, change, error, words):
    rows = rows_of()
    change(rows)
    files(rows)
    with pytest.raises(error, match=words):
        Ham10000(size=32).check_data()


@pytest.mark.parametrize("option", [{"poor": "graz"}, {"size": 8}, {"severity": 6}, {"val_fraction": 0.5}])
def test_a_wrong_option_is_one_line(option):
    with pytest.raises(UserError, match=f"{next(iter(option))}: expected"):
        Ham10000(**option)


@pytest.mark.slow
def test_the_real_files(tmp_path, monkeypatch):
    """7,470 lesions; of the nine that two sites have each counts at one."""
    if not REAL.is_dir():
        pytest.skip("the pictures are not here")
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "metadata.csv").symlink_to(REAL / "metadata.csv")
    for kind in ("images", "masks"):
        with zipfile.ZipFile(REAL / f"{kind}.zip") as archive:
            archive.extractall(tmp_path / FOLDER / kind)
    monkeypatch.setenv(DATA_FOLDER, str(tmp_path))
    one, every = Ham10000(size=32, pictures="one"), Ham10000(size=32)
    sizes = {site: sum(map(len, one.items(tmp_path, site).values())) for site in SITES}
    assert sum(sizes.values()) == 7470
    items = [item for site in SITES for part in every.items(tmp_path, site).values() for item in part]
    assert 9_990 < len(items) < 10_015
    masks = Ham10000Masks(size=64, limit=20).site_data("vienna_dias")
    batch = next(iter(masks.fixed("train", 20)))
    assert 0.2 < batch.targets.float().mean() < 0.6
