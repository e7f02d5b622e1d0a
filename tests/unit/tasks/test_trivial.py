# SPDX-License-Identifier: Apache-2.0
"""The answers that need no network."""

from __future__ import annotations

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from fairflare.data.tensors import Split, TensorData
from fairflare.engine.setup import tasks
from fairflare.tasks.kind import trivial_results
from fairflare.tasks.kinds.classes import _regression
from fairflare.tasks.kinds.masks import constant_mask

CLASSES = tasks.load("classification", None, labels="2")
MASKS = tasks.load("segmentation", None, labels="2", size=32)
TABLE = tasks.load("tabular", None, labels="2", features="a,b")


def images(labels: list[int]) -> Split:
    return Split(torch.zeros(len(labels), 3, 8, 8, dtype=torch.uint8), torch.tensor(labels))


def of(train: Split, val: Split, test: Split, n_classes: int = 2) -> TensorData:
    return TensorData(train=train, val=val, test=test, n_classes=n_classes)


def test_the_largest_training_class_is_named_every_time():
    data = of(images([0] * 30 + [1] * 10), images([0] * 10 + [1] * 10), images([0] * 12 + [1] * 36))
    found = trivial_results(CLASSES, data, 10)
    assert found["test"]["accuracy"] == 0.25 and found["val"]["accuracy"] == 0.5
    assert found["test"]["balanced_accuracy"] == found["test"]["auc_ovo"] == 0.5
    expected = -(0.25 * torch.tensor(0.75).log() + 0.75 * torch.tensor(0.25).log())
    assert found["test"]["loss"] == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize(("few", "min_count"), [(9, 10), (12, 13), (12, None)])
def test_it_says_nothing_from_which_a_small_count_follows(few, min_count):
    data = of(images([0] * 30 + [1] * 10), images([]), images([0] * 40 + [1] * few))
    assert trivial_results(CLASSES, data, min_count) == {}


def table(n: int, seed: int, classes: int = 2) -> Split:
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))
    return Split(x, (x[:, 0] > 0).long() if classes == 2 else torch.zeros(n, dtype=torch.int64))


def test_tables_are_held_against_logistic_regression_on_the_sites_own_rows():
    task = tasks.load("support2")
    found = trivial_results(task, of(table(100, 0), table(0, 1), table(40, 2)), 10)
    assert set(found) == {"test"} and found["test"]["accuracy"] > 0.9
    alone = trivial_results(task, of(table(100, 0, 1), table(0, 1), table(40, 2)), 1)
    assert alone["test"]["balanced_accuracy"] == 0.5  # one class to train on: a constant


@pytest.mark.parametrize("classes", [[0, 1], [0, 1, 2], [0, 2]])
def test_the_regression_is_scikit_learns(classes):
    """Of the classes that the site has: 0 and 2 of three here."""
    x = torch.randn(300, 3, generator=torch.Generator().manual_seed(3))
    y = torch.tensor(classes)[(x @ torch.randn(3, len(classes), generator=torch.Generator().manual_seed(4))).argmax(1)]
    task = tasks.load("tabular", None, labels="3", features="a,b,c")
    split = Split(x, y)
    found = _regression(task, of(split, split, split, 3))(x).softmax(1)
    wanted = LogisticRegression(max_iter=200).fit(x.numpy(), y.numpy()).predict_proba(x.numpy())
    assert torch.allclose(found[:, classes], torch.from_numpy(wanted).float(), atol=2e-3)
    assert found.sum(1).allclose(torch.ones(300))


def test_a_users_own_table_is_held_against_the_shares_of_its_classes():
    """The model that it is trained to by default is logistic regression itself."""
    found = trivial_results(TABLE, of(table(100, 0), table(0, 1), table(40, 2)), 10)
    assert found["test"]["balanced_accuracy"] == 0.5 and found["test"]["loss"] == pytest.approx(0.69, abs=0.02)


def masks(n: int, generator: torch.Generator) -> Split:
    """A square that nearly every mask has, a second structure that is rarely anywhere."""
    targets = torch.zeros(n, 2, 32, 32, dtype=torch.uint8)
    targets[:, 0, 8:24, 8:24] = 1
    targets[:, 0, :4] = (torch.rand(n, 4, 32, generator=generator) < 0.1).to(torch.uint8)
    targets[:1, 1, 3, 3] = 1
    return Split(torch.zeros(n, 1, 32, 32, dtype=torch.uint8), targets)


def test_the_constant_mask_is_what_most_masks_share_and_nothing_where_little_is():
    generator = torch.Generator().manual_seed(0)
    data = of(masks(20, generator), masks(0, generator), masks(20, generator), n_classes=0)
    mask = constant_mask(data.fixed("train", 4)) > 0
    assert mask[0, 8:24, 8:24].all() and mask[0].sum() == 256 and not mask[1].any()
    found = trivial_results(MASKS, data, 10)
    assert 0.9 < found["test"]["dice_class 0"] < 1 and found["test"]["dice_class 1"] == pytest.approx(19 / 20)
