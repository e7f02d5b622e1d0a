# SPDX-License-Identifier: Apache-2.0
"""Cardiotocography: is the fetus well? FedUFO's Fetal table (UCI 193), which the user brings.

In the data folder, one of:

    CTG.xls                     from UCI: sheet "Raw Data", 2,126 segments of 352 examinations
    cardiotocography_csv.csv    from datahub: V1, ..., V35, Class; only CLASS as the label, no examinations
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from fairflare.core.errors import DataError, UserError
from fairflare.core.types import Training
from fairflare.data.site_config import SiteConfig
from fairflare.datasets import on_disk
from fairflare.datasets.on_disk import OnDisk
from fairflare.datasets.patients import Table, TableTask, as_in_fedufo
from fairflare.tasks.base import Preset

if TYPE_CHECKING:
    import pandas as pd

EXCEL, SHEET, CSV = "CTG.xls", "Raw Data", "cardiotocography_csv.csv"
MEASURED = (
    "b", "e", "LBE", "LB", "AC", "FM", "UC", "ASTV", "MSTV", "ALTV", "MLTV", "DL", "DS", "DP", "DR", "Width", "Min",
    "Max", "Nmax", "Nzeros", "Mode", "Mean", "Median", "Variance", "Tendency",
)  # fmt: skip
"""Start and end of the segment, then what the expert and the program SisPorto read off it; V1 to V25 of the CSV."""
ONE_HOT = ("A", "B", "C", "D", "E", "AD", "DE", "LD", "FS", "SUSP")
"""1 where CLASS is the column's place from 1: the label itself; V26 to V35 of the CSV."""
CLASSES = {
    "NSP": ("normal", "suspect", "pathologic"),
    "CLASS": (
        "calm sleep", "REM sleep", "calm vigilance", "active vigilance", "shift pattern", "stress",
        "vagal stimulation", "largely decelerative", "flat-sinusoidal", "suspect pattern",
    ),
}  # fmt: skip
"""What the codes 1, 2, ... of either label stand for."""
SGD = Training(rounds=20, epochs=2, batch_size=32, optimizer="sgd", lr=0.05, momentum=0.0, weight_decay=0.0)
"""Plain SGD, since Adam undoes a weight on the loss."""


@dataclass(frozen=True)
class Ctg(TableTask, OnDisk):
    """The state of the fetus (NSP) or the pattern of its heart rate (CLASS), as three obstetricians agreed on it.

    ``CTG.xls`` is read where there is one, else the CSV. Splits are drawn within each class. An examination has up to
    34 segments, in three of five cases of several patterns: they are kept together, so that a network is tested on
    examinations that it has not seen. The table has no sensitive attribute.

    Args:
        label: "NSP": 3 classes (1,655, 295 and 176 segments); "CLASS": 10 classes, 53 to 579 segments.
        features: "clean": the 25 measured columns, scaled with the site's own training segments. "paper": as published,
            unscaled, 35 columns. Ten of these are CLASS in one-hot form, and leak the label: whatever is reached with
            them says nothing about cardiotocography.
        unit: "examination": all segments of one are in one split of one site; "segment": each for itself, as upstream,
            and the only way with the CSV, which does not name examinations.
        n_sites: 2..50; FedUFO has 2.
        alpha: concentration > 0 of the Dirichlet split over the label (an examination's most frequent one); FedUFO's
            is 10,000, close to even. Redrawn until every site has 40 segments and 5 of each class.
        test_fraction: share of each site's examinations in its test split, in (0, .5].
        limit: the most segments of a split, at least 2; none: all.
    """

    name = "ctg"
    title = "Cardiotocography: state of the fetus"
    real = "2,126 cardiotocogram segments, 25 measurements and the experts' labels (UCI 193), a file that you bring"
    simulated = "the hospitals: a site is a share of a label-skewed split"
    presets = {
        "small": Preset("normal, suspect or pathologic, two sites; seconds on a laptop; needs CTG.xls", {}, SGD),
        "paper": as_in_fedufo("CTG.xls", 1e-3, {"label": "CLASS"}),
    }
    smallest_site, smallest_class = 40, 5

    label: Literal["NSP", "CLASS"] = "NSP"
    features: Literal["clean", "paper"] = "clean"
    unit: Literal["examination", "segment"] = "examination"
    n_sites: int = 2
    alpha: float = 10_000.0
    limit: int | None = None

    @property
    def classes(self) -> tuple[str, ...]:  # type: ignore[override]  # depends on an option
        return CLASSES[self.label]

    def n_features(self) -> int:
        return len(MEASURED) + len(ONE_HOT) * (self.features == "paper")

    def table(self, own: SiteConfig | None = None) -> Table:
        root = self.root(own)
        if (root / CSV).is_file() and not (root / EXCEL).exists():
            if self.label != "CLASS":
                raise UserError(f"label: expected CLASS, the only one in {CSV}, got {self.label!r}")
            if self.unit != "segment":
                raise UserError(f"unit: expected segment, since {CSV} names no examinations, got {self.unit!r}")
            return _table((root / CSV).resolve(), self.label, self.features, self.unit)
        return _table(self.needed(root / EXCEL).resolve(), self.label, self.features, self.unit)


@lru_cache(maxsize=4)
def _table(path: Path, label: str, features: str, unit: str) -> Table:
    frame = _segments(path)
    known = ("CLASS",) if path.name == CSV else ("CLASS", "NSP")
    labels = {name: on_disk.codes(frame, path.name, name, range(1, len(CLASSES[name]) + 1)) for name in known}
    measured = on_disk.numbers(frame, path.name, MEASURED)
    flags = on_disk.numbers(frame, path.name, ONE_HOT)
    if not np.array_equal(flags, on_disk.one_hot(labels["CLASS"], len(ONE_HOT))):
        raise DataError("label", f"{path.name}: expected columns A to SUSP to be CLASS in one-hot form, got otherwise")
    paper = features == "paper"
    return Table(
        labels=labels[label],
        numbers=np.empty((len(frame), 0)) if paper else measured,
        plain=(np.hstack((measured, flags)) if paper else np.empty((len(frame), 0))).astype(np.float32),
        cases=np.unique(on_disk.texts(frame, "FileName"), return_inverse=True)[1] if unit == "examination" else None,
    )


def _segments(path: Path) -> pd.DataFrame:
    """The rows with a label, under the names of the Excel sheet."""
    if path.name == CSV:
        frame = on_disk.read(path)
        published = {f"V{k}": name for k, name in enumerate((*MEASURED, *ONE_HOT), start=1)} | {"Class": "CLASS"}
        on_disk.need(frame, path.name, list(published))
        return frame.rename(columns=published)
    frame = on_disk.read(path, SHEET)
    on_disk.need(frame, path.name, ["FileName", *MEASURED, *ONE_HOT, "CLASS", "NSP"])
    # A blank row follows the names, and unnamed maxima the last segment.
    return frame.dropna(how="all", subset=["FileName", "CLASS", "NSP"])
