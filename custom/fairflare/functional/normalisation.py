# SPDX-License-Identifier: Apache-2.0
"""Mean and standard deviation of images per channel, and images normalised by such a pair.

Yan et al. (FedRDN), CVPR 2025, https://arxiv.org/abs/2306.09363: means over a site's images of each image's own mean
and standard deviation. Its public code divides by n - 1 (``sample``); FL-MedSegBench pools all pixels (``pixels``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

import torch

Statistic = Literal["images", "sample", "pixels"]
LEAST_SD = 1e-8
"""Standard deviations below this count as this: a channel may be constant."""


class Pair(NamedTuple):
    """Statistics of a site's images: float64 (C,) each, ``sd`` >= 1e-8."""

    mean: torch.Tensor
    sd: torch.Tensor


def pair_of(images: Iterable[torch.Tensor], statistic: Statistic = "images") -> Pair:
    """The pair of all images, in one pass over batches (N, C, ...) of them.

    Args:
        images: batches; at least one image.
        statistic: "images": means over the images of their own mean and standard deviation, divided by the number of
            pixels; "sample": by that number less one; "pixels": mean and standard deviation of all pixels together.

    Raises:
        ValueError: there is no image.
    """
    first, second, n = torch.zeros(()), torch.zeros(()), 0
    for batch in images:
        flat = batch.flatten(2).double()
        pixels, sample = statistic == "pixels", int(statistic == "sample")
        spread = flat.square().mean(2) if pixels else flat.std(2, correction=sample)
        first, second = first + flat.mean(2).sum(0).cpu(), second + spread.sum(0).cpu()
        n += len(batch)
    if not n:
        raise ValueError("expected at least one image")
    mean, sd = first / n, second / n
    if statistic == "pixels":
        sd = (sd - mean.square()).clamp_min(0).sqrt()
    return Pair(mean, sd.nan_to_num(0.0).clamp_min(LEAST_SD))


def normalised_by(images: torch.Tensor, pair: Pair) -> torch.Tensor:
    """(x - mean) / sd per channel of images (N, C, ...)."""
    mean, sd = (_per_channel(one, images) for one in pair)
    return (images - mean) / sd


def renormalised(images: torch.Tensor, own: Pair, means: torch.Tensor, sds: torch.Tensor) -> torch.Tensor:
    """Images that ``own`` has normalised, as if each had been normalised by another pair.

    ``means`` and ``sds`` (> 0) are (N, C), those of each image's other pair.
    """
    factor, shift = own.sd / sds, (own.mean - means) / sds
    return images * _per_channel(factor, images) + _per_channel(shift, images)


def _per_channel(values: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """(C,) or (N, C) as it multiplies images (N, C, ...)."""
    return values.to(images).reshape(*values.shape, *[1] * (images.dim() - 2))
