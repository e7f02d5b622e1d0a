# SPDX-License-Identifier: Apache-2.0
"""MOON: its term by hand, what it keeps, what it is without the term, and networks that it cannot train."""

import dataclasses
import math

import pytest
import torch
from torch import nn

from fairflare.core.errors import UserError
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.parts import build_parts
from fairflare.functional.features import directions, model_contrast
from fairflare.testing.example import copied, work_of_round
from fairflare.trainers.base import PlainTrainer
from fairflare.trainers.moon import PREVIOUS, Moon


def trained(trainer, t=1, memory=None):
    work = work_of_round(t, memory=memory)
    trainer.train(work)
    return work


def same(a, b):
    return all(torch.equal(a[key], b[key]) for key in a)


def test_the_term_by_hand():
    """Aligned with the shared model and opposed to the last one: -log(e^2 / (e^2 + e^-2)) at T = 0.5."""
    z = torch.tensor([[3.0, 0.0]], dtype=torch.float64)
    assert float(model_contrast(z, z * 2, -z, 0.5)) == pytest.approx(math.log1p(math.exp(-4)))
    assert float(model_contrast(z, z, z, 0.5)) == pytest.approx(math.log(2))


def test_features_of_zero_have_no_direction_and_no_gradient():
    z = torch.zeros(2, 3, requires_grad=True)
    model_contrast(z, torch.ones(2, 3), torch.randn(2, 3), 0.5).backward()
    assert z.grad.tolist() == [[0, 0, 0]] * 2 and directions(z).tolist() == [[0, 0, 0]] * 2


def test_without_the_term_it_is_plain_training():
    assert same(copied(trained(Moon(mu=0.0)).network), copied(trained(PlainTrainer()).network))


def test_it_begins_as_plain_training_and_then_leaves_its_last_model():
    """Both models are w^t in the first round, so that the term has no gradient; from the second on it has one."""
    first, plain = trained(Moon(mu=5.0)), trained(PlainTrainer())
    for name, value in copied(plain.network).items():
        torch.testing.assert_close(first.network.state_dict()[name], value, rtol=1e-4, atol=1e-5)
    assert same(first.memory[PREVIOUS], copied(first.network))
    second = trained(Moon(mu=5.0, loss_ratio=0.0), t=2, memory=dict(first.memory))
    gaps = [
        (second.network.state_dict()[k] - v).abs().max()
        for k, v in copied(trained(PlainTrainer(), t=2).network).items()
    ]
    assert max(gaps) > 1e-3


def test_the_term_is_left_out_where_the_shared_model_serves_worse():
    """Then the site trains as without it; where its last model is the worse one, nothing changes."""
    published = Moon(mu=5.0, loss_ratio=0.0)
    good = dict(trained(Moon()).memory)
    factors = {"0.weight": -1, "5.weight": 30, "5.bias": 30}
    spoilt = {key: value * factors.get(key, 1) for key, value in good[PREVIOUS].items()}
    for received, last, same_as in ((spoilt, good[PREVIOUS], PlainTrainer()), (good[PREVIOUS], spoilt, published)):
        ends = []
        for trainer in (Moon(mu=5.0), same_as, published, PlainTrainer()):
            work = work_of_round(2, memory={PREVIOUS: last})
            work.network.load_state_dict(received)
            work.received = received
            trainer.train(work)
            ends.append(copied(work.network))
        assert same(ends[0], ends[1]) and not same(ends[2], ends[3])


@pytest.mark.parametrize(
    "values, ratio", [({}, 1.05), ({"robust": "mixed"}, 1.05), ({"robust": "off"}, 0.0), ({"loss_ratio": 2.0}, 2.0)]
)
def test_a_run_with_bounds_leaves_it_out(values, ratio):
    assert make_config("moon", "support2", values=values).components.trainer.loss_ratio == ratio


def test_the_fixed_models_leave_the_statistics_and_the_draws_alone():
    """BatchNorm counts one pass per step, and nothing but the network that trains is left with gradients."""
    work = trained(Moon(), memory={PREVIOUS: copied(work_of_round(1).network)})
    assert int(work.network.state_dict()["1.num_batches_tracked"]) == work.steps


@pytest.mark.parametrize(
    "task, settings, words",
    [
        ("support2", {"model": "linear"}, "trainer moon: expected a network with layers in front of its last one"),
        ("brain-seg:small", {}, "one class label per example"),
    ],
)
def test_what_has_no_features_is_refused(task, settings, words):
    with pytest.raises(UserError, match=words):
        build_parts(make_config("moon", task, values=settings))


def test_a_network_without_a_linear_layer_is_refused():
    assert "a linear layer" in Moon().unsuited(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()))
    assert Moon().unsuited(work_of_round(1).network) == ""


@pytest.mark.parametrize("changed", [{"mu": -1.0}, {"temperature": 0.0}, {"mu": math.inf}], ids=str)
def test_parameters_out_of_range_are_refused(changed):
    with pytest.raises(UserError, match=next(iter(changed))):
        make_config("moon", "support2", values=changed)


def test_passes_in_parts_are_one_step(monkeypatch):
    """A batch that does not fit is trained on in parts whose gradients add up, each with its own features."""
    whole = trained(Moon(), memory={PREVIOUS: copied(work_of_round(1).network)})
    work = work_of_round(1, memory={PREVIOUS: copied(work_of_round(1).network)})
    work.network[1].eval()
    work.execution = dataclasses.replace(work.execution, micro_batch=4)
    assert math.isfinite(Moon().train(work)) and work.steps == whole.steps
