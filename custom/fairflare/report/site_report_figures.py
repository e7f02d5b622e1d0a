# SPDX-License-Identifier: Apache-2.0
"""The figures of a site edition: benefit with intervals, the score over rounds, the weight, calibration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fairflare.report.benefit import GAINS, LOSES
from fairflare.report.benefit_figure import draw_benefits
from fairflare.report.marks import DASHES, curve, over_rounds
from fairflare.report.svg import BLUE, DARK, GREY, inline, legend, short
from fairflare.report.values import capital, signed, text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Json = Mapping[str, Any]
MOST = 40
"""Lines of the figure of benefits; the table has all."""


def edition_figures(found: Json) -> list[str]:
    """As inline SVG, without those that have nothing to show."""
    return [svg for svg in (draw(dict(found)) for draw in (_benefits, _rounds, _weights)) if svg]


@inline("joining")
def _benefits(figure: Figure, found: Json) -> str | None:
    """A point and an interval for every metric, and for every group of patients in the first."""
    metrics = (found["benefit"] or {}).get("metrics") or {}
    rows = [(one["label"], one["row"]) for one in metrics.values() if one["row"]]
    rows += [(f"{one['label']}: {row['group']}", row) for one in metrics.values() for row in one["groups"]]
    rows = [(name, row) for name, row in rows if row["verdict"] is not None][:MOST]
    if not rows:
        return None
    words = {GAINS: "joining is better", LOSES: "joining is worse"}
    draw_benefits(figure, [(short(name, 30), row) for name, row in rows], "benefit", words)
    name, first = rows[0]
    return f"What joining gives in {name}: {signed(first['benefit'])}"


@inline("own-rounds")
def _rounds(figure: Figure, found: Json) -> str | None:
    """The received model's metric on the site's validation split, beside the others' mean."""
    values = [row["value"] for row in found["rounds"]]
    known = [value for value in values if value is not None]
    if not known:
        return None
    numbers, others = [row["round"] for row in found["rounds"]], found["others_rounds"]
    axes = over_rounds(figure, numbers)
    if others:
        curve(axes, numbers, others, color=GREY, linewidth=2, label="mean of other hospitals")
    curve(axes, numbers, values, color=BLUE, linewidth=2, label=short(found["site"]))
    axes.set_ylabel(f"{found['result']['label']}, validation")
    legend(figure, axes)
    return f"{capital(found['result']['label'])} over rounds: {text(known[0])} to {text(known[-1])}"


@inline("own-weight")
def _weights(figure: Figure, found: Json) -> str | None:
    """The site's weight round by round, and where it was left out."""
    rounds, part = found["rounds"], found["part"]
    if not any(row["weight"] is not None for row in rounds):
        return None
    numbers = [row["round"] for row in rounds]
    axes = over_rounds(figure, numbers)
    weights = [row["weight"] for row in rounds]
    curve(axes, numbers, weights, color=BLUE, linewidth=2, label=f"weight of {short(found['site'])}")
    for value, style, words in ((part["share"], DASHES, "share of the examples"), (part["equal"], ":", "equal shares")):
        if value is not None:
            axes.axhline(value, color=DARK, linewidth=1.2, linestyle=style, label=words)
    away = [row["round"] for row in rounds if row["state"] not in ("accepted", "not asked")]
    if away:
        axes.plot(away, [0] * len(away), "x", color=DARK, clip_on=False, label="left out")
    axes.set_ylim(bottom=min([0, *(weight for weight in weights if weight is not None)]))
    axes.set_ylabel("aggregation weight (fraction)")
    legend(figure, axes)
    return f"Weight in the shared model: {text(part['weight'], 2)} on average"
