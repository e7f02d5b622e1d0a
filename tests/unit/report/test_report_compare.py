# SPDX-License-Identifier: Apache-2.0
"""Comparison of methods over matched seeds.

Hand-derived: the made-up run has mean 2.3 / 3, worst 0.6 and gap 0.3. "B" is shifted by 0.02 with seed 0 and by 0.04
with seed 1, so its paired differences in mean and worst are 0.02 and 0.04: mean 0.03, sample std 0.02 / sqrt(2), half
width 12.7062 * 0.01 = 0.127062 (t quantile for 1 degree of freedom); gap and spread do not differ.
"""

import json

import pytest

from fairflare.core.errors import UserError
from fairflare.report.compare import compare, table
from fairflare.report.sections import quantities


@pytest.fixture
def runs(make_run):
    return [make_run("A", 0), make_run("A", 1), make_run("B", 0, 0.02), make_run("B", 1, 0.04)]


def test_means_over_seeds(runs):
    found = compare(runs)
    a, b = found["methods"]
    assert (found["seeds"], found["reference"], a["label"], b["label"]) == ([0, 1], "A", "A", "B")
    assert a["mean"]["mean"] == pytest.approx(2.3 / 3)
    assert b["worst"]["mean"] == pytest.approx(0.63)
    assert b["gap"]["mean"] == pytest.approx(0.3)
    assert (a["clean"]["mean"], a["corrupted"]["mean"]) == pytest.approx((0.9, 0.65))
    assert [row["worst_site"] for row in a["runs"]] == ["site-10", "site-10"]


def test_paired_differences_from_the_first_method(runs):
    a, b = compare(runs)["methods"]
    paired = b["versus_first"]["worst"]
    assert a["versus_first"] is None
    assert [pair["difference"] for pair in paired["pairs"]] == pytest.approx([0.02, 0.04])
    assert (paired["wins"], paired["losses"], paired["n"]) == (2, 0, 2)
    assert paired["mean"] == pytest.approx(0.03)
    assert paired["high"] == pytest.approx(0.03 + 0.127062, abs=1e-6)


def test_a_smaller_gap_is_a_win(inputs, make_run):
    narrow = make_run("B", 0)
    narrow["fairness"] |= {"gap": 0.1, "std": 0.5}
    (_, b) = compare([make_run("A", 0), narrow])["methods"]
    assert (b["versus_first"]["gap"]["wins"], b["versus_first"]["gap"]["losses"]) == (1, 0)
    assert (b["versus_first"]["std"]["wins"], b["versus_first"]["std"]["losses"]) == (0, 1)


def test_swapping_the_methods_turns_the_differences(runs):
    forward = compare(runs)["methods"][1]["versus_first"]["mean"]
    back = compare(runs[2:] + runs[:2])["methods"][1]["versus_first"]["mean"]
    assert back["mean"] == pytest.approx(-forward["mean"])
    assert (back["wins"], back["losses"]) == (forward["losses"], forward["wins"])


ABSENT = ("calibration", "brier", "ece_", "group", "personal", "shared", "domain", "solo", "eo_gap", "odds", "parity")


def test_a_method_against_itself_differs_by_nothing(make_run):
    (_, twin) = compare([make_run("A", 0), make_run("A again", 0)])["methods"]
    for quantity in quantities():
        # These runs tell no groups or domains apart, say nothing of calibration, have no personal models and no solo.
        nothing = None if any(word in quantity for word in ABSENT) else 0
        assert (twin["versus_first"][quantity]["mean"], twin["versus_first"][quantity]["wins"]) == (nothing, 0)


def test_only_seeds_that_every_method_has_count(runs, make_run):
    found = compare([*runs, make_run("A", 7, -0.5)])
    assert found["seeds"] == [0, 1]
    assert found["methods"][0]["worst"]["mean"] == pytest.approx(0.6)
    assert any("7" in note for note in found["notes"])


def test_one_seed_has_no_interval(make_run):
    found = compare([make_run("A", 3), make_run("B", 3, 0.1)])
    assert found["methods"][1]["versus_first"]["mean"]["low"] is None
    assert found["methods"][0]["mean"]["high"] is None
    json.dumps(found, allow_nan=False)


def test_settings_tell_runs_of_one_title_apart(make_run):
    found = compare([make_run("A", 0, settings={"rule": {"q": q, "b": 1}}) for q in (1.0, 2.0)])
    assert [method["label"] for method in found["methods"]] == ["A, q=1.0", "A, q=2.0"]


def test_unequal_training_is_noted(make_run):
    found = compare([make_run("A", 0), make_run("B", 0, training={"rounds": 9, "lr": 0.001})])
    assert "Training differs in rounds: A: 4, B: 9." in found["notes"]


def test_failed_runs_are_left_out_with_a_note(make_run, summary, failed_inputs):
    from fairflare.report.summary import summarise

    found = compare([make_run("A", 0), summarise(**failed_inputs)])
    assert [method["label"] for method in found["methods"]] == ["A"]
    assert "FedISM+ (S) (seed 0) is left out: it is failed." in found["notes"]


@pytest.mark.parametrize(
    ("change", "message"),
    [({"task": "isic"}, "the task of B"), ({"options": {"severity": 1}}, "the options of the task of B")],
)
def test_runs_on_other_data_are_refused(make_run, change, message):
    with pytest.raises(UserError, match=message) as refusal:
        compare([make_run("A", 0), make_run("B", 0, **change)])
    assert "\n" not in str(refusal.value)


def test_other_training_data_with_one_seed_are_refused(make_run):
    other = make_run("B", 0)
    other["sites"][0]["n_examples"] = 99
    with pytest.raises(UserError, match="training data"):
        compare([make_run("A", 0), other])
    other["seed"] = 1
    compare([make_run("A", 0), make_run("A", 1) | {"sites": other["sites"]}, make_run("B", 0), other])


def test_what_a_plan_reads_off_a_draw_may_differ_over_seeds_alone(make_run):
    options = [{"severity": 3, "data_seed": seed, "scaling": f"of draw {seed}"} for seed in (0, 1)]
    runs = [make_run(name, seed, options=options[seed]) for name in "AB" for seed in (0, 1)]
    assert compare(runs)["seeds"] == [0, 1]
    with pytest.raises(UserError, match="the options of the task of B"):
        compare([*runs[:3], make_run("B", 1, options=options[1] | {"scaling": "another"})])


def test_a_plan_of_each_draw_makes_no_other_method_of_a_seed(make_run):
    def made(title, seed, decay):
        training = {"rounds": 4, "weight_decay": decay}
        return make_run(title, seed, options={"datalists": "lists", "data_seed": seed}, training=training)

    found = compare([made(title, seed, 0.1 + 0.01 * seed) for title in "AB" for seed in (0, 1)])
    assert [method["label"] for method in found["methods"]] == ["A", "B"] and found["seeds"] == [0, 1]
    assert "Seeds differ in what is planned from their training examples: weight_decay." in found["notes"]
    apart = compare([made("A", 0, 0.1), made("A", 0, 0.2), made("A", 1, 0.1), made("A", 1, 0.2)])
    assert [method["label"] for method in apart["methods"]] == ["A, weight_decay=0.1", "A, weight_decay=0.2"]


def test_settings_of_the_run_tell_apart_what_is_otherwise_alike(inputs, make_run):
    def made(title, seed, **settings):
        return make_run(title, seed, about=inputs["config"]["about"] | {"run_settings": {"grace": 0.0, **settings}})

    runs = [made("A", seed, robust=level) for level in ("bounded", "off") for seed in (0, 1)]
    found = compare([*runs, made("B", 0, robust="mixed"), made("B", 1, robust="mixed", grace=9.0)])
    assert [method["label"] for method in found["methods"]] == ["A, robust=bounded", "A, robust=off", "B"]
    with pytest.raises(UserError, match="given twice"):
        compare([*runs, runs[0]])


def test_the_same_run_twice_is_refused(make_run):
    with pytest.raises(UserError, match="given twice"):
        compare([make_run("A", 0), make_run("A", 0)])


def test_no_shared_seed_is_refused(make_run):
    with pytest.raises(UserError, match="no seed is shared by all of A and B"):
        compare([make_run("A", 0), make_run("B", 1)])


@pytest.mark.parametrize("runs", [[], [{}], [{"format": 1, "method": "fedavg"}], [{"format": 99, "fairness": {}}]])
def test_what_is_no_report_is_refused(runs):
    with pytest.raises(UserError, match="compare: "):
        compare(runs)


def test_table_rows_share_their_columns(runs):
    rows = table(compare(runs))
    assert rows[0]["mean"] == "0.767 ± 0.000"
    assert rows[0]["wins"] == "–"
    assert (rows[1]["worst vs first"], rows[1]["wins"]) == ("+0.030", "2/2")
    assert list(rows[0]) == list(rows[1])
    assert all(isinstance(value, str) for row in rows for value in row.values())


def test_table_leaves_out_what_no_run_has(make_run):
    run = make_run("A", 0)
    none = {"clean": None, "corrupted": None}
    run["test_sets"] = {"rows": [], "clean_mean": {}, "corrupted_mean": {}, "last": none}
    assert "clean" not in table(compare([run]))[0]


def test_settings_that_tell_methods_apart_are_named_shortly(make_run):
    pairs = [(0.1, 0.1), (0.2, 0.2), (0.3, 0.1)]
    each = [{"trainer": {"rho_max": a}, "probe": {"sharpness": {"rho_max": b}}, "rule": {"q": 1.0}} for a, b in pairs]
    found = compare([make_run("A", 0, settings=settings) for settings in each])
    assert [method["label"] for method in found["methods"]] == [
        "A, rho_max=0.1",
        "A, rho_max=0.2",
        "A, probe.sharpness.rho_max=0.1, trainer.rho_max=0.3",
    ]


def test_runs_that_differ_in_the_server_optimizer_alone_are_two_methods(make_run):
    runs = [make_run("A", 0), make_run("A", 0)]
    runs[1]["method"]["server_optimizer"] = "yogi"
    labels = [method["label"] for method in compare(runs)["methods"]]
    assert labels == ["A, server_optimizer=none", "A, server_optimizer=yogi"]
