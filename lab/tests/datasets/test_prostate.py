# SPDX-License-Identifier: Apache-2.0
"""Prostate slices from fabricated files in both layouts: whose they are, what becomes of them, and what is refused."""

import dataclasses
import json
import re
import shutil

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image

from cases import each
from command_line import call
from fairflare.core.errors import DataError, MissingData, UserError
from fairflare.core.types import Training
from fairflare.data.site_config import SiteConfig
from fairflare.engine.setup.tasks import every, load
from fairflare.tasks.preflight import preflight
from fairflare_lab.datasets import prostate
from fairflare_lab.datasets.prostate import FED_CE, SAML, GreyMaskReader, Prostate

EDGE, DEPTH, CASES = 32, 5, 6
FOREGROUND = (1, 2, 3)


def volume(rng, n_slices=DEPTH):
    """float32 (x, y, slices) with a bright ellipse on some slices, and its labels 0, 1 (left half) and 2."""
    x, y = np.mgrid[:EDGE, :EDGE]
    inside = (x - rng.uniform(13, 19)) ** 2 / 36 + (y - rng.uniform(13, 19)) ** 2 / 81 < 1
    label = np.zeros((EDGE, EDGE, n_slices), np.uint8)
    for z in range(1, n_slices - 1):
        label[..., z] = inside * np.where(x < 16, 1, 2)
    return (200 * (label > 0) + rng.normal(300, 30, label.shape)).astype(np.float32), label


def save(array, path):
    nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), path)


@pytest.fixture(scope="module")
def saml(tmp_path_factory):
    root = tmp_path_factory.mktemp("saml")
    for k, site in enumerate(SAML):
        rng = np.random.default_rng(k)
        (root / site).mkdir()
        for i in reversed(range(CASES)):
            image, label = volume(rng)
            save(image, root / site / f"Case{i:02d}.nii.gz")
            save(label, root / site / f"{'case' if k % 2 else 'Case'}{i:02d}_{'Ss'[i % 2]}egmentation.nii.gz")
        (root / site / "._Case00.nii.gz").write_bytes(b"left by a file manager")
    return root


@pytest.fixture(scope="module")
def fed_ce(tmp_path_factory):
    """The second site's list lacks "testing", the third's too and its paths do not tell cases."""
    root = tmp_path_factory.mktemp("fedce")
    (root / "datalist_2D").mkdir()
    for k, site in enumerate(FED_CE):
        rng, lists = np.random.default_rng(k), {"training": [], "validation": [], "testing": []}
        for i in range(8):
            image, label = volume(rng)
            key = "training" if i < 3 else "validation" if i < (6 if k else 5) else "testing"
            if key == "testing" and k in (1, 2):
                continue
            case = "" if k == 2 else f"p{i}/"
            for kind, stored in (("Image", image / 700 * 255), ("Mask", (label > 0) * 255.0)):
                (root / "dataset_2D" / site / kind / case).mkdir(parents=True, exist_ok=True)
                for z in FOREGROUND:
                    pixels = Image.fromarray(stored[..., z].T.astype(np.uint8))
                    pixels.save(root / "dataset_2D" / site / kind / case / f"{i}{z}.png")
            names = [f"{case}{i}{z}.png" for z in FOREGROUND]
            lists[key] += [{"image": f"{site}/Image/{n}", "label": f"{site}/Mask/{n}"} for n in names]
        content = {key: entries for key, entries in lists.items() if entries}
        (root / "datalist_2D" / f"client_{site}.json").write_text(json.dumps(content))
    return root


def patients(task, root, site):
    return {split: [i.attributes["patient_id"] for i in part] for split, part in task.items(root, site).items()}


def test_sites_are_known_without_files(monkeypatch):
    monkeypatch.delenv("FAIRFLARE_DATA", raising=False)
    assert list(load("prostate").sites()) == ["BIDMC", "BMC", "HK", "I2CVB", "RUNMC", "UCL"]
    assert list(load("prostate", "paper-fedce").sites()) == list(FED_CE)
    with pytest.raises(UserError, match="task prostate: name the folder of its data in FAIRFLARE_DATA"):
        load("prostate").site_data("BMC")


def test_cases_are_split_not_slices(saml):
    for site in SAML:
        found = patients(Prostate(val_fraction=0.4), saml, site)
        cases = {split: sorted(set(part)) for split, part in found.items()}
        assert {split: len(part) for split, part in cases.items()} == {"train": 3, "val": 2, "test": 1}
        assert sorted(sum(cases.values(), [])) == [f"case{i:02d}" for i in range(CASES)]
        assert all(len(part) == 3 * len(cases[split]) for split, part in found.items())
        for part in Prostate().items(saml, site).values():
            assert list(part) == sorted(part, key=lambda i: (i.image.name, i.index))
            assert {i.index for i in part} == set(FOREGROUND) and {i.image.parent.name for i in part} == {site}


def test_the_split_depends_on_names_and_seed_alone(saml):
    one, other = Prostate(), Prostate(data_seed=7)
    assert patients(one, saml, "HK") == patients(Prostate(size=32), saml, "HK")
    assert any(patients(one, saml, site) != patients(other, saml, site) for site in SAML)
    assert len({str(patients(one, saml, site)) for site in SAML}) > 1


def test_all_slices_and_a_limit(saml):
    assert {i.index for i in Prostate(slices="all").items(saml, "UCL")["train"]} == set(range(DEPTH))
    few = dataclasses.replace(Prostate(), limit=4).local_data("UCL", SiteConfig(data_root=str(saml)))
    assert [few.size(split) for split in ("train", "val", "test")] == [4, 3, 3]


def test_the_network_gets_z_scores_and_merged_zones(saml):
    task = Prostate(size=EDGE, slices="all")
    data = task.local_data("BIDMC", SiteConfig(data_root=str(saml)))
    batch = next(data.fixed("val", DEPTH))
    assert batch.inputs.shape == batch.targets.shape == (DEPTH, 1, EDGE, EDGE)
    case = task.items(saml, "BIDMC")["val"][0]
    stored, label = (np.asarray(nibabel.load(p).dataobj) for p in (case.image, case.label))
    clipped = np.clip(stored, *np.percentile(stored, (0.5, 99.5)))
    z = torch.from_numpy((clipped - clipped.mean()) / clipped.std()).permute(2, 1, 0)[:, None]
    assert (batch.inputs - z).abs().max() < 0.021
    assert torch.equal(batch.targets, torch.from_numpy(label > 0).permute(2, 1, 0)[:, None].to(torch.uint8))
    assert set(np.unique(label)) == {0, 1, 2} and batch.targets.sum() == (label > 0).sum()


def test_a_volume_is_opened_once(saml, monkeypatch):
    opened = []
    real = prostate.standardised
    monkeypatch.setattr(prostate, "standardised", lambda path: (opened.append(path.name), real(path))[1])
    data = Prostate(size=32).local_data("HK", SiteConfig(data_root=str(saml), cache_rate=0.0))
    assert not opened
    for seed in (0, 1):
        assert sum(len(batch.targets) for batch in data.training(4, seed)) == 12
    assert len(opened) == len(set(opened)) == 4


def test_a_site_needs_its_own_files_only(saml, tmp_path):
    shutil.copytree(saml / "UCL", tmp_path / "UCL")
    own = SiteConfig(data_root=str(tmp_path))
    assert load("prostate").local_data("UCL", own).size("train") == 12
    found, data = preflight(load("prostate"), "UCL", own, load("prostate").grouping("none"), 10)
    assert not found and data.size("train") == 12
    with pytest.raises(MissingData, match=f"no such file or folder: {re.escape(str(tmp_path / 'HK'))}") as caught:
        load("prostate").local_data("HK", own)
    assert "    BIDMC/Case00.nii.gz" in caught.value.tree and "client_PROSTATEx.json" in caught.value.tree


def test_the_lists_name_the_splits(fed_ce):
    task = load("prostate", "paper-fedce")
    found = patients(task, fed_ce, "I2CVB")
    assert {s: sorted(set(p)) for s, p in found.items()} == {
        "train": ["p0", "p1", "p2"],
        "val": ["p3", "p4"],
        "test": ["p5", "p6", "p7"],
    }
    items = task.items(fed_ce, "I2CVB")["val"]
    assert [i.image.name for i in items] == ["31.png", "32.png", "33.png", "41.png", "42.png", "43.png"]
    assert items[0].label.parent.parent.name == "Mask"


def test_a_list_without_testing_is_halved(fed_ce):
    task = Prostate(layout="fed-ce")
    found = {split: set(part) for split, part in patients(task, fed_ce, "MSD").items()}
    assert found["train"] == {"p0", "p1", "p2"} and found["val"] | found["test"] == {"p3", "p4", "p5"}
    assert not found["val"] & found["test"] and len(found["test"]) == 2
    halves = {frozenset(patients(Prostate(layout="fed-ce", data_seed=s), fed_ce, "MSD")["test"]) for s in range(9)}
    assert len(halves) > 1
    names = {s: [i.image.stem for i in part] for s, part in task.items(fed_ce, "NCI_ISBI_3T").items()}
    assert names["val"] == ["31", "33", "42", "51", "53"] and names["test"] == ["32", "41", "43", "52"]


def test_grey_images_and_masks(fed_ce):
    data = Prostate(layout="fed-ce", size=EDGE).local_data("Promise12", SiteConfig(data_root=str(fed_ce)))
    batch = next(data.fixed("train", 9))
    item = Prostate(layout="fed-ce").items(fed_ce, "Promise12")["train"][0]
    image, mask = (np.asarray(Image.open(path)) for path in (item.image, item.label))
    assert torch.allclose(batch.inputs[0, 0], torch.from_numpy(image / 255).float(), atol=1e-6)
    assert torch.equal(batch.targets[0, 0], torch.from_numpy(mask // 255)) and batch.targets[0].sum() > 20


def test_masks_count_from_half_of_255(tmp_path):
    stored = np.zeros((64, 64), np.uint8)
    stored[:, 20:40], stored[:, 50:54], stored[:, 54:58] = 255, 127, 128
    exact, reader = (GreyMaskReader(size, 1, {"prostate": (1,)}) for size in (64, 32))
    assert np.array_equal(exact.mask(stored)[0], stored >= 128)
    stored[:, 50:] = 0
    assert reader.mask(stored)[0].sum(0).tolist() == [0] * 10 + [32] * 10 + [0] * 12
    assert reader.mask(np.zeros((64, 64), np.uint8)).sum() == 0
    Image.fromarray((stored > 0).astype(np.uint8)).save(tmp_path / "m.png")
    with pytest.raises(DataError, match=r"mask m.png: expected pixel values 0..255, got at most 1$"):
        reader.mask(tmp_path / "m.png")


def test_a_case_in_two_lists_is_refused(fed_ce, tmp_path):
    shutil.copytree(fed_ce, tmp_path / "d")
    path = tmp_path / "d" / "datalist_2D" / "client_I2CVB.json"
    lists = json.loads(path.read_text())
    lists["testing"].append(lists["training"].pop())
    path.write_text(json.dumps(lists))
    with pytest.raises(DataError, match="client_I2CVB.json: expected each case in one list, got p2 in train and test"):
        Prostate(layout="fed-ce").items(tmp_path / "d", "I2CVB")
    lists = {"training": lists["training"], "validation": lists["validation"][:3]}
    path.write_text(json.dumps(lists))
    with pytest.raises(DataError, match="expected a testing list, or at least 2 cases in the validation list, got 1"):
        Prostate(layout="fed-ce").items(tmp_path / "d", "I2CVB")
    path.write_text(json.dumps({"training": lists["training"], "testing": lists["validation"]}))
    with pytest.raises(DataError, match="I2CVB: validation: expected an image, got none"):
        Prostate(layout="fed-ce").items(tmp_path / "d", "I2CVB")
    path.unlink()
    with pytest.raises(MissingData, match="client_I2CVB.json"):
        Prostate(layout="fed-ce").items(tmp_path / "d", "I2CVB")


def test_too_few_cases(saml, tmp_path):
    (tmp_path / "HK").mkdir()
    for path in sorted((saml / "HK").glob("[Cc]ase0[01]*")):
        shutil.copy(path, tmp_path / "HK")
    with pytest.raises(DataError, match="HK: expected at least 3 cases, got 2"):
        Prostate().items(tmp_path, "HK")


def test_the_papers_settings():
    paper, fedce = (every()["prostate"].presets[name] for name in ("paper", "paper-fedce"))
    assert paper.training == Training(
        rounds=200, batch_size=8, optimizer="adam", lr=1e-3, weight_decay=1e-4, adam_beta2=0.99, keep_optimizer=True
    )
    assert fedce.training == dataclasses.replace(paper.training, weight_decay=0.0)
    a, b = load("prostate", "paper"), load("prostate", "paper-fedce")
    assert (a.size, b.size, a.model, b.norm) == (384, 256, "unet", "batch") and next(iter(type(a).presets)) == "small"


@each("model", ["small-unet", "unet"])
@each("norm", ["instance", "group", "batch"])
def test_the_networks_fit(model, norm):
    network = Prostate(size=32, model=model, norm=norm).network()
    assert network(torch.zeros(2, 1, 32, 32)).shape == (2, 1, 32, 32)


BAD = [
    ({"layout": "flat"}, "layout: expected one of saml, fed-ce, got 'flat'"),
    ({"slices": "some"}, "slices: expected one of foreground, all, got 'some'"),
    ({"size": 40}, "size: expected a multiple of 16 in 32..1024, got 40"),
    ({"model": "vgg"}, "model: expected one of small-unet, unet, or .* got 'vgg'"),
    ({"norm": "layer"}, "norm: expected one of instance, group, batch, got 'layer'"),
    ({"val_fraction": 0}, r"val_fraction: expected a number in \(0, 0.4\], got 0"),
    ({"test_fraction": 0.5}, r"test_fraction: expected a number in \(0, 0.4\], got 0.5"),
    ({"limit": 1}, "limit: expected at least 2, or none, got 1"),
    ({"data_seed": -1}, "data_seed: expected 0.*got -1"),
]


@each("options, message", BAD)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message) as caught:
        load("prostate", "small", **options)
    assert "\n" not in str(caught.value)


def test_unknown_site(saml):
    with pytest.raises(UserError, match="site: expected one of BIDMC, .*UCL, got 'MSD'"):
        Prostate().local_data("MSD", SiteConfig(data_root=str(saml)))


@pytest.mark.parametrize("method", ["fedlwr", "fedce"])
def test_volumes_train_with_one_command(method, saml, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FAIRFLARE_DATA", str(saml))
    settings = ("--set", "size=32", "--set", "val_fraction=0.34", "--set", "test_fraction=0.34")
    run = ("--task", "prostate", *settings, "--rounds", "2", "--no-solo", "--out", tmp_path / "run", "--json")
    code, out, err = call(capsys, "run", method, *run)
    assert code == 0, err
    report = json.loads(out)["report"]
    assert set(report["sites"]) == set(SAML) and report["fairness"]["metric"] == "dice"
    for row in report["sites"].values():
        assert row["n_train"] == row["n_test"] == 6 and 0 <= row["metrics"]["dice_prostate"] <= 1


def test_lists_train_with_one_command(fed_ce, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FAIRFLARE_DATA", str(fed_ce))
    run = ("--task", "prostate", "--set", "layout=fed-ce", "--set", "size=32", "--set", "limit=4", "--rounds", "1")
    code, out, err = call(capsys, "run", "fedavg", *run, "--out", tmp_path / "run", "--json")
    assert code == 0, err
    rows = json.loads(out)["report"]["sites"]
    assert set(rows) == set(FED_CE) and all(row["n_train"] == 4 for row in rows.values())


def test_a_run_without_files_shows_the_tree(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FAIRFLARE_DATA", str(tmp_path))
    code, _, err = call(capsys, "run", "fedavg", "--task", "prostate", "--out", tmp_path / "run")
    assert code == 2 and str(tmp_path / "BIDMC") in err and "Traceback" not in err and not (tmp_path / "run").exists()
