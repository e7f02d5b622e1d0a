# SPDX-License-Identifier: Apache-2.0
"""Leave-one-out, local error, layer similarity and group losses at a site: numbers, restoration, edge cases."""

import copy
import dataclasses
import math
from collections import Counter

import pytest
import torch
from torch import nn

from cases import each
from fairflare.core.types import Batch, LocalWork, Offer, Outline, Round
from fairflare.functional.blocks import layers_of
from fairflare.networks import builtin as networks
from fairflare.probes.cka import LayerSimilarity, last_encoder
from fairflare.probes.groups import GroupLoss
from fairflare.probes.loss import LeaveOneOut, LocalError, without
from fairflare.trainers.weighted import WeightedTrainer
from helpers import TRAINING, Blobs, small_network


def work(network=None, **changes):
    made = LocalWork(network or small_network(), Blobs(2), TRAINING, Round(2, 4), seed=3)
    return dataclasses.replace(made, **changes)


def state(network):
    return {k: v.detach().clone() for k, v in network.state_dict().items()}


def same(a, b):
    return set(a) == set(b) and all(torch.equal(a[k], b[k]) for k in a)


class Images:
    """Twelve 8 x 8 images in stored order."""

    def __init__(self, n=12):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(n, 1, 8, 8, generator=generator)

    def size(self, split):
        return len(self.x)

    def fixed(self, split, batch_size, at_most=None):
        for part in self.x[:at_most].split(batch_size):
            yield Batch(part, torch.zeros(len(part)), torch.zeros(len(part), dtype=torch.int64))


class Net(nn.Module):
    """Strided and in-place: the second convolution's input is overwritten by a ReLU."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.encoder = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.deep = nn.Sequential(nn.Conv2d(4, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.up = nn.ConvTranspose2d(8, 2, 4, 4)

    def forward(self, x):
        return self.up(self.deep(self.encoder(x)))


LEAVES = ["encoder.0", "encoder.1", "deep.0", "deep.1", "up"]


def test_leave_one_out_takes_the_share_out_again():
    """w = .25 own + .75 others, so that without the own part the others' remain."""
    network, own, others = small_network(), small_network(1), small_network(2)
    with torch.no_grad():
        for p, a, b in zip(network.parameters(), own.parameters(), others.parameters()):
            p.copy_(0.25 * a + 0.75 * b)
    before = state(network)
    with without(network, dict(own.named_parameters()), 0.25):
        for p, b in zip(network.parameters(), others.parameters()):
            assert torch.allclose(p, b, atol=1e-6)
        assert torch.equal(network[1].running_var, before["1.running_var"])
    assert same(state(network), before)


def test_leave_one_out_restores_after_a_failure():
    network = small_network()
    before = state(network)
    with pytest.raises(RuntimeError), without(network, dict(small_network(1).named_parameters()), 0.5):
        raise RuntimeError
    assert same(state(network), before)
    with pytest.raises(ValueError, match="coefficient"), without(network, {}, 1.0):
        pass


def test_leave_one_out_needs_a_model_and_a_share():
    scored = {"evaluate": lambda split: {"accuracy": 0.75}, "headline": "accuracy"}
    memory = {}
    assert LeaveOneOut().measure(work(orders={"coefficient": 0.2}, **scored)) == {}
    LeaveOneOut().remember(work(memory=memory))
    assert LeaveOneOut().measure(work(memory=memory, **scored)) == {}
    assert LeaveOneOut().measure(work(memory=memory, orders={"coefficient": 0.2}, **scored)) == {"minus_error": 0.25}
    nothing = {**scored, "evaluate": lambda split: {}}
    assert LeaveOneOut().measure(work(memory=memory, orders={"coefficient": 0.2}, **nothing)) == {}


def test_local_error_tells_both():
    found = LocalError().measure(
        work(received_metrics={"auc": 0.5}, evaluate=lambda split: {"auc": 0.75}, headline="auc")
    )
    assert found == {"received_error": 0.5, "trained_error": 0.25}


def test_an_error_is_larger_where_a_model_is_worse_whatever_the_metric():
    """A metric of which less is better is an error itself; one without a bound has no complement."""
    metrics = {"rmse": 7.0, "r2": 0.25, "deviance": 40.0, "integrated_brier": 0.2, "harrell_c": 0.7}
    offer = Offer("task", tuple(metrics), "rmse", (), False)
    for metric, headline, error in (
        ("headline", "harrell_c", 0.3),
        ("integrated_brier", "harrell_c", 0.2),
        ("headline", "rmse", 0.75),
        ("headline", "deviance", 0.75),
    ):
        probe = LocalError(score_metric=metric)
        found = probe.measure(work(received_metrics={}, evaluate=lambda split: metrics, headline=headline))
        assert found == {"trained_error": pytest.approx(error)}, (metric, headline)
        assert not probe.missing(dataclasses.replace(offer, headline=headline))
    assert "expected a metric of at most 1, got rmse" in LocalError(score_metric="rmse").missing(offer)
    assert "has no metric 'r2'" in LocalError().missing(dataclasses.replace(offer, metrics=("rmse",)))


def test_layers():
    model = Net().state_dict()
    assert list(layers_of(model)) == LEAVES
    assert list(layers_of(model, "conv_bn")) == ["encoder.0", "deep.0", "up"]
    assert list(layers_of(model, "block")) == ["encoder", "deep", "up"]
    for group in ("leaf", "conv_bn", "block"):
        assert sorted(key for keys in layers_of(model, group).values() for key in keys) == sorted(model)


@each("similarity", ["cka", "cosine"])
@each("group, names", [("leaf", LEAVES), ("conv_bn", LEAVES[::2]), ("block", ["encoder", "deep", "up"])])
def test_equal_models_are_alike_and_others_are_not(similarity, group, names):
    network = Net()
    probe = LayerSimilarity(similarity=similarity, group=group, cka_batch=4)
    data = {"data": Images(), "received": state(network)}
    same_model = probe.measure(work(network, **data))
    assert list(same_model) == [f"similarity/{name}" for name in names]
    assert all(value == pytest.approx(1.0, abs=1e-6) for value in same_model.values())
    other = probe.measure(work(network, **{**data, "received": state(Net(5))}))
    assert all(value < 0.99 for value in other.values())
    assert set(other) == {s.name for s in probe.scalars(Outline(network.state_dict()))}


def test_similarity_leaves_network_and_hooks_as_they_were():
    network = Net().train()
    before = state(network)
    LayerSimilarity().measure(work(network, data=Images(), received=state(Net(5))))
    assert same(state(network), before) and not any(m._forward_hooks for m in network.modules())


def test_an_exception_inside_restores_network_and_hooks():
    network = Net()
    before = state(network)
    stopping = iter([None] * 4)

    def stop():
        if next(stopping, "over") == "over":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LayerSimilarity(cka_batch=4).measure(work(network, data=Images(), received=state(Net(5)), stop_if_aborted=stop))
    assert same(state(network), before) and not any(m._forward_hooks for m in network.modules())


@pytest.mark.parametrize("n", [4, 5, 7, 9])
def test_a_small_last_batch_joins_the_one_before(n):
    found = LayerSimilarity(cka_batch=4).measure(work(Net(), data=Images(n), received=state(Net(5))))
    assert len(found) == len(LEAVES) and all(math.isfinite(value) for value in found.values())


def test_three_examples_say_nothing():
    assert LayerSimilarity().measure(work(Net(), data=Images(3), received=state(Net(5)))) == {}


def test_a_dead_layer_says_nothing():
    network, anchor = Net(), state(Net(5))
    with torch.no_grad():
        network.deep[0].weight.zero_()
    found = LayerSimilarity(cka_batch=4).measure(work(network, data=Images(), received=anchor))
    assert set(found) == {"similarity/encoder.0", "similarity/encoder.1"}


def test_last_encoder_is_the_deepest_before_the_end():
    shapes = {
        "a": torch.Size((4, 8, 32, 32)),
        "deep": torch.Size((4, 64, 4, 4)),
        "deep.norm": torch.Size((4, 64, 4, 4)),
        "up": torch.Size((4, 8, 32, 32)),
        "out": torch.Size((4, 2, 1, 1)),
    }
    assert last_encoder(shapes) == "deep.norm"
    assert last_encoder({"hidden": torch.Size((4, 8)), "out": torch.Size((4, 2))}) == "hidden"
    probe = LayerSimilarity(scope="last_encoder", cka_batch=4)
    assert list(probe.measure(work(Net(), data=Images(), received=state(Net(5))))) == ["similarity/last_encoder"]


@pytest.mark.parametrize("norm", ["batch", "instance", "group"])
def test_every_layer_of_a_random_u_net_has_a_finite_similarity(norm):
    """Uncentred float32 features of such networks give NaN in many layers."""
    torch.manual_seed(0)
    network, anchor = (networks.build("small-unet", 1, 3, norm=norm) for _ in range(2))
    data = Images(8)
    data.x = torch.rand(8, 1, 64, 64, generator=torch.Generator().manual_seed(2)) + 3
    found = LayerSimilarity(cka_batch=8).measure(work(network, data=data, received=state(anchor)))
    assert len(found) == len(layers_of(network.state_dict())) and all(math.isfinite(v) for v in found.values())


def test_half_precision_features_do_not_overflow():
    from fairflare.probes.cka import cka, compact, hsic

    x = torch.randn(8, 40, generator=torch.Generator().manual_seed(0)).half() * 6e3
    a, b = compact(x), compact(x.flip(0))
    assert cka(hsic(a, b, "unbiased"), hsic(a, a, "unbiased"), hsic(b, b, "unbiased")) is not None


def test_group_losses_add_up():
    data = Blobs(2, n=30)
    found = GroupLoss(probe_batch=7).measure(work(data=data, groups=("no", "yes")))
    assert found["group_count/no"] == found["group_count/yes"] == 15
    assert found["loss"] == pytest.approx((found["group_loss/no"] + found["group_loss/yes"]) / 2)


def test_small_groups_stay_at_home():
    data = Blobs(2, n=30)
    data.groups = torch.tensor([0] * 5 + [1] * 25)
    data.group_counts = torch.tensor([5, 25])
    assert set(GroupLoss().measure(work(data=data, groups=("no", "yes")))) == {"loss"}
    assert set(GroupLoss().measure(work(data=data, groups=("no", "yes"), min_count=None))) == {"loss"}
    assert len(GroupLoss().measure(work(data=data, groups=("no", "yes"), min_count=5))) == 5


def test_examples_in_no_group_count_in_the_loss_only():
    data = Blobs(2, n=50)
    whole = GroupLoss().measure(work(data=data, groups=("no", "yes")))
    data.groups = torch.where(torch.arange(50) < 30, data.y, -1)
    data.group_counts = torch.bincount(data.groups[:30])
    found = GroupLoss().measure(work(data=data, groups=("no", "yes")))
    assert found["loss"] == pytest.approx(whole["loss"]) and found["group_count/no"] == 15


def trained(trainer, orders, groups=("no", "yes"), optimizer="sgd"):
    network = small_network()
    training = dataclasses.replace(TRAINING, optimizer=optimizer, lr=0.05, batch_size=24, momentum=0.0)
    trainer.train(work(network, orders=orders, groups=groups, training=training))
    return torch.cat([p.detach().flatten() for p in network.parameters()])


def test_equal_weights_are_plain_training():
    plain = trained(WeightedTrainer(), {})
    for relative in ({}, {"relative": 1.0}):
        orders = {"weight": 0.5, "weight/no": 0.5, "weight/yes": 0.5, **relative}
        assert torch.allclose(trained(WeightedTrainer(), orders), plain, atol=1e-7)


def test_group_weights_act_under_adam_and_a_common_factor_does_not_matter():
    skewed = {"weight": 0.0, "weight/no": 0.2, "weight/yes": 1.8, "relative": 1.0}
    for optimizer in ("sgd", "adam"):
        plain = trained(WeightedTrainer(), {}, optimizer=optimizer)
        pulled = trained(WeightedTrainer(), skewed, optimizer=optimizer)
        assert (pulled - plain).norm() > 1e-3
        scaled = trained(
            WeightedTrainer(),
            {k: 7 * v for k, v in skewed.items() if k != "relative"} | {"relative": 1.0},
            optimizer=optimizer,
        )
        assert torch.allclose(scaled, pulled, atol=1e-6)


def test_weights_of_a_group_multiply_its_gradient():
    """One SGD step: the update is the weighted mean of the groups' own updates."""
    both = trained(WeightedTrainer(), {"weight": 0.0, "weight/no": 1.5, "weight/yes": 0.5})
    start = torch.cat([p.detach().flatten() for p in small_network().parameters()])
    no, yes = (
        trained(WeightedTrainer(), {"weight": 0.0, "weight/no": float(k == 0), "weight/yes": float(k == 1)}) - start
        for k in (0, 1)
    )
    assert torch.allclose(both - start, 1.5 * no + 0.5 * yes, atol=1e-4)


def test_sampled_weights_are_one_of_the_two_for_each_group():
    """Line 7 of FedUFO's Algorithm 1: with probability beta .25 the site's weight s_0 / beta, else s_g / (1 - beta)."""
    orders = {"weight": 0.2, "weight/no": 0.9, "weight/yes": 0.3}
    training = dataclasses.replace(TRAINING, epochs=1, batch_size=24, momentum=0.0)
    linear = torch.nn.Sequential(torch.nn.Linear(4, 2))

    def update(orders, seed=3):
        network = copy.deepcopy(linear)
        made = dataclasses.replace(work(network, orders=orders, groups=("no", "yes"), training=training), seed=seed)
        WeightedTrainer().train(made)
        return torch.cat([(p - q).detach().flatten() for p, q in zip(network.parameters(), linear.parameters())])

    each = {"site": 0.2 / 0.25, "no": 0.9 / 0.75, "yes": 0.3 / 0.75}
    of_pairs = {
        (no, yes): update({"weight": 0.0, "weight/no": each[no], "weight/yes": each[yes]})
        for no in ("site", "no")
        for yes in ("site", "yes")
    }
    drawn = Counter()
    for seed in range(400):
        found = update({**orders, "sampled": 0.25}, seed)
        drawn += Counter(pair for pair, one in of_pairs.items() if torch.allclose(found, one, atol=1e-6))
    assert sum(drawn.values()) == 400
    for pair, n in drawn.items():
        p = 0.25 ** pair.count("site") * 0.75 ** (2 - pair.count("site"))
        assert abs(n / 400 - p) < 4 * (p * (1 - p) / 400) ** 0.5
    mean = sum(n * of_pairs[pair] for pair, n in drawn.items()) / 400
    assert torch.allclose(mean, update(orders), rtol=0.2, atol=1e-3)


def test_a_group_without_a_weight_has_the_mean_of_the_others():
    """Sizes 12, 6, 6 with weights 3 and 0 for the first two: the third, of which nothing may leave, has 36 / 18 = 2."""
    data = Blobs(2)
    data.group_counts = torch.tensor([12, 6, 6])
    made = work(data=data, groups=("a", "b", "c"), orders={"weight": 0.0, "weight/a": 3.0, "weight/b": 0.0})
    shared, weights = WeightedTrainer()._weights(made)
    assert shared == 0.0 and weights.tolist() == [3.0, 0.0, 2.0, 2.0]
    relative = dataclasses.replace(made, orders={**made.orders, "relative": 1.0})
    assert WeightedTrainer()._weights(relative)[1].tolist() == [1.5, 0.0, 1.0, 1.0]
    none_known = dataclasses.replace(made, orders={"weight": 1.0, "relative": 1.0})
    assert WeightedTrainer()._weights(none_known)[0] == 1.0


def test_examples_in_no_group_have_the_mean_weight():
    data = Blobs(2)
    data.groups = torch.where(torch.arange(24) < 12, data.y, -1)
    data.group_counts = torch.bincount(data.groups[:12])
    training = dataclasses.replace(TRAINING, batch_size=24, momentum=0.0)
    results = []
    for orders in ({"weight": 0.0, "weight/no": 2.0, "weight/yes": 2.0}, {"weight": 2.0}):
        network = small_network()
        WeightedTrainer().train(work(network, data=data, groups=("no", "yes"), orders=orders, training=training))
        results.append(torch.cat([p.detach().flatten() for p in network.parameters()]))
    assert torch.allclose(*results, atol=1e-7)


def test_a_batch_sum_divides_the_groups_weights_out():
    """s_0 = 0 and equal s_g = 1 / 2: half the mean loss, whatever the scale within the batch."""
    half = trained(WeightedTrainer("batch"), {"weight": 0.0, "weight/no": 0.5, "weight/yes": 0.5})
    start = torch.cat([p.detach().flatten() for p in small_network().parameters()])
    whole = trained(WeightedTrainer(), {})
    assert torch.allclose(half - start, 0.5 * (whole - start), atol=2e-4)
    nothing = trained(WeightedTrainer("batch"), {"weight": 0.0, "weight/no": 0.0, "weight/yes": 0.0})
    assert torch.allclose(nothing, start, atol=1e-4)  # weight decay alone
