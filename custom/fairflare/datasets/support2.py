# SPDX-License-Identifier: Apache-2.0
"""SUPPORT2: will a seriously ill patient die? A real cohort of 9,105 adults in five US hospitals, 1989 to 1994.

Origin, licence and columns of the file are in data/README.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Literal

import numpy as np

from fairflare.core.types import Training
from fairflare.data.inputs import TableInputs
from fairflare.data.readers.table_features import Feature
from fairflare.data.site_config import SiteConfig
from fairflare.datasets.patients import Table, TableTask, packed
from fairflare.tasks.base import Preset
from fairflare.tasks.kinds.classes import TWO_CLASSES

NUMBERS = (
    "age", "num.co", "edu", "scoma", "meanbp", "wblc", "hrt", "resp", "temp", "pafi",
    "alb", "bili", "crea", "sod", "ph", "glucose", "bun", "urine", "adlp", "adls",
)  # fmt: skip
"""Columns used as numbers; a missing value becomes the median of the site's training patients."""
CATEGORIES: dict[str, tuple[str, ...]] = {
    "sex": ("female", "male"),
    "race": ("asian", "black", "hispanic", "other", "white"),
    "income": ("under $11k", "$11-$25k", "$25-$50k", ">$50k"),
    "dzgroup": (
        "ARF/MOSF w/Sepsis", "CHF", "COPD", "Cirrhosis", "Colon Cancer", "Coma", "Lung Cancer", "MOSF w/Malig",
    ),
    "ca": ("no", "yes", "metastatic"),
    "diabetes": ("0", "1"),
    "dementia": ("0", "1"),
}  # fmt: skip
"""The codebook's values of the columns used one-hot; a missing or unknown value is a row of zeros."""
N_FEATURES = len(NUMBERS) + sum(map(len, CATEGORIES.values()))
DISEASE_CLASSES = ("ARF/MOSF", "COPD/CHF/Cirrhosis", "Cancer", "Coma")
LABELS = {"hospital_death": "hospdead", "death": "death"}


cells_of = partial(packed, "support2.csv.gz")
"""9,105 cells of each column."""


@cache
def features() -> tuple[np.ndarray, np.ndarray]:
    """Numbers float64 (9105, 20), nan where missing; the one-hot columns float32 (9105, 26) by ``CATEGORIES``."""
    return Support2().table_inputs().features("support2.csv.gz", cells_of())


@cache
def outcomes(label: str) -> np.ndarray:
    """int64 (9105,): 1 where the patient died, for a key of ``LABELS``."""
    return np.array(cells_of()[LABELS[label]], dtype=np.int64)


TRAINING = Training(rounds=20, epochs=1, batch_size=64, optimizer="adam", lr=3e-3, weight_decay=5e-4)


@dataclass(frozen=True)
class Support2(TableTask):
    """Binary prognosis from what is known on day 3 (Knaus et al., Annals of Internal Medicine 122, 1995).

    Each site fills gaps and scales numbers with statistics of its own training patients only.

    Args:
        label: "hospital_death" (26 %) or "death" (at any time of the follow-up, 68 %).
        sites_by: "dzclass": one site per disease class, so four; "dirichlet": label skew over ``n_sites``;
            "dzclass+dirichlet": label skew over as many sites in each disease class.
        n_sites: 4 for "dzclass", else 2..50 and for "dzclass+dirichlet" a multiple of 4.
    """

    name = "support2"
    title = "SUPPORT2: death of seriously ill adults"
    real = "9,105 patients, 27 features and their outcomes (UCI 880, CC BY 4.0)"
    simulated = "the hospitals: a site is a disease class or a share of a label-skewed split"
    classes = ("survived", "died")
    primary = "AUC of the worst site"
    headline = "auc"
    kind = TWO_CLASSES
    attributes = {"race": ("asian", "black", "hispanic", "other", "white"), "sex": ("female", "male")}
    presets = {
        "default": Preset("four natural sites, one per disease class; seconds on a laptop", {}, TRAINING),
        "dirichlet": Preset("eight sites with skewed death rates", {"sites_by": "dirichlet", "n_sites": 8}, TRAINING),
    }
    natural, natural_words, natural_groups = "dzclass", "disease classes", DISEASE_CLASSES
    smallest_site, smallest_class = 40, 15
    stratified = False

    label: Literal["hospital_death", "death"] = "hospital_death"
    sites_by: Literal["dzclass", "dirichlet", "dzclass+dirichlet"] = "dzclass"
    n_sites: int = 4
    alpha: float = 5.0

    def n_features(self) -> int:
        return N_FEATURES

    def table_inputs(self) -> TableInputs:
        return TableInputs(
            numbers=tuple(Feature(name) for name in NUMBERS),
            plain=tuple(Feature(name, (value,)) for name, values in CATEGORIES.items() for value in values),
            known=CATEGORIES,
            attributes=lambda columns: {name: list(columns[name]) for name in Support2.attributes if name in columns},
        )

    def table(self, own: SiteConfig | None = None) -> Table:
        return table_of(self.label)


@cache
def table_of(label: str) -> Table:
    cells, (numbers, plain) = cells_of(), features()
    return Table(
        labels=outcomes(label),
        numbers=numbers,
        plain=plain,
        attributes={name: cells[name] for name in Support2.attributes},
        groups=np.array([DISEASE_CLASSES.index(cell) for cell in cells["dzclass"]]),
    )
