# SPDX-License-Identifier: Apache-2.0
"""ShapFed against its equations (float64) and against the authors' code (float32), over four rounds.

The numbers are of the direction as published, ``direction=sum``.
"""

import numpy as np
import pytest
import torch

from fairflare.core.types import Info, Reply, Round
from fairflare_lab.methods.shapfed import ShapFed
from golden import file

GOLDEN = np.load(file("shapfed.npz"))
KEYS = ("conv.weight", "linear.weight", "linear.bias")
ROUNDS, SITES = 4, len(GOLDEN["ref/r0/gamma"])


def rounds(rule):
    """(t, outcome, w^t) of every round."""
    model = {key: torch.from_numpy(GOLDEN[f"start/{key}"]) for key in KEYS}
    state, own = {}, {}
    for t in range(ROUNDS):
        replies = [
            Reply(
                f"site-{k}",
                {key: torch.from_numpy(GOLDEN[f"update/r{t}/c{k}/{key}"]) for key in KEYS},
                10,
                trainable=frozenset(KEYS),
            )
            for k in range(SITES)
        ]
        outcome = rule.aggregate(model, replies, state, Info(Round(t + 1, ROUNDS), models=own))
        yield t, outcome, model
        model, state, own = outcome.model, outcome.state, {**own, **outcome.models}


def published(**settings):
    return ShapFed(mu=float(GOLDEN["mu"]), direction="sum", **settings)


def similarities(outcome):
    return np.array([list(row.values()) for row in outcome.notes["class_similarity"].values()])


@pytest.mark.parametrize("variant, atol", [("paper", 1e-12), ("ref", 2e-6)])
def test_scores_and_contributions(variant, atol):
    for t, outcome, _ in rounds(published()):
        expected = (GOLDEN[f"{variant}/r{t}/{name}"] for name in ("class_similarity", "gamma"))
        found = similarities(outcome), list(outcome.notes["gamma"].values())
        for one, other in zip(found, expected):
            np.testing.assert_allclose(one, other, rtol=0, atol=atol)


def test_default_weights_are_clipped():
    for t, outcome, _ in rounds(published()):
        expected = GOLDEN[f"default/r{t}/weights"]
        np.testing.assert_allclose(list(outcome.weights.values()), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("variant, atol", [("paper", 1e-12), ("ref", 2e-6)])
def test_raw_weights_may_be_negative(variant, atol):
    for t, outcome, model in rounds(published(clip=False)):
        for key in KEYS:
            updates = np.stack([GOLDEN[f"update/r{t}/c{k}/{key}"] for k in range(SITES)])
            expected = model[key].numpy() + np.tensordot(GOLDEN[f"{variant}/r{t}/weights"], updates, 1)
            np.testing.assert_allclose(outcome.model[key].numpy(), expected, rtol=0, atol=atol)


@pytest.mark.parametrize(
    "clip, name, atol", [(True, "paper/r{}/receive", 1e-12), (False, "ref/r{}/broadcast_max", 2e-6)]
)
def test_received_shares(clip, name, atol):
    for t, outcome, _ in rounds(published(rewards=True, clip=clip)):
        found = list(outcome.notes["received"].values())
        np.testing.assert_allclose(found, GOLDEN[name.format(t)], rtol=0, atol=atol)


def test_the_authors_models():
    for t, outcome, _ in rounds(published(rewards=True, receive="share", clip=False)):
        for key in KEYS:
            expected = GOLDEN[f"ref/r{t}/global/{key}"]
            np.testing.assert_allclose(outcome.model[key].numpy(), expected, rtol=0, atol=2e-6)
        for k in range(SITES):
            found = outcome.models[f"site-{k}"]["linear.weight"].numpy()
            expected = GOLDEN[f"ref/r{t}/personal/c{k}/linear.weight"]
            np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)
