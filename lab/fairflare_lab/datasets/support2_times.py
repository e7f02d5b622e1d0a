# SPDX-License-Identifier: Apache-2.0
"""SUPPORT2: when will a seriously ill patient die, and how long stays one in hospital? The patients of ``support2``.

Origin, licence and columns of the file are in data/README.md.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fairflare.data.inputs import TableInputs
from fairflare.data.site_config import SiteConfig
from fairflare.datasets.patients import Centres, CentreTask, fixed_split, packed
from fairflare.datasets.support2 import DISEASE_CLASSES, N_FEATURES, TRAINING, Support2, table_of
from fairflare.datasets.support2 import outcomes as died
from fairflare.tasks.base import Preset
from fairflare.tasks.kinds.amounts import Counts
from fairflare.tasks.kinds.survival import Cox, Hazards, Survival

TIMES = "support2_times.csv.gz"
ENDS = (7.0, 14.0, 30.0, 60.0, 90.0, 180.0, 365.0, 730.0)
"""Ends of the intervals in days."""


class Support2Classes(CentreTask):
    """The four disease classes as sites, whose splits are fixed once for all; features are those of ``support2``."""

    real = Support2.real
    simulated = Support2.simulated
    attributes = Support2.attributes

    def n_features(self) -> int:
        return N_FEATURES

    def table(self, own: SiteConfig | None = None) -> Centres:
        table = table_of("death")
        rows = {f"site-{k}": np.flatnonzero(table.groups == k - 1) for k in range(1, len(DISEASE_CLASSES) + 1)}
        split = {site: fixed_split(members, "support2", site) for site, members in rows.items()}
        kinds = dict(zip(split, DISEASE_CLASSES, strict=True))
        return Centres(self.outcomes(), table.numbers, table.plain, table.attributes, split, kinds)

    @abstractmethod
    def outcomes(self) -> np.ndarray:
        """(N,) or (N, 2), as the kind takes them."""

    def table_inputs(self) -> TableInputs:
        return Support2().table_inputs()


@dataclass(frozen=True)
class Support2Survival(Support2Classes):
    """Days until death, censored at the end of each patient's follow-up.

    Args:
        output: "hazards": that of each interval up to two years; "cox": one log risk.
        model: "linear", "mlp" (64 hidden units), or with output=cox "regression", see the method ``glm``.
    """

    name = "support2-survival"
    title = "SUPPORT2: days until death"
    primary = "C-index of the worst disease class"
    classes = ()
    headline = "harrell_c"
    presets = {"default": Preset("four sites, one per disease class; seconds on a laptop", {}, TRAINING)}

    output: Literal["hazards", "cox"] = "hazards"
    model: Literal["linear", "mlp", "regression"] = "mlp"

    @property
    def kind(self) -> Survival:  # type: ignore[override]  # depends on an option
        return (Cox if self.output == "cox" else Hazards)(ends=ENDS)

    def outcomes(self) -> np.ndarray:
        return np.stack((_days("d.time"), died("death")), axis=1).astype(np.float32)


@dataclass(frozen=True)
class Support2Stay(Support2Classes):
    """Days in hospital after entry to the study, also of those who died there: a count.

    Args:
        model: "mlp" (64 hidden units), "linear", or "regression", see the method ``glm``.
    """

    name = "support2-stay"
    title = "SUPPORT2: days in hospital"
    primary = "deviance of the worst disease class"
    classes = ("days",)
    headline = "deviance"
    kind = Counts()  # type: ignore[assignment]  # a count, where other centres have classes
    presets = {"default": Preset("four sites, one per disease class; seconds on a laptop", {}, TRAINING)}

    model: Literal["mlp", "linear", "regression"] = "mlp"

    def outcomes(self) -> np.ndarray:
        return _days("slos").astype(np.float32)


def _days(column: str) -> np.ndarray:
    return np.array(packed(TIMES, __package__)[column], dtype=np.int64)
