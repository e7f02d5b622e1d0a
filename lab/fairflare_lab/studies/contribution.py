# SPDX-License-Identifier: Apache-2.0
"""What each site is worth, measured: the same federation with all sites, without each of them, and with coalitions.

Coalitions are retrained, not put together from the updates of one run: a coalition's score is then what its sites get
by themselves, for any rule and trainer, and finished runs are reused one by one. A coalition's sites are those of the
selector ``list``; whoever is not in it is only evaluated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fairflare.core.errors import UserError
from fairflare.engine.files import save_json
from fairflare.engine.setup.assembly import site_names
from fairflare.engine.setup.config import RunConfig
from fairflare.report.audit_reader import PERSONAL
from fairflare.report.fairness import mean
from fairflare.report.personal import USED
from fairflare.studies.folders import CONTRIBUTION as RESULT
from fairflare.studies.labels import LONGEST_BYTES, folder_name
from fairflare.studies.runs import run_once
from fairflare.studies.study import Study, config_of, facts, leaving_out
from fairflare_lab.functional.shapley import Coalition
from fairflare_lab.report import contribution as measures
from fairflare_lab.report.contribution import contribution_tables
from fairflare_lab.report.table_files import write_tables
from fairflare_lab.studies.mixtures import initial_scores

ALL, WITHOUT, ONLY, WEIGHTS = "all-sites", "without-", "only-", "weights-"
MOST_RUNS = 2_000
Json = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Question:
    """What is measured: ``method`` with and without sites, ``others`` with all sites alone, for their weights."""

    method: str
    task: str
    seeds: tuple[int, ...]
    others: tuple[str, ...] = ()
    shapley: bool = False
    """Whether coalitions are trained, too."""
    permutations: int = 10
    """Orders that are drawn where there are more than six sites, at least 2."""
    fixed_data: bool = False
    choices: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Rounds, sites and values of ``make_config``."""

    def config(self, label: str, seed: int, over: Mapping[str, Any] | None = None) -> RunConfig:
        """A run of the method ``label`` with one seed; ``over``: settings that win."""
        draw = len(self.seeds) > 1 and not self.fixed_data
        return config_of(label, self.task, seed, self.choices, draw=draw, over=over)


def measure_contribution(
    question: Question, folder: Path, *, force: bool = False, workers: int | None = 1
) -> dict[str, Any]:
    """Train everything that the question needs, in process, and say what each site contributes.

    A site's drop is the score with all sites minus the score without it, in the better direction; the score is the mean
    over all K sites' own test splits, the left-out site's too, of the task's headline metric. Shares are drops over
    their sum, gains as 0 (Jiang et al., FedCE, arXiv:2303.16520, supplement). Shapley values are exact for up to six
    sites, from drawn orders of joining beyond; nobody's score is that of the initial model. Runs that are found
    finished in ``folder`` are not run again, and one that was cut short goes on; the folder gets ``contribution.json``.

    Returns method, task, metric, seeds, runs (one result per seed, see ``contribution_of``) and what they say together,
    see ``report.contribution.over_seeds``; for one seed also its own result at the top level.

    Raises UserError: fewer than three sites, a setting that this command varies, or a folder that holds something else.
    """
    plans = {seed: _Plan(question, seed) for seed in question.seeds}
    runs = {name: config for plan in plans.values() for name, config in plan.runs.items()}
    if (n := len(runs)) > MOST_RUNS:
        raise UserError(f"contribution: expected at most {MOST_RUNS} runs, got {n}: fewer seeds or permutations")
    one, kinds = partial(run_once, force=force), (ALL, WITHOUT, ONLY, WEIGHTS)
    with Study(runs).finished(folder, one, workers=workers, is_part=lambda name: name.startswith(kinds)) as reports:
        found = [plan.result(reports) for plan in plans.values()]
        result = _joined(question, found)
        save_json(folder / RESULT, result)
        title, tables = f"Contribution of sites: {result['method']} on {result['task']}", contribution_tables(result)
        write_tables(folder, Path(RESULT).stem, title, tables, facts=facts(), with_json=False)
    return result


class _Plan:
    """The runs of one seed, and what they say."""

    def __init__(self, question: Question, seed: int) -> None:
        self._question, self._seed = question, seed
        self._suffix = f"-seed{seed}" if len(question.seeds) > 1 else ""
        config = question.config(question.method, seed)
        if config.leave_out:
            raise UserError("leave_out: is what this command varies; do not set it")
        self.config, self.sites = config, site_names(config)
        if len(self.sites) < 3:
            raise UserError(f"contribution: expected at least 3 sites, got {len(self.sites)}")
        if question.shapley and config.selector != "all":
            raise UserError("selector: is what --shapley varies; do not set it")
        self.orders = measures.joining_orders(self.sites, question.permutations, seed) if question.shapley else []
        self.teams = measures.coalitions(self.sites, self.orders) if question.shapley else []
        without = leaving_out(config, self.sites)
        self.runs = {self._name(ALL): config}
        self.runs |= {self._name(f"{WITHOUT}{site}"): one for site, one in without.items()} | self._coalitions()
        self.runs |= {self._weights_run(label): question.config(label, seed) for label in question.others}

    def result(self, reports: Mapping[str, Any]) -> Json:
        """The result of this seed, from the report.json of each run by name."""
        own = {ALL: reports[self._name(ALL)]}
        own |= {f"{WITHOUT}{site}": reports[self._name(f"{WITHOUT}{site}")] for site in self.sites}
        found = contribution_of(own, self.sites)
        methods = {self._question.method: _weights(own[ALL], self.sites)}
        for label in self._question.others:
            methods[label] = _weights(reports[self._weights_run(label)], self.sites)
        methods["examples"] = {row["site"]: row["data_share"] for row in found["sites"]}
        return {**found, "methods": methods, "shapley": self._shapley(reports) if self.teams else None}

    def _shapley(self, reports: Mapping[str, Any]) -> Json:
        metric = reports[self._name(ALL)]["fairness"]["metric"]
        sign = _sign(reports[self._name(ALL)])
        utilities = {team: sign * _score(reports[self._run_of(team)], metric) for team in self.teams}
        untrained = mean(initial_scores(self.config))
        if untrained is None:
            raise UserError(f"contribution: no site has {metric} on its test split")
        utilities[frozenset()] = sign * untrained
        return measures.shapley_of(self.sites, self.orders, utilities)

    def _coalitions(self) -> dict[str, RunConfig]:
        found = {}
        for team in (team for team in self.teams if len(team) < len(self.sites) - 1):
            names = [site for site in self.sites if site in team]
            chosen = {"selector": "list", "select.sites": ",".join(names)}
            chosen["min_sites"] = str(min(self.config.min_sites, len(names)))
            found[self._run_of(team)] = self._question.config(self._question.method, self._seed, chosen)
        return found

    def _run_of(self, team: Coalition) -> str:
        """The run whose score a coalition has; those that leave out nobody or one site are made anyway."""
        missing = [site for site in self.sites if site not in team]
        if not missing:
            return self._name(ALL)
        if len(missing) == 1:
            return self._name(f"{WITHOUT}{missing[0]}")
        return self._name(ONLY + "+".join(site for site in self.sites if site in team))

    def _weights_run(self, label: str) -> str:
        return self._name(WEIGHTS + folder_name(label))

    def _name(self, name: str) -> str:
        """A run's folder: with its sites' names, as long as a file system takes them."""
        return (name if len(name.encode()) <= LONGEST_BYTES else folder_name(name)) + self._suffix


def contribution_of(reports: Mapping[str, Any], sites: Sequence[str]) -> dict[str, Any]:
    """One seed's leave-one-out from the report.json of each run, by the run's name: method, task, seed, metric, score;
    sites: score_without, drop, share, weight (of the last round with all sites) and data_share of each; agreement of
    "weights" and "examples" with the shares (Pearson x 100, Euclidean distance, cosine, Spearman).
    """
    full = reports[ALL]
    metric = full["fairness"]["metric"]
    score, weights = _score(full, metric), _weights(full, sites)
    without = {site: _score(reports[f"{WITHOUT}{site}"], metric) for site in sites}
    drops = {site: _sign(full) * (score - without[site]) for site in sites}
    shares = measures.clipped_shares(drops)
    total = sum(full["sites"][site]["n_train"] for site in sites)
    examples = {site: full["sites"][site]["n_train"] / total for site in sites}
    columns = {"score_without": without, "drop": drops, "share": shares, "weight": weights, "data_share": examples}
    rows = [{"site": site, **{key: column[site] for key, column in columns.items()}} for site in sites]
    agreed = {"weights": measures.agreements(weights, shares), "examples": measures.agreements(examples, shares)}
    about = {key: full[key] for key in ("method", "task", "seed")}
    return {**about, "metric": metric, "score": score, "sites": rows, "agreement": agreed}


def _joined(question: Question, found: Sequence[Json]) -> Json:
    labels = [question.method, *question.others, "examples"]
    exact = not measures.joining_orders([row["site"] for row in found[0]["sites"]], 1, 0)
    about = {key: found[0][key] for key in ("method", "task", "metric")}
    how = {"exact": exact, "permutations": None if exact else question.permutations} if question.shapley else None
    alone = {key: value for key, value in found[0].items() if key != "shapley"} if len(found) == 1 else {}
    together = {"seeds": list(question.seeds), "runs": list(found), "shapley_by": how}
    return {**alone, **about, **together, "together": measures.over_seeds(found, labels)}


def _weights(report: Mapping[str, Any], sites: Sequence[str]) -> dict[str, float]:
    """The aggregation weights of the last round."""
    return {site: (report["sites"][site]["weight"] or [None])[-1] or 0.0 for site in sites}


def _sign(report: Mapping[str, Any]) -> int:
    """-1 where a lower score is the better one."""
    return 1 if (report.get("detail") or {}).get("higher_is_better", True) else -1


def _score(report: Mapping[str, Any], metric: str) -> float:
    own = (report.get("detail") or {}).get(USED) == PERSONAL
    used = {site: own and row["personal_metrics"] or row["metrics"] for site, row in report["sites"].items()}
    value = mean({site: metrics.get(metric) for site, metrics in used.items()})
    if value is None:
        raise UserError(f"contribution: no site has {metric} on its test split")
    return value
