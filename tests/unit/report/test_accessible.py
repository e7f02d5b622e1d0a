# SPDX-License-Identifier: Apache-2.0
"""Pages in a browser (extra ``pages``, chromium): axe finds nothing, none scrolls sideways, a sheet is one A4 page."""

import shutil
from itertools import product

import pytest

from decisions import decided
from fairflare.report.compare import compare
from fairflare.report.compare_page import render_compare
from fairflare.report.decision import LANGUAGES, sheet_page
from fairflare.report.page import render_run
from fairflare.report.summary import summarise

CHROMIUM = shutil.which("chromium")


@pytest.fixture
def browser():
    if CHROMIUM is None:
        pytest.skip("no chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.mark.slow
def test_no_page_shuts_a_reader_out(browser, noted_inputs, make_run, tmp_path):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    runs = [make_run(title, seed, shift) for title, shift in (("FedAvg", 0.0), ("FedCE", 0.05)) for seed in range(3)]
    pages = {"run": render_run(summarise(**noted_inputs)), "compare": render_compare(compare(runs))}
    pages |= {language: sheet_page(decided("cannot be told"), "a", language) for language in LANGUAGES}
    found = []
    for (name, html), scheme, media, width in product(
        pages.items(), ("light", "dark"), ("screen", "print"), (390, 1280)
    ):
        (tmp_path / f"{name}.html").write_text(html)
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.emulate_media(media=media, color_scheme=scheme)
        page.goto(f"file://{tmp_path}/{name}.html")
        page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        where = (name, scheme, media, width)
        found += [(*where, one["id"]) for one in axe.run(page).response["violations"]]
        wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        found += [(*where, "scrolls sideways")] if media == "screen" and page.evaluate(wide) else []
        if name in LANGUAGES and media == "print":
            sheets = page.pdf(prefer_css_page_size=True).count(b"/Type /Page\n")
            found += [(*where, f"{sheets} pages of A4")] if sheets != 1 else []
        page.close()
    assert found == []
