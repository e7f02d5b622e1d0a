# SPDX-License-Identifier: Apache-2.0
"""Steps after the last round: what a site sums up and sends, what the server takes, what both refuse."""

import dataclasses
import math
from functools import partial

import numpy as np
import pytest
import torch

from cases import each
from fairflare.core.errors import UserError
from fairflare.core.schema import Answer
from fairflare.core.types import Round
from fairflare.engine.after.base import Cases, Shape
from fairflare.engine.after.conformal import Conformal, class_scores, fewest
from fairflare.engine.after.recalibrate import EDGES, TEMPERATURES, Recalibrate
from fairflare.engine.answers import PlainAtSite
from fairflare.engine.combination import Plain
from fairflare.engine.exchanges.after import AfterAtServer, AfterAtSite
from fairflare.engine.exchanges.base import Ended
from fairflare.engine.setup.config import RunConfig, make_config, with_step
from fairflare.functional.recalibration import fitted

BINARY, FOUR, MASKS = Shape(2, True), Shape(4, True), Shape(2, False, has_masks=True)
GROUPED = Shape(2, True, ("young", "old"))


def drawn(n, classes=2, seed=0, off=0.0, members=None):
    """Cases whose logits are true but for ``off``."""
    made = np.random.default_rng(seed)
    logits = made.normal(size=(n, classes))
    shifted = logits - logits.max(1, keepdims=True)
    p = np.exp(shifted) / np.exp(shifted).sum(1, keepdims=True)
    labels = (p.cumsum(1) < made.uniform(size=(n, 1))).sum(1).clip(0, classes - 1)
    logits[:, -1] -= off
    where = torch.full((n,), -1) if members is None else torch.as_tensor(members)
    return Cases(torch.from_numpy(logits), torch.from_numpy(labels), where)


def everyone(cases):
    return np.ones(cases.n, dtype=bool)


class TestRecalibrate:
    def test_the_pooled_line_is_that_of_all_cases_within_a_bin(self):
        cases = drawn(4000, off=1.0)
        fit = Recalibrate().shared(Recalibrate().sums(cases, everyone(cases), BINARY), BINARY)
        z = (cases.outputs[:, 1] - cases.outputs[:, 0]).numpy()
        exact = fitted(z, cases.targets.numpy().astype(float), slope=True)
        assert fit["intercept"] == pytest.approx(exact.intercept, abs=0.05)
        assert fit["slope"] == pytest.approx(exact.slope, abs=0.05)
        assert fit["intercept"] == pytest.approx(1.0, abs=0.2)

    def test_a_shift_is_taken_back_at_the_site(self):
        step, cases = Recalibrate(), drawn(400, off=1.5)
        row = step.sums(cases, everyone(cases), BINARY)
        fit, _ = step.own(cases, everyone(cases), row, BINARY)
        new = drawn(4000, seed=1, off=1.5)
        before, own = (step.values(new, stage, {-1: fit}, BINARY) for stage in ("before", "own"))
        assert abs(before["calibration"].mean()) > 0.2 > 10 * 0.05 * abs(own["calibration"].mean())
        assert own["brier"].mean() < before["brier"].mean()

    def test_a_site_of_one_class_stays_finite_and_near_all_others(self):
        step, cases = Recalibrate(), drawn(200)
        row = step.sums(cases, everyone(cases), BINARY)
        one = cases.targets.numpy() == 1
        fit, remark = step.own(cases, one, row, BINARY)
        assert all(math.isfinite(v) and abs(v) < 10 for v in fit.values()) and "10 of each class" in remark
        assert fit["intercept"] > step.shared(row, BINARY)["intercept"]

    def test_one_class_everywhere_changes_nothing(self):
        step, cases = Recalibrate(), drawn(200)
        one = cases.targets.numpy() == 1
        row = step.sums(cases, one, BINARY)
        assert step.shared(row, BINARY) == {}
        assert step.own(cases, one, row, BINARY) == ({}, "no calibration cases of both classes anywhere")
        before, own = (step.values(cases, stage, {-1: {}}, BINARY) for stage in ("before", "own"))
        np.testing.assert_allclose(own["brier"], before["brier"])

    def test_more_classes_have_a_temperature(self):
        step = Recalibrate()
        cases = dataclasses.replace(sharp := drawn(3000, classes=4), outputs=3.0 * sharp.outputs)
        row = step.sums(cases, everyone(cases), FOUR)
        assert step.proper(row, FOUR)
        assert step.shared(row, FOUR)["temperature"] == pytest.approx(3.0, rel=0.1)
        fit, _ = step.own(cases, everyone(cases), row, FOUR)
        assert fit["temperature"] == pytest.approx(3.0, rel=0.1)
        before, own = (step.values(cases, stage, {-1: fit}, FOUR) for stage in ("before", "own"))
        assert before["calibration"].mean() > 0.1 > 4 * abs(own["calibration"].mean())

    @pytest.mark.parametrize("far", [8.0, 20.0, 300.0])
    def test_an_overconfident_model_is_told_how_often_it_is_right(self, far):
        """All logits beyond the last bin, 95 % of the cases right."""
        up, right = np.arange(400) % 2, np.arange(400) // 2 % 20 > 0
        logits = torch.from_numpy(np.where(up, far, -far))
        labels = torch.from_numpy(np.where(right, up, 1 - up))
        cases = Cases(torch.stack((0 * logits, logits), 1), labels, torch.full((400,), -1))
        step, every = Recalibrate(), everyone(cases)
        row = step.sums(cases, every, BINARY)
        own, _ = step.own(cases, every, row, BINARY)
        assert own == pytest.approx(step.shared(row, BINARY), rel=0.2, abs=0.1)
        for stage, fit in (("shared", step.shared(row, BINARY)), ("own", own)):
            loss = step.values(cases, stage, {-1: fit}, BINARY)["log_loss"].mean()
            assert loss == pytest.approx(-0.95 * math.log(0.95) - 0.05 * math.log(0.05), abs=0.02)
        unchanged = step.values(cases, "before", {-1: own}, BINARY)["log_loss"].mean()
        assert unchanged == pytest.approx(0.05 * far, abs=0.01)

    def test_what_is_further_out_stays_further_out(self):
        logits = torch.tensor([-900.0, -30.0, -7.0, -6.0, 0.0, 5.9, 6.1, 7.0, 30.0, 31.0]).double()
        cases = Cases(torch.stack((0 * logits, logits), 1), torch.ones(10, dtype=torch.long), torch.full((10,), -1))
        fit = {-1: {"intercept": 0.3, "slope": 0.4}}
        losses = Recalibrate().values(cases, "own", fit, BINARY)["log_loss"]
        assert (np.diff(losses) < 0).all()

    def test_losses_of_any_cases_are_possible(self):
        for seed in range(60):
            classes, size = 3 + seed % 5, 10.0 ** (seed % 7 - 3)
            cases = drawn(5 + 7 * seed, classes=classes, seed=seed)
            worst = cases.outputs.argmin(1) if seed % 3 == 0 else cases.targets
            cases = dataclasses.replace(cases, outputs=size * cases.outputs, targets=worst)
            shape = Shape(classes, True)
            assert Recalibrate().proper(Recalibrate().sums(cases, everyone(cases), shape), shape)

    def test_masks_are_refused(self):
        assert "masks" in Recalibrate().missing(MASKS) and not Recalibrate().missing(FOUR)


def test_ten_cases_do_not_decide_the_temperature_of_nine_hundred():
    """Whatever their site says they lost; one row put it at 0.1, another at 10."""
    step, honest = Recalibrate(), drawn(900, classes=4)
    row = step.sums(honest, everyone(honest), FOUR)
    n, b = 10.0, 1 / TEMPERATURES
    wild = [np.where(np.arange(41) == best, 0.0, 1e6 * n) for best in (0, 40)]
    steep = [n * 300 * np.maximum(b - 0.1, 0), n * (math.log(4) + 20 * b)]
    hump = [n * 12 * np.minimum(b, 1.0), n * 12 * np.sqrt(b)]
    for losses in (*wild, *steep, *hump):
        with pytest.raises(ValueError):
            step.checked([n, *losses.tolist()], FOUR, 100.0)
    most = [n * (math.log(4) + 12 * b), n * np.maximum(math.log(4) * (1 - b / 10), 0), n * 12 * b]
    for losses in most:
        lie = np.array(step.checked([n, *losses.tolist()], FOUR, 100.0))
        assert step.shared(row, FOUR)["temperature"] == pytest.approx(1.0, abs=0.1)
        assert step.shared(row + lie, FOUR)["temperature"] == pytest.approx(1.0, abs=0.5)


class TestConformal:
    def test_sets_hold_the_rank_of_split_conformal_on_the_grid(self):
        """The ceil((n+1)(1-alpha))-th score, rounded up to the grid; alone likewise, where nothing is shrunk."""
        for n, alpha, rank in ((300, 0.1, 271), (299, 0.1, 270), (19, 0.1, 18), (9, 0.2, 8)):
            step, cases = Conformal(alpha=alpha, shrinkage=0), drawn(n, classes=4)
            total = step.sums(cases, everyone(cases), FOUR)
            scores = class_scores(cases.outputs.softmax(1).numpy())[np.arange(n), cases.targets.numpy()]
            fit = step.shared(total, FOUR)
            assert fit["threshold"] == pytest.approx(math.ceil(np.sort(scores)[rank - 1] * 200) / 200)
            assert step.own(cases, everyone(cases), total, FOUR) == (fit, "")

    def test_missed_cases_of_the_second_class_stay_below_the_level(self):
        step, cases = Conformal(alpha=0.2, loss="missed"), drawn(500)
        row = step.sums(cases, everyone(cases), BINARY)
        assert row[0] == cases.targets.sum()
        values = step.values(cases, "own", {-1: step.shared(row, BINARY)}, BINARY)
        assert np.nanmean(values["risk"]) <= 0.2 and np.isnan(values["risk"]).sum() == (cases.targets == 0).sum()
        assert 0 < values["size"].mean() < 1

    def test_too_few_cases_are_said_and_never_a_set_of_everything(self):
        step, few = Conformal(alpha=0.1), drawn(8)
        row = step.sums(few, everyone(few), BINARY)
        assert fewest(0.1) == 9 and step.shared(row, BINARY) == {}
        assert step.own(few, everyone(few), row, BINARY) == ({}, "all sites together need 9 cases")
        assert np.isnan(step.values(few, "own", {-1: {}}, BINARY)["risk"]).all()
        many = drawn(100, seed=2)
        of_all = step.sums(many, everyone(many), BINARY)
        alone = Conformal(alpha=0.1, shrinkage=0)
        fit, remark = alone.own(few, everyone(few), of_all, BINARY)
        assert fit == alone.shared(of_all, BINARY) and remark == "needs 9 cases for a threshold from its own alone"

    @pytest.mark.parametrize("n", [2, 20, 34])
    def test_a_site_whose_few_leave_no_room_has_the_threshold_of_all(self, n):
        """v / (n + 1) + (1 - v) / (N + 1) is above the level: no lambda will do, and not everything is flagged."""
        step, few, many = Conformal(alpha=0.02), drawn(n, classes=4, seed=1), drawn(200, classes=4)
        of_all = step.sums(many, everyone(many), FOUR)
        fit, remark = step.own(few, everyone(few), of_all, FOUR)
        assert fit == step.shared(of_all, FOUR) and 0 < fit["threshold"] < 1
        assert remark.startswith("needs 49 cases") and "has that of all" in remark

    def test_a_curve_that_never_falls_is_refused(self):
        """It would leave no threshold for anybody, or that which flags everything."""
        for n in (30.0, 90.0):
            with pytest.raises(ValueError):
                Conformal().checked([n] + [n] * 201, FOUR, 100.0)
        assert Conformal().shared(np.array([30.0] * 202), FOUR) == {}

    def test_masks_lose_the_share_of_a_structure(self):
        logits = torch.full((1, 2, 4, 4), -9.0)
        logits[0, 0, :2], logits[0, 0, 2] = 9.0, math.log(0.3 / 0.7)
        truth = torch.zeros(1, 2, 4, 4, dtype=torch.uint8)
        truth[0, 0, :3] = 1
        step = Conformal(loss="missed")
        outputs, present = step.condense(logits, truth)
        cases = Cases(outputs, present, torch.tensor([-1]))
        row = step.sums(cases, everyone(cases), MASKS)
        assert row[0] == 1 and step.proper(row, MASKS)
        at = {lam: row[1 + round(200 * lam)] for lam in (0.5, 0.69, 0.7, 1.0)}
        assert at == {0.5: pytest.approx(1 / 3), 0.69: pytest.approx(1 / 3), 0.7: 0.0, 1.0: 0.0}
        nothing = step.sums(Cases(outputs, torch.tensor([False]), torch.tensor([-1])), everyone(cases), MASKS)
        assert nothing[0] == 0

    def test_what_does_not_fit_is_refused(self):
        assert "two classes" in Conformal(loss="missed").missing(FOUR)
        assert "masks" in Conformal(loss="sets").missing(MASKS)
        assert not Conformal().missing(MASKS) and not Conformal().missing(FOUR)


STEPS = [Recalibrate(), Conformal(), Recalibrate(by="group"), Conformal(by="group")]


@pytest.mark.parametrize("step", STEPS)
def test_sums_of_few_cases_do_not_leave(step):
    cases = drawn(50, members=[0] * 30 + [1] * 12 + [-1] * 8)
    sums = AfterAtSite(step, GROUPED, min_count=20, secure=True).sums(lambda split: cases)
    counts = np.array(sums).reshape(-1, step.length(GROUPED))[:, 0].tolist()
    # 12 and 8 hide each other: together they reach 20.
    assert counts == ([50.0] if step.by == "site" else [50.0, 30.0, 0.0])
    assert not any(AfterAtSite(step, GROUPED, min_count=51).sums(lambda split: cases))
    assert not any(AfterAtSite(step, GROUPED, min_count=None).sums(lambda split: cases))
    lonely = drawn(50, members=[0] * 38 + [1] * 12)
    sums = AfterAtSite(step, GROUPED, min_count=20, secure=True).sums(lambda split: lonely)
    counts = np.array(sums).reshape(-1, step.length(GROUPED))[:, 0].tolist()
    assert counts == ([50.0] if step.by == "site" else [50.0, 0.0, 0.0])


def bins_of(row):
    """Cases of the first and of the second class per bin."""
    cases, positives = np.array(row[1:]).reshape(2, -1)
    return cases - positives, positives


def of_class(positives, n, members=None):
    """``n`` cases, the first so many of them of the second class."""
    cases = drawn(n, members=members)
    return dataclasses.replace(cases, targets=(torch.arange(n) < positives).long())


PLENTY = np.concatenate([[200.0], np.linspace(200, 0, 201)])


def missed_at(min_count=10, **values):
    return AfterAtSite(Conformal(loss="missed", alpha=0.2, **values), GROUPED, min_count=min_count)


def rows_of(site, cases):
    return np.array(site.sums(lambda split: cases)).reshape(-1, site.step.length(GROUPED))


def test_a_groups_few_cases_of_a_class_do_not_follow_by_subtraction():
    young, old = of_class(30, 60), of_class(3, 40)
    parts = zip((young.outputs, young.targets), (old.outputs, old.targets))
    cases = Cases(*(torch.cat(part) for part in parts), torch.tensor([0] * 60 + [1] * 40))
    assert rows_of(missed_at(by="group"), cases)[:, 0].tolist() == [33.0, 0.0, 0.0]
    found = missed_at().adjust(PLENTY, lambda split: cases, "m")
    assert found["n_risk"] == 33 and found["n/young"] == 60 and "own.size/old" in found
    assert not [name for name in found if "risk/" in name]


@pytest.mark.parametrize("positives, n", [(1, 30), (9, 30), (28, 30), (5, 5)])
def test_few_of_a_class_or_few_others_are_not_told(positives, n):
    cases = of_class(positives, n)
    assert not rows_of(missed_at(), cases).any()
    found = missed_at().adjust(PLENTY, lambda split: cases, "m")
    assert found["n"] == n and "own.size" in found
    assert not [name for name in found if "risk" in name or name == "own.threshold"]


@pytest.mark.parametrize("positives, n", [(10, 20), (30, 30)])
def test_enough_of_a_class_and_enough_or_no_others_are_told(positives, n):
    cases = of_class(positives, n)
    assert rows_of(missed_at(), cases)[0, 0] == positives
    found = missed_at().adjust(PLENTY, lambda split: cases, "m")
    assert found["n_risk"] == positives and {"own.risk", "own.threshold"} <= set(found)


def test_nothing_of_one_class_leaves_without_a_minimum():
    cases = of_class(40, 80)
    found = missed_at(min_count=None).adjust(PLENTY, lambda split: cases, "m")
    assert found["n"] == 80 and not [name for name in found if "risk" in name or "own.threshold" in name]


def row_of(cases, **values):
    """What the server sees, or with secure sums only as part of a sum."""
    return AfterAtSite(Recalibrate(), BINARY, **values).sums(lambda split: cases)


def test_of_a_block_only_number_mean_and_spread_are_told():
    """One patient far out on either side, or none: both leave the same."""
    alike = [10] * 5 + [14] * 5, [8, 16] + [11] * 4 + [13] * 4
    labels = torch.tensor([1] * 10 + [0] * 20)
    told = []
    for places in alike:
        z = torch.from_numpy(np.concatenate([(EDGES[places] + EDGES[[p + 1 for p in places]]) / 2, np.zeros(20)]))
        cases = Cases(torch.stack((torch.zeros(30), z), 1).double(), labels, torch.full((30,), -1))
        assert bins_of(row_of(cases, min_count=1))[1].tolist() == np.bincount(places, minlength=24).tolist()
        told.append(row_of(cases))
    assert told[0] == told[1] and bins_of(told[0])[1].sum() == 10


@pytest.mark.parametrize("positives, n, leaves", [(10, 20, True), (9, 30, False), (21, 30, False), (30, 30, True)])
def test_few_of_a_class_do_not_leave_in_the_clear(positives, n, leaves):
    cases = of_class(positives, n)
    assert any(row_of(cases)) == leaves
    assert row_of(cases, secure=True)[0] == n


def test_bins_of_a_groups_few_do_not_follow_by_subtraction():
    young, old = of_class(30, 60), of_class(3, 40)
    parts = zip((young.outputs, young.targets), (old.outputs, old.targets))
    cases = Cases(*(torch.cat(part) for part in parts), torch.tensor([0] * 60 + [1] * 40))
    assert rows_of(AfterAtSite(Recalibrate(by="group"), GROUPED), cases)[:, 0].tolist() == [100.0, 0.0, 0.0]


@pytest.mark.parametrize("n, off", [(60, 0.1), (200, 0.05), (1000, 0.01)])
def test_the_line_of_blocks_is_nearly_that_of_the_exact_bins(n, off):
    """Over four sites; with each block of ten in one bin slopes were off by 0.2 and more."""
    for seed in range(10):
        sites = [drawn(n, seed=4 * seed + k, off=0.3 * k) for k in range(4)]
        coarse, exact = (
            Recalibrate().shared(np.sum([row_of(cases, min_count=least) for cases in sites], axis=0), BINARY)
            for least in (10, 1)
        )
        assert coarse == pytest.approx(exact, abs=off)


@pytest.mark.parametrize("step", STEPS)
class TestAtTheSite:
    def test_sums_of_a_site_are_proper(self, step):
        cases = drawn(50)
        sums = AfterAtSite(step, GROUPED, min_count=20).sums(lambda split: cases)
        assert step.checked(sums, GROUPED, 500) == sums and sums[0] == 50

    def test_what_leaves_is_declared(self, step):
        cases = drawn(400, members=np.arange(400) % 2)
        for secure in (False, True):
            site = AfterAtSite(step, GROUPED, secure=secure)
            found = site.adjust(site.sums(lambda split: cases), lambda split: cases, "m")
            known = {number.name: number for number in step.reports(GROUPED, secure=secure)}
            assert set(found) <= set(known)
            assert all(known[name].low <= value <= known[name].high for name, value in found.items())
            own = [f"own.{name}" for name in step.parameters]
            assert any(name in found for name in own) == (not secure and step.by == "site")

    def test_a_model_that_has_diverged_has_nothing_to_say(self, step):
        cases = dataclasses.replace(drawn(50), outputs=torch.full((50, 2), math.nan, dtype=torch.float64))
        site = AfterAtSite(step, GROUPED)
        sums = site.sums(lambda split: cases)
        assert not any(sums)
        found = site.adjust(sums, lambda split: cases, "m")
        assert set(found) <= {"n", "n_all", "n_all/young", "n_all/old", "n_calibration"}
        # How many they are is the same whatever a model makes of one of them.
        assert found["n"] == found["n_calibration"] == 50

    @pytest.mark.parametrize("factor", [-1.0, 0.5, math.nan, math.inf, 1e12])
    def test_sums_that_no_cases_have_are_refused(self, step, factor):
        cases = drawn(51)
        sums = AfterAtSite(step, GROUPED, min_count=1).sums(lambda split: cases)
        for wrong in ([factor * v for v in sums], sums[:-1], [*sums, 0.0], {"0": 1.0}, [str(v) for v in sums], None):
            with pytest.raises(ValueError):
                step.checked(wrong, GROUPED, 500)


class Sites:
    """A transport over parts of sites; ``answers`` replaces what one of them says."""

    def __init__(self, parts, cases, answers=()):
        self.parts, self.cases, self.answers = parts, cases, dict(answers)

    def sites(self):
        return sorted(self.parts)

    def exchange(self, instructions):
        for name, one in instructions.items():
            if (name, one.task) in self.answers:
                if (answer := self.answers[name, one.task]) is not None:
                    yield answer
                continue
            part, own = self.parts[name], partial(self.own, name)
            if one.task == "calibrate":
                yield Answer(name, one.round.number, sums=part.sums(own))
            else:
                total = PlainAtSite().total(one, part.terms)
                yield Answer(name, one.round.number, adjusted=part.adjust(total, own, "m"))

    def own(self, name, split):
        return self.cases[name]


def federated(step, answers=(), **values):
    parts = {name: AfterAtSite(step, BINARY, **values) for name in "abc"}
    cases = {name: drawn(40 + 20 * i, seed=i, off=i) for i, name in enumerate("abc")}
    after = AfterAtServer("recalibrate", step, BINARY)
    transport = Sites(parts, cases, answers)
    ended = Ended(transport, Plain(), dict.fromkeys("abc", {}), {}, Round(2, 2), dict.fromkeys("abc", 100))
    return after.run(ended), cases


@each("step", [Recalibrate(), Conformal()])
@each(
    "task, answer, code",
    [
        ("calibrate", None, "no_answer"),
        ("calibrate", Answer("b", 2, error="DataError"), "site_error"),
        ("calibrate", Answer("b", 1, sums=[0.0]), "stale"),
        ("calibrate", Answer("b", 2, sums=[0.0]), "sums"),
        ("calibrate", Answer("b", 2, sums=[1001.0] + [0.0] * 10), "sums"),
        ("adjust", None, "no_answer"),
        ("adjust", Answer("b", 2, adjusted={"age": 91.0}), "scalar_unknown"),
        ("adjust", Answer("b", 2, adjusted={"shared.brier": 1e9, "shared.risk": 1e9}), "scalar_unknown"),
        ("adjust", Answer("b", 2, adjusted={"n": math.nan}), "scalar_nonfinite"),
        ("adjust", Answer("b", 2, adjusted={"n": -1.0}), "scalar_range"),
        ("adjust", Answer("b", 2, adjusted={"n": 1001.0}), "count_mismatch"),
        ("adjust", Answer("b", 2, adjusted={"n": 20.5}), "count_mismatch"),
        ("adjust", Answer("b", 2, adjusted={"n": 20.0, "n_calibration": 1e8}), "count_mismatch"),
    ],
)
def test_a_site_that_lies_after_the_last_round_is_left_out_alone(step, task, answer, code):
    (found, rejections), _ = federated(step, {("b", task): answer})
    assert [(r.site, r.code) for r in rejections] == [("b", code)] and "91" not in rejections[0].detail
    assert set(found["sites"]) == {"a", "c"}
    assert found["sites"]["a"]["n_all"] == (120 if task == "calibrate" else 180)


@pytest.mark.parametrize(
    "numbers",
    [
        {"n": 30.0, "n/young": 1e8},
        {"n": 30.0, "n/young": 16.0, "n/old": 15.0},
        {"n": 30.0, "n_risk": 31.0},
        {"n": 30.0, "n/young": 12.0, "n_risk/young": 13.0},
        {"n": 30.0, "n_risk/young": 12.0},
    ],
)
def test_parts_that_are_more_than_the_whole_are_refused(numbers):
    """They would weigh in the mean of a group."""
    after = AfterAtServer("conformal", Conformal(), GROUPED)
    found, _, rejections = after._inspect([Answer("a", 2, adjusted=numbers)], Round(2, 2), {"a": 100})
    assert not found and [r.code for r in rejections] == ["count_mismatch"]
    fine = {"n": 30.0, "n/young": 15.0, "n/old": 15.0, "n_risk": 30.0, "n_risk/old": 15.0, "own.risk/old": 0.5}
    assert after._inspect([Answer("a", 2, adjusted=fine)], Round(2, 2), {"a": 100}) == ({"a": fine}, {}, [])


def test_what_holds_for_all_is_the_servers_own_finding():
    """Whatever a site says of it."""
    (honest, _), _ = federated(Recalibrate())
    lie = {**honest["sites"]["a"], "shared.slope": -50.0, "n_all": 1.0}
    (found, rejections), _ = federated(Recalibrate(), {("a", "adjust"): Answer("a", 2, adjusted=lie)})
    assert not rejections and found["sites"]["a"] == lie and found["shared"] == honest["shared"]
    assert {"shared.slope", "shared.intercept", "n_all"} == set(found["shared"]) and found["shared"]["n_all"] == 180


@pytest.mark.parametrize("step", [Recalibrate(), Conformal()])
class TestAtTheServer:
    def test_the_sums_of_all_reach_all(self, step):
        (found, rejections), cases = federated(step, min_count=1)
        together = Cases(
            *(torch.cat(parts) for parts in zip(*((c.outputs, c.targets, c.members) for c in cases.values())))
        )
        expected = step.shared(step.sums(together, everyone(together), BINARY), BINARY)
        assert not rejections and set(found["sites"]) == set("abc")
        for numbers in found["sites"].values():
            assert numbers["n_all"] == 180
            assert {name: numbers[f"shared.{name}"] for name in expected} == pytest.approx(expected)

    def test_more_cases_than_can_be_are_refused(self, step):
        most = 1000.0
        row = [most + 1] + [0.0] * (step.terms(BINARY) - 1)
        with pytest.raises(ValueError):
            step.checked(row, BINARY, most)


class TestConfiguration:
    def test_a_run_without_a_step_says_nothing_of_one(self):
        assert not {"after", "after_settings"} & make_config("fedavg", "heart").to_json().keys()

    def test_settings_have_an_owner_and_survive_a_file(self):
        values = {"after": "conformal", "after.alpha": "0.2", "loss": "missed"}
        config = make_config("fedavg", "heart", values=values)
        assert (config.after_step.alpha, config.after_step.loss) == (0.2, "missed")
        assert RunConfig.from_json(config.to_json()) == config
        assert with_step(make_config("fedavg", "heart"), "conformal", {"alpha": 0.2, "loss": "missed"}) == config

    @each(
        "task, values, words",
        [
            ("heart", {"after": "magic"}, "after: expected one of none, recalibrate, conformal"),
            ("heart", {"after.alpha": 0.1}, "after.alpha"),
            ("heart", {"after": "conformal", "after.alpha": 0.9}, "after.alpha: expected a number from 0.001 to 0.5"),
            ("heart", {"after": "conformal", "after.by": "group"}, "known of a new patient"),
            ("heart", {"after": "conformal", "after.by": "group", "group_by": "none"}, "the run has no groups"),
            ("brain-seg:small", {"after": "recalibrate"}, "masks"),
            ("digits:small", {"after": "conformal", "after.loss": "missed"}, "two classes"),
        ],
    )
    def test_what_does_not_fit_is_refused_in_a_line(self, task, values, words):
        with pytest.raises(UserError) as error:
            make_config("fedavg", task, values=values)
        assert words in str(error.value) and "\n" not in str(error.value)
