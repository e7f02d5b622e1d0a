# SPDX-License-Identifier: Apache-2.0
"""FLamby's Fed-TCGA-BRCA, where its files are: patients and events of each region, and an exact stratified Cox."""

import csv
import dataclasses
import json
import statistics
from pathlib import Path

import numpy as np
import pytest
import torch

from fairflare.cli.main import main
from fairflare.core.errors import UserError
from fairflare.engine.setup import tasks
from fairflare.functional import survival as maths
from fairflare.functional.survival import partial_likelihood
from fairflare_lab.datasets.tcga_brca import REGIONS, TcgaBrca
from fairflare_lab.papers.declaration import named
from fairflare_lab.papers.tabulate import published_numbers

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "flamby-tcga-brca"
SHARED = Path(__file__).parents[4] / "shared" / "data"
here = pytest.mark.skipif(not (SHARED / "tcga_brca" / "brca.csv").is_file(), reason="a table that the user brings")
COUNTS = {  # train n, events, test n, events
    "Northeast": (248, 45, 63, 14),
    "South": (156, 35, 40, 4),
    "West": (164, 14, 42, 8),
    "Midwest": (129, 16, 33, 3),
    "Europe": (129, 7, 33, 2),
    "Canada": (40, 2, 11, 1),
}


@pytest.fixture
def task(monkeypatch):
    monkeypatch.setenv("FAIRFLARE_DATA", str(SHARED))
    return tasks.load("tcga-brca")


def test_without_its_files_it_says_which(monkeypatch, tmp_path):
    monkeypatch.setenv("FAIRFLARE_DATA", str(tmp_path))
    with pytest.raises(UserError, match="tcga-brca: no such file or folder"):
        TcgaBrca().check_data()
    assert list(TcgaBrca().sites()) == list(REGIONS)


@here
def test_regions_have_flambys_patients_and_events(task):
    for region, counts in COUNTS.items():
        splits = task.site_data(region).splits
        found = [(len(splits[name]), int(splits[name].targets[:, 1].sum())) for name in ("train", "test")]
        assert (*found[0], *found[1]) == counts
        assert len(splits["val"]) == 0 and splits["train"].inputs.shape[1] == 39
    targets = [task.site_data(region).splits[name].targets for region in REGIONS for name in ("train", "test")]
    assert sum(int((part[:, 0] == 0).sum()) for part in targets) == 12  # times of 0, which stay


@here
def test_an_exact_stratified_cox_has_the_concordance_of_a_ridge_fit(task):
    """A throw-away pooled fit (lifelines, penalizer .01) had .843; this one adds up sums of six regions."""
    scaled = dataclasses.replace(task, scaling="age")
    parts = {region: scaled.site_data(region).splits for region in REGIONS}
    train = [(p["train"].inputs.double(), *p["train"].targets.double().T) for p in parts.values()]
    n, beta = sum(len(part[0]) for part in train), torch.zeros(39, dtype=torch.float64)
    for _ in range(12):
        sums = [partial_likelihood(*part, beta) for part in train]
        score, information = (torch.stack([one[k] for one in sums]).sum(0) for k in (1, 2))
        beta = beta + torch.linalg.solve(information + 0.01 * n * torch.eye(39), score - 0.01 * n * beta)
    inputs, targets = (torch.cat([getattr(p["test"], name) for p in parts.values()]) for name in ("inputs", "targets"))
    times, events = targets.double().numpy().T
    found = maths.concordance(times, events, (inputs.double() @ beta).numpy(), np.ones((1, len(times))))[0]
    assert len(times) == 222 and int(events.sum()) == 32
    assert found == pytest.approx(0.858, abs=0.005)


def kept(name):
    return list(csv.DictReader((RESULTS / name).read_text(encoding="utf-8").splitlines()))


def test_the_kept_table_is_close_to_the_published_one():
    ours = {row["row"]: float(row["value"]) for row in kept("flamby-tcga-brca.csv") if row["spread"]}
    theirs = {row["row"]: (float(row["mean"]), float(row["spread"])) for row in kept("published.csv")}
    assert set(ours) == {row.key for row in named("flamby-tcga-brca").tables[0].rows}
    printed = {(row, "together"): mean for row, (mean, _) in theirs.items()}
    assert {key: value for key, (value, _) in published_numbers("flamby-tcga-brca")[0].items()} == printed
    assert all(abs(ours[row] - theirs[row][0]) < 0.03 for row in ("fedadam", "fedyogi", "fedadagrad"))
    assert all(abs(ours[row] - theirs[row][0]) < theirs[row][1] for row in ("scaffold", "pooled"))
    more = [row for row in kept("seeds.csv") if row["method"] == "fedavg"]
    mean, spread = theirs["fedavg"]
    assert len(more) == 25 and abs(statistics.mean(float(row["c_index"]) for row in more) - mean) < 0.02 < spread
    assert all(float(row["weight_of_age"]) < 0 for row in more if float(row["c_index"]) < 0.6)  # what goes wrong


@here
@pytest.mark.slow
def test_a_run_of_the_table_is_reproduced(task, tmp_path):
    """FedAdam of the first seed, on the test patients of all regions together."""
    row = next(row for row in named("flamby-tcga-brca").tables[0].rows if row.key == "fedadam")
    given = [*row.label.partition(":")[2].split(","), *(f"{key}={value}" for key, value in row.values.items())]
    settings = [part for one in (*given, "reference=true") for part in ("--set", one)]
    with pytest.raises(SystemExit) as end:
        main(["run", "fedavg", "--task", "tcga-brca:flamby", *settings, "--seed", "42", "--out", str(tmp_path / "run")])
    assert not end.value.code
    found = json.loads((tmp_path / "run" / "report.json").read_text())["detail"]["test_sets"]["rows"]
    assert [row["name"] for row in found] == ["all regions"]
    assert found[0]["value"] == pytest.approx(0.8535, abs=0.02)
