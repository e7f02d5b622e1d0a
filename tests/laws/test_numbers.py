# SPDX-License-Identifier: Apache-2.0
"""Laws over what people read of runs, of ten kinds, and of decisions: page, terminal, JSON and Python agree.

Every printed metric lies in its range, and no verdict word stands against its own interval.
"""

import json
import re

import numpy as np
import pandas as pd
import pytest
from bs4 import BeautifulSoup

from cases import each
from fairflare import Federation, decide
from fairflare.cli.results import run_result
from fairflare.core.metric import LARGEST_LOSS, named
from fairflare.decision.study import lines

N = 360
RNG = np.random.default_rng(5)
X = RNG.normal(size=(N, 3))
RISK = X[:, 0] + 0.7 * RNG.normal(size=N)
FRAME = pd.DataFrame(X.round(3), columns=["marker", "lactate", "pulse"]).assign(
    sex=np.where(RNG.random(N) < 0.5, "f", "m"), hospital=np.array(["north", "south", "west"])[np.arange(N) % 3]
)
TWO = FRAME.assign(died=np.where(RISK > 0, "yes", "no"))
THREE = FRAME.assign(stage=np.array(["A", "B", "C"])[np.digitize(RISK, [-0.6, 0.6])])
AMOUNT = FRAME.assign(days_in_bed=(10 + 3 * RISK).round(2))
TIMES = FRAME.assign(months=RNG.exponential(10 * np.exp(-RISK)).round(2) + 0.1, dead=(RNG.random(N) < 0.7).astype(int))
LABELS = FRAME.assign(edema=(RISK > 0.3).astype(int), mass=(RISK + X[:, 1] > 0.5).astype(int))
UNTIL = {"time": "months", "event": "dead", "horizons": "6,12"}
SMALL = {"rounds": 3, "min_count": 1}
READ = {"site": "hospital", "patient": "none", "progress": False, "keep": ["marker", "lactate", "pulse", "sex"]}
KINDS = {
    "two classes, alone too": ("fedavg", TWO, {"outcome": "died"}, {"solo": True}),
    "two classes by group": ("fedufo", TWO, {"outcome": "died", "groups": ["sex"]}, {}),
    "two classes, recalibrated": ("fedavg", TWO, {"outcome": "died"}, {"settings": {"after": "recalibrate"}}),
    "own models": ("ditto", TWO, {"outcome": "died"}, {}),
    "three classes": ("fedism-plus", THREE, {"outcome": "stage"}, {"solo": True}),
    "grades": ("fedavg", THREE, {"outcome": "stage"}, {"kind": "ordinal", "classes": "A,B,C"}),
    "an amount": ("fedheal", AMOUNT, {"outcome": "days_in_bed"}, {"kind": "regression", "solo": True}),
    "times": ("fedavg", TIMES, UNTIL, {"kind": "survival", "solo": True}),
    "labels": ("fedavg", LABELS, {"outcome": "edema,mass"}, {"kind": "multilabel"}),
    "exact regression": ("glm", TWO, {"outcome": "died"}, {"solo": True}),
}  # fmt: skip
SHOWN = re.compile(r"[-+\u2212]?\d+\.\d+")


@pytest.fixture(scope="module")
def runs():
    """Kind -> its run, its JSON, the terminal's lines and the page, each made when it is first asked for."""
    made = {}

    def of(name):
        if name not in made:
            method, frame, reading, how = KINDS[name]
            run = Federation(method, **SMALL, **how).fit(frame, **READ, **reading)
            summary = json.loads((run.folder / "report.json").read_text(encoding="utf-8"))
            page = BeautifulSoup(run.report().read_text(encoding="utf-8"), "html.parser")
            made[name] = run, summary, page
        return made[name]

    return of


def number(text):
    return float(text.replace("\u2212", "-").replace("+", ""))


def terminal(summary, folder, capsys):
    """Label -> the numbers in its row of the terminal's table, and all lines."""
    capsys.readouterr()
    run_result(summary, folder)
    lines = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    return {row[0]: row[1:] for row in cells if row[0]}, lines


def objects(value):
    """Every mapping within JSON values."""
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from objects(one)


def printed(text, label):
    """Numbers that follow a metric's label in a sentence; those with a sign are differences."""
    found = re.findall(rf"(?<![\w-]){re.escape(label)}[:,]? (?:is |of )?(\d+\.\d+)", text, re.I)
    return [number(one) for one in found]


@each("name", KINDS)
def test_equal_questions_have_equal_numbers(name, runs, capsys):
    run, summary, page = runs(name)
    rows, _ = terminal(summary, run.folder, capsys)
    labels = {one["label"]: metric for metric, one in summary["detail"]["metrics"].items()}
    asked = [label for label in rows if labels.get(label) in run.sites.columns]
    assert asked
    for label in asked:
        values = run.sites[labels[label]].dropna().astype(float)
        for place, expected in ((0, values.mean()), (3, values.max() - values.min())):
            if SHOWN.fullmatch(rows[label][place]):
                assert number(rows[label][place]) == pytest.approx(expected, abs=6e-4, rel=6e-3), (label, place)
    headline = summary["fairness"]
    assert run.sites[headline["metric"]].astype(float).mean() == pytest.approx(headline["mean"], abs=1e-9)
    first = page.h1.get_text()
    *_, average = re.findall(r"([\d.]+) on average", first) or ["nan"]
    assert average == "nan" or number(average) == pytest.approx(headline["mean"], abs=6e-3, rel=6e-3)
    for label in (one for one in rows if rows[one][0]):  # else the second line of a long label
        for said in re.findall(rf"{re.escape(label)} ([\d.]+) on average", first):
            assert number(said) == pytest.approx(number(rows[label][0]), abs=6e-3, rel=6e-3), label


@each("name", KINDS)
def test_every_printed_metric_lies_in_its_range(name, runs, capsys):
    run, summary, page = runs(name)
    _, lines = terminal(summary, run.folder, capsys)
    text = " ".join([*lines, page.get_text(" ")])
    known = {metric: (one["label"], named(metric)) for metric, one in summary["detail"]["metrics"].items()}
    for label, metric in known.values():
        ends = metric.low, metric.high if metric.high < LARGEST_LOSS else np.inf
        assert all(ends[0] <= value <= ends[1] for value in printed(text, label)), label
    for one in objects(summary):
        for metric in known.keys() & one.keys():
            if isinstance(one[metric], float):
                assert known[metric][1].low <= one[metric] <= known[metric][1].high, (metric, one[metric])
        low, high = one.get("low"), one.get("high")
        middle = one.get("value", one.get("mean", one.get("benefit")))
        if all(isinstance(value, int | float) for value in (low, high, middle)):
            assert low - 1e-9 <= middle <= high + 1e-9, one


@each("name", KINDS)
def test_no_verdict_stands_against_its_interval(name, runs):
    _, summary, page = runs(name)
    words = {"gains": 1, "better": 1, "loses": -1, "worse": -1, "harmed": -1}
    for one in objects(summary):
        if one.get("verdict") and isinstance(one.get("low"), float) and "benefit" in one:
            side = (one["low"] > 0) - (one["high"] < 0)
            assert words.get(one["verdict"], 0) in (0, side) and (side == 0 or one["verdict"] in words), one
    for row in page.select("tr"):
        cells = row.get_text(" ")
        ends = re.search(r"([+\u2212-]\d+\.\d+) to ([+\u2212-]\d+\.\d+)", cells)
        told = [side for word, side in words.items() if re.search(rf"\b{word}\b", cells)]
        if ends and told:
            low, high = map(number, ends.groups())
            assert set(told) == {(low >= 0) - (high <= 0)} and (low, high) != (0, 0), cells


@pytest.fixture(scope="module")
def decision(tmp_path_factory):
    """The table of ``decide``, the content of decision.json, and the folder."""
    folder = tmp_path_factory.mktemp("decision") / "join"
    frame = TWO.drop(columns="sex").assign(hospital=[f"hospital {k % 6}" for k in range(N)])
    table = decide(frame, **READ | {"keep": ["marker", "lactate", "pulse"]}, outcome="died", repeats=2, out=folder)
    return table, json.loads((folder / "decision.json").read_text(encoding="utf-8")), folder


def triples(text, digits):
    """Every value with its interval, "+1.2 [-0.3, +2.7]", of a text."""
    one = rf"([-+\u2212]\d+\.\d{{{digits}}})"
    return [tuple(map(number, found)) for found in re.findall(rf"{one} \[{one}[,;] {one}\]", text)]


def test_a_decision_has_equal_numbers_on_every_page_in_the_terminal_and_in_python(decision):
    table, content, folder = decision
    pages = {path: BeautifulSoup((folder / path).read_text("utf-8"), "html.parser") for path in ("join.html",)}
    said = {line.partition(" (n ")[0]: line for line in lines(content)}
    (shown,) = [one for one in pages["join.html"].select("table") if "Using minus own" in one.thead.get_text()][:1]
    rows = {row.th.get_text(): row.get_text(" ") for row in shown.tbody.select("tr")}
    for site, one in content["sites"].items():
        expected = []
        for key in ("U", "J", "D"):
            of = one["estimands"][key]
            assert [table.loc[site, f"{key}{end}"] for end in ("", "_low", "_high")] == [
                of[part] for part in ("value", "low", "high")
            ]
            expected.append(tuple(pytest.approx(1000 * of[part], abs=0.051) for part in ("value", "low", "high")))
        sheet = BeautifulSoup((folder / "sheets" / f"{site}.html").read_text("utf-8"), "html.parser").get_text(" ")
        assert triples(said[site], 1) == triples(rows[site], 1) == triples(sheet, 1) == expected, site
        for key in ("verdict", "participation", "reason", "patients", "margin"):
            assert table.loc[site, key] == one[key], (site, key)
        assert one["sentence"] in said[site] and one["sentence"] in pages["join.html"].get_text()
    for k, table in enumerate(pages["join.html"].select(".slide .at")):
        shown = {
            row.th.get_text(): [number(cell.get_text()) for cell in row.select("td")]
            for row in table.select("tbody tr")
        }
        of = {site: one["models"] for site, one in content["sites"].items()}
        keys = ("own", "outside", "member", "treat all")
        curves = {site: [1000 * models[key]["net_benefit_curve"][k] for key in keys] for site, models in of.items()}
        assert shown == {site: pytest.approx(each, abs=0.51) for site, each in curves.items()} and k < 10
    averages = [triples(line, 2) for line in lines(content) if line.startswith("average")]
    ends = ("mean", "low", "high")
    of_all = [[1000 * content["averages"][key][end] for end in ends] for key in ("U", "J", "D")]
    assert averages == [[tuple(pytest.approx(value, abs=0.0051) for value in of)] for of in of_all]


def test_no_answer_of_a_decision_stands_against_its_interval(decision):
    _, content, _ = decision
    for site, one in content["sites"].items():
        of, answer = one["estimands"], one["verdict"]
        assert all(each["low"] <= each["value"] <= each["high"] for each in of.values()), site
        assert answer != "alone" or of["J"]["low"] <= one["margin"], site
        assert answer not in ("use", "use or join") or of["U"]["high"] > 0, site
        assert answer != "join" or of["J"]["high"] > 0, site
        assert one["participation"] != "joining adds" or of["D"]["low"] > 0, site
        assert one["participation"] != "joining costs" or of["D"]["high"] < 0, site
        assert 0 <= one["p_false"] <= 1 and 0 <= one["mix"]["share"] <= 1, site
