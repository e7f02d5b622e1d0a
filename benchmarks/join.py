# SPDX-License-Identifier: Apache-2.0
"""Simulated federations whose hospitals' benefits are known: are the intervals, probabilities and shares what they say?

    python benchmarks/join.py [--federations 60] [--workers 2] [--seed 0] [--cache DIR] [--toy]
    python benchmarks/join.py --real ist:countries [--deals 20]
    python benchmarks/join.py --monitor [--streams 1000]

Hospitals have 30 to 500 patients, ten features and a logistic truth whose intercept, slopes and features differ between
hospitals. *gain*: little differs; *mixed*: more, and every fifth hospital has slopes of its own; *none*: all have.
Candidates are a shared ridge regression, the same with an own intercept, and a personal one (ridge towards the shared
coefficients); the own model is a ridge regression; penalties are chosen out of fold. The true benefit is that of the
models of all patients on 4,000 fresh patients against their true risks. Errors behind -/+ are over federations. With
--cache the simulated models are kept: what is said of them is then computed anew in a tenth of the time.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np
import pandas as pd
from joblib import Memory
from scipy.special import expit
from scipy.stats import linregress

from fairflare.engine.setup import tasks
from fairflare.functional import decision, slopes
from fairflare.functional.decision import Array, Design
from fairflare.functional.exchange import Direction, row_of
from fairflare.inference import monitor
from fairflare.tasks.folds import everyone, untestable

FEATURES, FRESH = 10, 4000
SLOPES = np.random.default_rng(7).normal(0, 0.5, FEATURES)
"""Common ones, the same in every federation: else the average benefit would differ between federations."""
DESIGN, REAL = Design(), Design(5, 1)
PENALTIES = np.array([0.3, 1.0, 3.0, 10.0, 30.0, 100.0])
PULLS = np.array([1.0, 3.0, 10.0, 30.0, 100.0, 300.0])
SHARED_PENALTY = 1.0
CANDIDATES = ("shared", "shared+intercept", "personal")
STEPS = 12
NEW_SIZE = 100
Row = dict[str, float | str]
BINS = (0.0, 0.05, 0.2, 0.5, 0.8, 0.95, 1.0000001)


@dataclass(frozen=True)
class Regime:
    """Standard deviations of hospitals' intercepts and slopes, of every fifth one's slopes, and the sizes."""

    intercept: float
    slopes: float
    odd: float
    median: float
    least: int = 30


REGIMES = {
    "gain": Regime(0.3, 0.05, 0.05, 80),
    "mixed": Regime(0.5, 0.12, 0.5, 110),
    "none": Regime(0.5, 0.5, 0.5, 270, 150),
}


@dataclass(frozen=True)
class Hospital:
    """(n, 11) features with a constant in front, (n,) outcomes, and fresh patients with their true risks."""

    x: Array
    y: Array
    fresh: Array
    risks: Array


def hospital(rng: np.random.Generator, regime: Regime, slopes: Array, odd: bool, n: int | None = None) -> Hospital:
    """One hospital of a federation with these common slopes; n: patients, drawn where None."""
    if n is None:
        n = int(np.clip(regime.median * np.exp(rng.normal(0, 0.7)), regime.least, 500))
    own = slopes + rng.normal(0, regime.odd if odd else regime.slopes, FEATURES)
    level, centre = rng.normal(-0.5, regime.intercept), rng.normal(0, 0.5, FEATURES)
    width = np.exp(rng.normal(0, 0.2, FEATURES))

    def drawn(many: int) -> tuple[Array, Array]:
        x = centre + width * rng.normal(size=(many, FEATURES))
        return np.hstack([np.ones((many, 1)), x]), expit(level + x @ own)

    while True:
        x, risks = drawn(n)
        y = (rng.random(n) < risks).astype(float)
        if 5 <= y.sum() <= n - 5:
            return Hospital(x, y, *drawn(FRESH))


def dealt(rng: np.random.Generator, y: Array, repeats: int) -> Array:
    """(repeats, n) plain random folds; dealt again until every training part has two of each class."""
    while True:
        folds = np.stack([rng.permutation(len(y)) % DESIGN.folds for _ in range(repeats)])
        parts = [y[row != fold] for row in folds for fold in range(DESIGN.folds)]
        if all(2 <= part.sum() <= len(part) - 2 for part in parts):
            return folds


def masks(folds: Array) -> Array:
    """(repeats x folds + 1, n) who trains: all but a fold, and in the last row all."""
    kept = [row != fold for row in folds for fold in range(DESIGN.folds)]
    return np.array([*kept, np.ones(folds.shape[1], dtype=bool)], dtype=float)


def ridge_of(x: Array) -> Array:
    """(P,) what multiplies the penalty: the intercept's is a thousandth."""
    return np.append(1e-3, np.ones(x.shape[1] - 1))


def newton(x: Array, y: Array, used: Array, penalty: Array, centre: Array, free: int | None = None) -> Array:
    """(K, 11) coefficients of K ridge regressions on the same patients; the intercept's penalty is a thousandth.

    Args:
        x, y: (n, 11), (n,).
        used: (K, n) weights of the patients.
        penalty: (K,).
        centre: (K, 11) towards which they are drawn, and where the search begins.
        free: 1 where the intercept alone is fitted.
    """
    ridge, free = penalty[:, None] * ridge_of(x), free or x.shape[1]
    rows, columns = np.triu_indices(free)
    products = x[:, rows] * x[:, columns]
    at = centre.copy()
    hessian = np.empty((len(at), free, free))
    for _ in range(STEPS):
        p = expit(np.clip(at @ x.T, -30, 30))
        gradient = (used * (y - p)) @ x[:, :free] - (ridge * (at - centre))[:, :free]
        hessian[:, rows, columns] = hessian[:, columns, rows] = (used * p * (1 - p)) @ products
        hessian[:, range(free), range(free)] += ridge[:, :free]
        step = np.linalg.solve(hessian, gradient[..., None])[..., 0]
        at[:, :free] += np.clip(step, -3, 3)
        if np.abs(step).max() < 1e-4:
            break
    return at


def out_of_fold(risks: Array, folds: Array) -> Array:
    """(..., repeats, n) from risks (..., K, n) of all models: each patient's by the model without its fold."""
    rows = np.arange(len(folds))[:, None] * DESIGN.folds + folds
    return risks[..., rows, np.arange(folds.shape[1])]


def chosen(x: Array, y: Array, folds: Array, coefficients: Array) -> Array:
    """(K, 11) of (L, K, 11): for each fold the penalty that is best in the others, in the last row in all."""
    losses = (out_of_fold(expit(coefficients @ x.T), folds) - y) ** 2
    at = [row == fold for row in folds for fold in range(DESIGN.folds)]
    repeat = np.arange(len(at)) // DESIGN.folds
    inside = np.array([losses[:, r, fold].sum(axis=1) for r, fold in zip(repeat, at, strict=True)])
    total = losses.sum(axis=2).T
    others = (total[repeat] - inside).argmin(axis=1)
    return coefficients[[*others, total.sum(axis=0).argmin()], np.arange(coefficients.shape[1])]


def tuned(x: Array, y: Array, folds: Array, centre: Array, penalties: Array) -> Array:
    """(K, 11) ridge regressions towards ``centre`` (K, 11), their penalties chosen out of fold."""
    used, many = masks(folds), len(penalties)
    k = len(used)
    found = newton(x, y, np.tile(used, (many, 1)), np.repeat(penalties, k), np.tile(centre, (many, 1)))
    return chosen(x, y, folds, found.reshape(many, k, -1))


def pooled(hospitals: Sequence[Hospital], used: Sequence[Array]) -> Array:
    """(K, 11) shared regressions, each without its fold at every hospital."""
    x, y = np.vstack([one.x for one in hospitals]), np.concatenate([one.y for one in hospitals])
    start = np.zeros((len(used[0]), x.shape[1]))
    return newton(x, y, np.hstack(used), np.full(len(start), SHARED_PENALTY), start)


def models(one: Hospital, folds: Array, shared: Array) -> Array:
    """(4, K, 11): the own model, then the candidates."""
    used, start = masks(folds), np.zeros_like(shared)
    own = tuned(one.x, one.y, folds, start, PENALTIES)
    level = newton(one.x, one.y, used, np.full(len(used), 1.0), shared, free=1)
    return np.stack([own, shared, level, tuned(one.x, one.y, folds, shared, PULLS)])


def error_products(labels: Array, risks: Array) -> Array:
    """(C, C) means of (p - y)(p - y)' over patients (n,) and repetitions, of risks (C, R, n)."""
    errors = risks - labels
    products: Array = np.einsum("arn,brn->ab", errors, errors) / errors[0].size
    return products


def part_right(labels: Array, own: Array, moved: Array, design: Design) -> slopes.Right:
    """Of the direction from risks ``own`` to ``moved``, both (R, n) out of fold."""
    row = row_of(np.broadcast_to(labels, own.shape), np.stack([own, moved]))
    return Direction.along(row, np.ones(1), row.seconds[0]).part_right(design)


def truth(one: Hospital, risks: Array) -> Array:
    """Mean squared errors of (..., fresh) risks against the true ones."""
    return ((risks - one.risks) ** 2).mean(axis=-1)


@dataclass(frozen=True)
class Federation:
    """Hospitals, their folds, the shared model of all patients, each one's models (4, K, 11), and a further hospital.

    The further hospital's models (4, 11) are those that it has if it joins.
    """

    found: list[Hospital]
    folds: list[Array]
    shared: Array
    fitted: list[Array]
    outside: Hospital
    joined: Array


def simulated(regime: str, sites: int, number: int) -> Federation:
    """Hospitals and their models; the further hospital is odd as often as those inside."""
    rng = np.random.default_rng([number, sites, list(REGIMES).index(regime)])
    about = REGIMES[regime]
    found = [hospital(rng, about, SLOPES, i % 5 == 4) for i in range(sites)]
    folds = [dealt(rng, one.y, DESIGN.repeats) for one in found]
    shared = pooled(found, [masks(row) for row in folds])
    fitted = [models(one, row, shared) for one, row in zip(found, folds, strict=True)]
    outside = hospital(rng, about, SLOPES, bool(rng.random() < 0.2), max(NEW_SIZE, about.least))
    own = dealt(rng, outside.y, 1)
    used = [np.ones((DESIGN.folds + 1, len(other.y))) for other in found]
    joined = models(outside, own, pooled([*found, outside], [*used, masks(own)]))[:, -1]
    return Federation(found, folds, shared[-1], fitted, outside, joined)


def federation(task: tuple[str, int, int, str | None]) -> list[Row]:
    """One federation's rows: per hospital and candidate, per candidate, and per policy."""
    regime, sites, number, cache = task
    kept = Memory(cache, verbose=0).cache(simulated)(regime, sites, number)
    pairs = list(zip(kept.found, kept.folds, kept.fitted, strict=True))
    tested = [out_of_fold(expit(f @ one.x.T), row) for one, row, f in pairs]
    fresh = [expit(f[:, -1] @ one.fresh.T) for one, _, f in pairs]
    losses = truth(kept.outside, expit(kept.joined @ kept.outside.fresh.T))
    regressions, forecasts = regressed(kept, losses[0] - losses[1:])
    label: Row = {"regime": regime, "sites": sites, "number": number}
    found = [*candidates(kept.found, tested, fresh, losses[0] - losses[1:]), *forecasts]
    found += by_regression(kept, regressions, tested, fresh)
    return [label | row for row in [*found, *policies(kept.found, kept.folds, tested, fresh, regressions, kept.fitted)]]


def regressed(kept: Federation, realised: Array) -> tuple[list[slopes.Slopes], list[Row]]:
    """Each hospital's regression with own slopes, and what the further hospital is told by its own before it joins."""
    hessians = [slopes.derivatives(one.x, one.y, kept.shared)[1] for one in kept.found]
    total, sites = (
        np.sum(hessians, axis=0) + SHARED_PENALTY * np.diag(ridge_of(kept.outside.x)),
        len(hessians),
    )
    fits = [
        slopes.fitted(one.x, one.y, slopes.Others.of_all(kept.shared, total, sites, one.x, one.y)) for one in kept.found
    ]
    evidence, weights = np.stack([fit.evidence for fit in fits]), np.full(len(slopes.PULLS), 1 / len(slopes.PULLS))
    for _ in range(slopes.EM_STEPS):
        weights = slopes.em_step(slopes.shares(evidence, weights).sum(axis=0), len(evidence))
    one, others = kept.outside, slopes.Others(kept.shared, np.linalg.inv(total), sites)
    of = slopes.Slopes.of(slopes.fitted(one.x, one.y, others), weights)
    level = newton(one.x, one.y, np.ones((1, len(one.y))), np.ones(1), kept.shared[None], free=1)
    own, *asked = expit(np.stack([kept.joined[0], kept.shared, level[0]]) @ one.x.T)
    rows = []
    for name, risks, true in zip((*CANDIDATES[:2], CANDIDATES[2]), (*asked, of.risks(one.x)), realised, strict=True):
        part = slopes.Regressed.of_models(of, one.x, own, risks).widened()
        told = slopes.gain(part.of, part.q)
        rows.append(row(name, "forecast", true, len(one.y), *told.interval(), float(told.below(0.0)), told.mean))
    return [slopes.Slopes.of(fit, weights) for fit in fits], rows


def by_regression(
    kept: Federation, regressions: Sequence[slopes.Slopes], tested: Sequence[Array], fresh: Sequence[Array]
) -> Iterable[Row]:
    """Candidates' benefits by each hospital's regression."""
    for c, name in enumerate(CANDIDATES, 1):
        moved = np.eye(len(CANDIDATES))[c - 1]
        known = known_parts(kept.found, kept.fitted, tested, regressions, moved, DESIGN)
        for one, f, part in zip(kept.found, fresh, known, strict=True):
            told = slopes.gain(part.of, part.q)
            harm = [float(told.below(-margin)) for margin in (0.0, 0.002)]
            yield row(name, "regressed", truth(one, f[0]) - truth(one, f[c]), len(one.y), *told.interval(), *harm)


def known_parts(
    found: Sequence[Hospital],
    fitted: Sequence[Array],
    tested: Sequence[Array],
    regressions: Sequence[slopes.Slopes],
    weights: Array,
    design: Design,
) -> list[slopes.Regressed]:
    """What is right of the direction to the candidates by ``weights``, as ``report.join`` has it."""
    known, sums = [], np.zeros(2)
    for one, f, t, of in zip(found, fitted, tested, regressions, strict=True):
        risks = expit(f[:, -1] @ one.x.T)
        part = part_right(one.y, t[0], np.tensordot(weights, t[1:], 1), design)
        known.append(slopes.Regressed.of_models(of, one.x, risks[0], weights @ risks[1:], part.q))
        sums += slopes.misfit_terms(part, known[-1].of.mean, design)
    return [part.widened(*slopes.misfit(sums)) for part in known]


def candidates(
    found: Sequence[Hospital], tested: Sequence[Array], fresh: Sequence[Array], joined: Array
) -> Iterable[Row]:
    """What is said of every candidate by each way, beside the truth."""
    for c, name in enumerate(CANDIDATES, 1):
        own = [decision.brier_benefit(one.y, t[0], t[c], DESIGN) for one, t in zip(found, tested, strict=True)]
        right = [part_right(one.y, t[0], t[c], DESIGN) for one, t in zip(found, tested, strict=True)]
        true = [truth(one, f[0]) - truth(one, f[c]) for one, f in zip(found, fresh, strict=True)]
        noise = decision.Smoothed(sum(decision.moments(b.variance, [b.n]) for b in own))
        v = [noise.at([b.n]) / b.n for b in own]
        s0 = decision.scale(len(own), sum(1 / x for x in v))
        x = [decision.of_size(b.n) for b in own]
        terms = [decision.terms(b.mean, *vx, s0) for b, *vx in zip(own, v, x, strict=True)]
        everyone = decision.Hospitals(s0, sum(terms))
        parts, part_terms = of_parts(right)
        for i, b in enumerate(own):
            luck = (DESIGN.factor - 1) * v[i]
            of = everyone.without(terms[i]).given(b.mean, v[i], x[i], luck)
            yield row(name, "benefit", true[i], b.n, *of.interval(), float(of.below(0.0)), float(of.below(-0.002)))
            p = right[i]
            for way, doubt in (("part", None), ("doubt", slopes.UNLIKE)):
                others = parts.without(part_terms[i])
                of = others.given(p.a, p.variance, part_x(p, len(own)), luck_of(p), doubt)
                harm = [slopes.harm(of, p.q, 1.0, margin) for margin in (0.0, 0.002)]
                yield row(name, way, true[i], b.n, *slopes.gain(of, p.q).interval(), *harm)
            yield row(name, "single", true[i], b.n, *b.interval(DESIGN), 0.5, 0.5)
        sums = np.sum([(1, b.mean, b.mean**2, w) for b, w in zip(own, v, strict=True)], axis=0)
        yield row(name, "average", float(np.mean(true)), 0, *decision.average(sums)[1:], 0.5, 0.5)
        size = max(NEW_SIZE, REGIMES["none"].least if min(b.n for b in own) >= 150 else 0)
        of = everyone.new(decision.of_size(size), (DESIGN.factor - 1) * noise.at([size]) / size)
        ends = of.interval(stretch=decision.stretch(len(own)))
        yield row(name, "new", float(joined[c - 1]), size, *ends, float(of.below(0.0)), 0.5)


def row(name: str, way: str, true: float, n: int, low: float, high: float, p: float, p2: float) -> Row:
    return {"what": name, "way": way, "true": true, "n": n, "low": low, "high": high, "p": p, "p2": p2}


def part_x(part: slopes.Right, sites: int) -> float:
    return decision.of_size(part.n) if sites >= slopes.SITES_FOR_SIZE else 0.0


def luck_of(part: slopes.Right) -> float:
    return (DESIGN.factor - 1) * part.variance


def of_parts(parts: Sequence[slopes.Right]) -> tuple[decision.Hospitals, list[Array]]:
    """The hierarchical model of the parts that are right, and each hospital's terms of it."""
    s0 = decision.scale(len(parts), sum(1 / p.variance for p in parts))
    terms = [decision.terms(p.a, p.variance, part_x(p, len(parts)), s0) for p in parts]
    return decision.Hospitals(s0, sum(terms)), terms


def policies(
    found: Sequence[Hospital],
    folds: Sequence[Array],
    tested: Sequence[Array],
    fresh: Sequence[Array],
    regressions: Sequence[slopes.Slopes],
    fitted: Sequence[Array],
) -> Iterable[Row]:
    """The true gain of every policy, and what the combination's interval says of its own."""
    products = [error_products(one.y, t[1:]) for one, t in zip(found, tested, strict=True)]
    weights = slopes.common_weights(np.mean(products, axis=0))
    moved = [np.tensordot(weights, t[1:], 1) for t in tested]
    parts = [part_right(one.y, t[0], m, DESIGN) for one, t, m in zip(found, tested, moved, strict=True)]
    everyone, terms = of_parts(parts)
    known = known_parts(found, fitted, tested, regressions, weights, DESIGN)
    for i, (one, part) in enumerate(zip(found, parts, strict=True)):
        own, end = fresh[i][0], np.tensordot(weights, fresh[i][1:], 1)
        base = truth(one, own)
        for c, name in enumerate(CANDIDATES, 1):
            yield row(name, "policy", base - truth(one, fresh[i][c]), part.n, 0, 0, 0, 0)
        yield row("oracle", "policy", base - oracle(one, fresh[i]), part.n, 0, 0, 0, 0)
        yield row("common weights", "policy", base - truth(one, end), part.n, 0, 0, 0, 0)
        alone = expit(fitted[i][0, -1] @ one.x.T)
        slope = slopes.Regressed.of_models(regressions[i], one.x, alone, regressions[i].risks(one.x))
        yield from mixes(one, own, end, known[i], "regression")
        yield row("own slopes", "policy", base - truth(one, regressions[i].risks(one.fresh)), part.n, 0, 0, 0, 0)
        yield from mixes(one, own, regressions[i].risks(one.fresh), slope.widened(), "own slopes")
        others = everyone.without(terms[i])
        for name, doubt in (("plain", None), ("doubt", slopes.UNLIKE)):
            of = others.given(part.a, part.variance, part_x(part, len(found)), luck_of(part), doubt)
            for margin in (0.0, slopes.TOLERANCE):
                share, label = slopes.safe_share(of, part.q, margin), f"{name}, {margin or 'strict'}"
                true = base - truth(one, own + share * (end - own))
                yield row(label, "policy", true, part.n, 0, 0, share, 0)
                if share and doubt:
                    yield row(label, "posterior", true, part.n, *slopes.gain(of, part.q, share).interval(), share, 0)


def mixes(one: Hospital, own: Array, end: Array, part: slopes.Regressed, name: str) -> Iterable[Row]:
    """Of a direction whose right part is known by regression: the safe shares' true gains, and what is said of them."""
    for margin in (0.0, slopes.TOLERANCE):
        share, label = slopes.safe_share(part.of, part.q, margin), f"{name}, {margin or 'strict'}"
        true = truth(one, own) - truth(one, own + share * (end - own))
        yield row(label, "policy", true, len(one.y), 0, 0, share, 0)
        if share:
            yield row(label, "posterior", true, len(one.y), *slopes.gain(part.of, part.q, share).interval(), share, 0)


def oracle(one: Hospital, risks: Array) -> float:
    """The least true loss of convex combinations of own model and candidates."""
    return float(truth(one, slopes.common_weights(error_products(one.risks, risks[:, None])) @ risks))


def real_hospitals(name: str) -> list[tuple[str, Array, Array]]:
    """(site, (n, P) features, (n,) outcomes) of a task's sites with patients enough."""
    task, found = tasks.load(*name.split(":")), []
    for site in task.sites():
        data = everyone(task.site_data(site))
        y = data.labels.numpy().astype(float)
        if not untestable(data.labels.numpy()):
            found.append((site, np.hstack([np.ones((len(y), 1)), data.inputs.numpy().astype(float)]), y))
    return found


def real(name: str, deals: int, seed: int) -> list[Row]:
    """Real hospitals, dealt again: 70 % of each one's patients train, the others say what the models are worth."""
    hospitals = real_hospitals(name)
    return [row_ | {"deal": deal} for deal in range(deals) for row_ in real_deal(hospitals, [seed, deal])]


def real_deal(hospitals: Sequence[tuple[str, Array, Array]], seed: Sequence[int]) -> Iterable[Row]:
    """One deal: losses on test patients, and what was said from training patients."""
    rng, found, tests = np.random.default_rng(seed), [], []
    for _, x, y in hospitals:
        test = np.zeros(len(y), dtype=bool)
        while not 5 <= y[~test].sum() <= (~test).sum() - 5 or not test.any():
            test = rng.permutation(len(y)) < round(0.3 * len(y))
        found.append(Hospital(x[~test], y[~test], x[test], y[test]))
        tests.append(test)
    folds = [dealt(rng, one.y, 1) for one in found]
    shared = pooled(found, [masks(row_) for row_ in folds])
    fitted = [models(one, row_, shared) for one, row_ in zip(found, folds, strict=True)]
    regressions, _ = regressed(Federation(found, folds, shared[-1], fitted, found[0], fitted[0][:, -1]), np.zeros(3))
    tested = [out_of_fold(expit(f @ one.x.T), row_) for one, row_, f in zip(found, folds, fitted, strict=True)]
    weights = slopes.common_weights(
        np.mean([error_products(o.y, t[1:]) for o, t in zip(found, tested, strict=True)], axis=0)
    )
    known = known_parts(found, fitted, tested, regressions, weights, REAL)
    each = [known_parts(found, fitted, tested, regressions, unit, REAL) for unit in np.eye(len(CANDIDATES))]
    for i, (one, f, of) in enumerate(zip(found, fitted, regressions, strict=True)):
        told, risks, new = (
            {"site": hospitals[i][0], "n": len(one.y)},
            expit(f[:, -1] @ one.x.T),
            expit(f[:, -1] @ one.fresh.T),
        )
        own, slope, end = ((new[0] - one.risks) ** 2).mean(), of.risks(one.fresh), weights @ new[1:]
        slope_part = slopes.Regressed.of_models(of, one.x, risks[0], of.risks(one.x)).widened()
        for name, test in (*zip(CANDIDATES, new[1:], strict=True), ("own slopes", slope)):
            part = each[CANDIDATES.index(name)][i] if name in CANDIDATES else slope_part
            said = slopes.gain(part.of, part.q)
            low, high = said.interval()
            margin = 0.02 * float((risks[0] * (1 - risks[0])).mean())
            words = decision.verdict(float(said.below(0.0)), low, high, margin)
            true = own - ((test - one.risks) ** 2).mean()
            yield told | {
                "what": name,
                "true": float(true),
                "said": said.mean,
                "low": low,
                "high": high,
                "verdict": words,
            }
        for name, part, moved in (
            ("regression", known[i], end),
            ("own slopes", slope_part, slope),
        ):
            for margin in (0.0, slopes.TOLERANCE):
                share = slopes.safe_share(part.of, part.q, margin)
                true = own - ((new[0] + share * (moved - new[0]) - one.risks) ** 2).mean()
                yield told | {"what": f"{name}, {margin or 'strict'}", "true": float(true), "share": share}


def show_real(table: pd.DataFrame) -> None:
    """Over deals: the mean gain, hospitals worse or better beyond 2 standard errors, and how many were answered."""
    print("\nMean gain over hospitals (s.e. over deals); worst hospital's; worse / better (2 s.e.); answered in a deal")
    deals = table.deal.nunique()
    for name, rows in table.groupby("what", sort=False):
        by = rows.groupby("site")["true"].agg(["mean", "sem"])
        mean = rows.groupby("deal")["true"].mean()
        worse, better = (by["mean"] < -2 * by["sem"]).sum(), (by["mean"] > 2 * by["sem"]).sum()
        told = rows.verdict.isin([decision.GAINS, decision.LOSES, decision.SAME]).sum() / deals
        right = rows.groupby("verdict")["true"].mean().round(4).to_dict()
        print(
            f"{name:20}{mean.mean():+.4f} ({mean.sem():.4f}) {by['mean'].min():+.4f}; {worse} / {better} of {len(by)}; "
            f"{told:.1f}; realised by verdict {right}"
        )


def error_over_federations(values: pd.Series, number: pd.Series) -> float:
    """Standard error of a mean of hospitals that belong to federations."""
    by = values.groupby(number)
    means, sizes = by.mean(), by.size()
    return float(np.sqrt((((means - values.mean()) * sizes) ** 2).sum()) / sizes.sum())


def show_coverage(table: pd.DataFrame) -> None:
    """Of 95 % intervals, with errors over federations; of the average also if its true error over them were known."""
    print("\nCoverage of 95 % intervals, in percent; mean width")
    for (regime, sites), cell in table[table.way != "policy"].groupby(["regime", "sites"], sort=False):
        means = cell[cell.way == "single"].groupby("what")["true"].mean()
        for (way, name), rows in cell.groupby(["way", "what"], sort=False):
            true = means[name] if way == "average" else rows["true"]
            held = ((rows.low <= true) & (true <= rows.high)).astype(float) * 100
            error = error_over_federations(held, rows.number)
            width = (rows.high - rows.low).mean()
            middle = (rows.low + rows.high) / 2 - true
            known = (middle.abs() <= 1.96 * middle.std()).mean() * 100
            words = f"  known {known:.1f}, bias {middle.mean():+.4f}" if way == "average" else ""
            print(f"{regime:6}{sites:3} {way:10}{name:18}{held.mean():6.1f} +-{error:4.1f}  width {width:.3f}{words}")


def show_harm(table: pd.DataFrame) -> None:
    """Said and real probabilities of harm."""
    print("\nP(harm), said / real (worse by more than .002: said / real), hospitals")
    some = table[table.way.isin(["benefit", "part", "doubt", "regressed"])]
    for (regime, sites, name, way), rows in some.groupby(["regime", "sites", "what", "way"], sort=False):
        parts = []
        for low, high in zip(BINS, BINS[1:]):
            at = rows[(rows.p >= low) & (rows.p < high)]
            at2 = rows[(rows.p2 >= low) & (rows.p2 < high)]
            real, real2 = (at["true"] < 0).mean(), (at2["true"] < -0.002).mean()
            words = f"{at.p.mean():.2f}/{real:.2f} ({at2.p2.mean():.2f}/{real2:.2f}) {len(at)}"
            parts.append(words if len(at) >= 10 and len(at2) >= 10 else "-")
        print(f"{regime:6}{sites:3} {name:18}{way:10}" + " | ".join(parts))


def show_forecasts(table: pd.DataFrame) -> None:
    """Realised on forecast benefits of hospitals that were not in, and who was warned."""
    print("\nForecasts for a further hospital: slope of realised on forecast (s.e.), correlation; covered; harmed;")
    print(
        "of the harmed forecast below 0; harmed where P(harm) < .05 said, of how many; thirds: mean forecast: realised"
    )
    for (regime, name), rows in table[table.way == "forecast"].groupby(["regime", "what"], sort=False):
        if len(rows) < 3:
            continue
        line = linregress(rows.p2, rows["true"])
        harmed, sure = rows["true"] < 0, rows.p < 0.05
        held = ((rows.low <= rows["true"]) & (rows["true"] <= rows.high)).mean()
        thirds = rows.groupby((rows.p2.rank(method="first") - 1) * 3 // len(rows))[["p2", "true"]].mean()
        told = ", ".join(f"{a:+.4f}: {b:+.4f}" for a, b in thirds.to_numpy())
        print(
            f"{regime:6}{name:18}{line.slope:.2f} ({line.stderr:.2f}), {line.rvalue:.2f}; {held:.3f}; "
            f"{harmed.sum()} of {len(rows)}; {(rows.p2[harmed] < 0).mean():.2f}; "
            f"{harmed[sure].sum()} of {sure.sum()}; {told}"
        )


def show_policies(table: pd.DataFrame) -> None:
    """Share of the oracle's gain that is kept, and hospitals that are worse off."""
    print(
        "\nPolicy: share of the oracle's gain; % of hospitals worse by more than 0 / .002 / .005 (error of the first)"
    )
    for (regime, sites), cell in table[table.way == "policy"].groupby(["regime", "sites"], sort=False):
        best = cell[cell.what == "oracle"]["true"].mean()
        for name, rows in cell.groupby("what", sort=False):
            worse = [(rows["true"] < -margin - 1e-12).mean() * 100 for margin in (0, 0.002, 0.005)]
            error = error_over_federations((rows["true"] < -1e-12) * 100.0, rows.number)
            kept = rows["true"].mean() / best
            words = " / ".join(f"{value:.1f}" for value in worse)
            print(f"{regime:6}{sites:3} {name:18}{kept:6.2f}  {words} (+-{error:.1f})  mean {rows['true'].mean():+.4f}")


def show_monitor(streams: int, patients: int, seed: int) -> None:
    """How often the monitor says something false, and after how many patients something true."""
    print(f"\nMonitor, {streams} streams of {patients} patients: reached, median patient")
    rng = np.random.default_rng(seed)
    for what, margin, benefit in [
        *((kind, m, sign * m) for m in (0.005, 0.01) for kind, sign in (("certificate", -1), ("alarm", -1))),
        *(("certificate", m, g) for g in (0.0, 0.01, 0.02) for m in (0.005, 0.01, 0.02)),
        *(("alarm", m, -0.02) for m in (0.005, 0.01)),
    ]:
        times = [stream(rng, what, margin, benefit, patients) for _ in range(streams)]
        reached = np.array([t or np.inf for t in times])
        middle = np.median(reached)
        words = f"{middle:.0f}" if middle < np.inf else f"more than {patients}"
        share = np.isfinite(reached).mean()
        print(f"{what:12} margin {margin:.3f}, true benefit {benefit:+.3f}: {share:.3f}, {words}")


def stream(rng: np.random.Generator, what: str, margin: float, benefit: float, patients: int) -> int:
    """The patient at which one stream's capital reached its mark, or 0; risks .12 apart (root mean square)."""
    bets = monitor.certificate(margin) if what == "certificate" else monitor.alarm(margin)
    sign = 1 if what == "certificate" else -1
    truth_ = rng.beta(1.5, 2.5, patients)
    move = 0.12 * rng.choice([-1.0, 1.0], patients)
    # E[loss of p0 - loss of p1] = (p0 - truth)^2 - (p1 - truth)^2 with p1 = p0 + move is -move^2 - 2 move (p0 - truth).
    own = truth_ - (benefit + move**2) / (2 * move)
    used, outcomes = own + move, (rng.random(patients) < truth_).astype(float)
    kept = (own >= 0) & (own <= 1) & (used >= 0) & (used <= 1)
    for d in ((own - outcomes) ** 2 - (used - outcomes) ** 2)[kept]:
        bets.see(sign * d + (margin if sign > 0 else -margin))
        if bets.reached:
            return bets.reached
    return 0


def main() -> None:
    """Simulate, and print every table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--federations", type=int, default=60, help="in each of the nine cells")
    parser.add_argument("--regimes", nargs="+", choices=list(REGIMES), default=list(REGIMES))
    parser.add_argument("--sites", type=int, nargs="+", default=[5, 10, 20])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="number of the first federation")
    parser.add_argument("--monitor", action="store_true", help="the monitor alone")
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--real", metavar="TASK", help="real hospitals instead: ist, heart:full")
    parser.add_argument("--deals", type=int, default=20)
    parser.add_argument("--cache", metavar="DIR", help="keep simulated federations here")
    parser.add_argument("--out", help="also write every row as CSV here")
    parser.add_argument("--toy", action="store_true", help="one federation, few streams")
    options = parser.parse_args()
    if options.toy:
        options.regimes, options.sites, options.federations, options.workers = ["mixed"], [6], 1, 1
    if options.real:
        table = pd.DataFrame(real(options.real, options.deals, options.seed))
        if options.out:
            table.to_csv(options.out, index=False)
        show_real(table)
        return
    if options.toy or options.monitor:
        show_monitor(3 if options.toy else options.streams, 50 if options.toy else 2000, options.seed)
        if options.monitor:
            return
    numbers = range(options.seed, options.seed + options.federations)
    tasks = [
        (regime, sites, number, options.cache)
        for regime in options.regimes
        for sites in options.sites
        for number in numbers
    ]
    began = time.monotonic()
    if options.workers > 1:
        os.environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
        with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
            rows = [row_ for found in pool.map(federation, tasks, chunksize=4) for row_ in found]
    else:
        rows = [row_ for task in tasks for row_ in federation(task)]
    table = pd.DataFrame(rows)
    if options.out:
        table.to_csv(options.out, index=False)
    print(f"{len(tasks)} federations, {time.monotonic() - began:.0f} s")
    show_coverage(table)
    show_harm(table)
    show_policies(table)
    show_forecasts(table)


if __name__ == "__main__":
    main()
