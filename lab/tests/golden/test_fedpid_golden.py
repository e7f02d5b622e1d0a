# SPDX-License-Identifier: Apache-2.0
"""FedCostWAvg, FedPIDAvg and FedPID against Manthe's code and float64 restatements."""

import json

import numpy as np
import pytest
import torch

from fairflare.core.types import Info, Reply, Round
from fairflare_lab.methods.fedpid import FedCostWAvg, FedPID
from golden import file

PID = json.loads(file("fedpid.json").read_text())
SETTINGS = {name: PID[name] for name in ("alpha", "beta", "gamma")}


def factors_of(rule):
    """What each site's update is multiplied with, per round."""
    state, rows = {}, []
    for t, costs in enumerate(PID["costs"], 1):
        replies = [
            Reply(f"site-{k}", {"w": torch.ones(1)}, n, {"trained_loss": c}, trainable=frozenset("w"))
            for k, (c, n) in enumerate(zip(costs, PID["sizes"]))
        ]
        outcome = rule.aggregate({"w": torch.zeros(1)}, replies, state, Info(Round(t, len(PID["costs"]))))
        found, state = outcome.notes.get("factor", outcome.weights), outcome.state
        assert sum(outcome.weights.values()) == pytest.approx(1) and min(outcome.weights.values()) >= 0
        assert outcome.model["w"].item() == pytest.approx(sum(found.values()), abs=1e-6)
        rows.append(list(found.values()))
    return rows


def matches(rule, key, tolerance):
    """Raise AssertionError unless the factors are the golden ones; whether the formula leaves a round undefined."""
    defined = [t for t, row in enumerate(PID[key]) if row is not None]
    assert defined
    got = factors_of(rule)
    np.testing.assert_allclose([got[t] for t in defined], [PID[key][t] for t in defined], rtol=0, atol=tolerance)
    return len(defined) < len(PID[key])


def test_fedcostwavg():
    assert not matches(FedCostWAvg(), "fedcostwavg", 1e-12)


@pytest.mark.parametrize("integral, name", [("sum", "fedpidavg"), ("progress", "fedpid")])
def test_clamped_and_as_written(integral, name):
    """As written a round in which the drops cancel has no weights."""
    assert not matches(FedPID(integral, **SETTINGS), f"{name}_default", 1e-12)
    assert matches(FedPID(integral, clamp=False, **SETTINGS), f"{name}_literal", 1e-12)


@pytest.mark.parametrize("key, clamp", [("manthe_positive", True), ("manthe_signed", False)])
def test_the_published_code(key, clamp):
    undefined = matches(FedPID(clamp=clamp, variant="reference", **SETTINGS), key, 1e-6)
    assert not (undefined and clamp), "clamped costs leave no round undefined"


def test_the_published_code_shrinks_the_model_where_no_cost_fell():
    rows = factors_of(FedPID(variant="reference", **SETTINGS))
    rose = [t for t in range(1, len(rows)) if all(a < b for a, b in zip(PID["costs"][t - 1], PID["costs"][t]))]
    assert rose and all(sum(rows[t]) == pytest.approx(PID["alpha"] + PID["gamma"]) for t in rose)


def test_with_a_full_history_both_agree():
    window = PID["window"]
    ours, theirs = factors_of(FedPID(**SETTINGS)), factors_of(FedPID(variant="reference", **SETTINGS))
    np.testing.assert_allclose(ours[window:], theirs[window:], rtol=0, atol=1e-12)
