# SPDX-License-Identifier: Apache-2.0
"""SUPPORT as FedUFO has it: will a seriously ill patient die? The user brings the table; ``support2`` needs none.

In the data folder, one of:

    support.xlsx    1,000 patients; columns death, age, num.co, sex, income, dzgroup, dzclass, race, ...
    support2.csv    9,105 patients, read where there is no support.xlsx
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from fairflare.core.types import Training
from fairflare.data.site_config import SiteConfig
from fairflare.datasets import support2
from fairflare.datasets.patients import Table, TableTask
from fairflare.tasks.base import Preset
from fairflare.tasks.kinds.classes import TWO_CLASSES
from fairflare_lab.datasets import on_disk
from fairflare_lab.datasets.fedufo_tables import as_in_fedufo
from fairflare_lab.datasets.on_disk import OnDisk

FILES = ("support.xlsx", "support2.csv")
NUMBERS = ("age", "num.co", "meanbp", "hrt", "resp", "temp", "sod")
"""Those of ``PAPER_NUMBERS`` that have no gap in the 1,000 rows."""
PAPER_NUMBERS = (
    "age", "num.co", "edu", "avtisst", "meanbp", "wblc", "hrt", "resp", "temp", "pafi",
    "alb", "bili", "crea", "sod", "ph", "glucose", "bun", "urine", "adlp", "adls",
)  # fmt: skip
"""Numbers that upstream considers; avtisst, how much treatment days 3 to 25 took, is known only afterwards."""
CATEGORIES = {
    **{name: support2.CATEGORIES[name] for name in ("income", "dzgroup")},
    "dzclass": support2.DISEASE_CLASSES,
    "race": support2.CATEGORIES["race"],
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
    attributes = {"race": support2.CATEGORIES["race"], "black": BLACK, "sex": support2.CATEGORIES["sex"]}
    presets = {
        "small": Preset("two sites with skewed death rates; seconds on a laptop; needs support.xlsx", {}, SGD),
        "dzclass": Preset(
            "four natural sites, the disease classes; needs support.xlsx", {"sites_by": "dzclass", "n_sites": 4}, SGD
        ),
        "paper": as_in_fedufo("support.xlsx", 1.0),
    }
    natural, natural_words, natural_groups = "dzclass", "disease classes", support2.DISEASE_CLASSES
    smallest_site, smallest_class = 40, 10

    features: Literal["clean", "paper"] = "clean"
    sites_by: Literal["dirichlet", "dzclass", "dzclass+dirichlet"] = "dirichlet"
    n_sites: int = 2
    alpha: float = 0.1
    limit: int | None = None

    def n_features(self) -> int:
        if self.features == "paper":
            return self.table().plain.shape[1]
        return len(NUMBERS) + sum(map(len, CATEGORIES.values()))

    def table(self, own: SiteConfig | None = None) -> Table:
        root = self.root(own)
        file = next((file for file in FILES if (root / file).exists()), FILES[0])
        return _table(self.needed(root / file).resolve(), self.features)


@lru_cache(maxsize=4)
def _table(path: Path, features: str) -> Table:
    frame, file = on_disk.read(path), path.name
    wanted = PAPER_NUMBERS if features == "paper" else NUMBERS
    on_disk.need(frame, file, ["death", "sex", *CATEGORIES, *wanted])
    places = {
        name: on_disk.codes(frame, file, name, values, gaps=name != "dzclass") for name, values in CATEGORIES.items()
    }
    numbers = on_disk.numbers(frame, file, wanted, gaps=True)
    plain = np.hstack([on_disk.one_hot(places[name], len(values)) for name, values in CATEGORIES.items()])
    if features == "paper":
        complete = ~np.isnan(numbers).any(0)
        plain = np.hstack((numbers[:, complete].astype(np.float32), plain))
        numbers = numbers[:, :0]
    race, black = places["race"], CATEGORIES["race"].index("black")
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
