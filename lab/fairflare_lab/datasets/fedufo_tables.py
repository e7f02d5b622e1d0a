# SPDX-License-Identifier: Apache-2.0
"""FedUFO's tables that the user brings: cardiotocography, COVID-19 in Brazil, and the cancer registries SEER."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fairflare.core.errors import DataError, UserError
from fairflare.core.types import Training
from fairflare.data.site_config import SiteConfig
from fairflare.datasets.patients import Table, TableTask
from fairflare.tasks.base import Preset, expect
from fairflare.tasks.kinds.classes import TWO_CLASSES
from fairflare_lab.datasets import on_disk
from fairflare_lab.datasets.on_disk import OnDisk

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


def as_in_fedufo(
    needs: str,
    gamma: float,
    options: Mapping[str, object] | None = None,
    *,
    lr: float = 0.01,
    epochs: int = 5,
    batch: int = 32,
) -> Preset:
    """The setting in the text of Zhang et al. (Patterns 5, 2024): ten rounds of Adam, radius 1e-4, and ``gamma`` of the
    range that it names for these data; at two sites that radius keeps lambda within .5 +- .0071."""
    return Preset(
        f"FedUFO's text: ten rounds, {epochs} epochs of Adam, radius 1e-4, on columns that do not leak; needs {needs}",
        options or {},
        Training(rounds=10, epochs=epochs, batch_size=batch, optimizer="adam", lr=lr, weight_decay=0.0),
        by_method={"fedufo": {"radius": 1e-4, "gamma": gamma, "steps": epochs}},
    )


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
    """

    name = "ctg"
    shown_tree = """
    CTG.xls                     from UCI: sheet "Raw Data", 2,126 segments of 352 examinations
    cardiotocography_csv.csv    from datahub: V1, ..., V35, Class; only CLASS as the label, no examinations
"""
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
        file = CSV if (root / CSV).is_file() and not (root / EXCEL).exists() else EXCEL
        if file == CSV:
            expect("label", self.label == "CLASS", f"CLASS, the only one in {CSV}", self.label)
            expect("unit", self.unit == "segment", f"segment, since {CSV} names no examinations", self.unit)
        return _table(self.needed(root / file).resolve(), self.label, self.features, self.unit)


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


FILE = "covid_brazil.csv"
OUTCOME, DAYS, AGE, SEX, RACE, REGION = "is_dead", "Days_hospital_to_outcome", "Age", "Sex", "Ethnicity", "Region"
SYMPTOMS = (
    "Fever", "Cough", "Sore_throat", "Shortness_of_breath", "Respiratory_discomfort", "SPO2", "Dihareea", "Vomitting",
)  # fmt: skip
"""Columns of symptoms as the table spells them: 1 is yes, anything else counts as no."""
ILLNESSES = (
    "Cardiovascular", "Asthma", "Diabetis", "Pulmonary", "Immunosuppresion", "Obesity", "Liver", "Neurologic", "Renal",
)  # fmt: skip
"""Columns of earlier illnesses: 1 is yes, anything else counts as no."""
COLUMNS = (OUTCOME, DAYS, AGE, SEX, RACE, REGION, *SYMPTOMS, *ILLNESSES)
SEXES = ("female", "male")
"""What the codes 0 and 1 of ``Sex`` stand for."""
RACES = ("mixed", "white", "black", "east asian", "indigenous")
"""What the codes 0 to 4 of ``Ethnicity`` stand for: parda, branca, preta, amarela and indigena of the census."""
REGIONS = ("Central-West", "North", "Northeast", "South", "Southeast")
"""What the codes 0 to 4 of ``Region`` stand for."""
AGE_BINS = (40, 50, 60, 70)
"""Years at which the paper's five age flags begin anew."""


def read_patients(path: Path) -> dict[str, np.ndarray]:
    """The table in the file ``path``, in its stored order.

    Returns:
        "died", 0 or 1, "region", "race" and "sex": int64 (N,), places in ``REGIONS``, ``RACES`` and ``SEXES``, of the
        last two -1 where unknown; "age" in years and "days" from admission to the outcome, float64 (N,), >= 0;
        "flags": 0 or 1, float32 (N, 17), of ``SYMPTOMS`` and ``ILLNESSES``.

    Raises:
        UserError: it is not that table; names the column and line.
    """
    import pandas as pd

    try:
        form: dict[str, Any] = {"dtype": str, "keep_default_na": False, "encoding": "utf-8-sig", "index_col": False}
        cells = pd.read_csv(path, **form, encoding_errors="replace").fillna("")
    except (OSError, ValueError) as error:
        raise UserError(f"{FILE}: expected a readable table, got {type(error).__name__}") from error
    if missing := [name for name in COLUMNS if name not in cells]:
        raise UserError(f"{FILE}: expected {len(COLUMNS)} columns, got none named {', '.join(missing)}")

    def numbers(name: str) -> np.ndarray:
        values = pd.to_numeric(cells[name], errors="coerce").to_numpy(np.float64)
        return np.where(np.isfinite(values), values, np.nan)

    def codes(name: str, n: int) -> np.ndarray:
        values = numbers(name)
        return np.where(np.isin(values, np.arange(n)), values, -1).astype(np.int64)

    def required(name: str, values: np.ndarray, expected: str) -> np.ndarray:
        bad = np.flatnonzero(~(values >= 0))
        if len(bad):  # line 1 holds the names
            raise UserError(f"{FILE}: {name}, line {bad[0] + 2}: expected {expected}, got {cells[name][bad[0]]!r}")
        return values

    return dict(
        died=required(OUTCOME, codes(OUTCOME, 2), "0 or 1"),
        region=required(REGION, codes(REGION, len(REGIONS)), f"0..{len(REGIONS) - 1}"),
        race=codes(RACE, len(RACES)),
        sex=codes(SEX, len(SEXES)),
        age=required(AGE, numbers(AGE), "years >= 0"),
        days=required(DAYS, numbers(DAYS), "days >= 0"),
        flags=np.stack([codes(name, 2) == 1 for name in (*SYMPTOMS, *ILLNESSES)], axis=1).astype(np.float32),
    )


def clean_flags(table: Mapping[str, np.ndarray]) -> np.ndarray:
    """float32 (N, 23) of 0 and 1: male, symptoms, illnesses, ethnicities; an unknown ethnicity is a row of zeros."""
    return np.hstack((_one(table["sex"] == 1), table["flags"], on_disk.one_hot(table["race"], len(RACES))))


def paper_features(table: Mapping[str, np.ndarray]) -> np.ndarray:
    """float32 (N, 30), unscaled: what this table holds of FedUFO's 43 columns, with the days to the outcome.

    Age in years, the 23 columns of ``clean_flags``, five age flags, days. This table lacks the other 13, among them
    ``Evolution``; the region, which is no feature there, is none here.
    """
    bins = on_disk.one_hot(np.digitize(table["age"], AGE_BINS), len(AGE_BINS) + 1)
    return np.hstack((_one(table["age"]), clean_flags(table), bins, _one(table["days"])))


def _one(column: np.ndarray) -> np.ndarray:
    return column.astype(np.float32)[:, None]


TRAINING = Training(rounds=20, epochs=1, batch_size=32, optimizer="sgd", lr=0.1, momentum=0.0, weight_decay=0.0)
"""FedUFO's batch of 32. Plain SGD, where upstream has Adam, because Adam undoes a weight on the loss; FedAvg levels off
within these 20 rounds."""


@dataclass(frozen=True)
class CovidBrazil(TableTask, OnDisk):
    """Binary prognosis at admission, after Baqui et al. and FedUFO.

    Brazil's SIVEP-Gripe surveillance records to May 2020 as selected by Baqui et al. (Lancet Global Health 8, 2020)
    and encoded in numbers by van der Schaar's group (synthetic-data-lab, ``Brazil_COVID``): 6,882 patients with a
    positive PCR test, a known ethnicity and a known outcome; 47 % died. The file is not part of the package and
    nothing is downloaded.

    Measured on it, standardised logistic regression, five folds: the 24 clean features reach an accuracy of .734 and
    an AUC of .805, age alone .689 and .743. ``Days_hospital_to_outcome`` is known only afterwards. It adds .001 to
    that AUC, but .010 to that of boosted trees, since 78 % of those whose outcome came on the day of admission died.
    FedUFO's own extract (43 features) also holds ``Evolution``, whose value 2 is the label, numbers of facilities and
    constants; this table has none of these.

    The table is read when data are first asked for. Splits are drawn within each outcome, since the smallest region has
    105 patients, 28 of whom died. Its test split has 21, and over six values of ``data_seed`` FedAvg's AUC there lies
    anywhere from .76 to .89. It stays a site of its own, as real small regions do: compare several seeds before saying
    that a method serves it better.

    Args:
        sites_by: "region": the country's five regions, 105 to 4,929 patients, of whom 27 % to 73 % died; "dirichlet":
            label skew over ``n_sites``; "region+dirichlet": label skew over as many sites in each region.
        n_sites: 5 for "region", else 2..50 and for "region+dirichlet" a multiple of 5; FedUFO has 2.
        alpha: concentration > 0 of the Dirichlet split; FedUFO's is 0.5, and 1 in its equal-opportunity runs. Unlike
            there, each site keeps its own test patients out of its share, and none are set aside before.
        features: "clean": what is known at admission; age is standardised with the site's own training patients, the
            rest is 0 or 1, and the region, which tells the site, is left out. "paper": what the table holds of FedUFO's
            columns, unscaled like upstream. That tells something of the outcome, since it includes the days until then,
            and needs a smaller step than the presets': optimizer=adam lr=0.019 are upstream's.
    """

    name = "covid-brazil"
    shown_tree = """
    covid_brazil.csv    23 columns: is_dead, Days_hospital_to_outcome, Age, Sex, Ethnicity, Region, Fever, ...
"""
    title = "COVID-19: death of patients in Brazilian hospitals"
    real = "6,882 patients, 24 features and their outcomes (SIVEP-Gripe 2020), a file that you bring"
    simulated = "the hospitals: a site is a region or a share of a label-skewed split"
    classes = ("survived", "died")
    primary = "AUC of the worst region or site"
    headline = "auc"
    kind = TWO_CLASSES
    attributes = {
        "race": RACES, "white": ("not white", "white"), "sex": SEXES, "age": ("under 60", "60 and over"),
    }  # fmt: skip
    presets = {
        "regions": Preset("five natural sites, the regions of Brazil; needs covid_brazil.csv", {}, TRAINING),
        "dirichlet": Preset(
            "FedUFO's two sites with skewed death rates; needs covid_brazil.csv",
            {"sites_by": "dirichlet", "n_sites": 2},
            TRAINING,
        ),
        "paper": as_in_fedufo("covid_brazil.csv", 1e-3, {"sites_by": "dirichlet", "n_sites": 2}),
    }
    natural, natural_words, natural_groups = "region", "regions", REGIONS
    smallest_site, smallest_class = 40, 10

    sites_by: Literal["region", "dirichlet", "region+dirichlet"] = "region"
    n_sites: int = 5
    alpha: float = 0.5
    features: Literal["clean", "paper"] = "clean"

    def n_features(self) -> int:
        return 24 if self.features == "clean" else 30

    def table(self, own: SiteConfig | None = None) -> Table:
        return _covid_table(self.needed(self.root(own) / FILE).resolve(), self.features)


@lru_cache(maxsize=4)
def _covid_table(path: Path, features: str) -> Table:
    patients, clean = read_patients(path), features == "clean"
    age, race = patients["age"], patients["race"]
    white = np.where(race < 0, -1, race == RACES.index("white"))
    codes = {"race": race, "white": white, "sex": patients["sex"], "age": (age >= 60).astype(np.int64)}
    return Table(
        labels=patients["died"],
        numbers=age[:, None] if clean else np.empty((len(age), 0)),
        plain=clean_flags(patients) if clean else paper_features(patients),
        attributes={name: on_disk.named(places, CovidBrazil.attributes[name]) for name, places in codes.items()},
        groups=patients["region"],
    )


FOLDER = "seer"
TOP = 10
LABEL = "Site recode ICD-O-3/WHO 2008"
SEER_RACE, SEER_SEX = "Race recode (White, Black, Other)", "Sex"
NUMBERS = ("Primary Site", "Histologic Type ICD-O-3", "RX Summ--Surg Prim Site (1998+)")
CATEGORIES = (
    "Age recode with <1 year olds",
    SEER_RACE,
    SEER_SEX,
    "PRCDA 2020",
    "Behavior recode for analysis",
    "Laterality",
    "Diagnostic Confirmation",
    "Reason no cancer-directed surgery",
    "RX Summ--Systemic/Sur Seq (2007+)",
)
LEAKS = (*NUMBERS, "Laterality", "Reason no cancer-directed surgery", "RX Summ--Systemic/Sur Seq (2007+)")
"""SEER computes the label from the first two; laterality and surgery are coded by organ; treatment comes after it."""
BLANK = "Blank(s)"
"""How SEER*Stat writes an empty cell."""
SEER_SGD = Training(rounds=20, epochs=1, batch_size=128, optimizer="sgd", lr=0.1, momentum=0.0, weight_decay=0.0)
"""FedUFO's batch of 128. Plain SGD, since Adam undoes a weight on the loss."""


@dataclass(frozen=True)
class SeerProstate(TableTask, OnDisk):
    """The ten most frequent cancers of a registry and all others, from what is recorded of a patient.

    FedUFO calls this table "Prostate"; its label is the site of any cancer. The columns bear the names that its public
    code asks for. They have not been checked against an export, and other exports name them otherwise: they are
    options, and a sheet that lacks one is refused with a list of those that it has. Rows with an empty cell in a column
    that is used, or "Blank(s)", are left out, as upstream. Splits are drawn within each class.

    The files are read before a network is built, since they decide how many values a category has: every machine of a
    run needs them in the folder that FAIRFLARE_DATA names, the server's too. A patient with several tumours has several
    rows: name the column ``patient``, where there is one, to keep them in one split of one site (of each year's, where
    sites are years).

    Args:
        features: "clean": the columns below without those from which the label follows, those coded by organ and those
            of treatment: the three numbers, laterality and the last two categories, by these very names. "paper": all
            columns, numbers unscaled, as published. They leak: SEER computes the label from the first two numbers.
        label: the column of the cancer's site; classes are its ten most frequent values over all years, most frequent
            first, and all others.
        numbers: columns of numbers, separated by semicolons.
        categories: columns used one-hot, separated by semicolons.
        race: column of the race, White, Black or Other (...); empty: not known.
        sex: column of the sex, Female or Male; empty: not known.
        patient: column that tells patients apart, e.g. Patient ID; empty, as upstream: each row counts as a patient.
        years: files to read without ".xlsx", separated by commas; empty: all, sorted by name.
        sites_by: "dirichlet": label skew over ``n_sites``; "year": one site for each of ``years``; "year+dirichlet":
            label skew over as many sites in each year.
        n_sites: 2..50; FedUFO has 2.
        alpha: concentration > 0 of the Dirichlet split; FedUFO's is 10. Redrawn until every site has 40 patients and 5
            of each class.
    """

    name = "seer-prostate"
    shown_tree = """
    seer/2018.xlsx    SEER*Stat case listing of one year, names in the first row
    seer/2019.xlsx    likewise; any number of years
"""
    title = "SEER, FedUFO's columns: site of a cancer"
    real = "patients of the SEER registries and their cancers, files that you bring (by agreement with SEER)"
    simulated = "the hospitals: a site is a year or a share of a label-skewed split"
    classes = (*(f"cancer {k}" for k in range(1, TOP + 1)), "other")
    attributes = {"race": ("white", "black", "other"), "sex": ("female", "male")}
    presets = {
        "small": Preset(
            "two sites, at most 2,000 patients each in training; needs SEER files", {"limit": 2000}, SEER_SGD
        ),
        "paper": as_in_fedufo("SEER files; 64 hidden units, not 256", 1.0, lr=1e-3, epochs=2, batch=128),
    }
    natural, natural_words = "year", "years"
    smallest_site, smallest_class = 40, 5

    features: Literal["clean", "paper"] = "clean"
    label: str = LABEL
    numbers: str = "; ".join(NUMBERS)
    categories: str = "; ".join(CATEGORIES)
    race: str = SEER_RACE
    sex: str = SEER_SEX
    patient: str = ""
    years: str = ""
    sites_by: Literal["dirichlet", "year", "year+dirichlet"] = "dirichlet"
    n_sites: int = 2
    alpha: float = 10.0
    limit: int | None = None

    def __post_init__(self) -> None:
        years, columns = self.natural_groups, self.columns("paper")
        expect("years", len(set(years)) == len(years), "different years", self.years)
        plain = all(year not in (".", "..") and not set(year) & set("/\\") for year in years)
        expect("years", plain, "names of files, without folders", self.years)
        expect("years", self.sites_by == "dirichlet" or bool(years), "years where sites_by names them", self.years)
        expect("label", bool(self.label) and self.label not in columns, "a column that is no feature", self.label)
        expect("patient", self.patient not in (self.label, *columns), "a column that is no feature", self.patient)
        expect("categories", len(set(columns)) == len(columns), "different columns", columns)
        expect("categories", bool(self.columns(self.features)), "columns besides those that leak", self.categories)
        super().__post_init__()

    @property
    def natural_groups(self) -> tuple[str, ...]:  # type: ignore[override]  # depends on an option
        return _parts(self.years, ",")

    def columns(self, features: str) -> tuple[str, ...]:
        """The columns of ``numbers`` and ``categories`` that "clean" or "paper" features are made of."""
        found = (*_parts(self.numbers, ";"), *_parts(self.categories, ";"))
        return found if features == "paper" else tuple(name for name in found if name not in LEAKS)

    def table(self, own: SiteConfig | None = None) -> Table:
        folder = self.needed(self.root(own) / FOLDER)
        names = [f"{year}.xlsx" for year in self.natural_groups] or sorted(
            path.name for path in folder.glob("*.xlsx") if not path.name.startswith(("~", "."))
        )
        paths = tuple(self.needed(folder / name).resolve() for name in names or ["<year>.xlsx"])
        numbers = tuple(name for name in _parts(self.numbers, ";") if name in self.columns(self.features))
        categories = tuple(name for name in _parts(self.categories, ";") if name in self.columns(self.features))
        others = {"race": self.race, "sex": self.sex, "patient": self.patient}
        return _seer_table(paths, self.label, numbers, categories, tuple(others.items()), self.features == "paper")


@lru_cache(maxsize=2)
def _seer_table(
    paths: Sequence[Path],
    label: str,
    numbers: Sequence[str],
    categories: Sequence[str],
    others: Sequence[tuple[str, str]],
    paper: bool,
) -> Table:
    """The rows of all files; ``others`` are the columns of race, sex and patient, "" for none."""
    named = dict(others)
    kept = list(dict.fromkeys(name for name in (label, *numbers, *categories, *named.values()) if name))
    cells: dict[str, list[str]] = {name: [] for name in kept}
    measured, years = [], []
    for year, path in enumerate(paths):
        frame = on_disk.read(path)
        on_disk.need(frame, path.name, kept)
        used = frame[[name for name in (label, *numbers, *categories, named["patient"]) if name]]
        blank = used.apply(lambda column: column.astype(str).str.strip().isin(("", BLANK)))
        frame = frame[~(blank | used.isna()).any(axis=1)]
        measured.append(on_disk.numbers(frame, path.name, numbers))
        years += [year] * len(frame)
        for name in kept:
            cells[name] += on_disk.texts(frame, name)
    if not years:
        raise DataError("few_examples", f"{paths[0].name}: expected rows without an empty cell, got none")
    flags = [np.empty((len(years), 0), dtype=np.float32)]
    for name in categories:
        values, places = np.unique(cells[name], return_inverse=True)
        flags.append(on_disk.one_hot(places, len(values)))
    found, plain = np.concatenate(measured), np.hstack(flags)
    return Table(
        labels=_ranks(cells[label]),
        numbers=found[:, :0] if paper else found,
        plain=np.hstack((found.astype(np.float32), plain)) if paper else plain,
        attributes={
            # "Other (American Indian/AK Native, Asian/Pacific Islander)" is other; "Unknown" is none of the values.
            name: [cell.partition(" (")[0].lower() for cell in cells[named[name]]] if named[name] else [""] * len(years)
            for name in SeerProstate.attributes
        },
        groups=np.array(years, dtype=np.int64),
        cases=np.unique(cells[named["patient"]], return_inverse=True)[1] if named["patient"] else None,
    )


def _ranks(cells: Sequence[str]) -> np.ndarray:
    """int64 (N,): 0 for the most frequent value, ... and ``TOP`` for all but the first ten; ties by name."""
    _, places, counts = np.unique(cells, return_inverse=True, return_counts=True)
    ranks = np.argsort(np.argsort(-counts, kind="stable"))
    return np.minimum(ranks[places], TOP)


def _parts(text: str, separator: str) -> tuple[str, ...]:
    return tuple(part for part in (piece.strip() for piece in text.split(separator)) if part)
