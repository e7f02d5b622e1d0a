# SPDX-License-Identifier: Apache-2.0
"""FedHEAL's digits: who gets what of four domains, which files that takes."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch

from cases import each
from command_line import call
from digit_tree import label_of, write_files
from fairflare.core.errors import DataError, MissingData, UserError
from fairflare.core.types import Training
from fairflare.data.site_config import SiteConfig
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.tasks import load
from fairflare.tasks.kinds.classes import CLASSES
from fairflare_lab.datasets.digits5 import DOMAINS, Digits5
from fairflare_lab.datasets.domains import CroppedData

TINY = dict(n_sites=8, share=0.1)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("digits5"))


@pytest.fixture
def task(files, monkeypatch):
    monkeypatch.setenv("FAIRFLARE_DATA", str(files))
    return Digits5(**TINY)


def held(task):
    return {site: task.site_data(site) for site in task.sites()}


def pixels(data):
    return [next(data.splits[name].read([torch.arange(data.size(name))]))[0].numpy() for name in data.splits]


def labels_of_bytes(task, root, domain):
    """Every training image of ``domain`` as a site shows it -> its class."""
    images, labels = task.digits(root, domain, "train")
    return {task.reader().image(image).numpy().tobytes(): int(label) for image, label in zip(images, labels)}


def fingerprint(task, site):
    return [part.tobytes() for part in pixels(task.site_data(site))]


def test_sites_are_known_without_data(monkeypatch):
    monkeypatch.delenv("FAIRFLARE_DATA", raising=False)
    assert list(Digits5().sites().values()) == [domain for domain in DOMAINS for _ in range(5)]
    assert Digits5(n_sites=4, alpha=0.5).sites()["site-2"] == "USPS; label skew, alpha 0.5"
    with pytest.raises(MissingData, match="name the folder of its data in FAIRFLARE_DATA"):
        Digits5().site_data("site-1")


def test_sites_share_out_their_domain(task, files):
    seen = set()
    known = {domain: labels_of_bytes(task, files, domain) for domain in DOMAINS}
    for site, data in held(task).items():
        assert [data.size(name) for name in ("train", "val", "test")] == [18, 3, 9]
        for split in data.splits.values():
            images, labels = next(split.read([torch.arange(len(split))]))
            assert images.shape[1:] == (3, 32, 32) and images.dtype == torch.uint8
            found = [image.tobytes() for image in images.numpy()]
            assert [known[task.domain(site)][image] for image in found] == labels.tolist() == split.labels.tolist()
            if task.domain(site) in ("MNIST", "USPS"):
                assert torch.equal(images[:, 0], images[:, 1]) and torch.equal(images[:, 0], images[:, 2])
            seen.update(found)
        assert data.class_counts.shape == (10,) and isinstance(data, CroppedData)
    assert len(seen) == 8 * 30


def test_order_depends_on_names_and_seeds(task, tmp_path, monkeypatch):
    before = {site: fingerprint(task, site) for site in task.sites()}
    monkeypatch.setenv("FAIRFLARE_DATA", str(write_files(tmp_path / "again", order=-1)))
    assert before == {site: fingerprint(task, site) for site in reversed(task.sites())}
    other = dataclasses.replace(task, data_seed=7)
    assert all(before[site] != fingerprint(other, site) for site in task.sites())


def test_a_site_needs_its_own_domain_alone(task, files, tmp_path):
    (tmp_path / "syn").mkdir()
    shutil.copytree(files / "syn" / "train", tmp_path / "syn" / "train")
    own = SiteConfig(data_root=str(tmp_path))
    assert task.local_data("site-8", own).size("train") == 18
    with pytest.raises(MissingData, match=r"raw/train-images-idx3-ubyte\.gz; expected:") as error:
        task.local_data("site-1", own)
    assert "    usps.t.bz2\n" in error.value.tree


@pytest.mark.parametrize("gone", ["MNIST/raw/t10k-labels-idx1-ubyte", "usps.t.bz2", "test_32x32.mat", "syn/val/7"])
def test_missing_files_are_named_before_a_run(gone, task, files, tmp_path, monkeypatch):
    task.check_data()
    root = tmp_path / "part"
    shutil.copytree(files, root, ignore=lambda folder, names: {n for n in names if f"{folder}/{n}".endswith(gone)})
    monkeypatch.setenv("FAIRFLARE_DATA", str(root))
    with pytest.raises(MissingData, match=f"no such file or folder: .*{gone}") as error:
        task.check_data()
    assert "\n" not in str(error.value) and error.value.tree.startswith("    MNIST/raw/train-images")


def test_training_images_are_cropped_and_repeat(task):
    data = task.site_data("site-5")
    first, again, other = (next(data.training(18, seed)).inputs for seed in (3, 3, 4))
    assert torch.equal(first, again) and not torch.equal(first, other)
    black = -torch.tensor(task.mean) / torch.tensor(task.std)
    assert (first == black.view(3, 1, 1)).all(1).any() and not (next(data.fixed("train", 18)).inputs == black[0]).any()


def test_shared_test_sets(task):
    sets = task.test_sets()
    assert [(s.name, s.corrupted, len(s.targets)) for s in sets] == [(domain, False, 40) for domain in DOMAINS]
    few = dataclasses.replace(task, limit=20)
    for whole, part in zip(sets, few.test_sets()):
        assert whole.inputs.shape == (40, 3, 32, 32) and (whole.targets.bincount() == 4).all()
        assert torch.equal(part.inputs, whole.inputs[:20]) and len(part.targets.unique()) >= 6
        shown = (whole.inputs * torch.tensor(task.std).view(3, 1, 1) + torch.tensor(task.mean).view(3, 1, 1)) * 255
        assert [label_of(x) for x in shown.numpy()] == whole.targets.tolist()
    assert dataclasses.replace(task, limit=5).site_data("site-3").size("train") == 5


def test_label_skew_comes_on_top(task):
    def gap(alpha):
        skewed = dataclasses.replace(task, share=0.45, alpha=alpha)
        labels = [torch.cat([s.labels for s in skewed.site_data(f"site-{k}").splits.values()]) for k in (3, 4)]
        assert sum(map(len, labels)) == 270 and min(map(len, labels)) >= 24
        counts = [each.bincount(minlength=10) for each in labels]
        return float((counts[0] - counts[1]).abs().sum()) / 270

    assert gap(0.0) < 0.25 < gap(0.2)


def test_too_small_shares_are_refused(task):
    with pytest.raises(UserError, match="share: expected at least 24 images per site, got 15 of the 300 of USPS"):
        dataclasses.replace(task, share=0.05).site_data("site-3")


def test_a_class_without_an_image_is_one_line(files, tmp_path, task):
    shutil.copytree(files / "syn", tmp_path / "syn", ignore=lambda folder, names: names if folder.endswith("9") else [])
    with pytest.raises(DataError, match=r"syn/train/9: expected .png, .*found none"):
        task.local_data("site-7", SiteConfig(data_root=str(tmp_path)))


@each(
    "options, message",
    [
        ({"n_sites": 6}, "n_sites: expected a multiple of 4 in 4..400, got 6"),
        ({"n_sites": 0}, "n_sites: expected a multiple of 4 in 4..400, got 0"),
        ({"share": 0}, "share: expected above 0 and at most 0.5 for 8 sites, got 0"),
        ({"share": 0.6}, "share: expected above 0 and at most 0.5 for 8 sites, got 0.6"),
        ({"alpha": -1}, "alpha: expected a number above 0, or 0 for no label skew, got -1"),
        ({"limit": 1}, "limit: expected at least 2, or none, got 1"),
        ({"model": "vgg"}, "model: expected one of small-cnn, .*resnet10.*got 'vgg'"),
        ({"data_seed": -1}, "data_seed: expected 0.*got -1"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message) as error:
        load("digits5", "small", **options)
    assert "\n" not in str(error.value)


def test_the_papers_settings():
    config = make_config("fedheal", "digits5:paper")
    chosen = [config.options[key] for key in ("n_sites", "share", "alpha", "model", "limit")]
    assert chosen == [20, 0.016667, 0.0, "resnet10", None]
    drawn = np.arange(int(chosen[1] * 60_000))  # of MNIST; a site trains on the paper's 1 %
    assert len(load("digits5", "paper").parts("site-1", drawn)["train"]) == 600
    assert config.training == Training(
        rounds=200, epochs=10, batch_size=64, optimizer="sgd", lr=1e-3, momentum=0.9, weight_decay=1e-5
    )
    assert load("digits5", "paper").network()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_evaluation_reports_its_metrics(task):
    outputs, targets = torch.randn(50, 10), torch.arange(50) % 10
    assert task.evaluate(outputs, targets) == CLASSES.evaluate(CLASSES.metrics, outputs, targets, task.classes)
    assert set(task.evaluate(outputs, targets)) == {*task.metrics, "loss"} and task.headline in task.metrics


def test_one_command_trains_on_all_domains(task, tmp_path, capsys):
    options = [a for pair in ("n_sites=4", "share=0.1", "limit=12", "epochs=1") for a in ("--set", pair)]
    code, out, err = call(
        capsys,
        "run",
        "fedheal",
        "--task",
        "digits5",
        *options,
        "--rounds",
        "1",
        "--no-solo",
        "--out",
        tmp_path / "run",
        "--json",
    )
    assert code == 0, err
    sites = json.loads(out)["report"]["sites"]
    assert [(row["n_train"], row["n_test"]) for row in sites.values()] == [(12, 9)] * 4


def test_without_its_data_a_run_shows_the_tree(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FAIRFLARE_DATA", str(tmp_path))
    code, _, err = call(capsys, "run", "fedavg", "--task", "digits5", "--out", tmp_path / "run")
    assert code == 2 and "Traceback" not in err and "train-images-idx3-ubyte.gz" in err
