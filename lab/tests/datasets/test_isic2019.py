# SPDX-License-Identifier: Apache-2.0
"""FedISM+'s skin photographs on disk: motion blur, sex and age, and lesions that were photographed twice."""

import csv
import json

import numpy as np
import pytest
import torch

from fairflare.cli.main import main
from fairflare.core.errors import DataError, MissingData
from fairflare.core.findings import CODES
from fairflare.engine.setup.tasks import load
from fairflare.tasks.base import DATA_FOLDER
from fairflare_lab.datasets import poor_images, quality
from fairflare_lab.datasets.quality import METADATA, Isic2019
from golden import folder as golden_folder
from quality_tree import open_rgb, write_table, write_tree

COUNTS, TESTS = (20, 44, 24, 12, 20, 12, 12, 16), (3, 4, 3, 2, 3, 2, 2, 2)
TINY = dict(n_sites=4, corrupted=1, alpha=20.0, size=32)
VARIANT = "train/motion3_3_1_dir20.0"
ALL = ("train", "val", "test")
HEADER = ("image", "age_approx", "anatom_site_general", "lesion_id", "sex")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    write_tree(root / "ISIC2019_20", COUNTS, TESTS, ".jpg", True, (VARIANT, "test/motion_3"))
    return root


@pytest.fixture
def root(written, monkeypatch):
    monkeypatch.setenv(DATA_FOLDER, str(written))
    yield written
    (written / "ISIC2019_20" / METADATA).unlink(missing_ok=True)


def write_metadata(root, rows):
    with (root / "ISIC2019_20" / METADATA).open("w", newline="") as file:
        csv.writer(file).writerows([HEADER, *rows])


def ids(root):
    return Isic2019(**TINY).table(root, "train").ids


def test_the_last_sites_are_blurred():
    task = load("isic2019", "paper")
    assert list(task.sites().values()) == ["clean"] * 16 + ["motion, severity 3"] * 4
    assert task.classes == ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
    assert task.table_sets() == {"clean": "clean", "corrupted": "motion 3"}


def test_sites_are_as_large_as_the_papers(tmp_path):
    """The sizes of the authors' stored partition, from their table (sorted by class, with these class counts)."""
    write_table(tmp_path / "ISIC2019_20" / "train.csv", (3617, 10300, 2658, 693, 2099, 191, 202, 502), "")
    task = Isic2019()
    table = task.table(tmp_path, "train")
    sizes = [sum(map(len, task.rows(tmp_path, site, table).values())) for site in list(task.sites())[::3]]
    assert sizes == np.load(golden_folder() / "partition.npz")["ISIC2019_20_c4_sizes"][::3].tolist()


def test_images_come_from_the_folder_of_the_sites_quality(root):
    task = Isic2019(**{**TINY, "size": 40})
    seen = []
    for site in task.sites():
        for split in ALL:
            items = task.items(root, site)[split]
            folder = VARIANT if site == "site-4" else "train/clean"
            assert {i.image.parent for i in items} == {root / "ISIC2019_20" / folder}
            assert all(i.image.suffix == ".jpg" and i.attributes == {} for i in items)
            seen += [i.image.stem for i in items]
    assert sorted(seen) == sorted(ids(root))
    val = task.items(root, "site-4")["val"]
    inputs = next(task.site_data("site-4").splits["val"].read([torch.arange(len(val))]))[0]
    assert np.array_equal(inputs.numpy(), np.stack([open_rgb(i.image) for i in val]))
    assert [s.name for s in task.test_sets()] == ["clean", "motion 3"]


def test_noise_in_place_of_motion_as_in_the_authors_code(root):
    task = Isic2019(**TINY, corruption="noise")
    with pytest.raises(MissingData, match="gaussian3_3_1_dir20.0.*fairflare prepare isic2019 SOURCE DEST"):
        task.items(root, "site-4")
    assert list(task.shared_items(root)) == ["clean"]


def test_blur_has_one_angle_per_image_in_the_order_of_the_split(root):
    task = Isic2019(**TINY)
    wanted = {i.image for i in task.clean_items(root, "site-4")["test"]}
    made = dict(task.site_corrupted(root, "site-4", np.random.RandomState(0), wanted))
    assert set(made) == wanted and len(wanted) > 2
    rng, table = np.random.RandomState(0), task.table(root, "train")
    for row in sorted(np.concatenate(list(task.rows(root, "site-4", table).values()))):
        angle, path = rng.uniform(-45, 45), root / "ISIC2019_20" / "train" / "clean" / f"{table.ids[row]}.jpg"
        if path in wanted:
            clean = np.moveaxis(open_rgb(path), 0, -1)
            assert np.array_equal(made[path], poor_images.motion_blur(clean, 3, angle, scale=40 / 224))
            assert (made[path] != clean).any()


def test_angles_are_uniform_between_the_papers_bounds(root, monkeypatch):
    angles = []
    monkeypatch.setattr(quality, "motion_blur", lambda image, severity, angle, scale: angles.append(angle))
    paths = [i.image for i in Isic2019(**TINY).clean_items(root, "site-1")["train"]]
    list(quality.corrupt(paths, "motion", 3, np.random.RandomState(0), set(paths)))
    assert angles == np.random.RandomState(0).uniform(-45, 45, len(paths)).tolist()


def test_the_corruption_of_an_image_does_not_depend_on_which_others_are_wanted(root):
    task = Isic2019(**TINY)
    paths = [i.image for i in task.clean_items(root, "site-1")["train"]][:6]
    for corruption in ("noise", "motion"):
        every = dict(quality.corrupt(paths, corruption, 2, np.random.RandomState(0), set(paths)))
        last = dict(quality.corrupt(paths, corruption, 2, np.random.RandomState(0), {paths[-1]}))
        assert list(last) == [paths[-1]] and np.array_equal(last[paths[-1]], every[paths[-1]])


def test_sex_and_age_from_the_metadata(root):
    names = ids(root)
    known = {names[0]: ("60.0", "female"), names[1]: ("55.0", "male"), names[2]: ("", "unknown"), names[3]: ("0", "")}
    write_metadata(root, [(name, age, "back", "", sex) for name, (age, sex) in known.items()])
    task, found = Isic2019(**TINY), {}
    for site in task.sites():
        data = task.site_data(site)
        for split, items in task.items(root, site).items():
            columns = data.attributes(split)
            for i, item in enumerate(items):
                found[item.image.stem] = {k: columns[k][i] for k in ("sex", "age")}
    assert [found[name] for name in names[:4]] == [
        {"sex": "female", "age": "60 and over"},
        {"sex": "male", "age": "under 60"},
        {"sex": "", "age": ""},
        {"sex": "", "age": "under 60"},
    ]
    assert all(values == {"sex": "", "age": ""} for name, values in found.items() if name not in known)


def test_images_of_one_lesion_stay_in_one_split(root):
    names = ids(root)
    plain = {s: {p: [i.image.stem for i in part] for p, part in Isic2019(**TINY).items(root, s).items()} for s in SITES}
    write_metadata(root, [(name, "50", "", f"L{row // 5}", "male") for row, name in enumerate(names)])
    task, where, mixed = Isic2019(**TINY), {}, 0
    for site in SITES:
        items = task.items(root, site)
        assert {i.image.stem for s in ALL for i in items[s]} == {n for s in ALL for n in plain[site][s]}
        n = sum(map(len, items.values()))
        assert all(abs(len(items[s]) - 0.15 * n) <= 5 for s in ("val", "test")) and len(items["train"]) >= 0.5 * n
        for split, part in items.items():
            for item in part:
                lesion = names.index(item.image.stem) // 5
                assert where.setdefault((site, lesion), split) == split
        lesions = [{names.index(name) // 5 for name in plain[site][s]} for s in ALL]
        mixed += len(lesions[0] & (lesions[1] | lesions[2]))
    assert mixed > 0  # without the metadata they do not


SITES = ("site-1", "site-2", "site-3", "site-4")
BAD_METADATA = [
    ("image,sex\n{0},male\n", "column", "expected a column 'age_approx', got image, sex"),
    ("image,age_approx,sex\n{0},50,man\n", "entry", "{0}: sex: expected female, male or nothing, got 'man'"),
    ("image,age_approx,sex\n{0},old,male\n", "number", "{0}: age_approx: expected a number or nothing, got 'old'"),
    ("image,age_approx,sex\nother,50,male\n", "entry", "expected rows on the images of train.csv, such as {0}"),
    ("image,age_approx,sex\n{0},50\n", "entry", "expected 3 cells in a row, got '{0},50'"),
]


@pytest.mark.parametrize("content, code, message", BAD_METADATA)
def test_metadata_that_do_not_fit(root, content, code, message):
    first = ids(root)[0]
    (root / "ISIC2019_20" / METADATA).write_text(content.format(first))
    with pytest.raises(DataError, match=message.format(first)) as error:
        Isic2019(**TINY).site_data("site-1")
    assert error.value.code == code and code in CODES and METADATA in str(error.value)
    assert "\n" not in str(error.value)


def test_the_missing_path_and_the_expected_tree(tmp_path, monkeypatch):
    monkeypatch.setenv(DATA_FOLDER, str(tmp_path))
    with pytest.raises(MissingData) as error:
        Isic2019().check_data()
    assert str(tmp_path / "ISIC2019_20") in str(error.value)
    assert error.value.tree.splitlines()[0] == "    ISIC2019_20/" and "motion3_16_4_dir1.0/" in error.value.tree
    assert error.value.tree == Isic2019.tree()


def test_a_run_with_groups_from_the_command_line(root, tmp_path, capsys):
    write_metadata(root, [(name, "50", "", "", ("male", "female")[i % 2]) for i, name in enumerate(ids(root))])
    values = {**TINY, "limit": 10, "group_by": "sex", "min_count": 1}
    settings = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    run = (
        "run",
        "fedavg",
        "--task",
        "isic2019",
        *settings,
        "--rounds",
        "1",
        "--no-solo",
        "--out",
        tmp_path / "r",
        "--json",
    )
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in run])
    streams = capsys.readouterr()
    assert stop.value.code == 0, streams.err
    report = json.loads(streams.out)["report"]
    assert [row["kind"] for row in report["sites"].values()] == ["clean"] * 3 + ["motion, severity 3"]
    entries = [json.loads(line) for line in (tmp_path / "r" / "audit.jsonl").read_text().splitlines()]
    evaluation = next(e for e in entries if e["event"] == "evaluation")
    assert set(evaluation["sites"]["site-1"]["groups"]["test"]) == {"male", "female"}
