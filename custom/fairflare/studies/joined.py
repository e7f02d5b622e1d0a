# SPDX-License-Identifier: Apache-2.0
"""What a join has found: as tables (``Federation.join``, ``fairflare.join``, or the folder of a finished one), and as
decision sheets, a page and a JSON file per hospital; and what groups of patients say of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fairflare.core.errors import UserError
from fairflare.core.validation import SITE, shown
from fairflare.engine.files import read_json, save_json, save_text
from fairflare.functional.decision import Array, Benefit, Design, Owners, brier_benefit, of_differences
from fairflare.functional.exchange import MIX_KEYS, answered_alone
from fairflare.functional.survival import concordant_pairs
from fairflare.report.join import MIX, OutOfFold, sentence, sheet, sheet_page
from fairflare.studies import candidates as combining
from fairflare.studies.describe import leaving
from fairflare.studies.folders import JOIN, JOIN_PAGE, SHEETS
from fairflare.studies.runs import as_before
from fairflare.tasks.folds import untestable

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
        return _table(
            {"hospital": site, "candidate": name, "n": row["n"], **found}
            for site, row in self._sites.items()
            for name, found in row["candidates"].items()
        )[["hospital", "candidate", "n", *BENEFIT]]

    @property
    def weights(self) -> pandas.DataFrame:
        """A row per hospital: the weight of each member of its mix; they sum to 1."""
        found: dict[str, dict[str, float]] = {}
        for site, row in self._sites.items():
            share = row["mix"]["share"]
            found[site] = {"own": 1 - share, **{k: share * w for k, w in self.content["weights"].items()}}
        return _indexed(found, "hospital")

    @property
    def mixes(self) -> pandas.DataFrame:
        """A row per hospital: ``share`` of its mix that is not the own model, its benefit with interval, ``p_harm``."""
        return _indexed({site: row["mix"] for site, row in self._sites.items()}, "hospital")

    @property
    def federation(self) -> pandas.DataFrame:
        """A row per candidate: the average benefit with its interval, the spread, and the forecast for a new hospital.

        Columns: ``mean``, ``low``, ``high``, ``between_sd``, and with ``new_`` before them ``n``, ``benefit``, ``low``,
        ``high`` and ``p_gain``; NaN below four hospitals.
        """
        found = {}
        for name, one in self.content["candidates"].items():
            new = {f"new_{key}": value for key, value in (one.get("new_hospital") or {}).items()}
            found[name] = {**(one.get("average") or {}), "between_sd": one.get("between_sd"), **new}
        return _indexed(found, "candidate")

    @property
    def groups(self) -> pandas.DataFrame:
        """A row per hospital, group of patients and candidate, where counts allow it: ``n``, benefit, interval."""
        return _table(
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
        with as_before(progress=progress):
            found = combining.combine(self.folder, Path(out), force=force, workers=workers)
        return _indexed(found, "hospital").fillna(0.0)

    @property
    def _sites(self) -> Mapping[str, Any]:
        sites: Mapping[str, Any] = self.content["sites"]
        return sites

    def __repr__(self) -> str:
        return f"<Joined: {len(self._sites)} hospitals, {', '.join(self.content['candidates'])}; {self.folder}>"


def _table(rows: Iterable[Mapping[str, Any]]) -> pandas.DataFrame:
    import pandas

    return pandas.DataFrame(rows)


def _indexed(found: Mapping[str, Mapping[str, Any]], name: str) -> pandas.DataFrame:
    import pandas

    return pandas.DataFrame.from_dict(found, orient="index").rename_axis(name)


def sheets_of(folder: Path, sites: Sequence[str] = (), language: str = "en") -> list[Path]:
    """Write the sheets of ``sites``, or of all, of the join in ``folder``, and return the pages.

    Raises UserError: the folder holds no join of this version, or not this hospital.
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
    found = {}
    for label in labels:
        secure = "secure_sum=" in label and "secure_sum=none" not in label
        for row in leaving(label.partition(":")[0], secure=secure, after=False, solo=False):
            found[row["name"], row["meaning"]] = row
    return list(found.values())


SMALL_DIFFERENCE = 0.005
"""Of C-indices and Dice, whose benefit within -/+ this does not matter."""
C_INDEX, DICE = "C-index", "Dice"
PLAIN = (
    "a plain difference in {} of the models of the folds, by each hospital's patients alone: how often its interval "
    "holds is not validated, and there is no mix"
)


def by_group(
    tested: OutOfFold, attributes: Mapping[str, Sequence[str]], candidates: Sequence[str], design: Design
) -> dict[str, Any]:
    """Group, as "sex=female" -> n, and candidate -> benefit with its interval, from these patients alone.

    An attribute (-> (n,) values, "" where unknown) is told where each of its values, "" too, has 30 patients and 5 of
    each class: the benefit of a smaller one would follow from that of all patients and of the others.
    """
    found: dict[str, Any] = {}
    for name, values in attributes.items():
        masks = {value: np.asarray(values) == value for value in sorted(set(values))}
        classes = tested.labels.astype(np.int64)
        if len(masks) < 2 or any(untestable(classes[mask], _those(tested, mask)) for mask in masks.values()):
            continue
        for value, mask in masks.items():
            labels, (own, *others), whose = tested.labels[mask], tested.risks[:, :, mask], _those(tested, mask)
            pairs = zip(candidates, others, strict=True)
            each = {c: brier_benefit(labels, own, risks, design, whose) for c, risks in pairs}
            told = {c: _told(b, design) for c, b in each.items()}
            n = int(mask.sum()) if whose is None else len(np.unique(whose))
            found[f"{name}={value or 'unknown'}"] = {"n": n, "candidates": told}
    return found


def _those(tested: OutOfFold, mask: npt.NDArray[np.bool_]) -> Owners | None:
    return None if tested.patients is None else tested.patients[mask]


def differences(tested: Mapping[str, OutOfFold], candidates: Sequence[str], design: Design) -> dict[str, Any]:
    """As ``report.join.answers``, of times by the C-index and of masks by Dice, from each hospital's patients alone.

    ``tested``: hospital -> its patients: times and events (n, 2) with log risks, or masks with each one's Dice.
    """
    sites: dict[str, Any] = {}
    times = next(iter(tested.values())).labels.ndim == 2
    for site, one in tested.items():
        own, *others = one.risks
        assert (folds := one.folds) is not None
        rows = {}
        for name, new in zip(candidates, others, strict=True):
            plain = of_differences(new - own, new - own, one.patients)
            benefit = c_index_benefit(one.labels, own, new, folds, one.patients) if times else plain
            rows[name] = answered_alone(benefit, design, SMALL_DIFFERENCE, 0.025)
        row = {"n": one.n, "by": "outcomes", "candidates": rows, MIX: dict.fromkeys(MIX_KEYS, 0.0)}
        sites[site] = {**row, "answer": sentence(row, candidates)}
    score = C_INDEX if times else DICE
    about = {"score": score, "folds": design.folds, "repeats": design.repeats, "kappa": 0.0, "margin": 0.0}
    together = {"candidates": {c: {} for c in candidates}, "weights": dict.fromkeys(candidates, 1 / len(candidates))}
    return {**about, **together, "sites": sites, "note": PLAIN.format(score)}


def _told(one: Benefit, design: Design) -> dict[str, float]:
    return dict(zip(("benefit", "low", "high"), (one.mean, *one.interval(design)), strict=True))


def c_index_benefit(
    targets: Array, own: Array, candidate: Array, folds: Array, patients: Owners | None = None
) -> Benefit:
    """Of Harrell's C-indices, candidate less own, over comparable pairs of patients of one fold, as ``brier_benefit``.

    A patient's share is the influence function, whose mean is the difference. A fold without comparable pairs has none.

    ``targets``: (n, 2) times and events; ``own`` and ``candidate``: (R, n) log risks out of fold.
    """
    shares = _c_shares(targets, candidate, folds) - _c_shares(targets, own, folds)
    return of_differences(shares, candidate - own, patients)


def _c_shares(targets: Array, risks: Array, folds: Array) -> Array:
    """(R, n) whose mean over patients is the index of each repetition, and whose variance is n times its own.

    Those of the infinitesimal jackknife, as of ``survival.concordance_error``.
    """
    won, pairs = np.zeros(risks.shape), np.zeros(risks.shape)
    for r, fold in {(r, fold) for r, row in enumerate(folds) for fold in row}:
        rows = folds[r] == fold
        won[r, rows], pairs[r, rows] = concordant_pairs(targets[rows, 0], targets[rows, 1], risks[r, rows])
    both = pairs.sum(axis=1, keepdims=True)  # each pair at either patient
    if not both.all():
        return np.full(risks.shape, np.nan)
    index = won.sum(axis=1, keepdims=True) / both
    return np.asarray(index + 2 * len(targets) * (won - index * pairs) / both)
