# SPDX-License-Identifier: Apache-2.0
"""What sites contribute, from the scores of runs without them: leave-one-out and Shapley over seeds, with agreement.

How well two share vectors agree is said as in FedCE's Table 3 (Jiang et al., CVPR 2023,
https://arxiv.org/abs/2303.16520), between a method's weights and leave-one-out shares. What is undefined is None.

Pure functions on scores and shares. Scores are those of retrained federations, so that a coalition's is what its sites
get on their own, and not what a model trained with all of them loses.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from fairflare.report.fairness import corrected, holm, mean_ci, paired
from fairflare.report.values import label, plural
from fairflare_lab.functional import shapley as functional
from fairflare_lab.functional.shapley import Coalition
from fairflare_lab.report.agreements import agreements, clipped_shares
from fairflare_lab.report.table_files import Cell, Column, Form, Row, Table

Json = dict[str, Any]
EXACT_TO = 6
"""Up to this many sites all 2^K coalitions are trained."""


def joining_orders(sites: Sequence[str], permutations: int, seed: int) -> list[list[str]]:
    """Random orders in which the sites may join, the same for the same seed; [] where coalitions are enumerated."""
    if len(sites) <= EXACT_TO:
        return []
    rng = random.Random(f"{seed} joining orders")
    return [rng.sample(list(sites), len(sites)) for _ in range(permutations)]


def coalitions(sites: Sequence[str], orders: Sequence[Sequence[str]]) -> list[Coalition]:
    """The coalitions to train, the smallest first: all but the empty one, or those that ``orders`` go through."""
    found = functional.prefixes(orders) if orders else functional.coalitions(sites)
    return sorted(found, key=lambda team: (len(team), sorted(team)))


def shapley_of(
    sites: Sequence[str], orders: Sequence[Sequence[str]], utilities: Mapping[Coalition, float]
) -> dict[str, dict[str, float | None]]:
    """Site -> {"value", "se"}: exact (se 0) without ``orders``, else ``sampled_shapley``."""
    if orders:
        return sampled_shapley(orders, utilities)
    exact = shapley(utilities)
    return {site: {"value": exact[site], "se": 0.0} for site in sites}


def over_seeds(found: Sequence[Json], labels: Sequence[str]) -> Json:
    """What several seeds say together.

    Args:
        found: one result per seed: sites (rows with site and drop, which is above 0 where the score is worse without
            it), methods (label -> site -> weight, and "examples"), shapley (site -> value and se) or None.

    Returns:
        leave_one_out: site -> drop (``fairness.paired`` with p_holm over the sites), share (mean and interval) and
        verdict ("helps", "harms" or "cannot be told", see ``fairness.corrected``);
        shapley: site -> value, share (mean and interval over seeds) and se (of the sampling, mean over seeds), or None;
        agreement: label -> "leave_one_out" and "shapley" -> measure -> mean and interval over seeds.
    """
    sites = [row["site"] for row in found[0]["sites"]]
    rows = [{row["site"]: row for row in one["sites"]} for one in found]
    drops = {site: paired(row[site]["drop"] for row in rows) for site in sites}
    adjusted = holm({site: drop["p"] for site, drop in drops.items()})
    words = {"better": "helps", "worse": "harms", "cannot be told": "cannot be told"}
    loo = {}
    for site in sites:
        drop, share = {**drops[site], "p_holm": adjusted[site]}, mean_ci(row[site]["share"] for row in rows)
        loo[site] = {"drop": drop, "share": share, "verdict": words[corrected(drop, True)]}
    kinds = ("leave_one_out", "shapley")
    agreed = {label: {kind: _measures(found, label, kind) for kind in kinds} for label in labels}
    return {"leave_one_out": loo, "shapley": _shapley(found, sites), "agreement": agreed}


def contribution_tables(found: Mapping[str, Any]) -> list[Table]:
    """What ``fairflare contribution`` found: a row per site, and the agreement of every method's weights."""
    together, how = found["together"], found["shapley_by"]
    columns = [
        Column("drop", "Drop without it", group="Leave-one-out", form=Form(signed=True)),
        Column("p_holm", "p (Holm)", group="Leave-one-out"),
        Column("loo_share", "Share", group="Leave-one-out"),
        Column("verdict", "By interval and Holm's p", group="Leave-one-out", words=True),
    ]
    if together["shapley"]:
        columns += [Column("value", "Value", group="Shapley"), Column("se", "Sampling error", group="Shapley")]
        columns += [Column("shapley_share", "Share", group="Shapley")]
    rows = []
    for site, one in together["leave_one_out"].items():
        cells = {"drop": Cell.of(one["drop"], sd=False), "p_holm": Cell(one["drop"]["p_holm"])}
        cells |= {"loo_share": Cell.of(one["share"]), "verdict": Cell.text(one["verdict"])}
        if together["shapley"]:
            value = together["shapley"][site]
            cells |= {"value": Cell.of(value["value"]), "se": Cell(value["se"])}
            cells |= {"shapley_share": Cell.of(value["share"])}
        rows.append(Row(site, site, cells))
    drawn = "" if not how or how["exact"] else f" Shapley values are of {how['permutations']} drawn orders per seed."
    caption = (
        f"Score: {label(found['metric'], {})}, mean over all sites' own test splits, of federations trained without "
        f"the site (drop) and with coalitions alone (Shapley); mean over {plural(len(found['seeds']), 'seed')}, ± "
        f"standard deviation (ddof 1), brackets: 95 % interval (Student t).{drawn} Shares count what is negative as 0."
    )
    sites = Table("sites", "Sites", columns, rows, "Site", caption)
    return [sites, _agreement_table(together["agreement"])]


def _agreement_table(found: Mapping[str, Any]) -> Table:
    titles = {"pearson_x100": "Pearson x 100", "spearman": "Spearman", "cosine": "Cosine", "euclid": "Distance"}
    groups = {"leave_one_out": "Leave-one-out shares", "shapley": "Shapley shares"}
    used = [kind for kind in groups if any(kinds[kind] is not None for kinds in found.values())]
    pairs = [*product(used, titles)]
    columns = [
        Column(f"{kind}-{name}", titles[name], groups[kind], "lower" if name == "euclid" else "higher")
        for kind, name in pairs
    ]
    rows = [Row(label, label, {f"{a}-{b}": Cell.of(kinds[a][b]) for a, b in pairs}) for label, kinds in found.items()]
    caption = "Weights of the last round (examples: shares of the examples) beside what the sites contribute."
    return Table("agreement", "Agreement of weights with contributions", columns, rows, caption=caption)


def shapley_shares(values: Mapping[str, Mapping[str, float | None]]) -> dict[str, float]:
    return clipped_shares({site: float(found["value"] or 0.0) for site, found in values.items()})


def _shapley(found: Sequence[Json], sites: Sequence[str]) -> Json | None:
    if any(one["shapley"] is None for one in found):
        return None
    shares = [shapley_shares(one["shapley"]) for one in found]
    together = {}
    for site in sites:
        value, se = (mean_ci(one["shapley"][site][key] for one in found) for key in ("value", "se"))
        together[site] = {"value": value, "share": mean_ci(share[site] for share in shares), "se": se["mean"]}
    return together


def _measures(found: Sequence[Json], label: str, kind: str) -> Json | None:
    measured = []
    for one in found:
        weights = one["methods"][label]
        if kind == "leave_one_out":
            measured.append(agreements(weights, clipped_shares({row["site"]: row["drop"] for row in one["sites"]})))
        elif one["shapley"] is not None:
            measured.append(agreements(weights, shapley_shares(one["shapley"])))
    return {name: mean_ci(one[name] for one in measured) for name in measured[0]} if measured else None


def shapley(utilities: Mapping[Coalition, float]) -> dict[str, float]:
    """Exact Shapley values phi_i = sum over S without i of |S|! (K - |S| - 1)! / K! (U(S + i) - U(S)).

    They sum to U(all) - U(none) and may be negative; ``clipped_shares`` makes weights of them. Shapley, "A value for
    n-person games", 1953. ``utilities``: of all 2^K coalitions, the empty one included; ValueError where one is
    missing.
    """
    sites = sorted(set().union(*utilities)) if utilities else []
    _require([frozenset(), *functional.coalitions(sites)] if sites else [], utilities)
    return functional.exact(sites, utilities)


def sampled_shapley(
    orders: Sequence[Sequence[str]], utilities: Mapping[Coalition, float]
) -> dict[str, dict[str, float | None]]:
    """Site -> value, and se (of the sampling; None for a single order), from some orders in which the sites may join.

    The mean over the orders of what a site adds to those before it (Castro et al., Computers & Operations Research 36,
    2009): its expectation is ``shapley``. Every order's additions sum to U(all) - U(none), so the means do, too.
    ValueError where a coalition is missing.
    """
    _require([frozenset(), *functional.prefixes(orders)] if orders else [], utilities)
    added = functional.additions(orders, utilities)
    return {site: {"value": math.fsum(found) / len(found), "se": _error(found)} for site, found in added.items()}


def _error(values: Sequence[float]) -> float | None:
    """Standard error of the mean."""
    if len(values) < 2:
        return None
    centre = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1) / len(values))


def _require(teams: Iterable[Coalition], utilities: Mapping[Coalition, float]) -> None:
    for team in teams:
        if team not in utilities:
            raise ValueError(f"utilities: expected all coalitions, got none for {sorted(team)}")
