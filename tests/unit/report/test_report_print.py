# SPDX-License-Identifier: Apache-2.0
"""The pages' style sheet, on paper too."""

import re
from importlib import resources

from fairflare.report.svg import GREY

STYLE = resources.files("fairflare.report").joinpath("base.html.j2").read_text().partition("<style>")[2]
STYLE = STYLE.partition("</style>")[0]


def rules(text):
    """(selector, declarations) of every rule of ``text``."""
    return [(s.strip(), d.strip()) for s, d in re.findall(r"([^{}]+)\{([^{}]*)\}", text)]


def test_every_block_is_closed():
    depth = 0
    for character in STYLE:
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert 0 <= depth <= 2
    assert depth == 0


def test_paper_repeats_no_rule_of_the_screen():
    screen, _, paper = STYLE.partition("@media print {")
    printed = rules(paper)
    assert len(printed) > 5 and not set(printed) & set(rules(screen))
    assert dict(printed)[".banner, tr.worst"] == "-webkit-print-color-adjust: exact; print-color-adjust: exact;"
    assert dict(printed)["figure, tr, .tiles div, .banner"] == "break-inside: avoid;"
    assert not [declared for selector, declared in printed if ".banner" in selector and "width" in declared]


def test_the_dark_view_is_for_screens_only_and_knows_the_figures_grey():
    """Figures are inverted there, and their grey, light on white paper, would be too dark."""
    dark = STYLE.partition("@media screen and (prefers-color-scheme: dark) {")[2].partition("\n}")[0]
    assert "--page: #14181f" in dark and "invert(1)" in dark
    assert dark.count(GREY) == 2 and STYLE.count("prefers-color-scheme") == 1
