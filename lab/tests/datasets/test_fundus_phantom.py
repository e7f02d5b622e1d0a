# SPDX-License-Identifier: Apache-2.0
"""The simulated fundus photographs: patients, cameras, masks and scores, in every process the same."""

import dataclasses

import numpy as np
import pytest
import torch

from cases import each
from fairflare.core.errors import UserError
from fairflare.core.types import Training
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.tasks import load
from fairflare_lab.datasets import fundus_phantom
from fairflare_lab.datasets.fundus_phantom import FundusPhantom

TINY = dict(images=320, size=32, site_test_images=0)
PLAIN = fundus_phantom.Camera("")


@pytest.fixture(scope="module")
def task():
    return FundusPhantom(**TINY)


@pytest.fixture(scope="module")
def data(task):
    return {site: task.site_data(site) for site in task.sites()}


@pytest.fixture(scope="module")
def eyes():
    return [fundus_phantom.eye(64, np.random.default_rng(i)) for i in range(60)]


def test_six_cameras(task):
    assert list(task.sites().values()) == [camera.words for camera in fundus_phantom.CAMERAS]
    assert len(set(task.sites().values())) == 6 and list(FundusPhantom(n_sites=2).sites()) == ["site-1", "site-2"]


def test_sites_are_as_unequal_as_the_papers():
    task = load("fundus-phantom", "paper")
    sizes = [len(task.rows(site)["train"]) for site in task.sites()]
    assert sizes == pytest.approx([50, 98, 47, 230, 80, 400], abs=1)


def test_images_and_masks(task, data):
    for site, held in data.items():
        for name, split in held.splits.items():
            n = len(task.rows(site)[name])
            assert split.inputs.shape == (n, 3, 32, 32) and split.inputs.dtype == torch.uint8
            assert split.targets.shape == (n, 2, 32, 32) and split.targets.dtype == torch.uint8
            assert set(split.targets.unique().tolist()) == {0, 1}
            assert (split.targets[:, 1] <= split.targets[:, 0]).all()  # the cup lies in the disc


def test_discs_and_cups_are_of_plausible_size(eyes):
    masks = np.stack([masks for _, masks in eyes])
    heights = masks.any(3).sum(2)
    ratios = heights[:, 1] / heights[:, 0]
    areas = masks[:, 0].mean((1, 2))
    assert areas.min() > 0.02 and areas.max() < 0.08
    assert 0.25 < ratios.min() < 0.4 and 0.7 < ratios.max() <= 1 and 0.45 < np.median(ratios) < 0.6
    edges = [masks[:, :, 0], masks[:, :, -1], masks[..., 0], masks[..., -1]]
    assert not any(edge.any() for edge in edges)


def test_the_disc_is_brighter_than_the_retina_and_the_cup_brighter_still(eyes):
    for image, (disc, cup) in eyes:
        ring = (disc == 1) & (cup == 0)
        green = [image[1][where].mean() for where in (disc == 0, ring, cup == 1)]
        assert green[0] < green[1] and green[0] < green[2]
    differences = [image[2][cup == 1].mean() - image[2][(disc == 1) & (cup == 0)].mean() for image, (disc, cup) in eyes]
    assert np.median(differences) > 0.05


def test_masks_do_not_depend_on_resolution():
    small, large = (fundus_phantom.eye(size, np.random.default_rng(4))[1].mean((1, 2)) for size in (64, 128))
    assert small == pytest.approx(large, rel=0.1)


def test_cameras_differ_on_the_same_eye(eyes):
    image, masks = eyes[0]
    shown = [fundus_phantom.photographed(image, camera, seed=1).astype(float) for camera in fundus_phantom.CAMERAS]
    warm, green, hazy, dark, held, plain = shown
    middle = np.hypot(*(np.indices((64, 64)) - 31.5)) < 28
    assert all(abs(other - plain)[:, middle].mean() > 8 for other in shown[:-1])
    share = [photo[:, middle].mean(1) / photo[:, middle].sum(0).mean() for photo in shown]
    assert share[0][0] > share[5][0] + 0.05 and share[1][1] > share[5][1] + 0.03 and share[4][2] > share[5][2] + 0.03
    contrast = [photo[1][masks[0] == 1].mean() / photo[1][middle & (masks[0] == 0)].mean() for photo in (hazy, plain)]
    assert 1 < contrast[0] < contrast[1] - 0.2
    assert dark[:, middle].mean() < 0.6 * plain[:, middle].mean()
    assert held[:, :5, :5].mean() > 2 * plain[:, :5, :5].mean()  # noise outside of the field of view
    sides = [np.indices((64, 64))[0] < 32, np.indices((64, 64))[1] < 32]
    uneven = [max(abs(photo[:, s & middle].mean() - photo[:, ~s & middle].mean()) for s in sides) for photo in shown]
    assert uneven[1] > 2 * uneven[5]  # lit from one side


def test_shift_scales_the_distance_between_cameras(eyes):
    for camera in fundus_phantom.CAMERAS:
        assert dataclasses.replace(camera.at(0), words="") == PLAIN and camera.at(1) == camera
    assert dataclasses.replace(fundus_phantom.CAMERAS[-1], words="") == PLAIN
    for camera in fundus_phantom.CAMERAS[:-1]:
        shown = [
            fundus_phantom.photographed(eyes[0][0], camera.at(shift), seed=1).astype(float) for shift in (0, 0.5, 1)
        ]
        assert 1 < abs(shown[1] - shown[0]).mean() < abs(shown[2] - shown[0]).mean()


def test_without_shift_sites_look_alike_and_with_it_they_do_not(task, data):
    def colors(site_data):
        return site_data.splits["train"].inputs.double().mean((0, 2, 3))

    alike, sites = dataclasses.replace(task, shift=0.0), ("site-1", "site-2", "site-3", "site-5")
    same = torch.stack([colors(alike.site_data(site)) for site in sites])
    other = torch.stack([colors(data[site]) for site in sites])
    assert (same - same.mean(0)).abs().max() < 20 < (other - other.mean(0)).abs().max()
    assert same.std(0).mean() < 0.3 * other.std(0).mean()
    assert torch.equal(alike.site_data("site-3").splits["val"].targets, data["site-3"].splits["val"].targets)


def test_batches_are_about_standardised(data):
    batch = next(data["site-6"].training(32, 0))
    assert batch.inputs.shape == (32, 3, 32, 32) and batch.targets.shape == (32, 2, 32, 32)
    assert batch.inputs.mean().abs() < 0.3 and 0.7 < batch.inputs.std() < 1.3


def test_masks_move_with_their_images(task):
    data = dataclasses.replace(task, augment=True).site_data("site-6")
    disc, retina = [], []
    for inputs, targets, _ in data.training(8, 0):
        assert set(targets.unique().tolist()) == {0, 1} and (targets[:, 1] <= targets[:, 0]).all()
        disc.append(inputs[:, 1][targets[:, 0] == 1])
        retina.append(inputs[:, 1][targets[:, 0] == 0])
    assert torch.cat(disc).mean() > torch.cat(retina).mean() + 1


def test_disc_and_cup_are_scored_apart(task, data):
    targets = data["site-1"].splits["val"].targets
    only_disc = targets.float() * 200 - 100
    only_disc[:, 1] = -100
    values = task.evaluate(*task.condense(only_disc, targets))
    assert (values["dice"], values["dice_disc"], values["dice_cup"]) == (0.5, 1, 0)


def test_the_papers_settings():
    config = make_config("fedce", "fundus-phantom:paper")
    assert (config.options["size"], config.options["model"], config.options["norm"]) == (256, "unet", "batch")
    assert config.training == Training(
        rounds=200, epochs=1, batch_size=8, lr=1e-3, weight_decay=0.0, adam_beta2=0.99, keep_optimizer=True
    )
    assert config.group_by == "none" and make_config("fedism-plus", "fundus-phantom").training.logit_tau == 0


BAD = [
    ({"n_sites": 1}, "n_sites: expected 2..6, got 1"),
    ({"n_sites": 7}, "n_sites: expected 2..6, got 7"),
    ({"images": 300}, "images: expected at least 309 for 6 sites, got 300"),
    ({"size": 60}, "size: expected a multiple of 16 in 32..512, got 60"),
    ({"shift": 1.5}, r"shift: expected a number in \[0, 1\], got 1.5"),
    ({"model": "vgg"}, "model: expected one of small-unet, unet, got 'vgg'"),
    ({"norm": "layer"}, "norm: expected one of instance, group, batch, got 'layer'"),
    ({"free_rider": 3, "n_sites": 2}, "free_rider: expected 0..2, got 3"),
    ({"data_seed": -1}, "data_seed: expected 0.*got -1"),
    ({"cameras": 3}, "unknown option of task 'fundus-phantom': 'cameras'"),
]


@each("options, message", BAD)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message) as caught:
        load("fundus-phantom", "small", **options)
    assert "\n" not in str(caught.value)
