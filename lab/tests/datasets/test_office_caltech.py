# SPDX-License-Identifier: Apache-2.0
"""Office-Caltech as FedHEAL divides it: by place in the list, then to sites that train on every class."""

import dataclasses
import json
import shutil
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

from cases import each
from command_line import call
from fairflare.core.errors import DataError, MissingData, UserError
from fairflare.core.findings import CODES
from fairflare.core.types import Training
from fairflare.data.site_config import SiteConfig
from fairflare.data.tensors import Split, TensorData
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.tasks import load
from fairflare_lab.datasets import domains
from fairflare_lab.datasets.domains import FlippedData
from fairflare_lab.datasets.office_caltech import DOMAINS, FOLDER, OfficeCaltech, dealt

DSLR = (12, 21, 12, 13, 10, 24, 22, 12, 8, 23)
"""Images per class; the smallest domain of the data set."""
SIZES = {"caltech": (14,) * 10, "amazon": (13,) * 10, "webcam": (16,) * 10, "dslr": DSLR}
TINY = dict(n_sites=8, share=0.2, size=32)


def write(root, order=1):
    """Noise of grey 20 * class + 20; amazon's images are wide, one of caltech's in four is grey."""
    for number, (domain, sizes) in enumerate(SIZES.items()):
        rng = np.random.default_rng(number)
        for label, name in list(enumerate(OfficeCaltech.classes)):
            folder = root / FOLDER / domain / name
            folder.mkdir(parents=True)
            shape = (40, 56, 3) if domain == "amazon" else (40, 40, 3)
            images = rng.integers(0, 20, (sizes[label], *shape), dtype=np.uint8) + np.uint8(20 * label + 20)
            for i in range(len(images))[::order]:
                image = images[i, ..., 0] if domain == "caltech" and i % 4 == 0 else images[i]
                Image.fromarray(image).save(folder / f"frame_{i:04d}.{'jpg' if i % 2 else 'JPG'}", quality=95)
    (root / FOLDER / "dslr" / "mug" / "Thumbs.db").write_bytes(b"")
    (root / FOLDER / "dslr" / ".cache").mkdir()
    return root


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write(tmp_path_factory.mktemp("office"))


@pytest.fixture
def task(files, monkeypatch):
    monkeypatch.setenv("FAIRFLARE_DATA", str(files))
    return OfficeCaltech(**TINY)


def paths(task, site):
    items = task.items(task.root(), site)
    return {split: [str(item.image.relative_to(task.root())) for item in part] for split, part in items.items()}


def test_sites_are_known_without_data(monkeypatch):
    monkeypatch.delenv("FAIRFLARE_DATA", raising=False)
    assert list(OfficeCaltech().sites().values()) == [domain for domain in DOMAINS for _ in range(5)]
    with pytest.raises(MissingData, match="name the folder of its data in FAIRFLARE_DATA"):
        OfficeCaltech().site_data("site-1")


def test_eight_of_ten_places_in_the_list_are_for_training(task, files):
    for domain, sizes in SIZES.items():
        names = [f"{c}/frame_{i:04d}" for c, n in zip(OfficeCaltech.classes, sizes) for i in range(n)]
        found = task.listed(files, domain)
        for split, places in (("train", range(8)), ("test", (8, 9))):
            shown = [f"{item.image.parent.name}/{item.image.stem}" for item in found[split]]
            assert shown == [name for i, name in enumerate(names) if i % 10 in places]
            assert all(OfficeCaltech.classes[item.label] == item.image.parent.name for item in found[split])


def test_sites_train_on_every_class_and_share_nothing(task):
    used = Counter()
    for site, domain in task.sites().items():
        found, n = paths(task, site), round(0.8 * sum(SIZES[domain]))
        assert len(found["train"]) == int(0.2 * len(task.listed(task.root(), domain)["train"]))
        assert {path.split("/")[2] for path in found["train"]} == set(task.classes)
        assert abs(sum(map(len, found.values())) - n / 2) <= 1
        assert abs(len(found["val"]) - (len(found["val"]) + len(found["test"])) / 4) <= 0.5
        assert all(path.startswith(f"{FOLDER}/{domain}/") for part in found.values() for path in part)
        used.update(path for part in found.values() for path in part)
    for domain, (_, items) in task.shared_items(task.root()).items():
        tested = [str(item.image.relative_to(task.root())) for item in items]
        assert len(tested) == len(task.listed(task.root(), domain)["test"])
        used.update(tested)
    assert max(used.values()) == 1 and len(used) == sum(map(sum, SIZES.values()))


def test_images_and_labels(task):
    for site in ("site-1", "site-4", "site-5", "site-8"):
        data = task.site_data(site)
        assert isinstance(data, FlippedData) and data.class_counts.min() >= 1 and data.class_counts.shape == (10,)
        for split in data.splits.values():
            images, labels = next(split.read([torch.arange(len(split))]))
            assert images.shape[1:] == (3, 32, 32) and images.dtype == torch.uint8
            assert [round((float(x.float().mean()) - 29) / 20) for x in images] == labels.tolist()


def test_order_depends_on_names_and_seeds(task, tmp_path, monkeypatch):
    before = {site: paths(task, site) for site in task.sites()}
    monkeypatch.setenv("FAIRFLARE_DATA", str(write(tmp_path / "again", order=-1)))
    assert before == {site: paths(task, site) for site in reversed(task.sites())}
    other = dataclasses.replace(task, data_seed=7)
    assert all(before[site]["train"] != paths(other, site)["train"] for site in task.sites())


def test_swaps_bring_every_class_to_every_site():
    """The paper's setting on the smallest domain: 12 images per site, 10 classes, 5 sites."""
    labels = np.repeat(np.arange(10), DSLR)
    labels = labels[np.arange(len(labels)) % 10 < 8]
    for seed in range(40):
        parts = dealt(labels, 5, 0.1, 10, seed, "dslr")
        assert all(len(train) == 12 and set(labels[train]) == set(range(10)) for train, _ in parts)
        assert sorted(np.concatenate([np.concatenate(part) for part in parts])) == list(range(len(labels)))
        assert {len(held_out) for _, held_out in parts} <= {13, 14}
    counts = np.mean([np.bincount(labels[dealt(labels, 1, 0.5, 10, s, "")[0][0]], minlength=10) for s in range(200)], 0)
    assert np.abs(counts - np.bincount(labels) / 2).max() < 0.5  # no class is preferred where a draw has them all


def test_what_cannot_be_dealt_is_refused(task):
    with pytest.raises(UserError, match="share: expected at least 10 training images per site.* got 8 of the 112 of"):
        dataclasses.replace(task, share=0.08).site_data("site-1")
    labels = np.append(np.repeat(np.arange(9), 20), 9)
    with pytest.raises(UserError, match="n_sites: dslr has 1 training images of class 9: too few for 2 of its sites"):
        dealt(labels, 2, 0.2, 10, 0, "dslr")


def test_shared_test_sets(task):
    sets = task.test_sets()
    assert [(s.name, s.corrupted) for s in sets] == [(domain, False) for domain in DOMAINS]
    few = dataclasses.replace(task, limit=8)
    for whole, part in zip(sets, few.test_sets()):
        assert torch.equal(whole.inputs[:8], part.inputs) and len(part.targets.unique()) >= 4
    assert few.site_data("site-1").size("train") == 8


def test_a_site_needs_its_own_domain_alone(task, files, tmp_path):
    shutil.copytree(files / FOLDER / "webcam", tmp_path / FOLDER / "webcam")
    own = SiteConfig(data_root=str(tmp_path))
    assert task.local_data("site-5", own).size("train") == 25
    with pytest.raises(MissingData, match=f"no such file or folder: .*{FOLDER}/dslr") as error:
        task.local_data("site-8", own)
    assert error.value.tree.splitlines()[3] == "    office_caltech_10/dslr/CLASS/*.jpg"


@pytest.mark.parametrize(
    "change, kind, message",
    [
        (lambda f: shutil.rmtree(f / "mug"), MissingData, "no such file or folder: .*dslr/mug"),
        (lambda f: (f / "ruler").mkdir(), DataError, "dslr: expected the folders of 10 classes, got ruler"),
        (lambda f: [p.unlink() for p in (f / "bike").iterdir()], DataError, "dslr/bike: expected .png, .*found none"),
    ],
)
def test_a_wrong_tree_is_one_line_before_a_run(change, kind, message, files, tmp_path, task, monkeypatch):
    task.check_data()
    shutil.copytree(files, tmp_path / "copy")
    change(tmp_path / "copy" / FOLDER / "dslr")
    monkeypatch.setenv("FAIRFLARE_DATA", str(tmp_path / "copy"))
    with pytest.raises(kind, match=message) as error:
        task.check_data()
    assert "\n" not in str(error.value) and getattr(error.value, "code", "label") in CODES


def test_a_broken_image_is_one_line(files, tmp_path, task, monkeypatch):
    shutil.copytree(files, tmp_path / "copy")
    monkeypatch.setenv("FAIRFLARE_DATA", str(tmp_path / "copy"))
    for path in (tmp_path / "copy" / FOLDER / "dslr").rglob("frame_*"):
        path.write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"frame_.*jpg: cannot be read as an image|JPG: cannot be read as an image"):
        next(task.site_data("site-8").training(4, 0))


def flip_data(n):
    images = torch.randint(0, 255, (n, 3, 8, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    parts = {name: Split(images, torch.arange(n) % 2) for name in ("train", "val", "test")}
    settings = dict(n_classes=2, mean=(0.5,) * 3, std=(0.25,) * 3)
    return TensorData(**parts, **settings), FlippedData(**parts, **settings)


def test_half_of_the_training_images_are_mirrored():
    plain, data = flip_data(200)
    batches = {seed: list(data.training(40, seed)) for seed in (3, 4)}
    before = list(plain.training(40, 3))
    mirrored = []
    for one, other in zip(before, batches[3]):
        assert torch.equal(one.targets, other.targets)
        for x, y in zip(one.inputs, other.inputs):
            mirrored.append(torch.equal(x.flip(-1), y))
            assert mirrored[-1] or torch.equal(x, y)
    assert 70 < sum(mirrored) < 130
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(batches[3], data.training(40, 3)))
    assert not torch.equal(batches[3][0].inputs, batches[4][0].inputs)
    assert torch.equal(next(data.fixed("train", 200)).inputs, next(plain.fixed("train", 200)).inputs)


def test_a_flip_is_drawn_on_the_cpu_and_done_where_the_images_are():
    images = torch.rand(6, 3, 4, 4)
    there = domains.flipped(images.to("meta"), torch.Generator().manual_seed(0))
    assert there.device.type == "meta" and there.shape == images.shape


@each(
    "options, message",
    [
        ({"n_sites": 6}, "n_sites: expected a multiple of 4 in 4..40, got 6"),
        ({"n_sites": 44}, "n_sites: expected a multiple of 4 in 4..40, got 44"),
        ({"share": 0.5}, "share: expected above 0 and at most 0.4 for 8 sites, got 0.5"),
        ({"share": 0}, "share: expected above 0 and at most 0.4 for 8 sites, got 0"),
        ({"size": 16}, "size: expected 32..512, got 16"),
        ({"limit": 1}, "limit: expected at least 2, or none, got 1"),
        ({"model": "vgg"}, "model: expected one of small-cnn, .*resnet10.*got 'vgg'"),
        ({"data_seed": -1}, "data_seed: expected 0.*got -1"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message) as error:
        load("office-caltech", "small", **options)
    assert "\n" not in str(error.value)


def test_the_papers_settings():
    config = make_config("fedheal", "office-caltech:paper")
    assert [config.options[key] for key in ("n_sites", "share", "size", "model")] == [20, 0.1, 192, "resnet10"]
    assert config.training == Training(
        rounds=200, epochs=10, batch_size=16, optimizer="sgd", lr=1e-3, momentum=0.9, weight_decay=1e-5
    )
    small = load("office-caltech", "small")
    assert small.network()(torch.zeros(2, 3, small.size, small.size)).shape == (2, 10)


def test_one_command_trains_on_all_domains(task, tmp_path, capsys):
    pairs = ("n_sites=4", "share=0.3", "size=32", "limit=12", "epochs=1")
    options = [a for pair in pairs for a in ("--set", pair)]
    code, out, err = call(
        capsys,
        *("run", "fedavg", "--task", "office-caltech", *options),
        *("--rounds", "1", "--no-solo", "--out", tmp_path / "run", "--json"),
    )
    assert code == 0, err
    sites = json.loads(out)["report"]["sites"]
    assert [row["n_train"] for row in sites.values()] == [12] * 4 and all(row["n_test"] == 12 for row in sites.values())
    assert all(0 <= row["metrics"]["accuracy"] <= 1 for row in sites.values())
