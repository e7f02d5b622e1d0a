# SPDX-License-Identifier: Apache-2.0
"""The tabular task: the support2 is whole, nothing leaks, and a site uses nobody's statistics but its own."""

import dataclasses
import gzip
from importlib import resources

import numpy as np
import pytest
import torch

from cases import each
from fairflare.core.errors import UserError
from fairflare.data.inputs import Scaling
from fairflare.datasets import support2
from fairflare.datasets.support2 import Support2, table_of
from fairflare.engine.setup.tasks import load

LEAKS = {
    *("d.time", "slos", "hday", "charges", "totcst", "totmcst", "avtisst", "surv2m", "surv6m", "prg2m", "prg6m"),
    *("aps", "sps", "dnr", "dnrday", "sfdm2", "adlsc", "sno"),
}
PRESETS = list(Support2.presets)


def test_the_cohort_is_whole():
    table = support2.cells_of()
    assert len(table) == 30 and {len(cells) for cells in table.values()} == {9105}
    assert sum(map(int, table["hospdead"])) == 2360 and sum(map(int, table["death"])) == 6201
    assert table["race"].count("black") == 1391 and table["race"].count("") == 42
    assert sorted(map(table["dzclass"].count, support2.DISEASE_CLASSES)) == [596, 1420, 2862, 4227]


def test_nothing_that_tells_the_outcome_is_there():
    assert not LEAKS & set(support2.cells_of())
    used = set(support2.NUMBERS) | set(support2.CATEGORIES)
    assert not used & {"hospdead", "death", "dzclass"} and len(used) == 27


def test_no_feature_alone_predicts_the_outcome():
    """A leak like the length of stay would."""
    from fairflare.tasks.metrics import auc

    died = support2.outcomes("hospital_death") == 1
    for column in support2.features()[0].T:
        known = ~np.isnan(column)
        value = auc(column[known], died[known])
        assert 0.25 < value < 0.75


def test_every_category_of_the_table_is_known():
    for name, values in support2.CATEGORIES.items():
        assert set(support2.cells_of()[name]) - {""} == set(values)


def test_missing_category_is_a_row_of_zeros():
    start = 2
    race = support2.features()[1][:, start : start + 5]
    missing = np.array(support2.cells_of()["race"]) == ""
    assert (race[missing] == 0).all() and (race[~missing].sum(1) == 1).all()


def test_the_file_has_no_time_stamp():
    packed = resources.files("fairflare.datasets").joinpath("data/support2.csv.gz").read_bytes()
    assert packed[4:8] == b"\0\0\0\0" and packed[3] == 0 and len(packed) < 320_000
    assert gzip.decompress(packed).startswith(b"age,sex,")


@pytest.mark.parametrize("preset", PRESETS)
def test_every_patient_is_in_one_split_of_one_site(preset):
    task = load("support2", preset)
    rows = [r for site in task.sites() for r in task.rows(site).values()]
    assert sorted(np.concatenate(rows)) == list(range(9105))


@pytest.mark.parametrize("preset", PRESETS)
def test_site_data_twice_the_same(preset):
    for site in load("support2", preset).sites():
        one, two = (load("support2", preset).site_data(site).splits for _ in range(2))
        for split in one:
            assert torch.equal(one[split].inputs, two[split].inputs) and torch.equal(
                one[split].targets, two[split].targets
            )


def test_another_seed_splits_otherwise():
    one, two = (Support2(data_seed=seed).rows("site-1")["test"].tolist() for seed in (1, 2))
    assert one != two


def test_natural_sites_are_disease_classes():
    task = Support2()
    assert task.sites() == {f"site-{k}": c for k, c in enumerate(support2.DISEASE_CLASSES, 1)}
    for site, name in task.sites().items():
        rows = np.concatenate(list(task.rows(site).values()))
        assert {support2.cells_of()["dzclass"][i] for i in rows} == {name}


def test_dirichlet_sites_have_both_outcomes_in_all_splits():
    task = load("support2", "dirichlet", alpha=1.0)
    for site in task.sites():
        assert task.site_data(site).class_counts.min() >= 5


def test_label_skew_within_disease_classes():
    task = Support2(sites_by="dzclass+dirichlet", n_sites=12, alpha=0.5)
    died, dzclass = support2.outcomes(task.label), np.array(support2.cells_of()["dzclass"])
    rows = [np.concatenate(list(task.rows(site).values())) for site in task.sites()]
    assert sorted(np.concatenate(rows)) == list(range(9105))
    for members, kind in zip(rows, task.sites().values()):
        name, words = kind.split("; ")
        assert set(dzclass[members]) == {name} and words == "label skew, alpha 0.5"
        assert len(members) >= 40 and np.bincount(died[members], minlength=2).min() >= 15
    share = np.array([died[members].mean() for members in rows]).reshape(4, 3)
    assert (share.max(1) - share.min(1)).min() > 0.05 and (share.max(1) - share.min(1)).max() > 0.2


def test_one_share_of_each_disease_class_is_that_class():
    """As many sites as classes: both ways of naming them give the same patients to the same site."""
    whole, shares = Support2(), Support2(sites_by="dzclass+dirichlet")
    for site in whole.sites():
        for split, rows in whole.rows(site).items():
            assert rows.tolist() == shares.rows(site)[split].tolist()


def test_fractions():
    rows = Support2(test_fraction=0.3, val_fraction=0.1).rows("site-2")
    assert len(rows["test"]) == round(0.3 * 2862) and len(rows["val"]) == round(0.1 * (2862 - len(rows["test"])))


def test_numbers_are_scaled_by_the_sites_training_rows():
    data = Support2().site_data("site-3")
    train, test = (data.splits[s].inputs[:, : len(support2.NUMBERS)] for s in ("train", "test"))
    assert train.mean(0).abs().max() < 1e-5 and (train.std(0, correction=0) - 1).abs().max() < 1e-4
    assert test.mean(0).abs().max() > 0.02  # scaled by others' statistics
    assert torch.isfinite(test).all()


def test_gaps_are_filled_with_the_sites_training_median():
    task = Support2()
    column = support2.NUMBERS.index("alb")
    rows, data = task.rows("site-2"), task.site_data("site-2")
    raw = support2.features()[0][:, column]
    median = np.nanmedian(raw[rows["train"]])
    filled = np.where(np.isnan(raw[rows["train"]]), median, raw[rows["train"]])
    expected = (median - filled.mean()) / filled.std()
    gaps = np.isnan(raw[rows["test"]])
    assert gaps.sum() > 50
    np.testing.assert_allclose(data.splits["test"].inputs[gaps, column], expected, atol=1e-5)
    assert median != np.nanmedian(raw)


def test_test_patients_do_not_move_the_statistics(monkeypatch):
    task = Support2()
    before, test = (task.site_data("site-4").splits[name].inputs for name in ("train", "test"))
    changed = support2.features()[0].copy()
    changed[task.rows("site-4")["test"]] = 1e6
    changed[task.rows("site-1")["train"]] = 1e6
    other = dataclasses.replace(table_of(task.label), numbers=changed)
    monkeypatch.setattr(Support2, "table", lambda self, own=None: other)
    assert not torch.equal(task.site_data("site-4").splits["test"].inputs, test)
    assert torch.equal(task.site_data("site-4").splits["train"].inputs, before)


def test_a_column_without_values_becomes_zero():
    train = np.array([[1.0, np.nan], [3.0, np.nan]])
    scaled = Scaling.of(train)
    assert scaled(train).tolist() == [[-1.0, 0.0], [1.0, 0.0]]
    assert scaled(np.array([[np.nan, np.nan]])).tolist() == [[0.0, 0.0]]


def test_attributes_follow_their_patients():
    task = Support2()
    data, rows = task.site_data("site-4"), task.rows("site-4")
    for split in ("train", "val", "test"):
        attributes = data.attributes(split)
        assert set(attributes) == set(task.attributes) == {"race", "sex"}
        assert list(attributes["race"]) == [support2.cells_of()["race"][i] for i in rows[split]]


def test_labels():
    for label, column in (("hospital_death", "hospdead"), ("death", "death")):
        task = Support2(label=label)
        expected = [int(support2.cells_of()[column][i]) for i in task.rows("site-1")["val"]]
        assert task.site_data("site-1").splits["val"].targets.tolist() == expected
    assert task.classes == ("survived", "died")


@pytest.mark.parametrize("model", ["mlp", "linear"])
def test_the_network_takes_what_the_site_gives(model):
    task = Support2(model=model)
    inputs, targets, _ = next(task.site_data("site-4").training(16, 0))
    values = task.evaluate(task.network()(inputs), targets)
    assert {"accuracy", "loss"} <= set(values) <= {*task.metrics, "loss"}


def test_a_linear_model_learns_something():
    task = Support2(model="linear", sites_by="dirichlet", n_sites=2, alpha=1e6)
    data = task.site_data("site-1")
    torch.manual_seed(0)
    network = task.network()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    for epoch in range(4):
        for inputs, targets, _ in data.training(64, epoch):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(inputs), targets).backward()
            optimizer.step()
    inputs, targets, _ = next(data.fixed("test", 10_000))
    assert 0.74 < task.evaluate(network(inputs), targets)["auc"] < 0.88


BAD = [
    ({"n_sites": 6}, "n_sites: expected 4 disease classes .*dirichlet.*got 6"),
    ({"sites_by": "dirichlet", "n_sites": 1}, "n_sites: expected 2..50, got 1"),
    ({"alpha": -1.0}, "alpha: expected a number above 0, got -1.0"),
    ({"test_fraction": 0.0}, r"test_fraction: expected a number in \(0, 0.5\], got 0.0"),
    ({"val_fraction": 0.9}, "val_fraction: expected"),
    ({"label": "cost"}, "label: expected one of hospital_death, death, got 'cost'"),
    ({"sites_by": "race"}, r"sites_by: expected one of dzclass, dirichlet, dzclass\+dirichlet"),
    ({"sites_by": "dzclass+dirichlet", "n_sites": 6}, "n_sites: expected a multiple of the 4 disease classes, got 6"),
    ({"model": "resnet18"}, "model: expected one of mlp, linear"),
    ({"data_seed": -3}, "data_seed: expected at least 0"),
]


@each("options, message", BAD)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message):
        Support2(**options)
