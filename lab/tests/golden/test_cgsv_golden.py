# SPDX-License-Identifier: Apache-2.0
"""CGSV against the authors' code over three rounds: reputations, rewards, and every site's model."""

import numpy as np
import torch

from fairflare.core.types import Info, Reply, Round
from fairflare_lab.methods.collaborative_fairness import CGSV
from golden import file

GOLDEN = np.load(file("cgsv.npz"))
KEYS = ("a.weight", "a.bias", "b.weight", "b.bias")
ROUNDS, SITES = 3, len(GOLDEN["shard"])
CLOSE = {"rtol": 0, "atol": 1e-6}
SETTINGS = {name: float(GOLDEN[key]) for name, key in (("alpha", "alpha"), ("beta", "beta"), ("step", "Gamma"))}


def outcomes(rule):
    model, state, own = {key: torch.from_numpy(GOLDEN[f"init/{key}"]) for key in KEYS}, {}, {}
    for t in range(ROUNDS):
        replies = [
            Reply(
                f"site-{k}",
                {key: torch.from_numpy(GOLDEN[f"raw/r{t}/c{k}/{i}"]) for i, key in enumerate(KEYS)},
                int(n),
                trainable=frozenset(KEYS),
            )
            for k, n in enumerate(GOLDEN["shard"])
        ]
        outcome = rule.aggregate(model, replies, state, Info(Round(t + 1, ROUNDS), models=own))
        yield t, outcome
        model, state, own = outcome.model, outcome.state, {**own, **outcome.models}


def test_the_authors_reputations_and_rewards():
    for t, outcome in outcomes(CGSV(**SETTINGS)):
        for note, key in (("reputation", "rs"), ("received", "qs"), ("cosine", "phis")):
            np.testing.assert_allclose(list(outcome.notes[note].values()), GOLDEN[f"r{t}/{key}"], **CLOSE)
        for key in KEYS:
            np.testing.assert_allclose(outcome.model[key].numpy(), GOLDEN[f"r{t}/server/{key}"], **CLOSE)


def test_the_authors_models():
    for t, outcome in outcomes(CGSV(**SETTINGS, variant="reference")):
        for k in range(SITES):
            for key in KEYS:
                expected = GOLDEN[f"r{t}/agent{k}/{key}"]
                np.testing.assert_allclose(outcome.models[f"site-{k}"][key].numpy(), expected, **CLOSE)


def test_the_best_site_receives_all_of_it_where_the_authors_code_drops_an_entry_per_layer():
    ours = next(outcomes(CGSV(**SETTINGS)))[1]
    theirs = next(outcomes(CGSV(**SETTINGS, variant="reference")))[1]
    best = max(ours.notes["received"], key=ours.notes["received"].get)
    for key in KEYS:
        assert torch.equal(ours.models[best][key], ours.model[key])
        assert (theirs.models[best][key] != ours.model[key]).sum() == 1
