# SPDX-License-Identifier: Apache-2.0
"""What joining gives the groups of patients of one hospital, as far as counts allow it to be told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairflare.functional.decision import Benefit, Design, auc_benefit, brier_benefit, log_loss_benefit
from fairflare.report.join import OutOfFold
from fairflare.tasks.folds import untestable

SCORES = ("log_loss", "auc")


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
        tested: the hospital's patients, with their folds.
        candidates: names, in the order of the risks.
        design: how patients were tested.
    """
    labels, (own, *others) = tested.labels, tested.risks
    found: dict[str, Any] = {}
    assert (folds := tested.folds) is not None
    for c, risks in zip(candidates, others, strict=True):
        for score, one in zip(SCORES, (log_loss_benefit(labels, own, risks), auc_benefit(labels, own, risks, folds))):
            found.setdefault(score, {})[c] = _told(one, design)
    return found


def _told(one: Benefit, design: Design) -> dict[str, float]:
    return dict(zip(("benefit", "low", "high"), (one.mean, *one.interval(design)), strict=True))
