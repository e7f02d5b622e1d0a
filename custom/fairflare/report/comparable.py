# SPDX-License-Identifier: Apache-2.0
"""Which runs may be compared, which are of one method, and what a method is called beside the others."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairflare.core.errors import UserError
from fairflare.report.summary import FORMAT, POOL
from fairflare.report.values import in_order, listing, natural, plural

Json = dict[str, Any]
Groups = dict[str, dict[Any, Json]]
"""Label of a method -> seed -> run summary, in the order in which the methods came."""

DATA_SEED = "data_seed"
PLANNED = ("columns", "scaling", "outcome_scale", "mean", "std", "window")
"""Options that a plan reads off the training examples, which each seed draws."""
MUST_AGREE = {
    "the task": lambda run: run["task"]["id"],
    "the options of the task": lambda run: _options(run, (DATA_SEED, *PLANNED)),
    "the headline metric": lambda run: run["headline"],
    "the list of sites": lambda run: [row["site"] for row in run["sites"]],
    "the grouping": lambda run: (run.get("groups") or {}).get("by"),
}
WITH_ONE_SEED = {"the options of the task": lambda run: _options(run, (DATA_SEED,))}
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
        twin = by_seed.setdefault(run["seed"], run)
        for other, checks in ((first, MUST_AGREE), (twin, WITH_ONE_SEED)):
            for what, read in checks.items():
                if canonical(read(run)) != canonical(read(other)):
                    raise UserError(f"compare: {what} of {title(run)} differs from that of {title(other)}")
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
    """Training settings and versions in which the methods differ, and what bounds changed: the reader decides whether
    that is fair."""
    runs = {label: _any(found) for label, found in groups.items()}
    training = {label: run["training"] or {} for label, run in runs.items()}
    versions = {label: run["provenance"]["versions"] or {} for label, run in runs.items()}
    notes = [*_unequal("Training", training), *_unequal("Software", versions)]
    bounded = {
        label: {row["site"] for run in found.values() for row in run.get("bounds") or ()}
        for label, found in groups.items()
    }
    if said := "; ".join(f"{label}: {listing(in_order(sites))}" for label, sites in bounded.items() if sites):
        notes.append(f"Bounds on single sites shortened updates or capped weights, which robust=off does not: {said}.")
    return notes


def _options(run: Json, without: Iterable[str]) -> Json:
    return {**(run["task"]["options"] or {}), **dict.fromkeys(without)}


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
