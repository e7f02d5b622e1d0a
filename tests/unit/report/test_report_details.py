# SPDX-License-Identifier: Apache-2.0
"""What a comparison says beside means: sites, metrics, cost, and which differences are shown."""

import re

import pytest

from fairflare.report.compare import compare, costs, run_row
from fairflare.report.compare_page import comparison_markdown as as_markdown
from fairflare.report.compare_page import differences, render_compare
from fairflare.report.compare_tables import MOST_PAIRS, MOST_SITES, comparison_tables
from fairflare.report.compare_tables import comparison_csv as quantities_as_csv
from fairflare.report.groups import demographic_parity
from fairflare.report.sections import quantities


@pytest.fixture
def runs(make_run):
    return [
        make_run(title, seed, shift + 0.01 * seed) for title, shift in (("A", 0.0), ("B", 0.05)) for seed in (0, 1, 2)
    ]


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


def test_cost_per_round(make_run):
    run = make_run()
    assert costs(run)["seconds"] == pytest.approx(2.5) and costs(run)["bytes_up"] is None
    run["traffic"] = {"down": 400, "up": 200}
    assert costs(run) == {"bytes_down": 100.0, "bytes_up": 50.0, "seconds": pytest.approx(2.5)}
    run["rounds_done"] = 0
    assert set(costs(run).values()) == {None}


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
    rows = next(rows for table in comparison_tables(three) if ["Verdict"] in table["heads"] for rows in [table["rows"]])
    told = {(row["title"], row["cells"][0][0]): row["cells"][-1][0] for row in rows}
    assert told["B", "Worst site"] == "p above 0.05" and "interval includes zero" in told.values()
    said, page = differences(three), render_compare(three)
    assert said[-1].endswith("With 3 seeds that p is never so small: 7 seeds are needed to tell any.")
    for written in (" ".join(said), page, as_markdown(three, "command", {}), quantities_as_csv(three)):
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


def test_every_table_is_written(runs, self_contained):
    found = compare(runs)
    tables = {table["label"]: table for table in comparison_tables(found)}
    assert {"Methods", "Differences from A", "Every metric", "Shared test sets", "Cost"} <= set(tables)
    at = tables["Methods"]["heads"].index("Worst site") - 1
    assert tables["Methods"]["rows"][1]["cells"][at][0] == "0.660"
    page = render_compare(found)
    self_contained(page)
    for label in tables:
        assert f"<h2>{label}</h2>" in page
    assert "cannot be told" not in page


def test_a_page_is_cut_where_sites_or_methods_are_many(runs, make_run):
    found = compare(runs)
    found["sites"] = [{"site": f"s{k}", "description": ""} for k in range(MOST_SITES + 2)]
    sites = next(table for table in comparison_tables(found) if table["heads"][0] == ["Site"])
    assert len(sites["rows"]) == MOST_SITES and sites["notes"] == ["2 more sites are in the JSON file."]
    many = compare([*runs, *(make_run(f"C{k}", s, 0.01 * k * s) for k in range(6) for s in (0, 1, 2))])
    rows = next(table["rows"] for table in comparison_tables(many) if ["Verdict"] in table["heads"])
    assert len(rows) <= MOST_PAIRS and {row["cells"][0][0] for row in rows} == {"Worst site", "Mean over sites"}
