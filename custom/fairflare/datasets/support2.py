# SPDX-License-Identifier: Apache-2.0
"""SUPPORT2: will a seriously ill patient die? A real cohort of 9,105 adults in five US hospitals, 1989 to 1994.

Origin, licence and columns of the file are in data/README.md.

``Support`` is the same cohort as FedUFO has it, a table that the user brings. In the data folder, one of:

    support.xlsx    1,000 patients; columns death, age, num.co, sex, income, dzgroup, dzclass, race, ...
    support2.csv    9,105 patients, read where there is no support.xlsx
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Literal

import numpy as np

from fairflare.core.types import Training
from fairflare.data.inputs import TableInputs
from fairflare.data.readers.table_features import Feature, parsed, stacked
from fairflare.data.site_config import SiteConfig
from fairflare.datasets import on_disk
from fairflare.datasets.on_disk import OnDisk
from fairflare.datasets.patients import Table, TableTask, as_in_fedufo, packed
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


MADE_NUMBERS = tuple(Feature(name) for name in NUMBERS)
MADE_FLAGS = tuple(Feature(name, (value,)) for name, values in CATEGORIES.items() for value in values)
"""What the columns make."""


@cache
def numbers_of() -> np.ndarray:
    """float64 (9105, 20), nan where missing."""
    return stacked(MADE_NUMBERS, parsed("support2.csv.gz", cells_of(), MADE_NUMBERS), len(cells_of()["age"]))


@cache
def flags_of() -> np.ndarray:
    """float32 (9105, 26): the one-hot columns in the order of ``CATEGORIES``."""
    found = stacked(MADE_FLAGS, parsed("support2.csv.gz", cells_of(), MADE_FLAGS), len(cells_of()["age"]))
    return found.astype(np.float32)


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
        alpha: concentration > 0 of the Dirichlet split.
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
            numbers=MADE_NUMBERS,
            plain=MADE_FLAGS,
            known=CATEGORIES,
            attributes=lambda columns: {name: list(columns[name]) for name in Support2.attributes if name in columns},
        )

    def table(self, own: SiteConfig | None = None) -> Table:
        return table_of(self.label)


@cache
def table_of(label: str) -> Table:
    cells = cells_of()
    return Table(
        labels=outcomes(label),
        numbers=numbers_of(),
        plain=flags_of(),
        attributes={name: cells[name] for name in Support2.attributes},
        groups=np.array([DISEASE_CLASSES.index(cell) for cell in cells["dzclass"]]),
    )


FILES = ("support.xlsx", "support2.csv")
CLEAN_NUMBERS = ("age", "num.co", "meanbp", "hrt", "resp", "temp", "sod")
"""Those of ``PAPER_NUMBERS`` that have no gap in the 1,000 rows."""
PAPER_NUMBERS = (
    "age", "num.co", "edu", "avtisst", "meanbp", "wblc", "hrt", "resp", "temp", "pafi",
    "alb", "bili", "crea", "sod", "ph", "glucose", "bun", "urine", "adlp", "adls",
)  # fmt: skip
"""Numbers that upstream considers; avtisst, how much treatment days 3 to 25 took, is known only afterwards."""
FEDUFO_CATEGORIES = {
    **{name: CATEGORIES[name] for name in ("income", "dzgroup")},
    "dzclass": DISEASE_CLASSES,
    "race": CATEGORIES["race"],
}
BLACK = ("not black", "black")
SGD = Training(rounds=20, epochs=2, batch_size=32, optimizer="sgd", lr=0.05, momentum=0.0, weight_decay=0.0)
"""Plain SGD, since Adam undoes a weight on the loss."""


@dataclass(frozen=True)
class Support(TableTask, OnDisk):
    """Death at any time of the follow-up (Knaus et al., Annals of Internal Medicine 122, 1995), on FedUFO's columns.

    Splits are drawn within each outcome. The 1,000 rows are a sample of the 9,105 of ``support2``: the two tasks are no
    evidence independent of each other.

    Args:
        features: "clean": seven numbers of day 3, scaled with the site's own training patients, who also fill a gap
            with their median, and income, dzgroup, dzclass and race in one-hot form, a missing value as zeros. "paper":
            upstream's rule, unscaled: of its 20 numbers those that the file has without a gap. The file then decides
            how many features there are, and the server needs it too. One of them may be avtisst, which is known only
            after the fact and leaks. Upstream's model has 30 inputs; with the 1,000 rows 28 are expected here, since
            two are always zero. Its optimizer and rate are optimizer=adam lr=0.5.
        sites_by: "dirichlet": label skew over ``n_sites``; "dzclass": one site per disease class, so four;
            "dzclass+dirichlet": label skew over as many sites in each disease class.
        n_sites: 4 for "dzclass", else 2..50 and for "dzclass+dirichlet" a multiple of 4; FedUFO has 2.
        alpha: concentration > 0 of the Dirichlet split; FedUFO's is 0.1. Redrawn until every site has 40 patients and
            10 with either outcome.
    """

    name = "support"
    title = "SUPPORT, FedUFO's columns: death of seriously ill adults"
    real = "1,000 or 9,105 patients, 11 columns and their outcomes (hbiostat.org), a file that you bring"
    simulated = "the hospitals: a site is a disease class or a share of a label-skewed split"
    classes = ("survived", "died")
    headline = "auc"
    kind = TWO_CLASSES
    attributes = {"race": CATEGORIES["race"], "black": BLACK, "sex": CATEGORIES["sex"]}
    presets = {
        "small": Preset("two sites with skewed death rates; seconds on a laptop; needs support.xlsx", {}, SGD),
        "dzclass": Preset(
            "four natural sites, the disease classes; needs support.xlsx", {"sites_by": "dzclass", "n_sites": 4}, SGD
        ),
        "paper": as_in_fedufo("support.xlsx", 1.0),
    }
    natural, natural_words, natural_groups = "dzclass", "disease classes", DISEASE_CLASSES
    smallest_site, smallest_class = 40, 10

    features: Literal["clean", "paper"] = "clean"
    sites_by: Literal["dirichlet", "dzclass", "dzclass+dirichlet"] = "dirichlet"
    n_sites: int = 2
    alpha: float = 0.1
    limit: int | None = None

    def n_features(self) -> int:
        if self.features == "paper":
            return self.table().plain.shape[1]
        return len(CLEAN_NUMBERS) + sum(map(len, FEDUFO_CATEGORIES.values()))

    def table(self, own: SiteConfig | None = None) -> Table:
        root = self.root(own)
        file = next((file for file in FILES if (root / file).exists()), FILES[0])
        return _table(self.needed(root / file).resolve(), self.features)


@lru_cache(maxsize=4)
def _table(path: Path, features: str) -> Table:
    frame, file = on_disk.read(path), path.name
    wanted = PAPER_NUMBERS if features == "paper" else CLEAN_NUMBERS
    on_disk.need(frame, file, ["death", "sex", *FEDUFO_CATEGORIES, *wanted])
    places = {
        name: on_disk.codes(frame, file, name, values, gaps=name != "dzclass")
        for name, values in FEDUFO_CATEGORIES.items()
    }
    numbers = on_disk.numbers(frame, file, wanted, gaps=True)
    plain = np.hstack([on_disk.one_hot(places[name], len(values)) for name, values in FEDUFO_CATEGORIES.items()])
    if features == "paper":
        complete = ~np.isnan(numbers).any(0)
        plain = np.hstack((numbers[:, complete].astype(np.float32), plain))
        numbers = numbers[:, :0]
    race, black = places["race"], FEDUFO_CATEGORIES["race"].index("black")
    codes = {
        "race": race,
        "black": np.where(race < 0, -1, race == black),
        "sex": on_disk.codes(frame, file, "sex", Support.attributes["sex"], gaps=True),
    }
    return Table(
        labels=on_disk.codes(frame, file, "death", (0, 1)),
        numbers=numbers,
        plain=plain,
        attributes={name: on_disk.named(found, Support.attributes[name]) for name, found in codes.items()},
        groups=places["dzclass"],
    )
