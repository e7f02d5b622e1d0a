# SPDX-License-Identifier: Apache-2.0
"""What columns say of hand-made reports, and how cells come of several seeds."""

import dataclasses
import math

import pytest

from fairflare_lab.papers.declaration import Block, Column, Data, Row, Table
from fairflare_lab.papers.measures import Beside, Run, evaluated
from fairflare_lab.papers.tabulate import Used, differences, tabulated
from fairflare_lab.studies.paper_list import Speed, in_words, relative_cost, took

DATA = Data("d", "The data", "support2:default", needs=("file",), stand_in="support2:default", words="other patients")


def site(value, weight=0.5, kind="clean", personal=None):
    held = {"metrics": {"auc": value}, "weight": [weight], "kind": kind}
    return {**held, "personal_metrics": None if personal is None else {"auc": personal}}


def run(sites, scores=None, **detail):
    known = {"headline": "auc", "higher_is_better": True, "groups": None, "notes": [], "rounds": [], **detail}
    return Run({"sites": sites, "rounds": 4, "detail": known}, scores or {})


def value(name, one, beside=None, **given):
    return evaluated(name, one, beside or Beside(), given)


def test_sites_are_measured_on_their_own_models_where_they_have_any():
    one = run({"a": site(0.5), "b": site(0.7, personal=0.9)})
    assert value("sites", one) == {"a": [0.5], "b": [0.9]}
    assert value("over-sites", one, which="worst") == {"": [0.5]}
    assert value("over-sites", one, which="std", ddof=1)[""][0] == pytest.approx(0.4 / math.sqrt(2))
    assert value("over-sites", one, which="std")[""][0] == pytest.approx(0.2)


def test_domains_are_shared_test_sets_over_the_last_rounds_and_kinds_of_sites_without_any():
    scores = {3: {"x": {"auc": 0.4}, "y": {"auc": 1.0}}, 4: {"x": {"auc": 0.6}}}
    assert value("domains", run({"a": site(0.5)}, scores)) == {"x": [0.5], "y": [1.0]}
    assert value("over-domains", run({}, scores), which="std")[""][0] == pytest.approx(0.5 / math.sqrt(2))
    kinds = run({"a": site(0.2, kind="k"), "b": site(0.4, kind="k"), "c": site(0.9, kind="other")})
    assert value("domains", kinds)["k"] == [pytest.approx(0.3)] and value("domains", kinds)["other"] == [0.9]


def test_conditions_keep_each_of_the_last_rounds():
    names = {"names": {"clean": "clean", "corrupted": "noise 3"}}
    scores = {t: {"clean": {"auc": 0.8 + t / 100}, "noise 3": {"auc": 0.6}} for t in (1, 2)}
    sites = {f"s{k}": site(0.5, kind="clean" if k < 4 else "noise") for k in range(5)}
    one = run(sites, scores, test_sets={"last": names})
    assert value("condition", one, which="clean", metric="auc")[""] == [pytest.approx(0.81), pytest.approx(0.82)]
    assert value("condition-std", one, metric="auc")[""] == [pytest.approx(0.4 * gap) for gap in (0.21, 0.22)]


def test_agreements_compare_with_solo_and_with_leaving_sites_out():
    own, alone = run({"a": site(0.5), "b": site(0.7)}), run({"a": site(0.4), "b": site(0.8)})
    assert value("like-alone", own, Beside({"solo": alone}), which="pearson_x100")[""] == [pytest.approx(100)]
    without = {"a": run({"a": site(0.3), "b": site(0.3)}), "b": run({"a": site(0.5), "b": site(0.5)})}
    beside = Beside(without=without, full=own)
    changes = value("without", own, beside, change=True)
    assert changes == {"a": [pytest.approx(-0.3)], "b": [pytest.approx(-0.1)]}
    assert value("without", own, beside)["No"] == [pytest.approx(0.6)]
    assert value("shares", own, beside) == {"a": [pytest.approx(0.75)], "b": [pytest.approx(0.25)]}
    assert value("like-left-out", own, beside, which="euclid")[""] == [pytest.approx(0.25 * math.sqrt(2))]


def test_what_a_run_lacks_leaves_a_cell_empty():
    empty = run({"a": site(None)}, traffic={"up": None})
    assert value("over-groups", empty, which="disparity") == {"": []}
    assert value("opportunity", empty, which="gap") == {"": []}
    assert value("bytes", empty) == {"": []}
    assert value("sites", empty) == {"a": []}


def table(**more):
    columns = (Column("site", "site", "sites"), Column("mean", "Mean", "over-sites", {"which": "mean"}))
    rows = (Row("one", "One", "fedavg"), Row("two", "Two", "fedism"))
    return Table("1", "What it shows", rows, (Block(DATA, columns),), **more)


def shown(stands_in, published=None, **more):
    runs = {
        "one": {0: run({"a": site(0.5), "b": site(0.7)}), 1: run({"a": site(0.6), "b": site(0.8)})},
        "two": {0: run({"a": site(0.7), "b": site(0.7)}), 1: run({"a": site(0.7), "b": site(0.7)})},
    }
    used = Used(DATA, "support2:default", stands_in, runs)
    return tabulated(table(**more), "toy-1", [used], published)[0]


def test_a_cell_is_the_mean_over_seeds_with_its_spread():
    found = shown(True)
    assert [column.key for column in found.columns] == ["site.a", "site.b", "mean"]
    cell = found.rows[0].cells["mean"]
    assert cell.value == pytest.approx(0.65) and cell.n == 2
    assert cell.spread == pytest.approx(0.1 / math.sqrt(2)) and cell.low < 0.65 < cell.high
    assert shown(True, ddof=0).rows[0].cells["mean"].spread == pytest.approx(0.05)
    assert shown(True, spread="").rows[0].cells["mean"].spread is None


def small(rows, columns, runs, **more):
    used = Used(DATA, "support2:default", True, {key: {0: one} for key, one in runs.items()})
    toy = Table("1", "What it shows", rows, (Block(DATA, columns),), seeds=(0,), **more)
    return tabulated(toy, "toy-1", [used])


def test_the_best_of_several_settings_is_shown_and_all_are_kept():
    a, b = (
        Column(k, k, "over-sites", {"which": w}, better)
        for k, w, better in (("m", "mean", "higher"), ("g", "std", "lower"))
    )
    rows = (Row("q1", "q = 1", "qffl:q=1", one_of="q-FFL"), Row("q2", "q = 2", "qffl:q=2", one_of="q-FFL"))
    runs = {"q1": run({"a": site(0.5), "b": site(0.7)}), "q2": run({"a": site(0.55), "b": site(0.55)})}
    shown, tried = small(rows, (a, b), runs, choose="m")
    (row,) = shown.rows
    assert row.title == "q-FFL" and len(tried.rows) == 2
    assert row.cells["m"].value == pytest.approx(0.6) and row.cells["g"].value == pytest.approx(0.1)
    (each_column, _) = small(rows, (a, b), runs)
    assert each_column.rows[0].cells["m"].value == pytest.approx(0.6)
    assert each_column.rows[0].cells["g"].value == pytest.approx(0)


def test_methods_stand_across_where_a_paper_prints_them_so():
    columns = (Column("m", "Mean", "over-sites", {"which": "mean"}), Column("g", "Std", "over-sites", {"which": "std"}))
    rows = tuple(Row(f"{k}-{a}", k, "fedavg", group=f"alpha {a}") for k in ("one", "two") for a in ("10", "5"))
    runs = {row.key: run({"a": site(0.5), "b": site(0.7 if "10" in row.key else 0.9)}) for row in rows}
    (shown,) = small(rows, columns[:1], runs, transposed=True)
    assert [c.title for c in shown.columns] == ["one", "two"] and [r.title for r in shown.rows] == [
        "alpha 10",
        "alpha 5",
    ]
    assert shown.rows[1].cells["c1"].value == pytest.approx(0.7)
    (shown,) = small(rows[::2], columns, runs, transposed=True)
    assert [r.title for r in shown.rows] == ["Mean alpha 10", "Std alpha 10"]


def test_clients_stand_across_in_one_methods_table_and_a_last_column_is_the_mean_of_all():
    rows, one = (Row("one", "one", "fedavg"),), {"one": run({"b": site(0.7), "a": site(0.5)})}
    columns = (Column("s", "Dice", "sites", order=("", "a")), Column("n", "Again", "sites", scale=100))
    (shown,) = small(rows, columns, one, transposed=True)
    assert [c.title for c in shown.columns] == ["b", "a"] and [r.title for r in shown.rows] == ["Dice", "Again"]
    assert [row.cells["c1"].value for row in shown.rows] == [0.5, 0.5] and shown.rows[1].cells["c1"].form.scale == 100
    (shown,) = small(rows, columns[:1], one, mean="Avg")
    assert shown.columns[-1].title == "Avg" and shown.rows[0].cells["mean"].value == pytest.approx(0.6)
    (shown,) = small((*rows, Row("two", "two", "afl")), columns[:1], one, mean="Avg")
    assert shown.rows[1].cells["mean"].value is None


def test_curves_over_rounds_and_differences_from_a_reference():
    names = {"last": {"names": {"clean": "clean", "corrupted": "noise 3"}}}
    scores = {t: {"clean": {"auc": 0.8 + t / 100}, "noise 3": {"auc": 0.6}} for t in (1, 2)}
    one = run({}, scores, test_sets=names)
    other = run({}, {t: {"clean": {"auc": 0.8}, "noise 3": {"auc": 0.5}} for t in (1, 2)}, test_sets=names)
    beside = Beside({"fedavg": other})
    found = value("condition", one, beside, which="average", metric="auc", than="fedavg")[""]
    assert found == [pytest.approx(0.055), pytest.approx(0.06)]
    assert value("condition-rounds", one, which="clean", metric="auc") == {"1": [0.81], "2": [pytest.approx(0.82)]}
    rows = [{"round": t, "metric": {"a": 0.1 * t, "b": 0.3}, "notes": {"x": {"a": t / 20}}} for t in range(1, 13)]
    log = run({"a": site(0.5), "b": site(0.5)}, rounds=rows)
    assert value("rounds", log, which="std")["1"] == [pytest.approx(0.1)]
    assert evaluated("note-rounds", log, Beside(), {"name": "x", "site": 1, "of_one": True})["2"] == [0.9]
    heat = evaluated("note-rounds", log, Beside(), {"name": "x"})
    assert {key.partition(",")[0] for key, found in heat.items() if found} == {f"round {t}" for t in (2, 5, 7, 10, 12)}


def test_differences_from_the_first_row_are_paired_by_seed():
    runs = {
        "fedavg": {0: run({"a": site(0.5), "b": site(0.7)}), 1: run({"a": site(0.6), "b": site(0.8)})},
        "two": {0: run({"a": site(0.7), "b": site(0.7)}), 1: run({"a": site(0.8), "b": site(0.9)})},
    }
    used, first = Used(DATA, "support2:default", True, runs), Row("fedavg", "FedAvg", "fedavg")
    toy = dataclasses.replace(table(), rows=(first, table().rows[1]))
    found = differences(toy, "toy-1-differences", [used])
    assert [column.key for column in found.columns] == ["mean"] and [row.key for row in found.rows] == ["two"]
    cell = found.rows[0].cells["mean"]
    assert cell.value == pytest.approx(0.125) and cell.low < 0.1 < 0.15 < cell.high and cell.spread is None
    alone = Used(DATA, "support2:default", True, {key: {0: seeds[0]} for key, seeds in runs.items()})
    assert differences(toy, "x", [alone]) is None and differences(table(), "x", [used]) is None


def test_printed_numbers_stand_beside_the_papers_own_data_only():
    printed = {("one", "mean"): (0.71, 0.02)}
    cell = shown(False, printed).rows[0].cells["mean"]
    assert (cell.published, cell.published_spread) == (0.71, 0.02)
    assert shown(True, printed).rows[0].cells["mean"].published is None
    assert "not here" in shown(True).caption and "other patients" in shown(True).caption
    assert "user's copy" in shown(False).caption


def test_times_are_those_of_finished_runs_where_there_are_any():
    rows = {"fedavg": {"cost": 1.0, "trainer": "sgd"}, "sam": {"cost": 2.0, "trainer": "sam"}}
    assert relative_cost("sam", rows) == 2 and relative_cost("fedavg:trainer=sam", rows) == 2
    known = Speed({"digits:small": {"fedavg": (3.0, 5.0)}})
    assert known.seconds("digits:small", "fedavg", 10, 1.0) == 35
    assert known.seconds("digits:small", "sam", 10, 2.0) == 65
    assert Speed().seconds("nothing:known", "fedavg", 10, 1.0) is None
    assert in_words(None) == "time not measured" and in_words(600) == "about 10 min"
    timing = {"phases": {"exchange": 8.0}, "wall_seconds": 10.0}
    report = {"rounds": 4, "detail": {"timing": timing, "provenance": {"resumed_after": []}}}
    assert took(report) == (2.0, 2.0)
    report["detail"]["provenance"]["resumed_after"] = [1]
    assert took(report) is None
