# SPDX-License-Identifier: Apache-2.0
"""Calibration and clinical use of the model that a site uses: the sums that leave the site, and the checks of them.

After the last round alone, and of one model: means over a split and over groups of it that are large enough, a line
fitted to the risks, how many were flagged at a threshold, and counts per bin of the predicted risk. No number is of
fewer patients than the site's minimum, and no case's risk leaves. ``clinical_site`` makes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from fairflare.core.types import MOST_EXAMPLES, Number
from fairflare.engine.checks import Refused, checked_numbers
from fairflare.functional.calibration import CELLS, Bins

FAR = 1e3
"""Largest end of an interval of intercept or slope."""
MEANS: Mapping[str, tuple[float, float, str]] = {
    "brier": (0.0, 1.0, "mean squared difference of risk and outcome"),
    "calibration": (-1.0, 1.0, "mean risk less the share that it came true of"),
    "ece": (0.0, 1.0, "expected calibration error"),
    "intercept": (-FAR, FAR, "calibration intercept, beside the slope"),
    "slope": (-FAR, FAR, "calibration slope"),
}
ENDS = (".low", ".high")
"""Of the 95 % interval of each."""
COUNTS: Mapping[str, str] = {
    "positives": "patients that it came true of",
    "flagged": "patients whose risk is at least the threshold",
    "true_positives": "those of them that it came true of",
}
OF_BIN: Mapping[str, str] = {
    "n": "patients of a bin",
    "positives": "those of them that it came true of",
    "risk": "their summed risks",
}
BIN = "bin."
CLINICAL = "clinical"
"""Where a site's numbers stand in the log."""
DIGITS, RISK_DIGITS = 5, 2
"""Decimals of means and of summed risks that leave: more would be a fingerprint of who the patients are."""
ROUNDING = 0.006
"""How far a summed risk may be from what its patients can have."""
Numbers = dict[str, float]


@dataclass(frozen=True)
class View:
    """What server and sites know alike of a run.

    Attributes:
        event: index of the class whose risk is looked at; None: whether the likeliest class is the right one.
        threshold: a patient with at least this risk is flagged.
        cells: names of the groups of patients, none of them by outcome.
        of_group: index of a group of the run -> that of the cell that it is a part of.
        secure: whether the run has secure sums: then no count but that of the patients leaves.
    """

    section: ClassVar[str] = CLINICAL

    event: int | None = 1
    threshold: float = 0.5
    cells: tuple[str, ...] = ()
    of_group: tuple[int, ...] = ()
    secure: bool = False

    def numbers(self) -> tuple[Number, ...]:
        return _numbers(self.cells, self.secure)

    def described(self, classes: Sequence[str]) -> dict[str, Any]:
        """What a report is told of it, under the name of its section."""
        event = None if self.event is None else classes[self.event]
        return {CLINICAL: {"event": event, "threshold": self.threshold}}

    def checked(self, found: Any, most: float = MOST_EXAMPLES, least: int = 0, *, as_binned: bool = True) -> Numbers:
        """The numbers of one site as they are accepted.

        Args:
            most: the most patients that the site can have.
            least: the site's minimum, where that is known.
            as_binned: whether a bin's risks lie between its edges; False once they were changed.

        Raises:
            Refused: a number that no site sends, or numbers that no patients have.
        """
        if not isinstance(found, Mapping):
            raise Refused("clinical", f"{self.section}: expected numbers by name")
        known = checked_numbers(found, self.numbers())
        sizes = [known.get(f"n/{cell}", 0.0) for cell in self.cells]
        if known.get("n", 0.0) > most or sum(sizes) > known.get("n", 0.0):
            raise Refused("count_mismatch", f"{self.section}: more patients than there can be")
        for where in ("", *(f"/{cell}" for cell in self.cells)):
            self.check_part(known, where, max(least, 1))
        _check_bins(known, max(least, 1), as_binned)
        return known

    def check_part(self, known: Numbers, where: str, least: int) -> None:
        """Raise Refused unless the counts of all, or of a cell, are such as patients have, and none is of too few."""
        n = known.get(f"n{where}")
        given = {name: known[name + where] for name in (*MEANS, *COUNTS) if name + where in known}
        if n is None:
            if given:
                raise Refused("count_mismatch", "clinical: numbers of nobody")
            return
        sides = [n, *_sides(n, given)]
        if any(side != int(side) for side in sides) or min(sides) < least:
            raise Refused("count_mismatch", "clinical: counts that no patients have, or of too few")


@dataclass(frozen=True)
class Nothing(View):
    """Of a run whose sites say nothing of it."""

    def numbers(self) -> tuple[Number, ...]:
        return ()

    def described(self, classes: Sequence[str]) -> dict[str, Any]:
        return {}


NOTHING = Nothing()


@lru_cache(maxsize=64)
def _numbers(cells: tuple[str, ...], secure: bool) -> tuple[Number, ...]:
    """Of a view with these cells; site and server ask for them at every answer."""
    many = float(MOST_EXAMPLES)
    found = [Number("n", 0.0, many, "patients")]
    for name, (low, high, meaning) in MEANS.items():
        found.append(Number(name, low, high, meaning))
        found += [Number(name + end, low, high, f"{meaning}: end of its interval") for end in ENDS]
    if not secure:
        found += [Number(name, 0.0, many, meaning) for name, meaning in COUNTS.items()]
    in_cells = [number.in_group(cell) for cell in cells for number in found]
    places = () if secure else range(CELLS)
    bins = [Number(f"{BIN}{k}.{name}", 0.0, many, meaning) for k in places for name, meaning in OF_BIN.items()]
    return (*found, *in_cells, *bins)


def bins_of(numbers: Mapping[str, float]) -> Bins | None:
    """The bins among a site's numbers; None where it sent none."""
    starts = sorted(int(name[len(BIN) : -2]) for name in numbers if name.startswith(BIN) and name.endswith(".n"))
    if not starts:
        return None
    rows = (np.array([numbers.get(f"{BIN}{k}.{name}", np.nan) for k in starts]) for name in OF_BIN)
    return Bins(np.array(starts, dtype=np.int64), *rows)


def _sides(n: float, given: Numbers) -> list[float]:
    """Patients of either outcome, and on either side of the threshold; raises Refused where they do not fit."""
    positives, flagged, right = (given.get(name) for name in COUNTS)
    if positives is None:
        if flagged is not None or right is not None:
            raise Refused("count_mismatch", "clinical: decisions without outcomes")
        return []
    if flagged is None or right is None:
        if flagged is not right:
            raise Refused("count_mismatch", "clinical: one half of the decisions")
        return [positives, n - positives]
    if right != int(right) or right > min(positives, flagged) or flagged - right > n - positives:
        raise Refused("count_mismatch", "clinical: decisions that no patients have")
    return [positives, n - positives, flagged, n - flagged]


def _check_bins(known: Numbers, least: int, as_binned: bool) -> None:
    """Raise Refused unless the bins hold every patient once, with risks that fit, and none too few."""
    names = [name for name in known if name.startswith(BIN)]
    if not names:
        return
    bins = bins_of(known)
    if bins is None or bins.starts[0] != 0 or len(names) != len(OF_BIN) * len(bins.n):
        raise Refused("count_mismatch", "clinical: bins that are not whole")
    edges = bins.edges
    low, high = (edges[:-1], edges[1:]) if as_binned else (0.0, 1.0)
    fits = (
        (np.floor(bins.n) == bins.n).all(),
        (np.floor(bins.positives) == bins.positives).all(),
        (np.minimum(bins.positives, bins.n - bins.positives) >= least).all(),
        (bins.risk >= low * bins.n - ROUNDING).all(),
        (bins.risk <= high * bins.n + ROUNDING).all(),
        bins.n.sum() == known.get("n"),
        bins.positives.sum() == known.get("positives"),
    )
    if not all(fits):
        raise Refused("count_mismatch", "clinical: bins that no patients have, or of too few")
