# SPDX-License-Identifier: Apache-2.0
"""Pages in a browser (extra ``pages``, chromium): axe finds nothing, none scrolls sideways, a sheet is one A4 page, and
a keyboard alone reaches every control, which then shows that it has the focus."""

import numpy as np
import pandas as pd
import pytest

from decisions import decided
from fairflare import Federation, decide
from fairflare.cli.main import main
from fairflare.report.compare import compare
from fairflare.report.compare_page import render_compare
from fairflare.report.decision import LANGUAGES, sheet_page
from fairflare.report.page import render_run
from fairflare.report.summary import summarise

SIDEWAYS = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
CONTROLS = """[...document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']")].filter(
  (one) => one.checkVisibility() && (one.type !== "radio" || one.checked))"""
FOCUS = """(() => { const one = document.activeElement, style = getComputedStyle(one);
  return [CONTROLS.indexOf(one), style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0] })()"""


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Name -> a page that a run, a decision, and commands on them have written."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(5)
    values = rng.normal(size=(360, 2))
    frame = pd.DataFrame(values.round(3), columns=["marker", "pulse"]).assign(
        died=np.where(values[:, 0] + 0.7 * rng.normal(size=360) > 0, "yes", "no"),
        hospital=np.array(["north", "south", "west", "east"])[np.arange(360) % 4],
    )
    read = {"site": "hospital", "patient": "none", "progress": False, "outcome": "died", "keep": ["marker", "pulse"]}
    run = Federation("fedavg", rounds=2, min_count=1, solo=True).fit(frame, **read, out="run")
    run.report()
    frame[:40].drop(columns="hospital").to_csv("new.csv", index=False)
    for line in ("report run --site north", "evaluate run new.csv --out tested", "evidence run"):
        with pytest.raises(SystemExit, match="0"):
            main(line.split())
    decide(frame, **read, repeats=2, out="join")
    return {path.stem: path for path in sorted(tmp_path.rglob("*.html")) if path.stem not in ("south", "west", "east")}


@pytest.mark.slow
def test_no_page_shuts_a_reader_out(browser, axe, noted_inputs, make_run, written, tmp_path):
    runs = [make_run(title, seed, shift) for title, shift in (("FedAvg", 0.0), ("FedCE", 0.05)) for seed in range(3)]
    made = {"noted": render_run(summarise(**noted_inputs)), "compare": render_compare(compare(runs))}
    made |= {language: sheet_page(decided("cannot be told"), "a", language) for language in LANGUAGES}
    for name, html in made.items():
        (tmp_path / f"{name}.html").write_text(html)
    pages = written | {name: tmp_path / f"{name}.html" for name in made}
    assert len(pages) >= 12, sorted(pages)
    found = []
    for name, path in pages.items():
        for scheme, media, width in (("light", "screen", 1280), ("dark", "screen", 390), ("light", "print", 1280)):
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page.emulate_media(media=media, color_scheme=scheme)
            page.goto(f"file://{path}")
            page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
            where = (name, scheme, media, width)
            found += [(*where, one) for one in axe(page)]
            if media == "screen":
                found += [(*where, "scrolls sideways")] if page.evaluate(SIDEWAYS) else []
                found += [(*where, one) for one in by_keyboard(page)]
            elif name in LANGUAGES and (sheets := page.pdf(prefer_css_page_size=True).count(b"/Type /Page\n")) != 1:
                found.append((*where, f"{sheets} pages of A4"))
            page.close()
    assert found == []


def by_keyboard(page):
    """What Tab does not reach, and what it reaches without a sign."""
    count, reached, hidden = page.evaluate(f"{CONTROLS}.length"), set(), []
    for _ in range(count):
        page.keyboard.press("Tab")
        place, shown = page.evaluate(FOCUS.replace("CONTROLS", CONTROLS))
        reached.add(place)
        hidden += [f"control {place} shows no focus"] * (not shown)
    return [*hidden, *(f"control {one} is not reached" for one in range(count) if one not in reached)]
