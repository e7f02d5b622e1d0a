# SPDX-License-Identifier: Apache-2.0
"""Whole numbers of 64 and 32 bits for updates: what is rounded, how far, and that no sum of honest sites overflows."""

import math

import pytest
import torch

from cases import each
from fairflare.core.errors import EgressRefused, UserError
from fairflare.core.schema import MASKED, Answer
from fairflare.engine.setup.config import RunConfig, make_config
from fairflare.privacy.egress import Egress
from fairflare.privacy.secure_sums import (
    LARGEST,
    RANGE,
    STEP,
    TIMES,
    WIDE,
    Ring,
    Scale,
    mask_update,
)
from fairflare.privacy.sum_keys import PairwiseKeys
from fairflare.privacy.sum_protocol import SumOrder, SumRefused
from fairflare.privacy.sum_total import combine_updates

NAMES = [f"site-{k}" for k in range(7)]
MODEL = {"weight": torch.tensor([0.5, -0.9, 0.1, 0.0]), "norm.running_var": torch.ones(3), "steps": torch.tensor(3)}
RING = Ring(32, frozenset({"weight"}))
NARROW = RING.scales(MODEL)


@pytest.fixture(scope="module")
def sites():
    return {name: PairwiseKeys(name, "a run") for name in NAMES}


@pytest.fixture(scope="module")
def order(sites):
    return SumOrder(1, 0, {name: site.statement() for name, site in sites.items()})


def summed(sites, order, updates, scales, weights=None, model=MODEL):
    """``updates`` are p_k D_k."""
    weights = weights or dict.fromkeys(updates, 1 / len(updates))
    masked = [mask_update(sites[name], updates[name], order, scales, weights[name]) for name in updates]
    return combine_updates(masked, model, scales)


@each(
    "largest, above",
    [(0.0, 1), (1e-30, 1), (0.3, 1), (1.0, 1), (1.0001, 2), (2.0, 2), (5.5, 8), (1000.0, 1024), (3e38, 2**128)],
)
@each("sign", [1, -1])
def test_a_scale_follows_from_the_models_largest_entry(largest, above, sign):
    (scale,) = Ring(32, frozenset({"w"})).scales({"w": torch.tensor([0.0, sign * largest, 1e-9])}).values()
    assert scale == Scale(32, above * 2.0**-24, above * 16.0) and scale.reach == RANGE * scale.step
    assert Ring(32, frozenset({"w"})).scales({"w": torch.tensor([0.0, sign * largest, 1e-9]).numpy()}) == {"w": scale}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_model_that_is_not_finite_has_a_scale(value):
    assert Ring(32, frozenset({"w"})).scales({"w": torch.tensor([0.5, value])}) == {"w": WIDE}


def test_statistics_and_empty_entries_keep_64_bits_and_whole_numbers_have_no_scale():
    found = Ring(32, frozenset({"w", "none"})).scales({**MODEL, "none": torch.zeros(0), "w": torch.zeros(2)})
    assert {key: scale.bits for key, scale in found.items()} == {
        "weight": 64,
        "norm.running_var": 64,
        "none": 64,
        "w": 32,
    }
    assert {scale for scale in Ring().scales(MODEL).values()} == {WIDE} and (WIDE.step, WIDE.reach) == (STEP, LARGEST)


def test_a_sum_is_off_by_less_than_half_a_step_per_site(sites, order):
    generator = torch.Generator().manual_seed(3)
    updates = {
        name: {
            "weight": torch.randn(4, generator=generator) * 1e-3,
            "norm.running_var": torch.randn(3, generator=generator) * 1e-2,
        }
        for name in NAMES
    }
    found = summed(sites, order, updates, NARROW)
    exact = {key: sum(update[key].double() for update in updates.values()) for key in found}
    assert (found["weight"].double() - exact["weight"]).abs().max() <= len(NAMES) / 2 * NARROW["weight"].step + 1e-10
    assert torch.allclose(found["norm.running_var"].double(), exact["norm.running_var"], rtol=1e-6, atol=4 * STEP)
    again = summed(sites, order, dict(reversed(updates.items())), NARROW)
    assert all(torch.equal(found[key], again[key]) for key in found)


def test_masked_entries_have_the_width_of_their_scale(sites, order):
    update = {"weight": torch.zeros(4), "norm.running_var": torch.zeros(3)}
    masked = mask_update(sites[NAMES[0]], update, order, NARROW, 0.5)
    assert masked["weight"].dtype == torch.int32 and masked["norm.running_var"].dtype == torch.int64


def test_masks_with_32_bits_look_like_noise(sites, order):
    model = {"weight": torch.zeros(4000)}
    scales = RING.scales(model)
    entries = mask_update(sites[NAMES[0]], {"weight": torch.zeros(4000)}, order, scales, 0.5)["weight"].double()
    assert entries.abs().max() > 2**30.9 and abs(entries.mean()) < 2**26
    assert abs((entries > 0).double().mean() - 0.5) < 0.05


def test_ties_are_rounded_to_even_and_small_entries_to_nothing(sites, order):
    step = NARROW["weight"].step
    rounded = torch.tensor([0.5, 1.5, -0.5, 0.49]) * step
    nothing = {"norm.running_var": torch.zeros(3)}
    updates = {name: {"weight": torch.zeros(4), **nothing} for name in NAMES}
    updates[NAMES[2]]["weight"] = rounded
    assert summed(sites, order, updates, NARROW)["weight"].tolist() == [0.0, 2 * step, 0.0, 0.0]


WEIGHTS = {
    "equal": [1 / 7] * 7,
    "one has all": [1.0] + [0.0] * 6,
    "one has almost all": [0.94] + [0.01] * 6,
}


@each("weights", WEIGHTS.values(), ids=WEIGHTS)
@each("sign", [1, -1])
def test_sums_of_the_largest_updates_do_not_overflow(weights, sign, sites, order):
    """Every site at its limit, all of them the same way."""
    scale, nothing = NARROW["weight"], {"norm.running_var": torch.zeros(3)}
    shares = dict(zip(NAMES, weights, strict=True))
    largest = {name: math.floor(scale.most(7, weight) / scale.step) * scale.step for name, weight in shares.items()}
    updates = {
        name: {"weight": torch.full((4,), sign * largest[name], dtype=torch.float64), **nothing} for name in NAMES
    }
    found = summed(sites, order, updates, NARROW, shares, {**MODEL, "weight": MODEL["weight"].double()})
    assert found["weight"][0] == pytest.approx(sign * scale.reach, rel=1e-6)
    # D_k may be half of the reach at every site, whatever the weights.
    assert all(weight * scale.reach / 2 <= scale.most(7, weight) for weight in weights)
    updates[NAMES[1]]["weight"] = updates[NAMES[1]]["weight"] * 1.01 + sign * 1e-3
    with pytest.raises(SumRefused, match="too large"):
        summed(sites, order, updates, NARROW, shares)


def test_the_reach_is_far_from_where_numbers_wrap_around():
    """Whatever the weights are, a thousand sites whose weights add up to 1 reach no further."""
    for weights in ([1 / 1000] * 1000, [1.0] + [0.0] * 999):
        total = sum(NARROW["weight"].most(1000, weight) for weight in weights)
        assert total / NARROW["weight"].step + 1000 / 2 < 2**29
    assert RANGE == 2**28 and TIMES == 16


def test_masks_that_do_not_cancel_are_noticed(sites, order):
    model = {"weight": torch.zeros(40)}
    scales = RING.scales(model)
    masked = [mask_update(sites[name], {"weight": torch.zeros(40)}, order, scales, 0.1) for name in NAMES]
    assert combine_updates(masked, model, scales)["weight"].abs().max() == 0
    with pytest.raises(SumRefused, match="do not cancel"):
        combine_updates(masked[1:], model, scales)


@pytest.mark.parametrize("dtype, leaves", [(torch.int32, True), (torch.int64, True), (torch.float32, False)], ids=str)
def test_whole_numbers_alone_leave(dtype, leaves):
    egress = Egress(MODEL, (), (), (), secure=True)
    answer = Answer("site-1", 1, update={"weight": torch.zeros(4, dtype=dtype)}, update_kind=MASKED)
    if leaves:
        egress.check_final(answer)
    else:
        with pytest.raises(EgressRefused, match="nobody masked"):
            egress.check_final(answer)


@pytest.mark.parametrize(
    "values, text",
    [
        ({"mask_bits": 32}, "mask_bits: expected 64 without secure_sum, got 32"),
        ({"secure_sum": "masks", "mask_bits": 48}, "mask_bits: expected 64 or 32, got 48"),
        ({"secure_sum": "masks", "mask_bits": 16}, "mask_bits: expected a whole number from 32 to 64, got 16"),
        ({"secure_sum": "masks", "mask_bits": "wide"}, "mask_bits: expected .*, got 'wide'"),
    ],
    ids=str,
)
def test_what_is_no_width_is_refused(values, text):
    with pytest.raises(UserError, match=text):
        make_config("fedism", "support2:dirichlet", values=values)


def test_a_configuration_carries_the_width():
    one = make_config("fedism", "support2:dirichlet", values={"secure_sum": "masks", "mask_bits": "32"})
    assert RunConfig.from_json(one.to_json()) == one and one.mask_bits == one.to_json()["mask_bits"] == 32
    assert "mask_bits" not in make_config("fedism", "support2:dirichlet", values={"secure_sum": "masks"}).to_json()
