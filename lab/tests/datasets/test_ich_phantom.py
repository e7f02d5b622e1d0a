# SPDX-License-Identifier: Apache-2.0
"""The quality-shift task: who holds what, in which quality, in every process the same."""

import dataclasses

import numpy as np
import pytest
import torch

from cases import each
from fairflare.core.errors import UserError
from fairflare.engine.setup.tasks import load
from fairflare_lab.datasets.ich_phantom import IchPhantom, plan

TINY = dict(n_sites=4, corrupted=1, images=160, test_images=40, site_test_images=0, size=32, alpha=20.0)


@pytest.fixture(scope="module")
def task():
    return IchPhantom(**TINY)


@pytest.fixture(scope="module")
def data(task):
    return {site: task.site_data(site) for site in task.sites()}


def test_the_last_sites_are_the_corrupted_ones():
    kinds = list(IchPhantom(n_sites=5, corrupted=2, severity=4).sites().items())
    assert kinds == [(f"site-{k}", "clean" if k < 4 else "noise, severity 4") for k in range(1, 6)]
    assert set(IchPhantom(corrupted=0).sites().values()) == {"clean"}


@pytest.mark.parametrize("preset", list(IchPhantom.presets))
def test_classes_are_about_as_common_as_stated(preset):
    labels, _ = plan(load("ich-phantom", preset))
    np.testing.assert_allclose(np.bincount(labels) / len(labels), (0.10, 0.20, 0.15, 0.20, 0.35), atol=0.03)


def test_class_order(task, data):
    assert task.classes == ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural")
    labels, _ = plan(task)
    rows = task.rows("site-2")
    for split in ("train", "val", "test"):
        assert data["site-2"].splits[split].targets.tolist() == labels[rows[split]].tolist()
        assert data["site-2"].size(split) == len(rows[split])


def test_only_the_corrupted_sites_are_noisy_in_every_split(data):
    def air(site, split):
        """Mean grey value of the image corners, where there is only air."""
        return data[site].splits[split].inputs[..., :3, :3].float().mean()

    for split in ("train", "val", "test"):
        assert all(air(f"site-{k}", split) < 5 for k in (1, 2, 3))
        assert air("site-4", split) > 12  # the mean of clipped noise is .4 sigma


def test_noise_has_the_severity_and_is_frozen(task, data):
    rows = task.rows("site-4")["train"]
    labels = plan(task)[0][rows]
    before = np.stack([task._image("site", i, c) for i, c in zip(rows, labels)]) / 255.0
    after = data["site-4"].splits["train"].inputs.squeeze(1).numpy() / 255.0
    inside = (before > 0.4) & (before < 0.6)
    assert (after - before)[inside].std() == pytest.approx(0.18, rel=0.1)
    epochs = [torch.cat([x for x, *_ in data["site-4"].training(16, seed)]).flatten(1) for seed in (0, 1)]
    one, two = ({row.numpy().tobytes() for row in epoch} for epoch in epochs)
    assert one == two and not torch.equal(*epochs)


def test_motion_blur_instead_of_noise(task):
    blurred = dataclasses.replace(task, corruption="motion")
    sharp, soft = (t.site_data("site-4").splits["val"].inputs.float() for t in (task, blurred))
    assert blurred.sites()["site-4"] == "motion, severity 3"
    assert soft.diff(dim=-1).abs().mean() < 0.7 * sharp.diff(dim=-1).abs().mean()
    assert [s.name for s in dataclasses.replace(blurred, test_images=20).test_sets()][1:3] == ["motion 1", "motion 2"]


def test_shared_test_sets(task, data):
    sets = task.test_sets()
    assert [(s.name, s.corrupted) for s in sets] == [("clean", False)] + [(f"noise {k}", True) for k in range(1, 6)]
    assert all(torch.equal(s.targets, sets[0].targets) for s in sets)
    assert sets[0].inputs.shape == (40, 1, 32, 32) and sets[0].inputs.dtype == torch.float32
    spread = [(s.inputs - sets[0].inputs).std().item() for s in sets]
    assert spread == sorted(spread) and spread[0] == 0 and spread[1] > 0.1
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(sets, IchPhantom(**TINY).test_sets()))


def test_test_patients_are_at_no_site(task, data):
    held = {image.numpy().tobytes() for site in data.values() for s in site.splits.values() for image in s.inputs}
    tested = {task._image("test", i, c).tobytes() for i in range(10) for c in range(5)}
    assert len(held) == task.images and not held & tested


BAD = [
    ({"n_sites": 1}, "n_sites: expected 2..100, got 1"),
    ({"corrupted": 8}, "corrupted: expected 0..7 .*got 8"),
    ({"corrupted": -1}, "corrupted: expected 0..7"),
    ({"severity": 6}, "severity: expected 1..5, got 6"),
    ({"alpha": 0}, "alpha: expected a number above 0, got 0"),
    ({"alpha": float("nan")}, "alpha: expected a number above 0, got nan"),
    ({"images": 100}, "images: expected at least 192 for 8 sites, got 100"),
    ({"size": 16}, "size: expected 32..512, got 16"),
    ({"corruption": "fog"}, "corruption: expected one of noise, motion, got 'fog'"),
    ({"model": "vgg"}, "model: expected one of small-cnn, .*resnet18, got 'vgg'"),
    ({"free_rider": 9}, "free_rider: expected 0..8, got 9"),
    ({"data_seed": -1}, "data_seed: expected 0.*got -1"),
]


@each("options, message", BAD)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message):
        IchPhantom(**options)


def distance_of_labels(task):
    """The largest total variation distance between the labels of a site and all labels."""
    labels, sites = plan(task)
    of_all = np.bincount(labels, minlength=5) / len(labels)
    own = [np.bincount(labels[sites == k], minlength=5) / (sites == k).sum() for k in range(task.n_sites)]
    return max(0.5 * np.abs(one - of_all).sum() for one in own)


def test_sites_have_equal_label_distributions_in_one_preset_and_not_in_another():
    by_preset = {name: distance_of_labels(load("ich-phantom", name)) for name in ("equal", "small", "skewed", "medium")}
    rng = np.random.default_rng(0)
    labels, _ = plan(load("ich-phantom", "equal"))
    drawn = [np.bincount(rng.choice(labels, 150), minlength=5) / 150 for _ in range(2000)]
    by_chance = [0.5 * np.abs(one - np.bincount(labels, minlength=5) / len(labels)).sum() for one in drawn]
    assert by_preset["equal"] < np.quantile(by_chance, 0.9999) < min(by_preset["skewed"], by_preset["medium"]) / 2
    assert by_preset["equal"] < by_preset["small"] < by_preset["skewed"]


def test_medium_is_the_task_of_the_study():
    task, preset = load("ich-phantom", "medium"), IchPhantom.presets["medium"]
    assert (task.images, task.size, preset.training.rounds, preset.training.logit_tau) == (4000, 64, 100, 1.0)
    for name in ("equal", "skewed"):
        assert IchPhantom.presets[name].training == IchPhantom.presets["small"].training
