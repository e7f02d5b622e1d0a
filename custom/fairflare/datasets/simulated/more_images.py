# SPDX-License-Identifier: Apache-2.0
"""Test images that a simulated site has beside its share: they cost rendering, and never an image to train on."""

from __future__ import annotations

import numpy as np

from fairflare.data.checks import expect

MOST = 100_000
"""Test images of one site."""
FIRST = 10**9
"""Number of the first image that is in nobody's share."""


def check(wanted: int) -> None:
    """Raise UserError unless ``wanted`` is a number of test images."""
    expect("site_test_images", 0 <= wanted <= MOST, f"0..{MOST}", wanted)


def with_more(test: np.ndarray, k: int, wanted: int) -> np.ndarray:
    """The numbers of a site's own test images and, behind them, of as many others as make ``wanted``.

    Args:
        test: sorted numbers of the images that its share has for testing.
        k: the site's index; no two sites have a number in common.
        wanted: test images of the site at least.
    """
    return np.concatenate((test, FIRST + k * MOST + np.arange(max(0, wanted - len(test)))))


def labels_of(own: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Classes (n,) of further images, as frequent as among a site's ``own``; the first ones are the same for any n."""
    return own[rng.integers(0, len(own), size=n)]


def alike(spare: np.ndarray, classes: np.ndarray, own: np.ndarray) -> np.ndarray:
    """As many of ``spare`` as can be taken with classes as frequent as among a site's own images, in their order.

    Args:
        spare: (n,) numbers of images.
        classes: (n,) their classes.
        own: classes of the site's own images.
    """
    shares = np.bincount(own, minlength=classes.max(initial=0) + 1) / len(own)
    there = np.bincount(classes, minlength=len(shares))
    most = min((there[c] / shares[c] for c in np.flatnonzero(shares)), default=0)
    place = np.empty(len(spare), dtype=np.int64)  # of each image among those of its class
    for c in np.unique(classes):
        place[classes == c] = np.arange((classes == c).sum())
    return spare[place < np.floor(most * shares)[classes]]
