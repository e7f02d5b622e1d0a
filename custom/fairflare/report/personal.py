# SPDX-License-Identifier: Apache-2.0
"""The final models of a run's sites beside the shared one, where sites keep a personal model or personal layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairflare.report.audit_reader import Trail
from fairflare.report.deployed_model import SHOWN
from fairflare.report.fairness import describe
from fairflare.report.rows import intervals_of
from fairflare.report.values import number

CAVEAT = (
    "Fairness over sites is that of the shared model. Where some layers stay at the sites, the shared model has the "
    "initial values in their places: nobody uses it as it is, and the personal results are those that count."
)
OWN_CAVEAT = (
    "Every site uses a model of its own: all results, and fairness over sites, are of these. The shared model, which "
    "is shown beside them, is nobody's."
)
Json = dict[str, Any]
QUANTITIES = {
    "personal_mean": "mean over sites, personal models",
    "personal_worst": "worst site, personal models",
    "personal_std": "standard deviation over sites, personal models (ddof 0)",
    "shared_mean": "mean over sites, shared model",
    "shared_worst": "worst site, shared model",
    "shared_std": "standard deviation over sites, shared model (ddof 0)",
}
"""What a comparison of methods says of personal models, with its name in a table."""


def personal_section(trail: Trail, sites: Sequence[str], headline: str, higher: bool) -> Json | None:
    """Shared and personal results side by side; None where no site has reported a personal model.

    Args:
        trail: the run.
        sites: names, in the order of the rows.
        headline: the metric that fairness is reported in.
        higher: whether its higher values are better.

    Returns:
        metric, split; rows: site, shared and personal (headline metric, test split), difference (personal minus
        shared), shared_val, personal_val, test, val and intervals (every metric of the personal model); shared and
        personal: how evenly each serves the sites that have both (see ``fairness.describe``).
    """
    results = trail.evaluation.get("sites") or {}
    rows = [_row(site, results.get(site) or {}, headline) for site in sites]
    if not any(row["test"] or row["val"] for row in rows):
        return None
    both = [row for row in rows if row["difference"] is not None]
    return {
        "metric": headline,
        "split": "test",
        "rows": rows,
        **{kind: describe({row["site"]: row[kind] for row in both}, higher) for kind in ("shared", "personal")},
    }


def personal_quantities(run: Json) -> dict[str, float | None]:
    """The values of ``QUANTITIES`` in one run's summary: of those models that its other results are not of.

    None where it has none, or where nobody uses the shared model.
    """
    if "counted" in run:
        return dict.fromkeys(QUANTITIES)
    beside = "shared" if run.get(SHOWN) else "personal"
    found = (run.get("personal") or {}).get(beside) or {"mean": None, "worst": {"value": None}, "std": None}
    values = {"mean": found["mean"], "worst": found["worst"]["value"], "std": found["std"]}
    return {name: values[name.partition("_")[2]] if name.startswith(beside) else None for name in QUANTITIES}


def personal_of(summary: Json, site: str) -> Json:
    """The metrics of a site's personal model as report.json has them: null where there is none."""
    rows = {row["site"]: row for row in (summary.get("personal") or {}).get("rows", ())}
    row = rows.get(site) or {}
    return {"personal_metrics": row.get("test") or None, "personal_val_metrics": row.get("val") or None}


def _row(site: str, splits: Mapping[str, Any], headline: str) -> Json:
    own = splits.get("personal") or {}
    values = {
        "shared": _value(splits, "test", headline),
        "personal": _value(own, "test", headline),
        "shared_val": _value(splits, "val", headline),
        "personal_val": _value(own, "val", headline),
    }
    shared, personal = values["shared"], values["personal"]
    difference = None if shared is None or personal is None else personal - shared
    own_metrics = {split: own.get(split) or {} for split in ("test", "val")}
    return {"site": site, **values, "difference": difference, **own_metrics, "intervals": intervals_of(own)}


def _value(splits: Mapping[str, Any], split: str, headline: str) -> float | None:
    return number((splits.get(split) or {}).get(headline))
