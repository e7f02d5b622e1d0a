# SPDX-License-Identifier: Apache-2.0
"""The benefit of joining for each site: the federation's model less the site's own, with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fairflare.report.audit_reader import Trail
from fairflare.report.values import higher_is_better, label, number, plural, signed, text, with_interval

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
        (verdict -> sites), worst (the site with the least benefit), sentence and trees (one on gradient boosting at the
        sites alone; "" where the run did not ask). A row has n, federated, solo, benefit
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
    said = [text for one in described.values() for text in (one["sentence"], one["trees"]) if text]
    return {**about, "metrics": described, "rejected": rejected, "sentences": said}


def _metric(name: str, found: Mapping[str, Numbers], sites: Sequence[str], record: Numbers, about: Numbers) -> Json:
    higher, words = higher_is_better(name, about), label(name, about)
    asked = [site for site in sites if site in found or site in (record.get("rejected") or {})]
    rows = [{"site": site, **_row(found.get(site) or {}, name, "", higher)} for site in asked]
    told = [row for row in rows if row["verdict"] is not None]
    counts = {verdict: sum(row["verdict"] == verdict for row in told) for verdict in VERDICTS}
    worst = min(told, key=lambda row: (row["benefit"], row["site"]), default=None)
    return {
        "label": words,
        "higher_is_better": higher,
        "sites": rows,
        "groups": _groups(found, name, asked, higher) if name in (record.get("group_metrics") or ()) else [],
        "counts": {**counts, "unknown": len(rows) - len(told)},
        "worst": worst,
        "sentence": sentence(rows, words),
        "trees": _of_trees(
            [{"site": site, **_row(_as_pair(found.get(site) or {}), name, "", higher)} for site in asked], words
        ),
    }


def _as_pair(numbers: Numbers) -> Json:
    """The numbers as if the trees were the model that the site has trained alone; nothing where it has none."""
    others = {"trees": "solo", "trees_low": "low", "trees_high": "high"}
    split = [(*name.partition("."), value) for name, value in numbers.items()]
    kept = {f"{kind}{dot}{rest}": value for kind, dot, rest, value in split if kind not in others.values()}
    return kept | {f"{others[kind]}.{rest}": value for kind, _, rest, value in split if kind in others}


def _of_trees(rows: Sequence[Json], metric: str) -> str:
    """ "Gradient boosting at each site alone (AUC): ..."; "" where no site has said it."""
    told = [row for row in rows if row["verdict"] is not None]
    if not told:
        return ""
    reached = text(math.fsum(row["solo"] for row in told) / len(told))
    better, worse, unclear = ([row for row in told if row["verdict"] == one] for one in (GAINS, LOSES, UNCLEAR))
    return (
        f"Gradient boosting at each site alone ({metric}): {reached} on average over {plural(len(told), 'site')}; "
        f"the federation's model is better at {len(better) or 'none'}{_named(better, best=True)}, worse at "
        f"{len(worse) or 'none'}{_named(worse, best=False)}, and it cannot be told at {len(unclear) or 'none'}."
    )


def _row(numbers: Numbers, metric: str, where: str, higher: bool) -> Json:
    kinds = ("federated", "solo", "low", "high")
    federated, solo, low, high = (number(numbers.get(f"{kind}.{metric}{where}")) for kind in kinds)
    row: Json = {"n": number(numbers.get(f"n{where}")), "federated": federated, "solo": solo}
    sign = 1 if higher else -1
    benefit = None if federated is None or solo is None else sign * (federated - solo)
    ends = (None, None) if low is None or high is None else sorted((sign * low, sign * high))
    return {**row, "benefit": benefit, "low": ends[0], "high": ends[1], "verdict": verdict(benefit, *ends)}


def verdict(benefit: float | None, low: float | None, high: float | None) -> str | None:
    """By the interval: a benefit without one cannot be told; None without a benefit."""
    if benefit is None:
        return None
    if low is None or high is None or low <= 0 <= high:
        return UNCLEAR
    return GAINS if low > 0 else LOSES


def _groups(found: Mapping[str, Numbers], metric: str, sites: Sequence[str], higher: bool) -> list[Json]:
    names = sorted({name.partition("/")[2] for numbers in found.values() for name in numbers if name.startswith("n/")})
    told = [(one, site) for one in names for site in sites if f"federated.{metric}/{one}" in found.get(site, {})]
    return [{"group": one, "site": site, **_row(found[site], metric, f"/{one}", higher)} for one, site in told]


def sentence(rows: Sequence[Json], metric: str) -> str:
    """ "Joining (accuracy): 1 of 4 sites gains (A: +0.05 [+0.01, +0.09]), 1 loses (B: ...), 2 cannot be told." """
    told = [row for row in rows if row["verdict"] is not None]
    by_verdict = {name: [row for row in told if row["verdict"] == name] for name in VERDICTS}
    gain, lose, unclear = (by_verdict[name] for name in VERDICTS)
    sites = "1 site" if len(rows) == 1 else f"{len(rows)} sites"
    parts = [f"{len(gain) or 'none'} of {sites} {'gain' if len(gain) > 1 else 'gains'}{_named(gain, best=True)}"]
    parts.append(f"{len(lose) or 'none'} {'lose' if len(lose) > 1 else 'loses'}{_named(lose, best=False)}")
    parts += [f"{len(unclear)} cannot be told"] if unclear else []
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
