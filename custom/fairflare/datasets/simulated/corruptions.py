# SPDX-License-Identifier: Apache-2.0
"""Poor image quality as in the quality-shift papers: sensor noise and camera motion at severities 1 to 5.

Level values follow Hendrycks and Dietterich (ICLR 2019, arXiv:1903.12261), which FedISM and FedISM+ build on.
"""

from __future__ import annotations

import math

import numpy as np

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
        severity: 1..5.
        rng: a legacy NumPy generator, so that the papers' seeded images come out bit for bit.
    """
    noise = rng.normal(size=image.shape, scale=NOISE_SIGMA[severity])
    return (np.clip(image / 255.0 + noise, 0, 1) * 255).astype(np.uint8)


def motion_blur(image: np.ndarray, severity: int, angle: float, scale: float = 1.0) -> np.ndarray:
    """Blur along one direction as ImageMagick 6.9 does, which the papers' authors used: within one grey level of it.

    Args:
        image: uint8 (H, W) or (H, W, C).
        severity: 1..5.
        angle: degrees, 0 is horizontal; the papers draw it from -45..45.
        scale: image size / 224; the radii are made for 224 pixels and would wipe out a small image.

    Returns:
        uint8 of the same shape.
    """
    radius, sigma = MOTION_REACH[severity]
    blurred = streak(image, max(1, round(radius * scale)), sigma * scale, angle)
    return np.floor(blurred + 1e-6).astype(np.uint8)


def streak(image: np.ndarray, radius: int, sigma: float, angle: float, stop_at_border: bool = False) -> np.ndarray:
    """sum_i k_i x[y + i sin(angle), x + i cos(angle)], i = 0..2 radius, edges repeated: a one-sided motion trail.

    Args:
        image: (H, W) or (H, W, C).
        radius: pixels >= 1; the kernel has w = 2 radius + 1 taps.
        sigma: k_i ~ exp(-i^2 / (2 sigma^2)), normalised over the w taps.
        angle: degrees.
        stop_at_border: drop the taps from the first whole-image displacement on, as the Python package
            ``imagecorruptions`` does; it only matters where the trail is longer than the image. ImageMagick keeps them.

    Returns:
        float64 of the same shape.
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
