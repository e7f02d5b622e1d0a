# SPDX-License-Identifier: Apache-2.0
"""Simulated federations whose U, J and D are known: do intervals hold, and how often is a verdict false?

    python benchmarks/decision_coverage.py [--federations 200] [--regimes mixed gain] [--rows ROWS.csv] [--out FILE.csv]

``--rows`` keeps the rows of each federation as it ends; a further call goes on from there.

Ten hospitals (unless said) of a logistic truth with ten features. *mixed*: intercepts and slopes differ, and every
fifth hospital has slopes of its own; *gain*: little differs; *none*: all does; *tiny*: half have 12 to 29 patients;
*rare*: 3 % have the outcome; *shift*: other patients and a bent truth; *reversed*: one hospital's slopes have the other
sign; *1,280 columns*: noisy projections of the features, decided on principal components; *visits*: one to six rows a
patient; *visits by row*: the same, each row taken for a patient, which must fail; *shared patients*: a fifth are of
``POOL`` people who come to about two hospitals; with the *federation's folds* they are dealt alike. The truth is that
of the deployed models on 2,000 fresh patients of each hospital, by their true risks. Errors are over federations.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import expit

from fairflare.decision.decide import Answer, decide
from fairflare.decision.estimands import ESTIMANDS, margin
from fairflare.decision.regression import MEMBER, OUTSIDE, OWN, Array, Hospital
from fairflare.decision.study import folds_of, on_components
from fairflare.decision.sums import NET, Plan
from fairflare.decision.validation import sandwich
from fairflare.decision.verdicts import ADDS, ALONE, COSTS, JOIN, SAME, UNTOLD, USE, USE_OR_JOIN, verdict
from fairflare.functional.slopes import SHARES
from fairflare.tasks.folds import dealt

FEATURES, FRESH, FOLDS, POOL, WIDE = 10, 2000, 5, 120, 1280
SLOPES = np.random.default_rng(7).normal(0, 0.5, FEATURES)
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
Row = dict[str, float | str]
COLUMNS = ["regime", "federation", "what", "by", "true", "error", "held", "said", "false"]


@dataclass(frozen=True)
class Regime:
    """Standard deviations of intercepts, slopes, and every fifth hospital's slopes; sizes; and what is special."""

    intercept: float = 0.5
    slopes: float = 0.12
    odd: float = 0.5
    median: float = 110
    least: int = 30
    most: int = 500
    sites: int = 10
    level: float = -0.5
    special: str = ""
    deals: int = 2
    alike: bool = False


REGIMES = {
    "mixed": Regime(),
    "mixed, 10 deals": Regime(deals=10),
    "gain": Regime(0.3, 0.05, 0.05, 80),
    "none": Regime(0.5, 0.5, 0.5, 270, 150),
    "tiny": Regime(special="tiny"),
    "rare": Regime(0.3, 0.12, 0.12, 500, 170, 1500, level=-4.6, special="rare"),
    "shift": Regime(special="shift"),
    "reversed": Regime(special="reversed"),
    "5 hospitals": Regime(sites=5),
    "3 hospitals": Regime(sites=3),
    "1,280 columns": Regime(special="wide"),
    "visits": Regime(0.3, 0.05, 0.05, 80, special="visits"),
    "visits by row": Regime(0.3, 0.05, 0.05, 80, special="visits by row"),
    "shared patients": Regime(0.3, 0.05, 0.05, 80, special="visits, shared"),
    "shared patients, federation's folds": Regime(0.3, 0.05, 0.05, 80, special="visits, shared", alike=True),
}


@dataclass(frozen=True)
class Truth:
    """A simulated hospital, and fresh patients with their true risks."""

    hospital: Hospital
    fresh: Array
    risks: Array


def federation(rng: np.random.Generator, regime: Regime) -> list[Truth]:
    """Its hospitals, and one more that stays outside."""
    people = rng.normal(size=(2000, FEATURES)), rng.normal(size=2000)
    found = []
    while len(found) <= regime.sites:
        odd = len(found) % 5 == 4
        n = int(np.clip(regime.median * np.exp(rng.normal(0, 0.7)), regime.least, regime.most))
        if regime.special == "tiny" and len(found) % 2:
            n = int(rng.integers(12, 30))
        own = SLOPES + rng.normal(0, regime.odd if odd else regime.slopes, FEATURES)
        own = -own if regime.special == "reversed" and len(found) == 3 else own
        shift = regime.special == "shift"
        level, centre = rng.normal(regime.level, regime.intercept), rng.normal(0, 1.0 if shift else 0.5, FEATURES)
        width = np.exp(rng.normal(0, 0.2, FEATURES))

        def risk(x: Array, effect: Array | float = 0.0, level=level, own=own, shift=shift) -> Array:
            bent = 0.3 * (np.abs(x[:, 0]) - 0.8) + 0.2 * x[:, 1] * x[:, 2] if shift else 0.0
            return expit(level + x @ own + bent + effect)

        fresh = centre + width * rng.normal(size=(FRESH, FEATURES))
        true = risk(fresh)
        if "visits" in regime.special:
            owner = np.repeat(np.arange(n), rng.integers(1, 7, n))
            names = 10_000 * (len(found) + 1) + np.arange(n)
            whole, effects = rng.normal(size=(n, FEATURES)), rng.normal(size=n)
            if regime.special.endswith("shared"):
                known = rng.choice(POOL, n // 5, replace=False) if n // 5 else np.zeros(0, dtype=int)
                whole[: n // 5], effects[: n // 5] = people[0][known], people[1][known]
                names[: n // 5] = known
            kept = 0.7
            x = centre + width * (
                np.sqrt(kept) * whole[owner] + np.sqrt(1 - kept) * rng.normal(size=(len(owner), FEATURES))
            )
            y = (rng.random(len(owner)) < risk(x, 1.5 * effects[owner])).astype(float)
            true = np.stack([risk(fresh, 1.5 * node) for node in NODES], axis=1) @ (WEIGHTS / WEIGHTS.sum())
            patients = None if regime.special.endswith("row") else owner
            identities = names.astype(np.uint64)[owner] if regime.alike else None
        else:
            x = centre + width * rng.normal(size=(n, FEATURES))
            y, patients, identities = (rng.random(n) < risk(x)).astype(float), None, None
        if min(y.sum(), len(y) - y.sum()) < (2 if n < 30 else 5):
            continue
        one = [np.hstack([np.ones((len(rows), 1)), rows]) for rows in (x, fresh)]
        found.append(Truth(Hospital.of(one[0], y, patients, identities), one[1], true))
    return found


def on_wide(rng: np.random.Generator, truths: list[Truth], further: Truth) -> list[Truth]:
    """Features as noisy projections of those that count, on the components of all hospitals but the further one."""
    loadings = rng.normal(0, 0.3, (FEATURES, WIDE))

    def wide(x: Array) -> Array:
        return np.hstack([x[:, :1], x[:, 1:] @ loadings + rng.normal(size=(len(x), WIDE))])

    hospitals = {str(k): replace(one.hospital, x=wide(one.hospital.x)) for k, one in enumerate(truths)}
    moved, _, on = on_components(hospitals)
    found = [Truth(moved[str(k)], on(wide(one.fresh)), one.risks) for k, one in enumerate(truths)]
    last = replace(further.hospital, x=on(wide(further.hospital.x)))
    return [*found, Truth(last, on(wide(further.fresh)), further.risks)]


def deal(rng: np.random.Generator, one: Hospital, deals: int) -> np.ndarray:
    named = one.patient if one.n < len(one.y) else None
    return np.stack([dealt(one.y.astype(int), FOLDS, int(rng.integers(1 << 30)), "site", named) for _ in range(deals)])


def rows_of(number: int, regime: Regime, seed: int) -> Iterator[Row]:
    """A row per estimand, verdict and hospital of one federation."""
    rng = np.random.default_rng([seed, number])
    *truths, further = federation(rng, regime)
    if regime.special == "wide":
        *truths, further = on_wide(rng, truths, further)
    hospitals = {f"{i:02}": one.hospital for i, one in enumerate(truths)}
    plan = Plan(FOLDS, regime.deals, 0.05 if regime.special == "rare" else 0.35, 0.005, shared_patients=regime.alike)
    if regime.alike:
        folds = {name: folds_of(name, one, plan) for name, one in hospitals.items()}
    else:
        folds = {name: deal(rng, one, regime.deals) for name, one in hospitals.items() if one.n >= 30}
    found, threshold = decide(hospitals, folds, plan), plan.threshold
    pooled = bool(found.averages)
    for name, answer in found.answers.items():
        if (one := answer.assessment) is None:
            continue
        about = truths[int(name)]
        risks = {key: expit(about.fresh @ model) for key, model in one.models.items()}
        losses = {key: float(((risk - about.risks) ** 2).mean()) for key, risk in risks.items()}
        true = {key: losses[a] - losses[b] for key, (a, b) in ESTIMANDS.items()}
        for key, value in true.items():
            estimate = one.estimates[key]
            yield interval_row(number, key, "own", value, estimate.value, estimate.interval())
            if pooled:
                of = answer.by_outcomes[key]
                yield interval_row(number, key, "posterior", value, of.mean, of.interval())
            if (by := answer.by_regression.get(key)) is not None:
                yield interval_row(number, key, "regression", value, by.mean, by.interval())
        odds = threshold / (1 - threshold)
        worth = {
            key: float(((about.risks - (1 - about.risks) * odds) * (risk > threshold)).mean())
            for key, risk in risks.items()
        }
        for key, (a, b) in {"U": (OWN, OUTSIDE), "J": (OWN, MEMBER), "D": (OUTSIDE, MEMBER)}.items():
            value, estimate = worth[b] - worth[a], one.estimates[NET + key]
            yield interval_row(number, f"net benefit {key}", "own", value, estimate.value, estimate.interval())
            if pooled:
                of = answer.by_outcomes[NET + key]
                yield interval_row(number, f"net benefit {key}", "posterior", value, of.mean, of.interval())
        calibrated = calibration_of(about, about.fresh @ one.outside)
        for key, value in calibrated.items():
            mean, variance = getattr(one.calibration, key)
            ends = mean - 1.96 * variance**0.5, mean + 1.96 * variance**0.5
            yield interval_row(number, f"calibration {key}", "own", value, mean, ends)
        yield from verdict_rows(number, answer, pooled, true)
        move = risks[MEMBER] - risks[OWN]
        gains = {s: losses[OWN] - float(((risks[OWN] + s * move - about.risks) ** 2).mean()) for s in SHARES}
        best, m = max(gains.values()), margin(one.hospital.prevalence)
        for by, mix, limit in (("margin", answer.mix, m), ("strict", answer.strict_mix, 0.0)):
            gain = gains[min(gains, key=lambda s: abs(s - mix.share))]
            row = {"federation": number, "what": "mix", "by": by, "true": best, "error": gain - best}
            yield {**row, "held": float(gain >= -limit)}
    if pooled:
        for key, value in calibration_of(further, further.fresh @ found.training.coefficients).items():
            ends = found.averages[key].prediction
            yield interval_row(number, f"calibration {key}", "further hospital", value, np.nan, ends)


def calibration_of(about: Truth, logits: Array) -> dict[str, float]:
    ones, owner = np.ones((len(logits), 1)), np.arange(len(logits))
    level = sandwich(ones, about.risks, owner, logits)[0][0]
    slope = sandwich(np.stack([ones[:, 0], logits], axis=1), about.risks, owner, np.zeros(len(logits)))[0][1]
    return {"intercept": level, "slope": slope, "log_ratio": float(np.log(about.risks.sum() / expit(logits).sum()))}


def interval_row(number: int, key: str, by: str, true: float, value: float, ends: tuple[float, float]) -> Row:
    held = float(ends[0] <= true <= ends[1])
    return {"federation": number, "what": key, "by": by, "true": true, "error": value - true, "held": held}


def verdict_rows(number: int, answer: Answer, pooled: bool, true: dict[str, float]) -> Iterator[Row]:
    m = margin(answer.hospital.prevalence)
    u, j, d = (true[key] for key in "UJD")
    wrong = {
        ALONE: u > m or j > m,
        USE: u < 0 or d > m,
        JOIN: j < 0 or d < 0,
        USE_OR_JOIN: u < 0 or j < 0 or abs(d) > m,
        UNTOLD: False,
        ADDS: d < 0,
        SAME: abs(d) > m,
        COSTS: d > 0,
    }
    own = [answer.assessment.estimates[key] for key in "UJD"]
    arms = {"own": verdict(*own, m, False)}
    if pooled:
        arms["posterior"] = verdict(*(answer.by_outcomes[key] for key in "UJD"), m, True)
        arms["regression"] = verdict(*(answer.distribution(key) for key in "UJD"), m, True)
        arms["final"] = answer.verdict
    for by, answer in arms.items():
        for question, said in (("question 1", answer.answer), ("question 2", answer.participation)):
            yield {"federation": number, "what": question, "by": by, "said": said, "false": float(wrong[said])}


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Of intervals the share that hold, of verdicts the share told and false; per cent, with errors by federation."""
    found = []
    for (regime, what, by), part in rows.groupby(["regime", "what", "by"], sort=False):
        about = {"regime": regime, "what": what, "by": by, "federations": part["federation"].nunique()}
        if what.startswith("question"):
            for said in part["said"].unique():
                told = part[part["said"] == said]
                false = told["false"].mean() if said != UNTOLD else np.nan
                found.append({**about, "said": said, "told": 100 * len(told) / len(part), "false": 100 * false})
                found[-1]["false of all"] = 100 * told["false"].sum() / len(part)
            continue
        each = part.groupby("federation")["held"].mean()
        error = each.std(ddof=1) / len(each) ** 0.5 if len(each) > 1 else np.nan
        numbers = {"held": 100 * part["held"].mean(), "held error": 100 * error}
        numbers |= {"true x 1000": 1000 * part["true"].mean(), "bias x 1000": 1000 * part["error"].mean()}
        found.append({**about, **numbers})
    return pd.DataFrame(found).round(2)


def rows_file(path: Path | None) -> pd.DataFrame:
    return pd.read_csv(path) if path and path.exists() else pd.DataFrame({"regime": [], "federation": []})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--federations", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--regimes", nargs="+", choices=REGIMES, default=list(REGIMES))
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--toy", action="store_true")
    given = parser.parse_args()
    tables = [rows_file(given.rows)]
    ended = set(zip(tables[0]["regime"], tables[0]["federation"], strict=True))
    for regime in ["mixed"] if given.toy else given.regimes:
        start = time.process_time()
        for number in range(2 if given.toy else given.federations):
            if (regime, number) in ended:
                continue
            rows = pd.DataFrame(rows_of(number, REGIMES[regime], given.seed)).assign(regime=regime)
            tables.append(rows.reindex(columns=COLUMNS))
            if given.rows:
                tables[-1].to_csv(given.rows, mode="a", header=not given.rows.exists(), index=False)
        print(f"{regime}: {time.process_time() - start:.1f} CPU s", flush=True)
    table = summary(pd.concat(tables))
    if given.out:
        table.to_csv(given.out, index=False)
    intervals = table[table["held"].notna() & ~table["what"].str.contains("calibration")]
    print(intervals[["regime", "what", "by", "federations", "held", "true x 1000"]].to_string(index=False))
    questions = table[table["what"].str.startswith("question")]
    print(questions[["regime", "what", "by", "said", "told", "false of all"]].to_string(index=False))


if __name__ == "__main__":
    main()
