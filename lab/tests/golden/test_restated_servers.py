# SPDX-License-Identifier: Apache-2.0
"""IFCA's clusters and FedAMP's mixtures against ``restated.py`` over rounds of models of sites' own."""

import numpy as np
import pytest
import restated
import torch

from fairflare.core.types import Info, Reply, Round
from fairflare_lab.methods.fedamp import FedAMP
from fairflare_lab.methods.ifca import IFCA

K, P, T = 5, 6, 4
TRAINABLE = frozenset({"w"})
RANDOM = np.random.default_rng(5)
START = RANDOM.normal(size=P)
SIDES = np.array([1, -1, 1, 1, -1])
"""Two kinds of sites: their first updates point to either side."""
STEPS = 0.1 * RANDOM.normal(size=(T, K, P)) + (np.arange(T) == 0)[:, None, None] * SIDES[None, :, None]
MODEL = {"w": torch.from_numpy(START), "mean": torch.zeros(1, dtype=torch.float64), "count": torch.tensor(3)}


def replies(t, sites=range(K), **scalars):
    return [
        Reply(
            f"site-{k}",
            {"w": torch.from_numpy(STEPS[t, k]), "mean": torch.full((1,), float(k), dtype=torch.float64)},
            10 * (k + 1),
            {name: float(values[k]) for name, values in scalars.items()},
            trainable=TRAINABLE,
        )
        for k in sites
    ]


def info(t, own, total=T):
    return Info(Round(t + 1, total), models=own)


def test_ifca_over_four_rounds():
    """Sites move between the clusters as the losses say, and one cluster loses all of its sites."""
    first = [STEPS[0, side == SIDES].mean(0) for side in (1, -1)]
    losses = np.stack([0.5 - 0.3 * (side == SIDES) for side in (1, -1)], axis=1)[None].repeat(T, 0)
    losses[1, 0] = 0.1, 0.9  # whichever it was
    losses[2] = 0.2, 0.4  # all to the first
    rule, model, state, own, found, order = IFCA(), MODEL, {}, {}, [], []
    for t in range(T):
        shown = dict(rule.anchors(model, replies(t), state, info(t, own)))
        order = order or sorted(shown, key=lambda j: -float(shown[j]["w"].sum()))
        scalars = {f"cluster_loss/{j}": losses[t, :, n] for n, j in enumerate(order)}
        outcome = rule.aggregate(model, replies(t, **scalars), state, info(t, own))
        assert all(torch.equal(shown[j]["w"], outcome.state["clusters"][j]["w"]) for j in shown)
        found.append(outcome)
        model, state, own = outcome.model, outcome.state, {**own, **outcome.models}
    begun = [START + step for step in first], np.argmin(losses[0], axis=1)
    for outcome, (models, place) in zip(found[1:], restated.ifca(begun, STEPS[1:], losses[1:]), strict=True):
        for n, j in enumerate(order):
            np.testing.assert_allclose(outcome.state["clusters"][j]["w"].numpy(), models[n], rtol=0, atol=1e-12)
        for k in range(K):
            assert outcome.state["place"][f"site-{k}"] == order[place[k]]
            np.testing.assert_allclose(outcome.models[f"site-{k}"]["w"].numpy(), models[place[k]], rtol=0, atol=1e-12)


def test_ifca_a_site_that_is_away_is_given_the_new_model_of_its_cluster():
    rule, scalars = IFCA(), {"cluster_loss/0": SIDES < 0, "cluster_loss/1": SIDES > 0}
    first = rule.aggregate(MODEL, replies(0, **scalars), {}, info(0, {}))
    second = rule.aggregate(first.model, replies(1, range(4), **scalars), first.state, info(1, first.models))
    assert second.state["place"]["site-4"] == second.state["place"]["site-1"]
    assert torch.equal(second.models["site-4"]["w"], second.models["site-1"]["w"])
    assert not torch.equal(second.models["site-4"]["w"], first.models["site-4"]["w"])


def test_ifca_with_one_cluster_is_fedavg_and_a_site_without_losses_stays_in_some_cluster():
    outcome = IFCA(clusters=1).aggregate(MODEL, replies(0), {}, info(0, {}))
    for model in (outcome.model, *outcome.models.values()):
        np.testing.assert_allclose(model["w"].numpy(), START + STEPS[0].mean(0), rtol=0, atol=1e-12)
    assert outcome.state["place"] == {f"site-{k}": "0" for k in range(K)}
    assert set(IFCA(clusters=50).aggregate(MODEL, replies(0), {}, info(0, {})).state["clusters"]) == set("01234")


@pytest.mark.parametrize("sigma, share", [(1.0, 1.0), (0.3, 0.5), (20.0, 0.9)])
def test_fedamp_over_three_rounds(sigma, share):
    """alpha and sigma of the paper follow from the rule's, which are in medians of the squared distances."""
    rule, model, own, sent = FedAMP(sigma=sigma, share=share), MODEL, {}, np.tile(START, (K, 1))
    for t in range(3):
        outcome = rule.aggregate(model, replies(t), {}, info(t, own))
        trained = sent + STEPS[t]
        median = sorted(((trained[i] - trained[j]) ** 2).sum() for i in range(K) for j in range(i))[4]
        sent = restated.fedamp(trained, share * sigma * median / (K - 1), sigma * median)
        for k in range(K):
            np.testing.assert_allclose(outcome.models[f"site-{k}"]["w"].numpy(), sent[k], rtol=0, atol=1e-12)
        model, own = outcome.model, outcome.models


def test_fedamp_ends_with_each_sites_own_model_and_averages_running_statistics_with_the_same_weights():
    last = FedAMP().aggregate(MODEL, replies(0), {}, info(T - 1, {}))
    np.testing.assert_allclose(last.models["site-2"]["w"].numpy(), START + STEPS[0, 2], rtol=0, atol=1e-12)
    first = FedAMP().aggregate(MODEL, replies(0), {}, info(0, {}))
    for k in range(K):
        assert 0 < float(first.models[f"site-{k}"]["mean"]) < K - 1 and first.models[f"site-{k}"]["count"] == 3


def test_fedamp_one_far_site_is_in_no_others_mixture_and_equal_sites_share():
    rule = FedAMP()
    apart = np.array([[0, 1, 1, 1e9], [1, 0, 1, 1e9], [1, 1, 0, 1e9], [1e9, 1e9, 1e9, 0]])
    found = rule.mixtures(apart)
    assert found[3, 3] == pytest.approx(1, abs=1e-6) and np.allclose(found.sum(1), 1) and (found >= 0).all()
    assert rule.mixtures(np.zeros((3, 3))).tolist() == [[0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]]
    assert np.array_equal(FedAMP(share=0.0).mixtures(apart), np.eye(4)) and rule.mixtures(np.zeros((1, 1))) == 1
    with pytest.raises(ValueError, match="sigma must be > 0"):
        FedAMP(sigma=0.0)
