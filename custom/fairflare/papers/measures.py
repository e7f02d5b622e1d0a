# SPDX-License-Identifier: Apache-2.0
"""What a column of a paper's table says of one finished run.

A measure gives a number, or None, where it fills one column, and {name: number} where it fills several (sites, domains,
groups, rounds). Several numbers of one name are those of one run, as where a paper takes the last five rounds into its
standard deviation. A site that keeps a model of its own is measured on that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fairflare.report import fairness
from fairflare.report.agreement import agreement, leave_one_out_shares
from fairflare.report.groups import harmonic
from fairflare.report.values import number

Json = Mapping[str, Any]
Values = dict[str, list[float]]
SITE_CLEAN = "clean"
"""How a task with corrupted sites describes one that is not."""


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        scores: round -> shared test set -> metric -> value, of the rounds that were scored.
        elsewhere: options of the task ("alpha=1") -> mean, std_sample and more of the final model on test patients that
            are dealt to the sites as these options say.
    """

    report: Json
    scores: Mapping[int, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    elsewhere: Mapping[str, Json] = field(default_factory=dict)

    @property
    def detail(self) -> Json:
        found: Json = self.report["detail"]
        return found

    @property
    def headline(self) -> str:
        return str(self.detail["headline"])


@dataclass(frozen=True)
class Beside:
    """Other runs of the same seed and data that a column compares with.

    Attributes:
        references: METHOD label -> its run.
        without: site -> the run of the row that ``left_out`` names, trained without that site.
        full: that row's run with every site.
    """

    references: Mapping[str, Run] = field(default_factory=dict)
    without: Mapping[str, Run] = field(default_factory=dict)
    full: Run | None = None


Measured = float | list[float | None] | None
Measure = Callable[..., Measured | Mapping[str, Measured]]
F = TypeVar("F", bound=Callable[..., Any])
MEASURES: dict[str, Measure] = {}
"""Name -> function of (run, beside, further arguments by name)."""


def measure(name: str) -> Callable[[F], F]:
    """Give a function the name that declarations use."""

    def named(function: F) -> F:
        MEASURES[name] = function
        return function

    return named


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


@measure("sites")
def sites(run: Run, beside: Beside, metric: str = "") -> dict[str, float | None]:
    return at_sites(run, metric)


@measure("over-sites")
def over_sites(run: Run, beside: Beside, which: str, metric: str = "", ddof: int = 0) -> float | None:
    """Mean, worst, std, gap or jain."""
    values = at_sites(run, metric)
    if which == "worst":
        return fairness.worst(values, bool(run.detail["higher_is_better"]))[1]
    if which == "std":
        return fairness.std(values, 1 if ddof else 0)
    return {"mean": fairness.mean, "gap": fairness.gap, "jain": fairness.jain}[which](values)


@measure("domains")
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


@measure("shared")
def shared(run: Run, beside: Beside, which: str) -> float | None:
    """The final model's headline metric on the shared test set ``which``."""
    return next((number(row["value"]) for row in run.detail["test_sets"]["rows"] if row["name"] == which), None)


@measure("over-domains")
def over_domains(run: Run, beside: Beside, which: str, metric: str = "", ddof: int = 1) -> float | None:
    values = domains(run, beside, metric)
    return fairness.mean(values) if which == "mean" else fairness.std(values, 1 if ddof else 0)


@measure("condition")
def condition(run: Run, beside: Beside, which: str, metric: str) -> list[float | None]:
    """A metric on the task's clean or corrupted test set, one value for each of the last rounds."""
    name = run.detail["test_sets"]["last"]["names"].get(which)
    return [number(sets[name].get(metric)) for _, sets in sorted(run.scores.items()) if name in sets]


@measure("condition-std")
def condition_std(run: Run, beside: Beside, metric: str) -> float | None:
    """Standard deviation over clients of which each is given the score of its own condition (FedISM+, Table IV)."""
    at_clean, at_corrupted = (_mean(condition(run, beside, which, metric)) for which in ("clean", "corrupted"))
    if at_clean is None or at_corrupted is None:
        return None
    clean = sum(row["kind"] == SITE_CLEAN for row in run.report["sites"].values())
    return fairness.client_std(at_clean, at_corrupted, clean, len(run.report["sites"]) - clean)


@measure("groups")
def groups(run: Run, beside: Beside) -> dict[str, float | None]:
    """Group of patients -> its accuracy, pooled over sites."""
    return {row["group"]: row["value"] for row in (run.detail["groups"] or {"rows": []})["rows"]}


@measure("over-groups")
def over_groups(run: Run, beside: Beside, which: str) -> float | None:
    """Of the groups: overall (weighted by size), uniform, gap, worst, disparity (sample sd), and the levels' two.

    "sites" is the disparity over sites, "groups" that over groups; "harmonic" and "harmonic-printed" are the two forms
    of their harmonic mean, "harmonic-accuracy" that of the mean accuracies over sites and over groups.
    """
    found = run.detail["groups"]
    if not found:
        return None
    worst, levels = (found.get("worst") or {}).get("value"), found.get("levels") or {}
    values = {"worst": worst, "disparity": found["disparity"]["sample"], **levels}
    values |= {"harmonic-printed": levels.get("harmonic_printed")}
    accuracies = [fairness.mean(at_sites(run, "accuracy")), number(found.get("uniform"))]
    known = [value for value in accuracies if value is not None]
    values |= {"harmonic-accuracy": harmonic(*known) if len(known) == 2 else None}
    return values[which] if which in values else found.get(which)


@measure("opportunity")
def opportunity(run: Run, beside: Beside, which: str) -> float | None:
    """Equal opportunity over an attribute: "gap" between true-positive rates, or "worst_tpr"."""
    return ((run.detail["groups"] or {}).get("equal_opportunity") or {}).get(which)


@measure("bytes")
def sent(run: Run, beside: Beside, way: str = "up") -> float | None:
    """Bytes per site and round, "up" from a site or "down" to it."""
    rounds, count = run.report["rounds"], len(run.report["sites"])
    total = number(run.detail["traffic"].get(way))
    return None if total is None or not rounds else total / rounds / count


@measure("extra-bytes")
def extra(run: Run, beside: Beside, than: str, way: str = "up") -> float | None:
    """Bytes per site and round beyond those of a reference."""
    own, other = (sent(one, beside, way) for one in (run, beside.references[than]))
    return None if own is None or other is None else own - other


@measure("seconds")
def seconds(run: Run, beside: Beside) -> float | None:
    """Seconds per round between the server's question and the last answer, all sites on this machine."""
    phases, rounds = run.detail["timing"]["phases"], run.report["rounds"]
    return sum(phases.values()) / rounds if rounds and phases else None


@measure("like-alone")
def like_alone(run: Run, beside: Beside, which: str, than: str = "solo") -> float | None:
    """Agreement (pearson_x100, euclid) of the sites' scores with those of their own models (FedCE, Table 2)."""
    own, alone = fairness.finite(at_sites(run)), fairness.finite(at_sites(beside.references[than]))
    both = [site for site in own if site in alone]
    return agreement(*({site: values[site] for site in both} for values in (own, alone)))[which]


@measure("like-left-out")
def like_left_out(run: Run, beside: Beside, which: str) -> float | None:
    """Agreement (pearson_x100, euclid, cosine) of the last weights with the leave-one-out shares (FedCE, Table 3)."""
    return agreement(final_weights(run), leave_one_out_shares(_drops(beside)))[which]


@measure("drops")
def drops(run: Run, beside: Beside, prefix: str = "") -> dict[str, float]:
    """Site -> how much the mean over all sites' scores falls when it is left out of training."""
    return {prefix + site: value for site, value in _drops(beside).items()}


@measure("shares")
def shares(run: Run, beside: Beside, prefix: str = "") -> dict[str, float]:
    """Site -> its share of these drops."""
    return {prefix + site: value for site, value in leave_one_out_shares(_drops(beside)).items()}


@measure("weights")
def weights(run: Run, beside: Beside, prefix: str = "") -> dict[str, float]:
    """Site -> its weight in the last round."""
    return {prefix + site: value for site, value in final_weights(run).items()}


@measure("rounds")
def rounds(run: Run, beside: Beside, which: str = "mean") -> dict[str, float | None]:
    """Round -> the received model's metric on the sites' validation splits, "mean" or "worst" of them."""
    rows = run.detail["rounds"]
    return {str(row["round"]): row["mean"] if which == "mean" else row["worst"]["value"] for row in rows}


@measure("site-weights")
def site_weights(run: Run, beside: Beside, index: int) -> dict[str, float | None]:
    """Round -> the weight of a site, the first one's index being 1."""
    site = dict(enumerate(run.report["sites"], 1)).get(index, "")
    return {str(row["round"]): row["weights"].get(site) for row in run.detail["rounds"]}


@measure("note")
def note(run: Run, beside: Beside, name: str) -> dict[str, float | None]:
    """Site -> what the method's rule noted under ``name`` in the last round, of layers their mean."""
    found: Json = next((one for one in run.detail["notes"] if one.get("name") == name), {})
    values = {str(row["name"]): [number(row.get("last"))] for row in found.get("rows") or ()}
    for columns in (found.get("table") or {}).values():
        for site, value in columns.items():
            values.setdefault(str(site), []).append(number(value))
    return {site: mean for site, known in values.items() if (mean := _mean(known)) is not None}


@measure("elsewhere")
def elsewhere(run: Run, beside: Beside, options: str, which: str) -> float | None:
    """Mean, worst, std, std_sample or gap over sites, test patients dealt as ``options`` say."""
    return (run.elsewhere.get(options) or {}).get(which)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _drops(beside: Beside) -> dict[str, float]:
    if beside.full is None:
        return {}
    full = fairness.mean(at_sites(beside.full))
    found = {site: fairness.mean(at_sites(run)) for site, run in beside.without.items()}
    return {site: full - value for site, value in found.items() if full is not None and value is not None}
