# SPDX-License-Identifier: Apache-2.0
"""Classes in an order on a user's own images."""

from __future__ import annotations

from dataclasses import dataclass

from fairflare.tasks.kinds.grades import OwnGrades
from fairflare.tasks.own.classification import Classification


@dataclass(frozen=True)
class ImageOrdinal(OwnGrades, Classification):
    """2D images, as ``Classification`` describes them, whose classes have an order."""

    name = "image-ordinal"
    title = "Classes in an order on your own images"
