# SPDX-License-Identifier: Apache-2.0
"""The page of a comparison of methods: its sentences and its figures; its tables are those of ``compare_tables``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from fairflare.report import svg
from fairflare.report.benefit import GAINS, LOSES, UNCLEAR, draw_benefits
from fairflare.report.compare import drawn_words, objective_words, same_objective
from fairflare.report.compare_tables import JUDGED, comparison_tables, known_names
from fairflare.report.fairness import EXACT_TO, LEVEL, seeds_needed, sentence
from fairflare.report.frames import machine, markdown, piped
from fairflare.report.personal import SHOWN, remark
from fairflare.report.sanity_checks import beside_trivial
from fairflare.report.sections import quantities
from fairflare.report.sentences import study
from fairflare.report.values import (
    MISSING,
    Estimate,
    capital,
    drawn,
    label,
    listing,
    plural,
    rendered,
    text,
    with_interval,
    with_sd,
)

Json = Mapping[str, Any]


def render_compare(comparison: Json) -> str:
    return rendered(
        "compare",
        found=comparison,
        study=study(comparison),
        opening=opening_compare(comparison),
        differences=differences(comparison),
        figures=drawn(one(comparison) for one in (method_points, forest)),  # type: ignore[arg-type]  # decorated
        tables=comparison_tables(comparison),
        groups=group_metric_words(comparison),
    )


def opening_compare(comparison: Json) -> list[str]:
    """What the comparison shows first: which method is best on average and at the worst site, over how many seeds.

    Only among methods that were trained under one objective is one named best.
    """
    methods, seeds = comparison["methods"], comparison["seeds"]
    found = [f"{plural(len(methods), 'method')} were run on the same data with {plural(len(seeds), 'matched seed')}."]
    found.append(f"{capital(drawn_words(comparison))}.")
    alike: dict[str, list[Json]] = {}
    for method in methods:
        alike.setdefault(objective_words(method), []).append(method)
    if len(alike) > 1:
        how = "; ".join(f"{listing(method['label'] for method in some)}: {words}" for words, some in alike.items())
        found.append(
            f"Not all were trained under one objective ({how}), so none is named best of all: a difference may come "
            "from the training as well as from the method."
        )
    for words, some in alike.items():
        if len(some) > 1 or len(alike) == 1:
            found += _best(comparison, some, f" with {words}" if words else "")
    found += [said] if (said := remark(methods)) else []
    if len(seeds) < 2:
        found.append("With one seed no difference below can be distinguished from chance.")
    return found


def _best(comparison: Json, methods: Sequence[Json], among: str) -> list[str]:
    metric, pick = label(comparison["headline"], comparison), max if comparison["higher_is_better"] else min
    found = []
    for quantity, where in (("mean", "on average over the sites"), ("worst", "at the worst site")):
        known = [method for method in methods if method[quantity]["mean"] is not None]
        if known:
            top = pick(known, key=lambda method: method[quantity]["mean"])
            found.append(f"The best {metric} {where}{among}: {top['label']} with {text(top[quantity]['mean'])}.")
            trivial = top["trivial"]["mean"] if quantity == "mean" else None
            if trivial is not None:
                found.append(beside_trivial(top["mean"]["mean"], trivial, comparison["higher_is_better"]))
    return found


def group_metric_words(comparison: Json) -> str:
    """In what groups of patients are compared, in one sentence; "" where that is the headline, or nothing is said."""
    metric = comparison.get("group_metric")
    told = any((method.get("worst_group") or {}).get("mean") is not None for method in comparison["methods"])
    if not told or metric in (None, comparison["headline"]):
        return ""
    return f"Groups of patients are compared in the {label(metric, comparison)}, of which more is better."


def differences(comparison: Json) -> list[str]:
    """Sentences per method after the first: how its worst site and its mean differ from the first's, how surely.

    Of several methods the last sentence says which correction the verdicts have.
    """
    found = []
    for method, (name, what) in product(comparison["methods"][1:], JUDGED.items()):
        said = sentence(method["label"], comparison["reference"], what, method["versus_first"][name])
        other = f" It was trained under another objective ({objective_words(method)})."
        found.append(said if same_objective(comparison, method) else said + other)
    return found + _correction(comparison)


def _correction(comparison: Json) -> list[str]:
    """The rule behind "better" and "worse", and how many seeds it needs; [] where nothing is compared."""
    held = [method["versus_first"]["worst"] for method in comparison["methods"][1:]]
    count = sum(found.get("p_holm") is not None for found in held)
    if not count:
        return []
    of = f"after Holm's correction over {count} comparisons" if count > 1 else "by interval and sign-flip test"
    said = f"Better and worse are said {of}: only where the interval excludes zero and p is at most {LEVEL:g}."
    seeds, needed = len(comparison["seeds"]), seeds_needed(count)
    if seeds >= needed or seeds > EXACT_TO:
        return [said]
    return [f"{said} With {plural(seeds, 'seed')} that p is never so small: {needed} seeds are needed to tell any."]


def comparison_markdown(comparison: Json, command: str, versions: Mapping[str, str]) -> str:
    """The same as tables, quantities down and methods across, under the command that made them."""
    methods, names = comparison["methods"], known_names(comparison["methods"])
    known = quantities()
    labels = [markdown(method["label"]) for method in methods]
    values = [[known[name].label, *(with_sd(method[name]) for method in methods)] for name in names]
    rule = ["---", *("--:" for _ in methods)]
    if methods[0]["objective"]:
        values = [["trained with", *(markdown(objective_words(method)) for method in methods)], *values]
    parts = [
        markdown(f"# {comparison['headline']} on {comparison['task']['id']}:{comparison['task'].get('preset')}"),
        f"    {command}",
        f"Seeds {', '.join(map(str, comparison['seeds']))}. Mean over matched seeds ± standard deviation (ddof 1).",
        f"{capital(drawn_words(comparison))}.",
        markdown(remark(methods)),
        piped([["final model", *labels], rule, *values]),
    ]
    if len(methods) > 1:
        others = methods[1:]
        paired = [[known[name].label, *(_difference(comparison, method, name) for method in others)] for name in names]
        parts += [
            f"Paired differences from {labels[0]}, with the 95 % interval and the number of seeds with a better value:",
            piped([["difference", *labels[1:]], rule[:-1], *paired]),
        ]
        parts += ["\n".join(f"- {markdown(line)}" for line in differences(comparison))]
    parts += ["\n".join(f"- {markdown(line)}" for line in (*comparison["notes"], *comparison["caveats"]))]
    told = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    parts += [f"{machine()}; {told}."]
    return "\n\n".join(part for part in parts if part) + "\n"


def _difference(comparison: Json, method: Json, name: str) -> str:
    paired = (method["versus_first"] or {}).get(name)
    if not paired or paired["mean"] is None:
        return MISSING
    wins = f"{paired['wins']} of {paired['n']}" if same_objective(comparison, method) else "other objective"
    return f"{with_interval(paired)}, {wins}"


@svg.inline("methods")
def method_points(figure: svg.Figure, comparison: Json) -> str | None:
    methods, metric = comparison["methods"], label(comparison["headline"], comparison)
    # Beside long names the axes are narrow.
    then = ",\nown models where sites use such,\n" if any(method.get(SHOWN) for method in methods) else ", "
    x = f"{metric}\n(own test split{then}mean over {plural(len(comparison['seeds']), 'seed')})"
    looks = {"mean": ("mean over sites", svg.BLUE, "o"), "worst": ("worst site", svg.RED, "D")}
    series = [
        svg.Series(words, [Estimate.of(m[key]) for m in methods], colour, marker)
        for key, (words, colour, marker) in looks.items()
    ]
    svg.dots(figure, [method["label"] for method in methods], series, x)
    worst = [method["worst"]["mean"] for method in methods]
    return f"{capital(metric)}, worst site: {text(min(worst))} to {text(max(worst))}"


@svg.inline("forest")
def forest(figure: svg.Figure, comparison: Json) -> str | None:
    """Each method's paired difference from the first, of the mean and of the worst site, with its verdict."""
    told = {"better": GAINS, "worse": LOSES}
    rows = [
        (
            f"{svg.short(method['label'], 20)}, {of}",
            {**found, "benefit": found["mean"], "verdict": told.get(found["verdict"], UNCLEAR)},
        )
        for method in comparison["methods"][1:]
        for key, of in (("mean", "mean"), ("worst", "worst site"))
        if (found := method["versus_first"][key])["low"] is not None
    ]
    if not rows:
        return None
    seeds, first = plural(len(comparison["seeds"]), "seed"), svg.short(comparison["reference"])
    side = "right" if comparison["higher_is_better"] else "left"
    words = {GAINS: "better", LOSES: "worse", UNCLEAR: "not shown to differ"}
    note = f" minus {first}'s,\n{side} of 0 is better\n(95 % interval over {seeds};\nverdicts by Holm's p)"
    draw_benefits(figure, rows, label(comparison["headline"], comparison), words, note)
    return f"Differences from {first}"
