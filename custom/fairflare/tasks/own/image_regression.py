# SPDX-License-Identifier: Apache-2.0
"""Regression on a user's own images: an amount, or a count."""

from __future__ import annotations

from dataclasses import dataclass

from fairflare.tasks.kinds.amounts import OwnAmounts
from fairflare.tasks.own.classification import Classification


@dataclass(frozen=True)
class ImageRegression(OwnAmounts, Classification):  # type: ignore[override]  # its headline depends on an option
    """2D images with one number each, as the options of ``Classification`` and ``OwnAmounts`` say."""

    name = "image-regression"
    title = "Regression on your own images"
