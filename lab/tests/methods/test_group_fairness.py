# SPDX-License-Identifier: Apache-2.0
"""Fairness counts at a site and what may leave of them; FairFed and FairFedAvg by hand."""

import dataclasses

import pytest
import torch
from torch import nn

from cases import each
from fairflare.core.errors import UserError
from fairflare.core.types import Batch, Info, LocalWork, Offer, Outline, Reply, Round
from fairflare.functional.group_rates import Counts, counts_of, rates, summed
from fairflare.testing import check_probe
from fairflare_lab.methods.fairness_counts import FairnessCounts
from fairflare_lab.methods.group_fairness import FairFed, FairFedAvg
from helpers import TRAINING

INFO = Info(Round(1, 5))


class Rows:
    """Examples given as (group, class, decision), each so many times."""

    def __init__(self, **cells):
        rows = [(*map(int, name.removeprefix("c").replace("m", "-").split("_")), n) for name, n in cells.items()]
        self.rows = torch.tensor([row[:3] for row in rows for _ in range(row[3])])
        self.class_counts = torch.bincount(self.rows[:, 1], minlength=2)

    def fixed(self, split, batch_size, at_most=None):
        for part in self.rows.split(batch_size):
            yield Batch(torch.eye(3)[part[:, 2]], part[:, 1], part[:, 0])


def measured(rows, min_count=10, groups=("a", "b"), **settings):
    work = LocalWork(nn.Identity(), rows, TRAINING, Round(1, 4), seed=3, groups=groups, min_count=min_count)
    return FairnessCounts(probe_batch=7, **settings).measure(work)


WHOLE = dict(c0_1_1=12, c0_1_0=4, c0_0_0=20, c0_0_1=5, c1_1_1=3, c1_1_0=9, c1_0_0=30)
"""Group a: 12 of 16 positives found, 5 of 25 negatives wrong; group b: 3 of 12 found, none of 30 wrong."""


def test_counts_by_hand():
    assert measured(Rows(**WHOLE)) == {
        "correct": 65.0,
        "seen": 83.0,
        "positives/a": 16.0,
        "true_positives/a": 12.0,
        "negatives/a": 25.0,
        "false_positives/a": 5.0,
        "positives/b": 12.0,
        "true_positives/b": 3.0,
        "negatives/b": 30.0,
        "false_positives/b": 0.0,
    }


def test_another_class_may_be_the_positive_one():
    found = measured(Rows(**WHOLE), positive=0)
    assert (found["positives/a"], found["true_positives/a"]) == (25.0, 20.0) and found["correct"] == 65.0
    with pytest.raises(UserError, match="positive: expected a class from 0 to 1, got 2"):
        FairnessCounts(positive=2).scalars(Outline({}, ("a",), classes=2))


@each(
    "change, left",
    [
        ({}, "ab"),
        (dict(c1_1_0=5), ""),  # eight positives in b; a alone would tell them from the site's total
        (dict(c1_1_0=5, c2_1_1=40, c2_0_0=40), "c"),
        (dict(c1_1_1=0, c1_1_0=0), "ab"),  # nobody is nobody
        (dict(cm1_1_1=2), ""),  # two in no group would follow
        (dict(cm1_1_1=50, cm1_0_0=50), "ab"),
    ],
    ids=str,
)
def test_a_group_with_few_of_a_kind_says_nothing_and_none_tells_it_by_subtraction(change, left):
    found = measured(Rows(**{**WHOLE, **change}), groups=("a", "b", "c"))
    assert {name.partition("/")[2] for name in found if "/" in name} == set(left)
    assert {"correct", "seen"} <= found.keys()


def test_without_a_minimum_no_group_leaves():
    assert set(measured(Rows(**WHOLE), min_count=None)) == {"correct", "seen"}
    assert len(measured(Rows(**{**WHOLE, "c1_1_0": 5}), min_count=5)) == 10


def test_it_needs_classes_and_its_split():
    offer = Offer("t", ("dice",), "dice", (), has_classes=False)
    assert "one class per example" in FairnessCounts().missing(offer)
    assert not FairnessCounts().missing(dataclasses.replace(offer, has_classes=True))
    assert not FairnessCounts().needs and FairnessCounts(count_split="val").needs[0].split == "val"


@pytest.mark.parametrize("settings", [{}, {"positive": 0, "count_split": "val"}], ids=str)
def test_the_probes_laws(settings):
    check_probe("fairness-counts", **settings)


def test_rates_come_from_sums_and_not_from_means():
    one, other = Counts(10, 9, 90, 9), Counts(90, 9, 10, 1)
    total = summed([{"a": one}, {"a": other, "b": Counts(negatives=5)}])
    assert total["a"] == Counts(100, 18, 100, 10)
    assert rates(total, "tpr") == {"a": 0.18} and rates(total, "selected") == {"a": 0.14, "b": 0.0}
    assert rates(total, "accuracy") == {"a": 0.54, "b": 1.0}


def test_whatever_a_site_says_a_rate_is_a_share():
    counts = counts_of(
        {"positives/a": 1.0, "true_positives/a": 1e8, "false_positives/a": 1e8, "other/a": 3.0, "x": 1.0}
    )
    assert all(0 <= counts["a"].rate(kind) <= 1 for kind in ("tpr", "selected", "accuracy"))
    assert Counts().rate("tpr") is None


def reply(site, accuracy, n=10, **true_positives):
    """Ten positives per group."""
    found = {"correct": accuracy * n, "seen": float(n)}
    for group, hits in true_positives.items():
        found |= {f"positives/{group}": 10.0, f"true_positives/{group}": float(hits)}
    return Reply(site, {"w": torch.ones(1)}, n, found, trainable=frozenset("w"))


def weigh(rule, *replies, state=None):
    return rule.weigh(replies, state or {}, INFO)


def test_fairfed_by_hand():
    """Gaps .8 - .2 = .6 and .4 - .4 = 0, of all .6 - .3 = .3: both deviate by .3, and nothing moves.

    With a third site of gap .3 the mean deviation is .2: that site gains .2 beta, the others lose half of it.
    """
    sites = [reply("x", 0.5, a=8, b=2), reply("y", 0.5, a=4, b=4)]
    assert weigh(FairFed(), *sites)[0] == pytest.approx({"x": 0.5, "y": 0.5})
    weights, state = weigh(FairFed(beta=0.5), *sites, reply("z", 0.5, a=6, b=3))
    assert weights == pytest.approx({"x": 1 / 3 - 0.05, "y": 1 / 3 - 0.05, "z": 1 / 3 + 0.1})
    assert weigh(FairFed(beta=0.5), *sites, reply("z", 0.5, a=6, b=3), state=state)[0]["z"] == pytest.approx(
        1 / 3 + 0.2
    )


def test_the_pair_is_that_of_the_best_and_the_worst_served_group_unless_named():
    sites = [reply("x", 0.5, a=9, b=5, c=1), reply("y", 0.5, a=7, b=5, c=3)]
    outcome = FairFed().aggregate({"w": torch.zeros(1)}, sites, {}, INFO)
    assert outcome.notes["gap"] == pytest.approx(0.8 - 0.2)
    assert outcome.notes["deviation"] == pytest.approx({"x": 0.2, "y": 0.2})
    named = FairFed(groups="b, c").aggregate({"w": torch.zeros(1)}, sites, {}, INFO)
    assert named.notes["gap"] == pytest.approx(0.5 - 0.2)
    with pytest.raises(ValueError, match="groups: expected two names"):
        FairFed(groups="a,a")


def test_swapping_the_groups_changes_nothing():
    one = weigh(FairFed(), reply("x", 0.5, a=9, b=1), reply("y", 0.6, a=2, b=5), reply("z", 0.7, a=4, b=4))
    other = weigh(FairFed(), reply("x", 0.5, b=9, a=1), reply("y", 0.6, b=2, a=5), reply("z", 0.7, b=4, a=4))
    assert one[0] == pytest.approx(other[0])


def test_a_site_without_groups_is_judged_by_its_accuracy():
    """Accuracy of all .5: the third site deviates by .3, as the others' gaps do."""
    sites = [reply("x", 0.35, a=8, b=2), reply("y", 0.35, a=4, b=4), reply("z", 0.8)]
    outcome = FairFed().aggregate({"w": torch.zeros(1)}, sites, {}, INFO)
    assert outcome.notes["deviation"] == pytest.approx(dict.fromkeys("xyz", 0.3))


def test_without_groups_anywhere_accuracy_is_all_there_is():
    sites = [reply("x", 0.9), reply("y", 0.5), reply("z", 0.4)]
    assert weigh(FairFed(), *sites)[0] == weigh(FairFed(metric="accuracy"), *sites)[0]
    weights, _ = weigh(FairFed(beta=0.3), *sites)
    assert weights == pytest.approx({"x": 1 / 3 - 0.03, "y": 1 / 3 + 0.03, "z": 1 / 3})
    assert "gap" not in FairFed().aggregate({"w": torch.zeros(1)}, sites, {}, INFO).notes


@pytest.mark.parametrize("rule", [FairFed(beta=0), FairFed(beta=0, form="exponential"), FairFedAvg(beta=0)], ids=str)
def test_beta_zero_is_fedavg(rule):
    assert weigh(rule, reply("x", 0.9, n=30, a=8, b=1), reply("y", 0.2, n=10, a=1, b=9))[0] == pytest.approx(
        {"x": 0.75, "y": 0.25}
    )


def test_a_site_that_is_clipped_away_comes_back():
    state = {}
    far = [reply("x", 1.0), reply("y", 0.5), reply("z", 0.5)]
    near = [reply("x", 0.5), reply("y", 0.1), reply("z", 0.9)]
    for _ in range(3):
        weights, state = weigh(FairFed(beta=2), *far, state=state)
    assert weights["x"] == 0
    assert weigh(FairFed(beta=2), *near, state=state)[0]["x"] > 0


def test_as_written_a_site_may_be_taken_with_a_negative_factor():
    sites = [reply("x", 1.0), reply("y", 0.5), reply("z", 0.5)]
    outcome = FairFed(beta=3, clip=False).aggregate({"w": torch.zeros(1)}, sites, {}, INFO)
    assert outcome.notes["factor"]["x"] < 0 == outcome.weights["x"]
    assert sum(outcome.notes["factor"].values()) == pytest.approx(1) == outcome.model["w"].item()


def test_an_absent_site_keeps_what_it_carries_and_a_new_one_joins_with_its_examples():
    sites = [reply("x", 0.9), reply("y", 0.5), reply("z", 0.4)]
    _, state = weigh(FairFed(beta=0.3), *sites)
    alone, after = weigh(FairFed(beta=0.3), sites[0], state=state)
    assert alone == {"x": 1.0} and after == state
    weights, _ = weigh(FairFed(beta=0.0), *sites, reply("new", 0.5, n=30), state=state)
    assert weights["new"] == pytest.approx(0.5) and weights["y"] == pytest.approx(0.5 * state["weights"]["y"])


def test_fairfedavg_by_hand():
    """Worst rates .5 and .9: m = .5 and .1, so that the second site gains .4 beta; eo-gap: .2 and 0."""
    sites = [reply("x", 0.5, a=5, b=7), reply("y", 0.5, a=9, b=9)]
    assert weigh(FairFedAvg(), *sites)[0] == pytest.approx({"x": 0.5 / 1.4, "y": 0.9 / 1.4})
    assert weigh(FairFedAvg("eo-gap", variant="fedufo"), *sites)[0] == pytest.approx({"x": 0.5 / 1.2, "y": 0.7 / 1.2})


def test_a_site_without_rates_counts_as_the_others_do():
    sites = [reply("x", 0.5, a=5, b=5), reply("y", 0.5, a=9, b=9), reply("z", 0.5)]
    assert weigh(FairFedAvg(), *sites)[0] == pytest.approx(
        {"x": (1 / 3) / 1.6, "y": (1 / 3 + 0.4) / 1.6, "z": (1 / 3 + 0.2) / 1.6}
    )
    assert weigh(FairFedAvg(), reply("x", 0.5, n=30), reply("y", 0.5))[0] == {"x": 0.75, "y": 0.25}


def test_only_the_dipole_form_remembers():
    sites = [reply("x", 0.5, a=5, b=7), reply("y", 0.5, a=9, b=9)]
    assert weigh(FairFedAvg(), *sites)[1] == {}
    _, state = weigh(FairFedAvg("eo-gap", variant="fedufo"), *sites)
    assert weigh(FairFedAvg("eo-gap", variant="fedufo"), *sites, state=state)[0] == pytest.approx(
        {"x": 0.5 / 1.4, "y": 0.9 / 1.4}
    )
