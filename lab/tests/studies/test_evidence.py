# SPDX-License-Identifier: Apache-2.0
"""The evidence pack: valid documents, the report's values, a human's words where they belong, no path and no patient.

On a run in FLARE's simulator: tests/flare/test_simulator.py.
"""

import json
import re
from pathlib import Path

import pytest

from evidence_checks import answers, check_pack, measured
from fairflare.cli.main import main
from fairflare.core.errors import UserError
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import run_local
from fairflare.report.write import write_report
from fairflare.studies.folders import strangers
from fairflare_lab.report.evidence_files import questions
from fairflare_lab.report.evidence_pack import table
from fairflare_lab.studies.evidence import init_evidence, write_evidence
from own_folder import write_tables

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.slow
SMALL = {"images": 96, "n_sites": 4, "test_images": 20, "site_test_images": 20}
PATIENT = "MRN-4711"


def call(*words):
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    return stop.value.code


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("evidence")
    configs = {
        "table": make_config("fedism-plus", "heart", rounds=1, values={"local_steps": 5, "solo": True}),
        "images": make_config("fedavg", "ich-phantom", rounds=1, values=SMALL),
    }
    for name, config in configs.items():
        (root / name).mkdir()
        run_local(config, root / name)
        write_report(root / name)
    return root


@pytest.mark.parametrize("kind", ["table", "images"])
def test_documents_are_valid_blank_and_filled_and_the_report_s(kind, runs, tmp_path):
    blank = write_evidence(runs / kind)
    check_pack(runs / kind / "evidence")
    assert not strangers(runs / kind), "a run that replaces this one would find a file that is not its own"
    assert call("verify", runs / kind) in (0, None)
    filled = write_evidence(runs / kind, tmp_path / "pack", answers(tmp_path))
    check_pack(tmp_path / "pack")
    assert filled["score"] > 90 > blank["score"]
    if kind == "table":
        told = f"reaches {blank['score']} of 100 with no answer and {filled['score']} with all"
        assert told in (ROOT / "lab" / "docs" / "evidence.md").read_text()
    for title, row in filled["documents"].items():
        before = blank["documents"][title]
        assert before["human"] == 0 and row["evidence"] == before["evidence"]
        assert row["human"] + row["blank"] == before["blank"] and row["human"]


def test_the_same_run_and_answers_give_the_same_bytes(runs, tmp_path):
    packs = [tmp_path / "a", tmp_path / "b"]
    for pack in packs:
        write_evidence(runs / "table", pack)
    first, second = ({path.name: path.read_bytes() for path in pack.iterdir()} for pack in packs)
    assert first == second and all(str(runs).encode() not in text for text in first.values())


def test_results_are_by_hospital_and_group_with_intervals_and_outcomes_in_words(runs):
    write_evidence(runs / "table")
    pack = runs / "table" / "evidence"
    found = measured(json.loads((pack / "ml-bom.cdx.json").read_text()))
    assert {one["slice"] for one in found} == {f"hospital {s}" for s in ("Cleveland", "Hungary", "Switzerland", "VA")}
    assert any("confidenceInterval" in one for one in found)
    card = (pack / "chai-model-card.xml").read_text()
    assert "Predicted risk of: disease." in card and "group disease" in card and "benefit of joining in" in card
    risks = json.loads((pack / "ml-bom.cdx.json").read_text())["components"][0]["modelCard"]["considerations"]
    assert {"patients of VA", "patients of VA, disease"} <= {one["groupAtRisk"] for one in risks["fairnessAssessments"]}


def test_own_tables_name_the_outcome_and_no_patient(tmp_path):
    for site, shift in (("North", 0), ("South", 1)):
        rows = [
            f"{50 + (i * 7 + shift) % 31},{'fm'[i % 2]},{(i * 5 + shift) % 3 % 2},{PATIENT}-{i}" for i in range(120)
        ]
        (tmp_path / "data" / site).mkdir(parents=True)
        (tmp_path / "data" / site / "table.csv").write_text("\n".join(["age,sex,died,patient", *rows]))
    call("init", tmp_path / "data", "--label", "died", "--groups", "sex", "--patient", "patient", "--yes")
    run = ["run", "fedavg", "--datalists", tmp_path / "data" / "fairflare", "--kind", "tabular", "--rounds", 1]
    assert call(*run, "--set", "group_by=sex", "--no-solo", "--out", tmp_path / "run") in (0, None)
    write_evidence(tmp_path / "run")
    texts = {path.name: path.read_text() for path in (tmp_path / "run" / "evidence").iterdir()}
    assert not [name for name, text in texts.items() if PATIENT in text or str(tmp_path) in text]
    assert "Predicted risk of: died = 1." in texts["chai-model-card.xml"]
    assert "group sex: f" in texts["chai-model-card.xml"] and "nothing left a machine" in texts["data-protection.html"]
    check_pack(tmp_path / "run" / "evidence")


def test_results_of_several_segments_are_those_of_the_last(tmp_path):
    """Who left before it is not evaluated, and has no empty test split."""
    tables = write_tables(tmp_path / "tables", ["a", "b", "c", "d"])
    own = [
        "--datalists",
        tables,
        "--kind",
        "tabular",
        "--classes",
        "lived,died",
        "--no-solo",
        "--out",
        tmp_path / "run",
    ]
    about = ["--set", "label=outcome", "--set", "features=age,score"]
    assert call("run", "fedavg", *own, *about, "--rounds", 1, "--without", "d") in (0, None)
    assert call("run", "--continue", tmp_path / "run", "--data", tables, "--without", "a", "--rounds", 2) in (0, None)
    write_evidence(tmp_path / "run", tmp_path / "pack")
    check_pack(tmp_path / "pack")
    lines = [json.loads(line) for line in (tmp_path / "run" / "audit.jsonl").read_text().splitlines()]
    last = max(place for place, line in enumerate(lines, 1) if line["event"] == "evaluation")
    page = (tmp_path / "pack" / "tripod-ai.html").read_text()
    assert f"audit.jsonl:{last}#/sites" in page and page.count("Not evaluated: a.") == 1
    assert re.search(r"by hospital: a \d+/not evaluated; b \d+/\d+/\d+;", page)


def test_every_question_is_asked_for_a_document_and_every_document_asks_one_that_is_there():
    asked = set()
    for name, rows in table("items.yaml").items():
        if isinstance(rows, list):
            assert len({row["item"] for row in rows}) == len(rows), name
            for row in rows:
                keys = row.get("human", [])
                asked |= {keys} if isinstance(keys, str) else set(keys)
    known = [key for section in questions().values() for key in section]
    assert len(set(known)) == len(known) and asked == set(known)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("develper: me", "develper"),
        ("developer: [a, b]", "developer: expected a text, got list"),
        ("vcs_url: the usual place", "vcs_url: expected a web address"),
        ("- a", "expected keys with texts, got list"),
        ("a: b: c", "no YAML"),
    ],
)
def test_a_human_s_slip_is_one_line(text, expected, runs, tmp_path):
    (tmp_path / "human.yaml").write_text(text)
    with pytest.raises(UserError, match=re.escape(expected)):
        write_evidence(runs / "table", tmp_path / "pack", tmp_path / "human.yaml")
    assert not (tmp_path / "pack").exists()


def test_answers_are_kept_and_a_run_without_report_is_refused(tmp_path):
    init_evidence(tmp_path)
    with pytest.raises(UserError, match="is there already"):
        init_evidence(tmp_path)
    run_local(make_config("fedavg", "heart", rounds=1, values={"local_steps": 1}), tmp_path)
    with pytest.raises(UserError, match="no report"):
        write_evidence(tmp_path)


def test_the_command_prints_the_shares_of_each_document(runs, capsys):
    assert call("evidence", runs / "table") in (0, None)
    said = capsys.readouterr().out
    assert len(re.findall(r"\d+ from the run \(\d+%\), \d+ by a human \(\d+%\), \d+ blank \(\d+%\)", said)) == 7
    assert "completeness of the ML-BOM: " in said
    assert call("evidence", "init", "a", "b") == 2
