# SPDX-License-Identifier: Apache-2.0
"""FedUFO's SUPPORT columns from a made-up table under the real names, as Excel or CSV."""

import json
import sys

import numpy as np
import pandas as pd
import pytest
import torch

from cases import each
from fairflare.cli.main import main
from fairflare.core.errors import DataError, MissingData, UserError
from fairflare.data.site_config import SiteConfig
from fairflare.datasets import support2
from fairflare.engine.audit import verify
from fairflare.engine.setup.tasks import load
from fairflare_lab.datasets.support import CATEGORIES, NUMBERS, PAPER_NUMBERS, Support

N = 480
COMPLETE = (*NUMBERS, "avtisst")
UNKNOWN_RACE, UNKNOWN_INCOME, GAP = 3, 4, 5
"""Rows without a race, without an income, and without a heart rate."""
KINDS = {"support.xlsx": pd.DataFrame.to_excel, "support2.csv": pd.DataFrame.to_csv}


def made_up(gap=False):
    """480 patients, 120 per disease class, death likelier with age; avtisst and d.time tell the outcome."""
    rng = np.random.default_rng(0)
    age = rng.uniform(20, 90, N).round(1)
    death = (rng.random(N) < age / 120).astype(int)
    table = {"age": age, "death": death, "sex": [("female", "male")[i % 2] for i in range(N)]}
    table["d.time"] = np.where(death == 1, 5, 900)
    for name, values in CATEGORIES.items():
        table[name] = [values[i % len(values)] for i in range(N)]
    for name in PAPER_NUMBERS[1:]:
        column = rng.normal(100, 20, N).round(1)
        table[name] = column if name in COMPLETE else np.where(rng.random(N) < 0.3, np.nan, column)
    table["avtisst"] = death * 10.0 + 5
    table["num.co"] = rng.integers(0, 5, N)
    frame = pd.DataFrame(table)
    frame.loc[UNKNOWN_RACE, "race"] = None
    frame.loc[UNKNOWN_INCOME, "income"] = None
    if gap:
        frame.loc[GAP, "hrt"] = None
    return frame


def write(folder, frame, file="support2.csv"):
    KINDS[file](frame, folder / file, index=False)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("support")
    write(folder, made_up(), "support.xlsx")
    return folder


@pytest.fixture
def folder(shared, monkeypatch):
    monkeypatch.setenv("FAIRFLARE_DATA", str(shared))
    return shared


def test_what_is_known_without_the_file(monkeypatch):
    monkeypatch.delenv("FAIRFLARE_DATA", raising=False)
    assert list(load("support").sites().values()) == ["label skew, alpha 0.1"] * 2
    assert list(load("support", "dzclass").sites().values()) == list(support2.DISEASE_CLASSES)
    assert load("support").network()(torch.zeros(3, 28)).shape == (3, 2)
    assert load("support").grouping("label+black").names[1] == "survived, black"
    with pytest.raises(MissingData):  # the file decides how many columns there are
        Support(features="paper").network()


def test_the_settings_of_the_paper():
    training, task = Support.presets["paper"].training, load("support", "paper")
    assert (training.rounds, training.batch_size, training.optimizer) == (10, 32, "adam")
    assert (task.model, task.n_sites, task.alpha, task.features) == ("mlp", 2, 0.1, "clean")
    assert Support.presets["paper"].settings_of("fedufo")["gamma"] == 1


@pytest.mark.parametrize("preset", Support.presets)
def test_every_patient_is_in_one_split_of_one_site(preset, folder):
    task = load("support", preset)
    rows = [r for site in task.sites() for r in task.rows(site).values()]
    assert sorted(np.concatenate(rows)) == list(range(N))
    for site in task.sites():
        splits = task.site_data(site).splits
        assert sum(map(len, splits.values())) >= 40
        assert torch.cat([s.targets for s in splits.values()]).bincount(minlength=2).min() >= 10


def test_sites_by_disease_class_with_and_without_skew(folder):
    dzclass = made_up()["dzclass"].to_numpy()
    skewed = Support(sites_by="dzclass+dirichlet", n_sites=8, alpha=1.0)
    for task, per_class in ((load("support", "dzclass"), 1), (skewed, 2)):
        for k, site in enumerate(task.sites()):
            rows = np.concatenate(list(task.rows(site).values()))
            assert set(dzclass[rows]) == {support2.DISEASE_CLASSES[k // per_class]}


def test_the_same_twice_and_another_with_another_seed(folder):
    one, two = (Support().site_data("site-2").splits for _ in range(2))
    for split in one:
        assert torch.equal(one[split].inputs, two[split].inputs)
        assert torch.equal(one[split].targets, two[split].targets)
    assert Support(data_seed=1).rows("site-2")["test"].tolist() != Support().rows("site-2")["test"].tolist()


def test_clean_features_follow_their_patients(folder):
    task, frame = Support(sites_by="dzclass", n_sites=4), made_up()
    rows, data = task.rows("site-3"), task.site_data("site-3")
    train, test = (frame.iloc[rows[name]] for name in ("train", "test"))
    inputs = data.splits["test"].inputs.numpy()
    assert data.splits["test"].targets.tolist() == test["death"].tolist()
    numbers = train[list(NUMBERS)]
    expected = (test[list(NUMBERS)] - numbers.mean()) / numbers.std(ddof=0)
    np.testing.assert_allclose(inputs[:, :7], expected, atol=1e-5)
    place = 7
    for name, values in CATEGORIES.items():
        for value in values:
            np.testing.assert_array_equal(inputs[:, place], test[name] == value)
            place += 1
    assert inputs.shape[1] == place == 28


def test_a_missing_category_is_a_row_of_zeros(folder):
    columns = Support().table().plain
    assert columns[UNKNOWN_INCOME, :4].sum() == 0 and columns[UNKNOWN_RACE, -5:].sum() == 0
    assert columns[:, :4].sum() == columns[:, -5:].sum() == N - 1


def test_a_gap_is_filled_with_the_sites_training_median(tmp_path, monkeypatch):
    write(tmp_path, made_up(gap=True))
    monkeypatch.setenv("FAIRFLARE_DATA", str(tmp_path))
    task, frame = Support(), made_up(gap=True)
    found = 0
    for site in task.sites():
        rows = task.rows(site)
        heart = frame["hrt"].iloc[rows["train"]]
        filled = heart.fillna(heart.median())
        for split, chosen in rows.items():
            if GAP in chosen:
                value = task.site_data(site).splits[split].inputs[chosen.tolist().index(GAP), NUMBERS.index("hrt")]
                assert value == pytest.approx((heart.median() - filled.mean()) / filled.std(ddof=0), abs=1e-5)
                found += 1
    assert found == 1


def test_what_is_known_afterwards_is_no_clean_feature(folder, tmp_path, monkeypatch):
    before = Support().site_data("site-1").splits["train"].inputs
    frame = made_up()
    frame["avtisst"], frame["d.time"] = 1.0, 1.0
    write(tmp_path, frame, "support.xlsx")
    monkeypatch.setenv("FAIRFLARE_DATA", str(tmp_path))
    assert torch.equal(Support().site_data("site-1").splits["train"].inputs, before)


def test_paper_features_are_the_complete_numbers_unscaled(folder):
    task, frame = Support(features="paper"), made_up()
    kept = [name for name in PAPER_NUMBERS if name in COMPLETE]
    rows, inputs = task.rows("site-1")["val"], task.site_data("site-1").splits["val"].inputs
    assert inputs.shape[1] == len(kept) + 21 == task.n_features()
    np.testing.assert_allclose(inputs[:, : len(kept)], frame[kept].to_numpy()[rows], rtol=1e-6)
    # With avtisst the outcome is there for the taking.
    leak = inputs[:, kept.index("avtisst")]
    assert (leak > 10).long().tolist() == task.site_data("site-1").splits["val"].targets.tolist()


def test_paper_features_without_the_leak(tmp_path, monkeypatch):
    """As in the published 1,000 rows, where avtisst has gaps: 28 of upstream's 30."""
    frame = made_up()
    frame.loc[0, "avtisst"] = None
    write(tmp_path, frame, "support.xlsx")
    monkeypatch.setenv("FAIRFLARE_DATA", str(tmp_path))
    task = Support(features="paper", model="linear")
    assert task.network()(torch.zeros(1, 28)).shape == (1, 2)


def test_attributes_follow_their_patients(folder):
    task, frame = Support(), made_up()
    for site in task.sites():
        data, rows = task.site_data(site), task.rows(site)
        for split in ("train", "val", "test"):
            found = data.attributes(split)
            assert set(found) == set(task.attributes) == {"race", "black", "sex"}
            for j, i in enumerate(rows[split]):
                race = frame["race"][i] if i != UNKNOWN_RACE else ""
                black = {"": "", "black": "black"}.get(race, "not black")
                assert (found["race"][j], found["black"][j], found["sex"][j]) == (race, black, frame["sex"][i])


def test_excel_comes_first_and_csv_gives_the_same(folder, tmp_path, monkeypatch):
    before = Support().site_data("site-1").splits["test"].inputs
    write(tmp_path, made_up())
    monkeypatch.setenv("FAIRFLARE_DATA", str(tmp_path))
    assert torch.allclose(Support().site_data("site-1").splits["test"].inputs, before, atol=1e-6)
    both = tmp_path / "both"
    both.mkdir()
    write(both, made_up().iloc[:240], "support.xlsx")
    write(both, made_up())
    assert len(Support().table(SiteConfig(data_root=str(both))).labels) == 240


def test_a_limit(folder):
    assert [len(rows) for rows in Support(limit=5).rows("site-1").values()] == [5, 5, 5]


@pytest.mark.parametrize("value", [None, "nowhere"])
def test_a_missing_file_is_named_and_the_tree_shown(value, monkeypatch):
    monkeypatch.delenv("FAIRFLARE_DATA", raising=False)
    if value:
        monkeypatch.setenv("FAIRFLARE_DATA", value)
    with pytest.raises(MissingData) as caught:
        Support().check_data()
    assert ("nowhere/support.xlsx" if value else "in FAIRFLARE_DATA") in str(caught.value)
    assert [line.split()[0] for line in caught.value.tree.splitlines()] == ["support.xlsx", "support2.csv"]


@each(
    "column, cell, message",
    [
        ("death", 2, "support2.csv: death, row 5: expected 0, 1, got '2'"),
        ("death", None, "support2.csv: death, row 5: expected a number, got nothing"),
        ("hrt", "fast", "support2.csv: hrt, row 5: expected a number, got 'fast'"),
        ("race", "martian", "support2.csv: race, row 5: expected asian, black, .*, got 'martian'"),
        ("sex", "f", "support2.csv: sex, row 5: expected female, male, got 'f'"),
        ("dzclass", None, "support2.csv: dzclass, row 5: expected ARF/MOSF, .*, got nothing"),
    ],
)
def test_a_bad_cell_is_named(column, cell, message, tmp_path, monkeypatch):
    frame = made_up()
    frame[column] = frame[column].astype(object)
    frame.loc[3, column] = cell
    write(tmp_path, frame)
    monkeypatch.setenv("FAIRFLARE_DATA", str(tmp_path))
    with pytest.raises(DataError, match=message) as caught:
        Support().check_data()
    assert "\n" not in str(caught.value)


def test_missing_columns_are_named(tmp_path, monkeypatch):
    write(tmp_path, made_up().drop(columns=["race", "sod"]))
    monkeypatch.setenv("FAIRFLARE_DATA", str(tmp_path))
    with pytest.raises(DataError, match="support2.csv: expected columns 'race', 'sod'; it has: age, death, sex"):
        Support().check_data()


@pytest.mark.parametrize("file, kind", [("support.xlsx", "an Excel file"), ("support2.csv", "a CSV table")])
def test_a_file_that_is_no_table(file, kind, tmp_path, monkeypatch):
    (tmp_path / file).write_bytes(b"\xff\xfe\0")
    monkeypatch.setenv("FAIRFLARE_DATA", str(tmp_path))
    with pytest.raises(DataError, match=f"{file}: expected {kind}") as caught:
        Support().check_data()
    assert "\n" not in str(caught.value)


def test_what_to_install_is_said(folder, tmp_path, monkeypatch):
    write(tmp_path, made_up(), "support.xlsx")
    monkeypatch.setenv("FAIRFLARE_DATA", str(tmp_path))
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(UserError, match=r"support.xlsx: needs openpyxl: pip install 'fairflare\[tables\]'"):
        Support().check_data()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"sites_by": "dzclass"}, r"n_sites: expected 4 disease classes \(or set sites_by=dirichlet\), got 2"),
        ({"sites_by": "dzclass+dirichlet", "n_sites": 6}, "n_sites: expected a multiple of the 4 disease classes"),
        ({"features": "all"}, "features: expected one of clean, paper"),
        ({"limit": 0}, "limit: expected at least 2, or none, got 0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message):
        Support(**options)


def test_a_run(folder, tmp_path, capsys):
    grouped = ("--set", "group_by=label+black", "--set", "min_count=1")
    with pytest.raises(SystemExit) as stop:
        main(
            [
                "run",
                "fedufo",
                "--task",
                "support",
                "--rounds",
                "2",
                "--no-solo",
                *grouped,
                "--json",
                "--out",
                str(tmp_path / "r"),
            ]
        )
    streams = capsys.readouterr()
    assert stop.value.code == 0, streams.err
    report = json.loads(streams.out)["report"]
    assert report["fairness"]["metric"] == "auc" and all(
        row["metrics"]["auc"] > 0.4 for row in report["sites"].values()
    )
    evaluation = next(entry for entry in verify(tmp_path / "r" / "audit.jsonl") if entry["event"] == "evaluation")
    assert {g for site in evaluation["sites"].values() for g in site["groups"]["test"]} == {
        f"{outcome}, {black}" for outcome in ("survived", "died") for black in ("not black", "black")
    }
