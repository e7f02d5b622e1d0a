# SPDX-License-Identifier: Apache-2.0
"""Conformal prediction, conformal risk control and recalibration, against public code and independent restatements."""

import math

import numpy as np
import pytest

from cases import each
from fairflare.engine.after.conformal import class_scores, counted, fewest, shrunk_threshold, threshold
from fairflare.functional.calibration import Line, fitted, sums
from fairflare.functional.recalibration import binned, fitted_to_bins, recalibrated, temperature
from golden import folder

GOLDEN = np.load(folder() / "conformal.npz")
SITES = sorted(key.split("/")[0] for key in GOLDEN if key.startswith("site") and key.endswith("/y"))
ALPHAS = [float(alpha) for alpha in GOLDEN["alphas"]]
SCORES = ("lac", "aps")
BINS = GOLDEN["lac/grid/counts"].shape[1]


def rank_of(cases, alpha, sites=1):
    """ceil((1 - alpha)(n + K)), of K sites' pooled scores (Lu et al., ICML 2023, https://arxiv.org/abs/2305.17564)."""
    return math.ceil((cases + sites) * (1.0 - alpha) - 1e-9)


def quantile(scores, rank):
    return float(np.sort(scores)[rank - 1])


def pooled(curves, cases):
    return cases @ curves / cases.sum()


def scores_of(score):
    """Each site's scores of the cases' own classes."""
    labels = [GOLDEN[f"{site}/y"] for site in SITES]
    found = [class_scores(GOLDEN[f"{site}/probs"], score) for site in SITES]
    return [scores[np.arange(len(y)), y] for scores, y in zip(found, labels)]


@pytest.mark.parametrize("score", SCORES)
def test_scores(score):
    np.testing.assert_allclose(np.concatenate(scores_of(score)), GOLDEN[f"{score}/scores"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("alpha", ALPHAS)
class TestQuantiles:
    def test_pooled(self, score, alpha):
        scores = np.concatenate(scores_of(score))
        found = quantile(scores, rank_of(len(scores), alpha))
        assert found == pytest.approx(float(GOLDEN[f"{score}/pooled/qhat_a{alpha}"]), abs=1e-12)

    def test_federated_rank(self, score, alpha):
        scores = np.concatenate(scores_of(score))
        rank = rank_of(len(scores), alpha, sites=len(SITES))
        assert rank == int(GOLDEN[f"{score}/fcp/rank_a{alpha}"])
        found = quantile(scores, rank)
        assert found == pytest.approx(float(GOLDEN[f"{score}/fcp/qhat_a{alpha}"]), abs=1e-12)

    def test_local(self, score, alpha):
        for site, own in zip(SITES, scores_of(score)):
            expected = float(GOLDEN[f"{score}/local/qhat_a{alpha}_{site}"])
            assert quantile(own, rank_of(len(own), alpha)) == pytest.approx(expected, abs=1e-12)

    def test_from_counts(self, score, alpha):
        counts = np.stack([counted(own, BINS) for own in scores_of(score)])
        np.testing.assert_array_equal(counts, GOLDEN[f"{score}/grid/counts"])
        rank = rank_of(int(counts.sum()), alpha, sites=len(SITES))
        found = (np.searchsorted(counts.sum(axis=0).cumsum(), rank) + 1) / BINS  # the bin's upper edge
        assert found == pytest.approx(float(GOLDEN[f"{score}/grid/qhat_a{alpha}"]), abs=1e-12)
        exact = quantile(np.concatenate(scores_of(score)), rank)
        assert exact <= found < exact + 1 / BINS + 1e-12

    def test_the_customary_quantile_is_one_rank_higher(self, score, alpha):
        """numpy's "higher" quantile at ceil((n+1)(1-a))/n, as public code has it: valid and wider than needed."""
        scores = np.sort(np.concatenate(scores_of(score)))
        rank = rank_of(len(scores), alpha)
        customary = float(GOLDEN[f"{score}/ref/qhat_a{alpha}"])
        assert customary == pytest.approx(np.quantile(scores, rank / len(scores), method="higher"), abs=1e-6)
        place = rank + 1 if rank < len(scores) else rank
        assert quantile(scores, place) == pytest.approx(customary, abs=1e-6)

    @pytest.mark.parametrize("empty", [False, True])
    def test_sets(self, score, alpha, empty):
        probabilities = GOLDEN["test/probs"]
        found = class_scores(probabilities, score) <= float(GOLDEN[f"{score}/ref/qhat_a{alpha}"])
        if not empty:
            found[np.arange(len(found)), probabilities.argmax(axis=1)] = True
        name = "sets_allow_empty" if empty else "sets"
        np.testing.assert_array_equal(found, GOLDEN[f"{score}/ref/{name}_a{alpha}"])


class TestRiskControl:
    curves, cases, grid = GOLDEN["crc/curves"], GOLDEN["crc/n"], GOLDEN["crc/grid"]
    alpha, bound = map(float, GOLDEN["crc/set"])

    def test_pooled(self):
        curve = pooled(self.curves, self.cases)
        np.testing.assert_allclose(curve, GOLDEN["crc/pooled_curve"], rtol=0, atol=1e-12)
        found = threshold(curve, float(self.cases.sum()), self.grid, self.alpha, self.bound)
        assert found == float(GOLDEN["crc/pooled_angelopoulos"])

    def test_local(self):
        """Where no threshold holds the level public code has the grid's end, and this package none."""
        given = (self.grid, self.alpha, self.bound)
        found = [threshold(curve, n, *given) for curve, n in zip(self.curves, self.cases)]
        assert [self.grid[-1] if one is None else one for one in found] == GOLDEN["crc/local_angelopoulos"].tolist()
        assert all(one is None for one, never in zip(found, GOLDEN["crc/infeasible"]) if never)

    @each("alpha", [0.05, 0.1, 0.2, 0.3])
    def test_of_losses_of_0_or_1_it_is_the_rank_of_split_conformal(self, alpha):
        """Also where alpha (n + 1) is whole, which doubles miss by little: 0.1 x 30, 0.3 x 10."""
        for n in range(fewest(alpha), 201):
            scores = np.linspace(0.0, 1.0, n + 1)[1:]  # as good as any: ranks are all that counts
            found = threshold(np.arange(n, 0, -1.0) / n - 1 / n, n, scores, alpha)
            assert found == scores[rank_of(n, alpha) - 1], n

    def test_infeasible(self):
        found = [n < fewest(self.alpha, self.bound) for n in self.cases]
        assert found == GOLDEN["crc/infeasible"].tolist()

    @pytest.mark.parametrize("name", ["shrink", "shrink_nocorr", "shrink_loo"])
    def test_shrinkage(self, name):
        for row, prior in zip(GOLDEN[f"crc/{name}"], GOLDEN["crc/n0"]):
            found = [self.shrunk(k, float(prior), name) for k in range(len(self.cases))]
            assert [self.grid[-1] if one is None else one for one in found] == row.tolist(), prior

    def shrunk(self, k, prior, name):
        keep = [j for j in range(len(self.cases)) if j != k or name != "shrink_loo"]
        others, total = pooled(self.curves[keep], self.cases[keep]), float(self.cases[keep].sum())
        corrected = name != "shrink_nocorr"
        given = (self.grid, self.alpha, self.bound, prior)
        return shrunk_threshold(self.curves[k], self.cases[k], others, total, *given, corrected=corrected)

    def test_the_one_threshold_that_is_covered_everywhere(self):
        found = np.maximum(GOLDEN["crc/pooled"], [max(row) for row in GOLDEN["crc/shrink"]])
        np.testing.assert_array_equal(found, GOLDEN["crc/lambda_fed"])


class TestRecalibration:
    sites = [(GOLDEN[f"recal/z{k}"], GOLDEN[f"recal/y{k}"]) for k in range(4)]
    two_classes = sites[:3]
    pooled_ab = Line(*map(float, GOLDEN["recal/pooled_ab"]))

    def together(self, of=None):
        return tuple(np.concatenate(parts) for parts in zip(*(of or self.sites)))

    def test_sums(self):
        found = [sums(z, y) for z, y in self.sites]
        np.testing.assert_allclose(found, GOLDEN["recal/sums_at_01"], rtol=0, atol=1e-9)

    def test_pooled(self):
        z, y = self.together()
        close = {"rel": 0, "abs": 1e-9}
        both = fitted(z, y, slope=True)
        assert (both.intercept, both.slope) == pytest.approx(GOLDEN["recal/pooled_ab"].tolist(), **close)
        assert fitted(z, y).intercept == pytest.approx(float(GOLDEN["recal/pooled_a"]), **close)
        slope = fitted(z, y, intercept=False, slope=True).slope
        assert slope == pytest.approx(float(GOLDEN["recal/pooled_b"]), **close)
        assert 1 / slope == pytest.approx(float(GOLDEN["recal/pooled_temperature"]), **close)

    def test_each_site(self):
        for k, (z, y) in enumerate(self.two_classes):
            close = {"rel": 0, "abs": 1e-9}
            both = fitted(z, y, slope=True)
            assert (both.intercept, both.slope) == pytest.approx(GOLDEN["recal/site_ab"][k].tolist(), **close)
            assert fitted(z, y).intercept == pytest.approx(float(GOLDEN["recal/site_a"][k]), **close)
            slope = fitted(z, y, intercept=False, slope=True).slope
            assert slope == pytest.approx(float(GOLDEN["recal/site_b"][k]), **close)

    def test_drawn_towards_all(self):
        penalty = tuple(map(float, GOLDEN["recal/penalty"]))
        towards = Line(float(GOLDEN["recal/pooled_a"]), 1.0)
        for k, (z, y) in enumerate(self.sites):
            only = fitted(z, y, penalty=penalty, towards=towards).intercept
            assert only == pytest.approx(float(GOLDEN["recal/site_a_shrunk"][k]), abs=1e-9)
            both = fitted(z, y, slope=True, penalty=penalty, towards=self.pooled_ab)
            expected = GOLDEN["recal/site_ab_shrunk"][k].tolist()
            assert (both.intercept, both.slope) == pytest.approx(expected, rel=0, abs=1e-9)

    def test_the_default_is_one_of_these(self):
        """With too few cases of a class, only the intercept."""
        penalty = float(GOLDEN["recal/penalty"][0])
        for z, y in self.sites:
            line, why = recalibrated(z, y, self.pooled_ab, penalty)
            may = len(z) >= 50 and 10 <= y.sum() <= len(y) - 10
            start = {"penalty": (penalty, penalty), "towards": self.pooled_ab, "start": self.pooled_ab}
            both = fitted(z, y, slope=True, **start)
            expected = both if may and both.slope > 0 else fitted(z, y, **start)
            assert line == expected and bool(why) == (expected != both)

    def test_from_bins(self):
        edges = GOLDEN["recal/hist_edges"]
        for k, (z, y) in enumerate(self.two_classes):
            found = fitted_to_bins(*binned(z, y, edges), edges)
            assert found.intercept == pytest.approx(float(GOLDEN["recal/hist_a"][k]), rel=0, abs=1e-9)

    def test_temperature(self):
        found = [temperature(np.log(GOLDEN[f"{s}/probs"]), GOLDEN[f"{s}/y"]) for s in SITES]
        np.testing.assert_allclose(found, GOLDEN["temperature/site"], rtol=0, atol=1e-8)
        probs = np.concatenate([GOLDEN[f"{s}/probs"] for s in SITES])
        labels = np.concatenate([GOLDEN[f"{s}/y"] for s in SITES])
        assert temperature(np.log(probs), labels) == pytest.approx(float(GOLDEN["temperature/pooled"]), abs=1e-8)


def test_the_sum_of_scores_is_that_of_their_order():
    """A class's own mass and that of every likelier one."""
    probabilities = np.array([[0.2, 0.5, 0.3]])
    np.testing.assert_allclose(class_scores(probabilities, "aps"), [[1.0, 0.5, 0.8]])
