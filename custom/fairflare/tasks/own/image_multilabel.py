# SPDX-License-Identifier: Apache-2.0
"""Several labels at once on a user's own images."""

from __future__ import annotations

from dataclasses import dataclass

from fairflare.tasks.kinds.labels import OwnLabels
from fairflare.tasks.own.classification import Classification


@dataclass(frozen=True)
class ImageMultiLabel(OwnLabels, Classification):
    """2D images with any number of labels each, as the options of ``Classification`` and ``OwnLabels`` say.

    An entry's "label" is "edema|effusion", a list of labels, or label -> 1, 0 or null (nobody says).
    """

    name = "image-multilabel"
    title = "Several labels at once on your own images"
