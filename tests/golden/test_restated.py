# SPDX-License-Identifier: Apache-2.0
"""FedPer, FedRep, APFL, pFedMe and MaxFL against ``restated.py``, over two rounds where a site keeps something."""

import numpy as np
import pytest
import restated
import torch
from torch import nn

from fairflare.core.types import PERSONAL, Batch, Info, LocalWork, Reply, Round, Training
from fairflare.trainers.base import PlainTrainer
from fairflare.trainers.fedper import FedPer, FedRep
from fairflare_lab.methods.apfl import ALPHA, APFL, LOCAL
from fairflare_lab.methods.appeal import Appeal, slope
from fairflare_lab.methods.maxfl import MaxFL
from fairflare_lab.methods.pfedme import PFedMe
from golden import folder

GOLDEN = np.load(folder() / "local_terms.npz")
X, Y = GOLDEN["x"].astype(np.float64), GOLDEN["y"].astype(np.int64)
KEYS = ("0.weight", "0.bias", "2.weight", "2.bias")
LR, STEPS = 0.1, 3


def start(name):
    return {key: GOLDEN[f"{name}/{key}"].astype(np.float64) for key in KEYS}


class Rows:
    """All golden examples as one batch, epoch after epoch."""

    class_counts = torch.bincount(torch.from_numpy(Y), minlength=3)

    def size(self, split):
        return len(Y)

    def training(self, batch_size, seed):
        yield Batch(torch.from_numpy(X), torch.from_numpy(Y), torch.full((len(Y),), -1))

    def fixed(self, split, batch_size, at_most=None):
        return self.training(batch_size, 0)


def work_of(trainer, received, memory=None):
    """The site's round before it trains on ``received``."""
    made = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    sent = {key: torch.from_numpy(value.copy()) for key, value in received.items()}
    training = Training(epochs=STEPS, optimizer="sgd", lr=LR, momentum=0.0, weight_decay=0.0)
    work = LocalWork(made, Rows(), training, Round(2, 4), seed=0, memory=dict(memory or {}))
    work.received = trainer.site_model(sent, work.memory)
    made.load_state_dict(work.received)
    return work


def round_of(trainer, received, memory=None):
    work = work_of(trainer, received, memory)
    trainer.train(work)
    return work


def same(found, expected):
    for key in KEYS:
        np.testing.assert_allclose(found[key].numpy(), expected[key], rtol=0, atol=1e-12, err_msg=key)


def test_the_restated_gradient_is_the_slope_of_its_loss():
    net, away = start("local"), start("global")
    ends = [restated.loss_and_gradient(restated.descended(net, step, away), X, Y)[0] for step in (1e-6, -1e-6)]
    by = sum((restated.loss_and_gradient(net, X, Y)[1][key] * away[key]).sum() for key in KEYS)
    assert (ends[1] - ends[0]) / 2e-6 == pytest.approx(by, rel=1e-6)


def test_fedper_trains_the_sites_own_head_on_the_shared_layers():
    memory = {PERSONAL: {key: torch.from_numpy(start("local")[key]) for key in restated.HEAD}}
    work = round_of(FedPer(), start("global"), memory)
    begun = {**start("global"), **{key: start("local")[key] for key in restated.HEAD}}
    same(work.network.state_dict(), restated.fedper(begun, X, Y, LR, STEPS))


@pytest.mark.parametrize("passes", [1, 2])
def test_fedrep_trains_the_head_first(passes):
    work = round_of(FedRep(head_passes=passes), start("global"))
    same(work.network.state_dict(), restated.fedrep(start("global"), X, Y, LR, passes * STEPS, STEPS))
    assert work.steps == STEPS


@pytest.mark.parametrize("adapt", [False, True])
def test_apfl(adapt):
    """Round 1 from the received model; round 2 from another shared model, with v and alpha as they were left."""
    trainer, memory, v, alpha = APFL(alpha=0.3, adapt=adapt), {}, start("global"), 0.3
    for name in ("global", "local"):
        work = round_of(trainer, start(name), memory)
        w, v, alpha = restated.apfl(start(name), v, alpha, X, Y, LR, STEPS, adapt)
        same(work.network.state_dict(), w)
        same(work.memory[LOCAL], v)
        same(work.personal, restated.mixture(alpha, v, w))
        memory = work.memory
    assert not adapt or float(memory[ALPHA]) == pytest.approx(alpha, rel=1e-12) != 0.3


def test_apfl_with_alpha_one_trains_alone_and_with_zero_is_fedavg():
    alone, shared = (round_of(APFL(alpha=alpha), start("global")) for alpha in (1.0, 0.0))
    expected = restated.fedper(start("global"), X, Y, LR, STEPS)
    for work in (alone, shared):
        same(work.personal, expected)
    second = round_of(APFL(alpha=1.0), start("local"), alone.memory)
    same(second.personal, restated.fedper(expected, X, Y, LR, STEPS))


@pytest.mark.parametrize("lam, eta, inner", [(15.0, 0.005, 5), (2.0, 0.5, 1)])
def test_pfedme(lam, eta, inner):
    work = round_of(PFedMe(lam=lam, eta=eta, inner_steps=inner), start("global"))
    w, theta = restated.pfedme(start("global"), X, Y, LR, lam, eta, inner, STEPS)
    same(work.network.state_dict(), w)
    same(work.personal, theta)


def appeal(received, memory):
    """What a site reports of ``received``, and what it has kept after its training."""
    probe, trainer, work = Appeal(), PlainTrainer(), work_of(PlainTrainer(), received, memory)
    found = probe.measure(work)["appeal"]
    trainer.train(work)
    probe.remember(work)
    return found, work.memory


def test_maxfl_over_two_rounds():
    """The requirement is the loss of the first round's trained model, and stays; a site is indifferent before it."""
    first, memory = appeal(start("global"), {})
    required = restated.loss_and_gradient(restated.fedper(start("global"), X, Y, LR, STEPS), X, Y)[0]
    assert first == 0.25 and list(memory.values()) == [pytest.approx(required, rel=1e-12)]
    second, kept = appeal(start("local"), memory)
    loss = restated.loss_and_gradient(start("local"), X, Y)[0]
    assert second == pytest.approx(restated.maxfl([loss], [required])[0][0], rel=1e-12) != 0.25
    assert kept == memory


def test_maxfls_weights():
    losses, required = [0.7, 0.2, 3.0, 1.0], [0.5, 0.4, 0.3, 1.0]
    q, expected = restated.maxfl(losses, required)
    replies = [Reply(f"site-{k}", {}, 10 * k + 1, {"appeal": slope(losses[k] - required[k])}) for k in range(4)]
    assert [r.scalars["appeal"] for r in replies] == pytest.approx(list(q), rel=1e-12)
    weights, _ = MaxFL().weigh(replies, {}, Info(Round(1, 2)))
    assert list(weights.values()) == pytest.approx(list(expected), rel=1e-12)
    assert max(weights, key=weights.get) == "site-3", "the one that is undecided"


@pytest.mark.parametrize("away", [1e6, -1e6, float("inf")])
def test_who_is_far_from_undecided_weighs_nothing_and_all_such_weigh_the_same(away):
    replies = [Reply(f"site-{k}", {}, 10, {"appeal": slope(away)}) for k in range(3)]
    assert slope(away) == 0 and slope(0) == 0.25 and slope(float("nan")) == 0
    assert list(MaxFL().weigh(replies, {}, Info(Round(1, 2)))[0].values()) == pytest.approx([1 / 3] * 3)
    assert MaxFL().own_weight((0.0, 1.0), None, (0.0, 3.0))[0] == pytest.approx(1 / 3)
