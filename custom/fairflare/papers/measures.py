# SPDX-License-Identifier: Apache-2.0
"""What a column says of a finished run: pure functions from its report to values, one or several for one seed.

A measure returns {name: values}: one name, "", where it fills one column, and several (sites, domains, groups,
rounds) where it fills as many. The values of one name are those of one run: usually one, five where a paper takes the
last five rounds into its standard deviation. A site that keeps a model of its own is measured on that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairflare.report import fairness
from fairflare.report.agreement import agreement, leave_one_out_shares
from fairflare.report.fairness import client_std
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


Measure = Callable[..., Values]
MEASURES: dict[str, Measure] = {}
"""Name -> function of (run, beside, further arguments by name)."""


def measure(name: str) -> Callable[[Measure], Measure]:
    """Give a function the name that declarations use."""

    def named(function: Measure) -> Measure:
        MEASURES[name] = function
        return function

    return named


def at_sites(run: Run, metric: str = "", split: str = "") -> dict[str, float | None]:
    """Site -> a metric of the final model on the site's own split ("" for test, "val"), its personal model's if any."""
    key = f"{split}_metrics" if split else "metrics"
    found = {}
    for site, row in run.report["sites"].items():
        held = row.get(f"personal_{key}") or row.get(key) or {}
        found[site] = number(held.get(metric or run.headline))
    return found


def final_weights(run: Run) -> dict[str, float]:
    """Site -> its aggregation weight in the last round, 0 where it had none."""
    return {site: number((row["weight"] or [None])[-1]) or 0.0 for site, row in run.report["sites"].items()}


@measure("sites")
def sites(run: Run, beside: Beside, metric: str = "", split: str = "") -> Values:
    return {site: _one(value) for site, value in at_sites(run, metric, split).items()}


@measure("over-sites")
def over_sites(run: Run, beside: Beside, which: str, metric: str = "", ddof: int = 0) -> Values:
    """Mean, worst, std, gap or jain over sites."""
    values, higher = at_sites(run, metric), bool(run.detail["higher_is_better"])
    found: dict[str, Callable[[], float | None]] = {
        "mean": lambda: fairness.mean(values),
        "worst": lambda: fairness.worst(values, higher)[1],
        "std": lambda: fairness.std(values, 1 if ddof else 0),
        "gap": lambda: fairness.gap(values),
        "jain": lambda: fairness.jain(values),
    }
    return {"": _one(found[which]())}


@measure("domains")
def domains(run: Run, beside: Beside, metric: str = "") -> Values:
    """A column per shared test set: its mean over the last rounds that were scored."""
    return {name: _one(value) for name, value in _domains(run, metric).items()}


@measure("over-domains")
def over_domains(run: Run, beside: Beside, which: str, metric: str = "", ddof: int = 1) -> Values:
    values = _domains(run, metric)
    return {"": _one(fairness.mean(values) if which == "mean" else fairness.std(values, 1 if ddof else 0))}


@measure("condition")
def condition(run: Run, beside: Beside, which: str, metric: str) -> Values:
    """A metric on the task's clean or corrupted test set, one value for each of the last rounds."""
    name = run.detail["test_sets"]["last"]["names"].get(which)
    found = [number(sets[name].get(metric)) for _, sets in sorted(run.scores.items()) if name in sets]
    return {"": [value for value in found if value is not None]}


@measure("condition-std")
def condition_std(run: Run, beside: Beside, metric: str) -> Values:
    """Standard deviation over clients of which each is given the score of its own condition (FedISM+, Table IV)."""
    ends = [condition(run, beside, which, metric)[""] for which in ("clean", "corrupted")]
    if not all(ends):
        return {"": []}
    clean = sum(row["kind"] == SITE_CLEAN for row in run.report["sites"].values())
    at_clean, at_corrupted = (sum(values) / len(values) for values in ends)
    return {"": [client_std(at_clean, at_corrupted, clean, len(run.report["sites"]) - clean)]}


@measure("groups")
def groups(run: Run, beside: Beside) -> Values:
    found = run.detail["groups"] or {"rows": []}
    return {row["group"]: _one(row["value"]) for row in found["rows"]}


@measure("over-groups")
def over_groups(run: Run, beside: Beside, which: str) -> Values:
    """Of the groups: overall (weighted by size), uniform, gap, worst, disparity (sample sd), and the levels' two.

    "sites" is the disparity over sites, "groups" that over groups; "harmonic" and "harmonic-printed" are the two forms
    of their harmonic mean, "harmonic-accuracy" that of the mean accuracies over sites and over groups.
    """
    found = run.detail["groups"]
    if not found:
        return {"": []}
    worst, levels = (found.get("worst") or {}).get("value"), found.get("levels") or {}
    values = {"worst": worst, "disparity": found["disparity"]["sample"], **levels}
    values |= {"harmonic-printed": levels.get("harmonic_printed")}
    accuracies = [fairness.mean(at_sites(run, "accuracy")), number(found.get("uniform"))]
    known = [value for value in accuracies if value is not None]
    values |= {"harmonic-accuracy": harmonic(*known) if len(known) == 2 else None}
    return {"": _one(values[which] if which in values else found.get(which))}


@measure("opportunity")
def opportunity(run: Run, beside: Beside, which: str) -> Values:
    """Equal opportunity over an attribute: "gap" between true-positive rates, or "worst_tpr"."""
    found = (run.detail["groups"] or {}).get("equal_opportunity") or {}
    return {"": _one(found.get(which))}


@measure("bytes")
def sent(run: Run, beside: Beside, way: str = "up") -> Values:
    """Bytes per site and round, "up" from a site or "down" to it."""
    rounds, count = run.report["rounds"], len(run.report["sites"])
    total = number(run.detail["traffic"].get(way))
    return {"": _one(None if total is None or not rounds else total / rounds / count)}


@measure("extra-bytes")
def extra(run: Run, beside: Beside, than: str, way: str = "up") -> Values:
    """Bytes per site and round beyond those of a reference."""
    own, other = (sent(one, beside, way)[""] for one in (run, beside.references[than]))
    return {"": [own[0] - other[0]] if own and other else []}


@measure("seconds")
def seconds(run: Run, beside: Beside) -> Values:
    """Seconds per round between the server's question and the last answer, all sites on this machine."""
    phases, rounds = run.detail["timing"]["phases"], run.report["rounds"]
    return {"": _one(sum(phases.values()) / rounds if rounds and phases else None)}


@measure("like-alone")
def like_alone(run: Run, beside: Beside, which: str, than: str = "solo") -> Values:
    """Agreement (pearson_x100, euclid) of the sites' scores with those of their own models (FedCE, Table 2)."""
    own, alone = at_sites(run), at_sites(beside.references[than])
    both = {site: (a, alone[site]) for site, a in own.items() if a is not None and alone.get(site) is not None}
    pairs = [{site: float(pair[i] or 0.0) for site, pair in both.items()} for i in (0, 1)]
    return {"": _one(agreement(*pairs)[which])}


@measure("like-left-out")
def like_left_out(run: Run, beside: Beside, which: str) -> Values:
    """Agreement (pearson_x100, euclid, cosine) of the last weights with the leave-one-out shares (FedCE, Table 3)."""
    return {"": _one(agreement(final_weights(run), _shares(beside))[which])}


@measure("drops")
def drops(run: Run, beside: Beside, prefix: str = "") -> Values:
    """A column per site: how much the mean over all sites' scores falls when it is left out of training."""
    return {prefix + site: _one(value) for site, value in _drops(beside).items()}


@measure("shares")
def shares(run: Run, beside: Beside, prefix: str = "") -> Values:
    """A column per site: its share of these drops."""
    return {prefix + site: _one(value) for site, value in _shares(beside).items()}


@measure("weights")
def weights(run: Run, beside: Beside, prefix: str = "") -> Values:
    """A column per site: its weight in the last round."""
    return {prefix + site: _one(value) for site, value in final_weights(run).items()}


@measure("weight-of")
def weight_of(run: Run, beside: Beside, kind: str) -> Values:
    """The summed weight of the sites whose description begins with ``kind``, a column per round."""
    chosen = [site for site, row in run.report["sites"].items() if str(row["kind"]).startswith(kind)]
    rounds = run.detail["rounds"]
    return {str(row["round"]): [sum(row["weights"].get(site) or 0.0 for site in chosen)] for row in rounds}


@measure("rounds")
def rounds(run: Run, beside: Beside, which: str = "mean") -> Values:
    """A column per round: the received model's metric on the sites' validation splits, "mean" or "worst" of them."""
    found = {row["round"]: row["mean"] if which == "mean" else row["worst"]["value"] for row in run.detail["rounds"]}
    return {str(round): _one(value) for round, value in found.items()}


@measure("site-weights")
def site_weights(run: Run, beside: Beside, index: int) -> Values:
    """A column per round: the weight of a site, the first one's index being 1."""
    names = list(run.report["sites"])
    site = names[index - 1] if index <= len(names) else ""
    return {str(row["round"]): _one(row["weights"].get(site)) for row in run.detail["rounds"]}


@measure("note")
def note(run: Run, beside: Beside, name: str) -> Values:
    """A column per site: what the method's rule noted under ``name`` in the last round, of layers their mean."""
    found: Json = next((one for one in run.detail["notes"] if one.get("name") == name), {})
    values: Values = {str(row["name"]): _one(row.get("last")) for row in found.get("rows") or ()}
    for columns in (found.get("table") or {}).values():
        for site, value in columns.items():
            values.setdefault(str(site), []).extend(_one(value))
    return {site: _one(sum(known) / len(known)) for site, known in values.items() if known}


@measure("elsewhere")
def elsewhere(run: Run, beside: Beside, options: str, which: str) -> Values:
    """Mean, worst, std, std_sample or gap over sites, test patients dealt as ``options`` say."""
    return {"": _one((run.elsewhere.get(options) or {}).get(which))}


def evaluated(name: str, run: Run, beside: Beside, given: Mapping[str, Any]) -> Values:
    """What the measure ``name`` says of a run.

    Raises:
        KeyError: there is no such measure.
    """
    return MEASURES[name](run, beside, **given)


def _one(value: Any) -> list[float]:
    found = number(value)
    return [] if found is None else [found]


def _domains(run: Run, metric: str) -> dict[str, float | None]:
    """Shared test set -> mean of its metric over the rounds that were scored.

    Without shared test sets the domains are the kinds of sites, and the values those of the final model at the sites.
    """
    values: dict[str, list[float]] = {}
    for _, sets in sorted(run.scores.items()):
        for name, found in sets.items():
            values.setdefault(name, []).extend(_one(found.get(metric or run.headline)))
    of_sites = {} if values else at_sites(run, metric)
    for site, value in of_sites.items():
        values.setdefault(str(run.report["sites"][site]["kind"]), []).extend(_one(value))
    return {name: sum(found) / len(found) if found else None for name, found in values.items()}


def _drops(beside: Beside) -> dict[str, float]:
    if beside.full is None:
        return {}
    full = fairness.mean(at_sites(beside.full))
    found = {site: fairness.mean(at_sites(run)) for site, run in beside.without.items()}
    return {site: full - value for site, value in found.items() if full is not None and value is not None}


def _shares(beside: Beside) -> dict[str, float]:
    return leave_one_out_shares(_drops(beside))
