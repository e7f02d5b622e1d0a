# SPDX-License-Identifier: Apache-2.0
"""Tables with several rows a patient become one row by a mapping, as a script by hand makes it; laid-out workbooks."""

import json
import math
import re
import shlex
import struct
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

import relational_sets
from cases import each
from command_line import call
from fairflare.core.errors import UserError
from fairflare.import_data import patient_rows as rows
from fairflare.import_data.proposal import Choices
from hospital_tables import cohort


def made(root, text):
    return rows.patient_rows(root, rows.checked(yaml.safe_load(text), "mapping.yaml"))


def same_cells(table, patient, truth):
    """Cells that are compared; AssertionError where one differs."""
    table, cells = table.set_index(patient), 0
    assert set(table.index) == set(truth) and table.index.is_unique
    for who, line in truth.items():
        assert set(line) == set(table.columns) - {"index_date"}
        for name, value in line.items():
            cell = table.at[who, name]
            if value is None or value != value:
                assert cell == "", (who, name, cell)
            elif isinstance(value, str):
                assert cell == value, (who, name, cell, value)
            else:
                assert math.isclose(float(cell), value, rel_tol=1e-12, abs_tol=1e-12), (who, name, cell, value)
            cells += 1
    return cells


@pytest.fixture(scope="module")
def synthea(tmp_path_factory):
    root = tmp_path_factory.mktemp("synthea")
    return root, relational_sets.synthea(root)


def test_a_relational_set_is_what_a_script_makes_of_it(synthea):
    root, text = synthea
    found = made(root, text)
    assert same_cells(found[0], "PATIENT", relational_sets.of_synthea(root)) > 50_000
    assert len(pd.read_csv(root / "patients.csv")) == 5000 and found[0]["site"].nunique() == 3


def test_nothing_that_is_dated_after_the_index_enters_a_predictor(synthea, tmp_path):
    root, text = synthea
    before = made(root, text)[0]
    for path in root.glob("*.csv"):
        table = pd.read_csv(path, dtype=str)
        if path.stem == "observations":
            start = pd.to_datetime(table["PATIENT"].map(before.set_index("PATIENT")["index_date"]), format="ISO8601")
            later = pd.to_datetime(table["DATE"]).dt.tz_localize(None) > start
            assert 1000 < later.sum() < len(table)
            table.loc[later, "VALUE"] = "1000000"
        table.to_csv(tmp_path / path.name, index=False)
    pd.testing.assert_frame_equal(made(tmp_path, text)[0], before)


CASES = {
    "redcap": (relational_sets.redcap, relational_sets.of_redcap, "record_id", "readmitted", "my export.csv"),
    "stays": (relational_sets.stays, relational_sets.of_stays, "patient", "sepsis", "my stays"),
}


@each("name", CASES)
def test_what_init_prints_leads_to_the_table_of_a_script(name, tmp_path, capsys, monkeypatch):
    build, by_hand, patient, label, called = CASES[name]
    monkeypatch.chdir(tmp_path)
    path = tmp_path / called
    if name == "stays":
        path.mkdir()
    build(path)
    code, _, err = call(capsys, "init", called, "--yes", "--label", label)
    command = shlex.split(re.search(r"fairflare init .*", err.strip())[0])
    assert code == 2 and "\n" not in err.strip() and "one row of each is needed" in err
    code, out, _ = call(capsys, *command[1:])
    file = tmp_path / command[command.index("--mapping") + 1]
    assert code == 0 and file.is_file()
    again = shlex.split(re.search(r"fairflare init .*", out)[0])
    assert same_cells(made(path, file.read_text())[0], patient, by_hand(path)) > 300
    assert call(capsys, *again[1:])[0] == 0
    home = (path if path.is_dir() else tmp_path) / "fairflare"
    description = json.loads((home / "dataset.json").read_text())
    assert description["options"]["label"] == label and len(description["sites"]) == (3 if name == "redcap" else 2)
    names = set(description["options"]["features"].split(","))
    assert names and not names & {"crp_day30", "redcap_event_name", "hour", label}
    assert sum(len(pd.read_csv(home / f"{site}.csv")) for site in description["sites"]) == len(by_hand(path))
    assert (home / "mapping.yaml").read_text() == file.read_text()


def test_known_sets_get_a_proposal_that_works(synthea, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root, _ = synthea
    code, _, err = call(capsys, "init", root, "--dry-run")
    command = shlex.split(re.search(r"fairflare init .*", err)[0])
    assert code == 2 and "as Synthea" in err
    assert call(capsys, *command[1:])[0] == 0
    code, out, _ = call(capsys, *command[1:], "--dry-run")
    assert code == 0 and "5,000 rows of 5,000 patients" in out


OMOP = {
    "person": "person_id,gender_concept_id,year_of_birth\n" + "".join(f"{k},8507,19{k + 40}\n" for k in range(40)),
    "visit_occurrence": "person_id,visit_start_date,care_site_id\n"
    + "".join(f"{k},2020-01-{d:02d},{k % 2}\n" for k in range(40) for d in (5, 15)),
    "measurement": "person_id,measurement_date,measurement_concept_id,value_as_number\n"
    + "".join(f"{k},2020-01-{d:02d},3016723,{d + k / 10}\n" for k in range(40) for d in (2, 5, 9)),
    "death": "person_id,death_date\n" + "".join(f"{k},2020-02-01\n" for k in range(0, 40, 2)),
}


def test_tables_of_which_no_mapping_can_be_proposed_are_told_so(tmp_path, capsys):
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text(f"id,{name},died\n1,2,0\n2,3,1\n")
    code, _, err = call(capsys, "init", tmp_path, "--mapping", tmp_path / "rows.yaml")
    assert code == 2 and "a file that is there, as none can be proposed for these tables: b.csv: expected" in err
    assert err.endswith("which is written by hand (docs/data.md)\n") and not (tmp_path / "rows.yaml").exists()


def test_an_omop_extract_gets_a_proposal(tmp_path):
    for name, text in OMOP.items():
        (tmp_path / f"{name}.csv").write_text(text)
    table = made(tmp_path, rows.propose(tmp_path, Choices()))[0].set_index("person_id")
    assert (
        list(table["measurement_3016723_count"].unique()) == ["2"]
        and table.at["7", "measurement_3016723_last"] == "5.7"
    )
    assert list(table["died"]) == ["1", "0"] * 20 and round(float(table.at["0", "age"])) == 80


TIMES = """\
patient: id
index: {table: visits.csv, date: day, take: each, columns: [stay]}
columns:
  - {name: earlier, table: visits.csv, date: day, window: [null, -1], take: [count, since]}
outcome: {name: dead, table: deaths.csv, date: died, window: [1, 90], take: time,
          until: {table: seen.csv, date: last}}
"""


def small(root):
    (root / "visits.csv").write_text("id,day,stay\n1,2020-01-01,a\n1,2020-01-31,b\n2,2020-01-01,c\n3,2020-01-01,d\n")
    (root / "deaths.csv").write_text("id,died\n1,2020-03-01\n")
    (root / "seen.csv").write_text("id,last\n1,2020-03-01\n2,2020-02-01\n3,2021-01-01\n")


def test_each_stay_is_a_row_with_a_time_to_the_event_or_to_the_end(tmp_path):
    small(tmp_path)
    table = made(tmp_path, TIMES)[0]
    told = dict(
        zip(table["stay"], zip(table["dead"], table["dead_time"], table["earlier_count"], table["earlier_since"]))
    )
    assert told == {"a": ("1", "60", "0", ""), "b": ("1", "30", "1", "30"), "c": ("0", "31", "0", ""),
                    "d": ("0", "90", "0", "")}  # fmt: skip
    plain = made(tmp_path, TIMES.replace("take: time", "take: any"))[0]
    assert dict(zip(plain["stay"], plain["dead"])) == {"a": "1", "b": "1", "c": "", "d": "0"}


WRONG = {
    "a window after the index": ("window: [null, -1]", "window: [null, 3]", "columns.1: window: expected an end of 0"),
    "an outcome before it": ("window: [1, 90]", "window: [-1, 90]", "outcome: window: expected [FROM, TO]"),
    "an unknown key": ("take: each", "taek: each", "index.taek: Extra inputs are not permitted"),
    "an unknown way": ("[count, since]", "[count, sinse]", "columns.1.take"),
    "no such column": ("columns: [stay]", "columns: [staj]", "visits.csv: unknown column 'staj'"),
    "no such table": ("seen.csv", "sehen.csv", "expected a file among deaths.csv, m.yaml"),
    "a table outside": ("seen.csv", "../seen.csv", "expected a path inside the folder"),
    "no dates": ("date: day, take: each", "date: stay, take: each", "visits.csv: stay: expected"),
    "a name twice": ("name: dead", "name: stay", "expected every name once, got 'stay' twice"),
    "a patient that is a number": ("patient: id", "patient: 3", "patient: Input should be a valid string, got 3"),
    "no value": ("take: each", "take: each, where: {stay: z}", "no row has stay 'z'"),
}


@each("name", WRONG)
def test_a_mistake_is_said_in_a_line_with_its_place(name, tmp_path, capsys):
    small(tmp_path)
    old, new, says = WRONG[name]
    assert old in TIMES
    (tmp_path / "m.yaml").write_text(TIMES.replace(old, new, 1))
    code, _, err = call(capsys, "init", tmp_path, "--mapping", tmp_path / "m.yaml", "--dry-run", "--kind", "survival")
    assert code == 2 and says in err and len(err.strip().splitlines()) == 1, err
    assert not (tmp_path / "fairflare").exists()


def test_rows_and_cells_are_bounded(tmp_path, monkeypatch):
    small(tmp_path)
    monkeypatch.setattr(rows, "MOST_PAIRS", 5)
    with pytest.raises(UserError, match=r"visits.csv: expected at most 5 rows at all events, got 6"):
        made(tmp_path, TIMES)
    monkeypatch.setattr(rows, "MOST_PAIRS", 50)
    monkeypatch.setattr(rows, "MOST_SECONDS", -1)
    with pytest.raises(UserError, match="took longer"):
        made(tmp_path, TIMES)


def test_repeat_visits_are_examples_with_a_note_that_names_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = cohort(120).assign(patient=[k // 2 for k in range(120)])
    table["hospital"] = table.groupby("patient")["hospital"].transform("first")
    table.to_csv("visits.csv", index=False)
    code, out, _ = call(capsys, "init", "visits.csv", "--dry-run")
    plain = " ".join(out.split())
    command = re.search(r"fairflare (init visits.csv --mapping \S+)", plain)[1]
    assert code == 0 and "120 rows of 60 patients: each row is an example" in plain
    assert call(capsys, *command.split())[0] == 0
    code, out, _ = call(capsys, *command.split(), "--dry-run")
    assert code == 0 and "60 rows of 60 patients" in out


def workbook(path):
    """A title, groups of names, merged hospitals, a hidden row and column, and a second sheet."""
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    sheet, table = book.active, cohort(120).sort_values("hospital", kind="stable")
    sheet.title = "the data"
    sheet.append(["Export 2024"])
    sheet.merge_cells("A1:G1")
    sheet.append([None, "Person", None, "Labs", None, None, "Outcome"])
    sheet.append(list(table.columns))
    for row in table.itertuples(index=False):
        sheet.append(list(row))
    for first in (4, 44, 84):
        for k in range(first + 1, first + 40):
            sheet.cell(k, 1).value = None
        sheet.merge_cells(f"A{first}:A{first + 39}")
    sheet.column_dimensions["D"].hidden = True
    sheet.row_dimensions[10].hidden = True
    book.create_sheet("legend").append(["code", "meaning"])
    book.save(path)
    return table


def test_a_workbook_is_read_by_the_flags_that_its_refusals_print(tmp_path, capsys):
    table = workbook(tmp_path / "my book.xlsx")
    flags = []
    for says in ("--sheet 'the data'", "--hidden read", "--header 3"):
        code, _, err = call(capsys, "init", tmp_path / "my book.xlsx", "--dry-run", *flags)
        assert code == 2 and says in err, err
        flags += shlex.split(says)
    code, out, _ = call(capsys, "init", tmp_path / "my book.xlsx", "--yes", *flags)
    assert code == 0 and "merged cells" in out
    for site in "ABC":
        own = pd.read_csv(tmp_path / "fairflare" / f"{site}.csv")
        assert sorted(own["crp"]) == sorted(table.loc[table["hospital"] == site, "crp"])


def test_hidden_rows_and_columns_are_left_out_when_asked_for(tmp_path, capsys):
    workbook(tmp_path / "b.xlsx")
    flags = ("--sheet", "the data", "--header", "2-3", "--hidden", "skip", "--label", "Outcome died", "--json")
    code, out, _ = call(capsys, "init", tmp_path / "b.xlsx", "--dry-run", *flags, "--site", "hospital")
    found = json.loads(out)
    assert code == 0 and found["options"]["features"] == "Person age,Person sex,Labs stage,Labs smoker"
    assert found["sites"]["A"]["train"] + found["sites"]["A"]["val"] + found["sites"]["A"]["test"] == 39


def test_a_model_takes_a_workbook_as_init_was_told_to_read_it_and_a_plain_table(tmp_path, capsys):
    table, run = workbook(tmp_path / "b.xlsx"), tmp_path / "run"
    flags = ("--sheet", "the data", "--header", "3", "--hidden", "read", "--label", "died", "--yes")
    assert call(capsys, "init", tmp_path / "b.xlsx", *flags)[0] == 0
    options = ("--data", tmp_path, "--rounds", "1", "--workers", "1", "--out", run)
    code, _, err = call(capsys, "run", "fedavg", *options)
    assert code == 0, err
    table.to_csv(tmp_path / "plain.csv", index=False)
    answers = []
    for name in ("b.xlsx", "plain.csv"):
        code, _, err = call(capsys, "predict", run, tmp_path / name, "--out", tmp_path / f"p-{name}")
        assert code == 0, err
        answers.append(pd.read_csv(tmp_path / f"p-{name}" / "predictions.csv").iloc[:, -1].tolist())
        more = ("--name", "new", "--out", tmp_path / f"e-{name}")
        code, out, err = call(capsys, "evaluate", run, tmp_path / name, *more)
        assert code == 0, out + err
    assert len(answers[0]) == 120 and answers[0] == pytest.approx(answers[1])


def test_units_below_the_names_are_no_patient(tmp_path, capsys):
    table = cohort(60)
    lines = table.to_csv(index=False).splitlines()
    (tmp_path / "u.csv").write_text("\n".join([lines[0], ",years,,mg/l,,,", *lines[1:]]))
    code, out, _ = call(capsys, "init", tmp_path / "u.csv", "--dry-run", "--json")
    told = json.loads(out)
    assert code == 0 and "the second line (years, mg/l ...) holds units or further names" in json.dumps(told["notes"])
    assert "crp" in told["options"]["features"]
    code, out, _ = call(capsys, "init", tmp_path / "u.csv", "--dry-run", "--header", "1-2", "--json")
    assert code == 0 and "crp mg/l" in json.loads(out)["options"]["features"]


def test_a_sheet_that_is_not_there_and_a_header_that_is_none(tmp_path, capsys):
    workbook(tmp_path / "b.xlsx")
    for flags, says in (
        (("--sheet", "x"), "expected one of 'the data', 'legend', got 'x'"),
        (("--sheet", "the data", "--hidden", "read", "--header", "3-2"), "expected a row's number"),
        (("--sheet", "the data", "--hidden", "read", "--header", "999"), "expected a table, got an empty file"),
    ):
        code, _, err = call(capsys, "init", tmp_path / "b.xlsx", "--dry-run", *flags)
        assert code == 2 and says in err, err


def old_workbook(path, sheets):
    """An .xls file: sheet -> its rows of text and numbers, as records (BIFF5) in one stream of a compound file."""

    def record(kind, form, *values):
        body = struct.pack(f"<{form}", *values)
        return struct.pack("<HH", kind, len(body)) + body

    def cell(row, column, value):
        if isinstance(value, str):
            return record(0x204, f"HHHH{len(value)}s", row, column, 0, len(value), value.encode())
        return record(0x203, "HHHd", row, column, 0, value)

    end, parts = record(0x0A, ""), []
    for lines in sheets.values():
        cells = [cell(i, k, value) for i, row in enumerate(lines) for k, value in enumerate(row)]
        parts.append(record(0x809, "HHHH", 0x500, 0x10, 0, 0) + b"".join(cells) + end)
    head, named = record(0x809, "HHHH", 0x500, 5, 0, 0) + record(0x42, "H", 1252), b""
    place = len(head) + sum(11 + len(name) for name in sheets) + len(end)
    for name, part in zip(sheets, parts):
        named += record(0x85, f"IBBB{len(name)}s", place, 0, 0, len(name), name.encode())
        place += len(part)
    stream = b"".join([head, named, end, *parts])
    stream = stream.ljust(max(4096, -len(stream) // 512 * -512), b"\0")
    n, none = len(stream) // 512, 0xFFFFFFFF
    table = [0xFFFFFFFD, 0xFFFFFFFE, *range(3, n + 2), 0xFFFFFFFE]
    top = bytes.fromhex("d0cf11e0a1b11ae1") + bytes(16) + struct.pack("<5H", 62, 3, 0xFFFE, 9, 6) + bytes(10)
    top += struct.pack("<9I", 1, 1, 0, 4096, 0xFFFFFFFE, 0, 0xFFFFFFFE, 0, 0) + b"\xff" * 432
    entries = b""
    for name, kind, child, start, size in (("Root Entry", 5, 1, 0xFFFFFFFE, 0), ("Book", 2, none, 2, len(stream))):
        told = name.encode("utf-16-le")
        entry = told.ljust(64, b"\0") + struct.pack("<HBBIII", len(told) + 2, kind, 1, none, none, child)
        entries += entry + bytes(36) + struct.pack("<III", start, size, 0)
    table = struct.pack(f"<{len(table)}I", *table).ljust(512, b"\xff")
    path.write_bytes(top + table + entries.ljust(512, b"\0") + stream)


def test_the_sheets_of_an_old_workbook_are_named(tmp_path, capsys):
    pytest.importorskip("xlrd")
    table = cohort(120)
    old_workbook(tmp_path / "b.xls", {"data": [[*table], *table.values.tolist()], "legend": [["code", "meaning"]]})
    for flags, says in (((), "or --sheet data, --sheet legend; where"), (("--sheet", "x"), "one of 'data', 'legend'")):
        code, _, err = call(capsys, "init", tmp_path / "b.xls", "--dry-run", *flags)
        assert code == 2 and says in err, err
    code, out, _ = call(capsys, "init", tmp_path / "b.xls", "--dry-run", "--json", "--sheet", "data")
    assert code == 0 and [*json.loads(out)["sites"]] == ["A", "B", "C"]


def test_a_model_predicts_new_tables_by_its_mapping(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        relational_sets.stays(tmp_path / name, n=40 if name == "old" else 12, seed=len(name))
    assert call(capsys, "init", "old", "--mapping", "m.yaml", "--label", "sepsis")[0] == 0
    assert call(capsys, "init", "old", "--mapping", "m.yaml", "--yes")[0] == 0
    code, _, err = call(capsys, "run", "fedavg", "--data", "old", "--set", "rounds=1", "--no-solo", "--out", "run")
    assert code == 0, err
    code, _, err = call(capsys, "predict", "run", "new", "--mapping", "old/fairflare/mapping.yaml", "--out", "found")
    assert code == 0 and Path("found").stat().st_mode & 0o77 == 0, err
    predicted, whose = (pd.read_csv(tmp_path / "found" / f"{name}.csv") for name in ("predictions", "rows"))
    assert len(predicted) == len(whose) == 24 and set(whose["patient"]) == set(
        relational_sets.of_stays(tmp_path / "new")
    )
    rules = yaml.safe_load(Path("m.yaml").read_text())
    for number, (take, says) in enumerate((("first", "new: 24 cases"), ("each", "cases of 24 patients"))):
        text = yaml.safe_dump(rules | {"patient": "stay", "index": rules["index"] | {"take": take}})
        Path("m.yaml").write_text(text)
        code, out, err = call(capsys, "evaluate", "run", "new", "--mapping", "m.yaml", "--out", number)
        assert code == 0 and says in out + err, (out, err)
        found = json.loads(Path(str(number), "evaluation.json").read_text())["sites"]["new"]["calibration"]
        n = 24 if take == "first" else sum(len(pd.read_csv(path)) for path in Path("new").glob("*/*.csv"))
        assert found["n"] == n and 0.4 < found["positives"] / n < 0.6
    Path("m.yaml").write_text(yaml.safe_dump({key: one for key, one in rules.items() if key != "outcome"}))
    code, _, err = call(capsys, "evaluate", "run", "new", "--mapping", "m.yaml", "--out", "none")
    assert code == 2 and "outcome: expected one to evaluate against" in err


def test_events_are_excluded_and_earlier_outcomes_named(tmp_path):
    small(tmp_path)
    text = TIMES.replace("take: time", "take: any").replace(", take: each", "").replace("[1, 90]", "[70, 90]")
    found = made(tmp_path, text)
    assert any(note.startswith("1 rows have an earlier dead, too (exclude:") for note in found[1])
    text += "exclude:\n  - {table: deaths.csv, date: died, window: [0, 60]}\n"
    found = made(tmp_path, text)
    assert list(found[0]["id"]) == ["2", "3"] and "1 events are excluded by deaths.csv" in found[1]


def test_tables_are_joined_by_ids_however_they_are_spelled(tmp_path):
    """0900 in one table and 900 in another were two patients, and whose death was not found counted as alive."""
    stays = ["0900,2020-01-01", "0901,2020-01-01", "902.0,2020-01-01", "P 9,2020-01-01", "900,2020-02-01"]
    for name, lines in (("stays", stays), ("deaths", [f"{who},2020-01-20" for who in ("900", "902", "p9", "904")])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["id,date", *lines, ""]))
    text = "{patient: id, index: {table: stays.csv, date: date}, "
    text += "outcome: {name: died, table: deaths.csv, date: date, window: [0, 30]}}"
    table, notes = made(tmp_path, text)
    assert dict(zip(table["id"], table["died"])) == {"0900": "1", "0901": "0", "902.0": "1", "P 9": "1"}
    assert notes[0].startswith("4 rows of 4 patients")
    assert "1 rows of deaths.csv are of no patient of stays.csv and do not enter" in notes


def test_a_frame_of_redcap_is_refused_without_a_path(tmp_path):
    from fairflare.import_data.write import imported

    relational_sets.redcap(tmp_path / "export.csv")
    with pytest.raises(UserError, match="of 180 record_id") as caught:
        imported(pd.read_csv(tmp_path / "export.csv"), tmp_path / "data", Choices(label="readmitted"))
    assert str(caught.value).startswith("data: REDCap") and "/" not in str(caught.value).replace("docs/", "")


def test_the_mapping_of_the_docs_reads_an_omop_extract(tmp_path):
    more = {
        "person": "person_id,birth_datetime,care_site_id\n" + "".join(f"{k},1950-01-01,{k % 2}\n" for k in range(40))
    }
    more["visit_occurrence"] = "person_id,visit_start_date,visit_concept_id\n" + "".join(
        f"{k},2020-01-{day},{concept}\n" for k in range(40) for day, concept in (("01", 9202), ("05", "9201.0"))
    )
    more["observation_period"] = "person_id,observation_period_end_date\n" + "".join(
        f"{k},2020-0{1 + (k + 1) % 4}-20\n" for k in range(40)
    )
    for name, text in (OMOP | more).items():
        (tmp_path / f"{name}.csv").write_text(text)
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    text = page.partition("## Several rows a patient")[2].partition("```yaml\n")[2].partition("```")[0]
    table = made(tmp_path, text)[0].set_index("person_id")
    assert list(table.loc["1"]) == ["2020-01-05", "1", str(25571 / 365.25), "5.1", "5.1", "2", "0", "0"]
    assert table.at["2", "died"] == "1" and table.at["3", "died"] == "" and table.at["5", "crea_last"] == "5.5"


CLOCKS = {
    "zones": ("2020-01-05T10:00:00+02:00", ["2020-01-05T08:00:00Z", "2020-01-05T08:01:00Z", "2020-01-05"], "1"),
    "days of an index with times": ("2020-01-05 10:00", ["2020-01-05", "2020-01-04"], "1"),
    "times at an index of days": ("2020-01-05", ["2020-01-05 23:00", "2020-01-06 00:00"], "1"),
    "days before months": ("13.01.2020", ["12.01.2020 13:30", "14.01.2020 00:10", "01.02.2020"], "1"),
    "numbers": ("30", ["29.5", "31", "30"], "2"),
    "no rows": ("30", [], "0"),
}


@each("name", CLOCKS)
def test_what_is_dated_after_the_index_is_not_counted_however_it_is_written(name, tmp_path):
    start, dates, n = CLOCKS[name]
    (tmp_path / "v.csv").write_text(f"id,day\n1,{start}\n")
    (tmp_path / "l.csv").write_text("id,when\n" + "".join(f"1.0,{date}\n" for date in dates))
    text = "patient: id\nindex: {table: v.csv, date: day}\n"
    text += "columns: [{name: x, table: l.csv, date: when, take: count}]\n"
    assert list(made(tmp_path, text)[0]["x"]) == [n]


def test_dates_that_may_be_read_in_two_ways_are_refused(tmp_path):
    (tmp_path / "v.csv").write_text("id,day\n1,01/02/2020\n")
    with pytest.raises(UserError, match="v.csv: day: expected dates such as 2024-01-31 13:05, got '01/02/2020'"):
        made(tmp_path, "patient: id\nindex: {table: v.csv, date: day, columns: [day]}\n")


def test_ids_that_hospitals_share_stay_different_people(tmp_path, capsys):
    """The command that ``init`` prints makes one row of each patient of each hospital; without a line it is refused."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"hospital": list("AB") * 90, "pid": [k // 6 for k in range(180)]})
    table = table.assign(age=rng.integers(20, 90, 180), died=rng.integers(0, 2, 30)[table["pid"]])
    table.to_csv(tmp_path / "visits.csv", index=False)
    _, out, _ = call(capsys, "init", tmp_path / "visits.csv", "--dry-run", "--json")
    command = shlex.split(re.search(r"one row of each: fairflare (init .*)", "\n".join(json.loads(out)["notes"]))[1])
    mapping = tmp_path / "mapping.yaml"
    command[command.index("--mapping") + 1] = mapping
    code, out, _ = call(capsys, *command[:4], "--json")
    assert code == 0 and "within: hospital" in mapping.read_text()
    assert json.loads(out) == {"mapping": mapping.read_text(), "written": str(mapping)}
    found = made(tmp_path / "visits.csv", mapping.read_text())[0]
    first = table.drop_duplicates(["hospital", "pid"]).sort_index()
    assert found[["site", "pid", "age"]].to_numpy().tolist() == first.iloc[:, :3].astype(str).to_numpy().tolist()
    text = mapping.read_text().replace("within: hospital\n", "")
    with pytest.raises(UserError, match="30 ids of pid stand at several sites: a line within: hospital"):
        made(tmp_path / "visits.csv", text)
    assert len(made(tmp_path / "visits.csv", f"within: ''\n{text}")[0]) == 30
    known = tmp_path / "synthea"
    known.mkdir()
    days = pd.Series(pd.date_range("2020-01-01", periods=60)).dt.strftime("%Y-%m-%d")
    stays = {"PATIENT": [f"p{k // 2}" for k in range(60)], "START": days, "ORGANIZATION": list("XY") * 30}
    pd.DataFrame({**stays, "ENCOUNTERCLASS": "inpatient"}).to_csv(known / "encounters.csv", index=False)
    people = {"Id": [f"p{k}" for k in range(30)], "GENDER": list("FM") * 15, "BIRTHDATE": "1950-01-01", "DEATHDATE": ""}
    pd.DataFrame(people).to_csv(known / "patients.csv", index=False)
    text = rows.propose(known, Choices())  # ids of one set of tables are those of people, wherever they were
    assert "within: ''" in text and len(made(known, text)[0]) == 30
