# SPDX-License-Identifier: Apache-2.0
"""Draws docs/images/joining.svg, each hospital's benefit of joining under three models, from docs/images/joining-data.

python docs/images/joining.py
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FOLDER = HERE / "joining-data"
CANDIDATES = {
    "fedavg": ("FedAvg", "a"),
    "glm": ("Exact regression of all patients together (glm)", "b"),
    "mix": ("Combined: each hospital's safe mix of own model and candidates", "c"),
}
"""Candidate in join.json -> its words, and its colour."""
PANELS = {
    "heart": ("Heart disease, four hospitals, 920 patients", -0.11, 0.04, (-0.1, -0.05, 0.0)),
    "ist": ("International Stroke Trial, 17 countries, 17,868 patients", -0.065, 0.035, (-0.05, -0.025, 0.0, 0.025)),
}
"""File -> title, ends of the axis and its ticks."""
WIDTH, LEFT, RIGHT, TOP, ROW, HEAD, FOOT = 860, 150, 120, 128, 30, 30, 30
STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1b2733 }
.title { font-size: 17px; font-weight: 600 } .panel { font-weight: 600 } .soft { fill: #51606e; font-size: 12px }
.grid { stroke: #d5dbe1 } .zero { stroke: #51606e; stroke-width: 1.5 } .back { fill: #ffffff }
.a { fill: #b4470e; stroke: #b4470e } .b { fill: #6a4fa3; stroke: #6a4fa3 } .c { fill: #00658a; stroke: #00658a }
.line { stroke-width: 2 } text.value { stroke: none; font-size: 12px }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .soft { fill: #a9b4bf } .grid { stroke: #39434d } .zero { stroke: #a9b4bf }
  .back { fill: #0d1117 } .a { fill: #ff9a5c; stroke: #ff9a5c } .b { fill: #c0a8ff; stroke: #c0a8ff }
  .c { fill: #5cc8f2; stroke: #5cc8f2 }
}
"""
Rows = dict[str, dict[str, tuple[float, float, float]]]


def main() -> None:
    """A panel per task, a row per hospital, a mark with its 95 % interval per candidate."""
    (HERE / "joining.svg").write_text(drawn({name: rows(name) for name in PANELS}), encoding="utf-8")


def rows(name: str) -> Rows:
    """Hospital -> candidate -> benefit and its interval, when the other hospitals are used, too."""
    found = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return {site: {c: benefit(row, c) for c in CANDIDATES} for site, row in found["sites"].items()}


def benefit(row: Mapping[str, Any], candidate: str) -> tuple[float, float, float]:
    """Of one hospital."""
    one = row["mix"] if candidate == "mix" else row["candidates"][candidate]
    return one.get("shrunken", one["benefit"]), one["low"], one["high"]


def drawn(found: Mapping[str, Rows]) -> str:
    """The picture, whose colours follow the reader's light or dark page."""
    parts = [text(16, 28, "Should a hospital join? Benefit of joining at each hospital", "title")]
    told = "Brier score of the hospital's own model minus that of the other model: right of the line joining is better"
    parts.append(text(16, 48, told, "soft"))
    for number, (words, colour) in enumerate(CANDIDATES.values()):
        y = 68 + 18 * number
        parts.append(f'<circle class="{colour}" cx="22" cy="{y}" r="4.5"/>' + text(33, y + 4.5, words))
    top = TOP
    for name, hospitals in found.items():
        parts += panel(name, hospitals, top)
        top += HEAD + ROW * len(hospitals) + FOOT
    note = (
        "Every patient tested by models that never saw this patient; 95 % intervals. On the right the combined model."
    )
    parts.append(text(16, top + 8, note, "soft"))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 20}" role="img"'
    label = "Benefit of joining at four heart hospitals and in 17 countries of a stroke trial, for three models"
    back = f'<rect class="back" width="{WIDTH}" height="{top + 20}" rx="6"/>'
    return f'{head} aria-label="{label}">\n<style>{STYLE}</style>\n' + "\n".join([back, *parts]) + "\n</svg>\n"


def panel(name: str, hospitals: Rows, top: float) -> list[str]:
    """One task's title, axis and hospitals."""
    title, low, high, ticks = PANELS[name]
    first, bottom = top + HEAD, top + HEAD + ROW * len(hospitals)

    def place(value: float) -> float:
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    parts = [text(16, top + 16, title, "panel")]
    for value in ticks:
        kind, words = ("grid", signed(value, 3)) if value else ("zero", "as alone")
        parts.append(f'<path class="{kind}" d="M{place(value):.1f} {first - 4}V{bottom}"/>')
        parts.append(text(place(value), bottom + 15, words, "soft", "middle"))
    for number, (hospital, candidates) in enumerate(hospitals.items()):
        y = first + ROW * number
        parts += [text(16, y + ROW / 2 + 3, hospital), f'<path class="grid" d="M16 {y + ROW - 1}H{WIDTH - 16}"/>']
        for place_in, (candidate, (value, least, most)) in enumerate(candidates.items()):
            colour, at = CANDIDATES[candidate][1], y + 5 + 9 * place_in
            parts.append(f'<path class="{colour} line" d="M{place(least):.1f} {at}H{place(most):.1f}"/>')
            parts.append(f'<circle class="{colour}" cx="{place(value):.1f}" cy="{at}" r="3.5"/>')
        parts.append(text(WIDTH - 24, y + ROW / 2 + 3, signed(candidates["mix"][0], 4), "c value", "end"))
    return parts


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """One line of words."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def signed(value: float, digits: int) -> str:
    """ "+0.041", with a minus sign for what is below zero."""
    return f"{value:+.{digits}f}".replace("-", "\N{MINUS SIGN}")


if __name__ == "__main__":
    main()
