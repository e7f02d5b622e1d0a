# SPDX-License-Identifier: Apache-2.0
"""FedFV against the authors' code over three rounds, with everyone there and with sites away."""

import numpy as np
import pytest
import torch

from fairflare.core.types import Info, Reply, Round
from fairflare_lab.methods.fedfv import FedFV
from golden import file

GOLDEN = np.load(file("fedfv.npz"))
ROUNDS, SITES, _ = GOLDEN["grads"].shape
# The authors' code takes norms in float32.
CLOSE = {"rtol": 0, "atol": 1e-6}


def replies(t, sites):
    return [
        Reply(
            f"site-{k}",
            {"w": torch.from_numpy(-GOLDEN["grads"][t, k])},
            10,
            {"loss": float(GOLDEN["losses"][t, k])},
            trainable=frozenset({"w"}),
        )
        for k in sites
    ]


def models(rule, present):
    model, state, found = {"w": torch.from_numpy(GOLDEN["w0"])}, {}, []
    for t, sites in enumerate(present):
        outcome = rule.aggregate(model, replies(t, sites), state, Info(Round(t + 1, ROUNDS)))
        model, state = outcome.model, outcome.state
        found.append(model["w"].numpy())
    return np.array(found)


@pytest.mark.parametrize("alpha", ["0", "0.1", "0.3", "0.5"])
def test_the_authors_code(alpha):
    found = models(FedFV(float(alpha), tau=1, variant="reference"), [range(SITES)] * ROUNDS)
    np.testing.assert_allclose(found, GOLDEN[f"alpha{alpha}_tau1/model"], **CLOSE)


@pytest.mark.parametrize("alpha", ["0", "0.1", "0.3", "0.5"])
def test_with_everyone_there_nothing_is_external(alpha):
    first = models(FedFV(float(alpha), tau=3), [range(SITES)] * ROUNDS)[0]
    np.testing.assert_allclose(GOLDEN["w0"] - first, GOLDEN[f"alpha{alpha}_noexternal/step_r0"], **CLOSE)


def test_the_authors_code_with_sites_away():
    present = [[k for k in row if k >= 0] for row in GOLDEN["partial_clients"]]
    found = models(FedFV(0.1, tau=2, variant="reference"), present)
    np.testing.assert_allclose(found, GOLDEN["alpha0.1_tau2_partial/model"], **CLOSE)
