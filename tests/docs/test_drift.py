# SPDX-License-Identifier: Apache-2.0
"""The measurements of client drift: the files follow from the values, the page from the files, the deals are deals."""

import math
import sys

import numpy as np
import pytest
import torch
from printed_commands import ROOT
from scipy import stats

FOLDER = ROOT / "docs" / "results" / "drift"
sys.path[:0] = [str(FOLDER), str(ROOT / "benchmarks" / "drift")]
import drift_page  # noqa: E402
import drift_plan as plan  # noqa: E402
import drift_run  # noqa: E402
import drift_tables as tables  # noqa: E402
import exact  # noqa: E402
import kept  # noqa: E402

from fairflare.engine.files import MODEL, read_model  # noqa: E402
from fairflare.engine.setup import tasks  # noqa: E402
from fairflare.engine.setup.parts import build_parts  # noqa: E402
from fairflare.studies.study import arms  # noqa: E402

DIFFERENCES, JOINING = tables.read(tables.DIFFERENCES), tables.read(tables.JOINING)
VALUES = tables.read(tables.VALUES)


@pytest.fixture
def dealt(monkeypatch):
    """The tasks whose patients are dealt."""
    for task in drift_run.DEALT.values():
        monkeypatch.setitem(tasks.ADDED, task.name, task)


def one(**wanted):
    return next(row for row in DIFFERENCES if all(row[key] == value for key, value in wanted.items()))


def test_the_files_follow_from_the_values_and_the_tables_from_the_files(tmp_path):
    rows, joined = tables.compared()
    assert len(DIFFERENCES) == len(rows) - 1 > 1000
    assert [list(row.values()) for row in JOINING] == [list(map(str, row)) for row in joined[1:]]
    again = tmp_path / kept.SHOWN_TABLES
    kept.write_shown(again, drift_page.written())
    assert (FOLDER / again.name).read_bytes() == again.read_bytes()
    assert sum(path.stat().st_size for path in FOLDER.iterdir() if path.is_file()) < 300_000


def test_the_page_of_the_exact_fit_follows_from_its_values_and_parts_add_up():
    assert exact.PAGE.read_text(encoding="utf-8") == exact.written()
    rows = {(r["task"], r["arm"], r["versus"], r["over"]): float(r["mean"]) for r in exact.differences()}
    for key in exact.TASKS:
        assert {int(r["deal"]) for r in tables.read(exact.VALUES) if r["task"] == key} == set(range(exact.DEALS))
        parts = [rows[(key, *pair, "mean")] for pair in exact.PARTS.values()]
        assert sum(parts[:-1]) == pytest.approx(parts[-1], abs=5e-5)


def test_all_deals_at_once_train_as_runs_of_the_package_do(dealt, tmp_path):
    """FedAvg with Adam over two deals at once, and the exact fit with own intercepts: the runs' models."""
    made = exact.dealt("heart", (0, 1))
    made.training["rounds"] = 2
    labels = ["fedavg:train.rounds=2,train.weight_decay=0.01", "glm:train.rounds=8,ridge=0.01,intercept=site"]
    found = exact.fedavg(made, 0.005, 1, 0.01)[1], exact.exact(made, 0.01, own=True)[1]
    for label, models in zip(labels, found, strict=True):
        ((name, config),) = arms([label], exact.TASKS["heart"], [1], values={"group_by": "none"})
        drift_run.study.run_and_predict(config, tmp_path / name)
        run = drift_run.study.beside(tmp_path / name)
        for site in made.sites.values():
            mine = made.rest(site, "test")[0][1].double() @ models[site]
            assert np.abs(mine.numpy() - run[f"{site}/test/z"]).max() < 1e-5


@pytest.mark.parametrize("task", sorted({row["task"] for row in DIFFERENCES}))
def test_a_difference_and_its_interval_are_those_of_scipy(task):
    """From values.csv, of the worst site and of the first one, by the correction for deals that share patients."""
    rows = [row for row in VALUES if (row["task"], row["metric"]) == (task, "brier")]
    sites = list(dict.fromkeys(row["site"] for row in rows))
    share = sum(int(row["n"]) for row in rows) / sum(int(row["n_train"]) for row in rows)
    for over, of in (("worst", sites), (sites[0], sites[:1])):
        worst = {
            arm: np.stack([[float(r[arm]) for r in rows if r["site"] == site] for site in of]).max(0)
            for arm in ("preset", "solo")
        }
        differences = worst["preset"] - worst["solo"]
        scale = stats.sem(differences) * math.sqrt(1 + len(differences) * share)
        low, high = stats.t.interval(0.95, len(differences) - 1, differences.mean(), scale)
        found = one(task=task, arm="preset", versus="solo", over=over, metric="brier")
        expected = (differences.mean(), low, high)
        assert [float(found[key]) for key in ("mean", "low", "high")] == pytest.approx(expected, abs=2e-5)
        said = "worse" if low > 0 else "better" if high < 0 else "cannot be told"
        assert found["verdict"] == said


def test_every_task_of_the_plan_has_every_arm_and_every_deal():
    for task in plan.TASKS:
        rows = [row for row in VALUES if (row["task"], row["metric"]) == (task.key, "brier")]
        complete = {arm.key for arm in plan.ARMS if rows and all(row[arm.key] for row in rows)}
        assert complete == {arm.key for arm in plan.arms(task)}, task.key
        assert {int(row["deal"]) for row in rows} == set(range(task.deals)), task.key


def test_deals_share_the_same_patients_out_anew(dealt):
    for name, cls in drift_run.DEALT.items():
        natural, first, again, other = (
            tasks.load(name), *(tasks.load(cls.name, data_seed=seed) for seed in (1, 1, 2))
        )  # fmt: skip
        for site in natural.sites():
            whole, own = natural.rows(site), first.rows(site)
            everyone = np.sort(np.concatenate(list(own.values())))
            assert (everyone == np.sort(np.concatenate(list(whole.values())))).all()
            assert len(np.unique(everyone)) == len(everyone)
            assert all((own[split] == again.rows(site)[split]).all() for split in own)
            assert own["test"].tolist() != other.rows(site)["test"].tolist()


def test_the_plan_can_be_run(dealt):
    """Every candidate is accepted, the preset's rate and rounds are the preset's, and no deal is used twice."""
    for task in plan.TASKS:
        name, _, preset = task.task.partition(":")
        training = tasks.load(name, preset).presets[preset].training
        assert (task.rounds, task.rates["preset"]) == (training.rounds, training.lr)
        assert task.deals <= plan.FIRST_TUNING
        labels = [label for arm in plan.arms(task) if arm.method for label in plan.candidates(arm, task)]
        for _, config in drift_run.configured(labels, task, (0,)):
            assert config.group_by == "none"
        for _, config in drift_run.configured([plan.labelled(next(a for a in plan.ARMS if a.one_step))], task, (0,)):
            assert config.training.rounds == plan.ONE_STEP


def test_one_full_batch_step_per_round_is_gradient_descent_on_all_patients(tmp_path):
    """Averaging by examples has then no drift: three rounds against three steps on the pooled patients, by hand."""
    arm = next(arm for arm in plan.ARMS if arm.key == "whole")
    label = plan.labelled(arm, "train.lr=0.5").replace(f"rounds={plan.ONE_STEP}", "rounds=3")
    ((name, config),) = arms([label], "heart:full", [0], values=drift_run.VALUES)
    drift_run.study.run_and_predict(config, tmp_path / name)
    parts = build_parts(config)
    found, sites = read_model(tmp_path / name / MODEL), [parts.task.site_data(site) for site in parts.task.sites()]
    x = torch.cat([site.splits["train"].inputs for site in sites])
    y = torch.cat([site.splits["train"].targets for site in sites])
    model = parts.network
    model.load_state_dict(parts.model)
    for _ in range(3):
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.5 * parameter.grad
    for key, value in model.state_dict().items():
        assert torch.allclose(found[key], value, atol=1e-6), key
