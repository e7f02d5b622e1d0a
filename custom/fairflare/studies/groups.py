# SPDX-License-Identifier: Apache-2.0
"""What joining gives the groups of patients of one hospital, as far as counts allow it to be told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairflare.functional.decision import Array, Benefit, Design, brier_benefit, of_differences
from fairflare.functional.exchange import MIX_KEYS, answered_alone
from fairflare.functional.survival import concordant_pairs
from fairflare.report.join import MIX, OutOfFold, sentence
from fairflare.tasks.folds import untestable

CLIPPED = 0.005
"""Risks lie within [this, 1 - this] for the log loss."""
SCORES = ("log_loss", "auc")
C_INDEX, DICE = "C-index", "Dice"
PLAIN = (
    "a plain difference in {} of the models of the folds, by each hospital's patients alone: how often its interval "
    "holds is not validated, and there is no mix"
)


def by_group(
    tested: OutOfFold, attributes: Mapping[str, Sequence[str]], candidates: Sequence[str], design: Design
) -> dict[str, Any]:
    """Group, as "sex=female" -> n, and candidate -> benefit with its interval, from these patients alone.

    An attribute is told where each of its values, "" for unknown, has 30 patients and 5 of each class: the benefit of a
    smaller one would follow from that of all patients and of the others.

    Args:
        tested: the hospital's patients.
        attributes: attribute -> (n,) each patient's value, "" where it is not known.
        candidates: names, in the order of the risks.
        design: how patients were tested.
    """
    found: dict[str, Any] = {}
    for name, values in attributes.items():
        masks = {value: np.asarray(values) == value for value in sorted(set(values))}
        if len(masks) < 2 or any(untestable(tested.labels[mask].astype(np.int64)) for mask in masks.values()):
            continue
        for value, mask in masks.items():
            labels, (own, *others) = tested.labels[mask], tested.risks[:, :, mask]
            each = {c: brier_benefit(labels, own, risks, design) for c, risks in zip(candidates, others, strict=True)}
            told = {c: _told(b, design) for c, b in each.items()}
            found[f"{name}={value or 'unknown'}"] = {"n": int(mask.sum()), "candidates": told}
    return found


def by_score(tested: OutOfFold, candidates: Sequence[str], design: Design) -> dict[str, Any]:
    """Score -> candidate -> how much better it is than the own model, from this hospital's patients alone.

    Plain differences of the models of the folds; nobody has shown how often these intervals hold.

    Args:
        tested: the hospital's patients, with their folds; the others as of ``by_group``.
    """
    labels, (own, *others) = tested.labels, tested.risks
    found: dict[str, Any] = {}
    assert (folds := tested.folds) is not None
    for c, risks in zip(candidates, others, strict=True):
        for score, one in zip(SCORES, (log_loss_benefit(labels, own, risks), auc_benefit(labels, own, risks, folds))):
            found.setdefault(score, {})[c] = _told(one, design)
    return found


def differences(tested: Mapping[str, OutOfFold], candidates: Sequence[str], design: Design) -> dict[str, Any]:
    """As ``report.join.answers``, of times by the C-index and of masks by Dice, from each hospital's patients alone.

    Args:
        tested: hospital -> its patients: times and events (n, 2) with log risks, or masks with each one's Dice.
            The others as of ``by_group``.
    """
    sites: dict[str, Any] = {}
    times = next(iter(tested.values())).labels.ndim == 2
    for site, one in tested.items():
        own, *others = one.risks
        assert (folds := one.folds) is not None
        rows = {}
        for name, new in zip(candidates, others, strict=True):
            plain = of_differences(new - own, new - own)
            benefit = c_index_benefit(one.labels, own, new, folds) if times else plain
            rows[name] = answered_alone(benefit, design, 0.025)
        row = {"n": len(one.labels), "by": "outcomes", "candidates": rows, MIX: dict.fromkeys(MIX_KEYS, 0.0)}
        sites[site] = {**row, "answer": sentence(row, candidates)}
    score = C_INDEX if times else DICE
    about = {"score": score, "folds": design.folds, "repeats": design.repeats, "kappa": 0.0, "margin": 0.0}
    together = {"candidates": {c: {} for c in candidates}, "weights": dict.fromkeys(candidates, 1 / len(candidates))}
    return {**about, **together, "sites": sites, "note": PLAIN.format(score)}


def _told(one: Benefit, design: Design) -> dict[str, float]:
    return dict(zip(("benefit", "low", "high"), (one.mean, *one.interval(design)), strict=True))


def auc_benefit(labels: Array, own: Array, candidate: Array, folds: Array) -> Benefit:
    """Of the areas under the ROC curves, candidate less own, over pairs of patients of one fold.

    Patients' shares are the influence function (DeLong et al., Biometrics 44, 1988), whose mean is the difference.

    Args:
        labels, own, candidate: as of ``brier_benefit``.
        folds: (R, n) whole numbers; a fold of one class alone has no pairs, but some fold of each repetition has.
    """
    shares = _auc_shares(labels, candidate, folds) - _auc_shares(labels, own, folds)
    return of_differences(shares, candidate - own)


def c_index_benefit(targets: Array, own: Array, candidate: Array, folds: Array) -> Benefit:
    """Of Harrell's C-indices, candidate less own, over comparable pairs of patients of one fold, as ``auc_benefit``.

    Args:
        targets: (n, 2) times and events.
        own, candidate: (R, n) log risks out of fold.
        folds: (R, n) whole numbers.
    """
    return of_differences(_c_shares(targets, candidate, folds) - _c_shares(targets, own, folds), candidate - own)


def _c_shares(targets: Array, risks: Array, folds: Array) -> Array:
    """(R, n) as ``_auc_shares``; the infinitesimal jackknife's, as of ``survival.concordance_error``."""
    won, pairs = np.zeros(risks.shape), np.zeros(risks.shape)
    for r, fold in {(r, fold) for r, row in enumerate(folds) for fold in row}:
        rows = folds[r] == fold
        won[r, rows], pairs[r, rows] = concordant_pairs(targets[rows, 0], targets[rows, 1], risks[r, rows])
    both = pairs.sum(axis=1, keepdims=True)  # each pair at either patient
    if not both.all():
        return np.full(risks.shape, np.nan)
    index = won.sum(axis=1, keepdims=True) / both
    return np.asarray(index + 2 * len(targets) * (won - index * pairs) / both)


def _auc_shares(labels: Array, risks: Array, folds: Array) -> Array:
    """(R, n) whose mean over patients is the area of each repetition, and whose variance is n times its own."""
    ill, pairs = labels > 0.5, np.zeros((len(risks), 1))
    wins, every = np.zeros(risks.shape), np.zeros(risks.shape)
    for r, fold in {(r, fold) for r, row in enumerate(folds) for fold in row}:
        for mine, sign in ((ill, 1), (~ill, -1)):
            some, others = (folds[r] == fold) & mine, np.sort(sign * risks[r, (folds[r] == fold) & ~mine])
            ends = [np.searchsorted(others, sign * risks[r, some], side) for side in ("left", "right")]
            wins[r, some], every[r, some] = np.mean(ends, axis=0), len(others)
        pairs[r] += ((folds[r] == fold) & ill).sum() * ((folds[r] == fold) & ~ill).sum()
    area = (wins * ill).sum(axis=1, keepdims=True) / pairs
    return np.asarray(area + len(labels) * (wins - area * every) / pairs)


def log_loss_benefit(labels: Array, own: Array, candidate: Array) -> Benefit:
    """Of the plain difference of log losses; arguments as of ``brier_benefit``."""

    def loss(risks: Array) -> Array:
        kept = np.clip(risks, CLIPPED, 1 - CLIPPED)
        return np.asarray(-np.log(np.where(labels > 0.5, kept, 1 - kept)))

    return of_differences(loss(own) - loss(candidate), candidate - own)
