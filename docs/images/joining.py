# SPDX-License-Identifier: Apache-2.0
"""Draws docs/images/joining.svg, Brier scores of four hospitals against their own models', from docs/results/drift.

python docs/images/joining.py
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "results" / "drift"))

import drift_tables  # noqa: E402

ARMS = {
    "preset": ("FedAvg, local training by Adam (the preset)", "a"),
    "whole": ("FedAvg without client drift: one full-batch step per round", "b"),
    "fedavg+intercept": ("FedAvg by Adam, then one intercept per hospital", "c"),
}
"""Arm of the table -> its words, and its colour."""
HOSPITALS = ("Cleveland", "Hungary", "Switzerland", "VA")
WIDTH, LEFT, RIGHT, TOP, ROW = 860, 170, 20, 132, 64
LOW, HIGH = -0.06, 0.16
STYLE = """
text { font: 14px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1b2733 }
.title { font-size: 17px; font-weight: 600 } .soft { fill: #51606e; font-size: 12.5px }
.grid { stroke: #d5dbe1 } .zero { stroke: #51606e; stroke-width: 1.5 } .back { fill: #ffffff }
.a { fill: #b4470e; stroke: #b4470e } .b { fill: #6a4fa3; stroke: #6a4fa3 } .c { fill: #00658a; stroke: #00658a }
.line { stroke-width: 2.5 } text.value { stroke: none; font-size: 12.5px }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .soft { fill: #a9b4bf } .grid { stroke: #39434d } .zero { stroke: #a9b4bf }
  .back { fill: #0d1117 } .a { fill: #ff9a5c; stroke: #ff9a5c } .b { fill: #c0a8ff; stroke: #c0a8ff }
  .c { fill: #5cc8f2; stroke: #5cc8f2 }
}
"""


def main() -> None:
    """One row per hospital, one mark with its 95 % interval per arm."""
    (HERE / "joining.svg").write_text(drawn(rows()), encoding="utf-8")


def rows() -> dict[str, dict[str, tuple[float, float, float]]]:
    """Hospital -> arm -> mean difference in Brier score from its own model, and its interval over deals of patients."""
    found: dict[str, dict[str, tuple[float, float, float]]] = {hospital: {} for hospital in HOSPITALS}
    for line in drift_tables.read(drift_tables.DIFFERENCES):
        of = (line["task"], line["versus"], line["metric"])
        if of == ("heart", "solo", "brier") and line["over"] in found and line["arm"] in ARMS:
            mean, low, high = (float(line[key]) for key in ("mean", "low", "high"))
            found[line["over"]][line["arm"]] = mean, low, high
    return found


def place(value: float) -> float:
    """Where a difference lies on the axis, in pixels."""
    return LEFT + (value - LOW) / (HIGH - LOW) * (WIDTH - LEFT - RIGHT - 60)


def drawn(found: dict[str, dict[str, tuple[float, float, float]]]) -> str:
    """The picture, whose colours follow the reader's light or dark page."""
    bottom = TOP + ROW * len(found)
    parts = [f'<rect class="back" width="{WIDTH}" height="{bottom + 52}" rx="6"/>']
    parts.append(text(16, 28, "Joining a federation: averaging or local training?", "title"))
    parts.append(
        text(16, 48, "Brier score after joining, minus that of the hospital's own model; right is worse", "soft")
    )
    for number, (words, colour) in enumerate(ARMS.values()):
        y = 70 + 19 * number
        parts.append(f'<circle class="{colour}" cx="22" cy="{y}" r="5"/>' + text(33, y + 5, words))
    for value in (-0.05, 0.0, 0.05, 0.1, 0.15):
        kind = "grid" if value else "zero"
        parts.append(f'<path class="{kind}" d="M{place(value):.1f} {TOP - 6}V{bottom}"/>')
        words = f"{value:+.2f}".replace("-", "\N{MINUS SIGN}") if value else "as alone"
        parts.append(text(place(value), bottom + 18, words, "soft", "middle"))
    for number, (hospital, arms) in enumerate(found.items()):
        parts += hospital_row(hospital, arms, TOP + ROW * number)
    note = "920 real patients (UCI Heart Disease, CC BY 4.0), shared out 20 times; 95 % intervals over patients."
    parts.append(text(16, bottom + 42, note, "soft"))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 52}" role="img"'
    label = "Brier score of four hospitals after joining, minus that of their own models, for three ways to train"
    return f'{head} aria-label="{label}">\n<style>{STYLE}</style>\n' + "\n".join(parts) + "\n</svg>\n"


def hospital_row(hospital: str, arms: dict[str, tuple[float, float, float]], top: float) -> list[str]:
    """The name of a hospital and its marks, one below the other."""
    parts = [text(16, top + ROW / 2 + 1, hospital), f'<path class="grid" d="M16 {top + ROW - 4}H{WIDTH - 16}"/>']
    for number, (column, (_, colour)) in enumerate(ARMS.items()):
        value, low, high = arms[column]
        y = top + 10 + 18 * number
        parts.append(f'<path class="{colour} line" d="M{place(low):.1f} {y}H{place(high):.1f}"/>')
        parts.append(f'<circle class="{colour}" cx="{place(value):.1f}" cy="{y}" r="4.5"/>')
        parts.append(text(place(high) + 9, y + 4.5, signed(value), f"{colour} value"))
    return parts


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """One line of words."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def signed(value: float) -> str:
    """ "+0.041", with a minus sign for what is below zero."""
    return f"{value:+.3f}".replace("-", "\N{MINUS SIGN}")


if __name__ == "__main__":
    main()
