# SPDX-License-Identifier: Apache-2.0
"""The contract of every registered method, and the degenerate cases that the papers state."""

import dataclasses
import math

import pytest

from cases import each
from fairflare.aggregators.fedavg import FedAvg
from fairflare.aggregators.fedism import FedISM, power_shares
from fairflare.core import registry
from fairflare.core.types import Info, Reply, Round
from fairflare.functional.perturbation import rho_at
from fairflare.testing.laws import CHECKS


@each("check", CHECKS, ids=lambda c: c.__name__)
@each("id", registry.methods())
def test_contract(id, check):
    check(registry.get_method(id))


VARIANTS = [
    ("fedce", {"combine": "multi"}),
    ("fedce", {"terms": "cosine"}),
    ("fedce", {"terms": "error"}),
    ("fedce", {"variant": "flare"}),
    ("fedce", {"variant": "reference", "combine": "multi"}),
    ("fedce", {"variant": "ffl4mia"}),
    ("fedheal", {"parts": "fphl"}),
    ("fedheal", {"parts": "fael"}),
    ("fedheal", {"variant": "reference"}),
    ("fedheal", {"tau": 0.8}),
    ("fedlwr", {"scope": "last_encoder"}),
    ("fedlwr", {"group": "block"}),
    ("fedlwr", {"clip": False}),
    ("fedufo", {"level": "client"}),
    ("fedufo", {"level": "attribute"}),
    ("fedufo", {"level": "unknown"}),
    ("fedufo", {"ball": "kl", "radius": 0.01}),
    ("fedufo", {"radius": None, "gamma": 50.0}),
    ("fedufo", {"apply": "local"}),
    ("fedism-plus", {"state": "L"}),
    ("qfedavg", {"q": 0.5}),
    ("qfedavg", {"q": 30.0}),
    ("qfedavg", {"per_step": True}),
    ("qfedavg", {"q": 2.0, "static": True}),
    ("qffl", {"q": 200.0}),
    ("qffl", {"prior": "none", "q": 100.0, "variant": "reference"}),
    ("afl", {"step": 50.0, "average": "final"}),
    ("afl", {"argmax": True, "average": "none"}),
    ("afl", {"step": 50.0, "variant": "reference"}),
    ("fairfed", {"metric": "dp", "beta": 50.0}),
    ("fairfed", {"metric": "accuracy", "clip": False}),
    ("fairfed", {"form": "exponential", "beta": 1000.0}),
    ("fairfed", {"variant": "reference"}),
    ("fairfedavg", {"metric": "eo-sd"}),
    ("fairfedavg", {"metric": "ap-sd", "beta": 100.0}),
    ("fairfedavg", {"metric": "eo-gap", "variant": "fedufo"}),
    ("fedga", {"gap": "error", "step": 3.0}),
    ("fedga", {"variant": "reference"}),
    ("fedga", {"variant": "ffl4mia"}),
    ("feddg-ga", {"step": 3.0}),
    ("feddg-ga", {"variant": "fl4health"}),
    ("fedpidavg", {"cost": "error"}),
    ("fedpidavg", {"variant": "reference"}),
    ("fedpidavg", {"variant": "reference", "clamp": False}),
    ("fedcostwavg", {"cost": "error"}),
]


@each("check", CHECKS, ids=lambda c: c.__name__)
@each("id, settings", VARIANTS, ids=str)
def test_contract_of_options(id, settings, check):
    entry = registry.get_method(id)
    check(dataclasses.replace(entry, settings={**entry.settings, **settings}))


def replies(sharpness, counts=None):
    counts = counts or [10] * len(sharpness)
    return [
        Reply(f"site-{k}", {}, n, {"sharpness": s, "perturbed_loss": s, "loss": 0.0})
        for k, (s, n) in enumerate(zip(sharpness, counts))
    ]


def weights(rule, sharpness, state=None, counts=None):
    found, state = rule.weigh(replies(sharpness, counts), state or {}, Info(Round(1, 1)))
    return list(found.values()), state


def test_fedavg_weighs_by_examples_or_uniformly():
    assert weights(FedAvg(), [1, 1], counts=[30, 10])[0] == [0.75, 0.25]
    assert weights(FedAvg("uniform"), [1, 1], counts=[30, 10])[0] == [0.5, 0.5]


def test_q_zero_is_uniform():
    assert weights(FedISM(q=0), [0.1, 5.0, 1e-9])[0] == pytest.approx([1 / 3] * 3)


def test_q_one_is_proportional():
    assert weights(FedISM(q=1), [1.0, 3.0])[0] == pytest.approx([0.25, 0.75])


def test_q_two_by_hand():
    """1, 2, 3 squared are 1, 4, 9 of 14."""
    assert weights(FedISM(q=2), [1.0, 2.0, 3.0])[0] == pytest.approx([1 / 14, 4 / 14, 9 / 14])


def test_huge_q_picks_the_sharpest_site():
    assert weights(FedISM(q=1e6), [0.1, 0.2, 0.1999])[0] == pytest.approx([0, 1, 0])


def test_scale_does_not_matter():
    plain, scaled = (weights(FedISM(q=3), [s * f for s in (0.1, 0.2, 0.4)])[0] for f in (1, 1e5))
    assert plain == pytest.approx(scaled)


@pytest.mark.parametrize("scores", [[0.0] * 3, [-1.0, -2.0, -3.0], [1e-30] * 3, [1e6] * 3])
def test_no_information_is_uniform(scores):
    assert weights(FedISM(), scores)[0] == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("beta, expected", [(1.0, [0.9, 0.1]), (0.0, [0.1, 0.9]), (0.5, [0.5, 0.5])])
def test_beta_mixes_with_the_past(beta, expected):
    """Sharpness 1:9, then 9:1, at q = 1."""
    _, state = weights(FedISM(q=1, beta=beta), [1.0, 9.0])
    assert weights(FedISM(q=1, beta=beta), [9.0, 1.0], state)[0] == pytest.approx(expected)


def test_examples_weighting_needs_no_probe():
    rule = FedISM(weighting="examples")
    assert rule.wanted == () and weights(rule, [1.0, 9.0], counts=[10, 30])[0] == [0.25, 0.75]


def test_example_prior_multiplies():
    assert weights(FedISM(q=1, prior="examples"), [1.0, 1.0], counts=[10, 30])[0] == pytest.approx([0.25, 0.75])


def test_absent_site_keeps_its_weight():
    """After .25 : .75 the second site is away for two rounds; back at beta = 0 both stand where they were."""
    rule = FedISM(q=1, beta=0.0)
    _, state = weights(rule, [1.0, 3.0])
    for _ in range(2):
        alone, state = rule.weigh(replies([5.0]), state, Info(Round(1, 1)))
        assert alone == {"site-0": 1.0}
    back, _ = rule.weigh(replies([1.0, 1.0]), state, Info(Round(1, 1)))
    assert back == pytest.approx({"site-0": 0.25, "site-1": 0.75})


@pytest.mark.parametrize("bad", [{"q": -1}, {"q": math.inf}, {"beta": 1.5}, {"beta": -0.1}])
def test_bad_parameters_are_named(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        FedISM(**bad)


def test_tau_zero_is_a_constant_radius():
    assert [rho_at(Round(t, 5), 0.05, 0) for t in range(1, 6)] == [0.05] * 5


def test_radius_ends_at_its_maximum():
    radii = [rho_at(Round(t, 9), 0.1, 0.5) for t in range(1, 10)]
    assert radii == sorted(radii) and radii[-1] == 0.1


def test_power_shares_never_overflow():
    found = power_shares({"a": 1e-300, "b": 1e300}, q=50)
    assert found == {"a": 0.0, "b": 1.0}
