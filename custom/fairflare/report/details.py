# SPDX-License-Identifier: Apache-2.0
"""What a comparison says of one method beside its fairness: sites, metrics, domains, last rounds, joining, cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairflare.report.benefit import VERDICTS
from fairflare.report.fairness import mean, mean_ci, std
from fairflare.report.paired import corrected, holm, paired
from fairflare.report.quantities import (
    COSTS,
    costs,
    domain_values,
    domains_are,
    last_values,
    metric_row,
    site_metrics,
    test_set_metrics,
)
from fairflare.report.values import higher_is_better

Json = dict[str, Any]
Runs = Sequence[Json]
SOLO = "solo"
"""The method whose sites train alone."""


def details(runs: Runs, everyone: Mapping[str, Runs]) -> Json:
    """Beside ``QUANTITIES``, each value as mean and 95 % interval over seeds.

    Args:
        everyone: label -> the runs of every method of the comparison, in the same order.

    Returns:
        sites: metric -> site -> interval; metrics: metric -> mean, worst, std -> interval; domains: domain -> interval,
        domains_of: what they are; test_sets: set -> metric -> interval; last_rounds: "clean", "corrupted" and "average"
        (of the two) -> ``spread_of``; cost: ``COSTS`` -> interval; joining: site -> ``paired.paired`` of the method's
        value minus the solo model's, with p_holm over the sites and verdict, and "lose": how many sites are worse; None
        without ``solo``;
        benefit: see there.
    """
    metrics = [site_metrics(run) for run in runs]
    names = list(metrics[0])
    return {
        "sites": {name: _over([found.get(name, {}) for found in metrics]) for name in names},
        "metrics": {
            name: _over([metric_row(run, name, f.get(name, {})) for run, f in zip(runs, metrics)]) for name in names
        },
        "domains": _over([domain_values(run) for run in runs]),
        "domains_of": domains_are(runs[0]),
        "test_sets": _nested([test_set_metrics(run) for run in runs]),
        "last_rounds": last_rounds(runs),
        "cost": {name: _over([costs(run) for run in runs])[name] for name in COSTS},
        "joining": joining(runs, everyone),
        "benefit": benefit(runs),
    }


def benefit(runs: Runs) -> Json:
    """What joining gives, from runs whose sites have said so, each by its intervals over patients.

    Returns:
        metric -> label, sites (how many), "gains", "loses" and "cannot be told" (sites, mean over seeds), "least" (of
        the sites' benefits, over seeds) and, with one seed, sentence; {} where not every run has it.
    """
    found = [(run.get("benefit") or {}).get("metrics") or {} for run in runs]
    names = [name for name in found[0] if all((one.get(name) or {}).get("worst") for one in found)]
    return {
        name: {
            "label": found[0][name]["label"],
            "sites": max(len(one[name]["sites"]) for one in found),
            **{kind: mean_ci([one[name]["counts"][kind] for one in found]) for kind in VERDICTS},
            "least": mean_ci([one[name]["worst"]["benefit"] for one in found]),
            "sentence": found[0][name]["sentence"] if len(found) == 1 else "",
        }
        for name in names
    }


def last_rounds(runs: Runs) -> Json:
    """The last rounds' values of all runs taken as one sample, as FedISM+'s tables do with 3 runs x 5 rounds.

    Returns:
        "clean", "corrupted" and "average" (of the two, round by round) -> ``spread_of``; {} without such test sets.
    """
    clean, corrupted = ([last_values(run, kind) for run in runs] for kind in ("clean", "corrupted"))
    if not any(clean) or not any(corrupted):
        return {}
    both = [[(a + b) / 2 for a, b in zip(one, other)] for one, other in zip(clean, corrupted, strict=True)]
    found = {"clean": clean, "corrupted": corrupted, "average": both}
    return {kind: spread_of(value for row in rows for value in row) for kind, rows in found.items()}


def spread_of(values: Iterable[float]) -> Json:
    """Mean and standard deviations of a sample: {"mean", "sd" (ddof 0, as FedISM+ prints it), "sd_sample", "n"}."""
    found = dict(enumerate(values))
    named = {str(place): value for place, value in found.items()}
    return {"mean": mean(named), "sd": std(named), "sd_sample": std(named, ddof=1), "n": len(named)}


def joining(runs: Runs, everyone: Mapping[str, Runs]) -> Json | None:
    alone = solo(everyone)
    if alone is None or runs[0]["method"]["id"] == SOLO:
        return None
    metric = runs[0]["headline"]
    higher = higher_is_better(metric, runs[0])
    own, other = ([_served(run) for run in found] for found in (runs, alone))
    said = {}
    for site in own[0]:
        pairs = [(a.get(site), b.get(site)) for a, b in zip(own, other, strict=True)]
        said[site] = paired(a - b for a, b in pairs if a is not None and b is not None)
    found = judged(said, higher)
    return {"sites": found, "lose": sum(row["verdict"] == "worse" for row in found.values())}


def judged(said: Mapping[str, Json], higher: bool) -> dict[str, Json]:
    """Site -> its paired difference with p_holm (over the sites) and verdict (``paired.corrected``)."""
    adjusted = holm({site: one["p"] for site, one in said.items()})
    count = sum(p is not None for p in adjusted.values())
    rows = {site: {**one, "p_holm": adjusted[site]} for site, one in said.items()}
    return {site: {**row, "verdict": corrected(row, higher, count)} for site, row in rows.items()}


def solo(everyone: Mapping[str, Runs]) -> Runs | None:
    return next((runs for runs in everyone.values() if runs[0]["method"]["id"] == SOLO), None)


def relative_to_solo(tables: dict[str, list[Json]], everyone: Mapping[str, Runs]) -> dict[str, list[Json]]:
    """The rows with ``variance_vs_solo``: the variance over sites divided by that of ``solo`` with the same seed.

    Both of what serves a site: its own model where it has one.
    """
    alone = solo(everyone)
    base = [_variance(run) for run in alone] if alone is not None else []
    for label, rows in tables.items() if base else ():
        for row, run, reference in zip(rows, everyone[label], base, strict=True):
            own = _variance(run)
            row["variance_vs_solo"] = own / reference if own is not None and reference else None
    return tables


def _variance(run: Json) -> float | None:
    spread = std(_served(run))
    return None if spread is None else spread**2


def _served(run: Json) -> dict[str, float | None]:
    """Site -> what serves it: the value of its own model where it has one, else that of the shared model."""
    own = {row["site"]: row["personal"] for row in (run.get("personal") or {}).get("rows", ())}
    return {row["site"]: row["value"] if own.get(row["site"]) is None else own[row["site"]] for row in run["sites"]}


def _over(rows: Sequence[Mapping[str, float | None]]) -> Json:
    return {name: mean_ci(row.get(name) for row in rows) for name in rows[0]}


def _nested(rows: Sequence[Mapping[str, Mapping[str, float | None]]]) -> Json:
    return {name: _over([row.get(name, {}) for row in rows]) for name in rows[0] if rows[0][name]}
