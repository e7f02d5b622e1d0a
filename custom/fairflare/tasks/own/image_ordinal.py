# SPDX-License-Identifier: Apache-2.0
"""Classes in an order on a user's own images."""

from __future__ import annotations

from dataclasses import dataclass

from fairflare.core.validation import Names
from fairflare.tasks.kinds.grades import GRADES
from fairflare.tasks.own.classification import Classification


@dataclass(frozen=True)
class ImageOrdinal(Classification):
    """2D images, as ``Classification`` describes them, whose classes have an order.

    Args:
        labels: the classes' names from the lowest to the highest, at least three; or their number.
    """

    name = "image-ordinal"
    title = "Classes in an order on your own images"
    kind = GRADES
    headline = GRADES.headline
    fewest = 3

    labels: Names = "3"
