# SPDX-License-Identifier: Apache-2.0
"""Simulated sites have enough test images, without a change of what they train and validate on."""

import dataclasses

import numpy as np
import pytest
import torch

from cases import each
from fairflare.core.errors import UserError
from fairflare.engine.setup.tasks import load
from fairflare_lab.datasets import poor_images

SMALL = {
    "ich-phantom": {"images": 100, "n_sites": 3, "corrupted": 1, "size": 32, "alpha": 1.0, "test_images": 20},
    "brain-seg": {"images": 60, "n_sites": 2, "size": 32},
    "fundus-phantom": {"images": 60, "n_sites": 2, "size": 32},
    "digits": {"images_per_site": 60, "test_images": 20},
}


@pytest.mark.parametrize("name", SMALL)
def test_training_and_validation_are_the_same_bits(name):
    few, more = (load(name, **SMALL[name], site_test_images=n) for n in (0, 30))
    for site in list(few.sites())[-1:]:
        before, after = few.site_data(site).splits, more.site_data(site).splits
        for split in ("train", "val"):
            assert torch.equal(before[split].inputs, after[split].inputs)
            assert torch.equal(before[split].targets, after[split].targets)
        n = len(before["test"])
        assert n < 30 == len(after["test"])
        if name != "digits":  # whose numbers are sorted within what it has spare
            assert torch.equal(before["test"].inputs, after["test"].inputs[:n])
        held = [image.numpy().tobytes() for part in after.values() for image in part.inputs]
        assert len(set(held)) == len(held)


@pytest.mark.parametrize("name", SMALL)
def test_no_test_image_is_at_two_sites(name):
    task = load(name, **SMALL[name], site_test_images=40)
    of = [task.domain(site) if name == "digits" else "" for site in task.sites()]
    pool = {"MNIST": "handwritten", "photo background": "handwritten"}
    used = [(pool.get(d, d), i) for d, s in zip(of, task.sites()) for rows in task.rows(s).values() for i in rows]
    if name == "digits":
        used += [(pool.get(d, d), i) for d in dict.fromkeys(of) for i in task.test_rows(d)]
    assert len(set(used)) == len(used)


@each("case", ["ich-phantom:small", "ich-phantom:paper", "ich-phantom:medium", "ich-phantom:equal",
                                  "ich-phantom:skewed", "brain-seg:small", "brain-seg:paper", "brain-seg:medium",
                                  "fundus-phantom:small", "fundus-phantom:paper"])  # fmt: skip
def test_presets_have_five_hundred_at_each_site(case):
    name, _, preset = case.partition(":")
    task = load(name, preset)
    assert all(len(task.rows(site)["test"]) >= 500 for site in task.sites())
    assert getattr(task, "test_images", 2000) >= 2000


def test_digits_have_what_the_handwriting_allows():
    small, paper = ({site: len(task.rows(site)["test"]) for site in task.sites()}
                    for task in (load("digits", "small"), load("digits", "paper")))  # fmt: skip
    assert list(small.values()) == [500, 500, 369, 368, 500, 500, 500, 500]
    assert min(paper.values()) == 84 and len(paper) == 20
    assert 4 * load("digits").test_images == 2000


def test_classes_are_as_frequent_as_in_the_share():
    task = load("ich-phantom", images=400, n_sites=4, corrupted=1, alpha=0.3, site_test_images=4000)
    for k, site in enumerate(task.sites()):
        rows = task.rows(site)
        own = np.concatenate([part[part < task.images] for part in rows.values()])
        shares = np.bincount(task._labels(k, np.sort(own)), minlength=5) / len(own)
        tested = task._labels(k, rows["test"][rows["test"] >= task.images])
        assert abs(np.bincount(tested, minlength=5) / len(tested) - shares).max() < 0.03
        assert set(np.flatnonzero(np.bincount(tested, minlength=5))) <= set(np.flatnonzero(shares))


def test_skewed_digits_keep_their_skew():
    task = load("digits", alpha=0.3, site_test_images=300)
    from fairflare_lab.datasets import digits

    for site in list(task.sites())[2:6]:
        rows, labels = task.rows(site), digits.classes_of(task.domain(site))
        own = dataclasses.replace(task, site_test_images=0).rows(site)
        beside = np.setdiff1d(rows["test"], own["test"])
        shares = np.bincount(labels[np.concatenate(list(own.values()))], minlength=10) / 400
        if len(beside) > 50:
            assert abs(np.bincount(labels[beside], minlength=10) / len(beside) - shares).max() < 0.1


def test_alike_takes_no_class_that_a_site_lacks():
    spare, classes = np.arange(12), np.array([0, 1, 2] * 4)
    taken = poor_images.alike(spare, classes, np.array([0, 0, 1]))
    assert np.bincount(classes[taken], minlength=3).tolist() == [4, 2, 0]
    assert len(poor_images.alike(spare[:0], classes[:0], np.array([0]))) == 0


@each("name", SMALL)
@each("wanted", [-1, 100_001])
def test_bad_numbers(name, wanted):
    with pytest.raises(UserError, match="site_test_images: expected "):
        load(name, site_test_images=wanted)
