# SPDX-License-Identifier: Apache-2.0
"""The papers' printed numbers: each stands in its cell, as transcribed; what a card says of the authors' own models."""

import csv
import re
import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from cases import each
from fairflare.aggregators.fedufo import FedUFO
from fairflare_lab.papers import tabulate

sys.path[:0] = [str(Path(__file__).parent)]
from test_printed_form import OURS, PRINTED, Shown  # noqa: E402

ROOT = Path(__file__).parents[3]
SHARED = ROOT.parent / "shared" / "data" / "published"
NAMES = sorted(path.stem for path in tabulate.FOLDER.glob("*-table-*.csv"))
CARD = (ROOT / "docs" / "results" / "fedufo.md").read_text(encoding="utf-8")


def transcribed(name):
    """The rows of a file of the transcription; skips where it is not at hand."""
    if not (SHARED / name).is_file():
        pytest.skip("the transcription of the papers' tables is not here")
    return list(csv.DictReader((SHARED / name).read_text(encoding="utf-8").splitlines()))


@each("name", NAMES)
def test_every_printed_number_stands_in_a_cell_and_only_on_the_papers_data(name, monkeypatch):
    shown = Shown(name, OURS[name], monkeypatch, PRINTED[name])
    (table,) = shown.tables
    numbers, source = tabulate.published_numbers(name)
    for stands_in in (False, True):
        used = [
            tabulate.Used(data, data.task, stands_in, {row.key: {0: data} for row in table.rows}) for data in table.data
        ]
        found = tabulate.tabulated(table, "x", used, numbers)[0]
        found = tabulate.with_published(shown.counted(table, monkeypatch), numbers, used) if table.draw else found
        cells = [cell.published for row in found.rows for cell in row.cells.values() if cell.published is not None]
        assert sorted(cells) == ([] if stands_in else sorted(value for value, _ in numbers.values()))
    assert name.rpartition("-")[2] in source


@each("name", NAMES)
def test_printed_numbers_are_those_of_the_transcription(name):
    """Of every method and unit: no number is another's."""
    paper, _, number = name.split("-")
    rows = transcribed(f"{paper}-{number}.csv")
    printed = {(Decimal(row["value"].replace(",", "")), row["std"] and Decimal(row["std"])) for row in rows}
    columns = {column.key: column for block in OURS[name].tables[0].blocks for column in block.columns}
    text = (tabulate.FOLDER / f"{name}.csv").read_text(encoding="utf-8").splitlines()[1:]
    for row in csv.DictReader(text):
        key = next((part for part in row["column"].split(".") if part in columns), "std")
        scale = int(columns[key].scale) if columns else 1
        spread = row.get("std") and Decimal(row["std"]) * scale
        assert (Decimal(row["value"]) * scale, spread or "") in printed, row


@each("name", [name for name in NAMES if len(OURS[name].tables[0].blocks) > 1 and OURS[name].tables[0].rows])
def test_a_single_data_set_of_several_has_its_printed_numbers(name, monkeypatch):
    shown = Shown(name, OURS[name], monkeypatch, PRINTED[name])
    numbers, _ = tabulate.published_numbers(name)
    for block in shown.tables[0].blocks:
        table = replace(shown.tables[0], blocks=(block,), mean="")
        used = [tabulate.Used(block.data, block.data.task, False, {row.key: {0: block.data} for row in table.rows})]
        found = tabulate.tabulated(table, "x", used, numbers)[0]
        cells = [cell.published for row in found.rows for cell in row.cells.values() if cell.published is not None]
        own = [value for (_, column), (value, _) in numbers.items() if column.startswith(f"{block.data.key}.")]
        assert sorted(cells) == sorted(own)


def test_a_number_of_each_paper_is_where_it_was_printed():
    cells = {
        ("fedism-table-2", "q-fedavg", "ich.corrupted-auc"): ("fedism-2.csv", "q-FedAvg", "Corrupted", "AUC"),
        ("fedlwr-table-2", "fedlwr", "std"): ("fedlwr-2.csv", "Fed-LWR", "Std.", "std of Dice over sites, %"),
        ("fedheal-table-2", "moon-heal", "digits.domain.SVHN"): (
            *("fedheal-2.csv", "MOON + FedHEAL", "SVHN", "top-1 accuracy"),
        ),
        ("fedufo-table-9", "u", "fetal.value"): ("fedufo-9.csv", "FedUFO_u", "all patients", "accuracy, %"),
        ("fedce-table-3", "cgsv", "retina.cosine"): ("fedce-3.csv", "CGSV", "clients", "cosine similarity"),
    }
    for (name, row, column), (file, method, group, metric) in cells.items():
        rows = [
            r for r in transcribed(file) if (r["method"], r["group_or_column"], r["metric"]) == (method, group, metric)
        ]
        scale = 1 if column.endswith("cosine") else 100
        assert tabulate.published_numbers(name)[0][row, column][0] == pytest.approx(float(rows[0]["value"]) / scale)


def test_what_the_card_says_of_the_authors_models():
    text = CARD.split("**The authors' own final models**")[1].split("\n\n")[0]
    against = transcribed("fedufo_authors_models_against_paper.csv")
    equal = {
        data: [row["equal"] for row in against if row["data"] == data and row["equal"]] for data in ("cardio", "covid")
    }
    assert equal == {"cardio": ["yes"] * 9, "covid": ["no"] * 9} and "all nine" in text and "none of nine" in text
    for row in against:
        if row["data"] == "cardio" and row["equal"]:
            value = Decimal(row["printed_in_paper"])
            assert (str(value)[1:] if "disparity" in row["quantity"] else f"{100 * value:.2f}") in text, row
    client = next(
        row for row in against if (row["method"], row["quantity"], row["data"]) == ("FedUFO_c", "accuracy", "covid")
    )
    assert f"{100 * Decimal(client['recomputed']):.2f} for {100 * Decimal(client['printed_in_paper']):.2f}" in text
    models = transcribed("fedufo_authors_models.csv")
    gammas = [float(row["gamma"]) for row in models]
    assert f"gamma from {min(gammas):g} to {max(gammas):g} and radius 0" in text
    assert {float(row["radius"]) for row in models} == {0.0} and len({row["model"] for row in models}) == 6


def test_what_the_papers_radius_permits():
    """Of two sites, at worst."""
    moved = FedUFO(level="client", radius=1e-4, gamma=1e6)._next({"a": 0.5, "b": 0.5}, {"a": 1.0, "b": 0.0}, 1e-4)
    said = re.findall(r"\.5 ± (\.\d+)", CARD)
    assert said and set(said) == {f"{moved['a'] - 0.5:.4f}"[1:]}
