# SPDX-License-Identifier: Apache-2.0
"""Poor images at some sites: noise and motion blur as the papers of FedISM and FedISM+ prepare them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from torch import nn

from fairflare.datasets.partition import redrawn
from fairflare.networks import images as networks
from fairflare.tasks.base import Task, expect, expect_choices

MOST_SITE_TESTS = 100_000
"""Test images of one site."""


def check_site_tests(wanted: int) -> None:
    """Raise UserError unless ``wanted`` is a number of test images."""
    expect("site_test_images", 0 <= wanted <= MOST_SITE_TESTS, f"0..{MOST_SITE_TESTS}", wanted)


def alike(spare: np.ndarray, classes: np.ndarray, own: np.ndarray) -> np.ndarray:
    """As many of ``spare`` as can be taken with classes as frequent as among a site's own images, in their order."""
    shares = np.bincount(own, minlength=classes.max(initial=0) + 1) / len(own)
    there = np.bincount(classes, minlength=len(shares))
    most = min((there[c] / shares[c] for c in np.flatnonzero(shares)), default=0)
    place = np.empty(len(spare), dtype=np.int64)  # of each image among those of its class
    for c in np.unique(classes):
        place[classes == c] = np.arange((classes == c).sum())
    return spare[place < np.floor(most * shares)[classes]]


# The papers' 0.1 is for a pretrained ResNet-18 of 11 M weights. Around this CNN's 0.1 M untrained ones it hides the
# gradient: training never leaves the class prior.
RADIUS: dict[str, Any] = {"settings": {"rho_max": 0.02}, "by_method": {"fedism": {"rho_max": 0.01}}}


@dataclass(frozen=True)
class PoorSites(Task):
    """Quality shift: the last ``corrupted`` of ``n_sites`` sites hold poor images.

    Args:
        n_sites: 2..100; the papers have 20.
        corrupted: sites with poor images, 0 <= corrupted < n_sites.
        corruption: "noise" (Gaussian) or "motion" (blur).
        severity: of the sites' corruption, 1..5.
        alpha: concentration > 0 of the Dirichlet label skew.
        size: pixels along an edge, 32..512; the papers' images have 224.
        model: "small-cnn", "small-cnn-bn" (BatchNorm) or "resnet18".
        augment: random rotation, shift and flip of training images.
        data_seed: 0..2**32-1; the papers' partitions use 2024.
    """

    headline = "balanced_accuracy"
    n_sites: int = 8
    corrupted: int = 2
    corruption: Literal["noise", "motion"] = "noise"
    severity: int = 3
    alpha: float = 1.0
    size: int = 48
    model: Literal["small-cnn", "small-cnn-bn", "resnet18"] = "small-cnn"
    augment: bool = False
    data_seed: int = 2024

    def __post_init__(self) -> None:
        expect_choices(self)
        expect("n_sites", 2 <= self.n_sites <= 100, "2..100", self.n_sites)
        most = self.n_sites - 1
        expect("corrupted", 0 <= self.corrupted <= most, f"0..{most} (below n_sites)", self.corrupted)
        expect("severity", self.severity in range(1, 6), "1..5", self.severity)
        expect("alpha", 0 < self.alpha < math.inf, "a number above 0", self.alpha)
        expect("size", 32 <= self.size <= 512, "32..512", self.size)
        expect("data_seed", 0 <= self.data_seed < 2**32, "0..2**32-1", self.data_seed)

    def sites(self) -> dict[str, str]:
        poor = f"{self.corruption}, severity {self.severity}"
        kinds = ["clean"] * (self.n_sites - self.corrupted) + [poor] * self.corrupted
        return {f"site-{k}": kind for k, kind in enumerate(kinds, start=1)}

    def dealt(self, labels: np.ndarray, seed: int) -> np.ndarray:
        """int64 (N,): the site's index of every example with such ``labels``, by the papers' rule."""
        return redrawn(labels, self.n_sites, self.alpha, seed, corrupted=self.corrupted)

    def built(self, channels: int) -> nn.Module:
        return networks.build(self.model, channels, len(self.classes))

    def table_sets(self) -> dict[str, str]:
        """The clean set and the one of the poor sites' own severity, as in FedISM+'s Tables II and III."""
        return {"clean": "clean", "corrupted": f"{self.corruption} {self.severity}"}


NOISE_SIGMA = {1: 0.08, 2: 0.12, 3: 0.18, 4: 0.26, 5: 0.38}
"""Severity -> standard deviation on images in [0, 1]."""
MOTION_REACH = {1: (10, 3), 2: (15, 5), 3: (15, 8), 4: (15, 12), 5: (20, 15)}
"""Severity -> (radius, sigma) in pixels of a 224-pixel image."""
MOTION_ANGLES = (-45.0, 45.0)
"""Range of degrees from which the papers draw the direction of motion."""


def gaussian_noise(image: np.ndarray, severity: int, rng: np.random.RandomState) -> np.ndarray:
    """clip(x/255 + N(0, sigma), 0, 1) * 255, truncated to uint8; one draw per value of ``image``.

    Args:
        image: uint8, any shape; a grey image gets one plane of noise.
        rng: a legacy NumPy generator, so that the papers' seeded images come out bit for bit.
    """
    noise = rng.normal(size=image.shape, scale=NOISE_SIGMA[severity])
    return (np.clip(image / 255.0 + noise, 0, 1) * 255).astype(np.uint8)


def motion_blur(image: np.ndarray, severity: int, angle: float, scale: float = 1.0) -> np.ndarray:
    """Blur along one direction as ImageMagick 6.9 does, which the papers' authors used: within one grey level of it.

    Args:
        image: uint8 (H, W) or (H, W, C), as the result.
        angle: degrees, 0 is horizontal.
        scale: image size / 224; the radii are made for 224 pixels and would wipe out a small image.
    """
    radius, sigma = MOTION_REACH[severity]
    blurred = streak(image, max(1, round(radius * scale)), sigma * scale, angle)
    return np.floor(blurred + 1e-6).astype(np.uint8)


def streak(image: np.ndarray, radius: int, sigma: float, angle: float, stop_at_border: bool = False) -> np.ndarray:
    """sum_i k_i x[y + i sin(angle), x + i cos(angle)], i = 0..2 radius, edges repeated: a one-sided motion trail.

    Args:
        image: (H, W) or (H, W, C), as the result, which is float64.
        radius: pixels >= 1; the kernel has w = 2 radius + 1 taps.
        sigma: k_i ~ exp(-i^2 / (2 sigma^2)), normalised over the w taps.
        stop_at_border: drop the taps from the first whole-image displacement on, as the Python package
            ``imagecorruptions`` does; it only matters where the trail is longer than the image. ImageMagick keeps them.
    """
    height, width = image.shape[:2]
    rows, columns = np.arange(height), np.arange(width)
    steps = np.arange(2 * radius + 1)
    kernel = np.exp(-(steps**2) / (2.0 * sigma**2))
    kernel /= kernel.sum()
    blurred = np.zeros(image.shape, dtype=np.float64)
    for i, k in zip(steps.tolist(), kernel):
        dx = math.ceil(i * math.cos(math.radians(angle)) - 0.5)
        dy = math.ceil(i * math.sin(math.radians(angle)) - 0.5)
        if stop_at_border and (abs(dx) >= width or abs(dy) >= height):
            break
        shifted = image[np.clip(rows + dy, 0, height - 1)][:, np.clip(columns + dx, 0, width - 1)]
        blurred += k * shifted
    return blurred
