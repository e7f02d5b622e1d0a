# SPDX-License-Identifier: Apache-2.0
"""Our optimizers are torch's, bit for bit, and import no compiler."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from fairflare.core.types import Training
from fairflare.trainers.base import make_optimizer

ADAM = Training(optimizer="adam", adam_beta2=0.9, weight_decay=1e-2)
SGD = Training(optimizer="sgd", momentum=0.7, lr=0.05)


def of_torch(network, training):
    shared = {"lr": training.lr, "weight_decay": training.weight_decay, "fused": True}
    if training.optimizer == "sgd":
        return torch.optim.SGD(network.parameters(), momentum=training.momentum, **shared)
    return torch.optim.Adam(network.parameters(), betas=(0.9, training.adam_beta2), **shared)


def trained(network, optimizer, steps, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        network(torch.randn(4, 6, generator=generator)).square().mean().backward()
        optimizer.step()
    return optimizer


def flat(value):
    """Every tensor and number of an optimizer's state in order."""
    if isinstance(value, dict):
        return [one for key, item in value.items() for one in (key, *flat(item))]
    if isinstance(value, list):
        return [one for item in value for one in flat(item)]
    return [value.tolist() if isinstance(value, torch.Tensor) else value]


@pytest.mark.parametrize("training", [ADAM, SGD], ids=lambda training: training.optimizer)
def test_they_are_torch_s_bit_for_bit(training):
    """Parameters and state, also after the state was saved and loaded, over to the other class and back."""
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    theirs, start = copy.deepcopy(ours), copy.deepcopy(ours.state_dict())
    mine, other = trained(ours, make_optimizer(ours, training), 7, 1), trained(theirs, of_torch(theirs, training), 7, 1)
    assert flat(mine.state_dict()) == flat(other.state_dict())
    again, from_theirs = make_optimizer(ours, training), make_optimizer(theirs, training)
    again.load_state_dict(copy.deepcopy(mine.state_dict()))
    from_theirs.load_state_dict(copy.deepcopy(other.state_dict()))
    trained(ours, again, 3, 2), trained(theirs, from_theirs, 3, 2)
    for key, value in ours.state_dict().items():
        assert torch.equal(value, theirs.state_dict()[key]) and not torch.equal(value, start[key])
    given = [parameter.grad for parameter in ours.parameters()]
    again.zero_grad(set_to_none=False)
    assert all(parameter.grad.is_set_to(one) and not one.any() for parameter, one in zip(ours.parameters(), given))
    again.zero_grad()
    assert all(parameter.grad is None for parameter in ours.parameters())


def test_a_step_records_no_gradients():
    network = nn.Linear(6, 2)
    optimizer = trained(network, make_optimizer(network, ADAM), 2, 3)
    assert all(not value.requires_grad for value in optimizer.state[network.weight].values())
    assert torch.is_grad_enabled() and network.weight.is_leaf


@pytest.mark.slow
def test_a_run_imports_only_what_it_uses(tmp_path):
    """Of a run in process on a table, TensorBoard and the report included."""
    heavy = ("torch._dynamo", "sympy", "monai", "sklearn", "scipy", "pandas", "nvflare", "tensorflow")
    code = f"""
import sys
from fairflare.cli.main import main
try:
    main(["run", "fedavg", "--task", "support2:dirichlet", "--rounds", "1", "--sites", "2", "--out", "run"])
except SystemExit as end:
    print("imported:", end.code, *sorted(set({heavy!r}) & set(sys.modules)))
"""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FAIRFLARE_")}
    kept["PYTHONPATH"] = str(Path(__file__).parents[2] / "custom")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=kept, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.splitlines()[-1:] == ["imported: 0"], done.stdout + done.stderr
