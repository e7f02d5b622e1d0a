# SPDX-License-Identifier: Apache-2.0
"""Tables (``table_model``) as Markdown, CSV, LaTeX, HTML and JSON.

Names come from sites, plugins and files: every writer escapes what its form would otherwise read as markup, a LaTeX
command or a spreadsheet's formula. Where people read numbers they are rounded; CSV and JSON keep them whole. Not by
pandas' Styler, which escapes no caption, knows no groups of rows, footnotes or ``scope`` and writes no Markdown.
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from fairflare.engine.state import save_json, save_text
from fairflare.report.table_model import NUMBERS, Cell, Column, Table, headings
from fairflare.report.templates import drawn, rendered

CSV_COLUMNS = ("table", "group", "row", "column_group", "column", *NUMBERS, "words", "mark", "notes")
ENDINGS = ("json", "csv", "md", "tex", "html")
"""The files that ``write_tables`` writes, each with the same name."""
DAGGER = "\N{DAGGER}"
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "\N{MINUS SIGN}": "$-$", "\N{PLUS-MINUS SIGN}": r"$\pm$", "\N{EN DASH}": "--",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "\N{DAGGER}": r"\dag{}", "\N{HORIZONTAL ELLIPSIS}": r"\ldots{}", "|": r"\textbar{}", '"': "''",
    "\N{LESS-THAN OR EQUAL TO}": r"$\leq$", "\N{GREATER-THAN OR EQUAL TO}": r"$\geq$",
    "\N{GREEK SMALL LETTER ALPHA}": r"$\alpha$", "\N{GREEK SMALL LETTER BETA}": r"$\beta$",
    "\N{GREEK SMALL LETTER RHO}": r"$\rho$", "\N{GREEK SMALL LETTER TAU}": r"$\tau$",
    "\N{GREEK SMALL LETTER LAMDA}": r"$\lambda$", "\N{GREEK SMALL LETTER MU}": r"$\mu$",
    "\N{GREEK SMALL LETTER SIGMA}": r"$\sigma$",
}  # fmt: skip
MARKUP = re.compile(
    r"[\\|`*~$\[\]<>]"
    r"|(?<![^\W_])_|_(?![^\W_])"  # not within a word, where it is no emphasis
    r"|&(?=#?\w+;)|:(?=//)|(?<=www)\.",
    re.I,
)
"""What a backslash stands before in Markdown."""


def as_markdown(table: Table, *, heading: int | None = None) -> str:
    """A Markdown table with its caption above and its footnotes below.

    Args:
        heading: level of a heading with the table's title, 1 to 6; None: no heading.
    """
    names = [f"{c.group}: {c.title}" if c.group else c.title for c in table.columns]
    lines = [[markdown(name) for name in (table.stub, *names)]]
    lines += [["---", *("---" if column.words else "--:" for column in table.columns)]]
    for group, rows in groupby(table.rows, key=lambda row: row.group):
        lines += [[f"**{markdown(group)}**", *("" for _ in table.columns)]] if group else []
        for row in rows:
            cells = [_markdown_cell(table.cell(row, column), column) for column in table.columns]
            lines.append([markdown(row.title) + _superscript(row.notes), *cells])
    parts = [f"{'#' * heading} {markdown(table.title)}"] if heading else []
    parts += [markdown(table.caption)] if table.caption else []
    parts += [piped(lines)]
    parts += ["\n".join(f"{i}. {markdown(note)}" for i, note in enumerate(table.footnotes, 1))]
    return "\n\n".join(part for part in parts if part) + "\n"


def piped(lines: Iterable[Iterable[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def as_csv(*tables: Table) -> str:
    """One line per cell, numbers unrounded; text that a spreadsheet would take for a formula begins with "'"."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for table in tables:
        for row in table.rows:
            for column in table.columns:
                cell = table.cell(row, column)
                names = (table.key, row.group, row.key, column.group, column.key)
                last = (cell.words, cell.mark, " ".join(map(str, (*row.notes, *cell.notes))))
                numbers = (getattr(cell, name) for name in NUMBERS)  # csv writes None as nothing
                writer.writerow([*map(spreadsheet, names), *numbers, *map(spreadsheet, last)])
    return out.getvalue()


def as_latex(*tables: Table) -> str:
    r"""``table`` environments in the style of booktabs (``\usepackage{booktabs}``), labelled ``tab:KEY``."""
    return "% needs \\usepackage{booktabs}\n" + "\n".join(map(_latex_table, tables))


def _latex_table(table: Table) -> str:
    count = len(table.columns) + 1
    form = "l" + "".join("l" if column.words else "r" for column in table.columns)
    lines = [r"\begin{table}", r"\centering", f"\\caption{{{latex(table.caption or table.title)}}}"]
    lines += [f"\\label{{tab:{table.key}}}", f"\\begin{{tabular}}{{{form}}}", r"\toprule", *_latex_head(table)]
    lines += [r"\midrule"]
    for index, (group, rows) in enumerate(groupby(table.rows, key=lambda row: row.group)):
        lines += [r"\midrule"] if index else []
        lines += [f"\\multicolumn{{{count}}}{{l}}{{\\emph{{{latex(group)}}}}} \\\\"] if group else []
        for row in rows:
            cells = [_latex_cell(table.cell(row, column), column) for column in table.columns]
            lines.append(" & ".join([_first(row.title) + _latex_notes(row.notes), *cells]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    notes = [f"$^{{{i}}}$ {latex(note)}" for i, note in enumerate(table.footnotes, 1)]
    dominated = any(cell.mark == "dominated" for row in table.rows for cell in row.cells.values())
    notes += [f"{latex(DAGGER)} dominated"] if dominated else []
    lines += [r"\par\smallskip\footnotesize", " ".join(notes)] if notes else []
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def as_html(
    title: str,
    tables: Sequence[Table],
    *,
    lead: Sequence[str] = (),
    figures: Sequence[str] = (),
    facts: Mapping[str, str] | None = None,
) -> str:
    """One page that needs nothing beside it, in light, dark and print, in the style of the reports.

    Args:
        lead: sentences above the tables, each a paragraph.
        figures: SVG elements of ``report.svg``, which escapes what they hold; no other markup is let through.
        facts: name -> text, at the end: the command, versions, the machine.
    """
    pages = [shown(table) for table in tables]
    return rendered(
        "tables", title=title, tables=pages, lead=list(lead), figures=drawn(figures), facts=dict(facts or {})
    )


def write_tables(
    folder: Path,
    name: str,
    title: str,
    tables: Sequence[Table],
    *,
    lead: Sequence[str] = (),
    figures: Sequence[str] = (),
    facts: Mapping[str, str] | None = None,
    more: Mapping[str, Any] | None = None,
    with_json: bool = True,
) -> list[Path]:
    """Write NAME.json, NAME.csv, NAME.md, NAME.tex and NAME.html to ``folder``, which exists; return their paths.

    Args:
        lead: see ``as_html``; stands in the Markdown file, too.
        more: further values of the JSON file.
        with_json: False where the caller writes NAME.json in a form of its own.
    """
    told = dict(facts or {})
    content = {**(more or {}), "title": title, "lead": list(lead), "facts": told}
    if with_json:
        save_json(folder / f"{name}.json", {**content, "tables": [table.to_json() for table in tables]})
    texts: dict[str, str] = {
        "csv": as_csv(*tables),
        "md": _document(title, tables, lead, told),
        "tex": as_latex(*tables),
        "html": as_html(title, tables, lead=lead, figures=figures, facts=told),
    }
    for ending, text in texts.items():
        save_text(folder / f"{name}.{ending}", text)
    return [folder / f"{name}.{ending}" for ending in ENDINGS if with_json or ending != "json"]


def latex(text: str) -> str:
    """Text with everything that LaTeX reads as a command written out; characters without a shape are left out."""
    return "".join(LATEX.get(char, char) for char in _plain(text))


def markdown(text: str) -> str:
    """Text with everything that Markdown reads as markup, an entity or a web address written out."""
    return MARKUP.sub(r"\\\g<0>", _plain(text))


def spreadsheet(text: str) -> str:
    """Text that no spreadsheet computes: what begins as a formula, after blanks or in wide forms too, is quoted."""
    found = _plain(text)
    first = unicodedata.normalize("NFKC", found.lstrip()[:1])
    return f"'{found}" if first in ("=", "+", "-", "@") and found != "-" else found


def _document(title: str, tables: Sequence[Table], lead: Sequence[str], facts: Mapping[str, str]) -> str:
    level = 2 if len(tables) > 1 else None
    parts = [f"# {markdown(title)}\n", *(f"{markdown(sentence)}\n" for sentence in lead)]
    parts += [as_markdown(table, heading=level) for table in tables]
    parts += (
        ["\n".join(f"- {markdown(name)}: {markdown(text)}" for name, text in facts.items()) + "\n"] if facts else []
    )
    return "\n".join(parts)


def shown(table: Table) -> dict[str, Any]:
    heads = [[table.stub], *([column.title] if column.words else column.title for column in table.columns)]
    parts = [
        {
            "group": group,
            "rows": [{"row": row, "cells": [_html_cell(table.cell(row, c), c) for c in table.columns]} for row in rows],
        }
        for group, rows in groupby(table.rows, key=lambda row: row.group)
    ]
    return {"table": table, "heads": heads, "over": headings(table.columns), "parts": parts}


def _html_cell(cell: Cell, column: Column) -> dict[str, Any]:
    form = cell.form or column.form
    below = cell.interval(column.form).strip(" []").replace(", ", " to ") if cell.spread is None else ""
    shown = form.write(cell.value) if below and not cell.words else cell.written(column.form)
    published = "" if cell.published is None else form.write(cell.published)
    words = column.words or (bool(cell.words) and len(cell.words) > 24)
    return {"text": shown, "below": below, "published": published, "cell": cell, "words": words}


def _markdown_cell(cell: Cell, column: Column) -> str:
    shown = markdown(cell.words) if cell.words else cell.written(column.form)
    around = "**" if cell.mark == "best" else ""
    return f"{around}{shown}{around}" + _after(cell, column, _superscript)


def _latex_cell(cell: Cell, column: Column) -> str:
    shown = latex(cell.written(column.form))
    shown = f"\\textbf{{{shown}}}" if cell.mark == "best" else shown
    return shown + latex(_after(cell, column, lambda notes: "")) + _latex_notes(cell.notes)


def _after(cell: Cell, column: Column, notes: Callable[[tuple[int, ...]], str]) -> str:
    published = "" if cell.published is None else f" (paper {(cell.form or column.form).write(cell.published)})"
    return (f" {DAGGER}" if cell.mark == "dominated" else "") + published + notes(cell.notes)


def _latex_head(table: Table) -> list[str]:
    lines, at = [], 2
    if groups := headings(table.columns):
        over = [f"\\multicolumn{{{span}}}{{c}}{{{latex(name)}}}" for name, span in groups]
        lines.append(" & ".join(["", *over]) + r" \\")
        for name, span in groups:
            lines += [f"\\cmidrule(lr){{{at}-{at + span - 1}}}"] if name else []
            at += span
    arrows = {"higher": r" $\uparrow$", "lower": r" $\downarrow$", "": ""}
    titles = [latex(column.title) + arrows[column.better] for column in table.columns]
    return [*lines, " & ".join([_first(table.stub), *titles]) + r" \\"]


def _first(text: str) -> str:
    """A row's first words: no argument of the rule or the line's end before them."""
    found = latex(text)
    return "{}" + found if found.lstrip()[:1] in ("[", "*") else found


def _latex_notes(notes: Iterable[int]) -> str:
    shown = ",".join(map(str, notes))
    return f"$^{{{shown}}}$" if shown else ""


def _superscript(notes: Iterable[int]) -> str:
    shown = ",".join(map(str, notes))
    return f" <sup>{shown}</sup>" if shown else ""


def _plain(text: str) -> str:
    """One line of characters that have a shape."""
    return "".join(char for char in re.sub(r"\s+", " ", str(text)) if char.isprintable())
