# SPDX-License-Identifier: Apache-2.0
"""The benefit of joining for each site: the federation's model less the site's own, on the site's test patients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fairflare.report import svg
from fairflare.report.audit_reader import Trail
from fairflare.report.groups import group_words
from fairflare.report.section import Section
from fairflare.report.values import (
    Estimate,
    answer,
    higher_is_better,
    label,
    number,
    signed,
    text,
    with_interval,
)

Json = dict[str, Any]
Numbers = Mapping[str, Any]
GAINS, LOSES, UNCLEAR = "gains", "loses", "cannot be told"
VERDICTS = (GAINS, LOSES, UNCLEAR)
MOST_NAMED = 3
"""Sites that the sentence names."""


def benefit_section(trail: Trail, sites: Sequence[str], about: Mapping[str, Any]) -> Json | None:
    """What the log says of it; None where the run did not ask.

    Returns:
        metric (the one that the first sentence is in), trainer (of the sites alone), draws and level (of the
        intervals), rejected (site -> why), and metrics: name -> label, higher_is_better, sites, groups, counts
        (verdict -> sites), worst (the site with the least benefit) and sentence. A row has n, federated, solo, benefit
        (federated less solo; solo less federated where smaller is better), low, high and verdict, by the interval.
    """
    record = trail.benefit
    if not record:
        return None
    found: Mapping[str, Numbers] = record.get("sites") or {}
    names = [name for name in record.get("metrics") or () if any(f"federated.{name}" in own for own in found.values())]
    described = {name: _metric(name, found, sites, record, about) for name in names}
    about = {"metric": names[0] if names else None, **{key: record.get(key) for key in ("trainer", "draws", "level")}}
    rejected = {site: dict(why) for site, why in (record.get("rejected") or {}).items()}
    said = [one["sentence"] for one in described.values() if one["sentence"]]
    return {**about, "metrics": described, "rejected": rejected, "sentences": said}


def _metric(name: str, found: Mapping[str, Numbers], sites: Sequence[str], record: Numbers, about: Numbers) -> Json:
    higher, words = higher_is_better(name, about), label(name, about)
    asked = [site for site in sites if site in found or site in (record.get("rejected") or {})]
    rows = [{"site": site, **_paired(found.get(site) or {}, name, "", higher)} for site in asked]
    told = [row for row in rows if row["verdict"] is not None]
    counts = {verdict: sum(row["verdict"] == verdict for row in told) for verdict in VERDICTS}
    worst = min(told, key=lambda row: (row["benefit"], row["site"]), default=None)
    of = {one.partition("/")[2] for own in found.values() for one in own if one.startswith("n/")}
    of = of if name in (record.get("group_metrics") or ()) else set()
    groups = [(one, site) for one in sorted(of) for site in asked if f"federated.{name}/{one}" in found.get(site, {})]
    return {
        "label": words,
        "higher_is_better": higher,
        "sites": rows,
        "groups": [{"group": g, "site": s, **_paired(found[s], name, f"/{g}", higher)} for g, s in groups],
        "counts": {**counts, "unknown": len(rows) - len(told)},
        "worst": worst,
        "sentence": sentence(rows, words),
    }


def _paired(numbers: Numbers, metric: str, where: str, higher: bool) -> Json:
    kinds = ("federated", "solo", "low", "high")
    federated, solo, low, high = (number(numbers.get(f"{kind}.{metric}{where}")) for kind in kinds)
    row: Json = {"n": number(numbers.get(f"n{where}")), "federated": federated, "solo": solo}
    sign = 1 if higher else -1
    benefit = None if federated is None or solo is None else sign * (federated - solo)
    ends = (None, None) if low is None or high is None else sorted((sign * low, sign * high))
    return {**row, "benefit": benefit, "low": ends[0], "high": ends[1], "verdict": verdict(benefit, *ends)}


def verdict(benefit: float | None, low: float | None, high: float | None) -> str | None:
    """By the interval, ``UNCLEAR`` without one; None without a benefit."""
    if benefit is None:
        return None
    if low is None or high is None or low <= 0 <= high:
        return UNCLEAR
    return GAINS if low > 0 else LOSES


def sentence(rows: Sequence[Json], metric: str) -> str:
    """ "Joining (accuracy): 1 of 4 sites gains (A: +0.05 [+0.01, +0.09]), 1 loses (B: ...), 2 with too few." """
    told = [row for row in rows if row["verdict"] is not None]
    by_verdict = {name: [row for row in told if row["verdict"] == name] for name in VERDICTS}
    gain, lose, unclear = (by_verdict[name] for name in VERDICTS)
    sites = "1 site" if len(rows) == 1 else f"{len(rows)} sites"
    parts = [f"{len(gain) or 'none'} of {sites} {'gain' if len(gain) > 1 else 'gains'}{_named(gain, best=True)}"]
    parts.append(f"{len(lose) or 'none'} {'lose' if len(lose) > 1 else 'loses'}{_named(lose, best=False)}")
    parts += [f"{len(unclear)} with too few patients to tell"] if unclear else []
    parts += [f"{len(rows) - len(told)} without an answer"] if len(rows) > len(told) else []
    return f"Joining ({metric}): {', '.join(parts)}."


def over_methods(comparison: Mapping[str, Any]) -> list[str]:
    """One sentence for each method whose sites report the benefit of joining, in the first metric."""
    found = []
    for method in comparison["methods"]:
        metrics: Mapping[str, Json] = method["detail"].get("benefit") or {}
        for one in list(metrics.values())[:1]:
            if one["sentence"]:
                found.append(f"{method['label']}: {one['sentence']}")
                continue
            gain, lose = (text(one[kind]["mean"], 1) for kind in (GAINS, LOSES))
            found.append(
                f"{method['label']}: Joining ({one['label']}), mean over seeds: {gain} of {one['sites']} sites gain, "
                f"{lose} lose; the least benefit of a site is {signed(one['least']['mean'])}."
            )
    return found


def _named(rows: Sequence[Json], best: bool) -> str:
    """The sites furthest from zero with their intervals, in brackets; "" without any."""
    ordered = sorted(rows, key=lambda row: (-row["benefit"] if best else row["benefit"], row["site"]))
    shown = [f"{row['site']}: {with_interval(row, 'benefit')}" for row in ordered[:MOST_NAMED]]
    more = [f"{len(ordered) - MOST_NAMED} more"] if len(ordered) > MOST_NAMED else []
    return f" ({'; '.join(shown + more)})" if shown else ""


LOOKS = {GAINS: (svg.BLUE, "o"), UNCLEAR: ("#777777", "s"), LOSES: (svg.RED, "v")}
"""Verdict -> colour and marker: neither alone has to be told apart."""


def benefit_figures(run: Json) -> list[str]:
    """A figure of the first metric; [] where the run did not ask, or has more sites than can be drawn."""
    found = [*((run.get("benefit") or {}).get("metrics") or {}).values()][:1]
    return [svg.rendered("benefit", partial(draw_benefit, one=one)) for one in found if len(one["sites"]) <= svg.MANY]


def draw_benefit(figure: svg.Figure, one: Json) -> str | None:
    """A point and its interval for each site, the largest benefit first; ``one``: of ``benefit_section``."""
    rows = sorted((row for row in one["sites"] if row["benefit"] is not None), key=lambda row: -row["benefit"])
    if not rows:
        return None
    draw_benefits(figure, [(row["site"], row) for row in rows], f"benefit in {one['label']}")
    counts = one["counts"]
    return f"Joining, {one['label']}: {counts[GAINS]} gain, {counts[LOSES]} lose, {counts[UNCLEAR]} unclear"


def draw_benefits(
    figure: svg.Figure,
    rows: Sequence[tuple[str, Json]],
    what: str,
    words: Mapping[str, str] | None = None,
    note: str = ", above 0 joining is better\n(95 % interval over patients)",
) -> None:
    """A point and its interval around zero for each of ``rows``, (name, row of a benefit), from the top.

    ``words``: verdict -> what the legend says; ``note`` follows ``what`` below the axis.
    """
    series = []
    for verdict in dict.fromkeys(row["verdict"] for _, row in rows):
        cells = [Estimate.of(row, "benefit") if row["verdict"] == verdict else None for _, row in rows]
        series.append(svg.Series((words or {}).get(verdict, answer(verdict)), cells, *LOOKS[verdict]))
    svg.dots(figure, [name for name, _ in rows], series, what + note, at=[(0, "", svg.DARK)], columns=3)


SHOWN_GROUPS = 4
"""Groups at sites that a page shows."""


def groups_harmed(summary: Json) -> Json:
    """Which groups of patients at a site lose by joining, by the interval; the furthest first.

    Returns:
        said: in a sentence; rows: group, site, metric (in words) and the row of ``benefit_section``.
    """
    found = (summary.get("benefit") or {}).get("metrics") or {}
    by_outcome = (summary.get("groups") or {}).get("by") == "label"  # what an outcome makes is no group of patients
    held = [] if by_outcome else [(row, one["label"]) for one in found.values() for row in one["groups"]]
    known = ((row, name) for row, name in held if row["verdict"] is not None)
    told = [{**row, "group": group_words(row["group"], summary), "metric": label} for row, label in known]
    harmed = sorted((row for row in told if row["verdict"] == "loses"), key=lambda row: (row["benefit"], row["site"]))
    looked = len({(row["group"], row["site"]) for row in told})
    lose = len({(row["group"], row["site"]) for row in harmed})
    if not found:
        said = "Whether a group of patients is harmed by joining was not measured."
    elif by_outcome:
        said = "Patients were not grouped but by their outcome: whether joining harms a group was not measured."
    elif not told:
        said = "No group of patients was compared: whether one is harmed by joining is not known."
    elif not harmed:
        said = f"None of {looked} groups of patients at a site loses by joining, by the interval."
    else:
        lost = "loses" if lose == 1 else "lose"
        said = f"{lose} of {looked} groups of patients at a site {lost} by joining, by the interval:"
    return {"said": said, "rows": harmed[:SHOWN_GROUPS], "more": max(0, len(harmed) - SHOWN_GROUPS)}


SECTION = Section("benefit", "The benefit of joining for each site", ("benefit", "metrics"), figure=benefit_figures)
