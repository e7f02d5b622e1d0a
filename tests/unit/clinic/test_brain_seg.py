# SPDX-License-Identifier: Apache-2.0
"""The segmentation task: patients, scanners, masks and scores, in every process the same."""

import dataclasses
import hashlib
import json
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from fairflare.clinic.dice import dice_loss
from fairflare.clinic.grouping import Grouping
from fairflare.clinic.simulated import mr
from fairflare.clinic.tasks import load
from fairflare.clinic.tasks.brain_seg import BrainSeg
from fairflare.config import make_config
from fairflare.contracts import Training
from fairflare.errors import UserError

needs_nilearn = pytest.mark.skipif(find_spec("nilearn") is None, reason="needs the demo extra (nilearn)")
TINY = dict(images=200, size=32)


def fingerprint(task, site):
    """SHA-256 over everything that one site holds."""
    splits = task.site_data(site).splits
    parts = [t.numpy().tobytes() for name in sorted(splits) for t in (splits[name].inputs, splits[name].targets)]
    return hashlib.sha256(b"".join(parts)).hexdigest()


@pytest.fixture(scope="module")
def task():
    return BrainSeg(**TINY)


@pytest.fixture(scope="module")
def data(task):
    return {site: task.site_data(site) for site in task.sites()}


def test_six_scanners(task):
    assert list(task.sites().values()) == [scanner.words for scanner in mr.SCANNERS]
    assert len(set(task.sites().values())) == 6 and list(BrainSeg(n_sites=2).sites()) == ["site-1", "site-2"]


@pytest.mark.parametrize("options", [*(p.options for p in BrainSeg.presets.values()), {"n_sites": 3, "images": 101}])
def test_every_patient_is_in_one_split_of_one_site(options):
    task = BrainSeg(**options)
    rows = [r for site in task.sites() for r in task.rows(site).values()]
    assert sorted(np.concatenate(rows)) == list(range(task.images)) and min(map(len, rows)) >= 3


def test_sites_differ_in_size(task):
    sizes = [sum(map(len, task.rows(site).values())) for site in task.sites()]
    assert sizes == [56, 40, 32, 28, 24, 20]


@needs_nilearn
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


@needs_nilearn
def test_the_same_in_another_process_and_with_more_threads(task):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from test_brain_seg import *;"
        "import random; random.seed(5); np.random.seed(5); torch.manual_seed(5); torch.set_num_threads(2);"
        "print(*(fingerprint(BrainSeg(**TINY), f'site-{k}') for k in (5, 2)))"
    )
    folder = __file__.rpartition("/")[0]
    run = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)
    assert run.stdout.split() == [fingerprint(task, "site-5"), fingerprint(task, "site-2")]


@needs_nilearn
def test_another_data_seed_gives_other_patients(task):
    other = dataclasses.replace(task, data_seed=7)
    assert fingerprint(task, "site-6") != fingerprint(other, "site-6")


@needs_nilearn
def test_no_image_is_there_twice(data):
    held = [image.numpy().tobytes() for site in data.values() for s in site.splits.values() for image in s.inputs]
    assert len(set(held)) == len(held) == 200


@needs_nilearn
def test_scanners_differ_on_the_same_patient(task):
    shown = {}
    for scanner in mr.SCANNERS:
        image, masks = mr.subject(64, scanner.proton, np.random.default_rng(3))
        shown[scanner] = mr.scanned(image, scanner, seed=1).astype(float)
        assert masks.tobytes() == mr.subject(64, 0.0, np.random.default_rng(3))[1].tobytes()
    plain, shaded, dark, noisy, coarse, flat = shown.values()
    inside = masks.any(0)
    assert all(abs(other - plain)[inside].mean() > 8 for other in (shaded, dark, noisy, coarse, flat))
    assert dark[inside].mean() < 0.9 * plain[inside].mean()
    assert noisy[:6, :6].mean() > 3 * plain[:6, :6].mean()  # Rician noise lifts the air
    assert abs(np.diff(coarse))[inside[:, 1:]].mean() < 0.7 * abs(np.diff(plain))[inside[:, 1:]].mean()
    contrast = [image[masks[1] == 1].mean() - image[masks[0] == 1].mean() for image in (plain, flat)]
    assert 0 < contrast[1] < 0.5 * contrast[0]


@needs_nilearn
def test_shift_scales_the_distance_between_scanners():
    plain = dataclasses.replace(mr.SCANNERS[0], words="")
    for scanner in mr.SCANNERS:
        assert dataclasses.replace(scanner.at(0), words="") == plain and scanner.at(1) == scanner
    image = mr.subject(64, 0.0, np.random.default_rng(3))[0]
    shown = [mr.scanned(image, mr.SCANNERS[2].at(shift), seed=1).astype(float) for shift in (0, 0.5, 1)]
    assert 1 < abs(shown[1] - shown[0]).mean() < abs(shown[2] - shown[0]).mean()


@needs_nilearn
def test_a_free_rider_repeats_one_image(task, data):
    rider = dataclasses.replace(task, free_rider=3)
    assert rider.sites()["site-3"].endswith("repeats one image") and rider.sites()["site-2"] == task.sites()["site-2"]
    held, honest = rider.site_data("site-3").splits, data["site-3"].splits
    for part in ("inputs", "targets"):
        train = getattr(held["train"], part)
        assert len(train) == len(honest["train"]) and (train == getattr(honest["train"], part)[0]).all()
        assert all(torch.equal(getattr(held[name], part), getattr(honest[name], part)) for name in ("val", "test"))
    assert fingerprint(rider, "site-2") == fingerprint(task, "site-2")


@needs_nilearn
def test_batches_have_no_groups(task, data):
    assert task.grouping("none") == Grouping() and not task.offer(Grouping()).class_labels
    batch = next(data["site-1"].grouped(task.grouping("none")).training(8, 0))
    assert batch.inputs.shape == (8, 1, 32, 32) and batch.inputs.dtype == torch.float32
    assert batch.targets.shape == (8, 3, 32, 32) and batch.groups.tolist() == [-1] * 8
    assert len(data["site-1"].group_counts) == len(data["site-1"].class_counts) == 0
    with pytest.raises(UserError, match="group_by: task brain-seg has no attribute 'label'; it has: none"):
        task.grouping("label")


@needs_nilearn
def test_masks_move_with_their_images(task):
    data = dataclasses.replace(task, augment=True).site_data("site-1")
    fluid, white = [], []
    for inputs, targets, _ in data.training(8, 0):
        assert set(targets.unique().tolist()) == {0, 1}
        fluid.append(inputs[:, 0][targets[:, 2] == 1])
        white.append(inputs[:, 0][targets[:, 1] == 1])
    assert torch.cat(fluid).mean() < torch.cat(white).mean() - 1


@needs_nilearn
@pytest.mark.parametrize("norm", ["batch", "instance", "group"])
def test_a_few_steps_lower_the_loss(task, data, norm):
    torch.manual_seed(0)
    network = dataclasses.replace(task, norm=norm).network()
    objective = task.objective(data["site-1"].class_counts, 0.0)
    assert objective is dice_loss
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    losses = []
    for epoch in range(4):
        for inputs, targets, _ in data["site-1"].training(8, epoch):
            outputs = network(inputs)
            assert outputs.shape == targets.shape
            losses.append(objective(outputs, targets))
            optimizer.zero_grad()
            losses[-1].backward()
            optimizer.step()
    assert losses[-1] < losses[0] - 0.1


@needs_nilearn
def test_right_and_empty_predictions(task, data):
    targets = data["site-1"].splits["val"].targets
    right = task.condense(targets.float() * 200 - 100, targets)
    values = task.evaluate(*right)
    assert set(values) == {*task.metrics, "loss"} and values["loss"] == pytest.approx(0, abs=1e-5)
    assert all(values[name] == 1 for name in task.metrics) and (task.hits(*right) == 1).all()
    nothing = task.condense(torch.full(targets.shape, -100.0), targets)
    empty = (targets.flatten(2).sum(2) == 0).double()
    assert task.evaluate(*nothing)["dice"] == pytest.approx(empty.mean().item())
    assert task.evaluate(*nothing)["loss"] == pytest.approx(1 - empty.mean().item(), abs=1e-4)
    torch.testing.assert_close(task.hits(*nothing), empty.mean(1))


def test_hits_are_shares_of_one_and_average_to_the_headline(task):
    generator = torch.Generator().manual_seed(0)
    targets = (torch.rand(9, 3, 32, 32, generator=generator) < 0.3).to(torch.uint8)
    condensed = task.condense(torch.randn(9, 3, 32, 32, generator=generator), targets)
    hits = task.hits(*condensed)
    assert hits.shape == (9,) and hits.dtype == torch.float64 and ((hits > 0) & (hits < 1)).all()
    assert hits.mean().item() == pytest.approx(task.evaluate(*condensed)["dice"])
    nothing = torch.empty(0), torch.empty(0)
    assert task.evaluate(*nothing) == {} and task.hits(*nothing).shape == (0,)


def test_the_papers_settings():
    config = make_config("fedism-plus", "brain-seg:paper")
    assert (config.options["size"], config.options["model"], config.options["norm"]) == (384, "unet", "batch")
    assert Training(**config.training) == Training(
        rounds=200, epochs=1, batch_size=8, lr=1e-3, weight_decay=1e-4, adam_beta2=0.99, keep_optimizer=True
    )
    assert config.group_by == "none" and make_config("fedism-plus", "brain-seg:small").training["logit_tau"] == 0
    assert json.loads(json.dumps(config.to_json())) == config.to_json()


BAD = [
    ({"n_sites": 1}, "n_sites: expected 2..6, got 1"),
    ({"n_sites": 7}, "n_sites: expected 2..6, got 7"),
    ({"images": 150}, "images: expected at least 160 for 6 sites, got 150"),
    ({"size": 60}, "size: expected a multiple of 16 in 32..512, got 60"),
    ({"shift": 1.5}, r"shift: expected a number in \[0, 1\], got 1.5"),
    ({"shift": float("nan")}, "shift: expected a number .*got nan"),
    ({"model": "vgg"}, "model: expected one of small-unet, unet, got 'vgg'"),
    ({"norm": "layer"}, "norm: expected one of instance, group, batch, got 'layer'"),
    ({"free_rider": 7}, "free_rider: expected 0..6, got 7"),
    ({"free_rider": 3, "n_sites": 2}, "free_rider: expected 0..2, got 3"),
    ({"data_seed": -1}, "data_seed: expected 0.*got -1"),
]


@pytest.mark.parametrize("options, message", BAD)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message) as caught:
        load("brain-seg", "small", **options)
    assert "\n" not in str(caught.value)


def test_logit_adjustment_is_refused():
    with pytest.raises(UserError, match="logit_tau: task brain-seg has no class labels"):
        make_config("fedavg", "brain-seg", values={"logit_tau": 1})


def test_unknown_site(task):
    with pytest.raises(UserError, match="site: expected one of site-1, .*site-6, got 'site-9'"):
        task.rows("site-9")
