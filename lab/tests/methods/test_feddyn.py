# SPDX-License-Identifier: Apache-2.0
"""FedDyn: where it ends, who is away, what drifts, and what its reference does otherwise."""

import pytest
import torch
from torch import nn

from fairflare.aggregators.fedavg import FedAvg
from fairflare.core.errors import UserError
from fairflare.core.types import Batch, Info, LocalWork, Reply, Round, Training
from fairflare.engine.setup.config import make_config
from fairflare.testing.example import copied, work_of_round
from fairflare.trainers.base import PlainTrainer
from fairflare_lab.methods.feddyn import DRIFT, HISTORY, FedDynTrainer

PLAIN = Training(epochs=20, lr=0.1, batch_size=2, optimizer="sgd", momentum=0.0, weight_decay=0.0)


class Parabola:
    """F(w) = steepness / 2 (w - centre)^2 as the loss of a linear network without bias on one input of 1."""

    class_counts = torch.ones(1)

    def __init__(self, steepness, centre):
        self.steepness, self.centre = steepness, centre

    def training(self, batch_size, seed):
        yield Batch(torch.ones(2, 1), torch.zeros(2, dtype=torch.int64), torch.full((2,), -1))

    def objective(self, counts, tau):
        return lambda outputs, targets, reduction="mean": self.steepness / 2 * (outputs - self.centre).square().mean()


MEAN = FedAvg(weighting="uniform")
SITES = (Parabola(1.0, 0.0), Parabola(4.0, 1.0))
OPTIMUM = 4 / 5


def ends_at(trainer, rounds=20):
    """The shared weight after so many rounds of twenty local steps each."""
    weight, state, memories = torch.zeros(1, 1), {}, [{}, {}]
    info = Info(Round(1, 1), known_sites=2)
    for _ in range(rounds):
        replies = []
        for k, data in enumerate(SITES):
            network = nn.Linear(1, 1, bias=False)
            network.load_state_dict({"weight": weight})
            work = LocalWork(network, data, PLAIN, Round(1, 1), 0, memory=memories[k], objective=data.objective)
            work.tensors = trainer.tensors_for(state, f"site-{k}", info)
            trainer.train(work)
            update = {"weight": network.weight.detach() - weight}
            replies.append(Reply(f"site-{k}", update, 2, trainable=frozenset(update)))
        state = trainer.collect({"weight": weight}, replies, state, info)
        weight = MEAN.aggregate({"weight": weight}, replies, {}, info).model["weight"]
    return weight.item()


def test_it_ends_at_the_optimum_of_the_mean_loss_where_plain_averaging_does_not():
    """Twenty local steps take each site nearly to its own optimum; their plain mean is (0 + 1) / 2."""
    assert ends_at(FedDynTrainer(alpha=0.5)) == pytest.approx(OPTIMUM, abs=0.01)
    assert abs(ends_at(PlainTrainer()) - OPTIMUM) > 0.1


def reply(site, value, **extra):
    return Reply(site, {"w": torch.tensor([value]), **extra}, 10, trainable=frozenset({"w"}))


def test_the_drift_by_hand_with_a_site_that_is_away():
    """N = 2: after (1, 3) it is 2; the second site, away, keeps what it has moved, so that the mean moves by half."""
    trainer, info, model = FedDynTrainer(), Info(Round(1, 3), known_sites=2), {"w": torch.zeros(1)}
    state = trainer.collect(model, [reply("a", 1.0), reply("b", 3.0)], {}, info)
    assert state[DRIFT]["w"].item() == 2 and trainer.tensors_for(state, "a", info) == state
    later = trainer.collect({"w": torch.full((1,), 2.0)}, [reply("a", 3.0)], state, info)
    assert later[DRIFT]["w"].item() == 2 + (3 - 2) / 2


def test_running_statistics_are_averaged_and_do_not_drift():
    model = {"w": torch.zeros(1), "bn.running_var": torch.ones(1), "bn.num_batches_tracked": torch.tensor(3)}
    replies = [reply(site, 1.0, **{"bn.running_var": torch.tensor([v])}) for site, v in (("a", -0.9), ("b", -0.5))]
    info = Info(Round(1, 2), known_sites=2)
    after, state = MEAN.aggregate(model, replies, {}, info).model, FedDynTrainer().collect(model, replies, {}, info)
    assert after["bn.running_var"].item() == pytest.approx(0.3) and after["bn.num_batches_tracked"] == 3
    assert set(state[DRIFT]) == {"w"}


def trained(trainer, memory=None, orders=None, tensors=None, change=lambda network: None):
    work = work_of_round(1, memory=memory, orders=orders)
    work.tensors = {DRIFT: tensors} if tensors else {}
    change(work.network)
    trainer.train(work)
    return work


def test_a_site_starts_where_the_drift_takes_it_and_keeps_how_far_it_went():
    shift = {"5.bias": torch.tensor([3.0, -3.0])}
    work = trained(FedDynTrainer(), tensors=shift)
    moved = copied(work.network)["5.bias"] - work.received["5.bias"] - shift["5.bias"]
    torch.testing.assert_close(work.memory[HISTORY]["5.bias"], moved)
    assert set(work.memory[HISTORY]) == {name for name, _ in work.network.named_parameters()}


def test_the_history_pulls_the_other_way():
    """-<g_k, w> with g_k = -alpha times the past: a site that has gone up so far is held back."""
    past = {"5.bias": torch.tensor([10.0, 0.0])}
    held, free = (trained(FedDynTrainer(alpha=0.1), memory={HISTORY: h} if h else {}) for h in (past, None))
    assert copied(held.network)["5.bias"][0] < copied(free.network)["5.bias"][0]


def test_the_reference_scales_alpha_by_the_sites_size():
    info = Info(Round(1, 2), known_sites=2, examples={"small": 10, "large": 30})
    orders = FedDynTrainer().orders({}, "small", info)
    assert orders == {"alpha_scale": 2.0} and FedDynTrainer().orders({}, "unknown", info) == {}
    work, found = work_of_round(1, orders=orders), []
    for variant in ("paper", "reference"):
        FedDynTrainer(0.01, variant).setup(work)
        found.append(work.scratch["alpha"])
    assert found == [0.01, 0.02]


def test_the_reference_clips_long_gradients():
    """A past of 1e4 makes a gradient of 1e3, of which 10 is left; both are then a step of lr times that."""
    past = {"5.bias": torch.tensor([1e4, 0.0])}
    bias = [
        copied(trained(FedDynTrainer(0.1, v), memory={HISTORY: dict(past)}).network)["5.bias"][0]
        for v in ("paper", "reference")
    ]
    assert bias[0] < -200 and bias[1] > -20


@pytest.mark.parametrize("rule", ["fedheal", "qfedavg"])
def test_it_goes_with_any_rule_that_makes_one_model(rule):
    assert make_config("feddyn", "support2", values={"rule": rule}).trainer == "feddyn"


def test_models_of_the_sites_own_are_refused():
    with pytest.raises(UserError, match="trainer feddyn: corrects the shared model"):
        make_config("cgsv", "support2", values={"trainer": "feddyn"})


def test_frozen_parameters_stay():
    work = trained(FedDynTrainer(), change=lambda network: network[0].requires_grad_(False))
    assert not any(key.startswith("0.") for key in work.memory[HISTORY])
