# SPDX-License-Identifier: Apache-2.0
"""What a comparison reads of runs: which may be compared, which are of one method, and what each says in numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairflare.core.errors import UserError
from fairflare.core.metric import named
from fairflare.report.audit_reader import SUMMARISED
from fairflare.report.fairness import bottom_decile, gini, mean, std, variance, worst
from fairflare.report.groups import by_class, demographic_parity
from fairflare.report.rows import QUANTITIES as PERSONAL
from fairflare.report.rows import personal_quantities
from fairflare.report.sanity_checks import QUANTITIES as LEARNED
from fairflare.report.sanity_checks import learned_quantities
from fairflare.report.summary import FORMAT, POOL
from fairflare.report.values import higher_is_better, in_order, listing, natural, number, plural

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
COSTS = {"bytes_down": "bytes to the sites, per round", "bytes_up": "bytes from the sites, per round"}
COSTS |= {"seconds": "seconds per round"}


def better_higher(name: str, headline_higher: bool) -> bool:
    """Whether a higher value of a quantity is the better one, where a higher headline metric is or is not."""
    return name not in LOWER_IS_BETTER and (name in ALWAYS_HIGHER or headline_higher)


def ranges(run: Json) -> dict[str, tuple[float, float]]:
    """Each quantity's least and largest possible value, as far as the run's metrics say it."""
    low, high = named(run["headline"]).range
    found = dict.fromkeys(QUANTITIES, (low, high)) | dict.fromkeys(LOWER_IS_BETTER, (0.0, math.inf))
    found |= dict.fromkeys(("std", "gap", "personal_std", "shared_std", "domain_std"), (0.0, high - low))
    found |= dict.fromkeys(("gini", "jain", "eo_gap", "equalised_odds", "demographic_parity", *CLINICAL), (0.0, 1.0))
    found |= dict.fromkeys(("brier_worst", "brier_mean"), (0.0, 2.0))
    return found | {"worst_group": named((run.get("groups") or {}).get("metric") or "accuracy").range}


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
    found = {row["name"]: row["metrics"] for row in run["test_sets"]["rows"]}
    return {name: {metric: number(value) for metric, value in metrics.items()} for name, metrics in found.items()}


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
    groups, classes = run.get("groups") or {}, run["task"].get("classes") or []
    found = groups.get("equal_opportunity") or {}
    gaps = [row["gap"] for row in found.get("classes") or ()]
    keys = [key.strip() for key in str(groups.get("by") or "").split("+")]
    cells = {row["group"]: row for row in groups.get("rows") or () if row["value"] is not None}
    rates, sizes = (by_class({name: row[key] for name, row in cells.items()}, keys, classes) for key in ("value", "n"))
    return {
        "eo_gap": found.get("gap"),
        "equalised_odds": max(gaps) if gaps and None not in gaps else None,
        "demographic_parity": demographic_parity(rates, sizes, classes),
    }


def clinical_quantities(run: Json) -> dict[str, float | None]:
    found = run.get("clinical") or {}
    summary = (found.get("summary") or {}).get(found.get("in_use")) or {}
    return {f"{name}_{over}": (summary.get(name) or {}).get(over) for over in ("worst", "mean") for name in SUMMARISED}


Groups = dict[str, dict[Any, Json]]
"""Label of a method -> seed -> run summary, in the order in which the methods came."""

MUST_AGREE = {
    "the task": lambda run: run["task"]["id"],
    "the options of the task": lambda run: {**(run["task"]["options"] or {}), DATA_SEED: None},
    "the headline metric": lambda run: run["headline"],
    "the list of sites": lambda run: [row["site"] for row in run["sites"]],
    "the grouping": lambda run: (run.get("groups") or {}).get("by"),
}
DATA_SEED = "data_seed"
AFTER = "after"
NO_OBJECTIVE = ("precision",)
"""Training settings that change neither what is minimised nor how, but only the numbers' format."""
USUAL = {"selector": "all", "server_optimizer": "none"}
"""Parts that older reports do not name."""


def complete(runs: Iterable[Json]) -> tuple[list[Json], list[str]]:
    """The runs with a final evaluation, and a sentence about each other; UserError for no report or none left."""
    done, notes = [], []
    for run in runs:
        if run.get("format") != FORMAT or "fairness" not in run:
            raise UserError(f"compare: expected a report.json of format {FORMAT}, got {str(run.get('format'))[:20]!r}")
        if run["status"] == "completed" and run["fairness"]["mean"] is not None:
            done.append(run)
        else:
            state = "has no final evaluation" if run["status"] == "completed" else f"is {run['status']}"
            notes.append(f"{title(run)} is left out: it {state}.")
    if not done:
        raise UserError("compare: no completed run with a final evaluation among those given")
    return done, notes


def title(run: Json) -> str:
    return f"{run['method']['title']} (seed {run['seed']})"


def require_same_data(runs: Sequence[Json]) -> None:
    """Raise UserError at the first run whose task, options, metric, sites, groups or, per seed, data differ.

    Runs with different seeds may have different draws of the data (``data_seed``), those with one seed may not.
    """
    first = runs[0]
    by_seed: dict[Any, Json] = {}
    sizes: dict[Any, dict[str, int]] = {}
    for run in runs:
        for what, read in MUST_AGREE.items():
            if canonical(read(run)) != canonical(read(first)):
                raise UserError(f"compare: {what} of {title(run)} differs from that of {title(first)}")
        twin = by_seed.setdefault(run["seed"], run)
        known = sizes.setdefault(run["seed"], {})
        rows = () if run["method"].get("selector") == POOL else run["sites"]  # there one site has those of all
        own = {row["site"]: row["n_examples"] for row in rows if row["n_examples"] is not None}
        if any(known.setdefault(site, n) != n for site, n in own.items()) or data_seed(run) != data_seed(twin):
            raise UserError(f"compare: the training data of {title(run)} differ from those of {title(twin)}")


def grouped(runs: Sequence[Json]) -> Groups:
    groups: dict[str, dict[Any, Json]] = {}
    for run in runs:
        group = groups.setdefault(canonical(_make(run)), {})
        if run["seed"] in group:
            raise UserError(f"compare: {title(run)} is given twice")
        group[run["seed"]] = run
    found = list(groups.values())
    return dict(zip(_labels([_any(group) for group in found]), found, strict=True))


def shared_seeds(groups: Groups) -> tuple[list[Any], list[str]]:
    """The seeds that every method has, and a sentence about the others; raises UserError if there is none."""
    shared = set.intersection(*map(set, groups.values()))
    if not shared:
        raise UserError(f"compare: no seed is shared by all of {listing(groups)}")
    dropped = sorted(set().union(*groups.values()) - shared, key=str)
    which = f"{plural(len(dropped), 'seed')} ({listing(map(str, dropped))})"
    said = [f"Left out because not every method has it: {which}."] if dropped else []
    return sorted(shared, key=lambda seed: natural(str(seed))), said


def data_seed(run: Json) -> Any:
    """The seed that the run's data were drawn with; None where the task draws nothing."""
    return (run["task"]["options"] or {}).get(DATA_SEED)


def objectives(groups: Groups) -> dict[str, Json]:
    """Label -> the training settings in which not all methods agree, {} where they do: the task's protocol is theirs.

    A difference between methods that were trained otherwise may come from the training as well as from the method.
    """
    training = {label: _any(found)["training"] or {} for label, found in groups.items()}
    keys = sorted(set().union(*training.values()) - set(NO_OBJECTIVE))
    unlike = [key for key in keys if len({canonical(found.get(key)) for found in training.values()}) > 1]
    return {label: {key: found.get(key) for key in unlike} for label, found in training.items()}


def setting_notes(groups: Groups) -> list[str]:
    """Training settings and versions in which the methods differ: the reader decides whether that is fair."""
    runs = {label: _any(found) for label, found in groups.items()}
    training = {label: run["training"] or {} for label, run in runs.items()}
    versions = {label: run["provenance"]["versions"] or {} for label, run in runs.items()}
    return [*_unequal("Training", training), *_unequal("Software", versions)]


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _unequal(kind: str, settings: Mapping[str, Json]) -> list[str]:
    notes = []
    for key in sorted(set().union(*settings.values())):
        values = {label: found.get(key) for label, found in settings.items()}
        if len(set(map(canonical, values.values()))) > 1:
            notes.append(f"{kind} differs in {key}: " + ", ".join(f"{a}: {b}" for a, b in values.items()) + ".")
    return notes


def _any(group: Mapping[Any, Json]) -> Json:
    return next(iter(group.values()))


def _make(run: Json) -> Json:
    method = run["method"]
    parts = {"method": method["id"], "trainer": method["trainer"], "probes": method["probes"]}
    parts |= {kind: method.get(kind) or usual for kind, usual in USUAL.items()}
    given = {"init_from": run["init_from"]} if run.get("init_from") else {}
    step = {AFTER if key == "step" else f"{AFTER}.{key}": value for key, value in (method.get("after") or {}).items()}
    return {**(run["training"] or {}), **(method["settings"] or {}), **parts, **step, **given}


def _labels(runs: Sequence[Json]) -> list[str]:
    """Titles; where several methods share one, the settings in which these differ are added ("q=2.0").

    A shared quantity once, and the full name of a setting only where its last part says too little.
    """
    makes = [_make(run) for run in runs]
    titles = [run["method"]["title"] for run in runs]
    labels = []
    for own, name in zip(makes, titles, strict=True):
        twins = [make for make, other in zip(makes, titles, strict=True) if other == name]
        # Settings of a step tell apart those that take it.
        stepped = [twin for twin in twins if twin.get(AFTER) == own.get(AFTER)]
        keys = sorted(set().union(*twins))
        among = {key: stepped if key.startswith(f"{AFTER}.") else twins for key in keys}
        unlike = [key for key in keys if len({canonical(twin.get(key)) for twin in among[key]}) > 1]
        found: dict[str, list[str]] = {}
        for key in unlike:
            if key != AFTER or key in own:
                found.setdefault(key.rpartition(".")[2], []).append(key)
        texts = [name]
        for bare, full in found.items():
            values = [str(own.get(key, "default")) for key in full]
            texts += [f"{a}={b}" for a, b in zip([bare] if len(set(values)) == 1 else full, values)]
        labels.append(", ".join(texts))
    return labels
