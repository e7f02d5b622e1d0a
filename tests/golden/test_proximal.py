# SPDX-License-Identifier: Apache-2.0
"""The proximal term against NVFLARE's ``PTFedProxLoss``, and Ditto's personal steps against a float64 restatement."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fairflare.functional.proximal import add_proximal
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


def test_a_frozen_parameter_is_passed_over_and_other_shapes_are_refused():
    local = network("local")
    local[0].weight.requires_grad_(False)
    F.cross_entropy(local(X), Y).backward()
    parameters = list(local.parameters())
    add_proximal(parameters, [torch.zeros_like(p) for p in parameters], 1.0)
    assert local[0].weight.grad is None
    with pytest.raises(ValueError):
        add_proximal(parameters, [], 1.0)
