# SPDX-License-Identifier: Apache-2.0
"""Checks each comparing sentence of the study's pages against the intervals in the files beside this script.

    python docs/results/study/check.py

A sentence that compares (``COMPARING``) has marks in docs/study_claims.txt; others need none. A line "= PAGE" begins
a page; then come sentences by their opening words, each with its marks below it, indented:

    claim: TASK | ARM | VERSUS | OVER | METRIC | better   a paired difference and its verdict: better, worse or cannot
                                                          be told
    count: TASK | ARM | METRIC | loses=7                  a line of joining.csv: gains, cannot_be_told, loses, lower,
                                                          gains_together, loses_together or of; with * for ARM the
                                                          least over all trained arms, and with loses_most=7 the most
    only: TASK | VERSUS | OVER | METRIC | better | A, B   of the methods in the task's table these alone have that
                                                          verdict; "none" for none
    without: TASK | METRIC | loses | A, B                 of all arms but the trivial one, these alone have none in
                                                          that column of joining.csv
    floor: TASK                                           a line of floors.csv
    mean: TASK | ARM | OVER | METRIC                      the value of an arm, without a comparison
    definition                                            says what words mean: no arm, no figure

TASK "drift/heart" of a claim, a count or a mean is the task "heart" of the files in ``../drift``, and "exact/heart" of
a claim or a mean that of ``benchmarks/drift/exact.csv``.

Every figure with three decimals, in whatever sentence, is a mean, an interval's end or a value of a line that it marks,
and every verdict and count is the one in the files; anything else is reported, and the exit code is 1. The sections
``ELSEWHERE`` of STUDY.md quote other folders, whose own tests hold them to their files.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import plan
import tables

sys.path.append(str(Path(__file__).resolve().parents[1] / "drift"))
sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks" / "drift"))

import drift_tables  # noqa: E402
import exact  # noqa: E402

COMPARING = re.compile(
    r"\b(better|worse|worst off|gains?|gained|los(?:es|e|t|ing)|benefits?|harm(?:s|ed)?|help(?:s|ed)?|improv\w+|hurts?"
    r"|rais(?:es|ed)|lower(?:s|ed)?|higher|cannot be told|outperform\w*|beats?|wins?|mends?|repairs?|enough|best|fewer"
    r"|above|below|exceeds?|larger|smaller|closer)\b",
    re.I,
)
FIGURE = re.compile(r"(?<![\w.])[+\u2212-]?\d?\.\d{3}(?!\d)")
DRIFT, EXACT = "drift/", "exact/"
CLAIMS = tables.HERE.parents[1] / "study_claims.txt"
ELSEWHERE = re.compile(r"^## (Drift|Survival|Joining)$.*?(?=^## |\Z)", re.S | re.M)
Marks = list[tuple[str, list[str]]]
"""Of a sentence: (kind, words)."""
_read = functools.cache(tables.read)
VERDICTS = ("better", "worse", "cannot be told")


def main() -> int:
    """Print what does not hold."""
    marks, found = claims(CLAIMS.read_text(encoding="utf-8")), []
    pages = {path.relative_to(tables.ROOT).as_posix(): path.read_text(encoding="utf-8") for path in tables.PAGES}
    for name, page in pages.items():
        found += [f"{name}: {one}" for one in problems(page, marks.get(name, {}))]
    found += [f"study_claims.txt: no such page: {name}" for name in marks if name not in pages]
    print("\n".join(found) or f"{sum(len(list(sentences(one))) for one in pages.values())} sentences, as the files say")
    return 1 if found else 0


def claims(text: str) -> dict[str, dict[str, Marks]]:
    """Page -> opening words of a sentence -> its marks."""
    found: dict[str, dict[str, Marks]] = {}
    for line in filter(str.strip, text.splitlines()):
        if line.startswith("= "):
            page = found.setdefault(line[2:], {})
        elif not line.startswith(" "):
            opening = line
            page[opening] = []
        else:
            kind, _, words = line.strip().partition(":")
            page[opening].append((kind, [word.strip() for word in words.split("|")]))
    return found


def problems(page: str, marks: Mapping[str, Marks]) -> list[str]:
    """One line for each sentence that does not hold, and for each opening that is not that of one sentence."""
    texts = list(sentences(page))
    begun = {opening: [text for text in texts if text.startswith(opening)] for opening in marks}
    found = [f"opens {len(of)} sentences: {opening}" for opening, of in begun.items() if len(of) != 1]
    for text in texts:
        own = [mark for opening, of in begun.items() if text in of for mark in marks[opening]]
        found += [f"{why}: {text}" for why in wrong(text, own)]
    return found


def sentences(page: str) -> Iterator[str]:
    """Sentences of the prose: everything but tables, code, headings and ``ELSEWHERE``."""
    prose = re.sub(r"^```.*?^```", "", ELSEWHERE.sub("", page), flags=re.S | re.M)
    lines = [line for line in prose.splitlines() if not line.startswith(("|", "#"))]
    for paragraph in re.split(r"\n\s*\n|\n(?=- )", "\n".join(lines)):
        flat = re.sub(r"\s+", " ", paragraph).strip()
        yield from (text for part in re.split(r"(?<=[.!?])\s", flat) if (text := part.strip()))


def wrong(text: str, marks: Marks) -> list[str]:
    """What does not hold of one sentence."""
    if not marks and COMPARING.search(text):
        return ["a comparing sentence without a mark"]
    found: list[str] = []
    known: set[str] = set()
    for kind, words in marks:
        problem, figures = CHECKS[kind](text, words)
        found += [problem] if problem else []
        known |= figures
    strange = [figure for figure in FIGURE.findall(text) if _plain(figure) not in known]
    return found + ([f"figures {strange} of no marked line"] if strange else [])


def claim(text: str, words: list[str]) -> tuple[str, set[str]]:
    """The verdict of a paired difference."""
    if len(words) != 6 or words[5] not in VERDICTS:
        return f"claim: expected TASK | ARM | VERSUS | OVER | METRIC | verdict, got {words}", set()
    row = _line(tables.DIFFERENCES, dict(zip(("task", "arm", "versus", "over", "metric"), words)))
    if row is None:
        return f"claim: no such line: {words}", set()
    figures = {_plain(f"{float(row[key]):.3f}") for key in _NUMBERS if row.get(key)}
    return ("" if row["verdict"] == words[5] else f"claim: the files say {row['verdict']!r} of {words}"), figures


def mean(text: str, words: list[str]) -> tuple[str, set[str]]:
    """The value of an arm."""
    row = _line(tables.DIFFERENCES, dict(zip(("task", "arm", "over", "metric"), words)))
    return ("", {_plain(f"{float(row['value']):.3f}")}) if row else (f"mean: no such line: {words}", set())


def floor(text: str, words: list[str]) -> tuple[str, set[str]]:
    """A line of floors.csv."""
    row = _line(tables.FLOORS, {"task": words[0]})
    figures = {_plain(f"{float(row[key]):.3f}") for key in ("mean", "low", "high")} if row else set()
    return ("" if row else f"floor: no such line: {words}"), figures


def count(text: str, words: list[str]) -> tuple[str, set[str]]:
    """A number of joining.csv, which stands in the sentence."""
    column, _, number = words[-1].partition("=")
    most, column = column.endswith("_most"), column.removesuffix("_most")
    wanted = {key: word for key, word in zip(("task", "arm", "metric"), words) if word != "*"}
    rows = [row for row in _lines(tables.JOINING, words[0]) if all(row[key] == wanted[key] for key in wanted)]
    rows = [row for row in rows if row["arm"] != "trivial" or "arm" in wanted]
    if not rows or column not in rows[0]:
        return f"count: no such line: {words}", set()
    least = (max if most else min)(int(row[column]) for row in rows)
    if str(least) != number:
        return f"count: the files say {least}, not {words[-1]}", set()
    spelled = {number, *(_WORDS[least].split() if least < len(_WORDS) else ())}
    return ("" if spelled & set(re.findall(r"\w+", text.lower())) else f"count: {number} is not in the sentence"), set()


def only(text: str, words: list[str]) -> tuple[str, set[str]]:
    """Which methods have a verdict."""
    if len(words) != 6 or words[4] not in VERDICTS:
        return f"only: expected TASK | VERSUS | OVER | METRIC | verdict | ARM, ARM, got {words}", set()
    wanted = dict(zip(("task", "versus", "over", "metric"), words))
    rows = [row for row in _read(tables.DIFFERENCES) if all(row[key] == wanted[key] for key in wanted)]
    of_methods = [row for row in rows if row["arm"] in {arm.key for arm in plan.METHODS}]
    if not of_methods:
        return f"only: no such line: {words}", set()
    told = {row["arm"] for row in of_methods if row["verdict"] == words[4]}
    return ("" if told == _named(words[5]) else f"only: the files say {sorted(told) or 'none'} of {words}"), set()


def without(text: str, words: list[str]) -> tuple[str, set[str]]:
    """Which arms have no site in a column of joining.csv."""
    task, metric, column, names = words if len(words) == 4 else ("", "", "", "")
    rows = [row for row in _read(tables.JOINING) if (row["task"], row["metric"]) == (task, metric)]
    if not rows or column not in rows[0]:
        return f"without: no such lines: {words}", set()
    told = {row["arm"] for row in rows if row[column] == "0"} - {"trivial"}
    return ("" if told == _named(names) else f"without: the files say {sorted(told) or 'none'} of {words}"), set()


def _named(words: str) -> set[str]:
    return set() if words == "none" else {word.strip() for word in words.split(",")}


def definition(text: str, words: list[str]) -> tuple[str, set[str]]:
    """A sentence that says what words mean names no arm and holds no figure."""
    named = [arm.title for arm in plan.ARMS if re.search(rf"\b{re.escape(arm.title)}\b", text)]
    return (f"definition: names {named}" if named else ""), set()


CHECKS = {
    "claim": claim,
    "only": only,
    "without": without,
    "mean": mean,
    "floor": floor,
    "count": count,
    "definition": definition,
}
_NUMBERS = ("value", "mean", "low", "high", "patients_low", "patients_high")
_WORDS = (
    ("no none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
    + ("thirteen", "fourteen", "fifteen", "sixteen", "seventeen")
)  # fmt: skip


@functools.cache
def _lines(path: tables.Path, task: str) -> tables.Rows:
    """The lines of the study's file; of a task "drift/..." or "exact/...", of those elsewhere."""
    if task.startswith(EXACT) and path == tables.DIFFERENCES:
        return [{**row, "task": EXACT + row["task"]} for row in exact.differences()]
    if not task.startswith(DRIFT):
        return _read(path)
    own = drift_tables.HERE / path.name
    return [{**row, "task": DRIFT + row["task"]} for row in drift_tables.read(own)]


def _line(path: tables.Path, wanted: dict[str, str]) -> dict[str, str] | None:
    rows = (row for row in _lines(path, wanted["task"]) if all(row.get(key) == value for key, value in wanted.items()))
    return next(rows, None)


def _plain(figure: str) -> str:
    """Without sign and leading zero: prose says "loses .048" of a difference of -0.048."""
    return figure.lstrip("+\u2212-").lstrip("0")


if __name__ == "__main__":
    sys.exit(main())
