# SPDX-License-Identifier: Apache-2.0
"""What followed the last round: recalibration, thresholds, whether records can be told from the model, and the benefit
of joining for each site, which is the federation's model less the site's own."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fairflare.report.audit_reader import Entry, Trail
from fairflare.report.fairness import absolute, weighted
from fairflare.report.values import higher_is_better, label, listing, number, plural, signed, text, with_interval

Json = dict[str, Any]
Numbers = Mapping[str, Any]
STAGES = {"before": "the model as it is", "shared": "one for all sites", "own": "each its own"}
METRICS = {"brier": "Brier score", "calibration": "Calibration in the large", "log_loss": "Log loss"}
METRICS |= {"risk": "Risk", "size": "Size"}
MEANS = frozenset(f"{stage}.{metric}" for stage in STAGES for metric in METRICS)
TITLES = {"recalibrate": "Recalibration", "shares": "Class shares"}
TITLES |= {"conformal": "Thresholds by conformal risk control"}
COUNTS = ("n", "n_calibration", "n_all")
MARGINAL = (
    "A threshold for all holds its level on average over new cases of all sites mixed as the calibration cases are; no "
    "theorem covers the threshold of one site."
)


def after_sections(trail: Trail, sites: Sequence[str]) -> list[Json]:
    """One section per step that was taken, in the order of the log.

    Returns:
        step, title, by, split, remark, note; stages and metrics that there are (name -> words); shared: parameters of
        all (and of groups, by name); rows: site, n, n_calibration, parameters, values (stage -> metric -> mean over
        the site's test split); groups: the same without parameters, over all sites that may say it; summary: metric ->
        stage -> mean, worst and worst_site of its absolute values over sites; rejected: site -> why.
    """
    return [_section(record, sites) for record in trail.after.values()]


def _section(record: Entry, sites: Sequence[str]) -> Json:
    found: Mapping[str, Numbers] = record.get("sites") or {}
    known = {name.partition("/")[0] for numbers in found.values() for name in numbers}
    stages = {stage: words for stage, words in STAGES.items() if any(f"{stage}.{m}" in known for m in METRICS)}
    metrics = {metric: words for metric, words in METRICS.items() if any(f"{s}.{metric}" in known for s in stages)}
    rows: list[Json] = []
    for site, numbers in ((site, found[site]) for site in sites if site in found):
        counts = {name: number(numbers.get(name)) for name in COUNTS}
        values = {stage: {metric: number(numbers.get(f"{stage}.{metric}")) for metric in metrics} for stage in stages}
        rows.append({"site": site, **counts, "parameters": _parameters(numbers, "own"), "values": values})
    return {
        **{key: record.get(key) for key in ("step", "by", "split", "remark")},
        "title": TITLES.get(str(record.get("step")), str(record.get("step"))),
        "note": " ".join(_notes(record, rows)),
        "stages": stages,
        "metrics": metrics,
        "shared": _parameters(_shared(record, found), "shared"),
        "rows": rows,
        "groups": _groups(found, stages, metrics),
        "summary": {
            metric: {s: absolute({row["site"]: row["values"][s][metric] for row in rows}) for s in stages}
            for metric in metrics
        },
        "rejected": {site: dict(why) for site, why in (record.get("rejected") or {}).items()},
    }


def _notes(record: Entry, rows: Sequence[Json]) -> list[str]:
    needs, found = number(record.get("needs")) or 0, [MARGINAL] if record.get("step") == "conformal" else []
    sites = record.get("sites") or {}
    if (agreed := number(_shared(record, sites).get("n_all"))) is not None and agreed < needs:
        found.append(f"There is no threshold: all sites together need {needs:.0f} calibration cases.")
    if not record.get("shared") and (odd := [name for name in _of_all(sites) if name not in _shared(record, sites)]):
        found.append(f"The sites do not say the same of {listing(odd)}, which is therefore not shown for all.")
    few = [row["site"] for row in rows if row["n_calibration"] is not None and row["n_calibration"] < needs]
    if few and record.get("by") == "site":
        found.append(f"From its own cases alone a site needs {needs:.0f}: fewer at {listing(few)}.")
    return found


def _shared(record: Entry, sites: Mapping[str, Numbers]) -> Numbers:
    """What holds for all: as the server has it from sums in the clear, else what all sites say alike."""
    known = record.get("shared")
    if isinstance(known, Mapping) and known:
        return dict(known)
    said = list(sites.values())

    def told(name: str) -> set[float | None]:
        """As machines that work alike have it."""
        values = (number(numbers.get(name)) for numbers in said)
        return {None if value is None else float(f"{value:.6g}") for value in values}

    return {name: said[0][name] for name in _of_all(sites) if len(told(name)) == 1}


def _of_all(sites: Mapping[str, Numbers]) -> list[str]:
    """The names of numbers that follow from the sums of all, and so are the same at every site."""
    names = {name for numbers in sites.values() for name in numbers if name.startswith(("shared.", "n_all"))}
    return sorted(name for name in names if name.partition("/")[0] not in MEANS)


def _parameters(numbers: Numbers, whose: str) -> Json:
    """Parameter -> its value, or "parameter/group" where each group has one."""
    own = [name for name in sorted(numbers) if name.startswith(f"{whose}.") and name.partition("/")[0] not in MEANS]
    return {name.partition(".")[2]: number(numbers[name]) for name in own}


def _groups(found: Mapping[str, Numbers], stages: Mapping[str, str], metrics: Mapping[str, str]) -> list[Json]:
    """Each group over all sites that may say something of it: means weighted by its cases there."""
    starts = tuple(f"{stage}.{metric}/" for stage in stages for metric in metrics)
    names = {name.partition("/")[2] for numbers in found.values() for name in numbers if name.startswith(starts)}
    rows = []
    for group in sorted(names):
        values = {stage: {m: _pooled(found.values(), stage, m, group) for m in metrics} for stage in stages}
        n = sum(number(numbers.get(f"n/{group}")) or 0.0 for numbers in found.values())
        rows.append({"group": group, "n": n, "values": values})
    return rows


def _pooled(sites: Collection[Numbers], stage: str, metric: str, group: str) -> float | None:
    sizes = (number(own.get(f"n_{metric}/{group}", own.get(f"n/{group}"))) for own in sites)
    return weighted(zip(sizes, (number(own.get(f"{stage}.{metric}/{group}")) for own in sites), strict=True))


GUESSING = 0.5


def risk_section(trail: Trail, sites: Sequence[str]) -> Json | None:
    """What the log says of the attack; None where it was not made.

    Returns:
        level, shadows, sentence, rejected (site -> why), sites and groups: rows of site, group, n_train, n_other, auc,
        low, high and, of sites, loss (AUC of the loss alone).
    """
    record = trail.risk
    if not record:
        return None
    found: Mapping[str, Mapping[str, Any]] = record.get("sites") or {}
    rows = [_risk_row(site, "", found[site]) for site in sites if site in found]
    named = [(site, name) for site in sites for name in found.get(site) or () if name.startswith("auc/")]
    groups = [_risk_row(site, name.partition("/")[2], found[site]) for site, name in named]
    said = _sentence([row for row in rows if row["auc"] is not None])
    rejected = {site: dict(why) for site, why in (record.get("rejected") or {}).items()}
    about = {key: record.get(key) for key in ("level", "shadows")}
    return {**about, "sentence": said, "sites": rows, "groups": groups, "rejected": rejected}


def _risk_row(site: str, group: str, numbers: Mapping[str, Any]) -> Json:
    where = f"/{group}" if group else ""
    about = {name: number(numbers.get(f"{name}{where}")) for name in ("auc", "low", "high")}
    sizes = {name: number(numbers.get(name)) for name in ("n_train", "n_other", "loss")} if not group else {}
    return {"site": site, "group": group, **about, **sizes}


def _sentence(rows: Sequence[Json]) -> str:
    if not rows:
        return "No site may say whether its training records can be told from others."
    most = max(rows, key=lambda row: (row["auc"], row["site"]))
    ends = "" if most["low"] is None else f" ({most['low']:.2f} to {most['high']:.2f})"
    told = sum(row["low"] is not None and row["low"] > GUESSING for row in rows)
    return (
        f"Who knows a patient's record tells from this model whether it was trained on it with an AUC of at most "
        f"{most['auc']:.2f}{ends}, at {most['site']}; 0.5 is guessing. Above that by its interval: "
        f"{told} of {plural(len(rows), 'site')}."
    )


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
        "trees": _of_trees(
            [{"site": site, **_paired(_as_pair(found.get(site) or {}), name, "", higher)} for site in asked], words
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


def _paired(numbers: Numbers, metric: str, where: str, higher: bool) -> Json:
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
