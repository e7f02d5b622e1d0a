# SPDX-License-Identifier: Apache-2.0
"""The registry table: made-up sheets under the names that upstream asks for; the real ones need an agreement."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from cases import each
from fairflare.cli.main import main
from fairflare.core.errors import DataError, MissingData, UserError
from fairflare.data.site_config import SiteConfig
from fairflare.engine.setup.tasks import load
from fairflare_lab.datasets.fedufo_tables import CATEGORIES, LABEL, NUMBERS, SEER_RACE, SEER_SEX, SeerProstate, _ranks

YEARS = ("2018", "2019")
N = 900
"""Rows of either year."""
CANCERS = tuple(f"Cancer {letter}" for letter in "ABCDEFGHIJKLM")
RACES = ("White", "Black", "Other (American Indian/AK Native, Asian/Pacific Islander)", "Unknown")
CLEAN = 3 + 4 + 2 + 3 + 3 + 3
"""Values of the six categories that are left: age, race, sex, PRCDA, behaviour, confirmation."""


def made_up(year):
    """900 rows; the last three of 13 cancers are rare; one of the primary sites belongs to each cancer."""
    rng = np.random.default_rng(int(year))
    share = np.array([14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 2, 2, 1.0])
    cancer = rng.choice(len(CANCERS), N, p=share / share.sum())
    table = {LABEL: [CANCERS[k] for k in cancer]}
    table["Patient ID"] = range(N)
    table["Primary Site"] = 600 + cancer
    table["Histologic Type ICD-O-3"] = rng.integers(8000, 9000, N)
    table["RX Summ--Surg Prim Site (1998+)"] = rng.integers(0, 99, N)
    for name in CATEGORIES:
        table[name] = rng.choice(["a value", "another", "a third"], N)
    table[CATEGORIES[0]] = np.where(cancer < 5, "65-69 years", rng.choice(["70-74 years", "85+ years"], N))
    table[SEER_RACE], table[SEER_SEX] = rng.choice(RACES, N), rng.choice(["Female", "Male"], N)
    frame = pd.DataFrame(table).astype({"Primary Site": object, CATEGORIES[0]: object})
    frame.loc[7, "Diagnostic Confirmation"] = None
    frame.loc[8, "Primary Site"] = "Blank(s)"
    return frame


def write(folder, year="2018", frame=None):
    (folder / "seer").mkdir(exist_ok=True)
    (made_up(year) if frame is None else frame).to_excel(folder / "seer" / f"{year}.xlsx", index=False)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seer")
    for year in YEARS:
        write(folder, year)
    (folder / "seer" / "~$2018.xlsx").write_bytes(b"open in Excel")
    return folder


@pytest.fixture
def folder(shared, monkeypatch):
    monkeypatch.setenv("FAIRFLARE_DATA", str(shared))
    return shared


def complete(features="clean"):
    """The rows that are read, both years."""
    used = [LABEL, *SeerProstate().columns(features)]
    found = pd.concat([made_up(year) for year in YEARS], ignore_index=True)
    return found[(found[used].notna() & (found[used] != "Blank(s)")).all(axis=1)].reset_index(drop=True)


def test_what_is_known_without_the_files(monkeypatch):
    monkeypatch.delenv("FAIRFLARE_DATA", raising=False)
    task = load("seer-prostate", "paper")
    assert list(task.sites().values()) == ["label skew, alpha 10"] * 2 and len(task.classes) == 11
    assert SeerProstate.presets["paper"].training.batch_size == SeerProstate.presets["small"].training.batch_size == 128
    assert (task.model, task.features, len(task.columns("paper")), len(CATEGORIES)) == ("mlp", "clean", 12, 9)
    with pytest.raises(MissingData):
        task.network()


def test_the_columns_that_leak_are_named():
    left = SeerProstate().columns("clean")
    assert left == tuple(name for name in CATEGORIES if name[:6] not in ("Latera", "Reason", "RX Sum"))


@pytest.mark.parametrize("options", [{}, {"n_sites": 4, "alpha": 5.0}, {"features": "paper"}])
def test_every_row_is_in_one_split_of_one_site(options, folder):
    task = SeerProstate(**options)
    rows = [r for site in task.sites() for r in task.rows(site).values()]
    n = {"clean": 2 * (N - 1), "paper": 2 * (N - 2)}[task.features]
    assert sorted(np.concatenate(rows)) == list(range(n))
    for site in task.sites():
        labels = torch.cat([split.targets for split in task.site_data(site).splits.values()])
        assert labels.bincount(minlength=11).min() >= 5


def test_classes_are_the_most_frequent_cancers_of_all_years(folder):
    table, frame = SeerProstate().table(), complete()
    order = sorted(frame[LABEL].value_counts().items(), key=lambda item: (-item[1], item[0]))
    place = {name: min(k, 10) for k, (name, _) in enumerate(order)}
    assert table.labels.tolist() == [place[name] for name in frame[LABEL]]
    assert len(set(table.labels)) == 11 and (table.labels == 10).sum() == sum(n for _, n in order[10:])


def test_ties_go_by_name():
    assert _ranks(["b", "c", "a", "b", "a"]).tolist() == [1, 2, 0, 1, 0]
    assert _ranks([*CANCERS[::-1], "Cancer M"]).tolist() == [0, 10, 10, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]


def test_sites_by_year_with_and_without_skew(folder):
    task = SeerProstate(sites_by="year", years="2019,2018")
    assert list(task.sites().values()) == ["2019", "2018"]
    found = [sorted(np.concatenate(list(task.rows(site).values()))) for site in task.sites()]
    assert found == [list(range(N - 1)), list(range(N - 1, 2 * (N - 1)))]
    shares = SeerProstate(sites_by="year+dirichlet", years="2019,2018", n_sites=4)
    assert list(shares.sites().values())[1:3] == ["2019; label skew, alpha 10", "2018; label skew, alpha 10"]
    for k, site in enumerate(shares.sites()):
        assert {i // (N - 1) for r in shares.rows(site).values() for i in r} == {k // 2}


def test_years_are_sorted_and_can_be_chosen(folder):
    whole, one = SeerProstate().table(), SeerProstate(years="2019").table()
    assert len(whole.labels) == 2 * (N - 1) and len(one.labels) == N - 1
    assert whole.attributes["sex"][N - 1 :] == one.attributes["sex"]


def test_clean_features_are_flags_of_their_rows(folder):
    task, frame = SeerProstate(), complete()
    rows, inputs = task.rows("site-2")["test"], task.site_data("site-2").splits["test"].inputs.numpy()
    assert inputs.shape[1] == CLEAN == task.n_features() and task.network()(torch.zeros(1, CLEAN)).shape == (1, 11)
    expected = [frame[c] == v for c in task.columns("clean") for v in sorted(set(frame[c]))]
    np.testing.assert_array_equal(inputs, np.array(expected).T[rows])


def test_what_the_label_follows_from_is_no_clean_feature(folder, tmp_path, monkeypatch):
    before = SeerProstate(years="2018").site_data("site-1").splits["train"].inputs
    frame = made_up("2018")
    for name in (*NUMBERS, "Laterality", "Reason no cancer-directed surgery", "RX Summ--Systemic/Sur Seq (2007+)"):
        frame[name] = 1
    write(tmp_path, frame=frame)
    monkeypatch.setenv("FAIRFLARE_DATA", str(tmp_path))
    assert torch.equal(SeerProstate().site_data("site-1").splits["train"].inputs, before)


def test_paper_features_hold_the_numbers_unscaled(folder):
    task, frame = SeerProstate(features="paper"), complete("paper")
    rows, inputs = task.rows("site-1")["val"], task.site_data("site-1").splits["val"].inputs
    np.testing.assert_array_equal(inputs[:, :3], frame[list(NUMBERS)].to_numpy(dtype=float)[rows])
    assert inputs.shape[1] == 3 + CLEAN + 9
    # The primary site alone tells the cancer.
    sites = task.table().plain[:, 0]
    assert len({*zip(sites, task.table().labels)}) == len(set(sites)) == 13


def test_attributes_follow_their_rows(folder):
    task, frame = SeerProstate(), complete()
    words = {"White": "white", "Black": "black", RACES[2]: "other", "Unknown": "unknown"}
    data, rows = task.site_data("site-2"), task.rows("site-2")
    for split in ("train", "val", "test"):
        found = data.attributes(split)
        assert list(found["race"]) == [words[frame[SEER_RACE][i]] for i in rows[split]]
        assert list(found["sex"]) == [frame[SEER_SEX][i].lower() for i in rows[split]]
    groups = next(data.grouped(task.grouping("race")).fixed("test", 10_000)).groups
    assert [g < 0 for g in groups] == [frame[SEER_RACE][i] == "Unknown" for i in rows["test"]]
    assert set(SeerProstate(race="", sex="").table().attributes["race"]) == {""}


def test_a_patient_stays_together(folder, tmp_path, monkeypatch):
    frame = made_up("2018").drop(index=7).reset_index(drop=True)
    frame["Patient ID"] = frame.index // 3
    write(tmp_path, frame=frame)
    monkeypatch.setenv("FAIRFLARE_DATA", str(tmp_path))
    for patient, together in (("Patient ID", True), ("", False)):
        task = SeerProstate(patient=patient)
        parts = [{i // 3 for i in r} for site in task.sites() for r in task.rows(site).values()]
        assert (sum(map(len, parts)) == len(set.union(*parts)) == 300) == together


def test_the_same_twice_and_another_with_another_seed(folder):
    one, two = (SeerProstate().site_data("site-2").splits for _ in range(2))
    for split in one:
        assert torch.equal(one[split].inputs, two[split].inputs)
        assert torch.equal(one[split].targets, two[split].targets)
    assert SeerProstate(data_seed=1).rows("site-2")["test"].tolist() != SeerProstate().rows("site-2")["test"].tolist()


def test_a_limit(folder):
    assert [len(rows) for rows in SeerProstate(limit=6).rows("site-1").values()] == [6, 6, 6]


def test_columns_by_other_names(tmp_path, monkeypatch):
    names = {LABEL: "Site", SEER_RACE: "Race", CATEGORIES[0]: "Age; years"}
    write(tmp_path, frame=made_up("2018").rename(columns=names | {CATEGORIES[0]: "Age"}))
    monkeypatch.setenv("FAIRFLARE_DATA", str(tmp_path))
    message = f"2018.xlsx: expected columns '{LABEL}', '{CATEGORIES[0]}', .*; it has: Site, Patient ID, Primary Site, "
    with pytest.raises(DataError, match=message.replace("(", r"\(").replace(")", r"\)")) as caught:
        SeerProstate().check_data()
    assert "\n" not in str(caught.value)
    task = SeerProstate(label="Site", race="Race", numbers="Patient ID", categories="Age; Race;Sex")
    assert task.n_features() == 1 + 3 + 4 + 2 and len(task.table().labels) == N


def test_a_site_may_have_its_own_copy(folder, monkeypatch):
    before = SeerProstate().rows("site-1")["test"]
    monkeypatch.delenv("FAIRFLARE_DATA")
    assert SeerProstate().local_data("site-1", SiteConfig(data_root=str(folder))).size("test") == len(before)


@pytest.mark.parametrize(
    "years, made, missing",
    [("", False, "nowhere/seer"), ("", True, "seer/<year>.xlsx"), ("2018, 2020", True, "seer/2018.xlsx")],
)
def test_missing_files_are_named_and_the_tree_shown(years, made, missing, tmp_path, monkeypatch):
    folder = tmp_path / "nowhere"
    monkeypatch.setenv("FAIRFLARE_DATA", str(folder))
    if made:
        (folder / "seer").mkdir(parents=True)
    with pytest.raises(MissingData) as caught:
        SeerProstate(years=years).check_data()
    assert f"{missing}; expected" in str(caught.value) and "\n" not in str(caught.value)
    assert caught.value.tree.split()[0] == "seer/2018.xlsx"


@pytest.mark.parametrize(
    "features, column, cell, message",
    [
        ("paper", "Primary Site", "C61.9", "2018.xlsx: Primary Site, row 5: expected a number, got 'C61.9'"),
        ("paper", "Histologic Type ICD-O-3", "x", "2018.xlsx: Histologic Type ICD-O-3, row 5: expected a number"),
    ],
)
def test_a_bad_cell_is_named(features, column, cell, message, tmp_path, monkeypatch):
    frame = made_up("2018").iloc[:50]
    frame[column] = frame[column].astype(object)
    frame.loc[3, column] = cell
    write(tmp_path, frame=frame)
    monkeypatch.setenv("FAIRFLARE_DATA", str(tmp_path))
    with pytest.raises(DataError, match=message):
        SeerProstate(features=features).check_data()


def test_sheets_without_rows(tmp_path, monkeypatch):
    write(tmp_path, frame=made_up("2018").iloc[:0])
    monkeypatch.setenv("FAIRFLARE_DATA", str(tmp_path))
    with pytest.raises(DataError, match="2018.xlsx: expected rows without an empty cell, got none"):
        SeerProstate().check_data()


@each(
    "options, message",
    [
        ({"sites_by": "year"}, "years: expected years where sites_by names them, got ''"),
        ({"sites_by": "year", "years": "2018,2019,2020"}, r"n_sites: expected 3 years \(or set sites_by"),
        ({"sites_by": "year+dirichlet", "years": "2018,2019,2020"}, "n_sites: expected a multiple of the 3 years"),
        ({"years": "2018,2018"}, "years: expected different years"),
        ({"years": "../2018"}, "years: expected names of files, without folders"),
        ({"label": ""}, "label: expected a column that is no feature"),
        ({"label": "Sex"}, "label: expected a column that is no feature, got 'Sex'"),
        ({"patient": "Sex"}, "patient: expected a column that is no feature, got 'Sex'"),
        ({"numbers": "Sex"}, "categories: expected different columns"),
        ({"categories": "Laterality"}, "categories: expected columns besides those that leak"),
        ({"limit": 1}, "limit: expected at least 2"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message):
        SeerProstate(**options)


def test_a_run(folder, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(
            [
                "run",
                "fedufo",
                "--task",
                "seer-prostate",
                "--rounds",
                "2",
                "--no-solo",
                "--json",
                "--out",
                str(tmp_path / "r"),
            ]
        )
    streams = capsys.readouterr()
    assert stop.value.code == 0, streams.err
    report = json.loads(streams.out)["report"]
    assert set(report["sites"]) == {"site-1", "site-2"}
    assert all(1 / 11 < row["metrics"]["accuracy"] < 1 for row in report["sites"].values())
