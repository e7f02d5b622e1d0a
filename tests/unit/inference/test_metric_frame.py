# SPDX-License-Identifier: Apache-2.0
"""``metric_frame``: scikit-learn's and fairlearn's figures by group, and the package's own intervals."""

import numpy as np
import pandas as pd
import pytest
from fairlearn.metrics import MetricFrame
from sklearn import metrics

from cases import each
from fairflare import metric_frame
from fairflare.core.errors import UserError
from fairflare.functional import intervals

RNG = np.random.default_rng(0)
N = 400
Y = RNG.integers(0, 2, N)
RISK = np.round(np.clip(RNG.normal(0.4 + 0.2 * Y, 0.2), 0, 1), 2)
SITE, SEX = RNG.choice(["north", "south", "west"], N), RNG.choice(["f", "m"], N)


def by_sklearn(y, risk):
    said = risk > 0.5
    return {
        "accuracy": metrics.accuracy_score(y, said),
        "balanced_accuracy": metrics.balanced_accuracy_score(y, said),
        "macro_f1": metrics.f1_score(y, said, average="macro"),
        "auc": metrics.roc_auc_score(y, risk),
        "brier_loss": metrics.brier_score_loss(y, risk),
        "calibration_error": abs(risk.mean() - y.mean()),
    }


def test_figures_are_scikit_learn_s_by_site_and_group():
    found = metric_frame(Y, RISK, site=SITE, groups={"sex": SEX})
    assert found.by.unique().tolist() == ["overall", "site", "sex"] and len(found) == 6 * 6
    for (by, group), rows in found.groupby(["by", "group"]):
        inside = {"overall": SITE == SITE, "site": group == SITE, "sex": group == SEX}[by]
        assert rows.set_index("metric").value.to_dict() == pytest.approx(by_sklearn(Y[inside], RISK[inside]), abs=1e-14)
        assert rows.n.unique().tolist() == [inside.sum()]
    inside = found.dropna(subset="low")
    assert (inside.low <= inside.value).all() and (inside.value <= inside.high).all()


def test_figures_are_fairlearn_s_by_group():
    functions = {"accuracy": metrics.accuracy_score, "balanced_accuracy": metrics.balanced_accuracy_score}
    theirs = MetricFrame(metrics=functions, y_true=Y, y_pred=RISK > 0.5, sensitive_features=pd.Series(SEX, name="sex"))
    ours = metric_frame(Y, RISK, groups=pd.Series(SEX, name="sex"), metrics=list(functions))
    wide = ours[ours.by == "sex"].pivot(index="group", columns="metric", values="value")
    for name in functions:
        assert wide[name].to_dict() == pytest.approx(theirs.by_group[name].to_dict(), abs=1e-14)
        assert ours.attrs["gaps"]["sex", name] == pytest.approx(theirs.difference()[name], abs=1e-14)
        assert ours.attrs["worst"]["sex", name] == theirs.by_group[name].idxmin()
        assert ours[ours.by == "overall"].set_index("metric").value[name] == pytest.approx(
            theirs.overall[name], abs=1e-14
        )


def test_intervals_are_the_package_s():
    row = metric_frame(Y, RISK, metrics=["accuracy", "auc"], level=0.9).set_index("metric")
    right = int(((RISK > 0.5) == Y).sum())
    assert row.loc["accuracy", ["low", "high"]].tolist() == list(intervals.of_share(right, N, 0.9))
    assert row.loc["auc", ["low", "high"]].tolist() == list(intervals.of_auc(RISK, Y == 1, 0.9))


def test_more_classes_and_groups_that_are_missing():
    three, p = RNG.integers(0, 3, 60), RNG.dirichlet(np.ones(3), 60)
    names = np.array(["a", "b", "c"])[three]
    sex = pd.Series(SEX[:60]).where(np.arange(60) > 9)
    found = metric_frame(names, p, groups=pd.DataFrame({"sex": sex, "one": ["x"] * 60})).set_index(["by", "metric"])
    assert found.value["overall", "accuracy"].item() == (p.argmax(1) == three).mean()
    expected = metrics.roc_auc_score(three, p, multi_class="ovo")
    assert found.value["overall", "auc_ovo"].item() == pytest.approx(expected, abs=1e-14)
    assert found.n["sex", "accuracy"].sum() == 50 and found.n["one", "accuracy"].item() == 60


def test_what_one_class_does_not_define_is_missing():
    found = metric_frame([1, 1, 0], [0.9, 0.8, 0.3], site=["a", "a", "b"], metrics=["auc"]).set_index("group")
    assert found.value["overall"] == 1 and np.isnan(found.value["a"]) and found.attrs["worst"]["site", "auc"] is None


@each(
    "arguments, message",
    [
        (([0, 1], [0.2, 1.2]), r"y_prob: expected probabilities in \[0, 1\]"),
        (([0, 1], [[0.2, 0.7], [0.5, 0.5]]), "that sum to 1, got"),
        (([0, 1, 2], [0.2, 0.2, 0.1]), r"y_prob: expected shape \(3, 3\)"),
        (([0, 0], [0.2, 0.2]), "classes: expected at least two classes"),
        (([0, 1], [0.2, np.nan]), "y_prob: expected probabilities"),
    ],
)
def test_mistakes_are_one_line(arguments, message):
    with pytest.raises(UserError, match=message):
        metric_frame(*arguments)


def test_names_and_lengths_are_checked():
    for more, message in (
        ({"metrics": ["dice"]}, "metrics: expected metrics of classification, got 'dice'"),
        ({"site": ["a"]}, "site: expected 2 values"),
        ({"classes": [1, 2]}, "y_true: expected classes among 1, 2, got '0'"),
        ({"groups": {"overall": [1, 2]}}, "overall: expected 2 values under a name of its own"),
    ):
        with pytest.raises(UserError, match=message):
            metric_frame([0, 1], [0.2, 0.7], **more)
    turned = pd.DataFrame({1: [0.2, 0.7], 0: [0.8, 0.3]})
    with pytest.raises(UserError, match=r"classes: expected the order of y_prob's columns, \[1, 0\], got \[0, 1\]"):
        metric_frame([0, 1], turned, classes=[0, 1])
