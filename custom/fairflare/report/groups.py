# SPDX-License-Identifier: Apache-2.0
"""How evenly one model serves groups of patients: pure functions on a mapping group -> value, higher is better.

Conventions. A group's value is pooled: the mean over all its examples at the sites that sent it, so that a large
site counts more. The disparity is the standard deviation over groups with ddof 1 unless asked otherwise, as FedUFO
(Zhang et al., Patterns 5, 2024, https://doi.org/10.1016/j.patter.2023.100907) prints it. A quantity that is undefined
for the groups that are known is None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from fairflare.core.metric import named
from fairflare.report.audit_reader import Trail
from fairflare.report.fairness import Values, best, finite, gap, mean, std, weighted, worst
from fairflare.report.section import Quantity, Section
from fairflare.report.values import class_words, in_order, label, listing, number, plural, text

Cells = Mapping[str, Mapping[str, Any]]
"""Group -> {"n", "value"}, as one site sends it."""
Rates = dict[str, dict[str, float]]
"""Class -> value of the attribute -> true-positive rate."""
LABEL = "label"


def pooled(sent: Mapping[str, Cells]) -> dict[str, dict[str, float]]:
    """Group -> {"n", "value"} over sites: the sum of the sizes, and the mean of the values weighted by them."""
    totals: dict[str, list[tuple[float, float]]] = {}
    for cells in sent.values():
        for group, (n, value) in known_cells(cells).items():
            totals.setdefault(group, []).append((n, value))
    sizes = {group: math.fsum(n for n, _ in found) for group, found in totals.items()}
    sums = {group: math.fsum(n * value for n, value in found) for group, found in totals.items()}
    return {group: {"n": size, "value": sums[group] / size} for group, size in sizes.items()}


def alike(sent: Mapping[str, Cells], least: int | None) -> Mapping[str, Cells]:
    """The sites between whose groups a difference is the groups' alone: those that sent every cell that any sent.

    All sites where none holds back cells of fewer than ``least``: what is missing then has no examples.
    """
    every = {group for cells in sent.values() for group in known_cells(cells)}
    held_back = least is not None and least > 1
    return {site: cells for site, cells in sent.items() if not held_back or every <= known_cells(cells).keys()}


def known_cells(cells: Cells) -> dict[str, tuple[float, float]]:
    """Group -> (n, value) of the cells that hold a size above 0 and a finite value."""
    read = {group: (number(cell.get("n")), number(cell.get("value"))) for group, cell in cells.items()}
    return {group: (n, value) for group, (n, value) in read.items() if n and n > 0 and value is not None}


def harmonic(a: float, b: float) -> float | None:
    """2ab / (a + b) for a, b >= 0, between the smaller and twice the smaller; None when both are 0.

    FedUFO's Table 6 prints this form, for accuracies.
    """
    half = harmonic_printed(a, b)
    return None if half is None else 2 * half


def harmonic_printed(a: float, b: float) -> float | None:
    """ab / (a + b) for a, b >= 0, half the harmonic mean: the form that FedUFO's Table 5 prints for disparities."""
    if min(a, b) < 0:
        raise ValueError(f"expected a, b >= 0, got {a}, {b}")
    return a * b / (a + b) if a + b > 0 else None


def split_name(name: str, keys: Sequence[str], classes: Sequence[str]) -> tuple[str, str] | None:
    """The class and the attributes' values in a joint group's name: "died, female" -> ("died", "female").

    ``keys``: what the grouping goes by, "label" among them; ``classes``: names, which may hold commas. None where the
    grouping is not one of label and attribute, or the name does not fit.
    """
    if LABEL not in keys or len(keys) < 2:
        return None
    parts = name.split(", ")
    if len(parts) == len(keys):
        here = keys.index(LABEL)
        return parts[here], ", ".join(parts[:here] + parts[here + 1 :])
    fitting = [c for c in classes if keys[0] == LABEL and name.startswith(f"{c}, ")]
    found = max(fitting, key=len, default=None)
    return None if found is None else (found, name[len(found) + 2 :])


def by_class(values: Values, keys: Sequence[str], classes: Sequence[str]) -> Rates:
    """Class y -> attribute a -> the value of every known group (y, a): of accuracies P(predicted class = y | y, a)."""
    rates: Rates = {}
    for name, value in finite(values).items():
        cell = split_name(name, keys, classes)
        if cell is not None:
            rates.setdefault(cell[0], {})[cell[1]] = value
    return rates


def equal_opportunity(rates: Values) -> dict[str, Any]:
    """How differently one class is recognised over the values of an attribute.

    Hardt et al., NeurIPS 2016, https://arxiv.org/abs/1610.02413, as FedUFO's code computes it: ``rates`` (value of the
    attribute -> true-positive rate in [0, 1]) are of the positive class, index 1 of two.

    Returns:
        gap: largest minus smallest rate, None below two known ones; worst: attribute and value of the smallest rate.
    """
    name, value = worst(rates)
    return {"gap": gap(rates) if len(finite(rates)) > 1 else None, "worst": {"attribute": name, "value": value}}


def demographic_parity(rates: Rates, sizes: Mapping[str, Values], classes: Sequence[str]) -> float | None:
    """Largest minus smallest P(predicted class 1 | attribute) over the values of an attribute, in [0, 1].

    With two classes this follows from what sites send: the rate is (n_1 TPR + n_0 (1 - TNR)) / (n_1 + n_0). None for
    other numbers of classes, and where fewer than two values of the attribute have both.

    Args:
        rates: class -> value of the attribute -> share of the class that is recognised.
        sizes: the same -> number of patients.
        classes: their names, the positive one last.
    """
    if len(classes) != 2:
        return None
    no, yes = (rates.get(name, {}) for name in classes)
    n_no, n_yes = (finite(sizes.get(name, {})) for name in classes)
    known = [name for name in yes if name in no and name in n_no and name in n_yes and n_no[name] + n_yes[name] > 0]
    shares = [(n_yes[a] * yes[a] + n_no[a] * (1 - no[a])) / (n_yes[a] + n_no[a]) for a in known]
    return max(shares) - min(shares) if len(shares) > 1 else None


Json = dict[str, Any]
SPLIT = "test"
NONE = "none"


def group_section(trail: Trail, config: Json, about: Json) -> Json | None:
    """How the final model does in the groups of the run, on the sites' own test splits.

    Args:
        config: config.json, of which ``group_by`` and ``min_count`` are read.
        about: of the task: classes, groups (every name, in order) and group_metric, where known.

    Returns:
        by, min_count, split, metric, rows (group, n, value, sites and the lowest and highest site), n and overall of
        all groups, alike {"sites", "of", "cells"} (the pooled cells that gaps are of, see ``alike``), disparity
        {"sample", "population"}, levels (sample disparity over sites and over groups, and both
        "harmonic" forms of the two), gap, worst {"group", "value"}, cells {"expected", "sent"},
        equal_opportunity (None unless the grouping joins label and attributes) and uniform (mean over groups). None
        where the run has no groups or its log holds nothing.
    """
    by = config.get("group_by") or NONE
    answers = {
        site: (splits or {}).get("groups") or {} for site, splits in (trail.evaluation.get("sites") or {}).items()
    }
    sent: Json = {site: answers[site][SPLIT] or {} for site in in_order(answers) if SPLIT in answers[site]}
    if by == NONE or not sent:
        return None
    names = list(dict.fromkeys([*(about.get("groups") or ()), *(name for cells in sent.values() for name in cells)]))
    found = pooled(sent)
    values = {name: found[name]["value"] for name in names if name in found}
    lowest, value = worst(values) if len(finite(values)) > 1 else (None, None)  # one group is not the lowest of several
    total = sum(cell["n"] for cell in found.values())
    whole = alike(sent, config.get("min_count"))
    same = {name: cell for name, cell in sorted(pooled(whole).items(), key=lambda one: names.index(one[0]))}
    between = {name: cell["value"] for name, cell in same.items()}
    keys, classes = [key.strip() for key in by.split("+")], about.get("classes") or []
    return {
        "by": by,
        "min_count": config.get("min_count"),
        "split": SPLIT,
        "metric": about.get("group_metric") or "accuracy",
        "rows": [_group_row(name, found, sent) for name in names],
        "n": total,
        "overall": weighted((cell["n"], cell["value"]) for cell in found.values()),
        "alike": {"sites": len(whole), "of": len(sent), "cells": same},
        "disparity": {"sample": std(values, 1), "population": std(values)},
        "levels": _levels(values, sent),
        "gap": gap(between),
        "worst": {"group": lowest, "value": value},
        "cells": {"expected": len(sent) * len(names), "sent": sum(len(known_cells(c)) for c in sent.values())},
        "equal_opportunity": _opportunity(values, between, names, keys, classes),
        "uniform": mean(values),
    }


def _levels(values: Mapping[str, float], sent: Mapping[str, Cells]) -> Json:
    """FedUFO's two disparities, over sites and over groups, and what its Table 5 and its text call their harmonic."""
    of_sites = {}
    for site, cells in sent.items():
        known = known_cells(cells)
        if total := sum(n for n, _ in known.values()):
            of_sites[site] = sum(n * value for n, value in known.values()) / total
    sites, among = std(of_sites, 1), std(values, 1)
    found = {"sites": sites, "groups": among, "harmonic": None, "harmonic_printed": None}
    if sites is None or among is None:
        return found
    return {**found, "harmonic": harmonic(sites, among), "harmonic_printed": harmonic_printed(sites, among)}


def _group_row(name: str, found: Mapping[str, Json], sent: Mapping[str, Any]) -> Json:
    by_site = {site: known[name][1] for site, cells in sent.items() if name in (known := known_cells(cells))}
    ends = {"lowest": worst(by_site), "highest": best(by_site)}
    told = {end: {"site": site, "value": value} for end, (site, value) in ends.items()}
    return {"group": name, **found.get(name, {"n": None, "value": None}), "sites": len(by_site), **told}


def _opportunity(
    values: Values, between: Values, names: Sequence[str], keys: Sequence[str], classes: Sequence[str]
) -> Json | None:
    """Per class the rates, gap and worst rate; on top those of the positive class, or over all classes beyond two.

    Gaps are those of the values ``between`` groups at the same sites, and so are the rates where there are any.
    """
    every, rates = (by_class(one, keys, classes) for one in (dict.fromkeys(names, 0.0), between or values))
    if not every:
        return None
    rows = []
    for name, attributes in every.items():
        own = rates.get(name, {})
        missing = [value for value in attributes if value not in own]
        told = equal_opportunity(own) | ({} if between else {"gap": None})
        rows.append({"class": name, "rates": own, "missing": missing, **told})
    positive = classes[1] if len(classes) == 2 else None
    chosen = [row for row in rows if positive in (None, row["class"])]
    gaps = [row["gap"] for row in chosen if row["gap"] is not None]
    lowest = [row["worst"]["value"] for row in chosen if row["worst"]["value"] is not None]
    ends = {"gap": max(gaps, default=None), "worst_tpr": min(lowest, default=None)}
    return {"positive": positive, **ends, "classes": rows}


def group_words(name: str, summary: Json) -> str:
    """A group of patients, its class as ``class_words`` has it."""
    by = [key.strip() for key in str((summary.get("groups") or {}).get("by") or "").split("+")]
    parts = name.split(", ")
    if "label" not in by or len(parts) != len(by):
        return name
    return ", ".join(class_words(part, summary) if key == "label" else part for key, part in zip(by, parts))


def groups(summary: Json) -> list[str]:
    """Paragraphs on the groups of patients: spread, worst; and what was held back. [] for none."""
    found = summary["groups"]
    if not found:
        return []
    return [said for said in (" ".join(_spread(found, label(found["metric"], summary))), _held_back(found)) if said]


def _spread(found: Json, metric: str) -> list[str]:
    lowest = found["worst"]
    if lowest["group"] is None:
        return []
    sentences = [f"The model's {metric} is lowest in the group {lowest['group']} ({text(lowest['value'])})."]
    if found["disparity"]["sample"] is not None:
        sentences.append(
            f"The disparity, the standard deviation over groups, is {text(found['disparity']['sample'])} with ddof 1 "
            f"(as FedUFO prints it) and {text(found['disparity']['population'])} with ddof 0."
        )
    return sentences


def _held_back(found: Json) -> str:
    expected, sent, least = found["cells"]["expected"], found["cells"]["sent"], found["min_count"]
    if least is None:
        return "" if sent else "min_count is none: sites send no numbers of groups."
    missing = "all of them came" if sent == expected else f"{expected - sent} of {expected} are missing"
    return (
        f"A site sends a group's number only from {plural(least, 'example')} on (min_count), keeps back further groups "
        f"from which a smaller one would follow, and has none for an empty group: {missing}. The pooled values cover "
        f"what was sent{_gaps_of(found)}."
    )


def _gaps_of(found: Json) -> str:
    sites, of = found["alike"]["sites"], found["alike"]["of"]
    return "" if sites == of else f", gaps between groups the {sites} of {plural(of, 'site')} that sent every group"


def opportunity(summary: Json) -> str:
    found = (summary["groups"] or {}).get("equal_opportunity")
    if not found:
        return ""
    which = f"of the class {found['positive']}" if found["positive"] else "largest over the classes"
    attribute = listing(key.strip() for key in summary["groups"]["by"].split("+") if key.strip() != "label")
    return (
        f"Equal opportunity compares how often members of one class are recognised (true-positive rate) across "
        f"{attribute}. EO gap {which}: {text(found['gap'])}; worst true-positive rate: "
        f"{text(found['worst_tpr'])}."
    )


def _equalised_odds(run: Json) -> float | None:
    gaps = [row["gap"] for row in _of("equal_opportunity", "classes")(run) or ()]
    return max(gaps) if gaps and None not in gaps else None


def _parity(run: Json) -> float | None:
    found, classes = run.get("groups") or {}, run["task"].get("classes") or []
    keys = [key.strip() for key in str(found.get("by") or "").split("+")]
    pooled_cells = {row["group"]: row for row in found.get("rows") or () if row["value"] is not None}
    cells = found["alike"]["cells"] if "alike" in found else pooled_cells  # of an older report
    rates, sizes = (by_class({name: row[key] for name, row in cells.items()}, keys, classes) for key in ("value", "n"))
    return demographic_parity(rates, sizes, classes)


def _of(*keys: str) -> Callable[[Json], Any]:
    """run -> what its groups have at these keys."""
    return lambda run: reduce(lambda found, key: (found or {}).get(key), keys, run.get("groups"))


SPREAD = _of("disparity", "sample")
QUANTITIES = (
    Quantity(
        "group_disparity", "disparity over groups (sample sd)", SPREAD, "lower", (0, math.inf), "Disparity over groups"
    ),
    Quantity(
        "worst_group", "worst group", _of("worst", "value"), "higher",
        lambda run: named((run.get("groups") or {}).get("metric") or "accuracy").range, "Worst group",
    ),
    Quantity("eo_gap", "equal opportunity gap", _of("equal_opportunity", "gap"), "lower", (0, 1)),
    Quantity("equalised_odds", "equalised odds gap", _equalised_odds, "lower", (0, 1)),
    Quantity("demographic_parity", "demographic parity gap", _parity, "lower", (0, 1)),
)  # fmt: skip


SECTION = Section("groups", "Groups of patients", ("groups", "rows"), sentence=groups)
