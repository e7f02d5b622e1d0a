# SPDX-License-Identifier: Apache-2.0
"""Robust aggregation and the attacks of ``benchmarks/robustness.py`` against ByzFL's, on 200 random cases.

``byzfl_vectors.py`` made byzfl.npz.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fairflare.aggregators.bounded import Bounded, Bounds
from fairflare.aggregators.fedavg import FedAvg
from fairflare.aggregators.robust import Median, TrimmedMean
from fairflare.core.types import Info, Reply, Round
from fairflare.functional import robust
from fairflare_lab.methods.multi_krum import MultiKrum

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

STORED, WIDTH = np.load(Path(__file__).with_name("byzfl.npz")), 4


def cases():
    """Name -> array of each case, and its f."""
    starts = np.concatenate(([0], np.cumsum(STORED["sites"])))
    buckets = np.concatenate(([0], np.cumsum((STORED["sites"] + 1) // 2)))
    for k in range(len(STORED["f"])):
        found = {"f": int(STORED["f"][k]), "order": STORED["order"][starts[k] : starts[k + 1]]}
        for name in set(STORED.files) - {"f", "order", "sites"}:
            rows = STORED[name].reshape(-1, WIDTH)
            at = (
                starts
                if name in ("x", "neighbours", "clipping")
                else buckets
                if name == "buckets"
                else range(len(starts))
            )
            found[name] = rows[at[k] : at[k + 1]]
        yield found


CASES = list(cases())


def squared(x):
    return ((x[:, None] - x[None]) ** 2).sum(-1)


def step(rule, x):
    sites = [
        Reply(f"site-{k:02}", {"w": torch.from_numpy(row)}, 1, trainable=frozenset({"w"})) for k, row in enumerate(x)
    ]
    return (
        rule.aggregate({"w": torch.zeros(WIDTH, dtype=torch.float64)}, sites, {}, Info(Round(1, 1))).model["w"].numpy()
    )


def with_zero(x):
    """Squared distances of the origin, where ByzFL's iterations begin, and of the updates; weights; the start."""
    points = np.vstack([np.zeros(WIDTH), x])
    weights = np.append(0.0, np.full(len(x), 1 / len(x)))
    return squared(points), weights, np.eye(len(points))[0], points


def geometric(case):
    distances, weights, start, points = with_zero(case["x"])
    return robust.geometric_median(distances, weights, start, 0.1, 3) @ points


def centred(case):
    distances, _, start, _ = with_zero(case["x"])
    return (robust.shortened(robust.distances_to(start, distances)[1:], 2.0)[:, None] * case["x"]).mean(0)


def buckets(case):
    mixed = robust.mixing("buckets", squared(case["x"]), case["f"], case["order"]) @ case["x"]
    return mixed[case["order"][::2]]


def clipping(case):
    return robust.shortened(np.linalg.norm(case["x"], axis=1), 2.0)[:, None] * case["x"]


OURS = {
    "median": lambda case: step(Median(), case["x"]),
    "trimmed-mean": lambda case: step(TrimmedMean(trim=case["f"] / len(case["x"])), case["x"]),
    # ByzFL's scores are of K - f - 1 neighbours, one more than the paper's: those of f - 1.
    "multi-krum": lambda case: step(MultiKrum(faulty=case["f"] - 1, keep=len(case["x"]) - case["f"]), case["x"]),
    "geometric": geometric,
    "centred": centred,
    "neighbours": lambda case: robust.nearest(squared(case["x"]), case["f"]) @ case["x"],
    "buckets": buckets,
    "clipping": clipping,
}


@pytest.mark.parametrize("name", sorted(OURS))
def test_aggregators_are_byzfls(name):
    for case in CASES:
        np.testing.assert_allclose(np.atleast_2d(OURS[name](case)), case[name], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["sign flip", "inner product", "alie", "mimic"])
def test_attacks_are_byzfls(name):
    from robustness import ATTACKS

    for case in CASES:
        honest = torch.from_numpy(case["x"])
        np.testing.assert_allclose(ATTACKS[name](honest, honest[0]).numpy()[None], case[name], rtol=0, atol=1e-10)


def test_a_run_mixes_with_its_stated_share_of_liars():
    case = CASES[0]
    for share, faulty in ((0.25, max(len(case["x"]) // 4, 1)), (0.4, int(0.4 * len(case["x"])))):
        mixed = robust.nearest(squared(case["x"]), faulty) @ case["x"]
        found = step(Bounded(FedAvg(), Bounds(mix="neighbours", liars=share)), case["x"])
        np.testing.assert_allclose(found, mixed.mean(0), rtol=0, atol=1e-10)
