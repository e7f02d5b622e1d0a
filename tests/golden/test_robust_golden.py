# SPDX-License-Identifier: Apache-2.0
"""Robust aggregation against stored numbers: Flower's at equal weights, and with the sites' own weights."""

import numpy as np
import pytest
import torch

from cases import each
from fairflare.aggregators import base
from fairflare.aggregators.bounded import Bounded, Bounds, norm_of
from fairflare.aggregators.fedavg import FedAvg
from fairflare.aggregators.robust import Median, TrimmedMean
from fairflare.core.types import Info, Reply, Round
from fairflare_lab.methods.multi_krum import MultiKrum
from golden import folder

GOLDEN = np.load(folder() / "robust.npz")
SITES = [f"site-{k}" for k in range(len(GOLDEN["n"]))]
CLOSE = {"rtol": 0, "atol": 1e-10}


def replies(updates=GOLDEN["updates"]):
    return [
        Reply(site, {"w": torch.from_numpy(update)}, int(n), trainable=frozenset({"w"}))
        for site, update, n in zip(SITES, updates, GOLDEN["n"])
    ]


def combined(rule, updates=GOLDEN["updates"]):
    model = {"w": torch.zeros(updates.shape[1], dtype=torch.float64)}
    return rule.aggregate(model, replies(updates), {}, Info(Round(1, 1)))


def step(rule, updates=GOLDEN["updates"]):
    return combined(rule, updates).model["w"].numpy()


def by_site(values):
    return dict(zip(SITES, map(float, values)))


@pytest.mark.parametrize("weighting, key", [("examples", "weighted"), ("uniform", "uniform"), ("uniform", "ref")])
def test_medians(weighting, key):
    np.testing.assert_allclose(step(Median(weighting)), GOLDEN[f"{key}/median"], **CLOSE)


@pytest.mark.parametrize("trim", ["0.1", "0.2", "0.3"])
def test_trimmed_means(trim):
    np.testing.assert_allclose(step(TrimmedMean(trim=float(trim))), GOLDEN[f"weighted/trimmed_b{trim}"], **CLOSE)


@pytest.mark.parametrize("trim", ["0.1", "0.2", "0.3"])
def test_flower_trims_whole_sites_and_rounds_down(trim):
    """At equal weights its mean without floor(trim K) sites at either end is ours with that many sites' mass."""
    whole = int(float(trim) * len(SITES)) / len(SITES)
    found = step(TrimmedMean("uniform", trim=whole))
    np.testing.assert_allclose(found, GOLDEN[f"ref/trimmed_b{trim}"], **CLOSE)
    one = step(TrimmedMean("uniform", trim=1 / len(SITES)))
    np.testing.assert_allclose(one, GOLDEN["weighted/trimmed_b1_over_K_uniform"], **CLOSE)


def test_a_mean_that_trims_nothing_is_the_mean():
    np.testing.assert_allclose(step(TrimmedMean(trim=0.0)), GOLDEN["weighted/mean"], **CLOSE)


@pytest.mark.parametrize("faulty", [0, 1, 2])
def test_krum_is_the_update_with_the_least_score(faulty):
    outcome = combined(MultiKrum("uniform", faulty=faulty, keep=1))
    np.testing.assert_allclose(outcome.model["w"].numpy(), GOLDEN[f"ref/krum_f{faulty}"], **CLOSE)
    expected = GOLDEN[f"krum/scores_f{faulty}"]
    np.testing.assert_allclose(list(outcome.notes["score"].values()), expected, rtol=1e-9)


@each("keep", [3, 5])
@each("faulty", [0, 1, 2])
def test_multi_krum_weighs_who_is_kept_by_examples(faulty, keep):
    outcome = combined(MultiKrum(faulty=faulty, keep=keep))
    kept = [k for k, site in enumerate(SITES) if outcome.weights[site]]
    assert kept == sorted(GOLDEN[f"krum/keep_f{faulty}_m{keep}"])
    for key in (f"ref/multikrum_f{faulty}_m{keep}", f"krum/weighted_f{faulty}_m{keep}"):
        np.testing.assert_allclose(outcome.model["w"].numpy(), GOLDEN[key], **CLOSE)


@each("cap", [key.removeprefix("cap/") for key in GOLDEN if key[4:6] == "0."])
def test_caps(cap):
    exact = 1 / len(SITES) if cap == f"{1 / len(SITES):.4f}" else float(cap)
    found = base.limited(by_site(GOLDEN["p"]), exact)
    np.testing.assert_allclose(list(found.values()), GOLDEN[f"cap/{cap}"], **CLOSE)


def test_a_cap_with_weights_of_zero():
    given = by_site(GOLDEN["cap/extreme_in"])
    found = base.limited(given, 0.3)
    np.testing.assert_allclose(list(found.values()), GOLDEN["cap/extreme_0.3"], **CLOSE)
    positive = sum(w > 0 for w in given.values())
    found = base.limited(given, 0.9 / positive)  # more than they can reach under it: they weigh alike
    assert found == {site: 1 / positive if w > 0 else 0.0 for site, w in given.items()}


def test_norms():
    np.testing.assert_allclose([norm_of(r) for r in replies()], GOLDEN["clip/norms"], **CLOSE)


@pytest.mark.parametrize("factor", ["1.0", "1.5"])
@pytest.mark.parametrize("at, key", [("median", "median"), ("weighted", "weighted_median")])
def test_clipped_means(at, key, factor):
    outcome = combined(Bounded(FedAvg(), Bounds(clip=float(factor), at=at)))
    expected = f"clip/{key}_c{factor}"
    radius = float(factor) * outcome.state["clip"]["radius"]
    assert radius == pytest.approx(float(GOLDEN[f"{expected}/radius"]), abs=1e-10)
    factors = list(outcome.notes["clip_factor"].values())
    np.testing.assert_allclose(factors, GOLDEN[f"{expected}/factors"], **CLOSE)
    np.testing.assert_allclose(outcome.model["w"].numpy(), GOLDEN[f"{expected}/mean"], **CLOSE)


@pytest.mark.parametrize("settings, key", [({"memory": 0.8}, "radius_ema.8"), ({"at": "bits"}, "radius_bits")])
def test_radii_over_rounds(settings, key):
    rule, model = Bounded(FedAvg(), Bounds(clip=1.0, **settings)), {"w": torch.zeros(1, dtype=torch.float64)}
    start = float(GOLDEN["clip/rounds_radius_bits_start"])
    state = {"clip": {"radius": start}} if "at" in settings else {}
    found = []
    for norms in GOLDEN["clip/rounds_norms"]:
        outcome = rule.aggregate(model, replies(norms[:, None]), state, Info(Round(1, 1)))
        state = outcome.state
        found.append(state["clip"]["radius"])
    np.testing.assert_allclose(found, GOLDEN[f"clip/rounds_{key}"], **CLOSE)


@pytest.mark.parametrize(
    "rule, key", [(FedAvg(), "mean"), (Median(), "median"), (TrimmedMean(trim=0.2), "trimmed_b0.2")]
)
def test_clip_then_cap_then_combine(rule, key):
    outcome = combined(Bounded(rule, Bounds(clip=1.0, at="weighted", cap=0.25)))
    np.testing.assert_allclose(outcome.model["w"].numpy(), GOLDEN[f"compose/{key}"], **CLOSE)
    if key == "mean":
        np.testing.assert_allclose(list(outcome.weights.values()), GOLDEN["compose/weights"], **CLOSE)
    clipped = GOLDEN["updates"] * np.array(list(outcome.notes["clip_factor"].values()))[:, None]
    np.testing.assert_allclose(clipped, GOLDEN["compose/updates"], **CLOSE)
