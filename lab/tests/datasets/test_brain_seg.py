# SPDX-License-Identifier: Apache-2.0
"""The segmentation task: patients, scanners, masks and scores, in every process the same."""

import dataclasses

import numpy as np
import pytest
import torch

from cases import each
from fairflare.core.errors import UserError
from fairflare.core.types import Training
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.tasks import load
from fairflare_lab.datasets import brain_seg
from fairflare_lab.datasets.brain_seg import BrainSeg

TINY = dict(images=200, size=32, site_test_images=0)


@pytest.fixture(scope="module")
def task():
    return BrainSeg(**TINY)


@pytest.fixture(scope="module")
def data(task):
    return {site: task.site_data(site) for site in task.sites()}


def test_six_scanners(task):
    assert list(task.sites().values()) == [scanner.words for scanner in brain_seg.SCANNERS]
    assert len(set(task.sites().values())) == 6 and list(BrainSeg(n_sites=2).sites()) == ["site-1", "site-2"]


def test_sites_differ_in_size(task):
    sizes = [sum(map(len, task.rows(site).values())) for site in task.sites()]
    assert sizes == [56, 40, 32, 28, 24, 20]


def test_images_and_masks(task, data):
    for site, held in data.items():
        for name, split in held.splits.items():
            n = len(task.rows(site)[name])
            assert split.inputs.shape == (n, 1, 32, 32) and split.inputs.dtype == torch.uint8
            assert split.targets.shape == (n, 3, 32, 32) and split.targets.dtype == torch.uint8
            assert set(split.targets.unique().tolist()) == {0, 1}
            assert split.targets.sum(1).max() == 1  # a pixel is mostly one tissue
    shares = torch.cat([held.splits["train"].targets for held in data.values()]).float().mean((0, 2, 3))
    assert 0.15 < shares[0] < 0.25 and 0.12 < shares[1] < 0.22 and 0.01 < shares[2] < 0.04


def test_scanners_differ_on_the_same_patient(task):
    shown = {}
    for scanner in brain_seg.SCANNERS:
        image, masks = brain_seg.subject(64, scanner.proton, np.random.default_rng(3))
        shown[scanner] = brain_seg.scanned(image, scanner, seed=1).astype(float)
        assert masks.tobytes() == brain_seg.subject(64, 0.0, np.random.default_rng(3))[1].tobytes()
    plain, shaded, dark, noisy, coarse, flat = shown.values()
    inside = masks.any(0)
    assert all(abs(other - plain)[inside].mean() > 8 for other in (shaded, dark, noisy, coarse, flat))
    assert dark[inside].mean() < 0.9 * plain[inside].mean()
    assert noisy[:6, :6].mean() > 3 * plain[:6, :6].mean()  # Rician noise lifts the air
    assert abs(np.diff(coarse))[inside[:, 1:]].mean() < 0.7 * abs(np.diff(plain))[inside[:, 1:]].mean()
    contrast = [image[masks[1] == 1].mean() - image[masks[0] == 1].mean() for image in (plain, flat)]
    assert 0 < contrast[1] < 0.5 * contrast[0]


def test_shift_scales_the_distance_between_scanners():
    plain = dataclasses.replace(brain_seg.SCANNERS[0], words="")
    for scanner in brain_seg.SCANNERS:
        assert dataclasses.replace(scanner.at(0), words="") == plain and scanner.at(1) == scanner
    image = brain_seg.subject(64, 0.0, np.random.default_rng(3))[0]
    shown = [brain_seg.scanned(image, brain_seg.SCANNERS[2].at(shift), seed=1).astype(float) for shift in (0, 0.5, 1)]
    assert 1 < abs(shown[1] - shown[0]).mean() < abs(shown[2] - shown[0]).mean()


def test_masks_move_with_their_images(task):
    data = dataclasses.replace(task, augment=True).site_data("site-1")
    fluid, white = [], []
    for inputs, targets, _ in data.training(8, 0):
        assert set(targets.unique().tolist()) == {0, 1}
        fluid.append(inputs[:, 0][targets[:, 2] == 1])
        white.append(inputs[:, 0][targets[:, 1] == 1])
    assert torch.cat(fluid).mean() < torch.cat(white).mean() - 1


def test_the_papers_settings():
    config = make_config("fedism-plus", "brain-seg:paper")
    assert (config.options["size"], config.options["model"], config.options["norm"]) == (384, "unet", "batch")
    assert config.training == Training(
        rounds=200, epochs=1, batch_size=8, lr=1e-3, weight_decay=1e-4, adam_beta2=0.99, keep_optimizer=True
    )
    assert config.group_by == "none" and make_config("fedism-plus", "brain-seg:small").training.logit_tau == 0


BAD = [
    ({"n_sites": 1}, "n_sites: expected 2..6, got 1"),
    ({"n_sites": 7}, "n_sites: expected 2..6, got 7"),
    ({"images": 150}, "images: expected at least 160 for 6 sites, got 150"),
    ({"size": 60}, "size: expected a multiple of 16 in 32..512, got 60"),
    ({"shift": 1.5}, r"shift: expected a number in \[0, 1\], got 1.5"),
    ({"shift": float("nan")}, "shift: expected a number, got nan"),
    ({"model": "vgg"}, "model: expected one of small-unet, unet, got 'vgg'"),
    ({"norm": "layer"}, "norm: expected one of instance, group, batch, got 'layer'"),
    ({"free_rider": 7}, "free_rider: expected 0..6, got 7"),
    ({"free_rider": 3, "n_sites": 2}, "free_rider: expected 0..2, got 3"),
    ({"data_seed": -1}, "data_seed: expected 0.*got -1"),
]


@each("options, message", BAD)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message) as caught:
        load("brain-seg", "small", **options)
    assert "\n" not in str(caught.value)
