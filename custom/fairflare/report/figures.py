# SPDX-License-Identifier: Apache-2.0
"""The figures of the reports: summary or comparison in, inline SVG out; "" where there is nothing to draw.

One colour code throughout: red is the worst served site, blue the mean (or what is clean), grey the other sites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairflare.report.deployed_model import SHOWN
from fairflare.report.marks import DASHES, MANY, band, bars, curve, over_rounds, point, ranked, whiskers
from fairflare.report.metrics import label
from fairflare.report.svg import BLUE, DARK, GREEN, GREY, ORANGE, PURPLE, RED, inline, legend, short
from fairflare.report.values import capital, in_order, plural, text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Json = Mapping[str, Any]


@inline("sites")
def site_bars(figure: Figure, summary: Json) -> str | None:
    """The final model's headline metric at each site, best site first, with the mean and its interval."""
    fairness, metric = summary["fairness"], label(summary["headline"], summary)
    if fairness["mean"] is None:
        return None
    sign = -1 if summary["higher_is_better"] else 1
    rows = sorted(summary["sites"], key=lambda row: (row["value"] is None, sign * (row["value"] or 0)))
    colours = {fairness["worst"]["site"]: RED}
    if len(rows) > MANY:
        axes = ranked(figure, [row["value"] for row in rows if row["value"] is not None])
    else:
        axes = bars(figure, [(row["site"], row["value"], colours.get(row["site"], GREY)) for row in rows])
        whiskers(axes, [row["intervals"].get(summary["headline"]) for row in rows])
    _mean_line(axes, fairness)
    axes.set_xlabel(f"{metric}\n(own test split, {_model(summary)})")
    legend(figure, axes)
    return f"{capital(metric)} by site: worst {text(fairness['worst']['value'])}, gap {text(fairness['gap'])}"


@inline("personal")
def personal_points(figure: Figure, summary: Json) -> str | None:
    """The headline metric of the shared and of the personal model at each site that has both."""
    own, metric = summary["personal"], label(summary["headline"], summary)
    rows = [row for row in (own or {}).get("rows", ()) if row["difference"] is not None]
    if not rows:
        return None
    figure.set_figheight(1.8 + 0.28 * len(rows))
    axes = figure.subplots()
    for y, row in enumerate(rows):
        axes.plot([row["shared"], row["personal"]], [y, y], color=GREY, linewidth=2, zorder=1)
    places = range(len(rows))
    axes.plot([row["shared"] for row in rows], places, "o", color=BLUE, label="shared model")
    axes.plot([row["personal"] for row in rows], places, "D", color=PURPLE, label="personal model")
    axes.set_yticks(places, [short(row["site"]) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(f"{metric}\n(own test split, {_model(summary)})")
    legend(figure, axes)
    shared, personal = (text(own[kind]["mean"]) for kind in ("shared", "personal"))
    return f"{capital(metric)}, mean over sites: shared {shared}, personal {personal}"


@inline("tests")
def shared_test_bars(figure: Figure, summary: Json) -> str | None:
    """The final model's headline metric on the shared test sets, clean and corrupted."""
    found, metric = summary["test_sets"], label(summary["headline"], summary)
    rows = [row for row in found["rows"] if row["value"] is not None]
    if not rows:
        return None
    axes = bars(figure, [(row["name"], row["value"], ORANGE if row["corrupted"] else BLUE) for row in rows])
    axes.set_xlabel(f"{metric}\n(shared test sets, {_model(summary)})")
    means = {kind: found[f"{kind}_mean"].get(summary["headline"]) for kind in ("clean", "corrupted")}
    ends = ", ".join(f"{kind} {text(mean)}" for kind, mean in means.items() if mean is not None)
    return f"{capital(metric)} on shared test sets: {ends}"


@inline("rounds")
def metric_rounds(figure: Figure, summary: Json) -> str | None:
    """The received model's headline metric on each site's validation split, round by round."""
    rounds, metric = summary["rounds"], label(summary["headline"], summary)
    means = [row["mean"] for row in rounds if row["mean"] is not None]
    if not means:
        return None
    numbers, (lowest, role) = _numbers(summary), _lowest(summary)
    axes = over_rounds(figure, numbers)
    others = (site for row in rounds for site in row["metric"] if site != lowest)
    _grey_curves(axes, summary, "metric", in_order(others))
    values = [row["metric"].get(lowest) for row in rounds]
    curve(axes, numbers, values, color=RED, linewidth=2, label=f"{short(lowest)}, {role}")
    curve(axes, numbers, [row["mean"] for row in rounds], color=BLUE, linewidth=2, label="mean of accepted sites")
    axes.set_ylabel(f"{metric}, validation")
    legend(figure, axes)
    return f"{capital(metric)} over rounds: mean {text(means[0])} to {text(means[-1])}"


@inline("weights")
def weight_rounds(figure: Figure, summary: Json) -> str | None:
    """Each site's aggregation weight round by round; dashed, the share of the examples that it holds."""
    rounds, rows = summary["rounds"], [row for row in summary["sites"] if row["weight_mean"] is not None]
    if not rows:
        return None
    numbers, picked = _numbers(summary), _picked(summary, rows)
    axes = over_rounds(figure, numbers)
    _grey_curves(axes, summary, "weights", [row["site"] for row in rows if row["site"] not in picked])
    for row in (row for row in rows if row["site"] in picked):
        colour, role = picked[row["site"]]
        values = [found["weights"].get(row["site"]) for found in rounds]
        curve(axes, numbers, values, color=colour, linewidth=2, label=f"{short(row['site'])}, {role}")
        if row["data_share"] is not None:
            axes.axhline(row["data_share"], color=colour, linewidth=1.2, linestyle=DASHES)
    if picked:
        axes.plot([], [], color=DARK, linewidth=1.2, linestyle=DASHES, label="share of the examples")
    left_out = [row["round"] for row in rounds if row["rejected"]]
    if left_out:
        axes.plot(left_out, [0] * len(left_out), "x", color=DARK, clip_on=False, label="a site was left out")
    axes.set_ylim(bottom=min([0, *(weight for row in rounds for weight in row["weights"].values())]))
    axes.set_ylabel("aggregation weight (fraction)")
    legend(figure, axes)
    last = rounds[-1]["weights"].values()
    return f"Aggregation weights, last round: {text(min(last, default=None))} to {text(max(last, default=None))}"


@inline("methods")
def method_points(figure: Figure, comparison: Json) -> str | None:
    """Each method's mean over sites and its worst site, averaged over seeds, with 95 % intervals."""
    methods, metric = comparison["methods"], label(comparison["headline"], comparison)
    figure.set_figheight(1.8 + 0.42 * len(methods))
    axes = figure.subplots()
    for y, method in enumerate(methods):
        first = y == 0
        point(axes, method["mean"], y - 0.12, color=BLUE, fmt="o", label="mean over sites" if first else None)
        point(axes, method["worst"], y + 0.12, color=RED, fmt="D", label="worst site" if first else None)
    axes.set_yticks(range(len(methods)), [short(method["label"], 26) for method in methods])
    axes.set_ylim(len(methods) - 0.5, -0.5)
    whose = ", own models where sites use such" if any(method.get(SHOWN) for method in methods) else ""
    axes.set_xlabel(f"{metric}\n(own test split{whose}, mean over {plural(len(comparison['seeds']), 'seed')})")
    legend(figure, axes)
    worst = [method["worst"]["mean"] for method in methods]
    return f"{capital(metric)}, worst site: {text(min(worst))} to {text(max(worst))}"


@inline("tradeoff")
def tradeoff(figure: Figure, comparison: Json) -> str | None:
    """Mean over sites against the worst group, or the worst site where there are no groups; a point per method."""
    methods, metric = comparison["methods"], label(comparison["headline"], comparison)
    key = "worst_group" if all(m["worst_group"]["mean"] is not None for m in methods) else "worst"
    if len(methods) < 3:
        return None
    figure.set_figheight(3.2 + 0.2 * len(methods))
    axes = figure.subplots()
    markers = "osD^vP*X<>"
    for i, method in enumerate(methods):
        color = (BLUE, RED, GREEN, ORANGE, PURPLE, DARK)[i % 6]
        x, y = method["mean"]["mean"], method[key]["mean"]
        axes.plot([x], [y], markers[i % len(markers)], color=color, markersize=7, label=short(method["label"], 40))
    right = "right" if comparison["higher_is_better"] else "left"
    better = f"{'up' if right == 'right' or key == 'worst_group' else 'down'} and to the {right}"
    what = "worst group's accuracy" if key == "worst_group" else f"{metric}, worst site"
    axes.set_xlabel(f"{metric}, mean over sites\n({better} is better)")
    axes.set_ylabel(what)
    legend(figure, axes, columns=1)
    return f"Trade-off: {what} against the mean over sites"


def _mean_line(axes: Axes, fairness: Json) -> None:
    axes.axvline(fairness["mean"], color=BLUE, linewidth=1.8, label=f"mean over sites, {text(fairness['mean'])}")
    low, high, level = (fairness["ci"][key] for key in ("low", "high", "level"))
    if low is not None:
        axes.axvspan(low, high, color=BLUE, alpha=0.15, linewidth=0, label=f"its {level:.0%} interval")


def _grey_curves(axes: Axes, summary: Json, part: str, sites: Sequence[str]) -> None:
    """A line per site; the range of the middle nine tenths of them where there are too many to tell apart."""
    if len(sites) > MANY:
        band(axes, _numbers(summary), [[row[part].get(site) for site in sites] for row in summary["rounds"]])
        return
    for i, site in enumerate(sites):
        values = [row[part].get(site) for row in summary["rounds"]]
        curve(axes, _numbers(summary), values, color=GREY, linewidth=1, label="other sites" if i == 0 else None)


def _numbers(summary: Json) -> list[int]:
    return [row["round"] for row in summary["rounds"]]


def _model(summary: Json) -> str:
    return "final model" if summary["status"] == "completed" else "last model"


def _lowest(summary: Json) -> tuple[str, str]:
    """The worst served site; without a final evaluation, the lowest in the last round that has values."""
    site = summary["fairness"]["worst"]["site"]
    if site is not None:
        return site, "worst served"
    known = [row["worst"]["site"] for row in summary["rounds"] if row["mean"] is not None]
    return known[-1], "lowest at the end"


def _picked(summary: Json, rows: Sequence[Json]) -> dict[str, tuple[str, str]]:
    """Colour and role of the sites drawn in colour: the worst served, the most raised and the most lowered one."""
    ratios = {row["site"]: row["weight_mean"] / row["data_share"] for row in rows if row["data_share"]}
    ordered = sorted(ratios, key=ratios.__getitem__)
    picked = {site: (GREEN, "highest for its share") for site in ordered[-1:] if ratios[site] > 1.01}
    picked |= {site: (PURPLE, "lowest for its share") for site in ordered[:1] if ratios[site] < 0.99}
    lowest = summary["fairness"]["worst"]["site"]
    return picked | ({lowest: (RED, "worst served")} if lowest else {})
