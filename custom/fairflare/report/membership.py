# SPDX-License-Identifier: Apache-2.0
"""Whether training records can be told from others by the model, as an attack at each site measures it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairflare.report.audit_reader import Trail
from fairflare.report.section import Section
from fairflare.report.values import number, plural

Json = dict[str, Any]
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


SECTION = Section(
    "membership",
    "Can training records be told from others?",
    ("risk", "sites"),
    sentence=lambda run: [run["risk"]["sentence"]] if run.get("risk") else [],
)
