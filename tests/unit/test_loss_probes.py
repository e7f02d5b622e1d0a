# SPDX-License-Identifier: Apache-2.0
"""The losses of the received and of the trained model: numbers by hand, splits, the laws of probes."""

import math

import pytest
import torch
from torch import nn

from fairflare.core.types import LocalWork, Round
from fairflare.probes.loss import Loss
from fairflare.testing import check_probe
from fairflare_lab.methods.trained_loss import TrainedLoss
from helpers import TRAINING, Blobs, small_network


def work(network):
    return LocalWork(network, Blobs(2), TRAINING, Round(1, 4), seed=3)


@pytest.mark.parametrize("probe, name", [(Loss, "loss"), (TrainedLoss, "trained_loss")])
def test_a_mean_over_all_examples(probe, name):
    """A network that answers 0 has the entropy of a coin; batches that do not divide the split change nothing."""
    network = nn.Linear(4, 2)
    nn.init.zeros_(network.weight)
    nn.init.zeros_(network.bias)
    assert probe(probe_batch=7).measure(work(network)) == {name: pytest.approx(math.log(2))}
    network = small_network().train()
    whole, parts = (probe(probe_batch=n).measure(work(network))[name] for n in (24, 7))
    data = Blobs(2)
    with torch.no_grad():
        expected = nn.functional.cross_entropy(network.eval()(data.x).double(), data.y)
    assert whole == pytest.approx(float(expected), rel=1e-6) == parts


def test_which_model_and_which_split():
    assert (Loss().when, TrainedLoss().when) == ("received", "trained")
    assert not Loss().needs and not TrainedLoss().needs
    assert [need.split for need in (*Loss("val").needs, *TrainedLoss("val").needs)] == ["val", "val"]
    with pytest.raises(ValueError, match="probe_batch"):
        Loss(probe_batch=0)
    with pytest.raises(ValueError, match="probe_batch"):
        TrainedLoss(probe_batch=0)


@pytest.mark.parametrize("id", ["loss", "trained-loss"])
@pytest.mark.parametrize("split", ["train", "val"])
def test_the_laws(id, split):
    check_probe(id, loss_split=split)
