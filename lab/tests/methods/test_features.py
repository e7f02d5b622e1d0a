# SPDX-License-Identifier: Apache-2.0
"""Features in front of the last layer, and their means per class."""

import pytest
import torch
from torch import nn

from fairflare.core.types import Batch
from fairflare.functional.features import features_of
from fairflare_lab.functional.terms import class_distance, class_means
from helpers import small_network


def test_they_are_what_enters_the_last_linear_layer():
    network, inputs = small_network().eval(), torch.randn(5, 4)
    with features_of(network) as found:
        outputs = network(inputs)
        network(inputs[:2])
    assert [tuple(one.shape) for one in found] == [(5, 6), (2, 6)]
    assert torch.equal(network[-1](found[0]), outputs)


def test_nothing_is_collected_afterwards():
    network = small_network()
    with pytest.raises(KeyError), features_of(network):
        raise KeyError
    with features_of(network) as found:
        pass
    network(torch.randn(3, 4))
    assert found == [] and not network[-1]._forward_pre_hooks


def test_a_network_without_a_linear_layer_has_none():
    with pytest.raises(ValueError, match="linear layer"), features_of(nn.Conv2d(1, 1, 1)):
        pass


def test_means_and_distances_by_hand():
    features, targets = torch.tensor([[0.0, 2.0], [2.0, 4.0], [1.0, 1.0]]), torch.tensor([0, 0, 2])
    batches = [Batch(features[rows], targets[rows], targets[rows]) for rows in (slice(0, 1), slice(1, 3))]
    # What enters its only layer are the features themselves.
    means = class_means(nn.Linear(2, 3), batches, targets.bincount().tolist(), torch.device("cpu"))
    assert {label: mean.tolist() for label, mean in means.items()} == {0: [1.0, 3.0], 2: [1.0, 1.0]}
    # Two examples are 1 away in both features; the third lies on its mean, or its class has none.
    assert class_distance(features, targets, means).item() == pytest.approx(4 / 6)
    assert class_distance(features, targets, {0: means[0]}).item() == pytest.approx(4 / 6)
    assert class_distance(features, targets, {}).item() == 0


def test_the_distance_pulls_features_towards_their_means():
    features = torch.tensor([[0.0], [5.0]], requires_grad=True)
    class_distance(features, torch.tensor([0, 1]), {0: torch.tensor([2.0])}).backward()
    assert features.grad.tolist() == [[-2.0], [0.0]]
