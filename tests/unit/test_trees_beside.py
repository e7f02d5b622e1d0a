# SPDX-License-Identifier: Apache-2.0
"""Trees beside the methods of a comparison: refusals and table without XGBoost, FLARE's federation with it."""

import importlib.util

import numpy as np
import pytest

from fairflare.core.errors import UserError
from fairflare.engine.setup.config import make_config
from fairflare.report.compare_tables import trees as trees_table
from fairflare.studies import comparison as trees

HAS = importlib.util.find_spec("xgboost") is not None


def test_what_has_no_federated_trees_is_refused_before_anything_runs(monkeypatch):
    with pytest.raises(UserError, match="--trees: expected a table with two classes, got 'task brain-seg'"):
        trees.check_trees(make_config("fedavg", "brain-seg"))
    monkeypatch.setattr(trees, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="XGBoost, which is not installed: pip install"):
        trees.check_trees(make_config("fedavg", "heart"))


def test_trees_stand_beside_the_methods(monkeypatch):
    """Scores of two seeds become an arm each, and a row each below the methods'."""
    found = {0: ({"a": 0.5, "b": 0.75}, {"a": 0.5, "b": None}), 1: ({"a": 0.5, "b": 0.25}, {"a": 1.0, "b": None})}
    monkeypatch.setattr(
        trees, "scores", lambda config, rounds: dict(zip((trees.FEDERATED, trees.ALONE), found[config.seed]))
    )
    runs = [(make_config("fedavg", "heart", seed=seed), None, {}) for seed in (0, 1)]
    one = {"mean": 0.5, "low": None, "high": None, "n": 1}
    method = {"label": "FedAvg", "mean": one, "worst": one, "gap": one}
    comparison = {"seeds": [0, 1], "higher_is_better": True, "headline": "accuracy", "methods": [method]}
    assert trees_table(comparison) is None
    beside = trees.with_trees(comparison, runs, 7)
    arms = beside["trees"]["arms"]
    assert arms[trees.FEDERATED]["worst"]["mean"] == pytest.approx(0.375)
    assert arms[trees.ALONE]["mean"]["mean"] == pytest.approx(0.75)
    table = trees_table(beside)
    assert [row.key for row in table.rows] == ["FedAvg", trees.FEDERATED, trees.ALONE]
    assert "7 rounds" in table.caption


@pytest.mark.skipif(not HAS, reason="XGBoost is an extra")
@pytest.mark.slow
def test_flare_grows_trees_of_sites_with_unlike_outcomes():
    """A site whose outcomes are all 1 has no share in the intercept, and every tree is in the model."""
    from fairflare.flare.trees import grown

    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    ones = np.flatnonzero(y)[:40]
    booster = grown({"all of one": (x[ones], y[ones]), "usual": (x, y)}, 4)
    assert booster.num_boosted_rounds() == 8
    risks = booster.inplace_predict(x)
    assert np.isfinite(risks).all() and ((risks > 0.5) == (y == 1)).mean() > 0.9
