# SPDX-License-Identifier: Apache-2.0
"""Bleeds are where anatomy puts them, and an image is a function of its seed."""

import numpy as np
import pytest

from fairflare_lab.datasets import ich_phantom, phantoms

N = 30


def bleeds(name, seeds=range(N)):
    """Per seed: the head and the pixels that are mostly blood."""
    for seed in seeds:
        rng = np.random.default_rng(seed)
        head = phantoms.patient(96, rng)
        ventricle = head.ventricle + rng.uniform(0, 2.5)
        blood, _ = ich_phantom.BLEEDS[ich_phantom.CLASSES.index(name)](head, ventricle, rng)
        yield head, ventricle, blood > 0.5


def area(mask):
    return mask.sum() * (phantoms.FIELD_OF_VIEW / mask.shape[0]) ** 2


@pytest.mark.parametrize("name", ["epidural", "subdural"])
def test_blood_under_the_skull_stays_there(name):
    for head, _, blood in bleeds(name):
        assert blood.any() and head.depth[blood].min() > -phantoms.GAP - 2
        assert head.depth[blood].max() < (24 if name == "epidural" else 12)
        assert len(set(np.sign(head.x[blood]))) == 1  # on one side of the midline


def test_epidurals_are_thicker_and_shorter_than_subdurals():
    def shape(name):
        spans, depths = [], []
        for head, _, blood in bleeds(name):
            spans.append(np.ptp(head.y[blood]))
            depths.append(head.depth[blood].max())
        return np.median(spans), np.median(depths)

    (short, thick), (long, thin) = shape("epidural"), shape("subdural")
    assert short < 0.7 * long and thick > 1.3 * thin


def test_parenchymal_blood_is_in_the_brain():
    for head, _, blood in bleeds("intraparenchymal"):
        assert area(blood) > 80 and head.depth[blood].min() > 0
        assert (head.white + head.grey)[blood].mean() > 0.6


def test_ventricular_blood_is_in_the_ventricles():
    for _, ventricle, blood in bleeds("intraventricular"):
        assert area(blood) > 40 and ventricle[blood].min() > -2.5


def test_subarachnoid_blood_is_in_sulci():
    for head, ventricle, blood in bleeds("subarachnoid"):
        assert blood.any() and ventricle[blood].max() < 0
        assert (head.white + head.grey)[blood].mean() < 0.95


@pytest.mark.parametrize("label", range(5))
def test_an_image_is_a_function_of_its_seed(label):
    one, two, other = (ich_phantom.render(label, 48, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert one.dtype == np.uint8 and one.shape == (48, 48)
    assert (one == two).all() and (one != other).any()


@pytest.mark.parametrize("size", [48, 224])
def test_a_head_in_air_with_a_skull(size):
    image = ich_phantom.render(1, size, np.random.default_rng(3))
    corner = image[: size // 12, : size // 12]
    brain = image[size // 2 - size // 10 : size // 2 + size // 10, size // 4 : size // 3]
    assert corner.mean() < 12 and image.max() > 240 and 70 < np.median(brain) < 140


def test_class_shares():
    assert sum(ich_phantom.SHARES) == pytest.approx(1)
    assert len(ich_phantom.SHARES) == len(ich_phantom.CLASSES) == len(ich_phantom.BLEEDS)
    assert list(ich_phantom.CLASSES) == sorted(ich_phantom.CLASSES)
