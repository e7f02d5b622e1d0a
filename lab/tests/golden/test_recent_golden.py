# SPDX-License-Identifier: Apache-2.0
"""FedLESAM and FedEBA+, restated in NumPy: three rounds of three sites, a tanh network, full-batch steps."""

import numpy as np
import pytest
import restated
import torch
from torch import nn

from fairflare.aggregators.fedavg import FedAvg
from fairflare.core.types import Batch, Info, LocalWork, Reply, Round, Training
from fairflare_lab.methods.fedeba import FIRST, FedEBA, FirstStep, angle_of
from fairflare_lab.methods.fedlesam import FedLESAM
from golden import file

GOLDEN = np.load(file("local_terms.npz"))
KEYS = ("0.weight", "0.bias", "2.weight", "2.bias")
X, Y = GOLDEN["x"].astype(np.float64), GOLDEN["y"].astype(np.int64)
SITES = [(X[rows], Y[rows]) for rows in (slice(0, 10), slice(10, 25), slice(25, 40))]
START = {key: GOLDEN[f"global/{key}"].astype(np.float64) for key in KEYS}
LR, STEPS, ROUNDS = 0.5, 3, 3


def fedlesam(w, last, x, y, lr, rho, steps):
    """Fan et al., Algorithm 1, one site's round: ``last`` is what it received before, None at its first visit."""
    away = {k: np.zeros_like(v) for k, v in w.items()} if last is None else {k: last[k] - w[k] for k in w}
    length = np.sqrt(sum((v**2).sum() for v in away.values()))
    e = {k: rho * v / length if length else v for k, v in away.items()}
    for _ in range(steps):
        w = restated.descended(w, lr, restated.loss_and_gradient({k: w[k] + e[k] for k in w}, x, y)[1])
    return w


def fedeba(w, sites, lr, tau, alpha, theta, steps):
    """Wang et al., Eq. 3, 7 and 8: the next model, the weights and the losses' angle in degrees."""
    losses = np.array([restated.loss_and_gradient(w, *site)[0] for site in sites])
    p = np.exp(losses / tau) / np.exp(losses / tau).sum()
    angle = np.degrees(np.arccos(losses.mean() / np.sqrt((losses**2).mean())))
    share, ends = alpha if angle <= theta else 0, [restated.fedper(w, *site, lr, steps) for site in sites]
    firsts = [restated.fedper(w, *site, lr, 1) for site in sites]
    moved = {k: sum(p[i] * (ends[i][k] - w[k]) for i in range(len(sites))) for k in w}
    first = {k: np.mean([one[k] - w[k] for one in firsts], 0) for k in w}
    return {k: w[k] + (1 - share) * moved[k] + share * first[k] for k in w}, p, angle


class Rows:
    """All examples of a site as one batch."""

    def __init__(self, x, y):
        self.x, self.y = torch.from_numpy(x), torch.from_numpy(y)
        self.class_counts = torch.bincount(self.y, minlength=3)

    def training(self, batch_size, seed):
        yield Batch(self.x, self.y, torch.full((len(self.y),), -1))


def trained(trainer, site, model, memory):
    """One site's answer to ``model``."""
    network = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    network.load_state_dict(model)
    training = Training(epochs=STEPS, lr=LR, optimizer="sgd", momentum=0.0, weight_decay=0.0)
    received = {key: value.clone() for key, value in model.items()}
    work = LocalWork(network, Rows(*SITES[site]), training, Round(1, ROUNDS), seed=0, memory=memory, received=received)
    trainer.train(work)
    update = {key: value - model[key] for key, value in network.state_dict().items()}
    loss = restated.loss_and_gradient({key: model[key].numpy() for key in KEYS}, *SITES[site])[0]
    scalars, sent = {"loss": float(loss)}, dict(work.send_tensors)
    return Reply(f"site-{site}", update, len(SITES[site][1]), scalars, tensors=sent, trainable=frozenset(KEYS))


def same(found, expected):
    for key in KEYS:
        np.testing.assert_allclose(found[key].numpy(), expected[key], rtol=0, atol=1e-12, err_msg=key)


def begun():
    return {key: torch.from_numpy(value) for key, value in START.items()}, [{} for _ in SITES]


@pytest.mark.parametrize("rho", [0.3, 0.0])
def test_fedlesam_where_one_site_misses_a_round(rho):
    """The site's direction then spans two rounds; with rho = 0 it is FedAvg."""
    model, memories = begun()
    expected, last = dict(START), [None] * len(SITES)
    for t in range(ROUNDS):
        here = [0, 2] if t == 1 else [0, 1, 2]
        replies = [trained(FedLESAM(rho), k, model, memories[k]) for k in here]
        model = FedAvg(weighting="uniform").aggregate(model, replies, {}, Info(Round(t + 1, ROUNDS))).model
        ends = [fedlesam(expected, last[k], *SITES[k], LR, rho, STEPS) for k in here]
        last = [expected if k in here else last[k] for k in range(len(SITES))]
        expected = {key: np.mean([end[key] for end in ends], 0) for key in KEYS}
        same(model, expected)
    plain = restated.fedper(expected, *SITES[1], LR, STEPS)
    moved = fedlesam(expected, last[1], *SITES[1], LR, rho, STEPS)
    assert np.allclose(moved["0.weight"], plain["0.weight"], atol=1e-9) == (rho == 0)


@pytest.mark.parametrize("tau, alpha, theta", [(0.1, 0.5, 45.0), (1.0, 0.9, 90.0), (0.5, 0.5, 0.0), (0.1, 0.0, 45.0)])
def test_fedeba(tau, alpha, theta):
    model, memories = begun()
    expected, rule = dict(START), FedEBA(tau, alpha, theta)
    for t in range(ROUNDS):
        replies = [trained(FirstStep(), k, model, memories[k]) for k in range(len(SITES))]
        outcome = rule.aggregate(model, replies, {}, Info(Round(t + 1, ROUNDS)))
        expected, weights, angle = fedeba(expected, SITES, LR, tau, alpha, theta, STEPS)
        model = outcome.model
        same(model, expected)
        np.testing.assert_allclose(list(outcome.weights.values()), weights, rtol=0, atol=1e-12)
        assert outcome.notes["loss_angle"] == pytest.approx(angle, abs=1e-5) and 0 < angle < 45


def test_fedeba_averages_buffers_by_the_weights_and_stands_extreme_losses():
    model = {"w": torch.zeros(2), "mean": torch.zeros(1), "count": torch.tensor(3)}
    first = {FIRST.name: {"w": torch.full((2,), 0.1)}}
    replies = [
        Reply(
            f"site-{k}",
            {"w": torch.ones(2), "mean": torch.full((1,), k + 1.0)},
            10,
            {"loss": loss},
            tensors=first,
            trainable=frozenset({"w"}),
        )
        for k, loss in enumerate((0.0, 1e6))
    ]
    outcome = FedEBA(theta=90.0).aggregate(model, replies, {}, Info(Round(1, 2)))
    assert outcome.weights == {"site-0": 0, "site-1": 1} and outcome.model["count"] == 3
    assert float(outcome.model["mean"]) == 2 and outcome.model["w"].tolist() == pytest.approx([0.55, 0.55])
    assert angle_of([0.0, 0.0]) == 0 and angle_of([1.0, 0.0]) == pytest.approx(45) and angle_of([2.0] * 3) < 1e-5
