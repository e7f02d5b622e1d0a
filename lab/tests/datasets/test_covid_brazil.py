# SPDX-License-Identifier: Apache-2.0
"""The table that the user brings: splits are whole, nothing leaks by default, and mistakes are answered in one line.

The table is made up, with the real one's columns; test_real_tables.py has the real one.
"""

import csv
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from cases import each
from fairflare.core.errors import MissingData, UserError
from fairflare.data.site_config import SiteConfig
from fairflare.engine.setup.tasks import load
from fairflare_lab.datasets import fedufo_tables
from fairflare_lab.datasets.fedufo_tables import CovidBrazil

PER_REGION = 80
N = PER_REGION * len(fedufo_tables.REGIONS)
PRESETS = list(CovidBrazil.presets)
CELLS = dict(zip(fedufo_tables.COLUMNS, range(len(fedufo_tables.COLUMNS))))
UNKNOWN_RACE, UNKNOWN_SEX = 7, 8
"""Rows whose ethnicity is none of the codes, and whose sex is missing."""


def patients():
    """The table that the environment names."""
    return fedufo_tables.read_patients(Path(os.environ["FAIRFLARE_DATA"], fedufo_tables.FILE).resolve())


def made_up():
    """400 rows of text cells; 80 per region, death likelier with age, the days a function of the outcome."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(N):
        age = int(rng.integers(0, 100))
        died = int(rng.random() < age / 100)
        race, flags = i // len(fedufo_tables.REGIONS) % len(fedufo_tables.RACES), rng.integers(0, 2, 17)
        rows.append([died, 30 if died else 2, age, i % 2, race, i % len(fedufo_tables.REGIONS), *flags])
    rows = [[str(cell) for cell in row] for row in rows]
    rows[UNKNOWN_RACE][CELLS["Ethnicity"]] = "9"
    rows[UNKNOWN_SEX][CELLS["Sex"]] = ""
    rows[0][CELLS["Age"]] = "60"
    return rows


def write(folder, rows, columns=fedufo_tables.COLUMNS):
    with (folder / fedufo_tables.FILE).open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write(tmp_path, made_up())
    monkeypatch.setenv("FAIRFLARE_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("preset", PRESETS)
def test_what_is_known_without_the_file(preset, monkeypatch):
    monkeypatch.delenv("FAIRFLARE_DATA", raising=False)
    task = load("covid-brazil", preset)
    regions = ["Central-West", "North", "Northeast", "South", "Southeast"]
    assert list(task.sites().values()) == (regions if preset == "regions" else ["label skew, alpha 0.5"] * 2)
    assert task.network()(torch.zeros(2, 24)).shape == (2, 2)
    assert task.grouping("sex+white").names[:2] == ("female, not white", "female, white")


def test_the_presets_are_plain_sgd():
    """Adam and momentum would blur what a weight on an example's loss does."""
    for preset in (one for name, one in CovidBrazil.presets.items() if name != "paper"):
        assert (preset.training.optimizer, preset.training.momentum, preset.training.batch_size) == ("sgd", 0, 32)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_patient_is_in_one_split_of_one_site(preset, folder):
    task = load("covid-brazil", preset, alpha=2.0)
    rows = [r for site in task.sites() for r in task.rows(site).values()]
    assert sorted(np.concatenate(rows)) == list(range(N))


def test_a_region_has_its_own_patients(folder):
    task = CovidBrazil()
    for k, site in enumerate(task.sites()):
        rows = np.concatenate(list(task.rows(site).values()))
        assert len(rows) == PER_REGION and set(patients()["region"][rows]) == {k}


def test_splits_hold_their_share_of_both_outcomes(folder):
    task = CovidBrazil(test_fraction=0.25, val_fraction=0.2)
    died = patients()["died"]
    for site in task.sites():
        rows = task.rows(site)
        members = died[np.concatenate(list(rows.values()))]
        for outcome in (0, 1):
            n = (members == outcome).sum()
            n_test = round(0.25 * n)
            assert (died[rows["test"]] == outcome).sum() == n_test
            assert (died[rows["val"]] == outcome).sum() == round(0.2 * (n - n_test))


@pytest.mark.parametrize("preset", PRESETS)
def test_site_data_twice_the_same(preset, folder):
    one, two = (load("covid-brazil", preset, alpha=2.0).site_data("site-2").splits for _ in range(2))
    for split in one:
        assert torch.equal(one[split].inputs, two[split].inputs)
        assert torch.equal(one[split].targets, two[split].targets)


def test_label_skew_within_regions(folder, monkeypatch):
    monkeypatch.setattr(CovidBrazil, "smallest_site", 20)
    monkeypatch.setattr(CovidBrazil, "smallest_class", 5)
    task = CovidBrazil(sites_by="region+dirichlet", n_sites=10, alpha=0.3)
    assert list(task.sites().values())[3:5] == ["North; label skew, alpha 0.3", "Northeast; label skew, alpha 0.3"]
    rows = [np.concatenate(list(task.rows(site).values())) for site in task.sites()]
    assert sorted(np.concatenate(rows)) == list(range(N))
    died, region = patients()["died"], patients()["region"]
    for k, members in enumerate(rows):
        assert set(region[members]) == {k // 2} and np.bincount(died[members], minlength=2).min() >= 5
        assert len(members) >= 20
    # The two sites of a region differ in who died far more than by chance.
    share = np.array([died[members].mean() for members in rows]).reshape(5, 2)
    assert np.abs(share[:, 0] - share[:, 1]).max() > 0.3
    again = CovidBrazil(sites_by="region+dirichlet", n_sites=10, alpha=0.3)
    assert again.rows("site-7")["train"].tolist() == task.rows("site-7")["train"].tolist()
    even = CovidBrazil(sites_by="region+dirichlet", n_sites=10, alpha=1e6)
    share = np.array([died[np.concatenate(list(even.rows(site).values()))].mean() for site in even.sites()])
    assert np.abs(share.reshape(5, 2) @ (1, -1)).max() < 0.3


def test_a_region_that_cannot_be_shared_is_named(folder):
    with pytest.raises(UserError, match="Central-West: no split of 80 examples over 4 sites with at least 40 each"):
        CovidBrazil(sites_by="region+dirichlet", n_sites=20).rows("site-1")


def test_another_seed_splits_otherwise(folder):
    one, two = (CovidBrazil(data_seed=seed).rows("site-1")["test"].tolist() for seed in (1, 2))
    assert one != two


def columns_of(task, site="site-2", split="train"):
    return task.site_data(site).splits[split].inputs.numpy().T, task.rows(site)[split]


def test_clean_features_hold_no_days(folder, monkeypatch):
    """Other days, and another region's ages, change nothing at a site."""
    before, _ = columns_of(CovidBrazil())
    rows = made_up()
    for row in rows:
        row[CELLS[fedufo_tables.DAYS]] = "5"
        if row[CELLS[fedufo_tables.REGION]] == "0":
            row[CELLS[fedufo_tables.AGE]] = "50"
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    write(elsewhere, rows)
    monkeypatch.setenv("FAIRFLARE_DATA", str(elsewhere))
    after, _ = columns_of(CovidBrazil())
    assert len(before) == 24 and (before == after).all()


def test_clean_features_follow_their_patients(folder):
    columns, rows = columns_of(CovidBrazil(), split="test")
    table = patients()
    train = table["age"][CovidBrazil().rows("site-2")["train"]]
    np.testing.assert_allclose(columns[0], (table["age"][rows] - train.mean()) / train.std(), atol=1e-5)
    np.testing.assert_array_equal(columns[1], table["sex"][rows] == 1)
    np.testing.assert_array_equal(columns[2:19].T, table["flags"][rows])
    np.testing.assert_array_equal(columns[19:24].T, table["race"][rows, None] == np.arange(5))


def test_paper_features_leak_and_are_unscaled(folder):
    task = CovidBrazil(features="paper")
    columns, rows = columns_of(task)
    table = patients()
    assert len(columns) == 30 and task.network()(torch.zeros(2, 30)).shape == (2, 2)
    np.testing.assert_array_equal(columns[0], table["age"][rows])
    np.testing.assert_array_equal(columns[-1], table["days"][rows])
    np.testing.assert_array_equal(columns[-1] > 10, table["died"][rows] == 1)
    bins = np.digitize(table["age"][rows], (40, 50, 60, 70))
    np.testing.assert_array_equal(columns[24:29].T, bins[:, None] == np.arange(5))


def test_attributes_follow_their_patients(folder):
    task = CovidBrazil()
    assert list(task.attributes) == ["race", "white", "sex", "age"]
    cells = made_up()
    for site in task.sites():
        data, rows = task.site_data(site), task.rows(site)
        for split in ("train", "val", "test"):
            attributes = data.attributes(split)
            assert set(attributes) == set(task.attributes)
            for j, i in enumerate(rows[split]):
                race, age = cells[i][CELLS[fedufo_tables.RACE]], int(cells[i][CELLS[fedufo_tables.AGE]])
                if i != UNKNOWN_RACE:
                    assert attributes["race"][j] == fedufo_tables.RACES[int(race)]
                    assert attributes["white"][j] == ("white" if race == "1" else "not white")
                if i != UNKNOWN_SEX:
                    assert attributes["sex"][j] == ("female", "male")[i % 2]
                assert attributes["age"][j] == ("60 and over" if age >= 60 else "under 60")


def test_an_unknown_value_belongs_to_no_group(folder):
    task = CovidBrazil()
    for row, by, known in ((UNKNOWN_RACE, "label+white", "age"), (UNKNOWN_SEX, "sex", "race")):
        site = f"site-{row % 5 + 1}"
        rows = task.rows(site)
        split = next(name for name in rows if row in rows[name])
        place = rows[split].tolist().index(row)
        groups = next(task.site_data(site).grouped(task.grouping(by)).fixed(split, 1000)).groups
        assert groups[place] == -1 and (groups == -1).sum() == 1
        assert next(task.site_data(site).grouped(task.grouping(known)).fixed(split, 1000)).groups[place] >= 0


def test_an_unknown_ethnicity_is_a_row_of_zeros(folder):
    flags = fedufo_tables.clean_flags(patients())[:, -5:]
    assert (flags[UNKNOWN_RACE] == 0).all() and flags.sum() == N - 1


@pytest.mark.parametrize("value", [None, "", "nowhere"])
def test_a_missing_file_is_named_and_the_tree_shown(value, monkeypatch):
    monkeypatch.delenv("FAIRFLARE_DATA", raising=False)
    if value is not None:
        monkeypatch.setenv("FAIRFLARE_DATA", value)
    for call in (CovidBrazil().check_data, lambda: CovidBrazil().site_data("site-1")):
        with pytest.raises(MissingData) as caught:
            call()
        message = str(caught.value)
        expected = (
            "no such file or folder: nowhere/covid_brazil.csv" if value else "folder of its data in FAIRFLARE_DATA"
        )
        assert message.startswith("task covid-brazil: ") and expected in message and "\n" not in message
        assert str(Path.cwd()) not in message
        assert caught.value.tree.split()[:3] == ["covid_brazil.csv", "23", "columns:"]


def test_a_site_may_have_its_own_copy(folder, tmp_path, monkeypatch):
    before = CovidBrazil().site_data("site-2").splits["train"].inputs
    monkeypatch.delenv("FAIRFLARE_DATA")
    after = CovidBrazil().local_data("site-2", SiteConfig(data_root=str(folder)))
    assert torch.equal(after.splits["train"].inputs, before)


def test_a_missing_column_is_named(folder):
    keep = [j for j, name in enumerate(fedufo_tables.COLUMNS) if name not in ("Ethnicity", "Renal")]
    write(folder, [[row[j] for j in keep] for row in made_up()], [fedufo_tables.COLUMNS[j] for j in keep])
    with pytest.raises(UserError, match="covid_brazil.csv: expected 23 columns, got none named Ethnicity, Renal"):
        CovidBrazil().site_data("site-1")


def test_more_columns_in_another_order_do_not_matter(folder):
    before = CovidBrazil().site_data("site-3").splits["test"].inputs
    other = folder / "other"
    other.mkdir()
    write(other, [["x", *reversed(row)] for row in made_up()], ["note", *reversed(fedufo_tables.COLUMNS)])
    after = CovidBrazil().local_data("site-3", SiteConfig(data_root=str(other))).splits["test"].inputs
    assert torch.equal(before, after)


@pytest.mark.parametrize(
    "column, cell, message",
    [
        ("is_dead", "2", "is_dead, line 5: expected 0 or 1, got '2'"),
        ("Region", "North", r"Region, line 5: expected 0\.\.4, got 'North'"),
        ("Age", "", "Age, line 5: expected years >= 0, got ''"),
        ("Age", "inf", "Age, line 5: expected years >= 0, got 'inf'"),
        ("Days_hospital_to_outcome", "-1", "Days_hospital_to_outcome, line 5: expected days >= 0, got '-1'"),
    ],
)
def test_a_bad_cell_is_named(column, cell, message, folder):
    rows = made_up()
    rows[3][CELLS[column]] = cell
    write(folder, rows)
    with pytest.raises(UserError, match=f"covid_brazil.csv: {message}"):
        CovidBrazil().site_data("site-1")


def test_a_region_that_is_too_small(folder):
    write(folder, [row for row in made_up() if row[CELLS["Region"]] != "3"])
    with pytest.raises(UserError, match=r"expected at least 40 patients of South, 10 of each class, got \[0, 0\]"):
        CovidBrazil().site_data("site-1")


BAD = [
    ({"n_sites": 6}, "n_sites: expected 5 regions .*dirichlet.*got 6"),
    ({"sites_by": "dirichlet", "n_sites": 1}, "n_sites: expected 2..50, got 1"),
    ({"data_seed": -3}, "data_seed: expected at least 0"),
    ({"alpha": 0.0}, "alpha: expected a number above 0, got 0.0"),
    ({"test_fraction": 0.0}, r"test_fraction: expected a number in \(0, 0.5\], got 0.0"),
    ({"features": "all"}, "features: expected one of clean, paper, got 'all'"),
    ({"sites_by": "state"}, r"sites_by: expected one of region, dirichlet, region\+dirichlet"),
    ({"sites_by": "region+dirichlet", "n_sites": 7}, "n_sites: expected a multiple of the 5 regions, got 7"),
    ({"sites_by": "region+dirichlet", "n_sites": 0}, "n_sites: expected 2..50, got 0"),
]


@each("options, message", BAD)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message):
        CovidBrazil(**options)
