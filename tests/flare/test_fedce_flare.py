# SPDX-License-Identifier: Apache-2.0
"""`variant=flare` against the installed FLARE's FedCEModelAggregator, fed the same replies for five rounds."""

import numpy as np
import pytest
import torch
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_opt.pt.fedce import FedCEConstants, FedCEModelAggregator

from fairflare.aggregators.fedce import FedCE
from fairflare.core.types import Info, Reply, Round

ROUNDS, SITES = 5, 4
KEYS = {"conv.weight": (3, 4), "conv.bias": (3,), "norm.running_mean": (3,)}
TRAINABLE = ["conv.weight", "conv.bias"]


def updates(t, k):
    generator = torch.Generator().manual_seed(100 * t + k)
    return {key: torch.randn(shape, generator=generator) + 0.3 * k for key, shape in KEYS.items()}


@pytest.mark.parametrize("combine, mode", [("sum", "plus"), ("multi", "times")])
def test_five_rounds(combine, mode):
    theirs = FedCEModelAggregator(mode=mode, trainable_param_names=TRAINABLE)
    ours, state = FedCE(combine=combine, variant="flare"), {}
    model = {key: torch.zeros(shape) for key, shape in KEYS.items()}
    scores = np.random.default_rng(7).uniform(0.2, 0.9, size=(ROUNDS, SITES))
    scores[0] = 0.0
    for t in range(ROUNDS):
        theirs.reset_stats()
        replies = []
        for k in range(SITES):
            sent = 1.0 - scores[: t + 1, k].mean()
            meta = {"client_name": f"site-{k}", FedCEConstants.MINUS_MODEL_SCORE: sent}
            theirs.accept_model(FLModel(params=updates(t, k), params_type=ParamsType.DIFF, meta=meta, current_round=t))
            error = {"minus_error": 1.0 - scores[t, k]} if t else {}
            replies.append(Reply(f"site-{k}", updates(t, k), 10, error, trainable=frozenset(TRAINABLE)))
        expected = theirs.aggregate_model()
        outcome = ours.aggregate(model, replies, state, Info(Round(t + 1, ROUNDS)))
        state = outcome.state
        for site, weight in expected.meta[FedCEConstants.CONTRIBUTION_WEIGHTS].items():
            assert outcome.weights[site] == pytest.approx(weight, abs=1e-6)
        for key, value in expected.params.items():
            np.testing.assert_allclose(outcome.model[key].numpy(), np.asarray(value), rtol=0, atol=1e-6)


def test_a_zero_update_too():
    theirs, ours = FedCEModelAggregator(trainable_param_names=TRAINABLE), FedCE(variant="flare")
    replies = []
    for k in range(3):
        update = {key: value * (k > 0) for key, value in updates(0, k).items()}
        meta = {"client_name": f"site-{k}", FedCEConstants.MINUS_MODEL_SCORE: 1.0}
        theirs.accept_model(FLModel(params=update, params_type=ParamsType.DIFF, meta=meta, current_round=0))
        replies.append(Reply(f"site-{k}", update, 10, trainable=frozenset(TRAINABLE)))
    expected = theirs.aggregate_model().meta[FedCEConstants.CONTRIBUTION_WEIGHTS]
    weights, _ = ours.weigh(replies, {}, Info(Round(1, 5)))
    assert weights == pytest.approx(expected, abs=1e-6)
    weights, _ = FedCE().weigh(replies, {}, Info(Round(1, 5)))
    assert weights["site-0"] < min(weights["site-1"], weights["site-2"])
