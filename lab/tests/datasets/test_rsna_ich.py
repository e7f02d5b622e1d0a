# SPDX-License-Identifier: Apache-2.0
"""FedISM+'s CT slices on disk: the papers' split over sites, who holds which quality, and what is wrong with files."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from cases import each
from command_line import call
from fairflare.core.errors import DataError, MissingData, UserError
from fairflare.core.findings import CODES
from fairflare.engine.setup.tasks import load
from fairflare.tasks.base import DATA_FOLDER
from fairflare_lab.datasets import poor_images, quality
from fairflare_lab.datasets.quality import RsnaIch
from golden import folder as golden_folder
from quality_tree import open_rgb, picture, write_table, write_tree

COUNTS, TESTS = (22, 34, 30, 36, 58), (4, 5, 4, 5, 8)
TINY = dict(n_sites=4, corrupted=1, alpha=20.0, size=32)
VARIANT = "train/gaussian3_3_1_dir20.0"
ALL = ("train", "val", "test")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    write_tree(root / "ICH_20", COUNTS, TESTS, ".png", False, (VARIANT, "test/gaussian_1", "test/gaussian_3"))
    return root


@pytest.fixture
def root(written, monkeypatch):
    monkeypatch.setenv(DATA_FOLDER, str(written))
    return written


@pytest.fixture
def copy(written, tmp_path, monkeypatch):
    """A tree that the test may change."""
    shutil.copytree(written, tmp_path / "copy")
    monkeypatch.setenv(DATA_FOLDER, str(tmp_path / "copy"))
    return tmp_path / "copy"


def paths(task, root):
    """(site, split, path) of everything."""
    return [(s, split, i.image) for s in task.sites() for split, part in task.items(root, s).items() for i in part]


def read(data, split):
    return data.splits[split].read([torch.arange(data.size(split))]).__next__()


def test_sites_are_known_without_data(monkeypatch):
    monkeypatch.delenv(DATA_FOLDER, raising=False)
    kinds = list(load("rsna-ich", "paper").sites().items())
    assert kinds == [(f"site-{k}", "clean" if k <= 16 else "noise, severity 3") for k in range(1, 21)]
    assert RsnaIch().corruption == "noise" and RsnaIch().classes[0] == "epidural" and len(RsnaIch().classes) == 5


@pytest.mark.parametrize("corrupted", [2, 4, 6])
def test_sites_are_as_large_as_the_papers(corrupted, tmp_path):
    """The sizes of the authors' stored partitions, from their table (sorted by class, with these class counts)."""
    write_table(tmp_path / "ICH_20" / "train.csv", (438, 4101, 2597, 4291, 8571), "")
    task = RsnaIch(corrupted=corrupted)
    table = task.table(tmp_path, "train")
    sizes = [sum(map(len, task.rows(tmp_path, site, table).values())) for site in list(task.sites())[::3]]
    expected = np.load(golden_folder() / "partition.npz")[f"ICH_20_c{corrupted}_sizes"]
    assert sizes == expected[::3].tolist()


def test_every_slice_is_in_one_split_of_one_site(root):
    task = RsnaIch(**TINY)
    found = [path.stem for _, _, path in paths(task, root)]
    assert sorted(found) == sorted(task.table(root, "train").ids) and len(found) == sum(COUNTS)
    for site in task.sites():
        sizes = {split: len(part) for split, part in task.items(root, site).items()}
        n = sum(sizes.values())
        assert n >= 24 and sizes["val"] == round(0.15 * n) == sizes["test"]


def test_images_come_from_the_folder_of_the_sites_quality(root):
    task = RsnaIch(**TINY)
    for site, _, path in paths(task, root):
        assert path.parent == root / "ICH_20" / (VARIANT if site == "site-4" else "train/clean")
    for site in ("site-1", "site-4"):
        data = RsnaIch(**{**TINY, "size": 40}).site_data(site)  # the files' size: nothing is resampled
        for split in ALL:
            inputs, targets = read(data, split)
            items = task.items(root, site)[split]
            assert inputs.dtype == torch.uint8 and targets.tolist() == [i.label for i in items]
            assert np.array_equal(inputs.numpy(), np.stack([open_rgb(i.image) for i in items]))
            for image, item in zip(inputs.numpy(), items):
                label, negative = item.label, 255 - image if site == "site-4" else image
                assert item.image.stem.startswith(f"r_{label}x") and negative[0, 4 * label : 4 * label + 8].min() >= 150
    assert read(RsnaIch(**TINY).site_data("site-1"), "val")[0].shape[1:] == (3, 32, 32)


def test_the_order_depends_on_names_and_seeds_alone(root, copy):
    shutil.rmtree(copy / "ICH_20" / "train" / "clean")
    shutil.copytree(root / "ICH_20" / "train" / "clean", copy / "ICH_20" / "train" / "clean")
    task = RsnaIch(**TINY)
    one, two = ([(s, split, p.name) for s, split, p in paths(task, where)] for where in (root, copy))
    assert one == two
    other = [(s, split, p.name) for s, split, p in paths(dataclasses.replace(task, data_seed=7), root)]
    assert {(s, name) for s, _, name in one} == {(s, name) for s, _, name in other} and set(one) != set(other)


def test_a_limit_takes_a_mixture_of_classes(root):
    task = RsnaIch(**TINY, limit=12)
    data = task.site_data("site-1")
    drawn = [data.splits["train"].labels, *(s.targets for s in task.test_sets())]
    assert all(len(labels) == 12 and len(labels.unique()) >= 3 for labels in drawn)
    assert all((labels.diff() < 0).any() for labels in drawn)  # the tables are sorted by class


def test_shared_test_sets_are_those_that_are_there(root):
    task = RsnaIch(**{**TINY, "size": 40})
    sets = task.test_sets()
    assert [(s.name, s.corrupted) for s in sets] == [("clean", False), ("noise 1", True), ("noise 3", True)]
    assert task.table_sets() == {"clean": "clean", "corrupted": "noise 3"}
    assert all(torch.equal(s.targets, sets[0].targets) for s in sets)
    assert sets[0].targets.bincount().tolist() == list(TESTS) and sets[0].inputs.shape == (26, 3, 40, 40)
    mean, std = (torch.tensor(v)[:, None, None] for v in (task.mean, task.std))
    clean, poor = ((s.inputs * std + mean) * 255 for s in (sets[0], sets[2]))
    assert torch.allclose(clean + poor, torch.full_like(clean, 255.0), atol=0.01)


def test_no_test_slice_is_at_a_site(copy):
    table = copy / "ICH_20" / "train.csv"
    name = (copy / "ICH_20" / "test.csv").read_text().splitlines()[1].split(",")[0]
    table.write_text(table.read_text() + f"{name},0\n")
    with pytest.raises(DataError, match=f"1 images are in both train.csv and test.csv, e.g. {name}") as error:
        RsnaIch(**TINY).shared_items(copy)
    assert error.value.code in CODES


@pytest.mark.parametrize("gone", ["ICH_20/train.csv", "ICH_20/test.csv", "ICH_20/train/clean", "ICH_20/test/clean"])
def test_what_is_missing_is_named_with_the_expected_tree(copy, gone):
    path = copy / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(MissingData) as error:
        RsnaIch(**TINY).check_data()
    assert str(path) in str(error.value) and error.value.tree.splitlines()[0] == "    ICH_20/"
    assert "train/gaussian3_16_4_dir1.0/" in error.value.tree and "\n" not in str(error.value)


def test_missing_corrupted_images_can_be_prepared(copy):
    shutil.rmtree(copy / "ICH_20" / VARIANT)
    task = RsnaIch(**TINY)
    assert task.site_data("site-1").size("train") > 0
    with pytest.raises(MissingData, match=r"fairflare prepare rsna-ich SOURCE DEST") as error:
        task.site_data("site-4")
    assert str(copy / "ICH_20" / VARIANT) in str(error.value) and error.value.tree


def test_a_site_needs_only_its_own_images(copy):
    shutil.rmtree(copy / "ICH_20" / "test")
    task = RsnaIch(**TINY)
    for path in {p for s, _, p in paths(task, copy) if s != "site-2"}:
        path.unlink()
    assert len(read(task.site_data("site-2"), "train")[0]) == task.site_data("site-2").size("train") > 0
    with pytest.raises(MissingData, match="x000"):
        task.site_data("site-3")


BAD_TABLES = [
    ("", "column", "train.csv: expected a column 'id', got none"),
    ("name,class\na,0\n", "column", "train.csv: expected a column 'id', got name, class"),
    ("id,class\n", "few_examples", "train.csv: expected rows, found none"),
    ("id,class\na,0\nb,5\n", "label", "train.csv: line 3: class: expected a whole number from 0 to 4, got '5'"),
    ("id,class\na,-1\n", "label", "train.csv: line 2: class: .* got '-1'"),
    ("id,class\na,epidural\n", "label", "train.csv: line 2: class: .* got 'epidural'"),
    ("id,class\na,0\na,1\n", "entry", "train.csv: line 3: id: expected each image once, got 'a' again"),
    ("id,class\n../../a,0\n", "entry", "train.csv: line 2: id: expected the name of an image, got '../../a'"),
    ("id,class\na,0,1\n", "entry", "train.csv: expected 2 cells in a row, got 'a,0,1'"),
    (b"id,class\n\xff,0\n", "unreadable", "train.csv: cannot be read as a table"),
]


@pytest.mark.parametrize("content, code, message", BAD_TABLES)
def test_tables_that_are_none(copy, content, code, message):
    (copy / "ICH_20" / "train.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=message) as error:
        RsnaIch(**TINY).site_data("site-1")
    assert error.value.code == code and code in CODES and "\n" not in str(error.value)


def test_too_few_images_for_the_sites(root):
    with pytest.raises(UserError, match="no split of 180 examples over 20 sites with at least 24 each"):
        RsnaIch().site_data("site-1")


def test_a_broken_image_is_named(copy):
    task = RsnaIch(**TINY)
    path = task.items(copy, "site-1")["train"][0].image
    path.write_bytes(b"nothing")
    with pytest.raises(DataError, match=f"{path.name}: cannot be read as an image"):
        read(task.site_data("site-1"), "train")
    with pytest.raises(DataError, match=f"{path.name}: cannot be read as an image") as error:
        list(quality.corrupt([path], "noise", 3, np.random.RandomState(0), {path}))
    assert "\n" not in str(error.value)


def test_noise_is_drawn_once_in_the_order_of_the_split(root):
    """One generator over all images of the corrupted sites, whether they are wanted or not."""
    task = RsnaIch(**{**TINY, "corrupted": 2})
    table, rng, poor = task.table(root, "train"), np.random.RandomState(0), ("site-3", "site-4")
    wanted = {i.image for i in task.clean_items(root, "site-4")["val"]}
    made = [dict(task.site_corrupted(root, site, rng, wanted)) for site in poor]
    assert not made[0] and set(made[1]) == wanted
    again = np.random.RandomState(0)
    for site in poor:
        rows = sorted(np.concatenate(list(task.rows(root, site, table).values())))
        for row in rows:
            path = root / "ICH_20" / "train" / "clean" / f"{table.ids[row]}.png"
            expected = poor_images.gaussian_noise(picture(row, table.labels[row], False), 3, again)
            if path in wanted:
                assert np.array_equal(made[1][path], expected)


def test_test_noise_goes_through_the_severities_with_one_generator(root):
    task, rng, again = RsnaIch(**TINY), np.random.RandomState(0), np.random.RandomState(0)
    table = task.table(root, "test")
    every = {root / "ICH_20" / "test" / "clean" / f"{name}.png" for name in table.ids}
    for severity in (1, 2):
        found = list(task.test_corrupted(root, severity, rng, every))
        assert [path.stem for path, _ in found] == list(table.ids)
        for row, (_, image) in enumerate(found):
            clean = picture(10**6 + row, table.labels[row], False)
            assert np.array_equal(image, poor_images.gaussian_noise(clean, severity, again))


BAD = [
    ({"n_sites": 1}, "n_sites: expected 2..100, got 1"),
    ({"corrupted": 20}, "corrupted: expected 0..19 .*got 20"),
    ({"severity": 0}, "severity: expected 1..5, got 0"),
    ({"alpha": 0}, "alpha: expected a number above 0, got 0"),
    ({"corruption": "fog"}, "corruption: expected one of noise, motion, got 'fog'"),
    ({"size": 16}, "size: expected 32..512, got 16"),
    ({"limit": 1}, "limit: expected at least 2, or none, got 1"),
    ({"data_seed": -1}, "data_seed: expected 0.*got -1"),
]


@each("options, message", BAD)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message) as error:
        load("rsna-ich", **options)
    assert "\n" not in str(error.value)


def test_networks_take_what_the_site_gives(root):
    for model in ("small-cnn", "small-cnn-bn", "resnet18"):
        task = RsnaIch(**TINY, model=model)
        inputs, targets, _ = next(task.site_data("site-4").training(4, 0))
        outputs = task.network()(inputs)
        assert outputs.shape == (4, 5) and set(task.evaluate(outputs.detach(), targets)) <= {*task.metrics, "loss"}


def test_a_run_from_the_command_line(root, tmp_path, capsys):
    settings = [word for key, value in {**TINY, "limit": 10}.items() for word in ("--set", f"{key}={value}")]
    run = (
        "run",
        "fedavg",
        "--task",
        "rsna-ich",
        *settings,
        "--rounds",
        "1",
        "--no-solo",
        "--out",
        tmp_path / "r",
        "--json",
    )
    code, out, err = call(capsys, *run)
    assert code == 0, err
    report = json.loads(out)["report"]
    assert [row["kind"] for row in report["sites"].values()] == ["clean"] * 3 + ["noise, severity 3"]
    assert all(row["n_train"] == 10 for row in report["sites"].values())


def test_a_run_without_data_is_one_line(capsys, tmp_path, monkeypatch):
    for folder in (None, tmp_path):
        monkeypatch.setenv(DATA_FOLDER, str(folder)) if folder else monkeypatch.delenv(DATA_FOLDER, raising=False)
        code, _, err = call(capsys, "run", "fedavg", "--task", "rsna-ich", "--out", tmp_path / "r")
        assert code == 2 and "Traceback" not in err and ("ICH_20" if folder else DATA_FOLDER) in err


def test_grey_and_colour_files_read_alike(tmp_path):
    Image.fromarray(picture(1, 2, False)).save(tmp_path / "g.png")
    Image.fromarray(np.stack([picture(1, 2, False)] * 3, axis=-1)).save(tmp_path / "c.png")
    reader = RsnaIch(**TINY).reader()
    assert torch.equal(reader.image(tmp_path / "g.png"), reader.image(tmp_path / "c.png"))
