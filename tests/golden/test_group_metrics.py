# SPDX-License-Identifier: Apache-2.0
"""Group and client fairness and contribution against the papers' code and tables.

The conventions that the vectors fix: FedUFO's equal opportunity is the gap of the true-positive rates of class 1 alone,
its disparity has ddof 1 and its harmonic mean of disparities lacks the 2; FedISM+'s deviations have ddof 0.
"""

import json

import numpy as np
import pytest

from fairflare.report import fairness, groups
from fairflare_lab.report.agreements import agreement, clipped_shares
from fairflare_lab.report.contribution import shapley
from golden import folder

METRICS = json.loads((folder() / "metrics.json").read_text())
LINEAR = np.load(folder() / "fedufo_eo.npz")
CONTRIBUTION = json.loads((folder() / "contribution.json").read_text())
PROSTATE_SLICES = (381, 238, 278, 242, 389, 814)
"""Training slices of FedCE's six prostate sources."""


def named(values):
    return {f"site-{i}": float(value) for i, value in enumerate(values, 1)}


@pytest.fixture(scope="module")
def told():
    """The cells "label, attribute" of the linear model, as one site would tell them, and the keys to read them."""
    x, y = LINEAR["x"].astype(np.float64), LINEAR["y"]
    hits = (x @ LINEAR["W"].T.astype(np.float64) + LINEAR["b"]).argmax(1) == y
    attribute = x[:, 0]
    cells = {}
    for label in np.unique(y):
        for value in np.unique(attribute):
            rows = (y == label) & (attribute == value)
            if rows.any():
                cells[f"{label}, {value:g}"] = {"n": float(rows.sum()), "value": float(hits[rows].mean())}
    return cells


def test_equal_opportunity_is_that_of_the_positive_class(told):
    values = {name: cell["value"] for name, cell in groups.pooled({"site-1": told}).items()}
    rates = groups.by_class(values, ("label", "attribute"), ("0", "1"))
    found = groups.equal_opportunity(rates["1"])
    assert found["gap"] == pytest.approx(float(LINEAR["EO"]), abs=1e-12)
    assert found["worst"]["value"] == pytest.approx(float(LINEAR["WorstTPR"]), abs=1e-12)


def test_group_sizes_weigh_the_groups_back_to_the_accuracy(told):
    found = groups.pooled({"site-1": told})
    overall = fairness.weighted((cell["n"], cell["value"]) for cell in found.values())
    assert overall == pytest.approx(float(LINEAR["acc"]), abs=1e-12)


def test_disparity_has_ddof_1():
    found = METRICS["fedufo"]
    assert fairness.std(named(found["acc"]), 1) == pytest.approx(found["disparity"], abs=1e-12)


def test_both_harmonic_forms():
    """The two disparities are not in the file; 3h and 1.5h are a pair whose printed form is h."""
    found = METRICS["fedufo"]
    a, b = (factor * found["harm_disparity_as_printed"] for factor in (3, 1.5))
    assert groups.harmonic_printed(a, b) == pytest.approx(found["harm_disparity_as_printed"], abs=1e-12)
    assert groups.harmonic(a, b) == pytest.approx(found["harm_true"], abs=1e-12)
    assert groups.harmonic(found["acc_a"], found["acc_b"]) == pytest.approx(found["harm_acc"], abs=1e-12)


@pytest.mark.parametrize("name", ["clean", "corr", "avg"])
def test_fedism_tables_take_all_runs_and_rounds_with_ddof_0(name):
    found = METRICS["fedism_last5"]
    clean, corrupted = np.ravel(found["clean"]), np.ravel(found["corrupted"])
    values = named({"clean": clean, "corr": corrupted, "avg": (clean + corrupted) / 2}[name])
    assert fairness.mean(values) == pytest.approx(found[f"{name}_mean"], abs=1e-12)
    assert fairness.std(values) == pytest.approx(found[f"{name}_std"], abs=1e-12)


def test_fedism_client_std():
    found = METRICS["fedism_last5"]
    pairs = zip(np.ravel(found["clean"]), np.ravel(found["corrupted"]), strict=True)
    assert [fairness.std([a] * 16 + [b] * 4) for a, b in pairs] == pytest.approx(found["client_std_16_4"], abs=1e-12)


def test_shapley_values_and_their_weights():
    utilities = {frozenset(filter(None, key.split(","))): u for key, u in CONTRIBUTION["utilities"].items()}
    values = shapley(utilities)
    assert list(values.values()) == pytest.approx(CONTRIBUTION["shapley"], abs=1e-12)
    assert list(clipped_shares(values).values()) == pytest.approx(CONTRIBUTION["weights_clip0"], abs=1e-12)


@pytest.mark.parametrize("cohort", ["retina", "prostate"])
def test_leave_one_out_shares(cohort):
    """A retina source's drop is the sum of its drops for disc and cup."""
    found = CONTRIBUTION["loo"]
    drops = named(np.reshape(found[f"{cohort}_drops"], (len(found[f"{cohort}_drops"]), -1)).sum(1))
    shares = clipped_shares(drops)
    assert [100 * share for share in shares.values()] == pytest.approx(found[f"{cohort}_share_pct"], abs=1e-12)


def assert_agreement(expected, a, b):
    found = agreement(named(a), named(b))
    for key in ("pearson_x100", "euclid", "cosine"):
        assert found[key] == pytest.approx(expected[key], abs=1e-12), key


def test_agreement_of_the_retina_shares():
    found = CONTRIBUTION["contribution_metrics"]
    assert_agreement(found, found["loo"], found["sample_share"])


def test_agreement_of_the_prostate_shares():
    """The file holds the leave-one-out shares as printed, but not the other vector: the published sizes' shares."""
    found = CONTRIBUTION["contribution_metrics_prostate"]
    loo = np.array(CONTRIBUTION["loo"]["prostate_printed_pct"]) / 100
    sizes = np.round(np.array(PROSTATE_SLICES) / sum(PROSTATE_SLICES), 4)
    if len(loo) != len(sizes) or abs(np.linalg.norm(loo - sizes) - found["euclid"]) > 1e-9:
        pytest.skip("these vectors are of other sites, whose sizes the file does not hold")
    assert_agreement(found, loo, sizes)
