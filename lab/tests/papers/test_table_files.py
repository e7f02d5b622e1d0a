# SPDX-License-Identifier: Apache-2.0
"""Tables as values and as files: what stands in them, what is escaped, what people and programs read."""

import csv
import html
import io
import json
import math
import re
from html.parser import HTMLParser

import pytest

from fairflare.report.fairness import mean_ci
from fairflare.report.frames import markdown
from fairflare_lab.report.table_files import (
    ENDINGS,
    Cell,
    Column,
    Form,
    Row,
    Table,
    as_csv,
    as_html,
    as_markdown,
    with_best,
    write_tables,
)

NASTY = "<script>alert(1)</script> | 50 % of $x_1$ & \\input{/etc/passwd} #1 ~ ^ `code` [a](b)"
COLUMNS = (
    Column("clean", "Clean", group="Test sets", better="higher"),
    Column("noise", "Noise", group="Test sets", better="higher", form=Form(digits=1, scale=100)),
    Column("gap", "Gap", better="lower"),
    Column("said", "Said", words=True),
)


@pytest.fixture
def table():
    first = {"clean": Cell.of(mean_ci([0.8, 0.82])), "noise": Cell(0.5), "gap": Cell(0.25, 0.1, 0.4, notes=(1,))}
    noise = Cell(0.62, published=0.6, published_spread=0.02)
    second = {"clean": Cell(0.8104), "noise": noise, "gap": Cell(0.3), "said": Cell.text("a|b")}
    rows = (Row("a", "FedAvg", first, group="Averages"), Row("b", "FedISM+", second, group="Others", notes=(2,)))
    return Table("demo", "A demo", COLUMNS, rows, caption="Mean ± half.", footnotes=("One seed.", "Another."))


def test_numbers_are_written_as_their_column_says(table):
    page = as_markdown(table, heading=2)
    assert page.startswith("## A demo\n\nMean ± half.\n\n| Method | Test sets: Clean | Test sets: Noise | Gap | Said |")
    assert "| FedAvg | 0.810 ± 0.014 | 50.0 | 0.250 [0.100, 0.400] <sup>1</sup> | – |" in page
    assert "| FedISM+ <sup>2</sup> | 0.810 | 62.0 (paper 60.0 ± 2.0) | 0.300 | a\\|b |" in page
    assert "| **Averages** |" in page and "1. One seed.\n2. Another." in page
    assert Cell(-0.5).written(Form(signed=True, digits=2)) == "\N{MINUS SIGN}0.50"
    assert Cell(math.nan).written(Form()) == Cell().written(Form()) == "\N{EN DASH}"


def test_best_is_of_what_is_written_and_in_the_better_direction(table):
    marks = {(row.key, key): cell.mark for row in with_best(table).rows for key, cell in row.cells.items()}
    assert marks["a", "clean"] == marks["b", "clean"] == "best", "0.810 and 0.810 look alike"
    assert (marks["a", "noise"], marks["b", "noise"]) == ("", "best")
    assert (marks["a", "gap"], marks["b", "gap"]) == ("best", "")
    assert "**62.0**" in as_markdown(with_best(table))


def test_csv_keeps_numbers_whole_and_computes_nothing(table):
    rows = list(csv.DictReader(io.StringIO(as_csv(table))))
    assert len(rows) == 8
    noise = next(row for row in rows if (row["row"], row["column"]) == ("b", "noise"))
    assert (float(noise["value"]), float(noise["published"]), noise["column_group"]) == (0.62, 0.6, "Test sets")
    evil = Table("evil", "e", (Column("x", "x"),), (Row("=1+1", "r", {"x": Cell.text("@SUM(A1)\nnext")}),))
    row = next(csv.DictReader(io.StringIO(as_csv(evil))))
    assert (row["row"], row["words"]) == ("'=1+1", "'@SUM(A1) next")


@pytest.mark.parametrize(
    "name", [" =HYPERLINK(1)", "\N{FULLWIDTH EQUALS SIGN}1+1", "\N{NO-BREAK SPACE}-1", "\t@SUM(A1)"]
)
def test_a_formula_after_blanks_or_in_wide_forms_is_quoted(name):
    evil = Table("evil", "e", (Column("x", "x"),), (Row(name, "r", {"x": Cell.text(name)}, group=name),))
    row = next(csv.DictReader(io.StringIO(as_csv(evil))))
    assert [row[key][:1] for key in ("group", "row", "words")] == ["'"] * 3
    usual = Table("usual", "u", (Column("x", "x"),), (Row("fed-avg", "r", {"x": Cell.text("-")}),))
    row = next(csv.DictReader(io.StringIO(as_csv(usual))))
    assert (row["row"], row["words"]) == ("fed-avg", "-")


ODD = ("_a_ b", "~~a~~", "a &amp; b", "https://a.example/b", "www.a.example", "$x$", "**a**", "a_b", "A & B: c")


def test_markdown_shows_names_as_they_are():
    render = pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable(["table", "strikethrough"]).render
    rows = tuple(Row(str(i), name, {"x": Cell.text(name)}, group=name) for i, name in enumerate(ODD))
    table = Table("odd", ODD[0], (Column("x", ODD[1], words=True),), rows, footnotes=ODD)
    shown = render(as_markdown(table, heading=2))
    assert not re.search(r"<(em|s|del|a|code)\b", shown)
    cells = [html.unescape(cell) for cell in re.findall(r"<td[^>]*>(.+)</td>", shown)]
    bold = [f"<strong>{name}</strong>" for name in ODD]
    assert cells == [cell for name, strong in zip(ODD, bold) for cell in (strong, name, name)]
    assert [html.unescape(item) for item in re.findall(r"<li>(.+)</li>", shown)] == list(ODD)
    assert markdown("a_b") == "a_b" and not re.search(r"(?<!\\)://|www\.", as_markdown(table)), (
        "GitHub makes these links"
    )


def test_every_writer_escapes_names():
    rows = (Row("r", NASTY, {"x": Cell.text(NASTY)}, group=NASTY),)
    table = Table("evil", NASTY, (Column("x", NASTY, words=True, group=NASTY),), rows, NASTY, NASTY, (NASTY,))
    page = as_html(NASTY, [table], lead=[NASTY], facts={NASTY: NASTY})
    assert "<script" not in page and page.count("&lt;script&gt;") >= 9
    assert "<script" not in re.sub(r"\\.", "", as_markdown(table))
    line = next(line for line in as_markdown(table).splitlines() if line.startswith("| \\<script\\>"))
    assert len(re.findall(r"(?<!\\)\|", line)) == 3


def test_the_page_is_whole_and_fetches_nothing(table):
    class Reader(HTMLParser):
        def __init__(self):
            super().__init__()
            self.open, self.cells = [], []

        def handle_starttag(self, tag, attrs):
            if tag not in ("meta", "br", "link", "img"):
                self.open.append(tag)
            self.cells += [tag] if tag == "td" else []
            assert not {"src", "href", "onclick"} & {name for name, _ in attrs}

        def handle_endtag(self, tag):
            assert self.open.pop() == tag

    page, reader = as_html("Demo", [table], lead=["First."], facts={"command": "fairflare x"}), Reader()
    reader.feed(page)
    assert not reader.open and reader.cells.count("td") == 8 + 1 + 1  # values, the empty corner, the command
    assert "paper 60.0" in page and "0.100 to 0.400" in page


def test_files_say_the_same(table, tmp_path):
    facts = {"command": "fairflare demo"}
    files = write_tables(tmp_path, "demo", "Demo", [table], lead=["First."], facts=facts)
    assert [path.name for path in files] == [f"demo.{ending}" for ending in ENDINGS]
    content = json.loads((tmp_path / "demo.json").read_text())
    assert content["facts"] == facts
    row = content["tables"][0]["rows"][1]
    assert row["cells"]["noise"] == {"value": 0.62, "published": 0.6, "published_spread": 0.02}
    assert row["cells"]["said"] == {"value": None, "words": "a|b"}
    assert all(
        "0.810" in (tmp_path / f"demo.{end}").read_text() or "0.81" in (tmp_path / f"demo.{end}").read_text()
        for end in ENDINGS
    )


@pytest.mark.parametrize(
    "change",
    [
        {"key": "../up"},
        {"columns": (COLUMNS[0], COLUMNS[0])},
        {"rows": (Row("a", "A"), Row("a", "B"))},
        {"rows": (Row("a", "A", {"nothing": Cell(1.0)}),)},
        {"rows": (Row("a", "A", {"clean": Cell(1.0, notes=(3,))}),)},
    ],
)
def test_a_table_that_cannot_be_is_refused(table, change):
    fields = {name: getattr(table, name) for name in ("key", "title", "columns", "rows", "footnotes")} | change
    with pytest.raises(ValueError, match="expected|column|footnotes"):
        Table(**fields)


def test_headings_join_neighbours_only():
    columns = [Column("a", "a", "x"), Column("b", "b", "x"), Column("c", "c"), Column("d", "d", "x")]
    assert Table("t", "t", columns, []).headings() == [("x", 2), ("", 1), ("x", 1)]
    assert Table("t", "t", [Column("a", "a")], []).headings() == []
