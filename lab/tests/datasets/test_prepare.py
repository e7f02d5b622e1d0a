# SPDX-License-Identifier: Apache-2.0
"""A published data set as datalists: the same tensors, nothing of the old names, whole or not at all."""

import dataclasses
import json
import shlex
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image

from command_line import call
from fairflare.core.errors import DataError, MissingData, UserError
from fairflare.data.readers.datalist import Item
from fairflare.data.readers.pictures import Reader
from fairflare.engine.setup.tasks import load
from fairflare.tasks.base import DATA_FOLDER
from fairflare.tasks.kinds.masks import MASKS
from fairflare.tasks.kinds.own import sites_in
from fairflare_lab.datasets import quality
from fairflare_lab.datasets.on_disk import ImagesOnDisk
from fairflare_lab.datasets.quality import METADATA, Isic2019, RsnaIch
from fairflare_lab.studies.prepare import prepare
from quality_tree import save, write_tree

ICH = dict(n_sites=4, corrupted=1, alpha=20.0, size=32, limit=15)
SPLITS = {"train": "training", "val": "validation", "test": "testing"}


@pytest.fixture(scope="module")
def slices(tmp_path_factory):
    """Clean images only."""
    root = tmp_path_factory.mktemp("ich")
    write_tree(root / "ICH_20", (22, 34, 30, 36, 58), (4, 5, 4, 5, 8), ".png", False, ())
    return root


@dataclass(frozen=True)
class Eyes(ImagesOnDisk):
    """Two sites of colour images in memory; the cup lies in the disc, the vessel anywhere."""

    name = "eyes"
    title = "Eyes"
    real = "nothing"
    simulated = "everything"
    classes = ("disc", "cup", "vessel")
    kind = MASKS
    attributes = {"sex": ("f", "m")}
    limit: int | None = None
    size: int = 32
    n: int = 9

    def sites(self):
        return {"east": "camera A", "west": "camera B"}

    def network(self):
        raise NotImplementedError

    def reader(self):
        return Reader(self.size, 3, {"disc": (10, 20, 30), "cup": (20, 30), "vessel": (30, 40)}, (0,))

    def items(self, root, site):
        rng = np.random.default_rng(len(site) + ord(site[0]))
        every = []
        for i in range(self.n):
            mask = rng.choice([0, 10, 20, 30, 40], (44, 52)).astype(np.uint8)
            image = rng.integers(0, 256, (44, 52, 3)).astype(np.uint8)
            attributes = {"sex": "fm"[i % 2] if i else "", "patient_id": f"Smith{i // 2}", "name": "Smith"}
            every.append(Item(image, mask, attributes))
        return {"train": every[:4], "val": every[4:6], "test": every[6:]}


@dataclass(frozen=True)
class Many(Eyes):
    """More structures than a mask of 8 bits can tell apart."""

    classes = tuple("abcdefghi")


@dataclass(frozen=True)
class Alone(Eyes):
    """One training image a site."""

    def items(self, root, site):
        return {split: part[:1] for split, part in super().items(root, site).items()}


def own_task(dest, told):
    """The task that the command line makes of DEST with the settings that dataset.json tells."""
    names = ",".join(sites_in(dest, (".json",)))
    values = {"datalists": str(dest), "site_names": names, "labels": ",".join(told["classes"])}
    return load(told["kind"], **values, **told["options"])


def whole(data, split):
    return next(data.splits[split].read([torch.arange(data.size(split))]))


def same_data(one, two):
    for split in SPLITS:
        assert one.size(split) == two.size(split) > 0
        for a, b in zip(whole(one, split), whole(two, split)):
            assert a.dtype == b.dtype and torch.equal(a, b)
        assert one.attributes(split) == two.attributes(split)


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def variants(task, root):
    """Make the corrupted images of ``root`` as files, from the documented rule."""
    rng = np.random.RandomState(0)
    for site in [s for s in task.sites() if not task.is_clean(s)]:
        wanted = {i.image for part in task.clean_items(root, site).values() for i in part}
        for path, image in task.site_corrupted(root, site, rng, wanted):
            save(image, task.variant(root) / path.name)
    rng = np.random.RandomState(0)
    for severity in range(1, 6):
        wanted = {i.image for i in task.shared_items(root)["clean"][1]}
        for path, image in task.test_corrupted(root, severity, rng, wanted):
            save(image, task.test_folder(root, severity) / path.name)


def test_classification_with_images_that_are_made_is_the_same_as_with_those_that_are_there(
    slices, tmp_path, monkeypatch
):
    """Whatever the limit: which noise an image gets depends on its place in the split over sites."""
    task, dest = RsnaIch(**ICH), tmp_path / "made"
    told = prepare(task, slices, dest)
    assert "seed 0" in told["source"] and "corrupted sites' images and the corrupted test sets" in told["source"]
    root = tmp_path / "with"
    write_tree(root / "ICH_20", (22, 34, 30, 36, 58), (4, 5, 4, 5, 8), ".png", False, ())
    variants(task, root)
    monkeypatch.setenv(DATA_FOLDER, str(root))
    own = own_task(dest, told)
    assert list(own.sites()) == list(task.sites()) == list(told["sites"])
    for site in task.sites():
        same_data(task.site_data(site), own.site_data(site))
    again = prepare(task, root, tmp_path / "there")
    assert "seed 0" not in again["source"]
    one, two = files(dest), files(tmp_path / "there")
    differ = {name for name in one if one[name] != two.get(name)}
    assert set(one) == set(two) and differ == {"dataset.json"}
    assert told["sites"]["site-4"] == {"kind": "noise, severity 3", "train": 15, "val": 7, "test": 7}


def test_shared_test_sets(slices, tmp_path):
    task, dest = RsnaIch(**{**ICH, "limit": None}), tmp_path / "d"
    told = prepare(task, slices, dest)["shared"]
    assert list(told) == ["clean", *(f"noise_{s}" for s in range(1, 6))]
    assert told["noise_2"] == {"name": "noise 2", "corrupted": True, "test": 26} and not told["clean"]["corrupted"]
    items, read = task.shared_items(slices)["clean"][1], task.reader()
    for name in ("clean", "noise_5"):
        lists = json.loads((dest / "shared" / f"{name}.json").read_text())
        assert not lists["training"] and [e["label"] for e in lists["testing"]] == [i.label for i in items]
    rng, every = np.random.RandomState(0), {i.image for i in items}
    made = [dict(task.test_corrupted(slices, s, rng, every)) for s in (1, 2)][1]
    for entry, name in zip(json.loads((dest / "shared" / "noise_2.json").read_text())["testing"], items):
        assert torch.equal(read.image(dest / "shared" / entry["image"]), read.image(made[name.image]))


def test_overlapping_structures(tmp_path):
    task, dest = Eyes(), tmp_path / "eyes"
    told = prepare(task, tmp_path, dest)
    assert told["kind"] == "segmentation" and told["classes"] == ["disc", "cup", "vessel"]
    assert told["options"]["mask_values"] == "disc=1|3|5|7; cup=2|3|6|7; vessel=4|5|6|7"
    assert told["options"]["size"] == 32 and told["options"]["channels"] == 3
    own = own_task(dest, told)
    for site in task.sites():
        expected = {s: [task.reader()(i) for i in part] for s, part in task.items(tmp_path, site).items()}
        data = own.site_data(site)
        for split, pairs in expected.items():
            images, masks = whole(data, split)
            assert torch.equal(images, torch.stack([i for i, _ in pairs]))
            assert torch.equal(masks, torch.stack([m for _, m in pairs])) and masks.dtype == torch.uint8
        assert data.attributes("train") == {"sex": ["", "m", "f", "m"]}
    assert sorted(np.unique(Image.open(dest / "east" / "train_00000_mask.png"))) == [0, 1, 3, 4, 7]


def test_nothing_of_names_and_patients_is_kept(tmp_path):
    dest = tmp_path / "eyes"
    prepare(Eyes(), tmp_path, dest)
    assert all(b"Smith" not in content for content in files(dest).values())
    numbers = []
    for site in ("east", "west"):
        lists = json.loads((dest / f"{site}.json").read_text())
        for split, key in SPLITS.items():
            for i, entry in enumerate(lists[key]):
                assert entry["image"] == f"{site}/{split}_{i:05d}.png"
                assert set(entry) <= {"image", "label", "sex", "patient_id"}
        numbers.append([e["patient_id"] for key in SPLITS.values() for e in lists[key]])
    assert numbers == [[1, 1, 2, 2, 3, 3, 4, 4, 5], [6, 6, 7, 7, 8, 8, 9, 9, 10]]


def test_original_names_are_not_in_the_result(slices, tmp_path):
    prepare(RsnaIch(**ICH), slices, tmp_path / "d")
    found = files(tmp_path / "d")
    text = " ".join(found) + " ".join(c.decode() for name, c in found.items() if name.endswith(".json"))
    assert "r_0x" not in text and "e_0x" not in text and str(slices) not in text


def test_sensitive_attributes_are_kept(tmp_path):
    write_tree(tmp_path / "ISIC2019_20", (20, 44, 24, 12, 20, 12, 12, 16), (3,) * 8, ".jpg", True, ())
    task = Isic2019(n_sites=4, corrupted=1, alpha=20.0, size=32, limit=6)
    rows = [
        f"{name},{40 + 5 * (i % 9)},{('male', 'female')[i % 2]}"
        for i, name in enumerate(task.table(tmp_path, "train").ids)
    ]
    (tmp_path / "ISIC2019_20" / METADATA).write_text("\n".join(["image,age_approx,sex", *rows]))
    told = prepare(task, tmp_path, tmp_path / "d")
    assert told["options"]["attribute_values"] == "sex=female|male; age=under 60|60 and over"
    own = own_task(tmp_path / "d", told)
    for site in ("site-1", "site-4"):
        expected = [item.attributes for item in task.limited(task.clean_items(tmp_path, site)["train"])]
        found = own.site_data(site).attributes("train")
        assert [{k: found[k][i] for k in ("sex", "age")} for i in range(6)] == expected
    assert own.attributes == task.attributes and told["shared"]["motion_3"]["test"] == 6


def test_the_command_that_it_tells_runs(slices, tmp_path, capsys, monkeypatch):
    dest = tmp_path / "d"
    prepare(RsnaIch(**ICH), slices, dest)
    told = json.loads((dest / "dataset.json").read_text())
    assert sites_in(dest, (".json",)) == ["site-1", "site-2", "site-3", "site-4"]
    monkeypatch.chdir(tmp_path)
    words = ["fedavg" if word == "METHOD" else word for word in shlex.split(told["run"])[1:]]
    code, out, err = call(capsys, *words, "--rounds", "1", "--out", tmp_path / "r", "--json")
    assert code == 0, err
    report = json.loads(out)["report"]
    assert {name: row["n_train"] for name, row in report["sites"].items()} == {f"site-{k}": 15 for k in range(1, 5)}


def test_progress_counts_every_image(tmp_path):
    calls = []
    prepare(Eyes(), tmp_path, tmp_path / "d", lambda *told: calls.append(told))
    assert calls == [("east" if k <= 9 else "west", k, 18) for k in range(1, 19)]


def test_the_folder_is_new_or_empty(tmp_path):
    (tmp_path / "empty").mkdir()
    prepare(Eyes(), tmp_path, tmp_path / "empty")
    assert (tmp_path / "empty" / "dataset.json").is_file()
    before = files(tmp_path / "empty")
    with pytest.raises(UserError, match="empty: expected a new or empty folder"):
        prepare(Eyes(n=8), tmp_path, tmp_path / "empty")
    assert files(tmp_path / "empty") == before
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file: expected a new or empty folder"):
        prepare(Eyes(), tmp_path, tmp_path / "file")
    with pytest.raises(UserError, match="cannot be written") as error:
        prepare(Eyes(), tmp_path, tmp_path / "file" / "below")
    assert "\n" not in str(error.value)
    prepare(Eyes(), tmp_path, tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c" / "east.json").is_file()


def test_nothing_stays_when_it_fails(slices, tmp_path):
    task = RsnaIch(**ICH)
    write_tree(tmp_path / "in" / "ICH_20", (22, 34, 30, 36, 58), (4, 5, 4, 5, 8), ".png", False, ())
    broken = task.clean_items(tmp_path / "in", "site-3")["test"][2].image
    broken.write_bytes(b"nothing")
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match=f"{broken.name}: cannot be read as an image"):
        prepare(task, tmp_path / "in", tmp_path / "out" / "d")
    broken.unlink()
    with pytest.raises(MissingData, match=broken.name):
        prepare(task, tmp_path / "in", tmp_path / "out" / "d")

    def stop(what, done, total):
        if done == 20:
            assert any((tmp_path / "out").iterdir()) and not (tmp_path / "out" / "d").exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(task, slices, tmp_path / "out" / "d", stop)
    assert not any((tmp_path / "out").iterdir())


def test_what_no_run_could_use_is_refused_before_anything_is_read(tmp_path):
    for task, message in (
        (Eyes(size=8), "size: expected 16..1024, got 8"),
        (Many(), "classes: expected at most 8 structures, got 9"),
        (Alone(), "task eyes: east: expected at least 2 training images, got 1"),
    ):
        with pytest.raises(UserError, match=message) as error:
            prepare(task, tmp_path, tmp_path / "d")
        assert "\n" not in str(error.value) and not (tmp_path / "d").exists()


def test_dataset_json_says_where_the_data_come_from(slices, tmp_path):
    task = dataclasses.replace(RsnaIch(**ICH), model="resnet18")
    told = prepare(task, slices, tmp_path / "d")
    assert json.loads((tmp_path / "d" / "dataset.json").read_text()) == told
    assert task.title in told["source"] and task.real in told["source"] and told["task"] == "rsna-ich"
    assert told["task_options"]["alpha"] == 20.0
    assert told["options"]["mean"] == ",".join(map(str, quality.QualityShift.mean))
    assert set(told["table_sets"]) == {"clean", "corrupted"} and "noise 3" in told["table_sets"].values()
