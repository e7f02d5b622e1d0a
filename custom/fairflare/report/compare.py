# SPDX-License-Identifier: Apache-2.0
"""Methods side by side over matched seeds, from the report.json of their runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from fairflare.core.errors import UserError
from fairflare.core.metric import named
from fairflare.report import comparable
from fairflare.report import fairness as statistics
from fairflare.report.benefit import VERDICTS
from fairflare.report.fairness import mean, mean_ci, std, worst
from fairflare.report.personal import COUNTED, SHOWN, as_used
from fairflare.report.sections import quantities
from fairflare.report.summary import LABELS_CAVEAT, other_labels
from fairflare.report.values import MISSING, higher_is_better, in_order, listing, number, plural, signed, stop, with_sd

FORMAT = 1
ALWAYS_DRAWN = ("initial model", "order")
"""What a run's seed draws whatever the task."""
Json = dict[str, Any]


def compare(runs: list[Json]) -> Json:
    """Each method's fairness over the seeds that all methods share, and paired differences from the first method.

    A method is what the runs' method, settings, trainer and training settings say: runs that differ in one of them are
    shown apart, and the label names the difference. Runs without a final evaluation are left out and noted. The results
    are those of the models that the sites use, see ``personal.as_used``.

    Args:
        runs: run summaries (``summarise``); the first one's method is the reference.

    Returns:
        headline, higher_is_better, metrics, task, sites, seeds, seeds_draw, reference (a label), methods, notes and
        caveats.
        ``seeds_draw`` says what differs from seed to seed, see ``_seeds_draw``. A method has label, method, training,
        objective (the training settings in which not all methods agree; differences from methods that have others
        name no winner), shown (only where sites use models of their own, see ``personal.remark``) and,
        for each quantity {"mean", "low", "high", "n", "sd"} (Student t over seeds); ``runs`` holds the values per seed,
        ``detail`` what ``details`` says, ``versus_first`` the paired differences (None for the first method): what
        ``fairness.paired`` says, wins, losses, pairs, p_holm (over the methods of the table) and verdict
        (``fairness.corrected``).

    Raises:
        UserError: the runs' task, options, sites or, within a seed, data differ, a run is given twice, or no seed is
            shared.
    """
    known = quantities()
    done, left_out = comparable.complete(runs)
    done = [as_used(run) for run in done]
    comparable.require_same_data(done)
    groups = comparable.grouped(done)
    seeds, dropped = comparable.shared_seeds(groups)
    chosen = {label: [found[seed] for seed in seeds] for label, found in groups.items()}
    tables = {label: [run_row(run) for run in found] for label, found in chosen.items()}
    first = next(iter(tables))
    higher = done[0]["higher_is_better"]
    trained, methods = comparable.objectives(groups), []
    ranges = {name: one.range(done[0]) for name, one in known.items()}
    better = {name: one.higher_is_better(higher) for name, one in known.items()}
    for label, rows in tables.items():
        run = next(iter(groups[label].values()))
        pairs = {n: _paired(n, rows, tables[first], better[n], ranges[n]) for n in known}
        methods.append(
            {
                "label": label,
                "method": run["method"],
                "training": run["training"],
                **({SHOWN: run[SHOWN]} if SHOWN in run and COUNTED not in run else {}),
                **{name: mean_ci((row[name] for row in rows), within=ranges[name]) for name in known},
                "runs": rows,
                "versus_first": None if label == first else pairs,
                "objective": trained[label],
                "detail": details(chosen[label]),
            }
        )
    for name in known:  # no verdict is passed on a method that was trained under another objective
        pairs = {method["label"]: method["versus_first"][name] for method in methods[1:]}
        told = judged(pairs, better[name])
        for method in methods[1:]:
            alike = method["objective"] == methods[0]["objective"]
            method["versus_first"][name] = told[method["label"]] | ({} if alike else {"verdict": "other objective"})
    return {
        "format": FORMAT,
        **{key: done[0][key] for key in ("headline", "higher_is_better", "metrics", "task")},
        "group_metric": (done[0].get("groups") or {}).get("metric"),
        "sites": [{key: row[key] for key in ("site", "description")} for row in done[0]["sites"]],
        "seeds": seeds,
        "seeds_draw": _seeds_draw(groups[first], seeds),
        "reference": first,
        "methods": methods,
        "notes": [*left_out, *dropped, *comparable.setting_notes(groups)],
        "caveats": _caveats(done[0], seeds),
    }


def run_row(run: Json) -> Json:
    """The quantities of one run; None where it has none."""
    return {
        "seed": run["seed"],
        "data_seed": comparable.data_seed(run),
        **{name: one.value(run) for name, one in quantities().items()},
        "worst_site": run["fairness"]["worst"]["site"],
        "model_sha256": run["provenance"]["model_sha256"],
    }


def table(comparison: Json) -> list[dict[str, str]]:
    """One row of text per method, for a terminal: "0.812 ± 0.010" is mean and standard deviation over seeds (ddof 1).

    "trained with" is there where not all methods were trained alike; a method that was trained otherwise than the first
    has no wins.
    """
    known = [name for name, one in quantities().items() if one.column]
    names = [name for name in known if any(m[name]["mean"] is not None for m in comparison["methods"])]
    rows = []
    for method in comparison["methods"]:
        row = {"method": method["label"], "seeds": str(len(comparison["seeds"]))}
        row |= {"trained with": objective_words(method)} if method["objective"] else {}
        row |= {name: with_sd(method[name]) for name in names}
        paired = (method["versus_first"] or {}).get("worst")
        row["worst vs first"] = MISSING if paired is None else signed(paired["mean"])
        row["wins"] = f"{paired['wins']}/{paired['n']}" if paired and same_objective(comparison, method) else MISSING
        rows.append(row)
    return rows


def same_objective(comparison: Mapping[str, Any], method: Mapping[str, Any]) -> bool:
    """Whether a method was trained as the first one was, so that a difference between them is the method's."""
    return method["objective"] == comparison["methods"][0]["objective"]


def objective_words(method: Mapping[str, Any]) -> str:
    """The training settings that set a method apart: "logit_tau=1.0"."""
    return ", ".join(f"{key}={value}" for key, value in method["objective"].items())


def drawn_words(comparison: Mapping[str, Any]) -> str:
    """What the intervals over seeds cover: "seeds draw: partition, rendering, initial model, order" or "fixed data"."""
    found = comparison["seeds_draw"]
    if found["data"] == "one seed":
        return "one seed: one draw of " + listing([*found["what"]])
    fixed = "fixed data; " if found["data"] == "fixed" else ""
    return f"{fixed}seeds draw: {', '.join(found['what'])}"


def _seeds_draw(runs: Mapping[Any, Json], seeds: Sequence[Any]) -> Json:
    """What differs from seed to seed; UserError where some seeds share a draw of the data and some do not.

    Args:
        runs: seed -> the run of one method; all methods have the same data within a seed.

    Returns:
        data: "drawn" (anew with each seed), "fixed" (drawn once), "natural" (the task draws nothing) or "one seed";
        what: in words; data_seeds: seed -> data_seed.
    """
    chosen = {str(seed): comparable.data_seed(runs[seed]) for seed in seeds}
    drawn = list(runs[seeds[0]]["task"].get("drawn") or ())
    different = len(set(chosen.values()))
    if 1 < different < len(seeds):
        raise UserError(f"compare: {different} draws of the data for {len(seeds)} seeds: expected one, or one for each")
    data = "one seed" if len(seeds) == 1 else "drawn" if different > 1 else "fixed" if drawn else "natural"
    what = [*(drawn if data in ("drawn", "one seed") else ()), *ALWAYS_DRAWN]
    return {"data": data, "what": what, "data_seeds": chosen}


def _paired(name: str, rows: Sequence[Json], first: Sequence[Json], higher: bool, within: tuple[float, float]) -> Json:
    """Own minus first method's value, seed by seed; a win is a difference in the better direction."""
    sign = 1 if higher else -1
    pairs = [(row["seed"], row[name], other[name]) for row, other in zip(rows, first, strict=True)]
    known = [{"seed": seed, "difference": a - b} for seed, a, b in pairs if a is not None and b is not None]
    differences = [pair["difference"] for pair in known]
    wins, losses = (sum(way * sign * one > 0 for one in differences) for way in (1, -1))
    return {
        **statistics.paired(differences, largest=within[1] - within[0]),
        "wins": wins,
        "losses": losses,
        "pairs": known,
    }


def _caveats(run: Json, seeds: Sequence[Any]) -> list[str]:
    simulated = run["task"]["simulated"]
    few = f"{plural(len(seeds), 'seed')} only: intervals are wide, or absent for one seed."
    found = [f"Simulated: {stop(simulated)}"] if simulated not in (None, "", "nothing") else []
    found += [few] if len(seeds) < 3 else []
    found += [LABELS_CAVEAT] if other_labels(run) else []
    return found + [
        "Intervals are Student t over seeds for each quantity alone; with many methods some exclude zero by chance, "
        "which is why a verdict needs Holm's p as well. Quantities are not corrected for.",
        "Weights are not payments: a method that weighs a site more does not say that its data are worth more.",
    ]


Runs = Sequence[Json]


def details(runs: Runs) -> Json:
    """Beside the quantities, each value as mean and 95 % interval over seeds.

    Returns:
        sites: metric -> site -> interval; metrics: metric -> mean, worst, std -> interval; test_sets: set -> metric ->
        interval; cost: ``COSTS`` -> interval; benefit: see there.
    """
    metrics = [site_metrics(run) for run in runs]
    sets = [{row["name"]: row["metrics"] for row in run["test_sets"]["rows"]} for run in runs]
    names = list(metrics[0])
    rows = {m: [_over_sites(run, m, f.get(m, {})) for run, f in zip(runs, metrics)] for m in names}
    return {
        "sites": {name: _over([found.get(name, {}) for found in metrics], named(name).range) for name in names},
        "metrics": {name: _over(each, named(name).range) for name, each in rows.items()},
        "test_sets": {name: _over([row.get(name, {}) for row in sets]) for name in sets[0] if sets[0][name]},
        "cost": _over([costs(run) for run in runs], (0, inf)),
        "benefit": benefit(runs),
    }


def site_metrics(run: Json) -> dict[str, dict[str, float | None]]:
    """Metric -> site -> value on the site's own test split, the headline metric first."""
    names = in_order(name for row in run["sites"] for name in row["test"])
    names.sort(key=lambda name: name != run["headline"])
    return {name: {row["site"]: number(row["test"].get(name)) for row in run["sites"]} for name in names}


def _over_sites(run: Json, metric: str, values: Mapping[str, float | None]) -> dict[str, float | None]:
    least = worst(values, higher_is_better(metric, run))[1] if named(metric).ordered else None
    return {"mean": mean(values), "worst": least, "std": std(values)}


COSTS = {"bytes_down": "bytes to the sites, per round", "bytes_up": "bytes from the sites, per round"}
COSTS |= {"seconds": "seconds per round"}


def costs(run: Json) -> dict[str, float | None]:
    """Bytes each way and wall seconds, all per recorded round; what the log does not say is None."""
    rounds = run["rounds_done"] or 0
    down, up = (number((run.get("traffic") or {}).get(way)) for way in ("down", "up"))
    phases = ((run.get("timing") or {}).get("phases") or {}).values()
    found = {"bytes_down": down, "bytes_up": up, "seconds": sum(phases) if phases else None}
    return {key: value / rounds if rounds and value is not None else None for key, value in found.items()}


def benefit(runs: Runs) -> Json:
    """The benefit of joining, from runs whose sites have said so, each by its intervals over patients.

    Returns:
        metric -> label, sites (how many), "gains", "loses" and "cannot be told" (sites, mean over seeds), "least" (of
        the sites' benefits, over seeds) and, with one seed, sentence; {} where not every run has it.
    """
    found = [(run.get("benefit") or {}).get("metrics") or {} for run in runs]
    names = [name for name in found[0] if all((one.get(name) or {}).get("worst") for one in found)]
    told = {}
    for name, each in ((name, [one[name] for one in found]) for name in names):
        row = {"label": each[0]["label"], "sites": max(len(one["sites"]) for one in each)}
        most, (low, high) = row["sites"], named(name).range
        row |= {kind: mean_ci([one["counts"][kind] for one in each], within=(0, most)) for kind in VERDICTS}
        row["least"] = mean_ci([one["worst"]["benefit"] for one in each], within=(low - high, high - low))
        told[name] = {**row, "sentence": each[0]["sentence"] if len(each) == 1 else ""}
    return told


def judged(said: Mapping[str, Json], higher: bool) -> dict[str, Json]:
    """Name of site or method -> its paired difference with p_holm over all and verdict (``fairness.corrected``)."""
    adjusted = statistics.holm({site: one["p"] for site, one in said.items()})
    rows = {site: {**one, "p_holm": adjusted[site]} for site, one in said.items()}
    return {site: {**row, "verdict": statistics.corrected(row, higher)} for site, row in rows.items()}


def _over(rows: Sequence[Mapping[str, float | None]], within: tuple[float, float] | None = None) -> Json:
    """Key -> ``mean_ci`` over ``rows``, cut to ``within``; by default each key is a metric, whose range it is."""
    return {key: mean_ci((row.get(key) for row in rows), within=within or named(key).range) for key in rows[0]}
