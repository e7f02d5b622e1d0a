# SPDX-License-Identifier: Apache-2.0
"""How large an update may be, and what honest sites may do all the same."""

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairflare.aggregators.base import without_negative_variances
from fairflare.core.errors import UserError
from fairflare.core.manifest import all_versions
from fairflare.core.schema import Answer
from fairflare.engine import norms
from fairflare.engine.gate import Gate
from fairflare.engine.preflight import inspect_preflight, refusal
from fairflare.engine.setup.config import make_config

MODEL = {"w": torch.full((4,), 0.5), "bn.running_mean": torch.zeros(4), "bn.running_var": torch.ones(4)}
TRAINABLE = frozenset({"w"})


def update(size=0.1, **changes):
    return {**{key: torch.full_like(value, size) for key, value in MODEL.items()}, **changes}


def refused(*updates, ratio=100.0, history=None):
    answers = [Answer(f"site-{k}", 1, u, n_examples=10, steps=1) for k, u in enumerate(updates, start=1)]
    verdict = Gate(TRAINABLE, max_norm_ratio=ratio).inspect(answers, MODEL, 1, {}, history)
    return {r.site: r.detail for r in verdict.rejections}


def test_norms_are_told_by_kind_and_variances_in_the_units_of_means():
    found = norms.norms_of({**update(0.3), "ema": torch.ones(9)}, TRAINABLE)
    assert found[norms.PARAMETERS] == pytest.approx(0.6) and found[norms.MEANS] == pytest.approx(0.6)
    assert found[norms.VARIANCES] == pytest.approx(math.sqrt(0.6)) and found[norms.BUFFERS] == pytest.approx(3.0)


def test_a_model_of_zeros_has_a_scale():
    scales = norms.scales_of({key: torch.zeros_like(value) for key, value in MODEL.items()}, TRAINABLE)
    assert all(scale > 0 for scale in scales.values())


@pytest.mark.parametrize("tiny", [0.0, 1e-30])
@pytest.mark.parametrize("honest", [1, 2])
def test_tiny_updates_do_not_have_the_others_refused(tiny, honest):
    """One of two and one of three: whoever sends next to nothing is no measure for those who train."""
    assert refused(*[update()] * honest, update(tiny)) == {}


@pytest.mark.parametrize("times", [0.02, 0.2, 5.0, 50.0])
def test_honest_sites_differ(times):
    """Far beyond what the seven methods were seen to do, see docs/gate.md."""
    small = {"site-1": dict.fromkeys(norms.norms_of(update(), TRAINABLE), [0.2] * 5)}
    assert refused(update(0.1 * times), update(), history=small) == {}
    assert refused(update(0.1 * times), update(), update(0.13)) == {}


def test_data_in_units_of_their_own_pass_in_the_first_round():
    """Raw CT numbers move the first layer's statistics from 0 and 1 to hundreds and tens of thousands."""
    raw = update(**{"bn.running_mean": torch.full((4,), -800.0), "bn.running_var": torch.full((4,), 4e5)})
    assert refused(raw) == {} and refused(raw, raw) == {} and refused(raw, raw, raw) == {}


def test_the_ratio_is_a_setting_of_the_run():
    larger = update(**{"w": torch.full((4,), 4.0)})
    assert refused(update(), update(), larger) == {}
    assert "site-3" in refused(update(), update(), larger, ratio=5.0)
    config = make_config("fedavg", "support2", values={"max_norm_ratio": "7.5"})
    assert config.max_norm_ratio == 7.5 and make_config("fedavg", "support2").max_norm_ratio == 100.0
    for wrong in ("0", "nan", "inf", "-3", "1e9", "x"):
        with pytest.raises(UserError, match="max_norm_ratio: expected a number"):
            make_config("fedavg", "support2", values={"max_norm_ratio": wrong})


def test_the_ratio_reaches_the_gate(tmp_path):
    from fairflare.engine.in_process import InProcess
    from fairflare.engine.setup.assembly import build_federation
    from fairflare.engine.setup.parts import build_parts

    config = make_config("fedavg", "support2", values={"max_norm_ratio": "7.5"})
    gate = build_federation(config, build_parts(config), InProcess({}), tmp_path, "local").gate
    assert gate.max_norm_ratio == 7.5 and gate.metrics["auc"] == (0.0, 1.0) and gate.metrics["loss"] == (0.0, 1e6)


def test_a_refusal_says_what_was_expected():
    detail = refused(update(), update(), update(**{"w": torch.full((4,), 1e3)}))["site-3"]
    assert detail.startswith("parameters: expected a norm of at most 20, 100 x the") and detail.endswith("got 2e+03")


def test_the_last_five_rounds_are_remembered_and_zero_updates_are_not():
    history = {}
    for size in (1.0, 2.0, 3.0, 0.0, 4.0, 5.0, 6.0):
        history = norms.remembered(history, {"site-1": {norms.PARAMETERS: size}})
    assert history == {"site-1": {norms.PARAMETERS: [2.0, 3.0, 4.0, 5.0, 6.0]}}


def statement(site, n):
    return Answer(site, 1, n_examples=n, metrics={"findings": {}, "versions": all_versions()})


@pytest.mark.parametrize("sizes", [(3, 500, 800), (5, 90), (20, 1800), (12, 20_000, 20_000), (30, 40, 4000)])
def test_honest_sites_of_different_sizes_go_on(sizes):
    answers = [statement(f"site-{k}", n) for k, n in enumerate(sizes)]
    assert not refusal(inspect_preflight(answers, all_versions())[0], [])


def test_many_times_the_others_examples_is_a_warning():
    found, _ = inspect_preflight([statement("site-1", 3000), statement("site-2", 100)], all_versions())
    assert [(f.level, f.code) for f in found["site-1"].findings] == [("warning", "outsized")]
    assert not found["site-2"].findings


def test_a_variance_never_ends_below_zero():
    """Differences that leave -1e-6 pass as rounding; BatchNorm with a tiny eps would make NaN of it."""
    model = {"bn.running_var": torch.tensor([1.0, -9e-7]), "bn.running_mean": torch.tensor([-1.0])}
    settled = without_negative_variances(model)
    assert settled["bn.running_var"].tolist() == [1.0, 0.0] and settled["bn.running_mean"] is model["bn.running_mean"]
    fine = {"bn.running_var": torch.tensor([1.0, 0.0])}
    assert without_negative_variances(fine)["bn.running_var"] is fine["bn.running_var"]


@given(st.lists(st.sampled_from([1.0, 2.0, 2.0, 3.0, 250.0, 900.0, 9e4]), min_size=1, max_size=9))
def test_each_site_is_held_against_the_lower_median_of_the_others(sizes):
    """The bound of pairs, beside what a list of the others says."""
    known = {f"site-{k}": {norms.PARAMETERS: size} for k, size in enumerate(sizes)}
    found = norms.too_large(known, {norms.PARAMETERS: 0.02}, 1e6)
    narrow = norms.too_large(known, {norms.PARAMETERS: 1e9}, 100.0)
    assert not found or all("by the size of the model" in why for why in found.values())
    assert not narrow  # no larger than the model itself
    refused = norms.too_large(known, {norms.PARAMETERS: 1e-3 * 9e4}, 10.0)
    for k, size in enumerate(sizes):
        others = sorted(sizes[:k] + sizes[k + 1 :])
        usual = [max(10 * others[(len(others) - 1) // 2], 90.0)] if others else []
        median = [max(10 * statistics.median(sizes), 0.9)] if len(sizes) > 2 else []
        assert (f"site-{k}" in refused) == (size > min([900.0, *usual, *median]))


def test_the_largest_median_of_declared_tensors_is_remembered():
    sizes = {"a": {"c": 1.0, "d": 2.0}, "b": {"c": 3.0, "d": 0.0}, "c": {"c": 5.0, "d": 4.0}, "d": {"c": 0.0}}
    assert norms.medians(sizes) == {"c": 3.0}
    history = norms.remembered({}, {}, {"c": 3.0})
    assert norms.largest_medians(history) == {"c": 3.0} and norms.remembered({}, {}, {}) == {}
    history = norms.remembered(norms.remembered(history, {}, {"c": 1.0, "d": 2.0}), {"a": {"parameters": 1.0}})
    assert norms.largest_medians(history) == {"c": 3.0, "d": 2.0} and history["a"] == {"parameters": [1.0]}
    assert norms.size_of({"x": torch.full((2, 2), 3.0), "y": torch.full((5,), -3.0)}) == pytest.approx(3.0)
