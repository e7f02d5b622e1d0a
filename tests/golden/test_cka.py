# SPDX-License-Identifier: Apache-2.0
"""Linear CKA, the cosine and Fed-LWR's weights against the estimators that the authors use."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from cases import each
from fairflare.aggregators.fedlwr import FedLWR
from fairflare.core.types import Batch, Info, LocalWork, Reply, Round, Training
from fairflare.probes.cka import LayerSimilarity, cka, compact, cosine, hsic
from golden import folder

ARRAYS = np.load(folder() / "cka.npz")
VALUES = json.loads((folder() / "cka.json").read_text())


def features(name):
    return [torch.from_numpy(ARRAYS[f"{name}/{side}"]) for side in ("U", "V")]


@each("estimator", ["biased", "unbiased"])
@each("name", VALUES)
def test_linear_cka(name, estimator):
    u, v = map(compact, features(name))
    found = cka(*(hsic(a, b, estimator) for a, b in ((u, v), (u, u), (v, v))))
    assert found == pytest.approx(VALUES[name][estimator], abs=1e-10)


@pytest.mark.parametrize("name", [name for name in VALUES if VALUES[name]["cos"] is not None])
def test_cosine(name):
    assert float(cosine(*features(name)).mean()) == pytest.approx(VALUES[name]["cos"], abs=1e-10)


class Encoder(nn.Module):
    """Convolution, BatchNorm, ReLU, 2 x 2 max pooling, 1 x 1 convolution: the network whose weights the file holds."""

    def __init__(self, state):
        super().__init__()
        (wide, narrow, *kernel), (out, *_) = state["enc.c1.weight"].shape, state["out.weight"].shape
        bias = "enc.c1.bias" in state
        self.enc = nn.ModuleDict(
            {"c1": nn.Conv2d(narrow, wide, kernel, padding=kernel[0] // 2, bias=bias), "b1": nn.BatchNorm2d(wide)}
        )
        self.out = nn.Conv2d(wide, out, 1)
        self.double().load_state_dict(state)

    def forward(self, x):
        return self.out(nn.functional.max_pool2d(torch.relu(self.enc["b1"](self.enc["c1"](x))), 2))


class Images:
    def __init__(self, x):
        self.x = x

    def size(self, split):
        return len(self.x)

    def fixed(self, split, batch_size, at_most=None):
        for part in self.x.split(batch_size):
            yield Batch(part, torch.zeros(len(part)), torch.zeros(len(part)))


@pytest.mark.parametrize(
    "estimator, size, key",
    [("unbiased", size, f"cnn/minibatch_unbiased_bs{size}") for size in (24, 8, 4)]
    + [("biased", 24, "cnn/biased_full"), ("paper", 8, "cnn/biased_full")],
)
def test_layers_of_a_network(estimator, size, key):
    states = [
        {
            k.removeprefix(f"cnn/{side}/"): torch.from_numpy(np.asarray(ARRAYS[k]))
            for k in ARRAYS.files
            if f"/{side}/" in k
        }
        for side in ("A", "B")
    ]
    network = Encoder(states[0])
    images = Images(torch.from_numpy(ARRAYS["cnn/x"]))
    work = LocalWork(network, images, Training(), Round(1, 1), seed=0, received=states[1])
    settings = {"similarity": "paper", "cka_examples": 8} if estimator == "paper" else {"estimator": estimator}
    found = LayerSimilarity(**{"cka_batch": size, "cka_examples": 0, **settings}).measure(work)
    assert list(found) == ["similarity/enc.c1", "similarity/enc.b1", "similarity/out"]
    np.testing.assert_allclose(
        list(found.values()), ARRAYS[key], rtol=0, atol=2e-6 if estimator == "unbiased" else 1e-10
    )
    assert all(torch.equal(value, states[0][name]) for name, value in network.state_dict().items())


@pytest.mark.parametrize("variant, clip, key", [("paper", False, "weights_eq5"), ("reference", True, "weights_ref")])
def test_layer_weights(variant, clip, key):
    deltas = ARRAYS["lwr/delta"]
    sites, layers = deltas.shape
    model = {f"layer{m}.weight": torch.zeros(1) for m in range(layers)}
    replies = [
        Reply(
            f"site-{k}",
            {f"layer{m}.weight": torch.ones(1) * (k + 1) for m in range(layers)},
            10,
            scalars={f"similarity/layer{m}": deltas[k, m] for m in range(layers)},
        )
        for k in range(sites)
    ]
    outcome = FedLWR(variant=variant, clip=clip).aggregate(model, replies, {}, Info(Round(1, 1)))
    for m in range(layers):
        rho = outcome.notes["layer_weights"][f"layer{m}"]
        expected = ARRAYS[f"lwr/{key}"][:, m]
        # Similarities of 1 at every site are 0 / 0 in the equation: the layer is then averaged uniformly.
        expected = np.where(np.isnan(expected), 1 / sites, expected)
        np.testing.assert_allclose(list(rho.values()), expected, rtol=0, atol=1e-10)
        mean = sum((k + 1) * w for k, w in enumerate(rho.values()))
        assert float(outcome.model[f"layer{m}.weight"]) == pytest.approx(mean, rel=1e-6)
