# SPDX-License-Identifier: Apache-2.0
"""CFFL's reputations over four rounds, and its two masks, against the authors' code."""

import json

import numpy as np
import pytest
import torch

from fairflare.core.types import Info, Reply, Round
from fairflare_lab.methods.collaborative_fairness import CFFL, at_least, layer_bounds
from golden import file

GOLDEN = json.loads(file("cffl.json").read_text())
ROUNDS = GOLDEN["rounds"]
UPDATE = {f"l{i}.w": torch.tensor(layer, dtype=torch.float64) for i, layer in enumerate(GOLDEN["grad"])}
CLOSE = {"rtol": 0, "atol": 1e-6}


def test_reputations_and_who_is_removed():
    model, state = {"w": torch.zeros(2)}, {}
    for t, expected in enumerate(ROUNDS, 1):
        replies = [
            Reply(f"site-{k}", {"w": torch.ones(2)}, 10, {"trained_error": 1 - a}, trainable=frozenset({"w"}))
            for k, a in enumerate(expected["val_acc"])
        ]
        # The file's alpha is that of a run whose first round is 0.
        rule, info = CFFL(alpha=ROUNDS[0]["alpha"], remove=True), Info(Round(t, len(ROUNDS)))
        assert rule.alpha * (1 + (t - 1) / len(ROUNDS)) == pytest.approx(expected["alpha"])
        outcome = rule.aggregate(model, replies, state, info)
        state = outcome.state
        np.testing.assert_allclose(list(state["reputation"].values()), expected["reputation"], **CLOSE)
        left = [k for k, c in enumerate(state["reputation"].values()) if c > 0]
        assert left == expected["R"] and expected["threshold"] == pytest.approx(rule.threshold / len(left))


def heard(**settings):
    """What counts of the file's update."""
    reply = Reply("site-0", UPDATE, 10, trainable=frozenset(UPDATE))
    found = CFFL(**settings)._heard(reply).update
    return [found[key].numpy() for key in UPDATE]


@pytest.mark.parametrize("key, settings", [("clip_0.5", {"clip": 0.5}), ("top_30pct_all", {"theta": 0.3})])
def test_what_counts_of_an_update(key, settings):
    for found, expected in zip(heard(**settings), GOLDEN[key], strict=True):
        np.testing.assert_allclose(found, expected, **CLOSE)


def test_the_mask_layer_by_layer():
    for update, expected in zip(UPDATE.values(), GOLDEN["top_30pct_layer"], strict=True):
        for drop in (False, True):
            (bound,) = layer_bounds(update, [0.3], always_drop=drop)
            np.testing.assert_allclose(at_least(update, bound).numpy(), expected, **CLOSE)
