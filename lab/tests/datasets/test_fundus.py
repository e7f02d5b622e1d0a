# SPDX-License-Identifier: Apache-2.0
"""Retina photographs from fabricated files in both layouts: whose they are, disc and cup, and what is refused."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from cases import each
from command_line import call
from fairflare.core.errors import DataError, MissingData, UserError
from fairflare.data.site_config import SiteConfig
from fairflare.engine.setup.tasks import every, load
from fairflare.tasks.kinds.masks import PAPER
from fairflare_lab.datasets.fundus import DOMAINS, Fundus

N_TRAIN, N_TEST = 10, 4
SITES = ("ORIGA", "BinRushed", "Magrabia")


def photograph(rng):
    """Red, green and blue (40, 40, 3), and a mask with background 255, rim 128 and cup 0."""
    y, x = np.mgrid[:40, :40]
    square = (y - rng.uniform(16, 24)) ** 2 + (x - rng.uniform(16, 24)) ** 2
    mask = np.where(square < 16, 0, np.where(square < 100, 128, 255)).astype(np.uint8)
    image = np.stack([180 - mask // 3, 120 - mask // 4, np.full_like(mask, 30)], axis=-1)
    return image.astype(np.uint8), mask


def write(folder, names, rng, suffix=".png", grey=True):
    for kind in ("image", "mask"):
        (folder / kind).mkdir(parents=True)
    for name in names:
        image, mask = photograph(rng)
        Image.fromarray(image).save(folder / "image" / f"{name}{suffix}")
        Image.fromarray(mask if grey else np.stack([mask] * 3, axis=-1)).save(folder / "mask" / f"{name}.png")
    (folder / "image" / "._a.png").write_bytes(b"left by a file manager")
    (folder / "image" / "Thumbs.db").write_bytes(b"")


@pytest.fixture(scope="module")
def dofe(tmp_path_factory):
    root = tmp_path_factory.mktemp("dofe")
    for k, domain in enumerate(DOMAINS):
        rng, folder = np.random.default_rng(k), root / "Fundus" / domain
        write(folder / "train" / "ROIs", [f"g{i:02d}" for i in reversed(range(N_TRAIN))], rng, grey=k % 2 == 0)
        write(folder / "test" / "ROIs", [f"t{i:02d}" for i in range(N_TEST)], rng)
    return root


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("sites")
    for k, site in enumerate(SITES):
        write(
            root / "Fundus" / site, [f"{i:03d}" for i in range(15)], np.random.default_rng(k), ".jpg" if k else ".png"
        )
    return root


def names(task, root, site):
    return {split: [i.image.stem for i in part] for split, part in task.items(root, site).items()}


def test_sites_are_known_without_files(monkeypatch):
    monkeypatch.delenv("FAIRFLARE_DATA", raising=False)
    assert load("fundus").sites() == DOMAINS and list(DOMAINS) == ["Domain1", "Domain2", "Domain3", "Domain4"]
    assert list(Fundus(layout="sites", site_names="ORIGA, BinRushed").sites()) == ["ORIGA", "BinRushed"]
    with pytest.raises(UserError, match="task fundus: name the folder of its data in FAIRFLARE_DATA"):
        load("fundus").check_data()


def test_validation_is_a_seeded_share_of_the_training_images(dofe):
    for domain in DOMAINS:
        found = names(Fundus(), dofe, domain)
        assert found["test"] == [f"t{i:02d}" for i in range(N_TEST)] and len(found["val"]) == 2
        assert sorted(found["train"] + found["val"]) == [f"g{i:02d}" for i in range(N_TRAIN)]
        assert all(part == sorted(part) for part in found.values())
        for part in Fundus().items(dofe, domain).values():
            assert all(i.image.stem == i.label.stem and domain in i.label.parts for i in part)
    assert len({str(names(Fundus(data_seed=s), dofe, "Domain1")) for s in range(5)}) > 1
    assert len(names(Fundus(val_fraction=0.4), dofe, "Domain2")["val"]) == 4


def test_folders_of_ones_own_are_split_with_a_seed(folders):
    task = Fundus(layout="sites", site_names=",".join(SITES))
    for site in SITES:
        found = names(task, folders, site)
        assert {split: len(part) for split, part in found.items()} == {"train": 9, "val": 3, "test": 3}
        assert sorted(sum(found.values(), [])) == [f"{i:03d}" for i in range(15)]
        assert found == names(Fundus(layout="sites", site_names="ORIGA,BinRushed,Magrabia", size=96), folders, site)
    assert len({str(names(task, folders, site)) for site in SITES}) > 1


def test_the_disc_includes_the_cup(dofe):
    for domain in ("Domain1", "Domain2"):  # grey masks, and masks stored as red, green and blue
        task = Fundus(size=48, limit=3)
        data = task.local_data(domain, SiteConfig(data_root=str(dofe)))
        assert [data.size(split) for split in ("train", "val", "test")] == [3, 2, 3]
        batch = next(data.fixed("train", 3))
        assert batch.inputs.shape == (3, 3, 48, 48) and batch.targets.shape == (3, 2, 48, 48)
        disc, cup = batch.targets.bool().unbind(1)
        assert (cup.flatten(1).sum(1) > 20).all() and not (cup & ~disc).any() and (disc & ~cup).any()
        assert not torch.equal(batch.inputs[:, 0], batch.inputs[:, 1])
    item = Fundus().items(dofe, "Domain1")["train"][0]
    stored = np.asarray(Image.open(item.label))
    exact = Fundus(size=32).reader().mask(np.ascontiguousarray(stored[4:36, 4:36]))
    assert torch.equal(exact, torch.from_numpy(np.stack([stored != 255, stored == 0])[:, 4:36, 4:36]).to(torch.uint8))


def test_other_mask_values(folders, tmp_path):
    shutil.copytree(folders / "Fundus" / "ORIGA", tmp_path / "Fundus" / "a")
    for path in (tmp_path / "Fundus" / "a" / "mask").glob("*.png"):
        stored = np.asarray(Image.open(path))
        Image.fromarray(np.select([stored == 0, stored == 128], [2, 1]).astype(np.uint8)).save(path)
    shutil.copytree(tmp_path / "Fundus" / "a", tmp_path / "Fundus" / "b")
    options = {"layout": "sites", "site_names": "a,b"}
    own = SiteConfig(data_root=str(tmp_path))
    good = load("fundus", **options, mask_values="disc=1|2; cup=2").local_data("a", own)
    disc, cup = next(good.fixed("train", 9)).targets.unbind(1)
    assert 0 < cup.sum() < disc.sum() < disc.numel() / 2
    with pytest.raises(DataError, match=r"mask \d+.png: expected pixel values \[0, 128, 255\], got 1, 2$") as caught:
        next(load("fundus", **options).local_data("a", own).fixed("train", 9))
    assert caught.value.code == "mask_values"


def test_a_site_needs_its_own_files_only(dofe, tmp_path):
    shutil.copytree(dofe / "Fundus" / "Domain3", tmp_path / "Fundus" / "Domain3")
    own = SiteConfig(data_root=str(tmp_path))
    assert load("fundus").local_data("Domain3", own).size("train") == 8
    with pytest.raises(MissingData, match="no such file or folder: .*Fundus/Domain1/train/ROIs/image; ") as caught:
        load("fundus").local_data("Domain1", own)
    assert "    Fundus/Domain1/train/ROIs/image/*.png" in caught.value.tree and "Fundus/<site>" in caught.value.tree


def broken_folders(rois):
    """What is done to a domain's training images -> what is said; each starts from good ones."""
    image, mask = rois / "image", rois / "mask"
    yield lambda: (mask / "g03.png").unlink(), MissingData, "no such file or folder: .*/ROIs/mask/g03.png"
    yield lambda: (image / "g03.png").unlink(), DataError, "Domain1/train/ROIs/mask/g03.png: expected an image of that"
    yield (
        lambda: shutil.copy(image / "g03.png", image / "g03.jpg"),
        DataError,
        "expected one such file, got g03.jpg too",
    )
    yield lambda: (image / "g03.png").write_bytes(b"x"), DataError, "g03.png: cannot be read as an image"
    yield (
        lambda: Image.new("L", (9, 40), 255).save(mask / "g03.png"),
        DataError,
        "g03.png: 40x40 pixels, its mask has 40x9",
    )
    yield lambda: [p.unlink() for p in image.glob("*.png")], DataError, "ROIs/image: expected images .*, found none"
    yield lambda: shutil.rmtree(mask), MissingData, "no such file or folder: .*/train/ROIs/mask; expected:"


@each("k", range(7))
def test_broken_folders_are_named_in_one_line(k, dofe, tmp_path):
    shutil.copytree(dofe / "Fundus" / "Domain1", tmp_path / "Fundus" / "Domain1")
    spoil, kind, message = list(broken_folders(tmp_path / "Fundus" / "Domain1" / "train" / "ROIs"))[k]
    spoil()
    with pytest.raises(kind, match=message) as caught:
        data = Fundus().local_data("Domain1", SiteConfig(data_root=str(tmp_path)))
        for split in ("train", "val"):
            next(data.fixed(split, 100))
    assert "\n" not in str(caught.value)


def test_too_few_images(tmp_path):
    for site in "ab":
        write(tmp_path / "Fundus" / site, ["1", "2", "3"], np.random.default_rng(0))
    with pytest.raises(DataError, match="a: training: expected at least 2 images, got 1"):
        Fundus(layout="sites", site_names="a,b").items(tmp_path, "a")


BAD = [
    ({"layout": "riga"}, "layout: expected one of dofe, sites, got 'riga'"),
    ({"layout": "sites"}, "site_names: expected at least two different folders, got ''"),
    ({"layout": "sites", "site_names": "a,a"}, "site_names: expected at least two different folders, got 'a,a'"),
    ({"layout": "sites", "site_names": "a,../b"}, "site_names: expected names of folders in Fundus, got 'a,../b'"),
    ({"layout": "sites", "site_names": "a,.."}, "site_names: expected names of folders in Fundus"),
    ({"site_names": "a,b"}, "site_names: expected none with layout=dofe, got 'a,b'"),
    ({"mask_values": ""}, "mask_values: expected values of disc and cup, got ''"),
    ({"mask_values": "disc=1"}, "mask_values: expected values of disc, cup, got 'disc=1'"),
    ({"mask_values": "disc=x; cup=0"}, "mask_values: expected NAME=NUMBER"),
    ({"limit": 1}, "limit: expected at least 2, or none, got 1"),
]


@each("options, message", BAD)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message) as caught:
        load("fundus", "small", **options)
    assert "\n" not in str(caught.value)


def test_the_papers_settings():
    task, preset = load("fundus", "paper"), every()["fundus"].presets["paper"]
    assert (task.size, task.model, task.norm, task.val_fraction) == (384, "unet", "batch", 0.2)
    assert preset.training == PAPER and list(every()["fundus"].presets) == ["small", "paper"]
    assert load("fundus").network()(torch.zeros(1, 3, 64, 64)).shape == (1, 2, 64, 64)


def test_photographs_train_with_one_command(dofe, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FAIRFLARE_DATA", str(dofe))
    run = ("--task", "fundus", "--set", "size=32", "--rounds", "2", "--no-solo", "--out", tmp_path / "run", "--json")
    code, out, err = call(capsys, "run", "fedavg", *run)
    assert code == 0, err
    report = json.loads(out)["report"]
    assert set(report["sites"]) == set(DOMAINS) and report["fairness"]["metric"] == "dice"
    for row in report["sites"].values():
        assert row["n_train"] == 8 and row["n_test"] == 4 and {"dice_disc", "dice_cup"} <= set(row["metrics"])


def test_a_run_without_files_shows_the_tree(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FAIRFLARE_DATA", str(tmp_path))
    code, _, err = call(capsys, "run", "fedavg", "--task", "fundus", "--out", tmp_path / "run")
    assert code == 2 and "Domain1" in err and "Traceback" not in err and not (tmp_path / "run").exists()
