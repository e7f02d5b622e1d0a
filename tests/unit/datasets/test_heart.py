# SPDX-License-Identifier: Apache-2.0
"""Heart disease at four hospitals: the counts of the files, FLamby's protocol, splits that nothing changes."""

import hashlib
import json

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fairflare.core.errors import UserError
from fairflare.core.types import Need, Training
from fairflare.data.tensors import Grouping
from fairflare.datasets import heart
from fairflare.datasets.heart import GAPS, NUMBERS, Heart
from fairflare.engine.setup.config import RunConfig, make_config
from fairflare.engine.setup.local import run_local
from fairflare.engine.setup.parts import build_parts
from fairflare.engine.setup.tasks import every, load
from fairflare.networks import builtin as networks
from fairflare.report.write import write_report
from fairflare.studies.describe import task_rows
from fairflare.studies.study import arms
from fairflare.tasks.preflight import preflight

SITES = ["Cleveland", "Hungary", "Switzerland", "VA"]
SPLITS = {
    "flamby": "ade020239d7d18a8d7e6bd7babe69b9017ef61034ea74eeba521ff28a3c12365",
    "full": "801d9cb2c49ea04523bc5102728b511671f83dd9dbf359a8e52575d2f642c801",
}


def hash_of_splits(task):
    """SHA-256 of every site's rows in every split."""
    rows = {site: {name: part.tolist() for name, part in task.rows(site).items()} for site in task.sites()}
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()


def test_the_files_are_whole():
    assert [len(heart.patients(site)["num"]) for site in SITES] == [303, 294, 123, 200]
    assert list(Heart().sites()) == SITES == list(heart.FILES)
    shares = [heart.diseased(site).mean() for site in SITES]
    male = [heart.patients(site)["sex"].mean() for site in SITES]
    assert (round(min(shares), 2), round(max(shares), 2)) == (0.36, 0.93)
    assert (round(min(male), 2), round(max(male), 2)) == (0.68, 0.97)
    assert (heart.patients("Switzerland")["chol"] == 0).all()


def test_every_value_of_the_files_is_in_the_codebook():
    for site in SITES:
        for name, values in heart.VALUES.items():
            found = heart.patients(site)[name]
            assert set(found[~np.isnan(found)]) <= set(values), (site, name)


def test_flambys_sizes():
    task = load("heart", "flamby")
    sizes = [[task.site_data(site).size(split) for split in ("train", "val", "test")] for site in SITES]
    assert sizes == [[199, 0, 104], [172, 0, 89], [30, 0, 16], [85, 0, 45]]
    switzerland = task.site_data("Switzerland")
    assert switzerland.class_counts.tolist() == [0, 30]
    assert switzerland.splits["test"].targets.sum() == 15, "one healthy patient among sixteen"


def test_flambys_features():
    """Eight columns as they are, three dummies of chest pain and two of the resting ECG."""
    task = load("heart", "flamby")
    for site in SITES:
        splits = task.site_data(site).splits
        train, test = splits["train"].inputs, splits["test"].inputs
        assert train.shape[1] == test.shape[1] == 13 and torch.isfinite(test).all()
        sd = train.std(0, correction=1)
        assert train.mean(0).abs().max() < 1e-5
        assert (((sd - 1).abs() < 1e-4) | (sd == 0)).all() and (sd == 0).sum() <= 2
    raw = heart.patients("Cleveland")
    ages = raw["age"][task.rows("Cleveland")["train"]]
    expected = (ages - ages.mean()) / ages.std(ddof=1)
    found = task.site_data("Cleveland").splits["train"].inputs[:, 0]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_column_without_spread_is_centred_alone():
    found = load("heart", "flamby").site_data("Switzerland").splits
    chol = [name for name in heart.COLUMNS if name not in ("cp", "restecg")].index("chol")
    assert (found["train"].inputs[:, chol] == 0).all() and (found["test"].inputs[:, chol] == 0).all()


def test_flambys_split_is_scikit_learns():
    from sklearn.model_selection import train_test_split

    raw = heart.patients("VA")
    kept = np.stack([raw[name] for name in heart.COLUMNS if name not in ("slope", "ca", "thal")], axis=1)
    labels = heart.diseased("VA")[~np.isnan(kept).any(1)]
    assert len(labels) == 130
    train, _ = train_test_split(np.arange(130), train_size=0.66, test_size=1 - 0.66, random_state=43, stratify=labels)
    task = load("heart", "flamby")
    start = 303 + 261 + 46
    assert sorted(train + start) == task.rows("VA")["train"].tolist()


@pytest.mark.parametrize("preset", SPLITS)
def test_natural_splits_never_change(preset):
    task = load("heart", preset)
    assert hash_of_splits(task) == SPLITS[preset]
    assert task.drawn() == () and not hasattr(task, "data_seed")
    rows = np.concatenate([part for site in SITES for part in task.rows(site).values()])
    assert sorted(rows) == list(range({"flamby": 740, "full": 920}[preset]))


def test_seeds_of_a_comparison_leave_the_data_alone():
    (_, one), (_, two) = arms(["fedavg"], "heart", [0, 1])
    assert (one.seed, two.seed) == (0, 1) and one.options == two.options


def test_all_patients_with_what_is_missing_marked():
    task = load("heart", "full")
    sizes = [[task.site_data(site).size(split) for split in ("train", "val", "test")] for site in SITES]
    assert sizes == [[182, 30, 91], [177, 29, 88], [74, 12, 37], [120, 20, 60]]
    table = task.table()
    assert table.n_features == 35 and len(table.labels) == 920
    at = {site: np.concatenate(list(task.rows(site).values())) for site in SITES}
    chol, marks = table.numbers[:, NUMBERS.index("chol")], table.plain[:, -len(GAPS) :]
    assert np.isnan(chol[at["Switzerland"]]).all() and not np.isnan(chol[at["Cleveland"]]).any()
    assert (marks[at["Switzerland"], GAPS.index("chol")] == 1).all() and marks[at["Cleveland"]].sum() == 4 + 2
    for site in SITES:
        assert all(torch.isfinite(split.inputs).all() for split in task.site_data(site).splits.values())


def test_the_diagnosis_is_no_feature():
    """No column of either protocol is the label or follows it one to one."""
    for preset in SPLITS:
        table = load("heart", preset).table()
        for column in (*table.numbers.T, *table.plain.T):
            known = ~np.isnan(column)
            assert abs(np.corrcoef(column[known], table.labels[known])[0, 1]) < 0.8 or column[known].std() == 0


def test_the_logistic_model_is_a_sigmoid_with_binary_cross_entropy():
    torch.manual_seed(0)
    network = networks.build("logistic", 13, 2)
    x, y = torch.randn(20, 13), torch.arange(20) % 2
    logits = network(x)
    assert sum(p.numel() for p in network.parameters()) == 14 and (logits[:, 0] == 0).all()
    torch.testing.assert_close(logits.softmax(1)[:, 1], torch.sigmoid(network.head(x))[:, 0])
    expected = F.binary_cross_entropy_with_logits(network.head(x)[:, 0], y.float())
    torch.testing.assert_close(F.cross_entropy(logits, y), expected)
    with pytest.raises(UserError, match="logistic is for 2 classes, got 3"):
        networks.build("logistic", 13, 3)


def test_flambys_training():
    assert every()["heart"].presets["flamby"].training == Training(
        rounds=15, batch_size=4, optimizer="sgd", lr=1e-3, momentum=0.0, weight_decay=0.0, local_steps=100
    )


def test_groups_by_sex_and_age():
    data = load("heart", "flamby").site_data("VA")
    assert set(data.attributes("test")) == {"sex", "age"}
    grouping = load("heart").grouping("sex+age")
    assert len(grouping.names) == 6 and data.grouped(grouping).group_counts.sum() == 85
    ages = heart.patients("Hungary")["age"]
    bands = load("heart", "full").table().attributes["age"]
    rows = np.sort(np.concatenate(list(load("heart", "full").rows("Hungary").values())))
    assert sum(bands[i] == "up to 50" for i in rows) == (ages <= 50).sum()


def test_preflight_asks_small_sites_for_what_the_method_needs():
    """FLamby has no validation patients: a method that needs them is refused, one that does not is not."""
    task, grouping = load("heart", "flamby"), Grouping()
    assert preflight(task, "VA", None, grouping, 10)[0] == []
    need = Need("val", 4, "weights follow errors there", both_classes=True)
    found, data = preflight(task, "VA", None, grouping, 10, [need])
    assert data is None and [(f.level, f.code, f.split) for f in found] == [("error", "empty_split", "val")]
    found, data = preflight(task, "VA", None, grouping, 10, [need], ["empty_split"])
    assert data is not None and [f.level for f in found] == ["accepted"]
    assert preflight(load("heart", "full"), "VA", None, grouping, 10, [need])[0] == []


def test_a_run_says_where_its_data_come_from(tmp_path):
    run_local(make_config("fedavg", "heart", rounds=1, values={"train.local_steps": 2}), tmp_path)
    write_report(tmp_path)
    page = (tmp_path / "report.html").read_text()
    for text in ("doi 10.24432/C52P4X", "CC BY 4.0", "Primary endpoint of this task", "accuracy of the worst hospital"):
        assert text in page
    row = next(row for row in task_rows() if row["name"] == "heart")
    assert row["primary"] == Heart.primary and "CC BY 4.0" in row["real"]


@pytest.mark.parametrize(
    "options, text", [({"protocol": "mine"}, "protocol: expected one of flamby, full"), ({"model": "x"}, "model")]
)
def test_bad_options(options, text):
    with pytest.raises(UserError, match=text):
        Heart(**options)


def test_reference_is_what_flambys_code_does_beside_its_protocol():
    """The initial model of torch's own draw under the run's seed, and a batch of one patient."""
    parts = build_parts(make_config("fedavg", "heart:flamby", seed=42, values={"reference": "true"}))
    torch.manual_seed(42)
    expected = torch.nn.Linear(13, 1)
    assert torch.equal(parts.model["head.weight"], expected.weight) and torch.equal(
        parts.model["head.bias"], expected.bias
    )
    usual = build_parts(make_config("fedavg", "heart:flamby", seed=42)).model["head.weight"]
    assert not torch.equal(usual, expected.weight)
    sizes = {}
    for reference in (False, True):
        data = load("heart", "flamby", reference=reference).site_data("VA")
        batches = list(data.training(4, seed=0))
        sizes[reference] = [len(batch.targets) for batch in batches]
        assert sum(sizes[reference]) == 85
    assert sizes == {False: [4] * 20 + [5], True: [4] * 21 + [1]}


def test_pooled_scaling_is_of_all_training_patients_and_of_training_patients_alone():
    own, pooled = (load("heart", "flamby", scaling=scaling) for scaling in ("centre", "pooled"))
    train = [pooled.site_data(site).splits["train"].inputs for site in SITES]
    together = torch.cat(train).double()
    torch.testing.assert_close(together.mean(0), torch.zeros(13, dtype=torch.float64), rtol=0, atol=1e-6)
    torch.testing.assert_close(together.std(0), torch.ones(13, dtype=torch.float64), rtol=0, atol=1e-6)
    for site in SITES:
        one, other = (task.site_data(site).splits for task in (own, pooled))
        assert torch.equal(one["test"].inputs, other["test"].inputs)
        assert torch.equal(one["train"].targets, other["train"].targets)
        assert not torch.equal(one["train"].inputs, other["train"].inputs)
        ages = [split.inputs[:, 0].argsort(stable=True) for split in (one["train"], other["train"])]
        assert torch.equal(*ages), "another scale of the same patients"
    with pytest.raises(UserError, match="scaling: expected centre, got 'pooled'"):
        load("heart", "full", scaling="pooled")


def test_options_that_came_later_are_not_written_where_they_say_nothing():
    """A run that was begun without them keeps its configuration's hash, and its file is read."""
    off = {"robust": "off"}
    plain, asked = (make_config("fedavg", "heart:flamby", values=v) for v in (off, {**off, "reference": True}))
    assert plain.to_json()["options"] == {"protocol": "flamby", "model": "logistic"}
    assert asked.to_json()["options"] == {"protocol": "flamby", "model": "logistic", "reference": True}
    for config in (plain, asked):
        again = RunConfig.from_json(json.loads(json.dumps(config.to_json())))
        assert again == config and again.sha256() == config.sha256()
    assert plain.sha256() == "fd5317f6b1bdb55fa138fb5d5483741af5301289b52ca9cefef986ff2c820f0d"
