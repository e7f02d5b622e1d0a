# SPDX-License-Identifier: Apache-2.0
"""FedCE's weights against four implementations of it, and its leave-one-out model against FLARE's helper."""

import numpy as np
import torch
from torch import nn

from cases import each
from fairflare.aggregators.fedce import FedCE
from fairflare.core.types import Info, Reply, Round
from fairflare.probes.loss import without
from golden import folder

GOLDEN = np.load(folder() / "fedce.npz")
SCORES = GOLDEN["minus_val"]
ROUNDS, CLIENTS = SCORES.shape
PREFIXES = {"paper": "paper", "flare": "nvflare29", "reference": "nvflare_old", "ffl4mia": "ffl4mia"}


def replies(t):
    return [
        Reply(
            f"site-{k}",
            {key: torch.from_numpy(GOLDEN[f"update/r{t}/c{k}/{key}"]) for key in ("w", "b")},
            10,
            # Nobody has a model of the round before in the first one.
            scalars={"minus_error": 1 - SCORES[t, k]} if t else {},
            trainable=frozenset({"w", "b"}),
        )
        for k in range(CLIENTS)
    ]


@each("mode, combine", [("plus", "sum"), ("times", "multi")])
@each("variant", PREFIXES)
def test_weights(variant, mode, combine):
    rule, state = FedCE(combine=combine, variant=variant), {}
    expected = GOLDEN[f"{PREFIXES[variant]}_{mode}/weights"]
    model = {"w": torch.zeros(3, 4), "b": torch.zeros(3)}
    for t in range(ROUNDS):
        outcome = rule.aggregate(model, replies(t), state, Info(Round(t + 1, ROUNDS)))
        state = outcome.state
        np.testing.assert_allclose(list(outcome.weights.values()), expected[t], rtol=0, atol=1e-6)
        if variant == "flare":
            for key in model:
                summed = GOLDEN[f"nvflare29_{mode}/agg/r{t}/{key}"]
                np.testing.assert_allclose(outcome.model[key].numpy(), summed, rtol=0, atol=1e-6)


def test_leave_one_out_parameters():
    """FLARE's helper extrapolates running statistics too, which can make a variance negative; we leave them alone."""
    archive = np.load(folder() / "fedce_minus_model.npz")
    network = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    network.load_state_dict({k: torch.from_numpy(np.asarray(archive[f"global/{k}"])) for k in network.state_dict()})
    own = {name: torch.from_numpy(archive[f"prev/{name}"]) for name, _ in network.named_parameters()}
    before = {k: v.clone() for k, v in network.state_dict().items()}
    with without(network, own, 0.3):
        found = {k: v.clone() for k, v in network.state_dict().items()}
    for name in own:
        np.testing.assert_allclose(found[name].numpy(), archive[f"minus_p0.3/{name}"], rtol=0, atol=1e-6)
    for name in found.keys() - own.keys():
        assert torch.equal(found[name], before[name])
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
