# SPDX-License-Identifier: Apache-2.0
"""Several rows of a patient lie in one split, fold and part of a cross-validation, and are one term of a variance."""

import json

import numpy as np
import pandas as pd
import pytest

from fairflare.cli.main import main
from fairflare.core.errors import DataError
from fairflare.data.site_config import SiteConfig
from fairflare.functional import decision
from fairflare.functional.decision import Design, brier_benefit, by_patient, own_model
from fairflare.functional.exchange import Deployed, Hospital, row_of
from fairflare.report.join import OutOfFold
from fairflare.studies.candidates import own_log_risks
from fairflare.tasks.folds import dealt, everyone, folded, untestable
from fairflare.tasks.own.tabular import Tabular

RNG = np.random.default_rng(0)


def visits(n, most=6, seed=0):
    """(N,) whose row each is, of n patients with 1 to ``most`` rows, in a random order."""
    rng = np.random.default_rng(seed)
    return rng.permutation(np.repeat(np.arange(n), rng.integers(1, most + 1, n)))


def test_a_patients_rows_are_in_one_fold():
    patients = visits(80)
    labels = (RNG.random(len(patients)) < 0.4).astype(np.int64)
    place = dealt(labels, 5, 0, "a", patients)
    assert all(len(set(place[patients == one])) == 1 for one in range(80))
    each = np.bincount(place[np.unique(patients, return_index=True)[1]], minlength=5)
    assert each.max() - each.min() <= 1, "folds are of as many patients"
    alone = np.arange(len(labels))
    assert (dealt(labels, 5, 0, "a", alone) == dealt(labels, 5, 0, "a")).all()


def test_a_deal_counts_patients_of_a_class():
    labels = np.array([1] * 4 + [0] * 40)
    with pytest.raises(DataError, match="at least 2 patients of a class"):
        dealt(labels, 2, 0, "a", np.array([0, 0, 1, 1, *range(2, 42)]))
    assert untestable(labels[4:], np.arange(40) // 2) == "expected at least 30 patients"
    assert untestable(np.array([1] * 12 + [0] * 40), np.array([0] * 12 + [*range(1, 41)])), "one patient of a class"


def test_a_variance_is_that_of_patients():
    """n / (n - 1) sum over patients of (sum of d - e)^2 / rows^2, which copies of rows leave as it was."""
    patients, values = visits(60), RNG.normal(size=(2, len(visits(60))))
    each = by_patient(values, patients)
    sums = np.stack([np.bincount(patients, row - row.mean()) for row in values])
    expected = 60 / 59 * (sums**2).sum(axis=1) / len(patients) ** 2
    assert each.mean(axis=1) == pytest.approx(values.mean(axis=1))
    assert each.var(axis=1, ddof=1) / 60 == pytest.approx(expected)
    labels, own, other = (RNG.random(60) < 0.5).astype(float), RNG.random((2, 60)), RNG.random((2, 60))
    once, design = brier_benefit(labels, own, other, Design(2, 2)), Design(2, 2)
    copied = [np.repeat(one, 3, axis=-1) for one in (labels, own, other)]
    assert brier_benefit(*copied, design, np.repeat(np.arange(60), 3)) == pytest.approx(once)
    assert brier_benefit(labels, own, other, design, np.arange(60)) == pytest.approx(once)
    row, risks = row_of(np.stack([labels] * 2), np.stack([own, other])), np.stack(copied[1:])
    again = row_of(np.stack([copied[0]] * 2), risks, np.stack([np.repeat(np.arange(60), 3)] * 2))
    assert again.n == row.n == 60 and again.numbers() == pytest.approx(row.numbers())


def test_a_hospital_with_repeat_visits_is_told_by_outcomes():
    patients = visits(40)
    labels, risks = (RNG.random(len(patients)) < 0.5).astype(float), RNG.random((2, 1, len(patients)))
    deployed = Deployed(np.ones((len(patients), 2)), labels, risks[:, 0])
    one = OutOfFold(labels, risks, deployed, patients=patients)
    assert one.n == one.at_hand().row.n == 40 and one.at_hand().deployed is None
    assert Hospital(labels[None], risks, deployed).deployed is deployed


def test_an_own_model_is_chosen_by_patients_that_it_has_not_seen():
    """Trees that know each patient again win where visits of one patient are on both sides."""
    rng = np.random.default_rng(1)
    patients = np.repeat(np.arange(60), 6)
    x, y = rng.normal(size=(60, 8))[patients], (rng.random(60) < 0.5).astype(float)[patients]
    assert own_model(x, y)[1] == decision.TREES
    assert own_model(x, y, patients)[1] == decision.REGRESSION
    assert own_model(x, y, np.arange(len(y)))[1] == decision.TREES
    times = np.stack([rng.exponential(size=60)[patients], np.ones(len(patients))], axis=1)
    by_row, by_patients = (np.abs(own_log_risks(x, times, x, one)).max() for one in (None, patients))
    assert by_patients < by_row, "noise gets a larger penalty"


@pytest.fixture
def hospitals(tmp_path):
    """A table of four hospitals whose patients have several visits, in no order; its patients have names."""
    rng = np.random.default_rng(2)
    rows = []
    for site in "abcd":
        for patient in range(50):
            age, ill = rng.normal(60, 10), rng.random() < 0.4
            rows += [
                {"hospital": site, "patient_id": f"{site}{patient}", "age": age, "x": rng.normal(ill), "died": int(ill)}
                for _ in range(rng.integers(1, 5))
            ]
    table = pd.DataFrame(rows).sample(frac=1, random_state=0).round(3)
    table.to_csv(tmp_path / "visits.csv", index=False)
    return tmp_path


def call(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(one) for one in arguments])
    assert not ended.value.code


def test_patients_are_known_from_init_to_the_answer(hospitals, capsys):
    call("init", hospitals, "--site", "hospital", "--label", "died", "--yes")
    written = pd.read_csv(hospitals / "fairflare" / "a.csv", dtype=str)
    assert {"patient_id"}.isdisjoint(written.columns) and written["patient"].nunique() == 50
    assert written.groupby("patient")["split"].nunique().max() == 1
    out = hospitals / "join"
    call("join", "fedavg", "--data", hospitals, "--rounds", 1, "--folds", 2, "--repeats", 1, "--out", out)
    found = json.loads((out / "join.json").read_text())["sites"]
    assert {site: (row["n"], row["by"]) for site, row in found.items()} == dict.fromkeys("abcd", (50, "outcomes"))


def table_of(folder, **columns):
    pd.DataFrame(columns).to_csv(folder / "t.csv", index=False)
    return SiteConfig(data_root=str(folder), datalist="t.csv")


@pytest.mark.parametrize("split_by", ["order", "row"])
def test_a_split_keeps_patients_together(split_by, tmp_path):
    patients = visits(100)
    values = np.random.default_rng(3).normal(size=len(patients)).round(3)
    own = table_of(tmp_path, x=values, label=patients % 2, patient=[f"p{one}" for one in patients])
    task = Tabular(site_names="a", features="x", split_by=split_by)
    parts = task.read(own).splits
    seen = [{*part.patients.tolist()} for part in parts.values()]
    assert sum(map(len, seen)) == len(set.union(*seen)) == 100 and min(map(len, seen)) > 5
    data = folded(task, "0/2/0")._redealt(task.read(own), "a")
    train, test = ({*data.splits[name].patients.tolist()} for name in ("train", "test"))
    assert not train & test and len(train | test) == 100 == len({*everyone(task.read(own)).patients.tolist()})


def test_a_given_split_must_keep_patients_together(tmp_path):
    given = {"x": range(40), "label": [0, 1] * 20, "split": ["train", "test"] * 20}
    with pytest.raises(DataError, match="each patient in one split, got 20 in train and test"):
        Tabular(site_names="a", features="x").read(table_of(tmp_path, **given, patient=np.arange(40) // 2))
    apart = Tabular(site_names="a", features="x").read(table_of(tmp_path, **given, patient=[""] * 40))
    assert apart.splits["train"].patients is None, "a row without a patient is another's"


@pytest.mark.parametrize("whose", ["p3", "p100", ""])
def test_a_row_more_moves_no_other_to_another_split(whose, tmp_path):
    """Whatever patient it is of: what a privacy budget covers may not follow from who has two rows."""
    task, columns = Tabular(site_names="a", features="x", split_by="row"), {"x": [], "label": [], "patient": []}
    for one in range(100):
        for name, value in zip(columns, (str(one / 7), str(one % 2), f"p{one}")):
            columns[name].append(value)
    before = task._rows("t.csv", columns)
    more = {name: [*values, value] for (name, values), value in zip(columns.items(), ("9", "1", whose))}
    after = task._rows("t.csv", more)
    assert {name: [row for row in rows if row < 100] for name, rows in after.items()} == {
        name: rows.tolist() for name, rows in before.items()
    }
    assert sum(map(len, after.values())) == 101
