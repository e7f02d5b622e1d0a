# SPDX-License-Identifier: Apache-2.0
"""What a column of a paper's table says of one finished run.

A measure gives a number, or None, where it fills one column, and {name: number} where it fills several (sites, domains,
groups, rounds). Several numbers of one name are those of one run, as where a paper takes the last five rounds into its
standard deviation. A site that keeps a model of its own is measured on that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fairflare.report import fairness
from fairflare.report.groups import harmonic
from fairflare.report.values import number
from fairflare_lab.report.agreements import agreement, clipped_shares

Json = Mapping[str, Any]
Values = dict[str, list[float]]
SITE_CLEAN = "clean"
"""How a task with corrupted sites describes one that is not."""


@dataclass(frozen=True)
class Run:
    """A finished run."""

    report: Json
    scores: Mapping[int, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    """Round -> shared test set -> metric -> value, of the rounds that were scored."""
    elsewhere: Mapping[str, Json] = field(default_factory=dict)
    """Options of the task ("alpha=1") -> what ``mixtures.on_mixture`` says of the final model."""

    @property
    def detail(self) -> Json:
        found: Json = self.report["detail"]
        return found

    @property
    def headline(self) -> str:
        return str(self.detail["headline"])


@dataclass(frozen=True)
class Beside:
    """Other runs of the same seed and data that a column compares with."""

    references: Mapping[str, Run] = field(default_factory=dict)
    """METHOD label -> its run."""
    without: Mapping[str, Run] = field(default_factory=dict)
    """Site -> the run of the row that ``left_out`` names without it; ``full``: with every site."""
    full: Run | None = None


Measured = float | list[float | None] | None
Measure = Callable[..., Measured | Mapping[str, Measured]]
F = TypeVar("F", bound=Callable[..., Any])
MEASURES: dict[str, Measure] = {}
"""Name -> function of (run, beside, further arguments by name)."""
CURVES = ("condition-rounds", "domain-rounds")
"""Measures of every round's model on shared test sets."""


def measure(function: F) -> F:
    """Let declarations name the function, with hyphens."""
    MEASURES[function.__name__.strip("_").replace("_", "-")] = function
    return function


def evaluated(name: str, run: Run, beside: Beside, given: Mapping[str, Any]) -> Values:
    """What the measure ``name`` says of a run: column, "" where it fills one, -> values; KeyError without such."""
    found = MEASURES[name](run, beside, **given)
    columns = found if isinstance(found, Mapping) else {"": found}
    many = {key: value if isinstance(value, list) else [value] for key, value in columns.items()}
    return {key: [v for v in map(number, values) if v is not None] for key, values in many.items()}


def at_sites(run: Run, metric: str = "") -> dict[str, float | None]:
    """Site -> a metric of the final model on the site's own test split, its personal model's if any."""
    held = {site: row.get("personal_metrics") or row.get("metrics") or {} for site, row in run.report["sites"].items()}
    return {site: number(metrics.get(metric or run.headline)) for site, metrics in held.items()}


def final_weights(run: Run) -> dict[str, float]:
    """Site -> its aggregation weight in the last round, 0 where it had none."""
    return {site: number((row["weight"] or [None])[-1]) or 0.0 for site, row in run.report["sites"].items()}


@measure
def sites(run: Run, beside: Beside, metric: str = "") -> dict[str, float | None]:
    return at_sites(run, metric)


@measure
def over_sites(run: Run, beside: Beside, which: str, metric: str = "", ddof: int = 0) -> float | None:
    values = at_sites(run, metric)
    if which == "worst":
        return fairness.worst(values, bool(run.detail["higher_is_better"]))[1]
    return {"mean": fairness.mean(values), "std": fairness.std(values, 1 if ddof else 0)}[which]


@measure
def domains(run: Run, beside: Beside, metric: str = "") -> dict[str, float | None]:
    """Shared test set -> mean of its metric over the rounds that were scored.

    Without shared test sets the domains are the kinds of sites, and the values those of the final model at the sites.
    """
    values: dict[str, list[float | None]] = {}
    for _, sets in sorted(run.scores.items()):
        for name, found in sets.items():
            values.setdefault(name, []).append(number(found.get(metric or run.headline)))
    of_sites = {} if values else at_sites(run, metric)
    for site, value in of_sites.items():
        values.setdefault(str(run.report["sites"][site]["kind"]), []).append(value)
    return {name: _mean(found) for name, found in values.items()}


@measure
def shared(run: Run, beside: Beside, which: str) -> float | None:
    """The final model's headline metric on the shared test set ``which``."""
    return next((number(row["value"]) for row in run.detail["test_sets"]["rows"] if row["name"] == which), None)


@measure
def over_domains(run: Run, beside: Beside, which: str, metric: str = "", ddof: int = 1) -> float | None:
    values = domains(run, beside, metric)
    return fairness.mean(values) if which == "mean" else fairness.std(values, 1 if ddof else 0)


@measure
def condition(run: Run, beside: Beside, which: str, metric: str, than: str = "") -> list[float | None]:
    """A metric on the task's "clean" or "corrupted" test set or their "average", one value per scored round; the
    difference from that of the reference ``than``."""
    values = _of_condition(run, which, metric)
    first = _of_condition(beside.references[than], which, metric) if than else {}
    return [_minus(value, first.get(t)) if than else value for t, value in values.items()]


def _of_condition(run: Run, which: str, metric: str) -> dict[int, float | None]:
    """Round -> value."""
    names = run.detail["test_sets"]["last"]["names"]
    sets = [names.get(one) for one in (("clean", "corrupted") if which == "average" else (which,))]
    found = {}
    for t, scores in sorted(run.scores.items()):
        values = [number(scores.get(name, {}).get(metric)) for name in sets]
        found[t] = None if None in values else _mean(values)
    return found


def _minus(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None else value - other


@measure
def condition_rounds(run: Run, beside: Beside, which: str, metric: str) -> dict[str, float | None]:
    """Round -> "condition" of the model that it left."""
    return {str(t): value for t, value in _of_condition(run, which, metric).items()}


@measure
def domain_rounds(run: Run, beside: Beside, which: str = "mean") -> dict[str, float | None]:
    """Round -> mean over the shared test sets of the domains; without such the validation splits', see "rounds"."""
    if not run.scores:
        return rounds(run, beside, which)
    each = sorted(run.scores.items())
    return {str(t): fairness.mean(number(found.get(run.headline)) for found in sets.values()) for t, sets in each}


@measure
def condition_std(run: Run, beside: Beside, metric: str) -> list[float | None]:
    """Standard deviation (ddof 0) over clients of which each has the score of its own condition (FedISM+, Table IV).

    One value per scored round: sqrt(clean corrupted) / sites times the distance of the two scores, in numbers of sites.
    """
    at_clean, at_corrupted = (_of_condition(run, which, metric).values() for which in ("clean", "corrupted"))
    clean = sum(row["kind"] == SITE_CLEAN for row in run.report["sites"].values())
    sites = len(run.report["sites"])
    factor, pairs = math.sqrt(clean * (sites - clean)) / sites, zip(at_clean, at_corrupted)
    return [None if a is None or b is None else factor * abs(a - b) for a, b in pairs]


@measure
def over_groups(run: Run, beside: Beside, which: str) -> float | None:
    """Of the groups: overall (weighted by size), uniform, gap, worst, disparity (sample sd), and the levels' two.

    "sites" is the disparity over sites, "groups" that over groups; "harmonic" and "harmonic-printed" are the two forms
    of their harmonic mean, "harmonic-worst" is 2 a b / (a + b) of the worst site's and the worst group's accuracy.
    """
    found = run.detail["groups"]
    if not found:
        return None
    worst, levels = (found.get("worst") or {}).get("value"), found.get("levels") or {}
    values = {"worst": worst, "disparity": found["disparity"]["sample"], **levels}
    values |= {"harmonic-printed": levels.get("harmonic_printed")}
    lowest = [value for value in (over_sites(run, beside, "worst", "accuracy"), number(worst)) if value is not None]
    values |= {"harmonic-worst": harmonic(*lowest) if len(lowest) == 2 else None}
    return values[which] if which in values else found.get(which)


@measure
def opportunity(run: Run, beside: Beside, which: str) -> float | None:
    """Equal opportunity over an attribute: "gap" between true-positive rates, or "worst_tpr"."""
    return ((run.detail["groups"] or {}).get("equal_opportunity") or {}).get(which)


@measure
def bytes_(run: Run, beside: Beside, than: str = "") -> float | None:
    """Bytes per site and round, up and down together; over those of the reference ``than``."""
    if than:
        own, other = (bytes_(one, beside) for one in (run, beside.references[than]))
        return own / other if own is not None and other else None
    rounds, count = run.report["rounds"], len(run.report["sites"])
    known = [value for way in ("up", "down") if (value := number(run.detail["traffic"].get(way))) is not None]
    return sum(known) / rounds / count if rounds and len(known) == 2 else None


@measure
def like_alone(run: Run, beside: Beside, which: str, than: str = "solo") -> float | None:
    """Agreement (pearson_x100, euclid) of the sites' scores with those of their own models (FedCE, Table 2)."""
    own, alone = fairness.finite(at_sites(run)), fairness.finite(at_sites(beside.references[than]))
    both = [site for site in own if site in alone]
    return _agreement(*({site: values[site] for site in both} for values in (own, alone)))[which]


@measure
def like_left_out(run: Run, beside: Beside, which: str) -> float | None:
    """Agreement (pearson_x100, euclid, cosine) of the last weights with the leave-one-out shares (FedCE, Table 3)."""
    return _agreement(final_weights(run), clipped_shares(_drops(beside)))[which]


def _agreement(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float | None]:
    """``agreement`` and "p", the two-sided p-value of Pearson's correlation; None below three sites."""
    from scipy.stats import pearsonr

    found = agreement(a, b)
    known = found["pearson_x100"] is not None and len(a) > 2
    return {**found, "p": float(pearsonr(list(a.values()), [b[site] for site in a]).pvalue) if known else None}


@measure
def without(run: Run, beside: Beside, metric: str = "", change: bool = False) -> dict[str, float | None]:
    """Site -> the mean over all sites' scores when it is left out of training; "No": nobody is. ``change``: minus that
    with all sites, below 0 where it falls, as FedCE prints it."""
    found = {site: fairness.mean(at_sites(one, metric)) for site, one in beside.without.items()}
    full = fairness.mean(at_sites(beside.full, metric)) if beside.full else None
    return {site: _minus(value, full) for site, value in found.items()} if change else {**found, "No": full}


@measure
def shares(run: Run, beside: Beside) -> dict[str, float]:
    """Site -> its share of these drops."""
    return clipped_shares(_drops(beside))


@measure
def examples(run: Run, beside: Beside, share: bool = False) -> dict[str, float | None]:
    """Site -> its training examples, or their share of all."""
    counts = {site: number(row["n_train"]) or 0.0 for site, row in run.report["sites"].items()}
    total = sum(counts.values())
    return {site: count / total if share and total else count for site, count in counts.items()}


@measure
def relative_weights(run: Run, beside: Beside, whole: bool) -> dict[str, float | None]:
    """Site -> its weight in the last round among the sites but the one that is left out, made to sum to 1: of the
    ``whole`` run with all sites, else of the one in which the site has left."""
    if beside.full is None or not beside.without:
        return {}
    (gone, left), *_ = beside.without.items()
    found = {s: weight for s, weight in final_weights(beside.full if whole else left).items() if s != gone}
    total = sum(found.values())
    return {site: weight / total for site, weight in found.items()} if total else {}


@measure
def rounds(run: Run, beside: Beside, which: str = "mean") -> dict[str, float | None]:
    """Round -> the received model's metric on the sites' validation splits: "mean", "worst" or "std" (ddof 0)."""
    higher = bool(run.detail["higher_is_better"])
    read = {"mean": fairness.mean, "std": fairness.std, "worst": lambda values: fairness.worst(values, higher)[1]}
    return {str(row["round"]): read[which](row["metric"]) for row in run.detail["rounds"]}


@measure
def note_rounds(run: Run, beside: Beside, name: str, site: int = 0, of_one: bool = False) -> dict[str, float | None]:
    """What the method's rule noted under ``name`` over the rounds, or 1 minus it (``of_one``).

    ``site``: which site's, the first one's number being 1: {round: value}; 0: all sites', in six rounds, of which the
    tenth is one: {"round 10, site": value}.
    """
    names, rows = list(run.report["sites"]), run.detail["rounds"]
    last = len(rows)
    wanted = {10, *(max(1, round(last * part / 5)) for part in range(1, 6))}
    found = {}
    for row in rows:
        noted = row["notes"].get(name) or {}
        values = {one: None if (v := number(noted.get(one))) is None else 1.0 - v if of_one else v for one in names}
        if site:
            found[str(row["round"])] = values[names[site - 1]] if site <= len(names) else None
        elif row["round"] in wanted:
            found |= {f"round {row['round']}, {one}": value for one, value in values.items()}
    return found


@measure
def elsewhere(run: Run, beside: Beside, options: str, which: str) -> float | None:
    """What ``Run.elsewhere`` says, test patients dealt as ``options`` say."""
    return number((run.elsewhere.get(options) or {}).get(which))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _drops(beside: Beside) -> dict[str, float]:
    if beside.full is None:
        return {}
    changes = without(beside.full, beside, change=True)
    return {site: -value for site, value in changes.items() if value is not None}
