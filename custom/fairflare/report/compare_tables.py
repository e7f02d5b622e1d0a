# SPDX-License-Identifier: Apache-2.0
"""A comparison of methods as tables, and its quantities as CSV."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from fairflare.report.benefit import VERDICTS
from fairflare.report.compare import COSTS, objective_words, same_objective
from fairflare.report.fairness import LEVEL, verdict_words
from fairflare.report.frames import csv_text, shown
from fairflare.report.personal import remark, shared_only
from fairflare.report.sections import quantities
from fairflare.report.values import MISSING, Estimate, answer, capital, label, plural, size, text

Json = Mapping[str, Any]
JUDGED = {"worst": "worst site", "mean": "mean over sites"}
"""The quantities of a comparison that a sentence judges."""
MOST_SITES, MOST_PAIRS = 60, 20
"""Rows from which on a page leaves out sites, and of the differences all quantities but ``JUDGED``; JSON has all."""


def comparison_tables(comparison: Json) -> list[Json]:
    """Methods, paired differences, sites, every metric, shared test sets, joining and cost, where there is any.

    As the templates take them, see ``frames.shown``.

    Args:
        comparison: see ``compare.compare``.
    """
    makers = (results, differences, sites, metrics, test_sets, benefit, cost)
    return [table for make in makers if (table := make(comparison))["rows"]]


def results(comparison: Json) -> Json:
    methods, names = comparison["methods"], known_names(comparison["methods"], columns=True)
    rows = [
        {
            "Method": m["label"],
            **({"Trained with": objective_words(m)} if m["objective"] else {}),
            **{quantities()[name].column: Estimate.of(m[name]) for name in names},
        }
        for m in methods
    ]
    less = "" if comparison["higher_is_better"] else ", of which less is better"
    caption = f"{_metric(comparison)} of the final models{less}: mean over seeds, with the 95 % interval (Student t)."
    return shown(rows, " ".join(filter(None, (caption, remark(methods)))), "Methods")


def differences(comparison: Json) -> Json:
    """A row per method after the first and quantity."""
    methods, first = comparison["methods"][1:], comparison["reference"]
    names: Sequence[str] = known_names(comparison["methods"], columns=True)
    names = names if len(methods) * len(names) <= MOST_PAIRS else list(JUDGED)
    rows = []
    for method, name in product(methods, names):
        found, alike = method["versus_first"][name], same_objective(comparison, method)
        again = found.get("bootstrap")
        rows.append(
            {
                "Method": method["label"],
                "Quantity": capital(quantities()[name].label),
                "Difference": Estimate.of(found, signed=True),
                **({"Patients resampled": Estimate.of(again, signed=True)} if again else {}),
                "p": found["p"],
                "p (Holm)": found["p_holm"],
                "Better in": f"{found['wins']} of {found['n']}" if alike else MISSING,
                "Verdict": verdict_words(found),
            }
        )
    caption = (
        f"Own value minus that of {first} with the same seed: mean, 95 % interval (Student t), p of the sign-flip "
        "test, Holm's p over the methods of this table. Of gap, spread, disparity and errors less is better. Better "
        f"and worse: where the interval excludes zero and Holm's p is at most {LEVEL:g}."
    )
    return shown(rows, caption, f"Differences from {first}")


def sites(comparison: Json) -> Json:
    metric, each = comparison["headline"], comparison["sites"]
    titles = {s["site"]: s["site"] + (f" ({s['description']})" if s["description"] else "") for s in each[:MOST_SITES]}
    held = [method["detail"]["sites"].get(metric) or {} for method in comparison["methods"]]
    notes = [f"{len(each) - MOST_SITES} more sites are in the JSON file."] if len(each) > MOST_SITES else []
    return _across("Site", comparison, titles, held, f"{_metric(comparison)} of each site", notes)


def metrics(comparison: Json) -> Json:
    methods = comparison["methods"]
    words = {"mean": "mean over sites", "worst": "worst site", "std": "standard deviation over sites (ddof 0)"}
    each = list(product(words, methods[0]["detail"]["metrics"]))
    titles = {(kind, name): f"{capital(label(name, comparison))}, {words[kind]}" for kind, name in each}
    held = [
        {(kind, name): (method["detail"]["metrics"].get(name) or {}).get(kind) for kind, name in each}
        for method in methods
    ]
    return _across("Metric", comparison, titles if len(each) > len(words) else {}, held, "Every metric")


def test_sets(comparison: Json) -> Json:
    metric = comparison["headline"]
    held = [
        {name: row[metric] for name, row in method["detail"]["test_sets"].items() if metric in row}
        for method in comparison["methods"]
    ]
    notes = [said] if (said := shared_only(comparison["methods"])) else []
    return _across("Test set", comparison, {name: name for name in held[0]}, held, "Shared test sets", notes)


def benefit(comparison: Json) -> Json:
    """Numbers of sites by what they say of joining, a column per method."""
    methods = [m for m in comparison["methods"] if m["detail"].get("benefit")]
    rows = []
    for metric in dict.fromkeys(name for m in methods for name in m["detail"]["benefit"]):
        found = {m["label"]: m["detail"]["benefit"][metric] for m in methods if metric in m["detail"]["benefit"]}
        words = next(iter(found.values()))["label"]
        for kind in VERDICTS:
            counts = {name: Estimate(one[kind]["mean"], digits=1) for name, one in found.items()}
            rows.append({"Metric": f"{words}, sites: {answer(kind)}", **counts})
        least = {name: Estimate.of(one["least"], signed=True) for name, one in found.items()}
        rows.append({"Metric": f"{words}, least benefit of a site", **least})
    caption = (
        "Each site's own word after the last round: the model that it uses against one trained alone, by the interval "
        "over its test patients; means over seeds, the least benefit with its 95 % interval over seeds."
    )
    return shown(rows, caption, "Benefit of joining, over patients")


def cost(comparison: Json) -> Json:
    methods = [m for m in comparison["methods"] if any(c["mean"] is not None for c in m["detail"]["cost"].values())]

    def written(name: str, value: float | None) -> str:
        return MISSING if value is None else f"{text(value, 2)} s" if name == "seconds" else size(round(value))

    rows = [
        {"Method": m["label"]}
        | {capital(title): written(name, m["detail"]["cost"][name]["mean"]) for name, title in COSTS.items()}
        for m in methods
    ]
    caption = "Means over seeds. Seconds are wall time of whatever else the machine did; runs side by side share it."
    return shown(rows, caption, "Cost")


def _across(
    stub: str,
    comparison: Json,
    titles: Mapping[Any, str],
    held: Iterable[Mapping[Any, Any]],
    called: str,
    notes: Sequence[str] = (),
) -> Json:
    """A row per title, a column per method with the mean and standard deviation that it holds of that name."""
    methods, each = comparison["methods"], list(held)
    rows = [
        {stub: words, **{m["label"]: Estimate.of(one.get(name), sd=True) for m, one in zip(methods, each)}}
        for name, words in titles.items()
    ]
    seeds = plural(len(comparison["seeds"]), "seed")
    caption = f"Mean over {seeds} ± standard deviation over seeds (ddof 1), of the final models. {remark(methods)}"
    return shown(rows, caption.rstrip(), called, notes=notes)


def _metric(comparison: Json) -> str:
    return capital(label(comparison["headline"], comparison))


CSV_COLUMNS = (
    "method", "quantity", "mean", "low", "high", "n", "difference", "difference_low", "difference_high", "wins",
    "trained_with", "p", "p_holm", "hedges_g", "verdict",
)  # fmt: skip


def comparison_csv(comparison: Json) -> str:
    """One line per method and quantity: mean and 95 % interval over seeds, paired difference from the first method.

    "trained_with" distinguishes methods that were not all trained under one objective; one that was trained otherwise
    than the first has no wins.
    """
    methods = comparison["methods"]
    lines = []
    for method, name in product(methods, known_names(methods)):
        pair = (method["versus_first"] or {}).get(name) or {}
        wins = pair.get("wins") if same_objective(comparison, method) else None
        line = [method["label"], name, *(method[name][key] for key in ("mean", "low", "high", "n"))]
        line += [*(pair.get(key) for key in ("mean", "low", "high")), wins, objective_words(method)]
        lines.append(line + [pair.get(key) for key in ("p", "p_holm", "g", "verdict")])
    return csv_text(CSV_COLUMNS, lines)


def known_names(methods: Sequence[Json], columns: bool = False) -> list[str]:
    """The quantities that at least one method has; ``columns``: of them those of the first table."""
    names = (name for name, one in quantities().items() if one.column or not columns)
    return [name for name in names if any(method[name]["mean"] is not None for method in methods)]
