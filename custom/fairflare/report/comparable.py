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
PLANNED = ("model", "columns", "scaling", "outcome_scale", "mean", "std", "window")
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
    makes: dict[str, tuple[str, Json]] = {}
    for run, make in zip(runs, _makes(runs), strict=True):
        group = groups.setdefault(canonical(make), {})
        makes.setdefault(canonical(make), (run["method"]["title"], make))
        if run["seed"] in group:
            raise UserError(f"compare: {title(run)} is given twice")
        group[run["seed"]] = run
    return dict(zip(_labels(list(makes.values())), groups.values(), strict=True))


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
    unlike = [key for key in _unlike(training.values()) if key not in NO_OBJECTIVE]
    return {label: {key: found.get(key) for key in unlike} for label, found in training.items()}


def setting_notes(groups: Groups) -> list[str]:
    """Training settings and versions in which the methods differ, and what bounds changed: the reader decides whether
    that is fair."""
    runs = {label: _any(found) for label, found in groups.items()}
    training = {label: run["training"] or {} for label, run in runs.items()}
    versions = {label: run["provenance"]["versions"] or {} for label, run in runs.items()}
    notes = [*_unequal("Training", training), *_unequal("Software", versions)]
    of_first = next(iter(groups.values())).values()
    if drawn := _unlike({**(run["training"] or {}), "model": _options(run).get("model")} for run in of_first):
        notes.append(f"Seeds differ in what is planned from their training examples: {listing(drawn)}.")
    bounded = {
        label: {row["site"] for run in found.values() for row in run.get("bounds") or ()}
        for label, found in groups.items()
    }
    if said := "; ".join(f"{label}: {listing(in_order(sites))}" for label, sites in bounded.items() if sites):
        notes.append(f"Bounds on single sites shortened updates or capped weights, which robust=off does not: {said}.")
    return notes


def _options(run: Json, without: Iterable[str] = ()) -> Json:
    return {**(run["task"]["options"] or {}), **dict.fromkeys(without)}


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _unequal(kind: str, settings: Mapping[str, Json]) -> list[str]:
    notes = []
    for key in _unlike(settings.values()):
        values = ", ".join(f"{label}: {found.get(key)}" for label, found in settings.items())
        notes.append(f"{kind} differs in {key}: {values}.")
    return notes


def _unlike(settings: Iterable[Json]) -> list[str]:
    """The keys in which not all agree."""
    found = list(settings)
    return [key for key in sorted(set().union(*found)) if len({canonical(one.get(key)) for one in found}) > 1]


def _any(group: Mapping[Any, Json]) -> Json:
    return next(iter(group.values()))


def _makes(runs: Sequence[Json]) -> list[Json]:
    """What tells each run's method from others: of the run's own settings, those in which runs differ that are
    otherwise alike; of training, nothing that a plan reads off each seed's examples."""
    drawn = _drawn_training(runs)
    makes = [{key: value for key, value in _make(run).items() if key not in drawn} for run in runs]
    alike: dict[str, list[Json]] = {}
    for run, make in zip(runs, makes, strict=True):
        alike.setdefault(canonical([make, run["seed"]]), []).append(run.get("run_settings") or {})
    keys = sorted({key for found in alike.values() for key in _unlike(found)})
    own = [run.get("run_settings") or {} for run in runs]
    return [make | {f"run.{key}": found[key] for key in keys if key in found} for make, found in zip(makes, own)]


def _drawn_training(runs: Sequence[Json]) -> set[str]:
    """Training settings in which draws of a user's own data differ, and no runs on the same draw."""
    by_draw: dict[Any, list[Json]] = {}
    for run in runs:
        if _options(run).get("datalists"):
            by_draw.setdefault(data_seed(run), []).append(run["training"] or {})
    within = {key for found in by_draw.values() for key in _unlike(found)}
    return set(_unlike(found[0] for found in by_draw.values())) - within


def _make(run: Json) -> Json:
    method = run["method"]
    parts = {"method": method["id"], "trainer": method["trainer"], "probes": method["probes"]}
    parts |= {kind: method.get(kind) or usual for kind, usual in USUAL.items()}
    given = {"init_from": run["init_from"]} if run.get("init_from") else {}
    step = {AFTER if key == "step" else f"{AFTER}.{key}": value for key, value in (method.get("after") or {}).items()}
    return {**(run["training"] or {}), **(method["settings"] or {}), **parts, **step, **given}


def _labels(makes: Sequence[tuple[str, Json]]) -> list[str]:
    """The titles of ``makes``; where several methods share one, the settings in which these differ are added ("q=2.0").

    A shared quantity once, and the full name of a setting only where its last part says too little.
    """
    labels = []
    for name, own in makes:
        twins = [make for other, make in makes if other == name]
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
