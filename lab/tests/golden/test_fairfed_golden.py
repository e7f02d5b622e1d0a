# SPDX-License-Identifier: Apache-2.0
"""FairFed and FairFedAvg against float64 restatements, FFL4MIA's branch, FedUFO's two forms and Poulain's server."""

import json
import re

import numpy as np
import pytest
import torch

from cases import each
from fairflare.core.types import Info, Reply, Round
from fairflare_lab.methods.group_fairness import FairFed, FairFedAvg
from golden import file

FAIR = json.loads(file("fairfed.json").read_text())
POULAIN = json.loads(file("poulain.json").read_text())
N = [int(n) for n in FAIR["n"]]
ROUNDS = len(FAIR["acc"])
ALL = range(len(N))


def rates_of(gap, positives=1.0):
    """Counts of two groups whose true-positive rates differ by ``gap``."""
    return {
        "positives/a": positives,
        "true_positives/a": positives * (0.5 + gap / 2),
        "positives/b": positives,
        "true_positives/b": positives * (0.5 - gap / 2),
    }


def counted(t, undefined=(), overall=None):
    """The round's replies: accuracies and gaps of the file, in counts that add up to the file's totals.

    None where no counts do: the federation's gap lies outside of what the sites have.
    """
    defined = [k for k in ALL if k not in undefined]
    sizes = dict.fromkeys(defined, 1.0)
    if overall is not None and defined:
        away = {k: FAIR["F_local"][t][k] - overall for k in defined}
        rest = sum(away.values())
        other = next((k for k in defined if away[k] * rest < 0), None)
        if other is None and abs(rest) > 1e-12:
            return None
        if other is not None:
            sizes[other] += -rest / away[other]
    return [
        Reply(
            f"site-{k}",
            {"w": torch.ones(1)},
            N[k],
            {"correct": N[k] * FAIR["acc"][t][k], "seen": float(N[k])}
            | (rates_of(FAIR["F_local"][t][k], sizes[k]) if k in sizes else {}),
            trainable=frozenset("w"),
        )
        for k in ALL
    ]


def factors_of(rule, rounds):
    """The factors of the updates over rounds of replies."""
    state, rows = {}, []
    for t, replies in enumerate(rounds, 1):
        outcome = rule.aggregate({"w": torch.zeros(1)}, replies, state, Info(Round(t, ROUNDS)))
        state = outcome.state
        assert min(outcome.weights.values()) >= 0 and sum(outcome.weights.values()) == pytest.approx(1)
        rows.append(list(outcome.notes["factor"].values()))
    return rows


def additive_keys():
    return [key for key in FAIR if key.startswith("additive")]


def case_of(key):
    """What a key of the file says: undefined metrics, clipping, beta."""
    undef, clip, beta = re.fullmatch(r"additive(_undef)?(_clip)?_beta([\d.]+)", key).groups()
    return FAIR["undefined"] if undef else [[]] * ROUNDS, bool(clip), float(beta)


@each("key", additive_keys())
def test_the_additive_rule(key):
    undefined, clip, beta = case_of(key)
    rule, carried = FairFed(beta=beta, clip=clip), dict(zip(ALL, np.array(N) / sum(N)))
    for t in range(ROUNDS):
        deviations = {
            k: abs(FAIR["Acc_global"][t] - FAIR["acc"][t][k])
            if k in undefined[t]
            else abs(FAIR["F_global"][t] - FAIR["F_local"][t][k])
            for k in ALL
        }
        carried = rule.moved(carried, deviations)
        found = np.array(list(carried.values()))
        np.testing.assert_allclose(found / found.sum(), FAIR[key][t], rtol=0, atol=1e-12)


@each("key", additive_keys())
def test_the_additive_rule_from_counts(key):
    """Where all rounds can be written as counts, these give the file's weights; the others end at their first gap."""
    undefined, clip, beta = case_of(key)
    rounds = [counted(t, undefined[t], FAIR["F_global"][t]) for t in range(ROUNDS)]
    whole = rounds[: rounds.index(None)] if None in rounds else rounds
    got = factors_of(FairFed(beta=beta, clip=clip), whole)
    np.testing.assert_allclose(got, FAIR[key][: len(whole)], rtol=0, atol=1e-10)


def test_the_federations_accuracy_is_that_of_the_summed_counts():
    for t in range(ROUNDS):
        outcome = FairFed(metric="accuracy").aggregate({"w": torch.zeros(1)}, counted(t), {}, Info(Round(1, 1)))
        expected = [abs(FAIR["Acc_global"][t] - acc) for acc in FAIR["acc"][t]]
        np.testing.assert_allclose(list(outcome.notes["deviation"].values()), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("key", [key for key in FAIR if key.startswith("exp_form")])
def test_the_exponential_form(key):
    rule = FairFed(form="exponential", beta=float(key.partition("_beta")[2]))
    rounds = [counted(t, (), FAIR["F_global"][t]) for t in range(ROUNDS)]
    reached = [t for t in range(ROUNDS) if rounds[t] is not None]
    assert reached
    got = factors_of(rule, [rounds[t] for t in reached])
    np.testing.assert_allclose(got, [FAIR[key][t] for t in reached], rtol=0, atol=1e-10)


def test_the_branch_without_a_sum():
    """FFL4MIA's: it favours sites of low accuracy. With the sum, a site away from the mean is penalised."""
    key = next(key for key in FAIR if key.startswith("ffl4mia"))
    beta = float(key.partition("_beta")[2])
    rounds = [counted(t) for t in range(ROUNDS)]
    got = factors_of(FairFed(beta=beta, variant="reference"), rounds)
    np.testing.assert_allclose(got, FAIR[key], rtol=0, atol=1e-6)
    ours = factors_of(FairFed(beta=beta, metric="accuracy"), rounds)
    assert abs(np.array(ours) - got).max() > 0.01


def test_fedufos_fairfed():
    key = next(key for key in FAIR if key.startswith("fedufo_authors_FairFed"))
    rule = FairFed(beta=float(key.partition("_beta")[2]), variant="fedufo", groups="a,b")
    got = factors_of(rule, [counted(t) for t in range(ROUNDS)])
    np.testing.assert_allclose(got, FAIR[key], rtol=0, atol=1e-6)


def test_fedufos_dipole():
    key = next(key for key in FAIR if key.startswith("fedufo_authors_DIPOLE"))
    rule, state = FairFedAvg("eo-gap", float(key.partition("_beta")[2]), "fedufo"), {}
    for t in range(ROUNDS):
        weights, state = rule.weigh(counted(t), state, Info(Round(t + 1, ROUNDS)))
        np.testing.assert_allclose(list(weights.values()), FAIR[key][t], rtol=0, atol=1e-6)


def of_poulain(t):
    """Replies with the file's worst rates and parameters."""
    shape = [np.array(one) for one in POULAIN["params"][0]]
    return [
        Reply(
            f"site-{k}",
            {str(i): torch.tensor(np.array(one)) for i, one in enumerate(POULAIN["params"][k])},
            int(n),
            {"correct": 1.0, "seen": 1.0, "positives/a": 1.0, "true_positives/a": POULAIN["wtpr"][t][k]},
            trainable=frozenset(map(str, range(len(shape)))),
        )
        for k, n in enumerate(POULAIN["n"])
    ]


@each("row", POULAIN["results"], ids=lambda row: f"beta{row['beta']}-{row['round']}")
def test_poulains_weights_and_model(row):
    """A rate of 1 is an m of 0, which the mean replaces. Every round starts from n_k / n."""
    replies = of_poulain(row["round"])
    model = {key: torch.zeros_like(value) for key, value in replies[0].update.items()}
    outcome = FairFedAvg(beta=row["beta"]).aggregate(model, replies, {}, Info(Round(1, 1)))
    np.testing.assert_allclose(list(outcome.weights.values()), row["weights"], rtol=0, atol=1e-12)
    for i, expected in enumerate(row["new"]):
        np.testing.assert_allclose(outcome.model[str(i)].numpy(), expected, rtol=0, atol=1e-12)
    assert outcome.state == {}


@each("metric, key", [("worst-tpr", "wtpr"), ("eo-sd", "eosd"), ("ap-sd", "apsd")])
@each("beta", sorted({row["beta"] for row in POULAIN["results"]}))
def test_poulains_other_metrics_enter_alike(metric, key, beta):
    """Numbers of two groups that have the file's spread give n_k / n + beta (max m - m_k), normalised."""
    for t, row in enumerate(POULAIN[key]):
        m = np.array([1 - value for value in row] if key == "wtpr" else row)
        m = np.where(m <= 0, m.mean(), m)
        expected = np.array(POULAIN["n"]) / sum(POULAIN["n"]) + beta * (m.max() - m)
        replies = [spread(f"site-{k}", int(n), metric, row[k]) for k, n in enumerate(POULAIN["n"])]
        weights, _ = FairFedAvg(metric, beta).weigh(replies, {}, Info(Round(t + 1, 9)))
        np.testing.assert_allclose(list(weights.values()), expected / expected.sum(), rtol=0, atol=1e-12)


def spread(site, n, metric, value):
    """A reply whose worst rate is ``value``, or whose two groups' rates have it as their sample standard deviation."""
    low, high = (value, 1.0) if metric == "worst-tpr" else (0.5 - value / 2**0.5, 0.5 + value / 2**0.5)
    numbers = {"correct": 1.0, "seen": 1.0}
    for group, rate in (("a", low), ("b", high)):
        numbers |= {f"positives/{group}": 1.0, f"true_positives/{group}": rate}
        if metric == "ap-sd":
            numbers |= {f"negatives/{group}": 1.0, f"false_positives/{group}": 1.0 - rate}
    return Reply(site, {}, n, numbers)
