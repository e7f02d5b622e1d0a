# SPDX-License-Identifier: Apache-2.0
"""The figures of the pages.

One colour code throughout: red is the worst served site, blue the mean (or what is clean), grey the other sites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import ceil, floor
from typing import TYPE_CHECKING, Any

from fairflare.report import svg
from fairflare.report.after import GAINS, LOSES, UNCLEAR
from fairflare.report.rows import SHOWN
from fairflare.report.values import capital, in_order, label, plural, rendered, signed, text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Json = Mapping[str, Any]


@svg.inline("sites")
def site_bars(figure: Figure, summary: Json) -> str | None:
    fairness, metric = summary["fairness"], label(summary["headline"], summary)
    if fairness["mean"] is None:
        return None
    sign = -1 if summary["higher_is_better"] else 1
    rows = sorted(summary["sites"], key=lambda row: (row["value"] is None, sign * (row["value"] or 0)))
    colours = {fairness["worst"]["site"]: svg.RED}
    if len(rows) > svg.MANY:
        axes = svg.ranked(figure, [row["value"] for row in rows if row["value"] is not None])
    else:
        axes = svg.bars(figure, [(row["site"], row["value"], colours.get(row["site"], svg.GREY)) for row in rows])
        svg.whiskers(axes, [row["intervals"].get(summary["headline"]) for row in rows])
    axes.axvline(fairness["mean"], color=svg.BLUE, linewidth=1.8, label=f"mean over sites, {text(fairness['mean'])}")
    low, high, level = (fairness["ci"][key] for key in ("low", "high", "level"))
    if low is not None:
        axes.axvspan(low, high, color=svg.BLUE, alpha=0.15, linewidth=0, label=f"its {level:.0%} interval")
    svg.legend(figure, axes, f"{metric}\n(own test split, {_model(summary)})")
    return f"{capital(metric)} by site: worst {text(fairness['worst']['value'])}, gap {text(fairness['gap'])}"


@svg.inline("personal")
def personal_points(figure: Figure, summary: Json) -> str | None:
    own, metric = summary["personal"], label(summary["headline"], summary)
    rows = [row for row in (own or {}).get("rows", ()) if row["difference"] is not None]
    if not rows:
        return None
    figure.set_figheight(1.8 + 0.28 * len(rows))
    axes = figure.subplots()
    for y, row in enumerate(rows):
        axes.plot([row["shared"], row["personal"]], [y, y], color=svg.GREY, linewidth=2, zorder=1)
    places = range(len(rows))
    axes.plot([row["shared"] for row in rows], places, "o", color=svg.BLUE, label="shared model")
    axes.plot([row["personal"] for row in rows], places, "D", color=svg.PURPLE, label="personal model")
    axes.set_yticks(places, [svg.short(row["site"]) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    svg.legend(figure, axes, f"{metric}\n(own test split, {_model(summary)})")
    shared, personal = (text(own[kind]["mean"]) for kind in ("shared", "personal"))
    return f"{capital(metric)}, mean over sites: shared {shared}, personal {personal}"


@svg.inline("tests")
def shared_test_bars(figure: Figure, summary: Json) -> str | None:
    found, metric = summary["test_sets"], label(summary["headline"], summary)
    rows = [row for row in found["rows"] if row["value"] is not None]
    if not rows:
        return None
    axes = svg.bars(figure, [(row["name"], row["value"], svg.ORANGE if row["corrupted"] else svg.BLUE) for row in rows])
    axes.set_xlabel(f"{metric}\n(shared test sets, {_model(summary)})")
    means = {kind: found[f"{kind}_mean"].get(summary["headline"]) for kind in ("clean", "corrupted")}
    ends = ", ".join(f"{kind} {text(mean)}" for kind, mean in means.items() if mean is not None)
    return f"{capital(metric)} on shared test sets: {ends}"


@svg.inline("rounds")
def metric_rounds(figure: Figure, summary: Json) -> str | None:
    """The received model's headline metric on each site's validation split, round by round."""
    rounds, metric = summary["rounds"], label(summary["headline"], summary)
    means = [row["mean"] for row in rounds if row["mean"] is not None]
    if not means:
        return None
    lowest, role = summary["fairness"]["worst"]["site"], "worst served"
    if lowest is None:  # without a final evaluation
        lowest, role = [row["worst"]["site"] for row in rounds if row["mean"] is not None][-1], "lowest at the end"
    numbers = _numbers(summary)
    axes = svg.over_rounds(figure, numbers)
    others = (site for row in rounds for site in row["metric"] if site != lowest)
    _grey_curves(axes, summary, "metric", in_order(others))
    values = [row["metric"].get(lowest) for row in rounds]
    svg.curve(axes, numbers, values, color=svg.RED, linewidth=2, label=f"{svg.short(lowest)}, {role}")
    svg.curve(
        axes, numbers, [row["mean"] for row in rounds], color=svg.BLUE, linewidth=2, label="mean of accepted sites"
    )
    svg.within(axes, "y", means)
    svg.legend(figure, axes, y=f"{metric}, validation")
    return f"{capital(metric)} over rounds: mean {text(means[0])} to {text(means[-1])}"


@svg.inline("weights")
def weight_rounds(figure: Figure, summary: Json) -> str | None:
    """Each site's aggregation weight round by round; dashed, the share of the examples that it holds."""
    rounds, rows = summary["rounds"], [row for row in summary["sites"] if row["weight_mean"] is not None]
    if not rows:
        return None
    numbers, picked = _numbers(summary), _picked(summary, rows)
    axes = svg.over_rounds(figure, numbers)
    _grey_curves(axes, summary, "weights", [row["site"] for row in rows if row["site"] not in picked])
    for row in (row for row in rows if row["site"] in picked):
        colour, role = picked[row["site"]]
        values = [found["weights"].get(row["site"]) for found in rounds]
        svg.curve(axes, numbers, values, color=colour, linewidth=2, label=f"{svg.short(row['site'])}, {role}")
        if row["data_share"] is not None:
            axes.axhline(row["data_share"], color=colour, linewidth=1.2, linestyle=svg.DASHES)
    if picked:
        axes.plot([], [], color=svg.DARK, linewidth=1.2, linestyle=svg.DASHES, label="share of the examples")
    weights = [weight for row in rounds for weight in row["weights"].values()]
    _weights(figure, axes, weights, [row["round"] for row in rounds if row["rejected"]], "a site was left out")
    last = rounds[-1]["weights"].values()
    return f"Aggregation weights, last round: {text(min(last, default=None))} to {text(max(last, default=None))}"


@svg.inline("methods")
def method_points(figure: Figure, comparison: Json) -> str | None:
    methods, metric = comparison["methods"], label(comparison["headline"], comparison)
    figure.set_figheight(1.8 + 0.42 * len(methods))
    axes = figure.subplots()
    for y, method in enumerate(methods):
        first = y == 0
        svg.point(axes, method["mean"], y - 0.12, color=svg.BLUE, fmt="o", label="mean over sites" if first else None)
        svg.point(axes, method["worst"], y + 0.12, color=svg.RED, fmt="D", label="worst site" if first else None)
    axes.set_yticks(range(len(methods)), [svg.short(method["label"], 26) for method in methods])
    axes.set_ylim(len(methods) - 0.5, -0.5)
    svg.within(axes, "x", [method[key]["mean"] for method in methods for key in ("mean", "worst")])
    # Beside long names the axes are narrow.
    then = ",\nown models where sites use such,\n" if any(method.get(SHOWN) for method in methods) else ", "
    svg.legend(figure, axes, f"{metric}\n(own test split{then}mean over {plural(len(comparison['seeds']), 'seed')})")
    worst = [method["worst"]["mean"] for method in methods]
    return f"{capital(metric)}, worst site: {text(min(worst))} to {text(max(worst))}"


@svg.inline("forest")
def forest(figure: Figure, comparison: Json) -> str | None:
    """Each method's paired difference from the first, of the mean and of the worst site, with its verdict."""
    told = {"better": GAINS, "worse": LOSES}
    rows = [
        (
            f"{svg.short(method['label'], 20)}, {of}",
            {**found, "benefit": found["mean"], "verdict": told.get(found["verdict"], UNCLEAR)},
        )
        for method in comparison["methods"][1:]
        for key, of in (("mean", "mean"), ("worst", "worst site"))
        if (found := method["versus_first"][key])["low"] is not None
    ]
    if not rows:
        return None
    seeds, first = plural(len(comparison["seeds"]), "seed"), svg.short(comparison["reference"])
    side = "right" if comparison["higher_is_better"] else "left"
    words = {GAINS: "better", LOSES: "worse", UNCLEAR: "cannot be told"}
    note = f" minus {first}'s, {side} of 0 is better\n(95 % interval over {seeds};\nverdicts by Holm's p)"
    draw_benefits(figure, rows, label(comparison["headline"], comparison), words, note)
    return f"Differences from {first}"


@svg.inline("tradeoff")
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
        color = (svg.BLUE, svg.RED, svg.GREEN, svg.ORANGE, svg.PURPLE, svg.DARK)[i % 6]
        x, y = method["mean"]["mean"], method[key]["mean"]
        axes.plot([x], [y], markers[i % len(markers)], color=color, markersize=7, label=svg.short(method["label"], 40))
    right = "right" if comparison["higher_is_better"] else "left"
    better = f"{'up' if right == 'right' or key == 'worst_group' else 'down'} and to the {right}"
    of_groups = label(comparison.get("group_metric") or "accuracy", comparison)
    for axis, of in (("x", "mean"), ("y", key)):
        svg.within(axes, axis, [method[of]["mean"] for method in methods])
    what = f"worst group's {of_groups}" if key == "worst_group" else f"{metric}, worst site"
    svg.legend(figure, axes, f"{metric}, mean over sites\n({better} is better)", what, columns=1)
    return f"Trade-off: {what} against the mean over sites"


def _weights(figure: Figure, axes: Axes, weights: Sequence[float], away: Sequence[int], words: str) -> None:
    """Crosses at the rounds ``away``, and an axis that begins at 0 or the least weight."""
    if away:
        axes.plot(away, [0] * len(away), "x", color=svg.DARK, clip_on=False, label=words)
    axes.set_ylim(bottom=min([0, *weights]))
    svg.within(axes, "y", weights)
    svg.legend(figure, axes, y="aggregation weight (fraction)")


def _grey_curves(axes: Axes, summary: Json, part: str, sites: Sequence[str]) -> None:
    """A line per site; the range of the middle nine tenths of them where there are too many to tell apart."""
    if len(sites) > svg.MANY:
        svg.band(axes, _numbers(summary), [[row[part].get(site) for site in sites] for row in summary["rounds"]])
        return
    for i, site in enumerate(sites):
        values = [row[part].get(site) for row in summary["rounds"]]
        svg.curve(axes, _numbers(summary), values, color=svg.GREY, linewidth=1, label="other sites" if i == 0 else None)


def _numbers(summary: Json) -> list[int]:
    return [row["round"] for row in summary["rounds"]]


def _model(summary: Json) -> str:
    return "final model" if summary["status"] == "completed" else "last model"


def _picked(summary: Json, rows: Sequence[Json]) -> dict[str, tuple[str, str]]:
    """Colour and role of the sites drawn in colour: the worst served, the most raised and the most lowered one."""
    ratios = {row["site"]: row["weight_mean"] / row["data_share"] for row in rows if row["data_share"]}
    ordered = sorted(ratios, key=ratios.__getitem__)
    picked = {site: (svg.GREEN, "highest for its share") for site in ordered[-1:] if ratios[site] > 1.01}
    picked |= {site: (svg.PURPLE, "lowest for its share") for site in ordered[:1] if ratios[site] < 0.99}
    lowest = summary["fairness"]["worst"]["site"]
    return picked | ({lowest: (svg.RED, "worst served")} if lowest else {})


LOOKS = {GAINS: (svg.BLUE, "o"), UNCLEAR: ("#777777", "s"), LOSES: (svg.RED, "v")}
"""Verdict -> colour and marker: neither alone has to be told apart."""


def benefit_figures(summary: Json) -> list[str]:
    """A figure as inline SVG for each metric; [] where the run did not ask, or has more sites than can be drawn."""
    found = (summary.get("benefit") or {}).get("metrics") or {}
    return [
        made
        for place, one in enumerate(found.values())
        if len(one["sites"]) <= svg.MANY and (made := svg.rendered(f"benefit{place}", partial(draw_benefit, one=one)))
    ]


def draw_benefit(figure: Figure, one: Json) -> str | None:
    """A point and its interval for each site, the largest benefit first; ``one``: of ``benefit_section``."""
    rows = sorted((row for row in one["sites"] if row["benefit"] is not None), key=lambda row: -row["benefit"])
    if not rows:
        return None
    draw_benefits(figure, [(svg.short(row["site"]), row) for row in rows], f"benefit in {one['label']}")
    counts = one["counts"]
    return f"Joining, {one['label']}: {counts[GAINS]} gain, {counts[LOSES]} lose, {counts[UNCLEAR]} cannot be told"


def draw_benefits(
    figure: Figure,
    rows: Sequence[tuple[str, Json]],
    what: str,
    words: Mapping[str, str] | None = None,
    note: str = ", above 0 joining is better\n(95 % interval over patients)",
) -> None:
    """A point and its interval around zero for each of ``rows``, (name, row of a benefit), from the top.

    ``words``: verdict -> what the legend says; ``note`` follows ``what`` below the axis.
    """
    figure.set_figheight(1.7 + 0.26 * len(rows))
    axes = figure.subplots()
    axes.axvline(0, color=svg.DARK, linewidth=1)
    named = set[str]()
    for y, (_, row) in enumerate(rows):
        verdict = row["verdict"]
        colour, marker = LOOKS[verdict]
        once = (words or {}).get(verdict, verdict) if verdict not in named else None
        named.add(verdict)
        where = {"mean": row["benefit"], "low": row["low"], "high": row["high"]}
        svg.point(axes, where, y, fmt=marker, color=colour, markersize=5, label=once)
        axes.axhline(y, color="#e6e6e6", linewidth=0.8, linestyle=svg.DASHES, zorder=0)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.locator_params(axis="x", nbins=4)
    svg.legend(figure, axes, what + note, columns=3)


MOST_SITES = 24
"""Sites that are drawn; the table has all of them."""
STAGES: Mapping[str, dict[str, Any]] = {
    "before": {"colour": svg.BLUE, "marker": "o", "label": "the model"},
    "after": {"colour": svg.ORANGE, "marker": "D", "label": "after the step"},
}
Line = tuple[str, str, Sequence[tuple[float, float]]]
"""Colour, name and points."""
CURVES = (svg.RED, svg.GREEN, svg.ORANGE, svg.PURPLE, svg.GREY)
"""Of groups of patients."""


def clinical_figures(section: Json) -> list[str]:
    rows = [row for row in section["rows"] if any((row[stage] or {}).get("curve") for stage in section["stages"])]

    def off(row: Json) -> float:
        return abs(((row[section["stages"][0]] or {}).get("calibration") or {}).get("value") or 0.0)

    rows.sort(key=lambda row: (-off(row), row["site"]))
    return [_of_site(place, row, section["stages"]) for place, row in enumerate(rows[:MOST_SITES])]


def curve_figures(section: Json) -> list[str]:
    """Of each site survival by time, of all its test patients and of the groups that it may tell of."""
    found: dict[str, list[Json]] = {}
    for row in section["rows"]:
        if row["steps"]:
            found.setdefault(row["site"], []).append(row)
    return [_curves(place, site, rows) for place, (site, rows) in enumerate([*found.items()][:MOST_SITES])]


def _curves(place: int, site: str, rows: Sequence[Json]) -> str:
    def draw(figure: Figure) -> str:
        axes = figure.subplots()
        for row, color in zip(rows, (svg.DARK, *CURVES)):
            x, y = ([start, *(step[key] for step in row["steps"])] for start, key in ((0.0, "time"), (1.0, "observed")))
            axes.step(x, y, where="post", color=color, linewidth=1.6, label=row["group"] or "all")
            if row["group"]:
                continue
            known = [step for step in row["steps"] if step["low"] is not None]
            when, low, high = ([step[key] for step in known] for key in ("time", "low", "high"))
            axes.vlines(when, low, high, color=color, linewidth=1)
            if row["steps"][0]["expected"] is not None:
                expected = [step["expected"] for step in row["steps"]]
                axes.plot(
                    x[1:], expected, color=svg.BLUE, linestyle=svg.DASHES, marker="o", markersize=4, label="predicted"
                )
        axes.set(ylim=(0, 1.02))
        axes.set_xlim(left=0)
        svg.legend(figure, axes, "time", "share without event", columns=3)
        return f"{svg.short(site)}: survival"

    return svg.rendered(f"curve{place}", draw)


def _of_site(place: int, row: Json, stages: Sequence[str]) -> str:
    """By a template: these are most of a run's figures, and matplotlib's axes take a hundred times as long.

    Share of outcomes over mean risk of each bin, with Wilson's interval, where the diagonal is perfect; net benefit at
    the edges of the bins, beside treating everyone and nobody.
    """
    shown = {stage: row[stage] for stage in stages if (row[stage] or {}).get("curve")}
    first, decides = next(iter(shown.values())), any(view["decisions"] for view in shown.values())
    rate, width = first["positives"] / first["n"], 112  # as high: on the diagonal the risks are right
    names = "mean predicted risk", "share that it came true of"
    panels = [_panel(width, 0, 1, [(svg.GREY, "", [(0, 0), (1, 1)])], shown, ("curve", "risk", "share"), names)]
    if decides:
        everyone = [(step / 100, rate - (1 - rate) * step / (100 - step)) for step in range(96)]
        low, high = -0.15 * rate - 0.02, rate * 1.15 + 0.02
        lines: list[Line] = [(svg.DARK, "treat nobody", [(0, 0), (1, 0)])]
        lines.append((svg.GREY, "treat all", [one for one in everyone if one[1] > low]))
        keys, names = ("decisions", "threshold", "net_benefit"), ("threshold of the risk", "net benefit")
        panels.append(_panel(width, low, high, lines, shown, keys, names))
    off = ", then ".join(signed(view["calibration"]["value"]) for view in shown.values())
    named = {line["label"]: line for panel in panels for line in panel["lines"] if line["label"]}
    title = f"{svg.short(row['site'])}: risk off by {off}"
    return rendered("clinical", place=place, title=title, width=width, panels=panels, legend=named.values())


def _panel(
    width: int, low: float, high: float, beside: Sequence[Line], shown: Json, keys: Sequence[str], names: Sequence[str]
) -> Json:
    """Axes from 0 to 1 and ``low`` to ``high``, ``width`` x 112 units: lines, and each stage's points and intervals."""
    part, x, y = keys
    low = min([low, *(one[y] for view in shown.values() for one in view[part])])

    def to(*points: tuple[float, float]) -> str:
        return "L".join(f"{a * width:.1f},{(high - max(b, low)) / (high - low) * 112:.1f}" for a, b in points)

    lines: list[Json] = [{"colour": colour, "label": label, "path": to(*points)} for colour, label, points in beside]
    for stage, points in ((stage, view[part]) for stage, view in shown.items() if view[part]):
        ends = [to((one[x], one["low"]), (one[x], min(one["high"], high))) for one in points]
        places = [to((one[x], one[y])) for one in points]
        lines.append({**STAGES[stage], "path": "L".join(places), "bars": "M".join(ends), "places": places})
    step = next((one for one in (0.005, 0.01, 0.02, 0.05, 0.1) if (high - low) / one < 6), 0.2)
    values = [round(k * step, 3) for k in range(ceil(low / step), floor(high / step) + 1)]
    return {"lines": lines, "ticks": [(f"{v:g}", (high - v) / (high - low) * 112) for v in values], "names": names}


@svg.inline("pareto")
def front_figure(figure: Figure, comparison: Json) -> str | None:
    """The points of the comparison's ``pareto``, the front joined by a line, dominated ones in grey."""
    found, methods = comparison.get("pareto"), {method["label"]: method for method in comparison["methods"]}
    if not found or len(rows := found["points"]) < 2:
        return None
    figure.set_figheight(3.4 + 0.22 * len(rows))
    axes: Any = figure.subplots()
    best = [row for row in rows if not row["dominated_by"]]
    axes.plot([row["x"] for row in best], [row["y"] for row in best], "-", color=svg.BLUE, linewidth=1, zorder=1)
    markers = "osD^vP*X<>"
    for i, row in enumerate(rows):
        color, mark = (svg.GREY, " (dominated)") if row["dominated_by"] else (svg.BLUE, "")
        label, marker = svg.short(row["label"], 34) + mark, markers[i % len(markers)]
        axes.plot([row["x"]], [row["y"]], marker, color=color, markeredgecolor=svg.DARK, markersize=7, label=label)
        across, up = (methods[row["label"]][found[key]["quantity"]] for key in "xy")
        for key, one in (("xerr", across), ("yerr", up)):
            if one["low"] is not None:
                ends = {key: [[one["mean"] - one["low"]], [one["high"] - one["mean"]]]}
                axes.errorbar([across["mean"]], [up["mean"]], **ends, fmt="none", ecolor=color, linewidth=0.8, zorder=0)
    for axis in "xy":
        svg.within(axes, axis, [row[axis] for row in rows])
    sides = ["higher" if found[key]["higher_is_better"] else "lower" for key in "xy"]
    x, y = (f"{found[key]['name']} ({side} is better)" for key, side in zip("xy", sides))
    svg.legend(figure, axes, x, y, columns=1)
    return f"Pareto front: {found['y']['name']} against {found['x']['name']}"


MOST_LINES = 40
"""Lines of the figure of benefits; the table has all."""


def edition_figures(found: Json) -> list[str]:
    return [made for made in (draw(dict(found)) for draw in (_own_benefits, _own_rounds, _own_weights)) if made]


@svg.inline("joining")
def _own_benefits(figure: Figure, found: Json) -> str | None:
    metrics = (found["benefit"] or {}).get("metrics") or {}
    rows = [(one["label"], one["row"]) for one in metrics.values() if one["row"]]
    rows += [(f"{one['label']}: {row['group']}", row) for one in metrics.values() for row in one["groups"]]
    rows = [(name, row) for name, row in rows if row["verdict"] is not None][:MOST_LINES]
    if not rows:
        return None
    words = {GAINS: "joining is better", LOSES: "joining is worse"}
    draw_benefits(figure, [(svg.short(name, 30), row) for name, row in rows], "benefit", words)
    name, first = rows[0]
    return f"Benefit of joining in {name}: {signed(first['benefit'])}"


@svg.inline("own-rounds")
def _own_rounds(figure: Figure, found: Json) -> str | None:
    """The received model's metric on the site's validation split, beside the others' mean."""
    values = [row["value"] for row in found["rounds"]]
    known = [value for value in values if value is not None]
    if not known:
        return None
    numbers, others = [row["round"] for row in found["rounds"]], found["others_rounds"]
    axes = svg.over_rounds(figure, numbers)
    if others:
        svg.curve(axes, numbers, others, color=svg.GREY, linewidth=2, label="mean of other hospitals")
    svg.curve(axes, numbers, values, color=svg.BLUE, linewidth=2, label=svg.short(found["site"]))
    svg.within(axes, "y", [*known, *others])
    svg.legend(figure, axes, y=f"{found['result']['label']}, validation")
    return f"{capital(found['result']['label'])} over rounds: {text(known[0])} to {text(known[-1])}"


@svg.inline("own-weight")
def _own_weights(figure: Figure, found: Json) -> str | None:
    rounds, part = found["rounds"], found["part"]
    if not any(row["weight"] is not None for row in rounds):
        return None
    numbers = [row["round"] for row in rounds]
    axes = svg.over_rounds(figure, numbers)
    weights = [row["weight"] for row in rounds]
    svg.curve(axes, numbers, weights, color=svg.BLUE, linewidth=2, label=f"weight of {svg.short(found['site'])}")
    for value, style, words in (
        (part["share"], svg.DASHES, "share of the examples"),
        (part["equal"], ":", "equal shares"),
    ):
        if value is not None:
            axes.axhline(value, color=svg.DARK, linewidth=1.2, linestyle=style, label=words)
    away = [row["round"] for row in rounds if row["state"] not in ("accepted", "not asked")]
    _weights(figure, axes, [weight for weight in weights if weight is not None], away, "left out")
    return f"Weight in the shared model: {text(part['weight'], 2)} on average"
