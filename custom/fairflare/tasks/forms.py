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


FORMS = {
    one.name: one
    for one in (
        DataForm("classification"),
        DataForm("segmentation", masks=True, classes=False),
        DataForm("tabular", example="row", listed="table", table=True),
        DataForm("regression", example="row", listed="table", table=True, classes=False),
        DataForm("multilabel", example="row", listed="table", table=True, classes=False),
        DataForm("ordinal", example="row", listed="table", table=True),
        DataForm("image-regression", classes=False),
        DataForm("image-multilabel", classes=False),
        DataForm("image-ordinal"),
        DataForm("survival", example="row", listed="table", table=True, classes=False),
        DataForm("volume-classification", example="volume", volumes=True),
        DataForm("volume-segmentation", example="volume", masks=True, volumes=True, classes=False),
    )
}
IMAGES, MASKED_IMAGES, IMAGE_GRADES = (FORMS[name] for name in ("classification", "segmentation", "image-ordinal"))
VOLUMES, MASKED_VOLUMES = FORMS["volume-classification"], FORMS["volume-segmentation"]
IMAGE_AMOUNTS = FORMS["image-regression"]
