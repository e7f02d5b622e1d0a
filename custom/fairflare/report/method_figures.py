# SPDX-License-Identifier: Apache-2.0
"""Figures of what particular methods note: contributions of sites, weights of groups, weights of layers.

The same colour code as in ``figures``; red is here also a site that the free-rider rule marks, and the group that the
final model serves worst.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairflare.report.marks import DASHES, curve, over_rounds
from fairflare.report.svg import DARK, GREEN, GREY, PURPLE, RED, inline, legend, short
from fairflare.report.values import in_order, number, text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Json = Mapping[str, Any]
Series = dict[str, list[float | None]]
Roles = dict[str, tuple[str, str]]
SHADES = 9
TALL = 40
"""From this many layers on the rows of the map are thinner and every second one is named."""


@inline("contribution")
def contribution_rounds(figure: Figure, summary: Json) -> str | None:
    """Each site's estimated share of the contribution round by round."""
    series, found = _noted(summary, "contribution"), summary["contribution_shares"]
    if not series or not found:
        return None
    roles = _ends({row["site"]: row["share_last"] for row in found["rows"]}, "share")
    roles |= {row["site"]: (RED, "marked") for row in found["rows"] if row["flagged"]}
    axes = _lines(figure, summary, series, roles, "other sites")
    _even(axes, len(series))
    axes.set_ylim(bottom=0)
    axes.set_ylabel("contribution (fraction)")
    legend(figure, axes)
    last = [row["share_last"] for row in found["rows"]]
    return f"Estimated contribution, last: {text(min(last))} to {text(max(last))}"


@inline("riders")
def rider_rounds(figure: Figure, summary: Json) -> str | None:
    """Each site's free-rider score round by round, and the limit for its median."""
    series, found = _noted(summary, "free_rider_score"), summary["contribution_shares"]
    if not series or not found:
        return None
    scores = {row["site"]: row["score"] for row in found["rows"] if row["score"] is not None}
    roles = dict(list(_ends(scores, "score").items())[:1])
    roles |= {row["site"]: (RED, "marked") for row in found["rows"] if row["flagged"]}
    axes = _lines(figure, summary, series, roles, "other sites")
    if found["usual_score"]:
        limit = found["factor"] * found["usual_score"]
        axes.axhline(limit, color=DARK, linewidth=1.2, linestyle=DASHES, label="limit for a site's median")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("free-rider score")
    legend(figure, axes)
    return f"Free-rider score, medians: {text(min(scores.values()))} to {text(max(scores.values()))}"


@inline("lambda")
def lambda_rounds(figure: Figure, summary: Json) -> str | None:
    """The adversary's weight of each group of patients round by round (FedUFO); dashed, equal weights."""
    series = _noted(summary, "group_lambda")
    last = {name: known[-1] for name, values in series.items() if (known := [v for v in values if v is not None])}
    if len(last) < 2:
        return None
    roles, lowest = _ends(last, "weight"), ((summary["groups"] or {}).get("worst") or {}).get("group")
    if lowest in last:
        _, role = roles.get(lowest, ("", ""))
        roles[lowest] = (RED, ", ".join(filter(None, ("worst served", role))))
    axes = _lines(figure, summary, series, roles, "other groups", length=38)
    _even(axes, len(series))
    axes.set_ylim(bottom=0)
    axes.set_ylabel("group weight (fraction)")
    legend(figure, axes, columns=1)
    return f"Weights of the groups, last: {text(min(last.values()))} to {text(max(last.values()))}"


@inline("cells")
def cell_map(figure: Figure, summary: Json) -> str | None:
    """The adversary's last weight of each group at each site (FedUFO for unknown mixtures), against equal weights."""
    noted = [found for row in summary["rounds"] if (found := _mapping(row["notes"].get("cell_lambda")))]
    sites = {site: _mapping(row) for site, row in noted[-1].items()} if noted else {}
    groups = in_order(group for row in sites.values() for group in row)
    cells = {group: {site: number(row.get(group)) for site, row in sites.items()} for group in groups}
    weights = [weight for row in cells.values() for weight in row.values() if weight is not None]
    if len(weights) < 2:
        return None
    _map(figure, cells, 1 / len(weights))
    ends = f"{text(min(weights))} to {text(max(weights))}"
    return f"Weights of groups within sites, last: {ends}, equal would be {text(1 / len(weights))}"


@inline("layers")
def layer_map(figure: Figure, summary: Json) -> str | None:
    """Weight of each site in each layer, mean over the rounds, against equal weights (Fed-LWR)."""
    found = summary["layer_weights"]
    if not found:
        return None
    even = 1 / len({site for row in found.values() for site in row})
    _map(figure, found, even)
    weights = [weight for row in found.values() for weight in row.values()]
    return f"Layer weights, mean over rounds: {text(min(weights))} to {text(max(weights))}, equal would be {text(even)}"


def _map(figure: Figure, table: Mapping[str, Mapping[str, float | None]], even: float) -> None:
    """Rows of ``table`` downwards, sites across, and as colour how many times ``even`` a weight is."""
    rows, sites = list(table), in_order(site for row in table.values() for site in row)
    tall = len(rows) >= TALL
    figure.set_figheight(max(3.0, 1.9 + (0.11 if tall else 0.19) * len(rows)))
    axes = figure.subplots()
    values = [[number(table[row].get(site)) for site in sites] for row in rows]
    _shade(figure, axes, [[float("nan") if value is None else value / even for value in row] for row in values])
    step = 2 if tall else 1
    axes.set_yticks(range(0, len(rows), step), [short(name, 26) for name in rows[::step]], fontsize=7.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xticks(range(len(sites)), [short(name, 16) for name in sites], rotation=60, ha="right", fontsize=8)
    axes.grid(visible=False)
    if any(value is None for row in values for value in row):
        axes.set_xlabel("grey: no weight", fontsize=8.5)


def _shade(figure: Figure, axes: Axes, ratios: Sequence[Sequence[float]]) -> None:
    """A grid of colours around 1, grey for NaN; drawn as shapes, because an image would be a reference."""
    import matplotlib
    from matplotlib.colors import TwoSlopeNorm

    known = [value for row in ratios for value in row if value == value]
    reach = max(0.05, *(abs(value - 1) for value in known))
    norm = TwoSlopeNorm(1, max(1 - reach, 0), 1 + reach)
    shades = matplotlib.colormaps["PuOr_r"].resampled(SHADES).with_extremes(bad=GREY)
    grid = (range(len(ratios[0])), range(len(ratios)), ratios)
    mesh = axes.pcolormesh(*grid, cmap=shades, norm=norm, edgecolors="white", linewidth=0.4, shading="nearest")
    bar = figure.colorbar(mesh, ax=axes, shrink=min(1.0, 8 / max(len(ratios), 8)), pad=0.02)
    bar.set_label("times equal weights", fontsize=8.5)
    bar.ax.tick_params(labelsize=8)


def _noted(summary: Json, key: str) -> Series:
    """Name -> value per recorded round of what the notes hold under ``key``."""
    notes = [_mapping(row["notes"].get(key)) for row in summary["rounds"]]
    return {name: [number(note.get(name)) for note in notes] for name in in_order(n for note in notes for n in note)}


def _mapping(found: Any) -> Json:
    return found if isinstance(found, Mapping) else {}


def _ends(last: Mapping[str, float], what: str) -> Roles:
    """Colour and role of the largest and the smallest, where they differ."""
    ordered = sorted(last, key=last.__getitem__)
    if not ordered or last[ordered[0]] == last[ordered[-1]]:
        return {}
    return {ordered[-1]: (GREEN, f"largest {what}"), ordered[0]: (PURPLE, f"smallest {what}")}


def _lines(figure: Figure, summary: Json, series: Series, roles: Roles, rest: str, length: int = 22) -> Axes:
    """The series over rounds: grey where they have no role, on top in colour where they have."""
    numbers = [row["round"] for row in summary["rounds"]]
    axes = over_rounds(figure, numbers)
    for i, name in enumerate(name for name in series if name not in roles):
        curve(axes, numbers, series[name], color=GREY, linewidth=1, label=rest if i == 0 else None)
    for name, (colour, role) in roles.items():
        curve(axes, numbers, series[name], color=colour, linewidth=2, label=f"{short(name, length)}, {role}")
    return axes


def _even(axes: Axes, n: int) -> None:
    axes.axhline(1 / n, color=DARK, linewidth=1.2, linestyle=DASHES, label="equal shares")
