# SPDX-License-Identifier: Apache-2.0
"""``from fairflare import Study``: a grid of runs, its folders, and its tables."""

import pytest
import torch

from fairflare import Study
from fairflare.core.errors import RunFailed, UserError
from fairflare.report.compare import compare
from fairflare.studies.runs import run_once
from fairflare.studies.study import arms

SMALL = {"rounds": 1, "settings": {"train": {"epochs": 1}, "model": "linear"}}


def test_a_grid_has_the_runs_and_folders_of_compare():
    study = Study.grid(["fedavg", "qffl"], "support2", seeds=[0, 3], grid={"rule.q": [0.5, 2]}, **SMALL)
    labels = ["fedavg", "qffl:rule.q=0.5", "qffl:rule.q=2"]
    values = {"train.epochs": "1", "model": "linear"}
    assert study.runs == dict(arms(labels, "support2", [0, 3], rounds=1, values=values)) and len(study.runs) == 6
    assert study.about["qffl-rule.q=2-seed3"] == {"method": "qffl", "rule.q": 2, "task": "support2:default", "seed": 3}
    both = Study.grid("fedavg", ["support2", "heart:full"], rounds=1)
    assert list(both.runs) == ["support2/fedavg-seed0", "heart-full/fedavg-seed0"]
    with pytest.raises(UserError, match="no METHOD has the key"):
        Study.grid("fedavg", "support2", grid={"rule.qq": [1]})
    with pytest.raises(UserError, match=r"seeds: expected several numbers, e.g. \[0, 1\], got 2"):
        Study.grid("fedavg", "support2", seeds=2)


def test_a_study_is_made_once_and_read_as_tables(tmp_path, monkeypatch, capsys):
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    study = Study.grid(["fedavg", "fedavg:weighting=uniform"], "support2:dirichlet", sites=3, **SMALL)
    assert set(study.table["status"]) == {"missing"} and study.sites.empty
    study.fit(tmp_path / "s", progress=False)
    assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), state)
    assert capsys.readouterr() == ("", "")
    assert list(study.table["status"]) == ["finished"] * 2 and len(study.sites) == 6
    means = study.sites.groupby("run")[study.table["metric"].iloc[0]].mean()
    assert means.to_dict() == pytest.approx(study.table["mean"].to_dict())
    monkeypatch.setattr("fairflare.studies.runs.execute", lambda *args, **more: pytest.fail("a run was made again"))
    again = Study.open(tmp_path / "s")
    assert again.table["mean"].to_dict() == study.table["mean"].to_dict()
    assert again.reports == study.fit(tmp_path / "s", progress=False).reports
    with pytest.raises(UserError, match="expected a folder with finished runs"):
        Study.open(tmp_path / "none")


def test_the_table_is_of_the_models_that_sites_use(tmp_path):
    study = Study.grid("ditto", "support2:dirichlet", sites=3, **SMALL).fit(tmp_path / "s", progress=False)
    found = compare([report["detail"] for report in study.reports.values()])["methods"][0]
    row = study.table.iloc[0]
    assert (row["mean"], row["worst"]) == pytest.approx((found["mean"]["mean"], found["worst"]["mean"]))
    assert row["mean"] != found["shared_mean"]["mean"]


def test_a_failed_run_stands_in_the_table(tmp_path):
    study = Study.grid(["fedavg", "fedavg:weighting=uniform"], "support2:dirichlet", sites=3, **SMALL)
    with pytest.raises(RunFailed, match="no more sites"):
        study.make(tmp_path, fails_uniform, 1)
    assert list(study.table["status"]) == ["finished", "failed: no more sites"]


def fails_uniform(config, folder, *, workers=1):
    if "uniform" in folder.name:
        raise RunFailed("no more sites")
    return run_once(config, folder, workers=workers)
