# SPDX-License-Identifier: Apache-2.0
"""Survival of a user's own table: a column of times and one that says whether the time is that of the event."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np

from fairflare.core.errors import UserError
from fairflare.core.validation import Names, Range, shown
from fairflare.tasks.base import expect
from fairflare.tasks.kinds.survival import Cox, Hazards, Survival
from fairflare.tasks.own.tabular import Tabular

MOST_ENDS = 100


@dataclass(frozen=True)
class SurvivalTable(Tabular):
    """One table per site as of the task ``tabular``, with a time at which the observation of each row ended.

    A time is a number of at least 0, in any unit, the same at every site; at time 0 an event falls into the first
    interval. A row without an event is censored at its time. Rows without an entry in either column are left out.
    The intervals are agreed before anyone looks at the times: none follows from the data.

    Args:
        time: the time's column.
        label: the event's column: 1 where it happened at that time, 0 where the row was lost then.
        horizons: ends of the intervals in the unit of the times, rising, separated by commas; one number is divided
            into ``intervals`` even ones. Survival is predicted, and curves are drawn, at these times.
        intervals: of one horizon, 1..100.
        output: "hazards": the network gives the hazard of each interval; "cox": one log risk, trained by the partial
            likelihood of a batch, which wants batches of more than a few events.
    """

    name = "survival"
    title = "Survival of your own table"
    fewest = 0
    headline = "harrell_c"

    label: str = "event"
    time: str = "time"
    horizons: Names = ""
    intervals: Annotated[int, Range(1, MOST_ENDS)] = 10
    output: Literal["hazards", "cox"] = "hazards"

    def __post_init__(self) -> None:
        super().__post_init__()
        expect("time", self.time not in (self.label, *self.feature_names()), "a column that is no feature", self.time)
        ends_of(self.horizons, self.intervals)

    @property
    def classes(self) -> tuple[str, ...]:  # type: ignore[override]  # a time has none
        return ()

    @property
    def kind(self) -> Survival:  # type: ignore[override]  # depends on options
        return (Cox if self.output == "cox" else Hazards)(ends=ends_of(self.horizons, self.intervals))

    @property
    def outcome_columns(self) -> tuple[str, ...]:
        return self.label, self.time


def ends_of(horizons: str, intervals: int) -> tuple[float, ...]:
    """The ends of the intervals, as times are read (float32); () where no horizon is named yet. UserError for none."""
    try:
        found = tuple(float(part) for part in horizons.split(",")) if horizons.strip() else ()
    except ValueError:
        raise UserError(f"horizons: expected numbers separated by commas, got {shown(horizons)}") from None
    fits = len(found) <= MOST_ENDS and all(a < b for a, b in pairwise((0.0, *found, math.inf)))
    expect("horizons", fits, f"at most {MOST_ENDS} rising numbers above 0", horizons)
    found = tuple(found[0] * k / intervals for k in range(1, intervals + 1)) if len(found) == 1 else found
    return tuple(np.asarray(found, dtype=np.float32).tolist())
