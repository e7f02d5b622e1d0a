# SPDX-License-Identifier: Apache-2.0
"""What a comparison says beside means: sites, metrics, domains, last rounds, joining, cost, Pareto front."""

import copy
import csv
import io
import itertools
import json
import re

import pytest

from fairflare.core.errors import UserError
from fairflare.report.compare import compare, costs, dominated_by, last_rounds, run_row
from fairflare.report.compare_page import comparison_markdown as as_markdown
from fairflare.report.compare_page import differences, front_figure, render_compare
from fairflare.report.compare_tables import MOST_PAIRS, WHOLE, comparison_tables, main_table, statistics
from fairflare.report.compare_tables import comparison_csv as quantities_as_csv
from fairflare.report.fairness import client_std, gini, variance
from fairflare.report.frames import as_csv, as_latex
from fairflare.report.groups import demographic_parity
from fairflare.report.sections import quantities
from fairflare.report.shared_sets import domain_values
from golden import folder as golden_folder

LAST5 = json.loads((golden_folder() / "metrics.json").read_text())["fedism_last5"]


@pytest.fixture
def runs(make_run):
    return [
        make_run(title, seed, shift + 0.01 * seed) for title, shift in (("A", 0.0), ("B", 0.05)) for seed in (0, 1, 2)
    ]


def test_gini_and_variance():
    assert gini({"a": 0.5, "b": 0.5}) == 0.0 == gini({"a": 0.0, "b": 0.0})
    assert gini({"a": 0.0, "b": 1.0}) == pytest.approx(0.5)
    values = {"a": 0.1, "b": 0.4, "c": 0.7, "d": 0.2}
    pairs = sum(abs(x - y) for x, y in itertools.product(values.values(), repeat=2))
    assert gini(values) == pytest.approx(pairs / (2 * 16 * 0.35))
    assert gini({"a": -1.0}) is None is gini({})
    assert variance({"a": 0.0, "b": 1.0}) == 0.25 and variance({}) is None


def test_demographic_parity_follows_from_group_accuracies():
    """Of 10 men with the disease 8 are found and of 30 without it 24 cleared: 14 of 40 are said to have it."""
    rates = {"no": {"f": 0.5, "m": 0.8}, "yes": {"f": 0.5, "m": 0.8, "x": 1.0}}
    sizes = {"no": {"f": 10, "m": 30}, "yes": {"f": 10, "m": 10, "x": 4}}
    assert demographic_parity(rates, sizes, ("no", "yes")) == pytest.approx(0.5 - 14 / 40)
    assert demographic_parity(rates, sizes, ("a", "b", "c")) is None
    assert demographic_parity({"no": {"f": 0.5}, "yes": {"f": 0.5}}, sizes, ("no", "yes")) is None


def _with_groups(run):
    rows = [("no, f", 10, 0.5), ("no, m", 30, 0.8), ("yes, f", 10, 0.5), ("yes, m", 10, 0.9)]
    classes = [{"class": "no", "gap": 0.3}, {"class": "yes", "gap": 0.4}]
    run["task"]["classes"] = ["no", "yes"]
    run["groups"] = {
        "by": "label+sex",
        "rows": [{"group": name, "n": n, "value": value} for name, n, value in rows],
        "disparity": {"sample": 0.2},
        "worst": {"value": 0.5},
        "equal_opportunity": {"gap": 0.4, "classes": classes},
    }
    return run


def test_group_gaps_of_a_run(make_run):
    row = run_row(_with_groups(make_run()))
    assert (row["eo_gap"], row["equalised_odds"]) == (0.4, 0.4)
    assert row["demographic_parity"] == pytest.approx(0.5 - (6 + 9) / 40)
    unknown = _with_groups(make_run())
    unknown["groups"]["equal_opportunity"]["classes"][0]["gap"] = None
    assert run_row(unknown)["equalised_odds"] is None, "half of it is no upper bound"


def test_sites_and_every_metric(runs):
    method = compare(runs)["methods"][1]["detail"]
    assert list(method["metrics"]) == ["balanced_accuracy", "loss"]
    assert method["sites"]["balanced_accuracy"]["site-1"]["mean"] == pytest.approx(0.96)
    assert method["sites"]["balanced_accuracy"]["site-1"]["n"] == 3
    assert method["metrics"]["loss"]["worst"]["mean"] == pytest.approx(0.4), "of a loss the largest is the worst"
    assert method["test_sets"]["noise 3"]["balanced_accuracy"]["mean"] == 0.5


def test_domains_are_those_of_test_sets_or_of_sites(make_run):
    run = make_run()
    assert domain_values(run) == {}
    run["task"]["domains"] = {"site-1": "x", "site-2": "x", "site-10": "y"}
    assert domain_values(run) == {"x": pytest.approx(0.85), "y": pytest.approx(0.6)}
    found = compare([run])["methods"][0]
    assert found["domain_mean"]["mean"] == pytest.approx(0.725) and found["detail"]["domains_of"] == "sites"
    assert found["domain_std"]["mean"] == pytest.approx(0.125)
    assert found["domain_std_sample"]["mean"] == pytest.approx(0.125 * 2**0.5)
    run["task"]["domains"] = {"site-1": "clean", "site-2": "clean", "site-10": "noise 3"}
    assert domain_values(run) == {"clean": 0.9, "noise 3": 0.5}
    assert compare([run])["methods"][0]["detail"]["domains_of"] == "shared test sets"


def _last5(make_run, seed):
    run = make_run("A", seed)
    kinds = ("clean", "corrupted")
    values = {kind: [{run["headline"]: row[seed]} for row in LAST5[kind]] for kind in kinds}
    run["test_sets"]["last"] |= {"values": values, "clean": None, "corrupted": None}
    return run


def test_fifteen_values_as_the_paper_prints_them(make_run):
    found = last_rounds([_last5(make_run, seed) for seed in range(3)])
    for kind, name in (("clean", "clean"), ("corrupted", "corr"), ("average", "avg")):
        assert found[kind]["mean"] == pytest.approx(LAST5[f"{name}_mean"], abs=1e-12)
        assert found[kind]["sd"] == pytest.approx(LAST5[f"{name}_std"], abs=1e-12)
        assert found[kind]["n"] == 15 and found[kind]["sd_sample"] > found[kind]["sd"]
    flat = [list(itertools.chain(*LAST5[kind])) for kind in ("clean", "corrupted")]
    assert [client_std(*pair) for pair in zip(*flat)] == pytest.approx(LAST5["client_std_16_4"], abs=1e-12)


def test_cost_per_round(make_run):
    run = make_run()
    assert costs(run)["seconds"] == pytest.approx(2.5) and costs(run)["bytes_up"] is None
    run["traffic"] = {"down": 400, "up": 200}
    assert costs(run) == {"bytes_down": 100.0, "bytes_up": 50.0, "seconds": pytest.approx(2.5)}
    run["rounds_done"] = 0
    assert set(costs(run).values()) == {None}


def test_joining_is_compared_with_training_alone(make_run, runs):
    alone = [make_run("solo", seed, 0.02) for seed in (0, 1, 2)]
    found = compare([*runs, *alone])
    joining = found["methods"][1]["detail"]["joining"]
    assert found["methods"][2]["detail"]["joining"] is None and joining["lose"] == 0
    assert joining["sites"]["site-1"]["mean"] == pytest.approx(0.04)
    assert joining["sites"]["site-1"]["low"] > 0 and joining["sites"]["site-1"]["p_holm"] > 0.05
    assert joining["sites"]["site-1"]["verdict"] == "cannot be told"
    assert found["methods"][0]["variance_vs_solo"]["mean"] == pytest.approx(1.0), "every site moves alike here"
    assert compare(runs)["methods"][0]["variance_vs_solo"]["mean"] is None
    own = copy.deepcopy(alone)
    for run in own:
        run["personal"] = {
            "rows": [{"site": "site-1", "personal": 0.1}],
            "personal": {"mean": None, "worst": {"value": None}, "std": None},
        }
    served = compare([*runs, *own])["methods"][1]["detail"]["joining"]["sites"]["site-1"]
    assert served["mean"] == pytest.approx(0.9 + 0.06 - 0.1), "a site's own model is what serves it"


def test_dominated_points():
    points = {"a": (0.8, 0.5), "b": (0.7, 0.6), "c": (0.7, 0.5), "d": (0.8, 0.5), "e": (None, 0.9)}
    found = dominated_by(points, (True, True))
    assert found == {"a": [], "b": [], "c": ["a", "b", "d"], "d": []}
    assert dominated_by(points, (False, False)) == {"a": ["c"], "b": ["c"], "c": [], "d": ["c"]}


def test_the_front_of_a_comparison(runs, make_run):
    found = compare(runs, ("mean", "gap"))
    rows = {row["label"]: row["dominated_by"] for row in found["pareto"]["points"]}
    assert rows == {"A": ["B"], "B": []} and not found["pareto"]["y"]["higher_is_better"]
    figure = front_figure(found)
    assert figure.startswith("<svg") and "A (dominated)" in figure and "B (dominated)" not in figure
    assert front_figure(found) == figure
    one = compare(runs[:3])
    assert front_figure(one) == ""
    with pytest.raises(UserError, match="--pareto: expected two of mean, worst.* got 'speed'"):
        compare(runs, ("mean", "speed"))


def test_statistics_of_every_pair(runs):
    found = compare(runs)["methods"][1]["versus_first"]
    assert set(found) == set(quantities())
    assert found["worst"]["low"] > 0 and found["worst"]["p"] == 0.25 == found["worst"]["p_holm"]
    assert found["worst"]["verdict"] == "cannot be told", "no better or worse beside p = .25"
    assert found["gap"]["verdict"] == "cannot be told"
    known = {name: one.higher_is_better for name, one in quantities().items()}
    assert not known["gap"](True) and known["jain"](False) and not known["mean"](False)


def test_holm_is_over_the_methods_of_the_table(make_run, runs):
    third = [make_run("C", seed, 0.1 + 0.02 * seed) for seed in (0, 1, 2)]
    found = compare([*runs, *third])["methods"]
    assert [m["versus_first"]["worst"]["p_holm"] for m in found[1:]] == [0.5, 0.5]


def test_the_verdict_of_several_methods_is_holms(make_run, runs):
    """With three seeds no Holm's p is small enough, whatever the intervals; with eight it can be."""
    three = compare([*runs, *(make_run("C", seed, 0.1 + 0.02 * seed) for seed in (0, 1, 2))])
    pairs = [method["versus_first"]["worst"] for method in three["methods"][1:]]
    assert [pair["verdict"] for pair in pairs] == ["cannot be told"] * 2 and all(pair["low"] > 0 for pair in pairs)
    cells = set(statistics(three)["Verdict"])
    assert cells == {"cannot be told"}
    said, page = differences(three), render_compare(three)
    assert said[-1].endswith("With 3 seeds that p is never so small: 7 seeds are needed to tell any.")
    for written in (
        " ".join(said),
        page,
        as_markdown(three, "command", {}),
        quantities_as_csv(three),
        as_latex(statistics(three)),
    ):
        assert not re.search(r"is (better|worse) than|[|,&>] ?(better|worse)\b", written)
        assert "Holm" in written or "p_holm" in written
    seeds = range(8)
    eight = compare(
        [make_run(name, s, shift * s) for name, shift in (("A", 0), ("B", 0.01), ("C", 0.02)) for s in seeds]
    )
    found = {method["label"]: method["versus_first"]["worst"] for method in eight["methods"][1:]}
    assert {one["verdict"] for one in found.values()} == {"better"}
    assert all(one["p_holm"] <= 0.05 for one in found.values()) and "7 seeds" not in differences(eight)[-1]
    few, enough = (
        compare([make_run(n, s, k * (0.02 + 0.001 * s)) for k, n in enumerate("AB") for s in range(c)]) for c in (3, 6)
    )
    told = [one["methods"][1]["versus_first"]["worst"]["verdict"] for one in (few, enough)]
    assert told == ["cannot be told", "better"]
    assert differences(few)[-1].endswith("6 seeds are needed to tell any.") and "6 seeds" not in differences(enough)[-1]


def test_a_method_trained_otherwise_gets_no_verdict(make_run, runs):
    other = [make_run("C", seed, 0.3, training={"rounds": 4, "lr": 0.5}) for seed in (0, 1, 2)]
    found = compare([*runs, *other])
    assert found["methods"][2]["versus_first"]["worst"]["verdict"] == "other objective"


def test_every_table_is_written(runs, self_contained, make_run):
    found = compare([*runs, *(make_run("solo", seed, 0.02) for seed in (0, 1, 2))])
    tables = {table.attrs["key"]: table for table in comparison_tables(found)}
    assert {"statistics", "sites", "metrics", "test-sets", "joining", "cost", "pareto"} <= set(tables)
    assert main_table(found)["Worst site"][1].mean == pytest.approx(0.66)
    page = render_compare(found)
    self_contained(page)
    for table in tables.values():
        assert f"<h2>{table.attrs['label']}</h2>" in page
        assert f"## {table.attrs['label']}" in as_markdown(found, "x", {})
    rows = list(csv.DictReader(io.StringIO(as_csv(*tables.values()))))
    assert len({(row["table"], row["row"], row["column"]) for row in rows}) == len(rows)
    assert {row["table"] for row in rows} == set(tables) and as_latex(*tables.values()).count("toprule") == len(tables)
    assert tables["pareto"]["Method"][1] == "solo" and tables["pareto"]["Dominated by"][1] == "B"


def test_many_sites_are_cut_on_the_page_and_whole_in_csv(runs):
    found = compare(runs)
    short = next(table for table in comparison_tables(found, most_rows=2) if table.attrs["key"] == "sites")
    assert [name.partition(" ")[0] for name in short["Site"]] == ["site-1", "site-2"]
    assert short.attrs["notes"] == ("1 more rows are in the CSV and JSON files.",)


def test_a_page_has_the_main_pairs_and_csv_all(runs, make_run):
    third = [make_run("C", seed, 0.1 + 0.02 * seed) for seed in (0, 1, 2)]
    found = compare([*runs, *third])
    short, whole = (
        next(table for table in comparison_tables(found, most) if table.attrs["key"] == "statistics")
        for most in (60, WHOLE)
    )
    columns = {one.label.lower() for one in quantities().values() if one.column}
    said, all_of = ({name.lower() for name in table["Quantity"]} for table in (short, whole))
    assert len(whole) > MOST_PAIRS and "gini coefficient over sites" in all_of - said
    assert said == all_of & columns and "worst site" in said and len(short.attrs["notes"]) == 1
