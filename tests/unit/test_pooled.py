# SPDX-License-Identifier: Apache-2.0
"""Pooled: one site trains on the training data of all, where that is allowed, and all are evaluated on their own."""

import json
import sys
from pathlib import Path

import pytest
import torch

from fairflare.core.errors import UserError
from fairflare.data.readers.files import FileSplit
from fairflare.data.tensors import Split, TensorData
from fairflare.engine.audit import verify
from fairflare.engine.setup.assembly import build_federation
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import pooled
from fairflare.engine.setup.parts import build_parts
from fairflare.flare.recipe import FairRecipe
from fairflare.report.compare import compare
from fairflare.report.write import write_report

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins"))
from runs import TASK, bits, interrupted, run  # noqa: E402

VALUES = {"n_sites": 3, "batch_size": 64, "lr": 0.01}


def split(*values, **attributes):
    return Split(torch.tensor([[v] for v in values]), torch.tensor([int(v) % 2 for v in values]), attributes)


def data(*values, mean=(), from_files=False, **attributes):
    train = split(*values, **attributes)
    if from_files:
        train = FileSplit(
            list(range(len(values))),
            lambda k: (train_of[k], torch.tensor(int(values[k]) % 2)),
            train.targets,
            attributes,
        )
        train_of = split(*values).inputs
    return TensorData(train=train, val=split(9.0), test=split(8.0), n_classes=2, mean=mean, std=mean)


@pytest.mark.parametrize("from_files", [False, True])
def test_training_examples_of_all_and_the_rest_its_own(from_files):
    own = data(1.0, 2.0, sex=["f", "m"])
    found = pooled(own, [data(3.0, 5.0, 7.0, from_files=from_files), data(4.0, 6.0, sex=["m", "f"])])
    batch = next(found.fixed("train", 10))
    assert batch.inputs.flatten().tolist() == [1, 2, 3, 5, 7, 4, 6] and batch.targets.tolist() == [1, 0, 1, 1, 1, 0, 0]
    assert found.class_counts.tolist() == [3, 4] and found.attributes("train")["sex"] == [
        "f",
        "m",
        "",
        "",
        "",
        "m",
        "f",
    ]
    assert [next(found.fixed(name, 10)).inputs.item() for name in ("val", "test")] == [9, 8]
    assert own.size("train") == 2 and own.class_counts.tolist() == [1, 1]


def test_sites_that_normalise_otherwise_are_refused():
    with pytest.raises(UserError, match="prepare their images alike"):
        pooled(data(1.0, 2.0), [data(1.0, 2.0, mean=(0.5,))])


def test_one_trains_and_all_are_evaluated(tmp_path):
    folder = run("pooled", tmp_path / "pooled", VALUES, rounds=2)
    entries = verify(folder / "audit.jsonl")
    own = next(
        e for e in verify(run("fedavg", tmp_path / "fedavg", VALUES, 2) / "audit.jsonl") if e["event"] == "start"
    )
    rounds = [e for e in entries if e["event"] == "round"]
    assert [list(e["accepted"]) for e in rounds] == [["site-1"], ["site-1"]]
    assert rounds[0]["accepted"]["site-1"]["n_examples"] == sum(own["declared"].values())
    assert set(bits(folder)["results"]) == {"site-1", "site-2", "site-3"}
    reports = [write_report(tmp_path / name) for name in ("fedavg", "pooled")]
    assert any("all sites" in caveat for caveat in reports[1]["detail"]["caveats"])
    assert [m["label"] for m in compare([r["detail"] for r in reports])["methods"]] == ["FedAvg", "Pooled"]


def test_a_site_that_is_left_out_brings_no_data(tmp_path):
    counts = []
    for more in ({}, {"leave_out": "site-1"}):
        log = verify(run("pooled", tmp_path / f"run{len(counts)}", VALUES | more, rounds=1) / "audit.jsonl")
        site, found = next(iter(log[1]["accepted"].items()))
        counts.append((site, found["n_examples"]))
    assert counts[0][0] == "site-1" and counts[1][0] == "site-2" and counts[0][1] > counts[1][1]


def test_killed_and_continued_it_is_the_same(tmp_path, monkeypatch):
    whole = bits(run("pooled", tmp_path / "whole", VALUES))
    assert whole == bits(interrupted("pooled", tmp_path / "killed", VALUES, monkeypatch))


def test_a_hospital_s_own_data_are_refused():
    with pytest.raises(UserError, match="whose data belong to the sites"):
        make_config("pooled", "classification", values={"site_names": "a,b,c", "labels": "2"})
    with pytest.raises(UserError, match="whose data belong to the sites"):
        make_config("fedavg", "tabular", values={"site_names": "a,b,c", "labels": "2", "selector": "pool"})


def test_a_flare_job_is_refused(tmp_path):
    config = make_config("pooled", TASK, rounds=1)
    with pytest.raises(UserError, match="got a FLARE job"):
        FairRecipe(config)
    for env in ("sim", "flare"):
        with pytest.raises(UserError, match="got a FLARE job"):
            build_federation(config, build_parts(config), None, tmp_path, env)
    assert not list(tmp_path.iterdir())


def test_the_command_refuses_the_simulator(tmp_path, capsys):
    from fairflare.cli.main import main

    with pytest.raises(SystemExit) as end:
        main(["run", "pooled", "--task", TASK, "--env", "sim", "--out", str(tmp_path / "run")])
    assert end.value.code == 2 and "got --env sim" in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_an_arm_of_a_comparison_has_its_own_rounds():
    from fairflare.studies.study import arms

    found = dict(
        arms(["fedavg", "pooled:rounds=1,epochs=5,local_steps=none"], TASK, [0], rounds=4, values={"local_steps": 3})
    )
    trained = {
        name: [getattr(config.training, key) for key in ("rounds", "epochs", "local_steps")]
        for name, config in found.items()
    }
    assert list(trained.values()) == [[4, 1, 3], [1, 5, None]]
    json.dumps(trained)
