# SPDX-License-Identifier: Apache-2.0
"""The same outcomes on a user's own 2D images, whose options are those of ``Classification`` and of the outcome."""

from __future__ import annotations

from dataclasses import dataclass

from fairflare.tasks.kinds.amounts import OwnAmounts
from fairflare.tasks.kinds.grades import OwnGrades
from fairflare.tasks.kinds.labels import OwnLabels
from fairflare.tasks.own.classification import Classification


@dataclass(frozen=True)
class ImageRegression(OwnAmounts, Classification):  # type: ignore[override]  # its headline depends on an option
    """2D images with one number each, as the options of ``Classification`` and ``OwnAmounts`` say."""

    name = "image-regression"
    title = "Regression on your own images"


@dataclass(frozen=True)
class ImageMultiLabel(OwnLabels, Classification):
    """2D images with any number of labels each, as the options of ``Classification`` and ``OwnLabels`` say.

    An entry's "label" is "edema|effusion", a list of labels, or label -> 1, 0 or null (nobody says).
    """

    name = "image-multilabel"
    title = "Several labels at once on your own images"


@dataclass(frozen=True)
class ImageOrdinal(OwnGrades, Classification):
    """2D images, as ``Classification`` describes them, whose classes have an order."""

    name = "image-ordinal"
    title = "Classes in an order on your own images"
