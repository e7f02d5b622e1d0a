# SPDX-License-Identifier: Apache-2.0
"""Tables as hospitals export them, each with the truth about its columns.

A builder writes below a folder and returns its ``Truth``: how every predictor is to be read, or what the refusal says.
"""

import csv
from dataclasses import dataclass, field

import numpy as np
import pandas as pd


@dataclass
class Truth:
    """What a table holds.

    Attributes:
        features: predictor -> "number", "category", "yes_no" or "days".
        classes: of the outcome, in order.
        sites: site -> rows.
        cells: (row in the file, column) -> the normalised cell.
        flags: arguments of `init` that are needed.
        says: parts of the refusal; then nothing else is looked at.
        without: columns that are no predictors.
        path: what `init` is given, relative to the folder.
    """

    features: dict = field(default_factory=dict)
    classes: tuple = ("0", "1")
    sites: dict = field(default_factory=dict)
    flags: tuple = ()
    says: tuple = ()
    without: tuple = ()
    path: str = "."
    patients: str = ""


def cohort(n=120, seed=0, sites=("A", "B", "C")):
    """Rows of a small study: numbers, categories, yes or no, dates, an outcome that depends on some of them."""
    rng = np.random.default_rng(seed)
    age, crp = rng.integers(25, 95, n), rng.gamma(2, 20, n).round(1)
    stage = rng.choice(["I", "II", "III"], n, p=[0.5, 0.3, 0.2])
    smoker = rng.choice(["yes", "no"], n)
    died = rng.random(n) < 1 / (1 + np.exp(-(0.03 * (age - 60) + 1.2 * (stage == "III") + 0.7 * (smoker == "yes"))))
    return pd.DataFrame(
        {
            "hospital": [sites[k % len(sites)] for k in range(n)],
            "age": age,
            "sex": rng.choice(["female", "male"], n),
            "crp": crp,
            "stage": stage,
            "smoker": smoker,
            "died": died.astype(int),
        }
    )


KINDS = {"age": "number", "sex": "category", "crp": "number", "stage": "category", "smoker": "yes_no"}
SITES = {"A": 40, "B": 40, "C": 40}
LABEL = ()


def plain(root):
    cohort().rename(columns={"died": "outcome"}).to_csv(root / "cohort.csv", index=False)
    return Truth(KINDS, sites=SITES)


def semicolons_and_commas(root):
    """Excel in much of Europe: semicolons between cells, commas in numbers."""
    cohort().to_csv(root / "daten.csv", index=False, sep=";", decimal=",")
    return Truth(KINDS, sites=SITES, flags=LABEL)


def latin_1(root):
    table = cohort(sites=("München", "Köln", "Zürich"))
    (root / "kohorte.csv").write_bytes(table.to_csv(index=False, sep=";", decimal=",").encode("latin-1"))
    return Truth(KINDS, sites={"München": 40, "Köln": 40, "Zürich": 40}, flags=LABEL)


def excel(root):
    cohort().to_excel(root / "cohort.xlsx", index=False)
    return Truth(KINDS, sites=SITES, flags=LABEL)


def one_file(root):
    """A single table is named, in a folder with other things."""
    cohort().to_csv(root / "cohort.csv", index=False)
    (root / "notes.csv").write_text("a,b\n1,2\n")
    return Truth(KINDS, sites=SITES, flags=LABEL, path="cohort.csv")


def table_per_site(root):
    for site, own in cohort().groupby("hospital"):
        own.drop(columns="hospital").to_csv(root / f"{site}.csv", index=False)
    return Truth(KINDS, sites=SITES, flags=LABEL)


def times_after(root):
    """Columns that are known only after the outcome."""
    table = cohort()
    table["days_to_event"] = np.where(table["died"] == 1, 5, 300) + np.arange(len(table)) % 50
    table["length_of_stay"] = np.arange(len(table)) % 17
    table.to_csv(root / "cohort.csv", index=False)
    return Truth(KINDS, sites=SITES, flags=LABEL, without=("days_to_event", "length_of_stay"))


def tells_it_alone(root):
    """A column without a telling name that follows from the outcome."""
    table = cohort()
    table["code"] = table["died"] * 10 + np.arange(len(table)) % 3
    table.to_csv(root / "cohort.csv", index=False)
    return Truth(flags=LABEL, says=("code alone tells the outcome", "--keep code", "--leave-out code"))


def several_findings(root):
    table = cohort()
    findings = [
        "edema",
        "effusion",
        "edema|effusion",
        "none",
        "nodule|edema",
        "nodule",
        "nodule|effusion",
        "edema|effusion|nodule",
    ]
    table["finding"] = [findings[k % 8] for k in range(len(table))]
    table.drop(columns="died").to_csv(root / "cohort.csv", index=False)
    return Truth(says=("several findings in one", "|"))


def length_of_stay(root):
    table = cohort()
    table["days"] = np.arange(len(table)) % 16
    table.to_csv(root / "cohort.csv", index=False)
    return Truth(
        flags=("--label", "days"), says=("16 different numbers from 0 to 15", "--classes 0,1,2", "--kind regression")
    )


def two_outcomes(root):
    table = cohort().rename(columns={"died": "outcome"})
    table["diagnosis"] = np.where(np.arange(len(table)) % 3 == 0, "stroke", "other")
    table.to_csv(root / "cohort.csv", index=False)
    return Truth(says=("may be the label", "--label diagnosis", "--label outcome"))


def dates(root):
    """Dates as days since birth; without --since they are left out."""
    table = cohort()
    table["born"] = [f"{1 + k % 28:02d}.{1 + k % 12:02d}.{1940 + k % 50}" for k in range(len(table))]
    table["admitted"] = [f"{1 + k % 28:02d}.{1 + k % 12:02d}.2021" for k in range(len(table))]
    table.to_csv(root / "cohort.csv", index=False)
    return Truth({**KINDS, "admitted": "days"}, sites=SITES, flags=(*LABEL, "--since", "born"), without=("born",))


def gaps_and_words(root):
    """Missing cells, numbers with a few words, a free text, a hospital's number and an index."""
    table = cohort().astype(object)
    table.loc[::7, "crp"] = ""
    table.loc[3::40, "crp"] = "<0.5"
    table["remark"] = [f"seen by Dr {k} on the ward" for k in range(len(table))]
    table["hospital_no"] = table["hospital"].map({"A": 11, "B": 12, "C": 13})
    table.to_csv(root / "cohort.csv")
    return Truth(
        KINDS, sites=SITES, flags=(*LABEL, "--missing", "crp=<0.5"), without=("remark", "hospital_no", "Unnamed: 0", "")
    )


def names_with_commas(root):
    table = cohort().rename(columns={"crp": "CRP, mg/l"})
    table.to_csv(root / "cohort.csv", index=False, quoting=csv.QUOTE_MINIMAL)
    kinds = {("CRP, mg/l" if name == "crp" else name): kind for name, kind in KINDS.items()}
    return Truth(kinds, sites=SITES, flags=LABEL)


def rows_of_patients(root):
    """Several rows of each patient."""
    table = cohort()
    table["patient_id"] = [f"K{k // 6:03d}" for k in range(len(table))]
    table.to_csv(root / "cohort.csv", index=False)
    return Truth(KINDS, sites=SITES, flags=LABEL, patients="patient_id")


def two_spellings(root):
    table = cohort()
    table.loc[table["hospital"] == "B", "sex"] = table["sex"].str.title()
    table.to_csv(root / "cohort.csv", index=False)
    return Truth(flags=LABEL, says=("sex", "differ by upper and lower case alone", "--leave-out sex"))


TABLES = {
    one.__name__: one
    for one in (
        plain,
        semicolons_and_commas,
        latin_1,
        excel,
        one_file,
        table_per_site,
        times_after,
        tells_it_alone,
        several_findings,
        length_of_stay,
        two_outcomes,
        dates,
        gaps_and_words,
        names_with_commas,
        rows_of_patients,
        two_spellings,
    )
}
