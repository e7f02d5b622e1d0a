# SPDX-License-Identifier: Apache-2.0
"""The attack finds whose records an overfitted model was trained on, nothing in one that is not, and tells no few."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from external_data import OWN, write_hospital
from fairflare.core.types import LocalWork, Round, Training
from fairflare.data.tensors import Grouping, Split, TensorData
from fairflare.engine.audit import verify
from fairflare.engine.site import Site
from fairflare.trainers.base import PlainTrainer
from fairflare_lab.studies.membership import Attack, area
from helpers import Accuracy
from run_folders import call

GROUPS = Grouping(("sex",), (("f", "m"),))


def hospital(n, d, noise=3.0, seed=0):
    """n members and n others, of whose labels half is chance; three of a sex are women."""
    torch.manual_seed(seed)
    x = torch.randn(2 * n, d)
    y = (x[:, 0] + noise * torch.randn(2 * n) > 0).long()
    sex = ["f" if i % n < 3 else "m" for i in range(2 * n)]
    parts = [Split(x[at], y[at], {"sex": sex[at]}) for at in (slice(0, n), slice(n, n), slice(n, 2 * n))]
    return TensorData(train=parts[0], val=parts[1], test=parts[2], n_classes=2).grouped(GROUPS)


def attacked(network, rounds, *, n=120, d=12, min_count=10, shadows=4, trained_on=None):
    data = hospital(n, d)
    training = Training(rounds=rounds, epochs=5, batch_size=32, lr=0.01, optimizer="adam", weight_decay=0.01)
    first = {key: value.clone() for key, value in network.state_dict().items()}
    for number in range(1, rounds + 1):
        PlainTrainer().train(LocalWork(network, trained_on or data, training, Round(number, rounds), seed=number))
    model = {key: value.clone() for key, value in network.state_dict().items()}
    site = Site("s", data, network, PlainTrainer(), (), training, Accuracy(), seed=5, groups=GROUPS.names)
    site.min_count = min_count
    return Attack(model, first, PlainTrainer(), classes=True, shadows=shadows).at(site)


def test_an_overfitted_model_gives_its_records_away_and_a_plain_one_does_not():
    torch.manual_seed(1)
    overfitted = attacked(nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 2)), rounds=10)
    plain = attacked(nn.Linear(2, 2), rounds=1, n=800, d=2)
    assert overfitted["auc"] > 0.7 and overfitted["low"] > 0.6 and overfitted["auc"] > overfitted["loss"]
    assert abs(plain["auc"] - 0.5) < 0.06 and plain["low"] < 0.52
    strangers = attacked(nn.Linear(2, 2), rounds=1, n=800, d=2, trained_on=hospital(800, 2, seed=1000))
    assert strangers["low"] < 0.5 < strangers["high"]
    assert [found["n_train"] for found in (overfitted, plain)] == [120, 800] and plain["shadows"] == 4


def test_nothing_of_few_patients_leaves():
    found = attacked(nn.Linear(12, 2), rounds=1, shadows=0)
    assert not [name for name in found if "/" in name], "three women follow from the men's number"
    assert attacked(nn.Linear(12, 2), rounds=1, shadows=0, min_count=2).keys() > {"auc/f", "auc/m", "low/m"}
    assert attacked(nn.Linear(12, 2), rounds=1, shadows=0, min_count=121) == {}


def test_the_area_is_that_of_pairs():
    random = np.random.default_rng(0)
    score, there = random.integers(0, 5, 60).astype(float), random.random(60) < 0.4
    pairs = [(a > b) + (a == b) / 2 for a in score[there] for b in score[~there]]
    assert area(score, there)["auc"] == pytest.approx(np.mean(pairs), abs=1e-12)
    apart = area(np.array([1.0, 2, 3, 4]), np.array([False, False, True, True]))
    assert apart["auc"] == 1.0 and 0.1 < apart["low"] < 0.2 and apart["high"] == 1.0


def test_a_run_reports_what_its_sites_found(tmp_path, capsys):
    small = ["--set", "local_steps=none", "--set", "batch_size=64", "--set", "group_by=sex"]
    folder = tmp_path / "run"
    assert call("run", "fedavg", "--task", "heart", "--rounds", "2", "--no-solo", *small, "--out", folder) == 0
    assert "Can training records" not in (folder / "report.html").read_text()
    assert call("risk", folder, "--shadows", "3") == 2
    assert "--shadows: expected an even number, got 3" in capsys.readouterr().err
    assert call("risk", folder, "--shadows", "2") == 0 and call("verify", folder) == 0
    assert "is guessing" in capsys.readouterr().out
    (line,) = [e for e in verify(folder / "audit.jsonl") if e["event"] == "risk"]
    assert set(line["sites"]) == {"Cleveland", "Hungary", "Switzerland", "VA"}
    assert {"auc", "low", "high", "auc/male"} <= line["sites"]["Cleveland"].keys() and "auc/male" not in line["sites"][
        "VA"
    ]
    section = json.loads((folder / "report.json").read_text())["detail"]["risk"]
    assert [row["auc"] for row in section["sites"]] == [line["sites"][row["site"]]["auc"] for row in section["sites"]]
    page = (folder / "report.html").read_text()
    assert section["sentence"].replace("'", "&#39;") in page and "shadow models that were trained without it" in page


def test_a_hospital_attacks_the_model_by_itself_on_its_own_machine(tmp_path, capsys):
    """The lead's copy of a deployed run names no data; the hospital's configuration does."""
    lists = tmp_path / "lists"
    for seed, name in enumerate(("harbour", "valley")):
        write_hospital(lists / f"{name}.csv", seed=seed)
    folder, home = tmp_path / "run", tmp_path / "home"
    options = ("--rounds", "1", "--no-solo")
    own = [word.replace("group_by=label+sex", "group_by=sex") for word in OWN]
    assert call("run", "fedavg", "--datalists", lists, *own, *options, "--out", folder) == 0
    capsys.readouterr()
    assert call("risk", folder, "--shadows", "2", "--json") == 0
    at_desk = {row["site"]: row["auc"] for row in json.loads(capsys.readouterr().out)["risk"]["sites"]}
    home.mkdir()
    lists.rename(home / "lists")
    (home / "fairflare_site.yaml").write_text("data_root: lists\ndatalist: valley.csv\n")
    before = (folder / "audit.jsonl").read_bytes()
    ask = ("risk", folder, "--shadows", "2", "--site-data", home, "--site")
    assert call(*ask, "valley", "--json") == 0
    told = json.loads(capsys.readouterr().out)["risk"]
    assert told["auc"] == pytest.approx(at_desk["valley"], abs=1e-9) and {"auc/f", "low/m"} <= told.keys()
    assert (folder / "audit.jsonl").read_bytes() == before
    assert call(*ask, "valley") == 0 and "valley/m: AUC 0." in capsys.readouterr().out
    assert call(*ask, "moon") == 2 and "expected a site of the run's last segment" in capsys.readouterr().err
    assert call("risk", folder, "--site", "valley") == 2
    (home / "fairflare_site.yaml").write_text("data_root: lists\ndatalist: valley.csv\nmin_count: 500\n")
    assert call(*ask, "valley") != 0 and "too few patients" in capsys.readouterr().err
