# SPDX-License-Identifier: Apache-2.0
"""Whoever wants more of calibration and decisions than sums over enough patients."""

import numpy as np
import pytest
import torch

from cases import each
from fairflare.core.errors import EgressRefused
from fairflare.core.schema import IN_USE, Answer, Instruction
from fairflare.core.types import Round
from fairflare.engine.after.base import Cases
from fairflare.engine.checks import Refused
from fairflare.engine.clinical import BIN, ClinicalAtSite, View, bins_of
from fairflare.engine.gate import inspect_evaluation
from fairflare.engine.setup.assembly import build_site, leaves
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.parts import build_parts

ROUNDS = 3
LAST = Round(ROUNDS, ROUNDS)
SITE = "Cleveland"


def site_of(folder=None, **values):
    config = make_config("fedavg", "heart:full", rounds=ROUNDS, values={"group_by": "sex", **values})
    parts = build_parts(config)
    memory = None if folder is None else folder / f"{SITE}.safetensors"
    model = {key: value + 0.1 for key, value in parts.model.items()}
    return build_site(config, parts, SITE, memory=memory), model, leaves(config, parts, 10)


def asked(site, model, round=LAST, orders=None):
    return site.handle(Instruction("evaluate", round, model, {IN_USE: 1.0} if orders is None else orders)).clinical


def cases_of(n=240, seed=5, members=None):
    generator = np.random.default_rng(seed)
    z = generator.normal(0, 1.5, n)
    outcomes = generator.random(n) < 1 / (1 + np.exp(-z))
    groups = np.full(n, -1) if members is None else members
    outputs = torch.tensor(np.stack([np.zeros(n), z], axis=1))
    return Cases(outputs, torch.tensor(outcomes.astype(np.int64)), torch.tensor(groups))


def test_a_site_answers_after_the_last_round_alone_and_of_one_model(tmp_path):
    """A second model, a little moved, would show who lies between the two's thresholds; a restart changes nothing."""
    site, model, _ = site_of(tmp_path)
    assert asked(site, model, Round(2, ROUNDS)) == {} and asked(site, model, Round(1, 1)) == {}
    assert asked(site, model, orders={}) == {}
    first = asked(site, model)
    assert first["n"] > 50 and asked(site, model) == first
    moved = {key: value + 1e-6 for key, value in model.items()}
    assert asked(site, moved) == {}
    again, *_ = site_of(tmp_path)
    assert asked(again, moved) == {} and asked(again, model) == first


def test_a_step_is_of_the_model_that_was_asked_for_first(tmp_path):
    site, model, _ = site_of(tmp_path, after="recalibrate")
    assert asked(site, model)
    moved = {key: value + 1e-6 for key, value in model.items()}
    with pytest.raises(Exception, match="another model"):
        site.handle(Instruction("calibrate", LAST, moved))
    assert site.handle(Instruction("calibrate", LAST, model)).sums


@each(
    "numbers",
    [
        {"n": 9.0, "brier": 0.2},
        {"n": 60.0, "positives": 9.0},
        {"n": 60.0, "positives": 51.0},
        {"n": 60.0, "positives": 30.0, "flagged": 4.0, "true_positives": 4.0},
        {"n": 60.0, "n/female": 9.0, "brier/female": 0.1},
        {"n": 60.0, "positives": 30.0, "bin.0.n": 40.0, "bin.0.positives": 25.0, "bin.0.risk": 5.0}
        | {"bin.30.n": 20.0, "bin.30.positives": 5.0, "bin.30.risk": 17.0},
        {"n": 1.0, "brier": 0.2},
        {"bin.0.n": 1.0, "bin.0.positives": 0.0, "bin.0.risk": 0.3},
        {"risk of patient 7": 0.3},
    ],
)
def test_numbers_of_few_patients_do_not_pass_the_sites_own_check(numbers):
    """Whatever code made them."""
    *_, egress = site_of()
    results = {"val": {}, "test": {}, "n": {"test": 60.0}, "groups": {}}
    with pytest.raises(EgressRefused) as refused:
        egress.check("evaluate", Answer(SITE, ROUNDS, n_examples=100, metrics=results, clinical=numbers))
    assert not any(character.isdigit() for character in str(refused.value))
    with pytest.raises(EgressRefused, match="clinical"):
        egress.check("compare", Answer(SITE, ROUNDS, clinical={"n": 60.0, "brier": 0.2}))


FITTING = {"n": 60.0, "positives": 30.0, "flagged": 28.0, "true_positives": 20.0, "brier": 0.2}
BINS = {"bin.0.n": 40.0, "bin.0.positives": 15.0, "bin.0.risk": 5.0} | {
    "bin.30.n": 20.0,
    "bin.30.positives": 15.0,
    "bin.30.risk": 17.0,
}


@each(
    "change",
    [
        {"n": 61.0},
        {"brier": 1.5},
        {"positives": 30.5},
        {"true_positives": 31.0},
        {"true_positives": 29.0},
        {"flagged": 55.0},
        {"bin.0.risk": 39.0},
        {"bin.30.risk": 10.0},
        {"bin.0.n": 41.0},
        {"bin.0.positives": 41.0},
        {"bin.5.n": 3.0},
        {"bin.99.n": 3.0},
        {"n/female": 61.0},
        {"brier/female": 0.2},
        {"age": 91.0},
    ],
)
def test_numbers_that_no_patients_have_are_refused(change):
    """By the server, with the site's whole answer and nobody else's."""
    view = View(cells=("female",), of_group=(0,))
    fitting = FITTING | BINS
    assert view.checked(fitting, 60.0) == fitting
    with pytest.raises(Refused):
        view.checked(fitting | change, 60.0)
    results = {"val": {}, "test": {"auc": 0.5}, "n": {"test": 60.0}, "groups": {}}
    answers = [
        Answer("liar", ROUNDS, metrics=results, clinical=fitting | change),
        Answer("other", ROUNDS, metrics=results, clinical=fitting),
    ]
    found, refused = inspect_evaluation(answers, ROUNDS, view=view)
    assert list(found) == ["other"] and [r.site for r in refused] == ["liar"]
    assert "91" not in refused[0].detail


DECISIONS = ("flagged", "true_positives")


def before_and_after(cases, shift, least=10, **view):
    """What leaves of a model, and once a step has moved all logits."""
    site = ClinicalAtSite(View(**view), least)
    return site.of_model(cases), site.after(cases, moved_by(cases, shift), None)


def moved_by(cases, shift):
    outputs = cases.outputs.clone()
    outputs[:, 1] += shift
    return torch.softmax(outputs, 1).numpy()


@pytest.mark.parametrize("least", [5, 10, 20])
def test_decisions_before_and_after_a_step_tell_of_no_few_who_crossed(least):
    """What leaves of both differs by nobody, or by enough patients; so do they from what the bins hold."""
    left = kept = 0
    for seed in range(6):
        cases = cases_of(400, seed)
        for shift in (-1.0, -0.5, -0.1, -0.02, 0.0, 0.03, 0.2, 0.7, 1.5):
            before, after = before_and_after(cases, shift, least)
            assert set(DECISIONS) <= set(before) and "brier" in after
            if not set(DECISIONS) & set(after):
                left += 1
                continue
            kept += shift != 0.0
            wrong = [numbers["flagged"] - numbers["true_positives"] for numbers in (before, after)]
            for crossed in (after["true_positives"] - before["true_positives"], wrong[1] - wrong[0]):
                assert crossed == 0 or abs(crossed) >= least
            bins = bins_of(after)
            held, true = (np.cumsum([0, *values[::-1]]) for values in (bins.n, bins.positives))
            for whole, right in zip(held, true):  # from the highest risks down
                for apart in (after["true_positives"] - right, wrong[1] - (whole - right)):
                    assert apart == 0 or abs(apart) >= least
    assert left and kept, "some steps move few, and some many"


def test_no_few_of_a_group_follow_from_who_crossed():
    """Enough cross in all, few of them in one group: neither group's decisions leave after the step."""
    members = np.repeat([0, 1], 100)
    z = np.tile(np.linspace(-3, 3, 100), 2)
    z[(members == 1) & (z < 0) & (z > -1.4)] -= 3
    z[110] = -0.5
    cases = Cases(
        torch.tensor(np.stack([np.zeros(200), z], 1)), torch.tensor(np.arange(200) % 2), torch.tensor(members)
    )
    before, after = before_and_after(cases, 1.2, 5, cells=("f", "m"), of_group=(0, 1))
    assert {"flagged", "flagged/f", "flagged/m"} <= set(before)
    assert "brier/m" in after and not [n for n in after if n.startswith(("flagged/", "true_positives/"))]


def test_a_site_may_say_nothing_of_calibration(tmp_path, monkeypatch):
    """Neither the site nor the last look at what leaves it lets a number pass."""
    (tmp_path / "fairflare_site.yaml").write_text("clinical: false\n")
    monkeypatch.setenv("FAIRFLARE_SITE_CONFIG", str(tmp_path / "fairflare_site.yaml"))
    site, model, _ = site_of()
    assert asked(site, model) == {} and "clinical" not in site.exchanges
    results = {"val": {}, "test": {}, "n": {"test": 60.0}, "groups": {}}
    with pytest.raises(EgressRefused, match="clinical: not in this exchange or this run"):
        site.egress.check("evaluate", Answer(SITE, ROUNDS, n_examples=100, metrics=results, clinical=FITTING))


def test_groups_by_outcome_tell_no_few_of_a_group():
    """With group_by=label+sex the size of "lived, men" leaves; the men's own would give the 3 who died.

    The other small cell, hidden with it, is that of the women: both sexes' numbers stay.
    """
    view = View(cells=("women", "men"), of_group=(0, 1, 0, 1))
    sizes = {("lived", "women"): 60, ("lived", "men"): 70, ("died", "women"): 40, ("died", "men"): 3}
    cases = cases_of(173)
    members = np.repeat(np.arange(4), list(sizes.values()))
    targets = torch.tensor((members >= 2).astype(np.int64))
    found = ClinicalAtSite(view).of_model(Cases(cases.outputs, targets, torch.tensor(members)))
    assert found["positives"] == 43 and not any("/" in name for name in found)


def test_before_and_after_a_step_tell_of_the_same_patients():
    """Bins of the risks after it would give the patients between an edge and where the line puts it."""
    cases, site = cases_of(), ClinicalAtSite(View(), 10)
    risks = cases.outputs.softmax(1)[:, 1].numpy()
    z = np.log(risks / (1 - risks))
    moved = 1 / (1 + np.exp(-(0.05 + 1.01 * z)))
    before = bins_of(site.of_model(cases))
    after = bins_of(site.after(cases, np.stack([1 - moved, moved], axis=1), None))
    assert (before.starts == after.starts).all() and (before.n == after.n).all()
    assert (before.positives == after.positives).all() and not np.allclose(before.risk, after.risk)


@each("threshold", [0.5, 0.3, 0.41])
@each("seed", range(12))
def test_no_few_patients_between_a_bins_edge_and_the_threshold_follow(seed, threshold):
    """Bins from an edge on, less those flagged, are the patients between the two, and how many it came true of."""
    cases, least = cases_of(seed=seed), 10
    found = ClinicalAtSite(View(threshold=threshold), least).of_model(cases)
    bins = bins_of(found)
    for k in range(1, len(bins.n)):
        n = bins.n[k:].sum() - found["flagged"]
        positives = bins.positives[k:].sum() - found["true_positives"]
        assert (n, positives) == (0, 0) or min(abs(positives), abs(n - positives)) >= least
    assert bins.n.sum() == cases.n and min(bins.positives.min(), (bins.n - bins.positives).min()) >= least


def test_with_secure_sums_no_count_leaves():
    view = View(cells=("a", "b"), of_group=(0, 1), secure=True)
    cases = cases_of(members=np.arange(240) % 2)
    found = ClinicalAtSite(view).of_model(cases)
    assert {name.partition("/")[0].partition(".")[0] for name in found} == {
        "n", "brier", "calibration", "ece", "slope", "intercept"
    }  # fmt: skip
    assert view.checked(found, 240.0, 10) == found
    with pytest.raises(Refused):
        view.checked(found | {"positives": 100.0})
    with pytest.raises(Refused):
        view.checked(found | {f"{BIN}0.n": 240.0})
    after = ClinicalAtSite(view).after(cases, np.full((240, 2), 0.5), None)
    assert "brier" in after and not any(name.startswith(("slope", "intercept")) for name in after)


def test_a_fingerprint_of_the_patients_does_not_leave():
    """Means have 5 decimals and summed risks 2: sums of single risks cannot be told apart by their last digits."""
    found = ClinicalAtSite(View(), 10).of_model(cases_of())
    for name, value in found.items():
        assert value == round(value, 2 if name.endswith(".risk") else 5)
