# SPDX-License-Identifier: Apache-2.0
"""Metrics against scikit-learn and against numbers worked out by hand."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from fairflare.core.metric import named
from fairflare.tasks import metrics
from fairflare.tasks.kind import interval_of
from fairflare.tasks.kinds.classes import CLASSES, GRADES, RISKS, TWO_CLASSES


def evaluated(logits, targets, kind=CLASSES):
    return kind.evaluate(kind.metrics, logits, targets, "abcdefghij"[: logits.shape[-1]])


@pytest.mark.parametrize("seed", range(5))
def test_agrees_with_scikit_learn(seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(60, 4, generator=generator).mul(2).round(decimals=0)  # with ties
    y = torch.randint(0, 4, (60,), generator=generator)
    p, guess = logits.double().softmax(1).numpy(), logits.argmax(1).numpy()
    expected = {
        "accuracy": sk.accuracy_score(y, guess),
        "balanced_accuracy": sk.balanced_accuracy_score(y, guess),
        "macro_f1": sk.f1_score(y, guess, average="macro"),
        "auc_ovo": sk.roc_auc_score(y, p, multi_class="ovo", average="macro"),
        "auc_ovr": sk.roc_auc_score(y, p, multi_class="ovr", average="macro"),
        "loss": sk.log_loss(y, p),
    }
    assert evaluated(logits, y) == pytest.approx(expected, abs=1e-12)


def test_binary_auc():
    generator = torch.Generator().manual_seed(0)
    logits, y = torch.randn(50, 2, generator=generator), torch.randint(0, 2, (50,), generator=generator)
    values = evaluated(logits, y, TWO_CLASSES)
    margin = (logits[:, 1] - logits[:, 0]).double().numpy()
    assert values["auc"] == pytest.approx(sk.roc_auc_score(y, margin), abs=1e-12)
    assert not {"auc_ovo", "auc_ovr"} & set(values)


def test_absent_classes_count_nowhere():
    logits = torch.tensor([[2.0, 0.0, 1.0], [0.0, 2.0, 1.0], [3.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    values = evaluated(logits, torch.tensor([0, 1, 0, 1]))
    assert values["balanced_accuracy"] == pytest.approx((1 + 0.5) / 2)
    # Class 0 ranks its two at 0.665 and 0.909 against 0.090 and 0.576; class 1 ranks its two at 0.665 and 0.212.
    assert values["auc_ovo"] == 1.0
    assert values["auc_ovr"] == 1.0  # a mean over the two present classes, not over three


def test_one_versus_rest_counts_every_class_alike():
    """Class 0: 0.8, 0.6 against 0.1, 0.7, one of four pairs lost: 0.75. Classes 1 and 2: all three pairs won."""
    p = torch.tensor([[0.8, 0.1, 0.1], [0.6, 0.2, 0.2], [0.1, 0.8, 0.1], [0.7, 0.05, 0.25]])
    values = evaluated(p.log(), torch.tensor([0, 0, 1, 2]))
    assert values["auc_ovr"] == pytest.approx((0.75 + 1 + 1) / 3, abs=1e-12)


@pytest.mark.parametrize(("kind", "classes"), [(CLASSES, 3), (TWO_CLASSES, 2), (RISKS, 2), (GRADES, 3)])
def test_of_one_class_no_mean_over_classes_is_defined(kind, classes):
    """Its recall alone would be 1 where everybody is called ill."""
    logits, y = torch.eye(classes)[1].expand(5, -1), torch.ones(5, dtype=torch.long)
    values = evaluated(logits, y, kind)
    lacking = {"auc", "auc_ovo", "auc_ovr", "balanced_accuracy", "macro_f1", "weighted_kappa"} & set(kind.metrics)
    assert set(values) == {*kind.metrics, "loss"} - lacking and values["accuracy"] == 1
    assert all("classes" in named(name).needs for name in lacking)
    assert interval_of(metrics.BALANCED_ACCURACY, kind.cases(logits, y, ()), 0.95) is None


def test_empty_and_broken_outputs():
    assert evaluated(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)) == {}
    values = evaluated(torch.tensor([[float("nan"), 1.0]]), torch.tensor([0]))
    assert list(values) == ["loss"] and math.isnan(values["loss"])


def test_loss_keeps_double_precision():
    logits = torch.tensor([[20.0, 0.0]] * 3)
    loss = evaluated(logits, torch.tensor([0, 0, 0]))["loss"]
    assert loss == pytest.approx(math.log1p(math.exp(-20)), rel=1e-6)


def test_auc_counts_ties_half():
    assert metrics.auc(np.array([0.1, 0.5, 0.5, 0.9]), np.array([False, True, False, True])) == (1 + 1 + 1 + 0.5) / 4


def test_auc_agrees_with_scikit_learn_with_many_and_with_few_ties():
    draw = np.random.default_rng(0)
    for n, decimals in ((2, 3), (7, 1), (60, 1), (60, 2), (400, 1), (400, 6)):
        values, positive = draw.random(n).round(decimals), np.arange(n) % 3 == 0
        assert metrics.auc(values, positive) == pytest.approx(sk.roc_auc_score(positive, values), abs=1e-14)


def test_all_pairs_at_once_are_the_aucs_one_by_one_to_the_last_bit():
    draw = torch.Generator().manual_seed(0)
    for n, classes in ((3, 2), (40, 4), (40, 7), (300, 10)):
        logits, y = (
            torch.randn(n, classes, generator=draw).round(decimals=1),
            torch.randint(classes - 1, (n,), generator=draw),
        )
        p, y = logits.double().softmax(1).numpy(), y.numpy()
        pairs = [
            metrics.auc(p[rows, c], y[rows] == c)
            for a, b in combinations(np.unique(y), 2)
            for rows in [(y == a) | (y == b)]
            for c in (a, b)
        ]
        found = evaluated(logits, torch.from_numpy(y))
        if pairs:
            assert found["auc_ovo"] == float(np.mean(pairs))
            assert found["auc_ovr"] == float(np.mean([metrics.auc(p[:, c], y == c) for c in np.unique(y)]))


def test_risk_metrics_by_hand():
    """Risks .8, .6, .3 and .3 of patients 1, 0, 1 and 0."""
    p, y = torch.tensor([0.8, 0.6, 0.3, 0.3]), torch.tensor([1, 0, 1, 0])
    found = evaluated(torch.stack((torch.zeros(4), torch.logit(p)), dim=1), y, RISKS)
    assert found["brier_loss"] == pytest.approx((0.04 + 0.36 + 0.49 + 0.09) / 4)
    assert found["calibration_error"] == pytest.approx(0.0, abs=1e-7)
    sick = evaluated(torch.stack((torch.zeros(4), torch.logit(p)), dim=1), torch.ones(4, dtype=torch.int64), RISKS)
    assert sick["calibration_error"] == pytest.approx(0.5) and "auc" not in sick
    assert evaluated(torch.empty(0), torch.empty(0), RISKS) == {}
    assert evaluated(torch.full((2, 2), float("nan")), torch.tensor([0, 1]), RISKS).keys() == {"loss"}
