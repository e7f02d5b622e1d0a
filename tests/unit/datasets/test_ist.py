# SPDX-License-Identifier: Apache-2.0
"""The International Stroke Trial: counts of the file, features known at randomisation alone, splits that stay."""

import collections
import gzip
import hashlib
import json
from importlib import resources

import numpy as np
import pytest
import torch

from cases import each
from fairflare.core.errors import UserError
from fairflare.core.types import Need
from fairflare.datasets import ist
from fairflare.engine.audit import verify
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import run_local
from fairflare.engine.setup.parts import build_parts
from fairflare.engine.setup.tasks import load
from fairflare.report.write import write_report
from fairflare.studies.study import arms
from fairflare.tasks.metrics import auc
from fairflare.tasks.preflight import preflight

AFTERWARDS = ("ID14", "FDEAD", "OCCODE", "DIED", "TD")
PREDICTED = ("EXPDD14", "EXPDD6", "EXPDDD")
"""The trial's own predictions, in the original file."""
SPLITS = {
    "countries": "7dd4df152f473b9499831187aa5f2d9f7e02286a24c8651885cf0ed38f044274",
    "hospitals": "9d82e682f28809d350edabb986ad0c4c701eb60e8645edc716e9e1afeb3314ff",
}


def hash_of_splits(task):
    """SHA-256 of every site's rows in every split."""
    rows = {site: {name: part.tolist() for name, part in task.rows(site).items()} for site in task.sites()}
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()


def test_the_file_is_whole():
    table = ist.table_of()
    assert len(table) == 29 and {len(cells) for cells in table.values()} == {19_435}
    assert len(set(table["HOSPNUM"])) == 466 and set(table["COUNTRY"]) == set(ist.COUNTRY_NAMES)
    assert len(ist.COUNTRY_NAMES) == len(set(ist.COUNTRY_NAMES.values())) == 36
    assert collections.Counter(table["OCCODE"]) == {"1": 4241, "2": 7884, "3": 3864, "4": 3296, "0": 97, "9": 53}
    assert table["DIED"].count("1") == 4370
    sizes = collections.Counter(table["HOSPNUM"])
    assert np.median(list(sizes.values())) == 23
    assert [sum(n >= least for n in sizes.values()) for least in (50, 100)] == [118, 49]
    of = {number: {c for n, c in zip(table["HOSPNUM"], table["COUNTRY"]) if n == number} for number in list(sizes)[:20]}
    assert {len(countries) for countries in of.values()} == {1}


def test_the_file_is_the_one_whose_hash_the_readme_has():
    folder = resources.files("fairflare.datasets").joinpath("data")
    found = hashlib.sha256(folder.joinpath("ist.csv.gz").read_bytes()).hexdigest()
    assert found in folder.joinpath("README.md").read_text()


def test_outcomes():
    known = ist.outcomes("dependent-or-dead")
    assert [(known == value).sum() for value in (1, 0, -1)] == [4241 + 7884, 3864 + 3296, 97 + 53]
    assert [(ist.outcomes("death") == value).sum() for value in (1, 0)] == [4370, 15_065]


def test_every_value_is_known():
    for name, values in ist.CATEGORIES.items():
        assert set(ist.column_of(name)) <= {*values, "", "H" if name == "RXHEP" else ""}
    for name, (mean, sd) in ist.NUMBERS.items():
        found = ist.column_of(name).astype(float)
        assert abs(found.mean() - mean) < 1 and abs(found.std() - sd) < 1


@each("column", [*AFTERWARDS, *PREDICTED, "HOSPNUM", "COUNTRY", "nosuch", ""])
def test_what_was_not_known_at_randomisation_is_no_feature(column):
    with pytest.raises(UserError, match="features: expected columns known at randomisation .* got "):
        load("ist", features=f"AGE,{column}")
    with pytest.raises(UserError, match="features: expected columns known at randomisation"):
        ist.features_of(["AGE", column])
    assert column not in load("ist").columns()


def test_a_planted_outcome_changes_no_feature(monkeypatch):
    """With the trial's predictions in the file, and other outcomes, every feature is what it was."""
    before = ist.features_of()
    cells = dict(ist.table_of())
    for name in (*AFTERWARDS, *PREDICTED):
        cells[name] = tuple("1" for _ in cells["AGE"])
    monkeypatch.setattr(ist, "table_of", lambda: cells)
    assert all(np.array_equal(one, two) for one, two in zip(before, ist.features_of()))
    with pytest.raises(UserError, match="got 'EXPDD14'"):
        ist.features_of(["AGE", "EXPDD14"])


def test_no_feature_alone_predicts_death():
    died = ist.outcomes("death") == 1
    for column in np.hstack(ist.features_of()).T:
        assert 0.25 < auc(column, died) < 0.75


def test_features():
    numbers, flags = ist.features_of()
    assert numbers.shape == (19_435, 3) and flags.shape == (19_435, 32) and set(np.unique(flags)) == {0.0, 1.0}
    _, heparin = ist.features_of(["RXHEP"])
    assert heparin.sum(0).tolist() == [4861, 4611 + 245]
    assert ist.features_of(["AGE"])[1].shape == (19_435, 0) and ist.features_of(["SEX"])[0].shape == (19_435, 0)
    task = load("ist", features="AGE, SEX")
    assert task.network()(task.site_data("UK").splits["test"].inputs).shape[1] == 2


def test_seventeen_countries():
    task = load("ist", "countries")
    sizes = {site: sum(map(len, task.rows(site).values())) for site in task.sites()}
    assert len(sizes) == 17 and max(sizes, key=sizes.get) == "UK" and ist.table_of()["COUNTRY"].count("UK") == 6257
    assert sizes["UK"] == (ist.outcomes("dependent-or-dead")[ist.column_of("COUNTRY") == "UK"] >= 0).sum()
    uk, sweden = (torch.cat([s.targets for s in task.site_data(site).splits.values()]) for site in ("UK", "Sweden"))
    assert abs(float(uk.double().mean()) - 0.792) < 0.01 and abs(float(sweden.double().mean()) - 0.417) < 0.01
    known_of_all = load("ist", "countries", outcome="death")
    for site in task.sites():
        parts = known_of_all.rows(site)
        n = sum(map(len, parts.values()))
        assert (len(parts["val"]), len(parts["test"])) == (round(0.1 * n), round(0.3 * n))


def test_every_hospital():
    task = load("ist", "hospitals")
    assert len(task.sites()) == 466 and task.outcome == "death"
    rows = np.concatenate([part for site in task.sites() for part in task.rows(site).values()])
    assert sorted(rows) == list(range(19_435))
    countries = {
        site: {ist.COUNTRY_NAMES[ist.table_of()["COUNTRY"][row]] for row in task.rows(site)["train"]}
        for site in task.sites()
    }
    assert all(countries[site] == {kind} for site, kind in task.sites().items())
    assert len(load("ist", "hospitals", outcome="dependent-or-dead").sites()) == 463
    assert len(load("ist", "hospitals", least=50).sites()) == 118


def test_a_patient_is_in_the_same_split_whatever_is_predicted():
    one, two = (load("ist", "countries", outcome=outcome) for outcome in ("death", "dependent-or-dead"))
    for site in ("UK", "India"):
        for split in ("train", "val", "test"):
            assert set(two.rows(site)[split]) <= set(one.rows(site)[split])


@pytest.mark.parametrize("preset", SPLITS)
def test_natural_splits_never_change(preset):
    task = load("ist", preset)
    assert hash_of_splits(task) == SPLITS[preset]
    assert task.drawn() == () and not hasattr(task, "data_seed")
    (_, one), (_, two) = arms(["fedavg"], f"ist:{preset}", [0, 1])
    assert (one.seed, two.seed) == (0, 1) and one.options == two.options


def test_a_hospital_of_one_patient_can_train():
    task = load("ist", "hospitals")
    smallest = [site for site in task.sites() if len(task.rows(site)["train"]) == 1]
    data = task.site_data(smallest[0])
    assert len(smallest) == 29 and data.size("train") == 1
    (batch,) = data.training(32, 0)
    assert batch.inputs.shape == (1, 35) and torch.isfinite(batch.inputs).all()


def test_scaling():
    shared, site = (load("ist", scaling=scaling) for scaling in ("shared", "site"))
    raw = ist.column_of("AGE").astype(float)
    rows = shared.rows("India")["test"]
    at = list(ist.NUMBERS).index("AGE")
    np.testing.assert_allclose(shared.site_data("India").splits["test"].inputs[:, at], (raw[rows] - 72) / 12, atol=1e-5)
    own = site.site_data("India").splits["train"].inputs[:, at]
    assert own.mean().abs() < 1e-5 and (own.std(correction=0) - 1).abs() < 1e-4
    small = load("ist", "hospitals", scaling="site")
    few = next(name for name in small.sites() if len(small.rows(name)["train"]) == 19)
    mean = small.site_data(few).splits["train"].inputs[:, at].mean()
    assert mean.abs() > 1e-4, "19 patients are too few for statistics of their own"


def test_groups_and_their_crossings():
    task = load("ist")
    data = task.site_data("Italy")
    assert set(task.attributes) == set(data.attributes("test")) == {"sex", "age", "consciousness", "stroke"}
    grouping = task.grouping("sex+age")
    assert len(grouping.names) == 6 and data.grouped(grouping).group_counts.sum() == data.size("train")
    ages = ist.column_of("AGE").astype(float)[task.rows("Italy")["train"]]
    bands = data.attributes("train")["age"]
    assert bands.count("up to 65") == (ages <= 65).sum() and bands.count("over 75") == (ages > 75).sum()


def test_preflight_asks_each_hospital_for_what_the_method_needs():
    task = load("ist", "hospitals")
    grouping = task.grouping("none")
    without = next(site for site in task.sites() if not len(task.rows(site)["val"]))
    assert preflight(task, without, None, grouping, 10)[0] == []
    need = Need("val", 4, "weights follow errors there", both_classes=True)
    assert [f.code for f in preflight(task, without, None, grouping, 10, [need])[0]] == ["empty_split"]


@pytest.mark.slow  # 466 sites
def test_a_run_over_hospitals_of_every_size(tmp_path):
    """Sites without test patients, of one outcome, of one patient: preflight, rounds, evaluation and report."""
    config = make_config("fedavg", "ist:hospitals", rounds=1, values={"min_sites": 466, "group_by": "sex"})
    run_local(config, tmp_path)
    entries = verify(tmp_path / "audit.jsonl")
    last = next(entry for entry in entries if entry["event"] == "evaluation")["sites"]
    assert len(last) == 466 and len(entries[1]["accepted"]) == 466
    assert sum(not found["test"] for found in last.values()) == 14
    assert any("accuracy" in found["test"] and "auc" not in found["test"] for found in last.values())
    report = write_report(tmp_path)
    assert len(report["sites"]) == 466 and report["fairness"]["mean"] is not None
    page = (tmp_path / "report.html").read_text()
    assert "doi 10.7488/ds/104, ODC-By" in page and len(page) < 2_000_000


@pytest.mark.slow  # two fits of scikit-learn
@pytest.mark.parametrize("outcome", ["dependent-or-dead", "death"])
def test_pooled_logistic_regression(outcome):
    from sklearn.linear_model import LogisticRegression

    task = load("ist", "countries", least=1, outcome=outcome)
    parts = {}
    for split in ("train", "test"):
        held = [task.site_data(site).splits[split] for site in task.sites()]
        parts[split] = torch.cat([s.inputs for s in held]).numpy(), torch.cat([s.targets for s in held]).numpy()
    model = LogisticRegression(max_iter=2000).fit(*parts["train"])
    inputs, targets = parts["test"]
    assert abs(auc(model.decision_function(inputs), targets == 1) - 0.80) < 0.01


@pytest.mark.parametrize(
    "options, text",
    [
        ({"outcome": "cost"}, "outcome: expected one of dependent-or-dead, death"),
        ({"sites_by": "ward"}, "sites_by: expected one of country, hospital"),
        ({"least": 0}, "least: expected"),
        ({"features": "AGE,AGE"}, "features: expected different columns"),
        ({"model": "resnet18"}, "model: expected one of logistic, linear, mlp"),
    ],
)
def test_bad_options(options, text):
    with pytest.raises(UserError, match=text):
        load("ist", **options)


def test_too_large_a_least_is_refused_before_anything_runs():
    with pytest.raises(
        UserError, match="least: expected a number of patients that two sites by country have, got 10000"
    ):
        build_parts(make_config("fedavg", "ist", values={"least": 10_000}))


def test_the_file_has_no_time_stamp_and_is_small():
    packed = resources.files("fairflare.datasets").joinpath("data/ist.csv.gz").read_bytes()
    assert len(packed) < 260_000 and gzip.decompress(packed).startswith(b"HOSPNUM,COUNTRY,")
