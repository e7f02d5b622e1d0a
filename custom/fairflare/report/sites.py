# SPDX-License-Identifier: Apache-2.0
"""How the final model does at each site, and how evenly: the numbers over sites, their table and their figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

from fairflare.report import fairness as over
from fairflare.report import svg
from fairflare.report.audit_reader import Trail, part
from fairflare.report.section import Quantity, Section, headline_width
from fairflare.report.values import Estimate, capital, label, number, text

Json = dict[str, Any]
INTERVALS = "intervals"
"""The key of ``core.types``, which imports torch."""


def _fair(key: str) -> Callable[[Json], Any]:
    return lambda run: run["fairness"][key]


def _values(of: Callable[..., float | None], *more: Any) -> Callable[[Json], float | None]:
    return lambda run: of({row["site"]: row["value"] for row in run["sites"]}, *more)


QUANTITIES = (
    Quantity("mean", "mean over sites", _fair("mean"), column="Mean over sites", over=lambda v, _: over.mean(v)),
    Quantity("worst", "worst site", lambda run: run["fairness"]["worst"]["value"], column="Worst site",
             over=lambda v, higher: (min if higher else max)(over.finite(v).values(), default=None)),
    Quantity("std", "standard deviation over sites (ddof 0)", _fair("std"), "lower", headline_width, "Spread (std)"),
    Quantity("gap", "gap between best and worst site", _fair("gap"), "lower", headline_width, "Gap"),
    Quantity("jain", "Jain's index", _fair("jain"), "higher", (0, 1)),
    Quantity("std_sample", "standard deviation over sites (ddof 1)", _values(over.std, 1), "lower", (0, inf)),
    Quantity("bottom_decile", "worst tenth of the sites",
             lambda run: _values(over.bottom_decile, run["higher_is_better"])(run)),
)  # fmt: skip


def site_rows(trail: Trail, sites: Sequence[str], described: Mapping[str, str], headline: str) -> list[Json]:
    """One row per site of ``sites``.

    ``value`` is the final model's headline metric on the site's test split, ``intervals`` metric -> "low" and "high"
    over its test patients, ``n_val`` and ``n_test`` how many these splits hold, ``data_share`` n_k / n over the sites
    with a known n_k, ``weight_mean`` the mean over the rounds in which the site was accepted, ``expected`` how many
    updates the rounds counted on, ``codes`` how often it was rejected for which reason.
    """
    rows = [_site_row(trail, site, described.get(site) or "", headline) for site in sites]
    total = sum(row["n_examples"] or 0 for row in rows)
    for row in rows:
        row["expected"] = trail.totals.expected[row["site"]]
        row["data_share"] = row["n_examples"] / total if row["n_examples"] and total else None
    return rows


def _site_row(trail: Trail, site: str, description: str, headline: str) -> Json:
    totals = trail.totals
    _, answer, weight = totals.last.get(site) or (0, {}, None)
    codes = totals.rejected.get(site) or Counter[str]()
    splits = part(trail.evaluation, "sites").get(site) or {}
    val, test = (splits.get(split) or {} for split in ("val", "test"))
    return {
        "site": site,
        "description": description,
        "n_examples": None if trail.equal else answer.get("n_examples"),
        **{f"n_{split}": number(part(splits, "n").get(split)) for split in ("val", "test")},
        "value": number(test.get(headline)),
        "val": val,
        "test": test,
        "intervals": intervals_of(splits),
        "weight_last": weight,
        "weight_mean": over.mean(totals.weights.get(site, ())),
        "accepted": totals.accepted[site],
        "rejected": sum(codes.values()),
        "codes": dict(sorted(codes.items())),
    }


def intervals_of(splits: Mapping[str, Any]) -> Json:
    """Metric -> "low" and "high" over the site's test patients, of metrics with an interval; older logs have none."""
    sent = splits.get(INTERVALS)
    pairs = sent.items() if isinstance(sent, Mapping) else ()
    proper = [(name, pair) for name, pair in pairs if isinstance(pair, Mapping)]
    found = {name: {end: number(pair.get(end)) for end in ("low", "high")} for name, pair in proper}
    return {name: ends for name, ends in found.items() if None not in ends.values()}


def over_patients(row: Json, metric: str, value: float | None) -> Estimate:
    """A site's value of a metric, and the interval over its test patients where there is one."""
    return Estimate.of({"mean": value, **row["intervals"].get(metric, {})})


def final(run: Json) -> str:
    """What the run's results are of, in words."""
    if (run.get("chosen") or {}).get("headline") == "best":
        return "chosen model"
    return "final model" if run["status"] == "completed" else "last model"


def in_grey(run: Json) -> str:
    known = any(row["intervals"] for row in run["sites"])
    return " In grey 95 % intervals over the site's test patients: they say nothing of another seed." if known else ""


@svg.inline("sites")
def site_points(figure: svg.Figure, run: Json) -> str | None:
    fairness, metric = run["fairness"], label(run["headline"], run)
    if fairness["mean"] is None:
        return None
    sign = -1 if run["higher_is_better"] else 1
    rows = sorted((row for row in run["sites"] if row["value"] is not None), key=lambda row: sign * row["value"])
    cells = [over_patients(row, run["headline"], row["value"]) for row in rows]
    worst = [row["site"] == fairness["worst"]["site"] for row in rows]
    metrics = (run.get("benefit") or {}).get("metrics") or {}
    alone = {row["site"]: row["solo"] for row in (metrics.get(run["headline"]) or {"sites": ()})["sites"]}
    series = [
        svg.Series("trained alone there", [alone.get(row["site"]) for row in rows], svg.GREY, "s"),
        svg.Series("a site each", [None if bad else one for one, bad in zip(cells, worst)], svg.DARK),
        svg.Series("worst served", [one if bad else None for one, bad in zip(cells, worst)], svg.RED, "D"),
    ]
    mean = (fairness["mean"], f"mean over sites, {text(fairness['mean'])}", svg.BLUE)
    x = f"{metric}\n(own test split, {final(run)})"
    svg.dots(figure, [row["site"] for row in rows], series[not alone :], x, at=[mean])
    return f"{capital(metric)} by site: worst {text(fairness['worst']['value'])}, gap {text(fairness['gap'])}"


SECTION = Section("sites", "Sites", ("sites",))
