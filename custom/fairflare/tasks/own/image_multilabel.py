# SPDX-License-Identifier: Apache-2.0
"""Several labels at once on a user's own images."""

from __future__ import annotations

from dataclasses import dataclass

from fairflare.core.validation import Names
from fairflare.tasks.base import expect
from fairflare.tasks.kinds.labels import Labels, kind_of
from fairflare.tasks.own.classification import Classification


@dataclass(frozen=True)
class ImageMultiLabel(Classification):
    """2D images with any number of labels each, as the options of ``Classification`` and those below say.

    An entry's "label" is "edema|effusion", a list of labels, or label -> 1, 0 or null (nobody says).

    Args:
        labels: their names.
        nothing: see ``tasks.own.multilabel``.
        thresholds: likewise.
    """

    name = "image-multilabel"
    title = "Several labels at once on your own images"
    headline = Labels.headline
    fewest = 1

    labels: Names = "finding"
    nothing: str = ""
    thresholds: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        expect("labels", not self.numbered, "the labels' names", self.labels)
        dict(self.kind.thresholds)  # raises where options cannot be read

    @property
    def kind(self) -> Labels:  # type: ignore[override]  # depends on options
        return kind_of(self.classes, self.nothing, self.thresholds)
