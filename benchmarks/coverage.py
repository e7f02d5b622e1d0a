# SPDX-License-Identifier: Apache-2.0
"""Intervals over patients, promised at 95 %: at how many simulated sites do they hold the true value?

    python benchmarks/coverage.py [--sites 1000] [--seed 0] [--toy]
    python benchmarks/coverage.py --visits docs/benchmarks/join-visits.csv [--federations 200] [--seconds 1500]

With ``--visits`` patients have one to six rows: what `join` says of a benefit, with patients and without. It goes on
from the rows of the file.

For an interval that holds exactly what it promises, 1,000 sites give 93.6 to 96.4 % nineteen times out of twenty. Of a
share the coverage is computed and not simulated: the least over true values from .001 to .999.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import join
import numpy as np
import pandas as pd
from scipy.special import expit, ndtr
from scipy.stats import binom

from fairflare.engine.evaluation import LEVEL
from fairflare.functional import intervals
from fairflare.functional.decision import GAINS, LOSES, Array, Design
from fairflare.functional.exchange import Deployed
from fairflare.report.join import OutOfFold, answers
from fairflare.tasks.folds import dealt

Ends = tuple[float, float] | None
Site = Callable[[np.random.Generator], tuple[Ends, float]]
"""Draws a site's test cases; returns the interval and the true value."""


def share(n: int) -> float:
    """The least coverage of the interval of a share of ``n`` cases."""
    low, high = np.array([intervals.of_share(right, n, LEVEL) for right in range(n + 1)]).T
    true = np.arange(1, 1000) / 1000
    held = (low[:, None] <= true) & (true <= high[:, None])
    return float((held * binom.pmf(np.arange(n + 1)[:, None], n, true)).sum(axis=0).min())


def dice(n: int) -> Site:
    """Overlaps around .85 (beta, 17 and 3), and a tenth of the structures missed."""

    def drawn(rng: np.random.Generator) -> tuple[Ends, float]:
        values = rng.beta(17, 3, n) * (rng.random(n) >= 0.1)
        return intervals.of_mean(values, LEVEL), 0.9 * 0.85

    return drawn


def brier(n: int) -> Site:
    """Squared errors of calibrated risks, a third around .5 and the others low (beta, 1 and 9)."""

    def drawn(rng: np.random.Generator) -> tuple[Ends, float]:
        risks = np.where(rng.random(n) < 1 / 3, rng.beta(5, 5, n), rng.beta(1, 9, n))
        outcomes = rng.random(n) < risks
        # E[r (1 - r)] of beta(a, b) is a b / ((a + b) (a + b + 1)).
        return intervals.of_mean((risks - outcomes) ** 2, LEVEL), 25 / 110 / 3 + 9 / 110 * 2 / 3

    return drawn


def recalls(n: int, prevalence: float) -> Site:
    """Balanced accuracy; .6 of those with the outcome are found and .9 of the others."""

    def drawn(rng: np.random.Generator) -> tuple[Ends, float]:
        cases = int(rng.binomial(n, prevalence))
        if not 0 < cases < n:
            return None, 0.75
        of_each = [cases, n - cases]
        right = [int(rng.binomial(of, rate)) for of, rate in zip(of_each, (0.6, 0.9), strict=True)]
        return intervals.of_recalls(right, of_each, LEVEL), 0.75

    return drawn


def auc(n: int, prevalence: float) -> Site:
    """Normal scores, 1.2 standard deviations apart; what the model returns are their risks."""

    def drawn(rng: np.random.Generator) -> tuple[Ends, float]:
        positive = rng.random(n) < prevalence
        scores = expit(rng.normal(size=n) + 1.2 * positive)
        return intervals.of_auc(scores, positive, LEVEL), float(ndtr(1.2 / np.sqrt(2)))

    return drawn


SITES: dict[str, Site] = {
    **{f"mean Dice, {n:,} cases": dice(n) for n in (10, 50, 1500)},
    **{f"Brier score, {n:,} cases": brier(n) for n in (12, 100, 1000)},
    **{
        f"balanced accuracy, {n} cases, {p:.0%} with the outcome": recalls(n, p)
        for n, p in ((100, 0.1), (100, 0.4), (400, 0.1), (400, 0.4))
    },
    **{
        f"AUC, {n} cases, {p:.0%} with the outcome": auc(n, p)
        for n, p in ((100, 0.4), (200, 0.1), (400, 0.1), (400, 0.4))
    },
}


PER_PATIENT, EFFECT, HOSPITALS, NEW = 6, 1.5, 10, 2000
"""Rows of a patient at most, standard deviation of its effect on the logit, hospitals of a federation, and new patients
of each that say the truth."""
KEPT = (1.0, 0.7)
"""Share of a feature's variance that is the patient's own, and not the visit's."""
ARMS = ("patient", "row", "row, outcomes")
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(21)


def visits(
    rng: np.random.Generator, patients: int, level: float, slopes: Array, kept: float
) -> tuple[Array, Array, Array, Array]:
    """Of each row features (N, 11) with a constant in front, the outcome, its risk given the features, and the patient.

    A risk given features alone is that over all patients' effects.
    """
    owner = np.repeat(np.arange(patients), rng.integers(1, PER_PATIENT + 1, patients))
    own, visit = rng.normal(size=(patients, len(slopes)))[owner], rng.normal(size=(len(owner), len(slopes)))
    x = np.sqrt(kept) * own + np.sqrt(1 - kept) * visit
    logits = level + x @ slopes
    y = rng.random(len(owner)) < expit(logits + EFFECT * rng.normal(size=patients)[owner])
    given = expit(logits[:, None] + EFFECT * NODES) @ (WEIGHTS / WEIGHTS.sum())
    return np.hstack([np.ones((len(x), 1)), x]), y.astype(float), given, owner


def federation(seed: int, number: int, kept: float) -> Iterator[dict[str, float | str]]:
    """A row per arm and candidate: at how many hospitals the interval holds what the model is worth to new patients.

    Hospitals have 30 to 500 patients; intercepts and slopes differ between them by .5 and .12 (standard deviations).
    ``patient``: folds, choice of the own model and variances by patient, as `join` does where a table says whose a row
    is; ``row``: the same rows, each another patient; ``row, outcomes``: these, and no regression speaks for outcomes.
    """
    rng, design = np.random.default_rng([seed, number]), Design()
    sizes = np.clip(110 * np.exp(rng.normal(0, 0.7, HOSPITALS)), 30, 500).astype(int)
    about = [(rng.normal(-0.5, 0.5), join.SLOPES + rng.normal(0, 0.12, len(join.SLOPES))) for _ in sizes]
    found = [visits(rng, n, *of, kept) for n, of in zip(sizes, about, strict=True)]
    new = [visits(rng, NEW, *of, kept) for of in about]
    for arm in ARMS:
        whose = [owner if arm == "patient" else np.arange(len(owner)) for *_, owner in found]
        folds = [
            np.stack([dealt(y.astype(int), design.folds, deal, f"{number} {k}", own) for deal in range(design.repeats)])
            for k, ((_, y, *_), own) in enumerate(zip(found, whose, strict=True))
        ]
        shared = join.pooled([join.Hospital(x, y, x, y) for x, y, *_ in found], [join.masks(one) for one in folds])
        sites, true = {}, {}
        for k, ((x, y, _, owner), place, (fresh, _, risk, _)) in enumerate(zip(found, folds, new, strict=True)):
            used = join.masks(place)
            own = join.tuned(x, y, place, np.zeros_like(shared), join.PENALTIES)
            level = join.newton(x, y, used, np.ones(len(used)), shared, free=1)
            fits = np.stack([own, shared, level])
            deployed = Deployed(x, y, expit(fits[:, -1] @ x.T)) if arm == "row" else None
            tested = join.out_of_fold(expit(fits @ x.T), place)
            sites[str(k)] = OutOfFold(y, tested, deployed, patients=owner if arm == "patient" else None)
            losses = ((expit(fits[:, -1] @ fresh.T) - risk) ** 2).mean(axis=1)
            true[str(k)] = losses[0] - losses[1:]
        told = answers(sites, join.CANDIDATES[:2], design, 0.0)["sites"]
        for c, name in enumerate(join.CANDIDATES[:2]):
            rows = [(true[site][c], told[site]["candidates"][name]) for site in sites]
            yield {
                "federation": number,
                "kept": kept,
                "arm": arm,
                "candidate": name,
                "hospitals": len(rows),
                "own_held": sum(one["own_low"] <= value <= one["own_high"] for value, one in rows),
                "held": sum(one["low"] <= value <= one["high"] for value, one in rows),
                "width": round(sum(one["high"] - one["low"] for _, one in rows), 4),
                "truth": round(sum(value for value, _ in rows), 5),
                "gains": sum(one["verdict"] == GAINS for _, one in rows),
                "false_gains": sum(one["verdict"] == GAINS and value < 0 for value, one in rows),
                "loses": sum(one["verdict"] == LOSES for _, one in rows),
                "false_loses": sum(one["verdict"] == LOSES and value > 0 for value, one in rows),
            }


def joined(federations: int, seed: int, csv: Path, seconds: float) -> None:
    """Simulate until there are so many federations in ``csv``, or the CPU seconds are used; print what it says."""
    known = pd.read_csv(csv) if csv.is_file() else pd.DataFrame({"federation": [], "kept": []})
    done = {*known[["federation", "kept"]].itertuples(index=False, name=None)}
    for one in product(range(federations), KEPT):
        if one in done or time.process_time() > seconds:
            continue
        known = pd.concat([known, pd.DataFrame(federation(seed, *one))], ignore_index=True)
        known.convert_dtypes().to_csv(csv, index=False)
    known["own patients alone"], known["as answered"] = (known[a] / known["hospitals"] for a in ("own_held", "held"))
    of = known.groupby(["kept", "arm", "candidate"])
    print(of[["own patients alone", "as answered"]].agg(["mean", "sem"]).round(3).to_string())
    print(of[["hospitals", "truth", "width", "gains", "false_gains", "loses", "false_loses"]].sum().to_string())


def main() -> None:
    """Print a line per metric and kind of site."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--toy", action="store_true", help="few sites and cases")
    parser.add_argument("--visits", type=Path, help="CSV file of federations with repeat visits")
    parser.add_argument("--federations", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=1500.0, help="of the CPU, at most, with --visits")
    options = parser.parse_args()
    if options.visits:
        joined(options.federations, options.seed, options.visits, options.seconds)
        return
    for n in (10,) if options.toy else (10, 100, 1000):
        print(f"{f'accuracy, {n:,} cases: the least':55} {share(n):.3f}")
    for name, site in SITES.items():
        rng = np.random.default_rng(options.seed)
        found = [site(rng) for _ in range(5 if options.toy else options.sites)]
        had = [(ends, true) for ends, true in found if ends is not None]
        held = sum(ends[0] <= true <= ends[1] for ends, true in had)
        width = sum(ends[1] - ends[0] for ends, _ in had) / max(len(had), 1)
        none = f", none at {len(found) - len(had)}" if len(had) < len(found) else ""
        print(f"{name:55} {held / max(len(had), 1):.3f}, mean width {width:.3f}{none}")


if __name__ == "__main__":
    main()
