# SPDX-License-Identifier: Apache-2.0
"""How a hospital's own examples lie on disk; the task that reads each form has its name. Nothing is imported here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DataForm:
    """A form of data.

    Attributes:
        name: of the task on such data, as ``--kind`` and ``dataset.json`` say it.
        example: what one example is.
        listed: what says which examples there are.
        masks: whether a label is a file with a mask.
        table: whether an example is the row of a table.
        classes: whether a label is one of a few classes.
        volumes: whether an image is a whole volume.
    """

    name: str
    example: str = "image"
    listed: str = "datalist"
    masks: bool = False
    table: bool = False
    classes: bool = True
    volumes: bool = False


IMAGES = DataForm("classification")
MASKED_IMAGES = DataForm("segmentation", masks=True, classes=False)
ROWS = DataForm("tabular", example="row", listed="table", table=True)
AMOUNTS = DataForm("regression", example="row", listed="table", table=True, classes=False)
IMAGE_AMOUNTS = DataForm("image-regression", classes=False)
FINDINGS = DataForm("multilabel", example="row", listed="table", table=True, classes=False)
IMAGE_FINDINGS = DataForm("image-multilabel", classes=False)
GRADES = DataForm("ordinal", example="row", listed="table", table=True)
IMAGE_GRADES = DataForm("image-ordinal")
TIMES = DataForm("survival", example="row", listed="table", table=True, classes=False)
VOLUMES = DataForm("volume-classification", example="volume", volumes=True)
MASKED_VOLUMES = DataForm("volume-segmentation", example="volume", masks=True, volumes=True, classes=False)
FORMS = {
    one.name: one
    for one in (
        IMAGES,
        MASKED_IMAGES,
        ROWS,
        AMOUNTS,
        FINDINGS,
        GRADES,
        IMAGE_AMOUNTS,
        IMAGE_FINDINGS,
        IMAGE_GRADES,
        TIMES,
        VOLUMES,
        MASKED_VOLUMES,
    )
}
