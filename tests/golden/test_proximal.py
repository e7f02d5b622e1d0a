# SPDX-License-Identifier: Apache-2.0
"""The proximal term against NVFLARE's ``PTFedProxLoss``, and Ditto's personal steps against a float64 restatement."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fairflare.core.types import PERSONAL, Batch, LocalWork, Round, Training
from fairflare.trainers.base import PlainTrainer, add_proximal
from fairflare.trainers.proximal import Ditto, FedProx
from golden import folder

GOLDEN = np.load(folder() / "local_terms.npz")
X, Y = torch.from_numpy(GOLDEN["x"]), torch.from_numpy(GOLDEN["y"]).long()


def network(name):
    made = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    made.load_state_dict({key: torch.from_numpy(GOLDEN[f"{name}/{key}"]) for key in made.state_dict()})
    return made


@pytest.mark.parametrize("mu", ["0.01", "1"])
def test_the_terms_value_and_gradient(mu):
    local, anchor = network("local"), [p.detach() for p in network("global").parameters()]
    F.cross_entropy(local(X), Y).backward()
    before = [p.grad.clone() for p in local.parameters()]
    value = add_proximal(list(local.parameters()), anchor, float(mu))
    assert float(value) == pytest.approx(float(GOLDEN[f"prox/mu{mu}"]), rel=1e-12)
    for p, a, g in zip(local.parameters(), anchor, before):
        torch.testing.assert_close(p.grad, g + float(mu) * (p.detach() - a), rtol=0, atol=1e-14)


def test_three_steps_of_dittos_personal_model():
    own, anchor = network("local"), [p.detach() for p in network("global").parameters()]
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(own(X), Y).backward()
        add_proximal(list(own.parameters()), anchor, 0.7)
        optimizer.step()
    for key, value in own.state_dict().items():
        np.testing.assert_allclose(value.numpy(), GOLDEN[f"ditto_lam0.7_lr0.1_3steps/{key}"], atol=1e-12)


class Rows:
    """All golden examples as one batch, epoch after epoch."""

    class_counts = torch.bincount(Y, minlength=3)

    def training(self, batch_size, seed):
        yield Batch(X, Y, torch.full((len(Y),), -1))


def work(epochs, memory):
    """A site's round: it receives "global" and has kept ``memory``."""
    made = network("global")
    training = Training(epochs=epochs, optimizer="sgd", lr=0.1, momentum=0.0, weight_decay=0.0)
    received = {key: value.clone() for key, value in made.state_dict().items()}
    return LocalWork(made, Rows(), training, Round(2, 4), seed=0, memory=memory, received=received)


@pytest.mark.parametrize("aggregate", ["shared", "personal"])
def test_dittos_trainer_makes_these_steps(aggregate):
    """Its shared model is that of plain training, or with ``aggregate=personal`` v itself."""
    memory = {PERSONAL: network("local").state_dict()}
    ditto, plain = work(3, memory), work(3, {})
    Ditto(lam=0.7, aggregate=aggregate).train(ditto)
    PlainTrainer().train(plain)
    for key, value in ditto.personal.items():
        np.testing.assert_allclose(value.numpy(), GOLDEN[f"ditto_lam0.7_lr0.1_3steps/{key}"], atol=1e-12)
    expected = plain.network.state_dict() if aggregate == "shared" else ditto.personal
    assert all(torch.equal(value, expected[key]) for key, value in ditto.network.state_dict().items())


@pytest.mark.parametrize("mu", [0.0, 0.01, 1.0])
def test_fedproxs_trainer_adds_the_terms_gradient(mu):
    """Two full-batch steps by hand: the first at w^t, where the term is zero."""
    found, expected = work(2, {}), network("global")
    FedProx(mu=mu).train(found)
    anchor = [p.detach().clone() for p in expected.parameters()]
    for _ in range(2):
        expected.zero_grad()
        F.cross_entropy(expected(X), Y).backward()
        with torch.no_grad():
            for p, a in zip(expected.parameters(), anchor):
                p -= 0.1 * (p.grad + mu * (p - a))
    for key, value in found.network.state_dict().items():
        torch.testing.assert_close(value, expected.state_dict()[key], rtol=0, atol=1e-14)


def test_a_frozen_parameter_is_passed_over_and_other_shapes_are_refused():
    local = network("local")
    local[0].weight.requires_grad_(False)
    F.cross_entropy(local(X), Y).backward()
    parameters = list(local.parameters())
    add_proximal(parameters, [torch.zeros_like(p) for p in parameters], 1.0)
    assert local[0].weight.grad is None
    with pytest.raises(ValueError):
        add_proximal(parameters, [], 1.0)
