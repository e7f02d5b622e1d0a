# SPDX-License-Identifier: Apache-2.0
"""Should a hospital join, and with which model: the answer from risks out of fold, and the page that tells it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairflare.functional import combination, decision, slopes
from fairflare.functional.combination import UNLIKE, Right
from fairflare.functional.decision import Array, Benefit, Design, Hospitals, Normals
from fairflare.functional.exchange import safe_mix
from fairflare.functional.slopes import Regressed, Slopes
from fairflare.report.templates import rendered
from fairflare.report.values import signed

Json = dict[str, Any]
OWN, MIX = "own", "mix"
LEAST_SITES = 4
"""Hospitals from which on they are read together; with fewer each speaks for itself."""
LEAST_PATIENTS_EACH = 10
"""Patients of all hospitals for each coefficient, from which on a regression is asked."""
MOST_MORE = 10
"""Times a hospital's patients up to which a number of further ones is named."""
SEPARATELY = "fewer than four hospitals: each is judged by its own patients alone, and none by the others"


@dataclass(frozen=True)
class OutOfFold:
    """A hospital's patients, tested out of fold.

    Attributes:
        labels: (n,) 0 or 1.
        risks: (1 + C, R, n): the own model's, then those of the candidates.
        deployed: with it the hospital's regression says how far models are from the true risks (``slopes``), not its
            outcomes alone.
    """

    labels: Array
    risks: Array
    deployed: Deployed | None = None


@dataclass(frozen=True)
class Deployed:
    """A hospital's patients, as the models see them that are trained with all of them.

    Attributes:
        x: (n, P) features with a constant in front.
        risks: (1 + C, n): the own model's, then those of the candidates.
    """

    x: Array
    risks: Array


def answers(
    sites: Mapping[str, OutOfFold], candidates: Sequence[str], design: Design, margin: float, new_size: int = 100
) -> Json:
    """What is said to every hospital and of the federation, by the Brier score.

    Args:
        sites: hospitals with patients enough.
        candidates: names of the candidates, in the order of the risks.
        design: how patients were tested.
        margin: a loss that does not matter, for the mix of models; 0: strict.
        new_size: patients of a hospital that is not in the federation.

    Returns:
        design, candidates: name -> average, between_sd, new_hospital and sites, weights (of the candidates in the mix),
        and sites: name -> n, by ("regression" or "outcomes"), answer (a sentence), mix (share, p_harm, benefit with its
        interval) and candidates.
    """
    known = _regressions(sites)
    found = {name: _candidate(sites, c, design, new_size, known) for c, name in enumerate(candidates, 1)}
    weights, mixes = _mixes(sites, design, margin, known)
    about = {"score": "brier", "folds": design.folds, "repeats": design.repeats, "kappa": design.kappa}
    rows = {}
    for site, tested in sites.items():
        each = {name: one["sites"][site] for name, one in found.items()}
        by = "regression" if site in known else "outcomes"
        row = {"n": len(tested.labels), "by": by, "candidates": each, MIX: mixes[site]}
        rows[site] = {**row, "answer": sentence(row, candidates, weights)}
    together = {name: {k: v for k, v in one.items() if k != "sites"} for name, one in found.items()}
    mixed = dict(zip(candidates, (float(w) for w in weights), strict=True))
    note = SEPARATELY if len(sites) < LEAST_SITES else ""
    return {**about, "margin": margin, "candidates": together, "weights": mixed, "sites": rows, "note": note}


def _regressions(sites: Mapping[str, OutOfFold]) -> dict[str, Slopes]:
    """Of hospitals whose deployed models are known, where all hospitals together have patients enough for that."""
    some = {site: (one.deployed.x, one.labels) for site, one in sites.items() if one.deployed}
    many = sum(len(y) for _, y in some.values())
    if len(some) < LEAST_SITES or many < LEAST_PATIENTS_EACH * next(iter(some.values()))[0].shape[1]:
        return {}
    return dict(zip(some, slopes.Together.of(list(some.values())).each, strict=True))


def _by_regression(
    sites: Mapping[str, OutOfFold], parts: Mapping[str, Right], weights: Array, known: Mapping[str, Slopes], by: Design
) -> dict[str, Normals]:
    """The part that is right of the direction to the candidates by ``weights`` (C,), of hospitals in ``known``."""
    found, sums = {}, np.zeros(2)
    for site, of in known.items():
        assert (models := sites[site].deployed)
        found[site] = Regressed.of_models(of, models.x, models.risks[0], weights @ models.risks[1:], parts[site].q)
        sums += slopes.misfit_terms(parts[site], found[site].of, by)
    return {site: one.widened(*slopes.misfit(sums)).of for site, one in found.items()}


def _candidate(
    sites: Mapping[str, OutOfFold], c: int, design: Design, new_size: int, known: Mapping[str, Slopes]
) -> Json:
    """The probability of harm is that of the part that is right, below a half; by regression intervals are, too."""
    own = {s: decision.brier_benefit(t.labels, t.risks[0], t.risks[c], design) for s, t in sites.items()}
    if len(own) < LEAST_SITES:
        return {"sites": {site: _alone(one, design) for site, one in own.items()}}
    smooth = decision.Smoothed(np.sum([decision.moments(b.variance, [b.n]) for b in own.values()], axis=0))
    noise = {site: smooth.at([b.n]) / b.n for site, b in own.items()}
    s0 = decision.scale(len(own), sum(1 / v for v in noise.values()))
    terms = {site: decision.terms(b.mean, noise[site], decision.of_size(b.n), s0) for site, b in own.items()}
    everyone = Hospitals(s0, np.sum(list(terms.values()), axis=0))
    parts = {s: combination.part_right(t.labels, t.risks[0], t.risks[c], design) for s, t in sites.items()}
    right, rows = _posteriors(parts, design), {}
    regressed = _by_regression(sites, parts, np.eye(len(next(iter(sites.values())).risks) - 1)[c - 1], known, design)
    for site, b in own.items():
        luck = (design.factor - 1) * noise[site]
        of = everyone.without(terms[site]).given(b.mean, noise[site], decision.of_size(b.n), luck)
        part, of_part = parts[site], regressed.get(site, right[site][1])
        of = part.benefit(1.0, of_part) if site in regressed else of
        p_harm = combination.harm(of_part, part.q)
        rows[site] = _row(b, b.interval(design), of, p_harm, noise[site] * b.n, design)
    sums = np.sum([(1, b.mean, b.mean**2, design.factor * noise[s]) for s, b in own.items()], axis=0)
    new = everyone.new(decision.of_size(new_size), (design.factor - 1) * smooth.at([new_size]) / new_size)
    ends = new.interval(stretch=decision.stretch(len(own)))
    forecast = {
        "n": new_size,
        "benefit": new.mean,
        "low": ends[0],
        "high": ends[1],
        "p_gain": 1 - float(new.below(0.0)),
    }
    average = decision.average(sums)._asdict()
    return {"average": average, "between_sd": everyone.spread, "new_hospital": forecast, "sites": rows}


def _alone(one: Benefit, design: Design) -> Json:
    """Of a hospital among fewer than four: a t distribution of its own, as a mixture of one normal distribution."""
    from scipy.special import stdtr

    low, high = one.interval(design)
    sd = max(math.sqrt(design.factor * one.variance / one.n), 1e-9)
    of = Normals(np.ones(1), np.array([one.mean]), np.array([sd]))
    p_harm = float(stdtr(one.n - 1, -one.mean / sd))
    return {**_row(one, (low, high), of, p_harm, one.variance, design), "low": low, "high": high}


def _row(own: Benefit, ends: tuple[float, float], of: Normals, p_harm: float, variance: float, design: Design) -> Json:
    low, high = of.interval()
    said = decision.verdict(p_harm, low, high)
    needed = decision.patients_needed(of.mean, variance, design) - own.n
    told = {"benefit": own.mean, "own_low": ends[0], "own_high": ends[1], "shrunken": of.mean, "low": low, "high": high}
    more = {"p_harm": p_harm, "verdict": said}
    return {**told, **more, "more_patients": int(max(needed, 0)) if math.isfinite(needed) else None}


def _mixes(
    sites: Mapping[str, OutOfFold], design: Design, margin: float, known: Mapping[str, Slopes]
) -> tuple[Array, dict[str, Json]]:
    """The candidates' common weights, and of each hospital the share of them that it may safely take."""
    products = [combination.error_products(t.labels, t.risks[1:]) for t in sites.values()]
    weights = combination.common_weights(np.mean(products, axis=0))
    moved = {site: np.tensordot(weights, t.risks[1:], 1) for site, t in sites.items()}
    parts = {s: combination.part_right(t.labels, t.risks[0], moved[s], design) for s, t in sites.items()}
    right, regressed = _posteriors(parts, design), _by_regression(sites, parts, weights, known, design)
    return weights, {s: safe_mix(p, regressed.get(s, right[s][1]), margin) for s, p in parts.items()}


def _posteriors(parts: Mapping[str, Right], design: Design) -> dict[str, tuple[Right, Normals]]:
    """What is known of the part of the common direction that is right at each hospital."""
    if len(parts) < LEAST_SITES:
        return {
            site: (p, Normals(np.ones(1), np.array([p.a]), np.array([math.sqrt(design.factor * p.variance)])))
            for site, p in parts.items()
        }
    s0 = decision.scale(len(parts), sum(1 / p.variance for p in parts.values()))
    sized = len(parts) >= combination.SITES_FOR_SIZE
    x = {site: p.x if sized else 0.0 for site, p in parts.items()}
    terms = {site: decision.terms(p.a, p.variance, x[site], s0) for site, p in parts.items()}
    everyone = Hospitals(s0, np.sum(list(terms.values()), axis=0))
    return {
        site: (
            p,
            everyone.without(terms[site]).given(p.a, p.variance, x[site], (design.factor - 1) * p.variance, UNLIKE),
        )
        for site, p in parts.items()
    }


def choice(row: Mapping[str, Any], candidates: Sequence[str]) -> tuple[str, str]:
    """Which answer a hospital gets ("join", "join_with", "stay", "same", "needs_more" or "needs_many"), and the
    candidate of which it speaks."""
    each: Mapping[str, Json] = row["candidates"]
    gains = [name for name in candidates if each[name]["verdict"] == decision.GAINS]
    best = max(gains or candidates, key=lambda name: each[name]["shrunken"])
    verdicts = {one["verdict"] for one in each.values()}
    if gains:
        return ("join" if best == candidates[0] else "join_with"), best
    if verdicts in ({decision.LOSES}, {decision.SAME}):
        return ("stay" if decision.LOSES in verdicts else "same"), best
    more = each[best]["more_patients"]
    return ("needs_more" if more is not None and more <= MOST_MORE * row["n"] else "needs_many"), best


def sentence(row: Mapping[str, Any], candidates: Sequence[str], weights: Array) -> str:
    """The answer to one hospital, in words."""
    kind, name = choice(row, candidates)
    one, mix = row["candidates"][name], mixed(row, candidates, weights)
    if kind in ("join", "join_with"):
        words = "Join" if kind == "join" else f"Join with this model: {name}"
        return f"{words} (benefit {_interval(one)}, probability of harm {one['p_harm']:.2f}). {mix}"
    if kind == "stay":
        return f"Stay alone: every candidate is worse than the own model (the best by {_interval(one)})."
    if kind == "same":
        return f"No difference that matters: no candidate is far from the own model. {mix}"
    few = kind == "needs_more"
    needs = f"needs about {rounded(one['more_patients']):,} more" if few else f"needs over {MOST_MORE} times the"
    return f"Cannot be told: {name} {needs} patients (benefit {_interval(one)}). {mix}"


def rounded(many: int) -> int:
    """To two figures."""
    return round(many, 2 - len(str(many)))


def mixed(row: Mapping[str, Any], candidates: Sequence[str], weights: Array) -> str:
    """Which mix of models is safe."""
    share = row[MIX]["share"]
    if not share:
        return "No mix with the own model is safe enough."
    parts = [f"{share * w:.0%} {name}" for name, w in zip(candidates, weights, strict=True) if share * w >= 0.005]
    return f"Safe mix: {1 - share:.0%} own, {', '.join(parts)} (benefit {_interval(row[MIX])})."


def _interval(one: Mapping[str, Any]) -> str:
    value = one.get("shrunken", one["benefit"])
    return f"{signed(value, 4)} [{signed(one['low'], 4)}, {signed(one['high'], 4)}]"


def page(found: Mapping[str, Any]) -> str:
    """``join.html``: the federation, then a sheet for every hospital, each on a printed page of its own."""
    return rendered("join", found=found)
