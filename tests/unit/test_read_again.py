# SPDX-License-Identifier: Apache-2.0
"""`predict` and `evaluate` read a hospital's table as `init` has read those of training."""

import json

import numpy as np
import pandas as pd
import pytest

import import_situations
from cases import each
from command_line import call
from fairflare.core.errors import DataError, UserError
from fairflare.data.inputs import TableInputs
from fairflare.data.readers.cases import patients_of
from fairflare.data.readers.table_features import Feature
from fairflare.data.readers.tables import read_table
from fairflare.data.table_columns import reading_of
from fairflare.import_data.tables import read_again
from fairflare.tasks.kinds.own import INSIDE

INPUTS = TableInputs((Feature("age"), Feature("crp")))


def tables_of(root, **crp):
    """Tables of sites, whose columns of crp are called so."""
    root.mkdir()
    for site, names in crp.items():
        rows = import_situations.base(n=60, sites=site, drop=["hospital"])
        made = {name: rows["crp"] + k for k, name in enumerate(names)}
        rows.drop(columns="crp").assign(**made).to_csv(root / f"{site}.csv", index=False)
    return root


def test_no_column_takes_the_place_of_another(tmp_path, capsys):
    """What differs by case alone is the column; of two that differ by signs nobody knows which."""
    root = tables_of(tmp_path / "a", A=["crp"], B=["CRP", "CRP %"])
    how = ("--label", "died", "--yes")
    code, _, err = call(capsys, "init", root, *how, "--leave-out", "CRP %")
    assert code == 0, err
    again = read_again(root / "B.csv", INPUTS)[0]
    for rows in (read_table(root / INSIDE / "B.csv"), again):
        assert sorted(rows["crp"]) == sorted(pd.read_csv(root / "B.csv", dtype=str)["CRP"])
    root = tables_of(tmp_path / "b", A=["crp"], B=["CRP %", "crp_"])
    refusal = "B.csv: crp: expected one column, got CRP %, crp_"
    assert refusal in call(capsys, "init", root, *how)[2]
    with pytest.raises(UserError, match=refusal):
        read_again(root / "B.csv", INPUTS)
    code, _, err = call(capsys, "init", root, *how, "--rename", "CRP %=crp,crp_=crp")
    assert code == 2 and refusal in err
    assert call(capsys, "init", root, *how, "--rename", "crp_=crp", "--leave-out", "CRP %")[0] == 0


def test_an_evaluation_knows_the_column_of_patients(tmp_path, capsys):
    rows = import_situations.base(n=240, sites="AB", visits=3, case_nr=lambda rng, t: t["who"])
    rows.to_csv(tmp_path / "t.csv", index=False)
    how = ("--label", "died", "--patient", "case_nr", "--dry-run", "--json")
    code, out, err = call(capsys, "init", tmp_path / "t.csv", *how)
    assert code == 0, err
    inputs = TableInputs(INPUTS.numbers, reading=reading_of(json.loads(out)["options"]["reading"]))
    rows.rename(columns={"case_nr": "Case-Nr"}).to_csv(tmp_path / "new.csv", index=False)
    whose = patients_of(read_again(tmp_path / "new.csv", inputs, ["died"], ["0", "1"])[0])
    assert len({*whose}) == 80 and len({*zip(whose, rows["case_nr"], strict=True)}) == 80


def test_a_comma_is_a_decimal_one_in_a_column_of_numbers(tmp_path):
    rows = import_situations.base(n=60)
    rows.assign(crp=[f"{one:.1f}".replace(".", ",") for one in rows["crp"]]).to_csv(tmp_path / "new.csv", index=False)
    found = INPUTS.features(
        "new.csv", {name: list(read_again(tmp_path / "new.csv", INPUTS)[0][name]) for name in INPUTS.columns}
    )
    assert np.allclose(found[0], rows[["age", "crp"]])


def test_one_cell_that_is_no_age_takes_nobody_else_s_band(tmp_path, capsys):
    rows = import_situations.base(n=60, sites="AB").astype({"age": object})
    rows.loc[3, "age"] = "k.A."
    rows.to_csv(tmp_path / "t.csv", index=False)
    assert call(capsys, "init", tmp_path / "t.csv", "--label", "died", "--yes")[0] == 0
    made = pd.concat(read_table(path) for path in (tmp_path / INSIDE).glob("*.csv"))
    inputs = TableInputs(INPUTS.numbers, known={"age_band": ("under 40", "40 to 59", "60 to 79", "80 and over")})
    again, few = read_again(tmp_path / "t.csv", inputs)[0], tmp_path / "few.csv"
    assert sorted(made["age_band"]) == sorted(again["age_band"]) and (again["age_band"] != "").sum() == 59
    rows[2:5].to_csv(few, index=False)
    assert (read_again(few, inputs)[0]["age_band"] != "").tolist() == [True, False, True]


WORDS = {"A": ("1", "0"), "B": ("1", "0"), "C": ("yes", "no")}


def test_words_for_yes_and_no_of_one_site_are_what_1_and_0_are_at_others(tmp_path, capsys):
    rows = import_situations.base(n=240)
    rows["diabetes"] = [WORDS[one][k % 7 > 2] for k, one in enumerate(rows["hospital"])]
    rows = pd.concat((rows[rows["hospital"] != "C"], rows[rows["hospital"] == "C"][:16]))  # less than a tenth
    rows.to_csv(tmp_path / "t.csv", index=False)
    code, out, err = call(capsys, "init", tmp_path / "t.csv", "--label", "died", "--dry-run", "--json")
    specs = json.loads(json.loads(out)["options"]["columns"])
    assert specs["diabetes"] == {"kind": "yes_no", "yes": ["1", "yes"], "no": ["0", "no"]} and "diabetes" not in err
    inputs = TableInputs((Feature("smoker"),), (Feature("diabetes", ("1", "yes"), no=("0", "no")),))
    new = pd.DataFrame({"diabetes": ["ja", "no", "Nein", "1.0", ""], "smoker": [True, False, True, True, False]})
    new.to_csv(tmp_path / "new.csv", index=False)
    again, notes = read_again(tmp_path / "new.csv", inputs)
    found = np.hstack(inputs.features("new.csv", {name: list(again[name]) for name in again}))
    assert np.array_equal(found, [[1, 1], [0, 0], [1, 0], [1, 1], [0, 0]])
    assert notes == ["smoker: True, False are read as 1, 0", "diabetes: ja, Nein are read as 1, 0"]


def test_another_hospital_s_follow_up_does_not_end_with_training_unseen(tmp_path):
    """The last day of training is named; rows after it say their own end, or are refused."""
    reading = {"time": ("death",), "since": ("adm",), "until": ("2020-12-31",)}
    inputs, path = TableInputs(INPUTS.numbers, reading=reading), tmp_path / "new.csv"
    rows = import_situations.base(n=60, sites="A", drop=["died", "hospital"])
    dates = ["2020-12-01", "2020-12-21", ""] * 20

    def read(adm, **columns):
        rows.assign(adm=adm, **columns).to_csv(path, index=False)
        found, notes = read_again(path, inputs, ["event", "death"])
        return [*zip(found["event"], found["death"])][:3], " ".join(notes)

    found, note = read("2020-11-01", death=dates)
    assert found == [("1", "30"), ("1", "50"), ("0", "60")] and "observed until 2020-12-31, as in training" in note
    with pytest.raises(DataError, match="adm: 60 rows begin after 2020-12-31, the last day of observation"):
        read("2021-02-01", death=dates)
    ends = {"death": ["2021-02-11", "2021-03-03", "2021-02-02"] * 20, "event": ["1", "0", "0"] * 20}
    found, note = read("2021-02-01", **ends)
    assert found == [("1", "10"), ("0", "30"), ("0", "1")] and "2020" not in note
    assert read("2021-02-01", death=[10, 30, 1] * 20, event=ends["event"])[0] == found


CLOCKS = {
    "seconds": "%Y-%m-%dT%H:%M:%S",
    "minutes": "%Y-%m-%d %H:%M",
    "afternoons": "%d/%m/%Y %I:%M %p",
    "days first": "%d.%m.%Y %H:%M",
    "as Excel counts": "",
}


@each("form", CLOCKS)
def test_times_of_day_count_at_init_and_in_use(form, tmp_path, capsys):
    rng, table = np.random.default_rng(3), import_situations.base(n=90, sites="A", drop=["hospital"])
    first = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 500_000, 90), "min")
    hours = rng.integers(0, 60, 90)
    for name, days in {"admission_date": first, "surgery_date": first + pd.to_timedelta(hours, "h")}.items():
        count = (days - pd.Timestamp("1899-12-30")) / pd.Timedelta(days=1)
        table[name] = days.strftime(CLOCKS[form]) if CLOCKS[form] else count
    table.to_csv(tmp_path / "t.csv", index=False)
    assert call(capsys, "init", tmp_path / "t.csv", "--label", "died", "--since", "admission_date", "--yes")[0] == 0
    inputs = TableInputs((Feature("surgery_date", since="admission_date"),))
    made, again = read_table(tmp_path / INSIDE / "t.csv"), read_again(tmp_path / "t.csv", inputs)[0]
    for rows in (made, again):
        days = inputs.features("t.csv", {name: list(rows[name]) for name in inputs.columns})[0][:, 0]
        assert np.allclose(24 * np.sort(days), np.sort(hours), atol=0.02)
