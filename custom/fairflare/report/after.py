# SPDX-License-Identifier: Apache-2.0
"""Steps after the last round: recalibration, and thresholds by conformal risk control."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fairflare.report.audit_reader import Entry, Trail
from fairflare.report.fairness import absolute, weighted
from fairflare.report.section import Section
from fairflare.report.values import listing, number, plural

Json = dict[str, Any]
Numbers = Mapping[str, Any]
STAGES = {"before": "the model as it is", "shared": "one for all sites", "own": "each its own"}
METRICS = {"brier": "Brier score", "calibration": "Calibration in the large", "log_loss": "Log loss"}
METRICS |= {"risk": "Risk", "size": "Size"}
MEANS = frozenset(f"{stage}.{metric}" for stage in STAGES for metric in METRICS)
TITLES = {"recalibrate": "Recalibration", "conformal": "Thresholds by conformal risk control"}
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
        none = f"There is no threshold: all sites together need {plural(round(needs), 'calibration case')}."
        few = "Nothing was recalibrated: too few calibration cases could be told of."
        found.append(none if record.get("step") == "conformal" else few)
    if not record.get("shared") and (odd := [name for name in _of_all(sites) if name not in _shared(record, sites)]):
        found.append(f"The sites do not say the same of {listing(odd)}, which is therefore not shown for all.")
    less = [row["site"] for row in rows if row["n_calibration"] is not None and row["n_calibration"] < needs]
    if less and record.get("by") == "site":
        found.append(f"From its own cases alone a site needs {needs:.0f}: fewer at {listing(less)}.")
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


SECTION = Section("after", "Steps after the last round", ("after",))
