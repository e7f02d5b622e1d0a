# SPDX-License-Identifier: Apache-2.0
"""The ten questions of docs/reports.md: each answer is on its page's first screen or one click away, with values."""

import copy
import json
import re
import shutil
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

from command_line import succeed as call
from fairflare.engine.in_process import InProcess
from fairflare.report.values import answer

ROOT = Path(__file__).parents[3]
TABLE = (ROOT / "docs" / "reports.md").read_text().partition("## Ten questions")[2]
QUESTIONS = [re.findall(r"`([^`]+)`", line) for line in TABLE.splitlines() if line.startswith(("| c", "| d", "| r"))]
FAST = ["--set", "batch_size=128", "--set", "lr=0.3"]
SITES = {"North": 1, "South": 1, "East": 1, "West": -1}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A folder with all pages: four hospitals' tables, of which one has the opposite outcomes and misses a round."""
    root = tmp_path_factory.mktemp("questions")
    for k, (site, sign) in enumerate(SITES.items()):
        rows = []
        for i in range(160):
            x, noise = (i * 37 + k) % 41 - 20, (i * 17 + k) % 13 - 6
            rows.append(f"{x},{'fm'[i % 2]},{int(sign * x + noise > 0)}")
        (root / "data" / site).mkdir(parents=True)
        (root / "data" / site / "table.csv").write_text("\n".join(["marker,sex,died", *rows]))
    call("init", root / "data", "--label", "died", "--groups", "sex", "--yes")
    own = ["--datalists", root / "data" / "fairflare", "--kind", "tabular"]
    exchange = InProcess.exchange

    def without_west(self, instructions):
        late = {i.round.number for i in instructions.values() if i.task == "train"} == {2}
        yield from exchange(self, {s: i for s, i in instructions.items() if not (late and s == "West")})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InProcess, "exchange", without_west)
        values = ["--set", "group_by=sex", "--set", "min_sites=3"]
        call("run", "fedavg", *own, *FAST, *values, "--rounds", 3, "--out", root / "run")
    call("evidence", root / "run")
    small = ["--rounds", 1, "--workers", 1]
    call("compare", "fedavg", "fedprox", *own, *FAST, *small, "--seeds", "0,1", "--out", root / "compare")
    call("join", "fedavg", *own, *FAST, *small, "--folds", 2, "--repeats", 1, "--out", root / "join")
    call("report", root / "run", "--sites")
    return root


def found(pages, name):
    return next(path for part in ("run", "compare", "join") if (path := pages / part / name).exists())


def values(pointers, files):
    """The values at the pointers: ``*`` is every entry, ``KEY=VALUE`` those entries that have it."""
    for pointer in pointers:
        name, _, path = pointer.partition("#/")
        at = [files[name]]
        for step in path.split("/"):
            key, _, value = step.partition("=")
            if value or step == "*":
                at = [row for many in at for row in (many.values() if isinstance(many, dict) else many)]
                at = [row for row in at if not value or row[key] == value]
            else:
                at = [many[int(step)] if isinstance(many, list) else many[step] for many in at]
        assert at, pointer
        yield from at


def missing(texts, wanted):
    """Those of ``wanted`` that a text does not show: words as they are, numbers with the text's decimals."""
    numbers = re.findall(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?![\w])", texts.replace("\N{MINUS SIGN}", "-"))

    def shows(one):
        if isinstance(one, str):
            return one in texts or answer(one) in texts
        decimals = 0 if float(one).is_integer() else 3
        told = [n for n in numbers if len(n.partition(".")[2]) >= decimals]
        return any(float(n) == round(one, len(n.partition(".")[2])) for n in told)

    return [one for one in wanted if one is not None and not shows(one)]


def read(pages, row):
    page, place, *pointers = row
    html = BeautifulSoup(found(pages, page).read_text(), "html.parser")
    return html, html.select_one(place), {p.partition("#")[0]: None for p in pointers}, pointers


def test_there_are_ten_questions_of_three_readers():
    assert len(QUESTIONS) == 10
    assert len(re.findall(r"^\| (clinician|data protection officer|researcher) ", TABLE, re.M)) == 10


@pytest.mark.parametrize("row", QUESTIONS, ids=lambda row: f"{row[0]}{row[1]}")
def test_the_answer_is_at_its_place_and_its_values_are_the_json_s(row, pages):
    html, element, names, pointers = read(pages, row)
    files = {name: json.loads(found(pages, name).read_text()) for name in names}
    text = element.get_text(" ", strip=True)
    wanted = list(values(pointers, files))
    assert missing(text, wanted) == []
    other = [f"{one}x" if isinstance(one, str) else copy.copy(one) + 977 for one in wanted if one is not None]
    assert missing(text, other) == other, "the test would pass with any value"
    first = html.select("main > header, main > section")[:2]
    assert any(part is element or element in part.descendants for part in first) or any(
        link["href"] == row[1] for part in first for link in part.select("a")
    )


def test_pages_name_the_outcome_and_each_table_and_place_once(pages):
    for page in ("report.html", "compare.html", "join.html"):
        assert "Predicting died" in BeautifulSoup(found(pages, page).read_text(), "html.parser").h1.text
    every = [path for part in ("run", "compare", "join") for path in (pages / part).rglob("*.html")]
    assert len(every) > 15
    for path in every:
        html = BeautifulSoup(path.read_text(), "html.parser")
        for key in ("id", "aria-label"):
            told = [one[key] for one in html.select(f"main [{key}]") if one.name not in ("svg", "g")]
            assert len(told) == len(set(told)), (path.name, key)


def test_a_browser_shows_each_answer_on_the_first_screen_or_after_one_click(pages):
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("no chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, place, *_ in [*QUESTIONS, ["report.html", "#terms"]]:
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(f"file://{found(pages, name)}")
            link = page.locator(f'a[href="{place}"]')
            if link.count():
                assert link.bounding_box()["y"] < 900, (name, place)
                link.click()
            box = page.locator(place).bounding_box()
            assert box["height"] > 0 and -1 <= box["y"] < 900, (name, place)
            page.close()
        axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
        light, dark = ("light", 1280), ("dark", 390)
        views = {"join": light, "sheets/West": dark, "editions/West": dark, "evidence/data-protection": light}
        for name, (scheme, width) in views.items():
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page.goto(f"file://{found(pages, f'{name}.html')}")
            assert axe.run(page).response["violations"] == [], (name, scheme)
            wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
            assert not page.evaluate(wide), (name, "scrolls sideways")
            page.close()
        browser.close()
