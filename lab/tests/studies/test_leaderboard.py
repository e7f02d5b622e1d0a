# SPDX-License-Identifier: Apache-2.0
"""The leaderboard: its page follows from its files, and its script runs at toy size."""

import importlib
import sys

import numpy as np
import pandas as pd
import pytest
from printed_commands import ROOT

from fairflare.core import registry
from fairflare.engine.setup import tasks

FOLDER = ROOT / "lab" / "leaderboard"
sys.path.append(str(FOLDER))
import board_list as board  # noqa: E402
import board_page as page  # noqa: E402


@pytest.fixture(scope="module")
def run():
    """The command's module; the tasks that it registers are known to these tests alone."""
    known = dict(tasks.ADDED)
    yield importlib.import_module("board_run")
    tasks.ADDED.clear()
    tasks.ADDED.update(known)
    for name in ("board_run", "board_tasks", "regime_run", "regime_tasks", "regime_rules"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def made(run, tmp_path_factory):
    """Runs and results of three arms on a made-up federation."""
    folder = tmp_path_factory.mktemp("board")
    toy = [str(folder / "runs"), "--only", "toy", "--arms", "trees,fedavg,ditto", "--seeds", "0,1"]
    run.main(toy)
    run.main(toy)  # everything is there
    run.main([*toy, "--collect", "--results", str(folder / "results")])
    return folder


def test_the_page_follows_from_the_files():
    text = page.PAGE.read_text(encoding="utf-8")
    assert text == page.between(text, page.made()), "python lab/leaderboard/board_page.py writes it"


def test_every_arm_was_tuned_and_judged_alike():
    values, tried = page.lines_of("values"), page.lines_of("tried")
    assert set(tried.groupby(["task", "arm"]).size()) == {3} == set(map(len, (s.rates for s in board.SOURCES.values())))
    assert (tried.groupby(["task", "arm"]).chosen.sum() == 1).all()
    best = tried.loc[tried.groupby(["task", "arm"]).validation.idxmin()]
    assert (best["chosen"] == 1).all()
    for source, rows in values.groupby("task"):
        assert board.SOURCES[source].judged and set(rows["arm"]) == set(board.ARMS)
        assert rows.groupby("arm").seed.apply(set).map(tuple).nunique() == 1 and set(rows["seed"]) <= set(board.SEEDS)
        assert rows.groupby(["arm", "seed"]).site.apply(tuple).nunique() == 1, "the same sites for all"
    assert values["brier"].between(0, 1).all() and not set(board.SEEDS) & set(board.TUNING_SEEDS)


def test_every_federated_arm_is_a_method():
    labels = {arm.label.partition(":")[0] for arm in board.ARMS.values() if arm.kind == "federated"}
    assert labels <= set(registry.methods())


def test_the_script_at_toy_size(made, run):
    values = pd.read_csv(made / "results" / "values.csv")
    assert set(values["arm"]) == {"trees", "fedavg", "ditto"} and set(values["seed"]) == {0, 1}
    assert len(values) == 3 * 2 * 3 and values.notna().all(axis=None) and (values["cpu_seconds"] > 0).all()
    assert len(list((made / "runs" / "toy").glob("*.json"))) == 3 * (3 * 2 + 2)
    with pytest.raises(run.Late):
        run.Bench(made / "runs", "00:00").judged("toy", "fedavg", [2])


def test_a_site_s_patients_are_divided_by_outcome_and_scaled_by_all(run):
    parts = run.board_tasks.parts_of("toy", 3)
    train = np.concatenate([of["train"][0] for of in parts.values()])
    assert np.abs(train.mean(0)).max() < 1e-5 and np.abs(train.std(0) - 1).max() < 0.02
    for of in parts.values():
        sizes = {split: len(y) for split, (_, y) in of.items()}
        assert sizes["test"] / sum(sizes.values()) == pytest.approx(0.35, abs=0.03)
        assert all(0 < y.mean() < 1 for _, y in of.values())
    again = run.board_tasks.parts_of("toy", 4)
    assert not np.array_equal(again["a"]["test"][0], parts["a"]["test"][0])


def test_what_is_said_of_a_difference(monkeypatch):
    """Holm over the arms of a task; nothing is said with fewer seeds than ten."""

    def rows(seeds):
        noise = np.random.default_rng(0).normal(0, 0.001, (len(board.ARMS), seeds))
        gain = {"ditto": -0.05, "fedce": 0.05}
        return pd.DataFrame(
            {"task": "heart", "arm": arm, "seed": s, "site": "x", "brier": 0.2 + gain.get(arm, 0) + noise[k, s]}
            | dict.fromkeys(("calibration", "auc", "loss", "cpu_seconds"), 0.5)
            for k, arm in enumerate(board.ARMS)
            for s in range(seeds)
        )

    for seeds, words in ((10, ("better", "worse")), (9, ("", ""))):
        monkeypatch.setattr(page, "lines_of", {"values": rows(seeds)}.get)
        said = page.against("heart", "worst")
        assert (said["ditto"]["said"], said["fedce"]["said"]) == words and said["fedlesam"]["said"] == ""
