# SPDX-License-Identifier: Apache-2.0
"""Draws docs/images/joining.svg, what joining gives each of four hospitals, from docs/results/heart-joining/tables.csv.

python docs/images/joining.py
"""

from __future__ import annotations

import csv
from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent
TABLE = HERE.parent / "results" / "heart-joining" / "tables.csv"
ARMS = {
    "m1": ("FedAvg", "a"),
    "m2": ("FedAvg, every hospital weighs the same", "b"),
    "m3": ("Ditto, each hospital its own model", "c"),
}
"""Column of the table, the number of the arm in the command -> its words, and its colour."""
WIDTH, LEFT, RIGHT, TOP, ROW = 860, 170, 20, 96, 64
LOW, HIGH = -0.32, 0.08
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
    """One row per hospital, one mark with its 95 % interval per way to join."""
    (HERE / "joining.svg").write_text(drawn(rows()), encoding="utf-8")


def rows() -> dict[str, dict[str, tuple[float, float, float]]]:
    """Hospital -> arm -> mean difference in accuracy from training alone, and its interval over seeds."""
    found: dict[str, dict[str, tuple[float, float, float]]] = {}
    with TABLE.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            if line["table"] == "joining" and not line["group"] and line["column"] in ARMS:
                value, low, high = (float(line[key]) for key in ("value", "low", "high"))
                found.setdefault(line["row"], {})[line["column"]] = value, low, high
    return found


def place(value: float) -> float:
    """Where a difference lies on the axis, in pixels."""
    return LEFT + (value - LOW) / (HIGH - LOW) * (WIDTH - LEFT - RIGHT - 60)


def drawn(found: dict[str, dict[str, tuple[float, float, float]]]) -> str:
    """The picture, whose colours follow the reader's light or dark page."""
    bottom = TOP + ROW * len(found)
    parts = [f'<rect class="back" width="{WIDTH}" height="{bottom + 52}" rx="6"/>']
    parts.append(text(16, 28, "What joining gives each hospital", "title"))
    parts.append(text(16, 48, "Accuracy of the model that serves its patients, minus that of its own model", "soft"))
    x = 16.0
    for words, colour in ARMS.values():
        parts.append(f'<circle class="{colour}" cx="{x + 6:.0f}" cy="70" r="5"/>' + text(x + 17, 75, words))
        x += 44 + 7.1 * len(words)
    for tenth in range(-3, 1):
        value = tenth / 10
        kind = "zero" if tenth == 0 else "grid"
        parts.append(f'<path class="{kind}" d="M{place(value):.1f} {TOP - 6}V{bottom}"/>')
        parts.append(
            text(place(value), bottom + 18, "the same as alone" if not tenth else signed(value), "soft", "middle")
        )
    for number, (hospital, arms) in enumerate(found.items()):
        parts += hospital_row(hospital, arms, TOP + ROW * number)
    parts.append(
        text(
            16,
            bottom + 42,
            "Real patients (UCI Heart Disease, CC BY 4.0). 8 seeds; 95 % intervals over seeds, not over patients.",
            "soft",
        )
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 52}" role="img"'
    label = "What joining gives each of four hospitals: difference in accuracy from training alone"
    return f'{head} aria-label="{label}">\n<style>{STYLE}</style>\n' + "\n".join(parts) + "\n</svg>\n"


def hospital_row(hospital: str, arms: dict[str, tuple[float, float, float]], top: float) -> list[str]:
    """The name of a hospital and its marks, one below the other."""
    parts = [text(16, top + ROW / 2 + 1, hospital), f'<path class="grid" d="M16 {top + ROW - 4}H{WIDTH - 16}"/>']
    for number, (column, (_, colour)) in enumerate(ARMS.items()):
        value, low, high = arms[column]
        y = top + 10 + 18 * number
        parts.append(f'<path class="{colour} line" d="M{place(low):.1f} {y}H{place(high):.1f}"/>')
        parts.append(f'<circle class="{colour}" cx="{place(value):.1f}" cy="{y}" r="4.5"/>')
        beside, anchor = (place(low) - 9, "end") if value < 0 else (place(high) + 9, "start")
        parts.append(text(beside, y + 4.5, signed(value), f"{colour} value", anchor))
    return parts


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """One line of words."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def signed(value: float) -> str:
    """ "+0.041", with a minus sign for what is below zero."""
    return f"{value:+.3f}".replace("-", "\N{MINUS SIGN}")


if __name__ == "__main__":
    main()
