# SPDX-License-Identifier: Apache-2.0
"""What noise and motion do to images."""

import numpy as np
import pytest

from fairflare_lab.datasets.poor_images import MOTION_REACH, NOISE_SIGMA, gaussian_noise, motion_blur, streak

IMAGE = np.random.default_rng(0).integers(0, 256, size=(40, 40), dtype=np.uint8)
GREY = np.full((200, 200), 128, dtype=np.uint8)


@pytest.mark.parametrize("severity", [1, 2, 3])
def test_noise_has_its_spread(severity):
    noisy = gaussian_noise(GREY, severity, np.random.RandomState(1)) / 255.0
    assert noisy.dtype == np.float64 and noisy.std() == pytest.approx(NOISE_SIGMA[severity], rel=0.03)


def test_noise_is_a_function_of_its_generator():
    one, two, other = (gaussian_noise(IMAGE, 3, np.random.RandomState(seed)) for seed in (4, 4, 5))
    assert (one == two).all() and (one != other).any() and one.dtype == np.uint8


def test_blur_leaves_a_flat_image_alone():
    assert (motion_blur(GREY[:30, :30], 3, 27.0) == 128).all()


def test_blur_follows_the_angle():
    stripes = np.tile(np.array([0, 255] * 20, dtype=np.uint8), (40, 1))
    along, across = motion_blur(stripes.T, 1, 0.0), motion_blur(stripes, 1, 0.0)
    assert (along == stripes.T).all()
    assert across[:, :20].std() < 20 < stripes.std() / 6


def test_scale_shrinks_the_reach():
    full, small = (motion_blur(IMAGE, 5, 10.0, scale) for scale in (1.0, 48 / 224))
    assert full.std() < small.std() < IMAGE.std()


def test_grey_and_colour_agree():
    colour = np.stack([IMAGE] * 3, axis=2)
    assert (motion_blur(colour, 2, -30.0)[..., 1] == motion_blur(IMAGE, 2, -30.0)).all()


def test_trails_differ_only_where_they_leave_the_image():
    reach = MOTION_REACH[5]
    wide = np.tile(IMAGE, (2, 2))
    np.testing.assert_array_equal(streak(wide, *reach, 30), streak(wide, *reach, 30, stop_at_border=True))
    assert not np.allclose(streak(IMAGE[:12, :12], *reach, 30), streak(IMAGE[:12, :12], *reach, 30, True))
