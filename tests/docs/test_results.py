# SPDX-License-Identifier: Apache-2.0
"""README's figures are those of docs/results, whose files say which command, versions and machine made them."""

from __future__ import annotations

import csv
import json
import re
import runpy
import shlex
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from printed_commands import ROOT
from prose import words as words_of

from cases import each
from fairflare.cli import main as cli
from fairflare.core import registry
from fairflare.report.fairness import mean_ci
from fairflare.report.sections import quantities
from fairflare.report.values import with_interval
from fairflare.studies.describe import card as card_of
from fairflare.studies.describe import method_rows

RESULTS = ROOT / "docs" / "results"
sys.path.insert(0, str(RESULTS))

import kept  # noqa: E402
from quote import with_half_width  # noqa: E402

FOLDERS = sorted(path.parent for path in RESULTS.glob("*/runs.csv"))
README, PAGE = ((folder / "README.md").read_text(encoding="utf-8") for folder in (ROOT, RESULTS))
NAMES = {name: one.label for name, one in quantities().items()}
FIGURE = re.compile(r"(?<![\w.])[+\u2212-]?\d\.\d{3}(?!\d)")


def test_there_are_results():
    assert FOLDERS


def test_the_pages_quote_the_files_as_they_are(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["quote.py", "--check"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(RESULTS / "quote.py"), run_name="__main__")
    assert stop.value.code == 0, capsys.readouterr().out


def test_the_results_are_markdown_and_csv_and_small():
    files = [path for path in RESULTS.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {path.suffix for path in files} == {".md", ".csv", ".py"}
    assert sum(path.stat().st_size for path in files) <= 1_500_000


def cells(page, head):
    """Label -> cells of the rows of the first table of a page whose header begins with ``head``."""
    table = page.partition(f"\n| {head} |")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table]
    return {row[0]: row[1:] for row in rows}


@each("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_of_results_agrees_with_itself(folder):
    """Every mean, interval, paired difference, p, Hedges' g and verdict of shown.csv follows from runs.csv."""
    comparison, page = kept.comparison(folder), kept.shown(folder)
    first, *others = comparison["methods"]
    assert f"--tables docs/results/{folder.name}" in comparison["command"] and "torch" in page and "cores" in page
    names = [name for name in NAMES if name in first]
    assert len(names) >= 7
    means, differences = cells(page, "final model"), cells(page, "difference")
    sd = "± standard deviation (ddof 1)" in page
    for name in names:
        own = [{**m[name], "high": m[name]["mean"] + m[name]["sd"]} if sd else m[name] for m in comparison["methods"]]
        assert means[NAMES[name]] == [with_half_width(one) for one in own], name
        found = [method["versus_first"][name] for method in others]
        told = [cell.partition("],")[0] + "]" for cell in differences[NAMES[name]] if cell != "–"]
        assert told == [with_interval(one) for one in found if one["mean"] is not None], name
    for method in first["runs"], *(other["runs"] for other in others):
        assert [run["seed"] for run in method] == comparison["seeds"]
        assert all(re.fullmatch(r"[0-9a-f]{16}", run["model"]) for run in method)
    if "Hedges' g. Verdict" in page:
        statistics_agree(page, others)


def statistics_agree(page, others):
    """The rows of the section "Paired differences", under a row per method."""
    section = page.partition("\n## Paired differences\n")[2].partition("\n## ")[0]
    label, seen, by_words = "", 0, {words.lower(): name for name, words in NAMES.items()}
    for line in section.splitlines():
        row = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if line.startswith("| **"):
            label = line.split("**")[1]
        if len(row) > 2 and row[1].lower() in by_words:  # as tables of frames have it: method and quantity
            label, row = row[0], row[1:]
        if line.startswith("| ") and row[0].lower() in by_words:
            (method,) = [one for one in others if one["label"] == label]
            found = method["versus_first"][by_words[row[0].lower()]]
            assert row[1] == with_interval(found) and row[-1] == found["verdict"]
            assert float(row[2]) == pytest.approx(found["p"], abs=5.1e-4)
            assert float(row[3]) == pytest.approx(found["p_holm"], abs=5.1e-4)
            if found["g"] is not None and row[5] not in ("", "–"):
                assert float(row[5].replace("\u2212", "-")) == pytest.approx(found["g"], abs=5.1e-3)
            seen += 1
    assert seen >= 5 * len(others)


PAPERS = sorted(path.parent for path in RESULTS.glob("*/*.csv") if path.stem == path.parent.name and "-" in path.stem)
DIFFERENCE = re.compile(r"[+\u2212]\d+\.\d+\s\[[+\u2212]\d+\.\d+,\s[+\u2212]\d+\.\d+\]")


@each("folder", PAPERS, ids=lambda folder: folder.name)
def test_a_sentence_about_a_papers_table_quotes_it(folder):
    """Every difference in the paragraph that begins with the folder's link stands in the folder's own table."""
    name = folder.name
    said = [part for part in PAGE.split("\n\n") if part.startswith(f"[{name}]({name}/shown.csv)")]
    table = kept.shown(folder)
    quoted = [" ".join(found.split()) for part in said for found in DIFFERENCE.findall(part)]
    assert [one for one in quoted if one not in table] == []
    assert said or f"[{name}]({name}/shown.csv)" in PAGE, "every table stands on the page"
    command = re.search(r"- Command: (.*)", table)
    assert command and command.group(1).startswith("fairflare paper ") and "/" not in command.group(1)


@each("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_command_behind_a_result_is_one_that_can_be_typed(folder, monkeypatch, tmp_path):
    """Everything but the runs: methods, settings and seeds are accepted, and the tables written where they are."""
    comparison, seen, written = kept.comparison(folder), [], []
    command = comparison["command"]

    def compare_all(configs, *args, **kwargs):
        seen.extend(configs)
        return comparison

    monkeypatch.setattr("fairflare.studies.comparison.compare_all", compare_all)
    monkeypatch.setattr("fairflare.studies.comparison.write_comparison", lambda *args: written.append(args))
    monkeypatch.setattr("fairflare.cli.results.comparison", lambda *args: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs" / "results").mkdir(parents=True)
    done = CliRunner().invoke(cli.cli, shlex.split(command)[1:], obj=command, catch_exceptions=False)
    assert done.exit_code == 0 and len(seen) == len(comparison["methods"]) * len(comparison["seeds"])
    assert [(found, str(where), how) for found, where, how in written] == [
        (comparison, f"docs/results/{folder.name}", command)
    ]


def test_a_fresh_comparison_is_kept_as_its_runs(tmp_path):
    """What ``compare`` has written becomes runs.csv, from which the same figures follow."""
    values = {"a": [0.5, 0.75, 0.625], "b": [0.75, 0.5, 1 / 3]}
    methods = [
        {
            "label": label,
            "objective": {},
            "runs": [
                {"seed": seed, "data_seed": seed, "worst_site": "x", "model_sha256": "0" * 64, "mean": value}
                for seed, value in enumerate(found)
            ],
        }
        for label, found in values.items()
    ]
    (tmp_path / "compare.json").write_text(json.dumps({"methods": methods}))
    (tmp_path / "compare.md").write_text("# accuracy on heart:full\n\n    fairflare compare a b\n")
    for name in kept.DROPPED[1:]:
        (tmp_path / name).write_text("")
    kept.keep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs.csv", "shown.csv"]
    found = kept.comparison(tmp_path)
    assert [found["headline"], found["command"], found["seeds"]] == ["accuracy", "fairflare compare a b", [0, 1, 2]]
    for method, (label, expected) in zip(found["methods"], values.items(), strict=True):
        assert method["label"] == label
        assert [run["mean"] for run in method["runs"]] == pytest.approx(expected, rel=1e-8)
    difference = found["methods"][1]["versus_first"]["mean"]
    assert difference["mean"] == pytest.approx((0.25 - 0.25 + 1 / 3 - 0.625) / 3) and difference["wins"] == 1


@pytest.mark.parametrize("page", [README, PAGE], ids=["README", "results"])
def test_every_figure_of_the_readme_is_in_a_result(page):
    known = set()
    for folder in FOLDERS:
        known |= set(FIGURE.findall(kept.shown(folder)))
    known |= {figure.lstrip("+\u2212-") for figure in known}
    prose = re.sub(r"^```.*?^```", "", page, flags=re.S | re.M)
    strange = [figure for figure in FIGURE.findall(prose) if figure.replace("-", "\u2212") not in known]
    assert not strange, strange


JOINING = RESULTS.parent / "images" / "joining-data"
JOINED = {name: json.loads((JOINING / f"{name}.json").read_text()) for name in ("heart", "ist")}


def told(name, verdict, *candidates):
    """The hospitals of which this was told of one of the candidates."""
    sites = JOINED[name]["sites"]
    return [site for site, row in sites.items() if any(row["candidates"][c]["verdict"] == verdict for c in candidates)]


def test_the_picture_of_joining_is_drawn_from_its_files():
    drawn = runpy.run_path(str(ROOT / "docs" / "images" / "joining.py"))
    picture = (ROOT / "docs" / "images" / "joining.svg").read_text(encoding="utf-8")
    assert drawn["drawn"]({name: drawn["rows"](name) for name in drawn["PANELS"]}) == picture
    values = re.findall(r' value"[^>]*>([+\u2212]\d\.\d{4})<', picture)
    expected = [row["mix"]["benefit"] for found in JOINED.values() for row in found["sites"].values()]
    assert [float(value.replace("\u2212", "-")) for value in values] == pytest.approx(expected, abs=5.1e-5)
    assert picture.count("<circle") == 3 * (1 + len(expected))


def test_what_is_said_of_joining_is_what_the_files_say():
    text = " ".join((README + (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")).split())
    assert told("heart", "loses", "fedavg") == ["Switzerland"] and len(told("ist", "loses", "fedavg")) == 5
    assert "FedAvg would harm one of these four and five of 17 countries" in text
    assert told("heart", "loses", "glm") == [] and len(told("ist", "loses", "glm")) == 3
    assert "FedAvg loses in Switzerland (heart) and in five countries, the exact regression in three countries." in text
    intercepts = ("fedavg + intercept", "glm + intercept")
    assert [told(name, "loses", *intercepts) for name in JOINED] == [[], []]
    assert told("heart", "gains", *intercepts) == ["Hungary"] and len(told("ist", "gains", *intercepts)) == 8
    assert len(told("ist", "no difference that matters", *intercepts)) == 3
    assert "then Hungary and eight countries are shown to gain, three show no difference that matters" in text
    mixes = [row["mix"] for found in JOINED.values() for row in found["sites"].values()]
    assert min(mix["benefit"] for mix in mixes) > 0 and sum(mix["low"] > 0 for mix in mixes) == 11
    assert JOINED["heart"]["sites"]["Hungary"]["mix"]["low"] > 0
    said = "For the mix the expected benefit is above zero everywhere, and its interval at Hungary and in ten countries"
    assert said in text
    with (RESULTS / "drift" / "joining.csv").open(encoding="utf-8", newline="") as file:
        (found,) = [
            r for r in csv.DictReader(file) if (r["task"], r["arm"], r["metric"]) == ("heart", "whole", "brier")
        ]
    assert (found["gains"], found["loses"]) == ("0", "0")
    assert "with one full-batch step per round no heart hospital is shown to lose, and none is shown to gain" in text


def test_what_the_study_says_of_joining_is_what_the_files_say():
    words = " ".join((RESULTS / "STUDY.md").read_text(encoding="utf-8").partition("## Joining")[2].split())
    average = JOINED["ist"]["candidates"]["glm + intercept"]["average"]
    numbers = [f"{average[key]:+.4f}" for key in ("mean", "low", "high")]
    assert "the average benefit over the trial's countries is {} [{}, {}]".format(*numbers) in words
    clear = [len(told("ist", verdict, *JOINED["ist"]["candidates"])) for verdict in ("loses", "gains")]
    assert "FedAvg loses in {} countries and the exact regression in {}".format("five", "three") in words
    assert len(told("ist", "loses", "fedavg")) == 5 and len(told("ist", "loses", "glm")) == 3 and clear == [5, 8]
    new = JOINED["heart"]["candidates"]["fedavg"]["new_hospital"]
    assert f"gains from FedAvg with probability {new['p_gain']:.2f}" in words and new["n"] == 100


def drawn_values(name):
    """Method -> quantity -> its values by seed, of a folder's runs."""
    values = {}
    with (RESULTS / name / "runs.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            for key in ("mean", "worst", "brier_worst"):
                values.setdefault(row["method"], {}).setdefault(key, []).append(float(row[key]))
    return values


FAIR = ("FedISM+", "FedCE", "Fed-LWR", "FedHEAL", "FedUFO")
EQUAL = "FedAvg, weighting=uniform"
WORDS = ("mean over sites", "worst site")


def test_readme_s_picture_is_drawn_from_its_files():
    drawn = runpy.run_path(str(ROOT / "docs" / "images" / "fair.py"))
    rows, values = drawn["rows"](), drawn_values("heart-fair")
    assert {"FedAvg", *FAIR} < set(rows) and len(rows) == len(values)
    for name in FAIR:
        assert rows[name]["worst"].mean == pytest.approx(100 * np.mean(values[name]["worst"]))
    picture = " ".join((ROOT / "docs" / "images" / "fair.svg").read_text(encoding="utf-8").split())
    assert all(word in picture for word in drawn["title"](rows).split(": ")[1].split(" with ")[0].split())


def test_what_readme_says_of_fair_methods_is_what_the_files_say():
    values = drawn_values("heart-fair")
    plain = values["FedAvg, weighting=examples"]
    means = {name: {key: np.mean(of) - np.mean(plain[key]) for key, of in one.items()} for name, one in values.items()}
    shown = (ROOT / "docs" / "results" / "heart-fair" / "shown.csv").read_text(encoding="utf-8")
    better = {what: {name for name in FAIR if f"- {name}: its {what} is better than" in shown} for what in WORDS}
    assert better == {"mean over sites": set(FAIR), "worst site": {"FedISM+", "Fed-LWR"}}
    alone = next(line for line in shown.splitlines() if line.startswith('"mean over sites, without a network",'))
    assert all(
        round(float(cell.split()[0]), 2) == 0.84 > np.mean(values["FedISM+"]["mean"]) for cell in alone.split(",")[2:]
    )
    assert means[EQUAL]["worst"] >= max(means[name]["worst"] for name in FAIR) - 0.01
    longer = drawn_values("heart-fair-long")
    plain = longer["FedAvg, weighting=examples"]
    for name in FAIR:
        gain = {key: mean_ci(np.subtract(of, plain[key])) for key, of in longer[name].items()}
        assert gain["worst"]["low"] < 0 < gain["worst"]["high"] and gain["brier_worst"]["high"] < 0, name


def test_readme_is_short_and_names_the_owners_of_the_data():
    assert len(README.splitlines()) <= 120 and words_of(ROOT / "README.md") <= 600
    for words in ("10.24432/C52P4X", "CC BY 4.0", "10.7488/ds/104", "ODC-By", "UCI data set 880"):
        assert words in README, words


def test_readme_counts_the_methods():
    rows = method_rows()
    of_package = {row["id"] for row in rows if row["package"] == "fairflare"}
    in_table = set(re.findall(r"^\| `([a-z-]+)` \|", README, flags=re.M))
    assert (
        f"{len(of_package - in_table)} more methods" in README and f"and {len(rows) - len(of_package)} in the" in README
    )


def test_the_cost_of_a_method_is_the_one_that_list_prints():
    """README's table shows some of the methods; ``fairflare list`` shows all."""
    costs = {row["id"]: row["cost"] for row in method_rows()}
    shown = re.findall(r"^\| `([a-z-]+)` \|[^|]*\| ([0-9.]+) x", README, flags=re.M)
    assert {"fedavg", "fedism-plus"} <= {id for id, _ in shown} <= set(costs)
    for id, cost in shown:
        assert f"{float(cost):.1f}" == f"{costs[id]:.1f}", id


@each("id", sorted(registry.methods()))
def test_every_method_has_a_card(id):
    card = (ROOT / card_of(registry.get_method(id))).read_text(encoding="utf-8")
    assert card.startswith("# ") and f"(`{id}`)" in card.splitlines()[0]
    assert all(f"**{part}" in card for part in ("What it is for.**", "Rule", "Cost.**", "Attribution.**"))


def test_the_tables_of_recalibration_are_those_of_its_file():
    made = runpy.run_path(str(RESULTS / "recalibration.py"))
    rows, page = made["read"](), kept.shown(RESULTS / "recalibration").splitlines()
    assert {row["task"] for row in rows} == set(made["TASKS"])
    for task in made["TASKS"]:
        own = [row for row in rows if row["task"] == task]
        assert {row["seed"] for row in own} == set(made["SEEDS"])
        cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in made["table"](own)]
        assert [row for row in (cells[0], *cells[2:]) if f"| {' | '.join(row)} |" not in page] == []


@pytest.mark.slow
def test_recalibration_is_measured_at_toy_size(monkeypatch, capsys):
    script, folder = RESULTS / "recalibration.py", RESULTS / "recalibration"
    kept, run = {path: path.read_bytes() for path in folder.iterdir()}, subprocess.run

    def in_process(words, **options):
        if words[1:3] != ["-m", "fairflare"]:
            return run(words, **options)
        return CliRunner().invoke(cli.cli, words[3:], obj=shlex.join(words), catch_exceptions=False)

    monkeypatch.setattr(subprocess, "run", in_process)
    monkeypatch.setattr(sys, "argv", [script.name, "--toy"])
    runpy.run_path(str(script), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    ways = [line.split("|")[1].strip() for line in lines[2:]]
    assert ways == ["the model as it is", "one line for all", "line of each site's own"]
    assert all(FIGURE.search(line) for line in lines[2:]) and "nan" not in "".join(lines)
    assert {path: path.read_bytes() for path in folder.iterdir()} == kept


@pytest.mark.slow
def test_the_defaults_are_measured_at_toy_size(monkeypatch, capsys, tmp_path):
    """One layout goes the whole way, and the table says what was found; the page has a row for each."""
    script = RESULTS / "defaults.py"
    monkeypatch.setattr(sys, "argv", [script.name, str(tmp_path), "--toy", "--layout", "CSV per site"])
    made = runpy.run_path(str(script), run_name="__main__")
    head, _, row = capsys.readouterr().out.splitlines()
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[0] == "CSV per site" and int(cells[2]) > 200 and len(FIGURE.findall(row)) >= 5
    page = (RESULTS / "defaults.md").read_text(encoding="utf-8")
    assert head in page and all(f"| {name} | {about} |" in page for name, (about, _) in made["LAYOUTS"].items())
