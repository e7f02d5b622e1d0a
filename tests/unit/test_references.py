# SPDX-License-Identifier: Apache-2.0
"""Solo and pooled beside any run: the same data, training and trainer, in one folder that a command completes."""

import json

import pytest

from fairflare.cli.main import main
from fairflare.core.errors import UserError
from fairflare.engine.setup.config import make_config
from fairflare.report.write import verify_run
from fairflare.studies.study import reference_of_run, with_references

TASK = "support2:dirichlet"
VALUES = {"n_sites": 3, "local_steps": 2, "lr": 0.02, "leave_out": "site-3", "group_by": "sex", "trainer.mu": 0.5}


def config(method="fedheal", **more):
    return make_config(method, TASK, rounds=2, seed=4, values={**VALUES, "trainer": "fedprox", **more})


@pytest.mark.parametrize("name", ["solo", "pooled"])
def test_a_reference_is_like_the_run_but_for_the_rule(name):
    run = config()
    found = reference_of_run(run, name)
    for key in ("trainer", "task", "preset", "options", "training", "seed", "leave_out", "group_by", "threads"):
        assert getattr(found, key) == getattr(run, key), key
    assert found.method == name and found.settings["trainer.mu"] == 0.5


def test_a_trainer_that_exchanges_is_plain_in_a_reference():
    values = {"n_sites": 3, "optimizer": "sgd", "momentum": 0}
    run = make_config("fedheal", TASK, values={**values, "trainer": "feddyn"})
    assert {name: found.trainer for name, found in with_references(run, ["solo", "pooled"])} == {
        "fedheal+feddyn": "feddyn",
        "solo": "sgd",
        "pooled": "sgd",
    }


def test_data_that_are_the_sites_own_are_not_pooled():
    run = make_config("fedavg", "classification", values={"site_names": "a,b,c", "labels": "2"})
    assert reference_of_run(run, "solo").method == "solo"
    with pytest.raises(UserError, match="whose data belong to the sites"):
        reference_of_run(run, "pooled")


def call(*arguments):
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in arguments])
    return end.value.code


def test_one_command_makes_both_and_makes_none_again(tmp_path, capsys):
    command = [
        "run",
        "fedavg",
        "--task",
        TASK,
        "--sites",
        "3",
        "--rounds",
        "2",
        "--set",
        "local_steps=1",
        "--workers",
        "1",
    ]
    command += ["--pooled", "--json", "--out", tmp_path / "all"]
    assert not call(*command), capsys.readouterr().err
    found = json.loads(capsys.readouterr().out)
    assert [method["method"]["id"] for method in found["methods"]] == ["fedavg", "pooled"]
    heads = {path.name: verify_run(path)[-1]["hash"] for path in (tmp_path / "all").iterdir() if path.is_dir()}
    assert set(heads) == {"fedavg", "pooled"}
    assert not call(*command)
    assert heads == {path.name: verify_run(path)[-1]["hash"] for path in (tmp_path / "all").iterdir() if path.is_dir()}


def test_a_deployed_run_has_none(tmp_path, capsys):
    assert call("run", "fedavg", "--task", TASK, "--pooled", "--env", "poc", "--out", tmp_path / "run") == 2
    assert "--pooled: expected --env local or --env sim" in capsys.readouterr().err
