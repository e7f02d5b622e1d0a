# SPDX-License-Identifier: Apache-2.0
"""Which kind of skin lesion? FedISM+'s photographs of the ISIC challenge of 2019, which the user brings.

    ISIC2019_20/
        train.csv                       id,class (of 20,262 images)
        test.csv                        id,class (of 5,069 images)
        train/clean/<id>.jpg            224x224
        train/motion3_16_4_dir1.0/      <id>.jpg of the corrupted sites; severity 3, 16 clean sites, 4 corrupted
        test/clean/<id>.jpg
        test/motion_1/<id>.jpg          ... to motion_5; optional
        ISIC_2019_Training_Metadata.csv                 optional: sex, age and lesion of each image
        dict_users_noniid_dir1.0_CorruptedNum4.npy      for partition=file

The tables come with github.com/wnn2000/FFL4MIA, whose code reads ``gaussian`` folders for these images too: that is
``corruption=noise``. Images and metadata come from the challenge's page. With the metadata, a lesion's images stay in
one split of a site; the split over sites and the shared test set are the authors' and do not look at lesions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from fairflare.core.errors import DataError
from fairflare.datasets.kinds.quality import QualityShift, read_rows

METADATA = "ISIC_2019_Training_Metadata.csv"
SEXES = ("female", "male")
AGES = ("under 60", "60 and over")


@dataclass(frozen=True)
class Isic2019(QualityShift):
    """Quality shift on dermoscopy with FedISM+'s tables and rule; see ``QualityShift`` for the options."""

    name = "isic2019"
    title = "ISIC 2019: kind of a skin lesion"
    real = "the photographs, their labels, sex and age (ISIC 2019), files that you bring"
    simulated = "the hospitals, a label-skewed split of the images, and the motion blur of the last ones"
    classes = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
    attributes = {"sex": SEXES, "age": AGES}
    folder = "ISIC2019_20"
    suffix = ".jpg"

    corruption: Literal["noise", "motion"] = "motion"

    def described(
        self, root: Path, name: Literal["train", "test"], ids: Sequence[str]
    ) -> tuple[Sequence[dict[str, str]], np.ndarray]:
        """Age group and sex of each image of ``ids``, and int64 (N,): images of one lesion have one number.

        Both are from ``METADATA``, where that file is there; an image that it lacks has no attributes and a lesion of
        its own. Raises DataError where it has none of the training images.
        """
        path = root / self.folder / METADATA
        if not path.exists():
            return super().described(root, name, ids)
        rows = read_rows(path, ("image", "age_approx", "sex"))
        known = {row["image"]: (_attributes(row), row.get("lesion_id", "")) for row in rows}
        if name == "train" and not any(image in known for image in ids):
            raise DataError("entry", f"{METADATA}: expected rows on the images of train.csv, such as {ids[0]}")
        found = [known.get(image, ({}, "")) for image in ids]
        first: dict[str, int] = {}
        lesions = [first.setdefault(lesion, row) if lesion else row for row, (_, lesion) in enumerate(found)]
        return [attributes for attributes, _ in found], np.array(lesions, dtype=np.int64)


def _attributes(row: dict[str, str]) -> dict[str, str]:
    sex, age, where = row["sex"], row["age_approx"], f"{METADATA}: {row['image']}"
    if sex not in (*SEXES, "unknown", ""):
        raise DataError("entry", f"{where}: sex: expected female, male or nothing, got {sex!r}")
    if not re.fullmatch(r"(\d+(\.\d+)?)?", age):
        raise DataError("number", f"{where}: age_approx: expected a number or nothing, got {age!r}")
    found = {"sex": sex} if sex in SEXES else {}
    return {**found, "age": AGES[float(age) >= 60]} if age else found
