# SPDX-License-Identifier: Apache-2.0
"""The bench of regimes: page and cards follow from its files, verdicts from its rule, controls do what they say."""

import dataclasses
import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from printed_commands import ROOT
from scipy import stats

from command_line import call
from fairflare.core.types import Info, Reply, Round
from fairflare.engine.setup import tasks
from fairflare.report.advice import RATES
from fairflare.tasks.base import DATA_FOLDER
from plugin_files import loaded

FOLDER = ROOT / "lab" / "regimes"
DATA = ROOT.parent / "shared" / "data" / "images"
sys.path.append(str(FOLDER))
import regime_list as regimes  # noqa: E402
import regime_page as page  # noqa: E402

U1 = regimes.BY_KEY["U1"]


@pytest.fixture(scope="module")
def run():
    """The command's module; what it registers is known to these tests alone."""
    known = dict(tasks.ADDED)
    with loaded():
        yield importlib.import_module("regime_run")
    tasks.ADDED.clear()
    tasks.ADDED.update(known)
    for name in ("regime_advice", "regime_run", "regime_tasks", "regime_rules"):
        sys.modules.pop(name, None)


@pytest.fixture
def data(monkeypatch, tmp_path):
    if not (DATA / "ham10000").is_dir():
        pytest.skip("the pictures are not here")
    monkeypatch.setenv(DATA_FOLDER, str(DATA))
    monkeypatch.setenv("FAIRFLARE_REGIMES", str(tmp_path))


def test_page_and_cards_follow_from_the_files():
    text = page.PAGE.read_text(encoding="utf-8")
    assert text == page.between(text, page.made())
    for method in page.CARDS:
        card = page.card_of(method).read_text(encoding="utf-8")
        assert card == page.between(card, page.on_card(method)), (
            f"{method}: python lab/regimes/regime_page.py writes it"
        )
        assert method in {of[0] for regime in regimes.REGIMES for of in regime.judged.values()}


def test_what_ran_has_every_arm_seed_and_the_configuration_that_is_declared(run):
    for regime in filter(page.ran, regimes.REGIMES):
        chosen = pd.read_csv(page.RESULTS / "chosen.csv")
        rows = page.values().query("regime == @regime.key")
        assert set(rows["arm"]) == set(regime.arms) and set(rows["seed"]) <= set(regimes.SEEDS)
        assert rows.groupby(["arm", "rounds"]).seed.nunique().nunique() == 1
        trials = chosen.query("regime == @regime.key").dropna(subset=["trials"])
        assert trials["trials"].nunique() == 1 and trials["trials"].min() >= 12, "equal tuning"


def made(monkeypatch, tmp_path, gain, ceiling=0.3, guard=0.0, placebo=0.0):
    """Results of U1 in which the method gains so much over FedAvg."""
    noise, rows = np.random.default_rng(0).normal(0, 0.002, (len(U1.arms), 10)), []
    adds = {"method": gain, "ceiling": ceiling, "placebo": placebo}
    for k, key in enumerate(U1.arms):
        for point in sorted({U1.rounds, U1.equal_passes("method"), 30, 39}):
            for seed in range(10):
                value = 0.2 + adds.get(key, 0.0) + noise[k, seed]
                rows.append(
                    [U1.key, seed, key, point, value, -1.0, 0.4 + (guard if key == "method" else 0), value, 1, "x"]
                )
    pd.DataFrame(rows, columns=page.HEADS).to_csv(tmp_path / "values.csv", index=False)
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    page.lines_of.cache_clear()
    return page.verdict(U1, "method", page.ROUNDS)


@pytest.fixture(autouse=True)
def fresh():
    page.lines_of.cache_clear()
    yield
    page.lines_of.cache_clear()


@pytest.mark.parametrize(
    "case, verdict",
    [
        ({"gain": 0.1}, page.CONFIRMED),
        ({"gain": 0.1, "placebo": 0.1}, page.UNDECIDED),
        ({"gain": 0.1, "guard": -0.05}, page.UNDECIDED),
        ({"gain": 0.01}, page.CONFIRMED),
        ({"gain": 0.0}, page.CONTRADICTED),
        ({"gain": 0.1, "ceiling": 0.001}, page.NO_ROOM),
    ],
)
def test_the_rule(case, verdict, monkeypatch, tmp_path):
    assert made(monkeypatch, tmp_path, **case) == verdict


def test_intervals_are_students_and_p_values_are_held_back_by_holm(monkeypatch, tmp_path):
    made(monkeypatch, tmp_path, 0.01)
    one = page.comparisons(U1)["method", page.ROUNDS]
    d = page.of(U1, "method", U1.rounds) - page.of(U1, "fedavg", U1.rounds)
    low, high = stats.t.interval(0.95, 9, d.mean(), stats.sem(d))
    assert (one["low"], one["high"]) == pytest.approx((low, high))
    assert one["mdd"] == pytest.approx(
        (stats.t.ppf(0.975, 9) + stats.t.ppf(0.8, 9)) * d.std(ddof=1) / 10**0.5, rel=1e-3
    )
    assert one["p_holm"] >= one["p"]


def test_replayed_weights_stand_at_their_own_sites_or_are_dealt(run):
    rules = importlib.import_module("regime_rules")
    rules.RECORDS["one"] = [{"": {"a": 0.7, "b": 0.2, "c": 0.1}, "head": {"a": 0.0, "b": 0.0, "c": 1.0}}] * 2
    model = {"body.weight": torch.zeros(1), "head.weight": torch.zeros(1)}
    replies = [
        Reply(site, {key: torch.full((1,), float(k)) for key in model}, 10, {}) for k, site in enumerate("abc", start=1)
    ]
    info = Info(Round(1, 2))
    own = rules.Replayed("one").aggregate(model, replies, {}, info)
    assert own.model["body.weight"].item() == pytest.approx(0.7 + 0.4 + 0.3)
    assert own.model["head.weight"].item() == pytest.approx(3.0)
    deals = [rules.Replayed("one", deal=k).aggregate(model, replies, {}, info).weights for k in range(6)]
    assert all(sorted(of.values()) == [0.1, 0.2, 0.7] for of in deals) and len({of["a"] for of in deals}) > 1


@pytest.mark.slow
@pytest.mark.parametrize("key, arms", [("U1", ("method", "fixed", "ceiling")), ("S1", ("lwr",)), ("D1", ("fedavg",))])
def test_a_regime_is_tuned_and_judged(key, arms, run, data, tmp_path, monkeypatch):
    """Two rounds of real pictures, two trials and one seed, through the command's own code."""
    regime = regimes.BY_KEY[key]
    few = {name: dataclasses.replace(regime.arms[name], long=False) for name in arms}
    few = {name: dataclasses.replace(arm, own=(arm.own[0], arm.own[1][:1])) for name, arm in few.items()}
    regime = dataclasses.replace(regime, rounds=5, rates=regime.rates[1:3], arms=few, judged={})
    monkeypatch.setattr(regimes, "EXTENSIONS", 0)
    monkeypatch.setattr(regimes, "TUNING_SEEDS", (100, 101))
    monkeypatch.setattr(regimes, "FINALISTS", 1)
    if key == "U1":
        tasks_of = importlib.import_module("regime_tasks")
        features = np.random.default_rng(0).normal(size=(4078, 1280)).astype(np.float32)
        np.save(tasks_of.kept_folder() / "ham10000-clean.npy", features)
    monkeypatch.setattr(run, "KEPT", tmp_path / "none.csv")  # trials that the results hold would not be run
    bench = run.Bench(tmp_path)
    for arm in arms:
        found = bench.judged(regime, arm, 0)
        assert len(found["records"]) == 5 and np.isfinite(regime.primary.value(found["scores"], 5))
        assert all(set(found["scores"]) >= {name, f"val {name}"} for name in regime.second.sets)
    assert json.loads(run.tuned_file(tmp_path, regime).read_text())[arms[0]]["lr"] in regime.rates
    assert len(list((Path(tmp_path) / key / "tuning").glob(f"{arms[0]}-*"))) == 3


def test_cards_open_with_what_a_method_does_and_no_page_claims_more_than_the_files():
    verdicts = {
        page.verdict(regime, arm, horizon)
        for regime in regimes.REGIMES
        for arm in regime.judged
        for horizon in (page.ROUNDS, page.PASSES)
    }
    words = (page.CONFIRMED, page.CONTRADICTED)
    for method in page.CARDS:
        opening = page.card_of(method).read_text(encoding="utf-8").split("\n\n")[1]
        assert opening.startswith("**What it is for.** Fed") and not any(word in opening for word in words)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [word for word in words if word in readme and word not in verdicts] == []


def test_the_hit_rate_that_is_printed_is_that_of_the_files():
    found = page.rates(page.hits())
    assert found == RATES and sum(n for _, n, _, _ in found.values()) == 20


def test_fewer_seeds_give_no_verdict(monkeypatch, tmp_path):
    assert made(monkeypatch, tmp_path, gain=0.1) == page.CONFIRMED
    page.values().query("seed < 5").to_csv(tmp_path / "values.csv", index=False)
    page.lines_of.cache_clear()
    assert page.verdict(U1, "method", page.ROUNDS) == page.UNDECIDED
    d = np.array([0.1, 0.2, 0.4])
    assert page.mdd(d) == pytest.approx((stats.t.ppf(0.975, 2) + stats.t.ppf(0.8, 2)) * stats.sem(d))


@pytest.mark.parametrize("means", [(0.5, 0.5), (0.5, 0.52)])
def test_an_arm_gains_by_the_worst_site_or_group_unless_the_mean_pays(run, means):
    advice = importlib.import_module("regime_advice")
    usual = {"sites": {"a": means[0] + 0.2, "b": means[0] - 0.2}, "groups": {"g": 0.8}}
    here = {"sites": {"a": means[1] + 0.1, "b": means[1] - 0.1}, "groups": {"g": 0.6}}
    paid = means[1] > 1.02 * means[0]
    assert advice.gain(here, usual, "own") == (-1.0 if paid else pytest.approx(1 - 0.6 / 0.7))
    assert advice.gain(here, usual, "groups") == (-1.0 if paid else pytest.approx(0.25))


@pytest.mark.slow
def test_a_random_federation_is_measured(run, tmp_path, monkeypatch):
    advice = importlib.import_module("regime_advice")
    monkeypatch.setattr(advice, "ROUNDS", 3)
    row = advice.federation(tmp_path, 100, "")
    assert row == advice.federation(tmp_path, 100, ""), "what has run is kept"
    assert -1 <= row["agreement"] <= 1 and set(advice.ARMS) <= set(row) and row["site"].startswith("site-")


@pytest.mark.slow
def test_the_papers_setting_runs_and_goes_on(data, tmp_path, capsys):
    """The GPU's command at a tiny size: 4 pictures a site, one epoch, ResNet-10 at 32 pixels."""
    small = ("--set", "size=32", "--set", "epochs=1", "--set", "limit=4", "--rounds", "1", "--seeds", "0")
    for _ in range(2):
        code, out, _ = call(capsys, "paper", "fedheal-table-5", "--data", "office", *small, "--out", tmp_path / "runs")
        assert code == 0 and "(paper 45.52)" in out
    made = sorted((tmp_path / "runs").rglob("report.json"))
    assert len(made) == 4 and len({path.stat().st_mtime_ns for path in made}) == 4
    methods = ("fedavg", "fedavg:weighting=uniform", "fedheal:tau=0.4")
    task = ("--task", "office-caltech:paper", *small, "--out", tmp_path / "equal")
    assert call(capsys, "compare", *methods, *task)[0] == 0
