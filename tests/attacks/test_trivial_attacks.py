# SPDX-License-Identifier: Apache-2.0
"""What follows from the scores of an answer that needs no network."""

import math

import pytest
import torch

from fairflare.data.tensors import Split, TensorData
from fairflare.engine.setup import tasks
from fairflare.engine.setup.assembly import build_site
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.parts import build_parts
from fairflare.tasks.kind import trivial_results

TASK = tasks.load("classification", None, labels="2")


def data_of(**splits):
    """Images all alike, with so many of either class in each split."""
    labels = {name: torch.tensor([0] * n + [1] * k) for name, (n, k) in splits.items()}
    made = {name: Split(torch.zeros(len(y), 3, 8, 8, dtype=torch.uint8), y) for name, y in labels.items()}
    return TensorData(**made, n_classes=2)


def test_no_few_training_examples_of_a_class_follow_from_a_constant_answers_loss():
    """exp(-loss) on a split of one class is that class's share of the training examples, whose number is known."""
    few = data_of(train=(197, 3), val=(40, 0), test=(40, 0))
    followed = round(200 * (1 - math.exp(-trivial_results(TASK, few, 1)["test"]["loss"])))
    assert followed == 3
    assert trivial_results(TASK, few, 10) == {} == trivial_results(TASK, few, None)
    assert trivial_results(TASK, data_of(train=(190, 10), val=(40, 0), test=(40, 0)), 10)


@pytest.mark.parametrize("secure_sum, tells", [("none", True), ("masks", False)])
def test_with_secure_sums_no_classes_counts_follow_from_a_constant_answer(secure_sum, tells):
    config = make_config("fedism-plus", "ich-phantom", values={"secure_sum": secure_sum})
    site = build_site(config, build_parts(config), "site-1")
    trivial = site.exchanges["evaluate"].trivial
    assert bool(trivial(data_of(train=(50, 50), val=(40, 40), test=(40, 40)))) == tells
