# SPDX-License-Identifier: Apache-2.0
"""What a method of the house is worth to a hospital beside its own model: J of its model, from folds of a federation.

Each fold is a federated training of its own, so that the hospital's patients are tested by models that never saw them.
Classes are compared by the Brier score, read together from four hospitals on as J of the regression is. Times are
compared by the C-index and masks by Dice, by each hospital's patients alone: how often those intervals hold is not
validated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairflare.decision.estimands import Estimate, Folds, loss_difference, margin, mean_over_patients
from fairflare.decision.heterogeneity import MIN_HOSPITALS, average, posteriors
from fairflare.decision.regression import Array, Hospital, Rows
from fairflare.decision.verdicts import LEVEL, STRICT_LEVEL, UNTOLD, Distribution, too_few
from fairflare.functional.survival import concordant_pairs

Json = dict[str, Any]
GAINS, LOSES, SAME = "gains", "loses", "no difference that matters"
SMALL_DIFFERENCE = 0.005
"""Of C-indices and Dice, that does not matter."""
BRIER, C_INDEX, DICE = "brier", "C-index", "Dice"


def compared(
    hospitals: Mapping[str, Hospital],
    own: Mapping[str, Array],
    candidates: Mapping[str, Mapping[str, Array]],
    folds: Mapping[str, Rows],
    design: Folds,
    score: str = BRIER,
    attributes: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
    kappa: float | None = None,
) -> Json:
    """Method -> average, and sites: hospital -> estimate, interval, probability of harm, verdict, groups of patients.

    Args:
        hospitals: name -> its patients; of times and masks ``y`` is not read.
        own, candidates: hospital -> (R, N) out of fold: risks, log risks of times, or each image's Dice; of candidates
            by method.
        folds: hospital -> (R, N) in which each row is tested; for scores over pairs.
        score: ``BRIER``, ``C_INDEX`` or ``DICE``.
        attributes: hospital -> attribute -> (N,) values, "" where unknown; groups of enough patients are compared too.
        kappa: of the own model's excess error, see ``loss_difference``; None: as the design says.
    """
    less = design.kappa if kappa is None else kappa
    found: Json = {}
    for label, risks in candidates.items():
        estimates = {
            name: _estimate(hospitals[name], own[name], risks[name], folds.get(name), design.factor, less, score)
            for name in risks
        }
        pooled = score == BRIER and len(estimates) >= MIN_HOSPITALS
        known: dict[str, Distribution] = dict(posteriors(estimates, "J") if pooled else estimates)
        sites = {}
        for name, one in estimates.items():
            least = margin(hospitals[name].prevalence) if score == BRIER else SMALL_DIFFERENCE
            sites[name] = {"n": one.n, **_row(one, known[name], least, LEVEL if pooled else STRICT_LEVEL)}
            if score == BRIER and attributes:
                sites[name]["groups"] = _groups(
                    hospitals[name], own[name], risks[name], attributes[name], design.factor, less
                )
        about: Json = {"sites": sites}
        if pooled:
            variances = [one.variance / one.n for one in estimates.values()]
            about["average"] = average([one.value for one in estimates.values()], variances)._asdict()
        found[label] = about
    return found


def _estimate(
    hospital: Hospital, own: Array, new: Array, folds: Any, factor: float, kappa: float, score: str = BRIER
) -> Estimate:
    if score == BRIER:
        differences = loss_difference(hospital.y, own, new, kappa)
    elif score == C_INDEX:
        differences = _c_shares(hospital.y, new, folds) - _c_shares(hospital.y, own, folds)
    else:
        differences = new - own
    return mean_over_patients(differences, hospital, factor)


def _row(own: Estimate, of: Any, least: float, level: float) -> Json:
    low, high = of.interval()
    harm, value = float(of.below(0.0)), own.value if isinstance(of, Estimate) else of.mean
    if low >= -least and high <= least:
        verdict = SAME
    else:
        verdict = GAINS if harm < level else LOSES if harm > 1 - level else UNTOLD
    own_low, own_high = own.interval()
    about = {"own": own.value, "own_low": own_low, "own_high": own_high, "value": value, "low": low, "high": high}
    return {**{key: float(number) for key, number in about.items()}, "p_harm": harm, "verdict": verdict}


def _groups(
    hospital: Hospital, own: Array, new: Array, attributes: Mapping[str, Sequence[str]], factor: float, kappa: float
) -> Json:
    """Group, as "sex=female" -> n and estimate with its interval, from these patients alone.

    An attribute is told where each of its values, "" too, has patients enough: the benefit of a smaller group would
    follow from that of all patients and of the others.
    """
    found: Json = {}
    for name, values in attributes.items():
        masks = {value: np.asarray(values) == value for value in sorted(set(values))}
        parts = {
            value: Hospital.of(hospital.x[mask], hospital.y[mask], hospital.patient[mask])
            for value, mask in masks.items()
        }
        if len(masks) < 2 or any(too_few(part) for part in parts.values()):
            continue
        for value, mask in masks.items():
            one = _estimate(parts[value], own[:, mask], new[:, mask], None, factor, kappa)
            low, high = one.interval()
            found[f"{name}={value or 'unknown'}"] = {"n": one.n, "value": one.value, "low": low, "high": high}
    return found


def _c_shares(targets: Array, risks: Array, folds: Rows) -> Array:
    """(R, N) whose mean is Harrell's C-index of each deal, over comparable pairs of patients of one fold.

    A patient's share is the influence function (the infinitesimal jackknife), of ``targets`` (N, 2), times and events,
    and log risks (R, N). A fold without comparable pairs has none.
    """
    won, pairs = np.zeros(risks.shape), np.zeros(risks.shape)
    for r, fold in {(r, fold) for r, row in enumerate(folds) for fold in row}:
        rows = folds[r] == fold
        won[r, rows], pairs[r, rows] = concordant_pairs(targets[rows, 0], targets[rows, 1], risks[r, rows])
    both = pairs.sum(axis=1, keepdims=True)  # each pair at either patient
    if not both.all():
        return np.full(risks.shape, np.nan)
    index = won.sum(axis=1, keepdims=True) / both
    return np.asarray(index + 2 * len(targets) * (won - index * pairs) / both)
