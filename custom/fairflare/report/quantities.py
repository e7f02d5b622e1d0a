# SPDX-License-Identifier: Apache-2.0
"""What a comparison reads of one run: its fairness in numbers, every metric, each site, each domain, what it cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fairflare.core.metric import named
from fairflare.report.audit_reader import SUMMARISED
from fairflare.report.comparability import data_seed
from fairflare.report.deployed_model import QUANTITIES as PERSONAL
from fairflare.report.deployed_model import personal_quantities
from fairflare.report.fairness import bottom_decile, gini, mean, std, variance, worst
from fairflare.report.groups import demographic_parity, split_name, true_positive_rates
from fairflare.report.sanity_checks import QUANTITIES as LEARNED
from fairflare.report.sanity_checks import learned_quantities
from fairflare.report.values import higher_is_better, in_order, number

Json = dict[str, Any]
CLINICAL = {
    "calibration_worst": "worst site's calibration in the large, absolute",
    "brier_worst": "worst site's Brier score",
    "ece_worst": "worst site's expected calibration error",
    "calibration_mean": "mean over sites of calibration in the large, absolute",
    "brier_mean": "mean over sites of the Brier score",
    "ece_mean": "mean over sites of the expected calibration error",
}
"""What a comparison of methods says of it, of the model as the sites use it; lower is better of all."""
NAMES = {
    "mean": "mean over sites",
    "worst": "worst site",
    "std": "standard deviation over sites (ddof 0)",
    "gap": "gap between best and worst site",
    "jain": "Jain's index",
    "clean": "clean test set, last 5 rounds",
    "corrupted": "corrupted test set, last 5 rounds",
    "group_disparity": "disparity over groups (sample sd)",
    "worst_group": "worst group",
    **PERSONAL,
    "std_sample": "standard deviation over sites (ddof 1)",
    "variance": "variance over sites (ddof 0)",
    "gini": "Gini coefficient over sites",
    "bottom_decile": "worst tenth of the sites",
    "domain_mean": "mean over domains",
    "domain_std": "standard deviation over domains (ddof 0)",
    "domain_std_sample": "standard deviation over domains (ddof 1)",
    "eo_gap": "equal opportunity gap",
    "equalised_odds": "equalised odds gap",
    "demographic_parity": "demographic parity gap",
    "variance_vs_solo": "variance over sites relative to solo",
    **CLINICAL,
    **LEARNED,
}
QUANTITIES = tuple(NAMES)
LOWER_IS_BETTER = frozenset(
    ("std", "std_sample", "variance", "gini", "gap", "group_disparity", "personal_std", "shared_std", "domain_std")
    + ("domain_std_sample", "eo_gap", "equalised_odds", "demographic_parity", "variance_vs_solo", *CLINICAL)
)
ALWAYS_HIGHER = frozenset(("jain", "worst_group"))
"""Higher is better of these whatever the metric."""
COSTS = {
    "bytes_down": "bytes to the sites, per round",
    "bytes_up": "bytes from the sites, per round",
    "seconds": "seconds per round",
}


def better_higher(name: str, headline_higher: bool) -> bool:
    """Whether a higher value of a quantity is the better one, where a higher headline metric is or is not."""
    return name not in LOWER_IS_BETTER and (name in ALWAYS_HIGHER or headline_higher)


def run_row(run: Json) -> Json:
    """The quantities of one run; None where it has none. ``variance_vs_solo`` is for whoever knows the other runs."""
    fairness, headline, sets = run["fairness"], run["headline"], run["test_sets"]
    groups, values = run.get("groups"), {row["site"]: row["value"] for row in run["sites"]}
    domains = domain_values(run)
    return {
        "seed": run["seed"],
        "data_seed": data_seed(run),
        **{key: fairness[key] for key in ("mean", "std", "gap", "jain")},
        "worst": fairness["worst"]["value"],
        "worst_site": fairness["worst"]["site"],
        "clean": (sets["last"]["clean"] or sets["clean_mean"]).get(headline),
        "corrupted": (sets["last"]["corrupted"] or sets["corrupted_mean"]).get(headline),
        "group_disparity": groups["disparity"]["sample"] if groups else None,
        "worst_group": groups["worst"]["value"] if groups else None,
        **personal_quantities(run),
        "std_sample": std(values, ddof=1),
        "variance": variance(values),
        "gini": gini(values),
        "bottom_decile": bottom_decile(values, run["higher_is_better"]),
        "domain_mean": mean(domains),
        "domain_std": std(domains),
        "domain_std_sample": std(domains, ddof=1),
        **_group_fairness(run),
        "variance_vs_solo": None,
        **clinical_quantities(run),
        **learned_quantities(run),
        "model_sha256": run["provenance"]["model_sha256"],
    }


def domain_values(run: Json) -> dict[str, float | None]:
    """Domain -> the headline metric there: on the shared test set of that name, else the mean over its sites."""
    domain_of = run["task"].get("domains") or {}
    names = list(dict.fromkeys(domain_of.values()))
    sets = {row["name"]: row["value"] for row in run["test_sets"]["rows"]}
    if names and all(sets.get(name) is not None for name in names):
        return {name: sets[name] for name in names}
    values = {row["site"]: row["value"] for row in run["sites"]}
    members = {name: [site for site, domain in domain_of.items() if domain == name] for name in names}
    return {name: mean({site: values.get(site) for site in sites}) for name, sites in members.items()}


def domains_are(run: Json) -> str:
    """What a domain's value is of: "shared test sets", "sites", or "" without domains."""
    domains = set((run["task"].get("domains") or {}).values())
    sets = {row["name"] for row in run["test_sets"]["rows"] if row["value"] is not None}
    return "" if not domains else "shared test sets" if domains <= sets else "sites"


def site_metrics(run: Json) -> dict[str, dict[str, float | None]]:
    """Metric -> site -> value on the site's own test split, the headline metric first."""
    names = in_order(name for row in run["sites"] for name in row["test"])
    names.sort(key=lambda name: name != run["headline"])
    return {name: {row["site"]: number(row["test"].get(name)) for row in run["sites"]} for name in names}


def metric_row(run: Json, metric: str, values: Mapping[str, float | None]) -> dict[str, float | None]:
    least = worst(values, higher_is_better(metric, run))[1] if named(metric).ordered else None
    return {"mean": mean(values), "worst": least, "std": std(values)}


def test_set_metrics(run: Json) -> dict[str, dict[str, float | None]]:
    return {
        row["name"]: {name: number(value) for name, value in row["metrics"].items()} for row in run["test_sets"]["rows"]
    }


def costs(run: Json) -> dict[str, float | None]:
    """Bytes each way and wall seconds, all per recorded round; what the log does not say is None."""
    rounds = run["rounds_done"] or 0
    down, up = (number((run.get("traffic") or {}).get(way)) for way in ("down", "up"))
    phases = ((run.get("timing") or {}).get("phases") or {}).values()
    seconds = math.fsum(phases) if phases else None
    found = {"bytes_down": down, "bytes_up": up, "seconds": seconds}
    return {key: value / rounds if rounds and value is not None else None for key, value in found.items()}


def last_values(run: Json, kind: str) -> list[float]:
    """The headline metric on the clean or corrupted table test set after each of the last rounds; [] without one."""
    rows = (run["test_sets"]["last"].get("values") or {}).get(kind) or []
    return [value for value in (number(row.get(run["headline"])) for row in rows) if value is not None]


def _group_fairness(run: Json) -> Json:
    """Gaps over the values of a sensitive attribute; None unless groups join the label and attributes."""
    groups = run.get("groups") or {}
    found = groups.get("equal_opportunity") or {}
    gaps = [row["gap"] for row in found.get("classes") or () if row["gap"] is not None]
    whole = bool(gaps) and len(gaps) == len(found.get("classes") or ())
    return {
        "eo_gap": found.get("gap"),
        "equalised_odds": max(gaps) if whole else None,
        "demographic_parity": _parity(groups, run["task"].get("classes") or []),
    }


def _parity(groups: Json, classes: Sequence[str]) -> float | None:
    keys = [key.strip() for key in str(groups.get("by") or "").split("+")]
    cells = {row["group"]: row for row in groups.get("rows") or () if row["value"] is not None}
    rates = true_positive_rates({name: row["value"] for name, row in cells.items()}, keys, classes)
    sizes: dict[str, dict[str, float]] = {}
    for name, row in cells.items():
        if (cell := split_name(name, keys, classes)) is not None:
            sizes.setdefault(cell[0], {})[cell[1]] = row["n"]
    return demographic_parity(rates, sizes, classes)


def clinical_quantities(run: Json) -> dict[str, float | None]:
    found = run.get("clinical") or {}
    summary = (found.get("summary") or {}).get(found.get("in_use")) or {}
    return {f"{name}_{over}": (summary.get(name) or {}).get(over) for over in ("worst", "mean") for name in SUMMARISED}
