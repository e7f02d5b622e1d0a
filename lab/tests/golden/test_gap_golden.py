# SPDX-License-Identifier: Apache-2.0
"""FedGA and FedDG-GA against the authors' code, FL4Health, FFL4MIA's branch and a float64 restatement."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from fairflare.core.types import Info, Reply, Round
from fairflare_lab.methods.fedga import GeneralizationAdjustment
from golden import file

GA = json.loads(file("fedga.json").read_text())
DG = json.loads(file("feddg_ga.json").read_text())


def weights_of(rule, before, after, total):
    """Weights of rounds 2, 3, ...: the average's loss (or accuracy) of a round arrives with the next one's replies."""
    state, rows = {}, []
    kinds = rule.wanted
    own = [*before, before[-1]]
    shared = [own[0], *after]
    for t, (of_shared, of_own) in enumerate(zip(shared, own), 1):
        replies = [
            Reply(f"site-{k}", {}, 10, {kinds[0]: s, kinds[1]: o}) for k, (s, o) in enumerate(zip(of_shared, of_own))
        ]
        # The file also has what the last round's gap makes of the weights, for a round that no run has.
        weights, state = rule.weigh(replies, state, Info(SimpleNamespace(number=t, total=total)))
        rows.append(list(weights.values()))
    assert rows[0] == pytest.approx([1 / len(rows[0])] * len(rows[0]))
    return np.array(rows)


def errors(name):
    return [[1 - value for value in row] for row in DG[name]]


def test_the_authors_code():
    rule = GeneralizationAdjustment(variant="reference", step=GA["step_size"])
    got = weights_of(rule, GA["before"], GA["after"], GA["comm"])[1:]
    np.testing.assert_allclose(got, GA["feddg_ga_loss"], rtol=0, atol=1e-12)


def test_the_authors_code_in_either_form():
    rule = GeneralizationAdjustment("feddg-ga", variant="reference", step=DG["d"])
    got = weights_of(rule, DG["before_loss"], DG["after_loss"], DG["rounds"])[1:]
    np.testing.assert_allclose(got, DG["authors_loss"], rtol=0, atol=1e-12)


def test_the_code_behind_fedisms_tables():
    rule = GeneralizationAdjustment(variant="ffl4mia", step=0.05)
    got = weights_of(rule, GA["before"], GA["after"], 300)
    np.testing.assert_allclose(got[:4], GA["ffl4mia_rounds300"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("key", [k for k in DG if k.startswith(("paper_", "fl4health_"))])
def test_centred_gaps(key):
    """Index 2: all gaps are equal, and nothing moves. d = 0.9: weights are clipped."""
    kind, _, metric = key.partition("_")
    metric, _, step = metric.partition("_d")
    rule = GeneralizationAdjustment(
        "feddg-ga", step=float(step or DG["d"]), gap="loss" if metric == "loss" else "error", variant=kind
    )
    if metric == "loss":
        got = weights_of(rule, DG["before_loss"], DG["after_loss"], DG["rounds"])[1:]
    else:
        got = weights_of(rule, errors("before_acc"), errors("after_acc"), DG["rounds"])[1:]
    np.testing.assert_allclose(got, DG[key], rtol=0, atol=1e-12)


def test_steps_shrink_as_fl4healths_do():
    rule = GeneralizationAdjustment("feddg-ga", step=DG["d"])
    got = [rule._step(Round(t, DG["rounds"]), 4) for t in range(2, DG["rounds"] + 1)]
    np.testing.assert_allclose(got, DG["step_sizes_fl4health"][:-1], rtol=0, atol=1e-15)


def test_a_weight_below_nothing_is_clipped():
    """The file's weights before clipping, then normalised as this package does; the step of 0.1 is s / K."""
    edge = GA["edge_clip"]
    sites = [f"site-{k}" for k in range(3)]
    state = {"a": dict(zip(sites, edge["w"])), "trained": dict.fromkeys(sites, 2.0)}
    replies = [Reply(s, {}, 10, {"loss": 2.0 + gap, "trained_loss": 0.0}) for s, gap in zip(sites, edge["gap"])]
    weights, _ = GeneralizationAdjustment(step=0.3).weigh(replies, state, Info(Round(2, 1000)))
    clipped = np.clip(edge["out_nonorm"], 0, 1)
    np.testing.assert_allclose(list(weights.values()), clipped / clipped.sum(), rtol=0, atol=1e-12)
    assert min(edge["out_nonorm"]) < 0
