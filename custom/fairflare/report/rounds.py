# SPDX-License-Identifier: Apache-2.0
"""The rounds: how far each site's model came, how strongly its update was used, and who was left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairflare.report import svg
from fairflare.report.audit_reader import Entry, Trail, away, part
from fairflare.report.fairness import mean, worst
from fairflare.report.section import Section
from fairflare.report.values import capital, in_order, label, number, text

Json = dict[str, Any]


def round_row(record: Entry, headline: str, higher: bool) -> Json:
    """One round: ``metric`` is of the received model on each accepted site's validation split."""
    accepted, weights = part(record, "accepted"), part(record, "weights")
    metric = {site: number(part(accepted[site], "metrics").get(headline)) for site in in_order(accepted)}
    lowest, value = worst(metric, higher)
    return {
        "round": record["round"],
        "metric": metric,
        "mean": mean(metric),
        "worst": {"site": lowest, "value": value},
        "weights": {site: number(weights[site]) for site in in_order(weights) if number(weights[site]) is not None},
        "rejected": in_order(part(record, "rejected")),
        "notes": part(record, "notes"),
        "model_sha256": record.get("model_sha256"),
    }


def contributions(trail: Trail) -> Json:
    """How many updates were expected (``expected``, over the recorded rounds), accepted, rejected and never came."""
    totals = trail.totals
    accepted, expected = totals.accepted.total(), totals.expected.total()
    rejected = sum(codes.total() for codes in totals.rejected.values())
    found = {"rounds": totals.rounds, "expected": expected, "accepted": accepted, "rejected": rejected}
    return {**found, "absent": expected - accepted - rejected, "rejections": totals.rejections}


def segment_rows(trail: Trail) -> list[Json]:
    """A row for each segment: after, to (its rounds), sites, came, left (since the one before), away, and began (time).

    [] of a run that has but one, whose sites were all there.
    """
    rows: list[Json] = []
    members: set[str] = set()
    for one in trail.segments:
        missing = away(one)
        now = {*(one.get("sites") or ()), *missing}
        about = {"after": one.get("from_round", 0), "to": one.get("rounds"), "began": one.get("time")}
        moved = {"came": in_order(now - members) if rows else [], "left": in_order(members - now)}
        rows.append({**about, "sites": in_order(now - set(missing)), **moved, "away": missing})
        members = now
    return rows if len(rows) > 1 or any(row["away"] for row in rows) else []


@svg.inline("rounds")
def metric_rounds(figure: svg.Figure, summary: Json) -> str | None:
    """The received model's headline metric on each site's validation split, round by round."""
    rounds, metric = summary["rounds"], label(summary["headline"], summary)
    means = [row["mean"] for row in rounds if row["mean"] is not None]
    if not means:
        return None
    lowest, role = summary["fairness"]["worst"]["site"], "worst served"
    if lowest is None:  # without a final evaluation
        lowest, role = [row["worst"]["site"] for row in rounds if row["mean"] is not None][-1], "lowest at the end"
    others = in_order(site for row in rounds for site in row["metric"] if site != lowest)
    series = (
        svg.Series(f"{svg.short(lowest)}, {role}", _of(rounds, "metric", lowest), svg.RED),
        svg.Series("mean of accepted sites", [row["mean"] for row in rounds]),
    )
    behind = {site: _of(rounds, "metric", site) for site in others}
    svg.curves(figure, _numbers(rounds), series, f"{metric}, validation", others=behind)
    return f"{capital(metric)} over rounds: mean {text(means[0])} to {text(means[-1])}"


@svg.inline("weights")
def weight_rounds(figure: svg.Figure, summary: Json) -> str | None:
    """Each site's aggregation weight round by round; dashed, the share of the examples that it holds."""
    rounds, rows = summary["rounds"], [row for row in summary["sites"] if row["weight_mean"] is not None]
    if not rows:
        return None
    picked, series = _picked(summary, rows), []
    for row in (row for row in rows if row["site"] in picked):
        colour, role = picked[row["site"]]
        series.append(svg.Series(f"{svg.short(row['site'])}, {role}", _of(rounds, "weights", row["site"]), colour))
        if row["data_share"] is not None:
            series.append(svg.Series("", [row["data_share"]] * len(rounds), colour, style=svg.DASHES))
    if picked:
        series.append(svg.Series("share of the examples", [None] * len(rounds), svg.DARK, style=svg.DASHES))
    behind = {row["site"]: _of(rounds, "weights", row["site"]) for row in rows if row["site"] not in picked}
    crosses = [0 if row["rejected"] else None for row in rounds]
    series += [svg.Series("a site was left out", crosses, svg.DARK, "x", "")] if any(c == 0 for c in crosses) else []
    axes = svg.curves(figure, _numbers(rounds), series, "aggregation weight (fraction)", others=behind)
    known = [value for one in (*(one.values for one in series), *behind.values()) for value in one if value is not None]
    axes.set_ylim(bottom=min([0, *known]))
    last = rounds[-1]["weights"].values()
    return f"Aggregation weights, last round: {text(min(last, default=None))} to {text(max(last, default=None))}"


def _of(rounds: Sequence[Json], part: str, site: str) -> list[float | None]:
    return [row[part].get(site) for row in rounds]


def _numbers(rounds: Sequence[Json]) -> list[int]:
    return [row["round"] for row in rounds]


def _picked(summary: Json, rows: Sequence[Json]) -> dict[str, tuple[str, str]]:
    """Colour and role of the sites drawn in colour: the worst served, the most raised and the most lowered one."""
    ratios = {row["site"]: row["weight_mean"] / row["data_share"] for row in rows if row["data_share"]}
    ordered = sorted(ratios, key=ratios.__getitem__)
    picked = {site: (svg.GREEN, "highest for its share") for site in ordered[-1:] if ratios[site] > 1.01}
    picked |= {site: (svg.PURPLE, "lowest for its share") for site in ordered[:1] if ratios[site] < 0.99}
    lowest = summary["fairness"]["worst"]["site"]
    return picked | ({lowest: (svg.RED, "worst served")} if lowest else {})


SECTION = Section("away", "What happened in the rounds", ("contributions",))
