# SPDX-License-Identifier: Apache-2.0
"""What a comparison says of what its seeds draw, and what it refuses to put side by side."""

import csv
import io

import pytest

from fairflare.core.errors import UserError
from fairflare.report.compare import compare, drawn_words, table
from fairflare.report.compare_page import comparison_markdown as as_markdown
from fairflare.report.compare_page import opening_compare, render_compare
from fairflare.report.compare_tables import comparison_csv as as_csv


@pytest.fixture
def make(make_run):
    """A run whose data were drawn with ``data_seed``."""

    def made(title, seed, data_seed, shift=0.0, drawn=("partition", "rendering"), **config):
        run = make_run(title, seed, shift, options={"severity": 3, "data_seed": data_seed}, **config)
        run["task"]["drawn"] = list(drawn)
        return run

    return made


def test_draws_are_pooled_and_named(make, self_contained):
    found = compare([make("A", 0, 11), make("A", 1, 12), make("B", 0, 11, 0.1), make("B", 1, 12, 0.1)])
    assert found["seeds_draw"] == {
        "data": "drawn",
        "what": ["partition", "rendering", "initial model", "order"],
        "data_seeds": {"0": 11, "1": 12},
    }
    assert drawn_words(found) == "seeds draw: partition, rendering, initial model, order"
    assert [row["data_seed"] for row in found["methods"][1]["runs"]] == [11, 12]
    page = render_compare(found)
    self_contained(page)
    assert "Seeds draw: partition, rendering, initial model, order." in page and "Data seed" in page


@pytest.mark.parametrize(
    "drawn, seeds, words",
    [
        (("split",), (0, 1), "fixed data; seeds draw: initial model, order"),
        ((), (0, 1), "seeds draw: initial model, order"),
        (("split",), (0,), "one seed: one draw of split, initial model and order"),
    ],
)
def test_fixed_and_natural_data_and_one_seed(make, drawn, seeds, words):
    found = compare([make(title, seed, 5, drawn=drawn) for title in ("A", "B") for seed in seeds])
    assert drawn_words(found) == words


def test_other_data_within_a_seed_are_refused(make):
    with pytest.raises(UserError, match="the training data of B"):
        compare([make("A", 0, 11), make("B", 0, 12)])


def test_draws_shared_by_some_seeds_are_refused(make):
    with pytest.raises(UserError, match="2 draws of the data for 3 seeds"):
        compare([make("A", seed, data_seed) for seed, data_seed in ((0, 1), (1, 1), (2, 2))])


def test_a_report_that_does_not_say_what_is_drawn_can_still_be_compared(make):
    runs = [make("A", 0, 1), make("A", 1, 2)]
    for run in runs:
        del run["task"]["drawn"]
    assert drawn_words(compare(runs)) == "seeds draw: initial model, order"


def test_a_winner_is_named_among_those_of_one_objective_only(make):
    other = {"rounds": 4, "lr": 0.1}
    runs = [make("A", 0, 1, 0.3), make("B", 0, 1, 0.0, training=other), make("C", 0, 1, 0.1, training=other)]
    found = compare(runs)
    text = " ".join(opening_compare(found))
    assert "A: lr=0.001; B and C: lr=0.1" in text and "none is named best of all" in text
    assert "with lr=0.1: C with" in text and "lr=0.001: A with" not in text
    rows = table(found)
    assert [row["trained with"] for row in rows] == ["lr=0.001", "lr=0.1", "lr=0.1"]
    assert {row["wins"] for row in rows} == {rows[0]["wins"]}
    kept = as_markdown(found, "fairflare compare", {})
    assert "| trained with | lr=0.001 | lr=0.1 | lr=0.1 |" in kept and "1 of 1" not in kept and "0 of 1" not in kept
    lines = [line for line in csv.DictReader(io.StringIO(as_csv(found))) if line["method"] in "BC"]
    said = {(line["wins"], line["trained_with"], line["verdict"]) for line in lines}
    assert lines and said == {("", "lr=0.1", "other objective")}


def test_the_number_format_is_no_objective(make):
    runs = [make("A", 0, 1), make("B", 0, 1, training={"rounds": 4, "lr": 0.001, "precision": "bfloat16"})]
    found = compare(runs)
    assert [method["objective"] for method in found["methods"]] == [{}, {}]
    assert any("precision" in note for note in found["notes"])


def test_the_best_mean_stands_beside_the_answer_without_a_network(make_run):
    runs = [make_run("A", 0), make_run("B", 0, 0.02)]
    for run in runs:
        run["learned"] = {"trivial": 0.8}
    said = " ".join(opening_compare(compare(runs)))
    assert "B with 0.787. That is no better than an answer that needs no network (0.800)." in said
    runs[1]["learned"] = {"trivial": 0.7}
    assert "B with 0.787. An answer that needs no network reaches 0.700." in " ".join(opening_compare(compare(runs)))
