# SPDX-License-Identifier: Apache-2.0
"""Whether the model in use is still no worse than the hospital's own, patient by patient as outcomes become known.

The state is a small file that holds sums, no patient. The table grows: rows that were counted stay where they are, and
new ones follow in the order in which their outcomes became known. So a second look at a table counts nobody twice.

The test may be looked at after every patient: it is the capital of bets against a hypothesis, an e-value. A. Ramdas, P.
Gruenwald, V. Vovk and G. Shafer, Statistical Science 38, 2023; bets as in I. Waudby-Smith and A. Ramdas, JRSS B 86,
2024. Under the hypothesis the capital is a non-negative supermartingale that begins at 1: the probability that it ever
reaches 20 is at most .05 (Ville's inequality).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fairflare.core.errors import UserError
from fairflare.core.validation import exact, expected
from fairflare.data.readers import datalist
from fairflare.data.readers.tables import MISSING, read_columns
from fairflare.engine.files import is_there, read_json, save_json
from fairflare.functional.intervals import Owners

REACHED = 20.0
PRIOR_CASES, PRIOR_SECOND = 10.0, 0.02
"""The bets begin as if so many cases had had mean 0 and this mean square."""
MOST_AT_STAKE = 0.5


@dataclass
class Bets:
    """Bets against "the mean of x is at most 0", for x >= -bound, ``bound`` > 0.

    Attributes:
        first, second: sums of x and of its square, over the cases seen so far.
        log_capital: natural logarithm of the capital.
        reached: the case at which the capital reached ``REACHED`` for the first time; 0: never.
    """

    bound: float
    cases: int = 0
    first: float = 0.0
    second: float = 0.0
    log_capital: float = 0.0
    reached: int = 0

    def see(self, x: float) -> None:
        """Take one more case; the stake depends on earlier ones alone. Raises ValueError out of range."""
        if not -self.bound - 1e-9 <= x < math.inf:
            raise ValueError(f"x: expected at least {-self.bound}, got {x}")
        many = PRIOR_CASES + self.cases
        square = (PRIOR_CASES * PRIOR_SECOND + self.second) / many
        stake = min(max(self.first / many / square, 0.0), MOST_AT_STAKE / self.bound)
        self.log_capital += math.log1p(stake * x)
        self.cases, self.first, self.second = self.cases + 1, self.first + x, self.second + x * x
        if not self.reached and self.log_capital >= math.log(REACHED):
            self.reached = self.cases


FORMAT = 1
Patient = tuple[float, float, float]
"""Outcome (0 or 1), the own model's risk, and that of the model in use."""


@dataclass
class Monitor:
    """Two bets on the same patients, by squared errors.

    Attributes:
        margin: a mean loss (Brier score) that does not matter, in (0, 0.5].
        certificate: against "the model in use is worse by the margin or more"; sees own loss - loss in use + margin.
        alarm: against "the model in use is worse by the margin at most"; sees loss in use - own loss - margin.
        seen: hash of the patients that are counted.
    """

    margin: float
    certificate: Bets = field(init=False)
    alarm: Bets = field(init=False)
    seen: str = field(default="", init=False)

    def __post_init__(self) -> None:
        expected("--margin", 0 < self.margin <= 0.5, "a number above 0 and at most 0.5", self.margin)
        self.certificate, self.alarm = Bets(1.0 - self.margin), Bets(1.0 + self.margin)
        self.seen = _hash(())

    @property
    def cases(self) -> int:
        return self.certificate.cases

    def see(self, patients: Sequence[Patient]) -> int:
        """Count the patients that follow those counted before, which are the first (else UserError): how many."""
        before = self.cases
        if len(patients) < before or _hash(patients[:before]) != self.seen:
            raise UserError(f"patients: expected the {before} that are counted, unchanged, and then new ones")
        for outcome, own, used in patients[before:]:
            gain = (outcome - own) ** 2 - (outcome - used) ** 2
            self.certificate.see(gain + self.margin)
            self.alarm.see(-gain - self.margin)
        self.seen = _hash(patients)
        return self.cases - before

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Monitor:
        """What ``to_json`` gave; raises UserError for anything else."""
        expected("format", content.get("format") == FORMAT, f"{FORMAT}", content.get("format"))
        made = cls(exact(cls, "margin", content.get("margin")))
        made.seen = exact(cls, "seen", content.get("seen"))
        for name in ("certificate", "alarm"):
            bets, kept = getattr(made, name), content.get(name)
            expected(name, isinstance(kept, dict) and set(kept) == set(asdict(bets)), "the state of bets", kept)
            for key, value in dict(kept or {}).items():
                number = exact(Bets, key, value, f"{name}.{key}")
                expected(f"{name}.{key}", key != "bound" or number == bets.bound, "the bound of the margin", number)
                setattr(bets, key, number)
            sums = (bets.first, bets.second, bets.log_capital)
            expected(name, all(map(math.isfinite, sums)) and min(bets.cases, bets.second) >= 0, "finite sums", sums)
        expected("alarm.cases", made.alarm.cases == made.cases, str(made.cases), made.alarm.cases)
        return made

    def summary(self) -> dict[str, Any]:
        """cases, margin, the capital needed, and of both bets their capital (at most 1e300) and when it was reached."""
        found = {
            name: {"capital": math.exp(min(bets.log_capital, 690.0)), "reached": bets.reached}
            for name, bets in (("certificate", self.certificate), ("alarm", self.alarm))
        }
        return {"cases": self.cases, "margin": self.margin, "needed": REACHED, **found, "sentence": self.sentence()}

    def sentence(self) -> str:
        """What a clinician is told."""
        if self.alarm.reached:
            return (
                f"Fall back to the own model: after {self.alarm.reached} patients the model in use is worse by more "
                f"than {self.margin:g} (Brier score; at most 5 % of such alarms are false)."
            )
        if self.certificate.reached:
            return (
                f"Keep the model in use: after {self.certificate.reached} patients it is not worse than the own model "
                f"by {self.margin:g} or more (Brier score; wrong in at most 5 % of such cases)."
            )
        return f"Not settled after {self.cases} patients; keep both models' risks and ask again."


def counted(patients: Sequence[Patient], state: Path, margin: float | None) -> tuple[Monitor, int]:
    """Count the new ones of all ``patients`` so far, keep the state, and return it with their number.

    ``state``: JSON file, begun where there is none; ``margin``: None: that of the state, or 0.01. UserError where a
    file is not as expected.
    """
    known = Monitor.from_json(read_json(state)) if is_there(state) else Monitor(0.01 if margin is None else margin)
    if margin is not None and margin != known.margin:
        raise UserError(f"--margin: expected {known.margin:g}, with which {state.name} was begun, got {margin:g}")
    new = known.see(patients)
    save_json(state, known.to_json())
    return known, new


def patients_of(table: Path, columns: Sequence[str]) -> list[Patient]:
    """The first row of each of the table's patients; UserError names column and row of a cell that is none.

    ``columns``: names of the outcome, the own model's risk and the risk of the model in use.
    """
    found = read_columns(table)
    for name in columns:
        expected(f"{table.name}", name in found, f"a column {name!r}", list(found)[:8])
    outcomes, own, used = (
        [_number(cell, name, k, whole=not place) for k, cell in enumerate(found[name], 1)]
        for place, name in enumerate(columns)
    )
    return once(list(zip(outcomes, own, used, strict=True)), datalist.patients_of(found))


def once(rows: Sequence[Patient], whose: Owners | None) -> list[Patient]:
    """The first row of each patient: a bet takes those that follow to be new, whatever came before.

    ``whose``: (N,) each row is; None: each is another patient's.
    """
    first = range(len(rows)) if whose is None else np.sort(np.unique(whose, return_index=True)[1]).tolist()
    return [rows[row] for row in first]


def _number(cell: str, column: str, row: int, *, whole: bool) -> float:
    try:
        value = math.nan if cell.lower() in MISSING else float(cell)
    except ValueError:
        value = math.nan
    what = "0 or 1" if whole else "a risk from 0 to 1"
    expected(f"{column}, row {row}", value in (0, 1) if whole else 0 <= value <= 1, what, cell)
    return value


def _hash(patients: Sequence[Patient]) -> str:
    return hashlib.sha256(repr([tuple(one) for one in patients]).encode()).hexdigest()
