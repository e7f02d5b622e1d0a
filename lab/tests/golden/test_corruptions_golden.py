# SPDX-License-Identifier: Apache-2.0
"""Noise to the bit and motion blur to 1e-4, against what the papers' preparation code made of one image."""

import numpy as np
import pytest

from fairflare_lab.datasets.poor_images import MOTION_REACH, gaussian_noise, streak
from golden import folder

GOLDEN = np.load(folder() / "corruptions.npz")
SEVERITIES = range(1, 6)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_gaussian_noise(severity):
    noisy = gaussian_noise(GOLDEN["img"], severity, np.random.RandomState(0))
    np.testing.assert_array_equal(noisy, GOLDEN[f"gauss_s{severity}_seed0"])


@pytest.mark.parametrize("severity", SEVERITIES)
def test_motion_blur(severity):
    blurred = streak(GOLDEN["img"], *MOTION_REACH[severity], angle=20, stop_at_border=True)
    np.testing.assert_allclose(blurred, GOLDEN[f"motion_s{severity}_angle20"], atol=1e-4)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_a_bright_dot_leaves_the_kernel_behind(severity):
    kernel = GOLDEN[f"motion_kernel_s{severity}"]
    row = np.zeros((1, 2 * len(kernel) + 1))
    row[0, len(kernel)] = 1
    trail = streak(row, *MOTION_REACH[severity], angle=0)[0]
    np.testing.assert_allclose(trail[1 : len(kernel) + 1][::-1], kernel, atol=1e-12)
