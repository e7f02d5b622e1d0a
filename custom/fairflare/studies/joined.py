# SPDX-License-Identifier: Apache-2.0
"""What a join has found: as tables (``Federation.join``, ``fairflare.join``, or the folder of a finished one), and as
decision sheets, a page and a JSON file per hospital."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairflare.core.errors import UserError
from fairflare.core.validation import SITE, shown
from fairflare.engine.files import read_json
from fairflare.engine.state import save_json, save_text
from fairflare.report.join import sheet, sheet_page
from fairflare.studies import combine as combining
from fairflare.studies import display
from fairflare.studies.describe import leaving
from fairflare.studies.folders import JOIN, JOIN_PAGE, SHEETS
from fairflare.studies.runs import as_before

if TYPE_CHECKING:
    import pandas

BENEFIT = ["benefit", "own_low", "own_high", "shrunken", "low", "high", "p_harm", "verdict", "more_patients"]


@dataclass(frozen=True, repr=False)
class Joined:
    """A finished join.

    Attributes:
        folder: where its runs, ``join.json`` and ``join.html`` lie.
        content: that of ``join.json``.
    """

    folder: Path
    content: Mapping[str, Any]

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Joined:
        """The finished join in ``folder``; raises UserError where none is."""
        return cls(Path(folder), combining.read_join(Path(folder)))

    @property
    def benefits(self) -> pandas.DataFrame:
        """A row per hospital and candidate: the benefit by the Brier score, above 0 where the candidate is better.

        Columns: ``hospital``, ``candidate``, ``n``, ``benefit`` with ``own_low`` and ``own_high`` from its own patients
        alone, ``shrunken`` with ``low`` and ``high`` with the others' help, ``p_harm``, ``verdict``, ``more_patients``
        (NaN: no number helps).
        """
        return self._table(
            {"hospital": site, "candidate": name, "n": row["n"], **found}
            for site, row in self._sites.items()
            for name, found in row["candidates"].items()
        )[["hospital", "candidate", "n", *BENEFIT]]

    @property
    def weights(self) -> pandas.DataFrame:
        """A row per hospital: the weight of each member of its mix; they sum to 1."""
        import pandas

        found: dict[str, dict[str, float]] = {}
        for site, row in self._sites.items():
            share = row["mix"]["share"]
            found[site] = {"own": 1 - share, **{k: share * w for k, w in self.content["weights"].items()}}
        return pandas.DataFrame.from_dict(found, orient="index").rename_axis("hospital")

    @property
    def mixes(self) -> pandas.DataFrame:
        """A row per hospital: ``share`` of its mix that is not the own model, its benefit with interval, ``p_harm``."""
        import pandas

        found = {site: row["mix"] for site, row in self._sites.items()}
        return pandas.DataFrame.from_dict(found, orient="index").rename_axis("hospital")

    @property
    def federation(self) -> pandas.DataFrame:
        """A row per candidate: the average benefit with its interval, the spread, and the forecast for a new hospital.

        Columns: ``mean``, ``low``, ``high``, ``between_sd``, and with ``new_`` before them ``n``, ``benefit``, ``low``,
        ``high`` and ``p_gain``; NaN below four hospitals.
        """
        import pandas

        found = {}
        for name, one in self.content["candidates"].items():
            new = {f"new_{key}": value for key, value in (one.get("new_hospital") or {}).items()}
            found[name] = {**(one.get("average") or {}), "between_sd": one.get("between_sd"), **new}
        return pandas.DataFrame.from_dict(found, orient="index").rename_axis("candidate")

    @property
    def groups(self) -> pandas.DataFrame:
        """A row per hospital, group of patients and candidate, where counts allow it: ``n``, benefit, interval."""
        return self._table(
            {"hospital": site, "group": group, "n": one["n"], "candidate": name, **found}
            for site, row in self._sites.items()
            for group, one in row.get("groups", {}).items()
            for name, found in one["candidates"].items()
        )

    @property
    def answers(self) -> pandas.Series:
        """Hospital -> its answer in a sentence; those that are refused say why."""
        import pandas

        found = {site: row["answer"] for site, row in self._sites.items()}
        refused = {site: f"not answered: {why}" for site, why in self.content.get("refused", {}).items()}
        return pandas.Series({**found, **refused}, name="answer", dtype=object).rename_axis("hospital")

    def report(self) -> Path:
        """The page, ``join.html``."""
        return self.folder / JOIN_PAGE

    def combine(
        self, out: str | os.PathLike[str], *, workers: int | None = 1, force: bool = False, progress: bool = True
    ) -> pandas.DataFrame:
        """Write each hospital's mix below ``out``, as ``fairflare combine`` does; returns the weights in them.

        Args:
            out: gets a folder for each hospital, a model for ``predict``, ``evaluate`` and ``monitor``.
            workers: processes that compute side by side.
            force: replaces earlier mixes.
            progress: shows how far it is on stderr.
        """
        import pandas

        with as_before({}), contextlib.nullcontext() if progress else display.silent():
            found = combining.combine(self.folder, Path(out), force=force, workers=workers)
        return pandas.DataFrame.from_dict(found, orient="index").fillna(0.0).rename_axis("hospital")

    @property
    def _sites(self) -> Mapping[str, Any]:
        sites: Mapping[str, Any] = self.content["sites"]
        return sites

    @staticmethod
    def _table(rows: Any) -> pandas.DataFrame:
        import pandas

        return pandas.DataFrame(list(rows))

    def __repr__(self) -> str:
        return f"<Joined: {len(self._sites)} hospitals, {', '.join(self.content['candidates'])}; {self.folder}>"


def sheets_of(folder: Path, sites: Sequence[str] = (), language: str = "en") -> list[Path]:
    """Write the sheets of ``sites``, or of all, of the join in ``folder``, and return the pages.

    Raises:
        UserError: the folder holds no join of this version, or not this hospital.
    """
    found = read_json(folder / JOIN)
    known = found.get("sites")
    if not isinstance(known, dict) or not isinstance(found.get("candidates"), dict):
        raise UserError(f"{folder / JOIN}: expected what `fairflare join` writes")
    if strange := [site for site in sites if site not in known]:
        raise UserError(f"--site: expected one of {shown(', '.join(known))}, got {shown(strange[0])}")
    try:
        return write_sheets(found, folder, sites, language)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(f"{folder / JOIN}: expected what `fairflare join` writes ({type(error).__name__})") from None


def write_sheets(found: Mapping[str, Any], folder: Path, sites: Sequence[str] = (), language: str = "en") -> list[Path]:
    """As ``sheets_of``, of the content of join.json; in English SITE.html, else SITE.LANGUAGE.html."""
    leaves = _leaves(found["methods"])
    made = {site: sheet(found, site, leaves, language) for site in sites or found["sites"]}
    pages = []
    for site, one in made.items():
        name = site if SITE.fullmatch(site) else f"hospital-{list(found['sites']).index(site) + 1}"
        name += "" if language == "en" else f".{language}"
        (folder / SHEETS).mkdir(exist_ok=True)
        save_json(folder / SHEETS / f"{name}.json", one)
        save_text(folder / SHEETS / f"{name}.html", sheet_page(one))
        pages.append(folder / SHEETS / f"{name}.html")
    return pages


def _leaves(labels: Sequence[str]) -> list[dict[str, str]]:
    """What leaves a hospital in training with any of the methods."""
    found = {}
    for label in labels:
        secure = "secure_sum=" in label and "secure_sum=none" not in label
        for row in leaving(label.partition(":")[0], secure=secure, after=False, solo=False):
            found[row["name"], row["meaning"]] = row
    return list(found.values())
