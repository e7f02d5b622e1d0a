# SPDX-License-Identifier: Apache-2.0
"""Cardiotocograms in the two forms that people have: no label among the features, no examination in two places.

The segments are made up, under the real names; test_real_tables.py has the real file.
"""

import csv
import json
import struct
import sys

import numpy as np
import pytest
import torch

from cases import each
from fairflare.cli.main import main
from fairflare.core.errors import DataError, MissingData, UserError
from fairflare.data.site_config import SiteConfig
from fairflare.engine.audit import verify
from fairflare.engine.setup.tasks import load
from fairflare_lab.datasets.fedufo_tables import CLASSES, MEASURED, ONE_HOT, Ctg

NAMES = ("FileName", "Date", "SegFile", *MEASURED, *ONE_HOT, "CLASS", "NSP")
STATE = (1, 1, 1, 1, 2, 1, 1, 3, 3, 2)
"""NSP of the classes 1 to 10, as it mostly is."""
N, PER_EXAMINATION = 600, 4


def record(kind, content=b""):
    return struct.pack("<HH", kind, len(content)) + content


def excel(path, rows, sheet="Raw Data"):
    """An Excel 5 file of one sheet, which xlrd reads; text and numbers only."""

    def begin(kind):
        return record(0x0809, struct.pack("<HHHH", 0x0500, kind, 0, 0))

    def heading(offset):
        name = struct.pack("<IBB", offset, 0, 0) + bytes([len(sheet)]) + sheet.encode()
        return begin(5) + record(0x42, struct.pack("<H", 1252)) + record(0x85, name) + record(0x0A)

    cells = begin(0x10)
    for i, row in enumerate(rows):
        for j, cell in enumerate(row):
            place = struct.pack("<HHH", i, j, 0)
            if isinstance(cell, str):
                cells += record(0x0204, place + struct.pack("<H", len(cell)) + cell.encode())
            elif cell is not None:
                cells += record(0x0203, place + struct.pack("<d", cell))
    path.write_bytes(heading(len(heading(0))) + cells + record(0x0A))


def made_up():
    """600 segments of 150 examinations with 60 of each pattern; LB and ASTV tell something of it, b the row."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(N):
        # An examination's last segment has another pattern than its first three.
        pattern = 1 + (i // PER_EXAMINATION + (i % PER_EXAMINATION == 3)) % 10
        numbers = {name: float(rng.integers(0, 100)) for name in MEASURED}
        numbers |= {"b": float(i), "LB": 100 + 5 * pattern + rng.normal(), "ASTV": 30.0 * STATE[pattern - 1]}
        flags = [float(k == pattern) for k in range(1, 11)]
        names = [f"S{i // PER_EXAMINATION:04}.dsp", 35000.0, f"CTG{i:04}.txt"]
        rows.append([*names, *numbers.values(), *flags, float(pattern), float(STATE[pattern - 1])])
    return rows


def write(folder, rows, names=NAMES):
    """As published: a blank row below the names, then the segments, and three rows with maxima at the end."""
    rest = [[None] * len(names), [None] * 20 + [7.0], [None] * len(names)]
    excel(folder / "CTG.xls", [names, [None] * len(names), *rows, *rest])


def write_csv(folder, rows):
    names = [*(f"V{k}" for k in range(1, 36)), "Class"]
    with (folder / "cardiotocography_csv.csv").open("w", newline="") as file:
        csv.writer(file).writerows([names, *([f"{cell:g}" for cell in row[3:39]] for row in rows)])


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ctg")
    write(folder, made_up())
    return folder


@pytest.fixture
def folder(shared, monkeypatch):
    monkeypatch.setenv("FAIRFLARE_DATA", str(shared))
    return shared


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """The CSV alone."""
    write_csv(tmp_path, made_up())
    monkeypatch.setenv("FAIRFLARE_DATA", str(tmp_path))
    return tmp_path


OPTIONS = [{}, {"label": "CLASS"}, {"unit": "segment", "n_sites": 3, "alpha": 2.0}, {"label": "CLASS", "data_seed": 5}]


def test_what_is_known_without_the_file(monkeypatch):
    monkeypatch.delenv("FAIRFLARE_DATA", raising=False)
    task = load("ctg", "paper")
    assert task.sites() == {"site-1": "label skew, alpha 10000", "site-2": "label skew, alpha 10000"}
    assert len(task.classes) == 10 and Ctg().classes == ("normal", "suspect", "pathologic")
    assert task.network()(torch.zeros(2, 25)).shape == (2, 10)
    assert Ctg(features="paper").network()(torch.zeros(2, 35)).shape == (2, 3)


def test_the_settings_of_the_paper():
    training = Ctg.presets["paper"].training
    assert (training.rounds, training.epochs, training.batch_size, training.optimizer) == (10, 5, 32, "adam")
    task = load("ctg", "paper")
    assert (task.label, task.model, task.n_sites, task.alpha, task.features) == ("CLASS", "mlp", 2, 10_000, "clean")
    assert Ctg.presets["paper"].settings_of("fedufo") == {"radius": 1e-4, "gamma": 1e-3, "steps": 5}


@pytest.mark.parametrize("options", OPTIONS)
def test_every_segment_is_in_one_split_of_one_site(options, folder):
    task = Ctg(**options)
    rows = [r for site in task.sites() for r in task.rows(site).values()]
    assert sorted(np.concatenate(rows)) == list(range(N)) and min(map(len, rows)) > 0
    for site in task.sites():
        labels = np.concatenate([split.targets for split in task.site_data(site).splits.values()])
        assert len(labels) >= 40 and np.bincount(labels, minlength=len(task.classes)).min() >= 5


@pytest.mark.parametrize("label", CLASSES)
def test_an_examination_stays_together(label, folder):
    task = Ctg(label=label)
    parts = [{i // PER_EXAMINATION for i in r} for site in task.sites() for r in task.rows(site).values()]
    assert sum(map(len, parts)) == N / PER_EXAMINATION == len(set.union(*parts))
    task = Ctg(label=label, unit="segment")
    parts = [{i // PER_EXAMINATION for i in r} for site in task.sites() for r in task.rows(site).values()]
    assert sum(map(len, parts)) > 1.5 * N / PER_EXAMINATION


@pytest.mark.parametrize("options", OPTIONS)
def test_the_same_twice_and_another_with_another_seed(options, folder):
    one, two = (Ctg(**options).site_data("site-2").splits for _ in range(2))
    for split in one:
        assert torch.equal(one[split].inputs, two[split].inputs)
        assert torch.equal(one[split].targets, two[split].targets)
    other = Ctg(**{**options, "data_seed": 99})
    assert other.rows("site-2")["test"].tolist() != Ctg(**options).rows("site-2")["test"].tolist()


def test_labels_and_features_follow_their_segments(folder):
    made = made_up()
    for label, column in (("NSP", -1), ("CLASS", -2)):
        task = Ctg(label=label)
        rows, data = task.rows("site-1"), task.site_data("site-1")
        for split in ("train", "val", "test"):
            assert data.splits[split].targets.tolist() == [made[i][column] - 1 for i in rows[split]]
        raw = np.array([made[i][3:28] for i in rows["train"]])
        expected = (raw - raw.mean(0)) / raw.std(0)
        np.testing.assert_allclose(data.splits["train"].inputs, expected, atol=1e-4)


def test_clean_features_hold_no_label(folder, tmp_path, monkeypatch):
    """Other patterns with the same NSP change nothing that a network sees; "paper" shows the pattern."""
    clean, paper = Ctg(unit="segment"), Ctg(unit="segment", features="paper")
    before = clean.site_data("site-1").splits["train"].inputs
    flags = paper.site_data("site-1").splits["train"].inputs[:, 25:]
    made = made_up()
    assert flags.argmax(1).tolist() == [made[i][-2] - 1 for i in paper.rows("site-1")["train"]]
    changed = [[*row[:28], *([1.0] + [0.0] * 9), 1.0, row[-1]] for row in made]
    write(tmp_path, changed)
    monkeypatch.setenv("FAIRFLARE_DATA", str(tmp_path))
    assert before.shape[1] == 25 and torch.equal(clean.site_data("site-1").splits["train"].inputs, before)


def test_paper_features_are_unscaled(folder):
    task = Ctg(label="CLASS", features="paper")
    rows, made = task.rows("site-2")["test"], made_up()
    np.testing.assert_allclose(task.site_data("site-2").splits["test"].inputs, [made[i][3:38] for i in rows], rtol=1e-6)


def test_a_limit(folder):
    task, whole = Ctg(limit=7), Ctg()
    for split, rows in task.rows("site-1").items():
        assert rows.tolist() == whole.rows("site-1")[split][:7].tolist() and len(rows) == 7


def test_the_csv_gives_the_same(tables, tmp_path, monkeypatch):
    options = {"label": "CLASS", "unit": "segment"}
    one = Ctg(**options).site_data("site-1").splits["train"]
    other = tmp_path / "other"
    other.mkdir()
    write(other, made_up())
    monkeypatch.setenv("FAIRFLARE_DATA", str(other))
    two = Ctg(**options).site_data("site-1").splits["train"]
    assert torch.equal(one.targets, two.targets) and torch.allclose(one.inputs, two.inputs, atol=1e-4)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"unit": "segment"}, "label: expected CLASS, the only one in cardiotocography_csv.csv, got 'NSP'"),
        ({"label": "CLASS"}, "unit: expected segment, since cardiotocography_csv.csv names no examinations"),
    ],
)
def test_what_the_csv_lacks(options, message, tables):
    with pytest.raises(UserError, match=message):
        Ctg(**options).check_data()


def test_a_site_may_have_its_own_copy(folder, monkeypatch):
    before = Ctg().rows("site-2")["val"].tolist()
    monkeypatch.delenv("FAIRFLARE_DATA")
    assert Ctg().local_data("site-2", SiteConfig(data_root=str(folder))).size("val") == len(before)


@pytest.mark.parametrize("value", [None, "nowhere"])
def test_a_missing_file_is_named_and_the_tree_shown(value, monkeypatch):
    monkeypatch.delenv("FAIRFLARE_DATA", raising=False)
    if value:
        monkeypatch.setenv("FAIRFLARE_DATA", value)
    with pytest.raises(MissingData) as caught:
        Ctg().check_data()
    assert ("nowhere/CTG.xls" if value else "in FAIRFLARE_DATA") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [line.split()[0] for line in caught.value.tree.splitlines()] == ["CTG.xls", "cardiotocography_csv.csv"]


def cell(row, name, value):
    def change(rows):
        rows[row][NAMES.index(name)] = value

    return change


BAD = {
    # The first segment is in row 3 of the sheet.
    r"CTG.xls: NSP, row 3: expected 1, 2, 3, got '4.0'": cell(0, "NSP", 4.0),
    r"CTG.xls: NSP, row 4: expected a number, got nothing": cell(1, "NSP", None),
    r"CTG.xls: CLASS, row 5: expected 1, 2, .*, 10, got '1.5'": cell(2, "CLASS", 1.5),
    r"CTG.xls: ASTV, row 6: expected a number, got 'high'": cell(3, "ASTV", "high"),
    r"CTG.xls: LB, row 7: expected a number, got nothing": cell(4, "LB", None),
    r"CTG.xls: expected columns A to SUSP to be CLASS in one-hot form": cell(5, "SUSP", 1.0),
}


@each("message", BAD)
def test_a_bad_cell_is_named(message, tmp_path, monkeypatch):
    rows = made_up()
    BAD[message](rows)
    write(tmp_path, rows)
    monkeypatch.setenv("FAIRFLARE_DATA", str(tmp_path))
    with pytest.raises(DataError, match=message) as caught:
        Ctg().check_data()
    assert "\n" not in str(caught.value)


def test_a_missing_column_is_named(tmp_path, monkeypatch):
    write(tmp_path, made_up(), [name.replace("SUSP", "SUS") for name in NAMES])
    monkeypatch.setenv("FAIRFLARE_DATA", str(tmp_path))
    with pytest.raises(DataError, match="CTG.xls: expected columns 'SUSP'; it has: FileName, Date, .*SUS, CLASS, NSP"):
        Ctg().check_data()


@pytest.mark.parametrize("content", [b"", b"<html>not found</html>"])
def test_a_file_that_is_no_table(content, tmp_path, monkeypatch):
    (tmp_path / "CTG.xls").write_bytes(content)
    monkeypatch.setenv("FAIRFLARE_DATA", str(tmp_path))
    with pytest.raises(DataError, match="CTG.xls: expected an Excel file with sheet 'Raw Data'") as caught:
        Ctg().check_data()
    assert caught.value.code == "unreadable"


def test_another_sheet(tmp_path, monkeypatch):
    excel(tmp_path / "CTG.xls", [NAMES, *made_up()], sheet="Data")
    monkeypatch.setenv("FAIRFLARE_DATA", str(tmp_path))
    with pytest.raises(DataError, match="CTG.xls: expected an Excel file with sheet 'Raw Data'"):
        Ctg().check_data()


def test_what_to_install_is_said(tmp_path, monkeypatch):
    write(tmp_path, made_up())
    monkeypatch.setenv("FAIRFLARE_DATA", str(tmp_path))
    monkeypatch.setitem(sys.modules, "xlrd", None)
    with pytest.raises(UserError, match=r"CTG.xls: needs xlrd: pip install 'fairflare\[tables\]'"):
        Ctg().check_data()


@each(
    "options, message",
    [
        ({"label": "SUSP"}, "label: expected one of NSP, CLASS, got 'SUSP'"),
        ({"unit": "fetus"}, "unit: expected one of examination, segment"),
        ({"features": "all"}, "features: expected one of clean, paper"),
        ({"n_sites": 1}, "n_sites: expected 2..50, got 1"),
        ({"limit": 1}, "limit: expected at least 2, or none, got 1"),
        ({"alpha": float("inf")}, "alpha: expected a number above 0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message):
        Ctg(**options)


def run(capsys, out, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["run", "fedufo", "--rounds", "2", "--no-solo", "--json", "--out", str(out), *arguments])
    streams = capsys.readouterr()
    assert stop.value.code == 0, streams.err
    evaluation = next(entry for entry in verify(out / "audit.jsonl") if entry["event"] == "evaluation")
    return json.loads(streams.out)["report"], evaluation


def test_a_run(folder, tmp_path, capsys):
    report, evaluation = run(capsys, tmp_path / "run", "--task", "ctg", "--set", "model=linear")
    assert set(report["sites"]) == {"site-1", "site-2"}
    for row in report["sites"].values():
        assert 0.2 < row["metrics"]["balanced_accuracy"] <= 1
    assert set(evaluation["sites"]["site-1"]["groups"]["test"]) <= set(CLASSES["NSP"])
