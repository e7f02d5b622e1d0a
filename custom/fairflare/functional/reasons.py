# SPDX-License-Identifier: Apache-2.0
"""Why a hospital loses or gains under FedAvg on a table: client drift, its level, its slopes; each with a remedy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fairflare.functional.decision import Array, Benefit, Design, Owners, average, brier_benefit, of_differences

PARTS = ("drift", "level", "rest")
REMEDIES = {
    "drift": "the local training between two averages costs this: fit the regression exactly (glm), or train with "
    "fewer local steps per round",
    "level": "one intercept for all costs this: an intercept of its own (the step recalibrate, or glm with "
    "intercept=site)",
    "rest": "shared slopes cost this beside the own model: a personal model (ditto), the safe mix, or staying alone",
}
KEEP = {
    "drift": "FedAvg is no worse here than the exact fit: keep it",
    "level": "the shared intercept is right here: none of its own is needed",
    "rest": "the other hospitals' patients help: with an intercept of its own the shared model is better than its own",
}
UNCLEAR = "cannot be told from these patients"


class Models(NamedTuple):
    """(R, n) risks out of fold of the same patients; from one to the next, one thing changes.

    Attributes:
        fedavg: by FedAvg's model.
        exact: by the regression that pooled patients would give, of the same form and penalty.
        level: by that regression with an intercept of the hospital's own.
        own: by the best model that the hospital has alone.
    """

    fedavg: Array
    exact: Array
    level: Array
    own: Array


def parts(labels: Array, of: Models, design: Design, patients: Owners | None = None) -> dict[str, Benefit]:
    """What FedAvg loses at one hospital, in Brier score, as parts that add up; above 0 is a loss.

    drift: FedAvg minus exact. level: exact minus exact with an own intercept. rest: that minus the own model, less what
    more patients still give the own model (as ``brier_benefit``). The first two compare models of the federation, whose
    loss hardly falls with the hospital's own patients; FedAvg's own benefit has the correction throughout.

    Args:
        labels: (N,) 0 or 1.
        patients: (N,) whose row each is; None: each row is another patient.

    Returns:
        For each of ``PARTS`` the sums whose ``mean`` is the part and whose ``interval`` is its interval.

    Raises:
        ValueError: risks that are not (R, N) within [0, 1].
    """
    shape = (design.repeats, len(labels))
    for name, risks in of._asdict().items():
        if risks.shape != shape or not bool(((risks >= 0) & (risks <= 1)).all()):
            raise ValueError(f"{name}: expected risks {shape} within 0..1, got {risks.shape}")
    drift, level = (
        of_differences((first - labels) ** 2 - (then - labels) ** 2, then - first, patients)
        for first, then in ((of.fedavg, of.exact), (of.exact, of.level))
    )
    gain = brier_benefit(labels, of.own, of.level, design, patients)
    return {"drift": drift, "level": level, "rest": gain._replace(mean=-gain.mean)}


Told = dict[str, dict[str, float | str]]
"""Part -> loss, low and high (95 % interval), and the remedy in words."""


def explained(sites: Mapping[str, tuple[Array, Models, Owners | None]], design: Design) -> tuple[dict[str, Told], Told]:
    """What is said to each hospital, and of their average, where every one counts once ({} of a single hospital).

    ``sites``: hospital -> labels, models and patients, as of ``parts``.
    """
    found = {site: parts(labels, models, design, patients) for site, (labels, models, patients) in sites.items()}
    rows = {
        site: {name: _told(name, part.mean, *part.interval(design)) for name, part in of.items()}
        for site, of in found.items()
    }
    if len(found) < 2:
        return rows, {}
    told = {}
    for name in PARTS:
        each = [(1.0, part.mean, part.mean**2, part.variance / part.n) for part in (of[name] for of in found.values())]
        told[name] = _told(name, *average(np.sum(each, axis=0).tolist()))
    return rows, told


def _told(name: str, loss: float, low: float, high: float) -> dict[str, float | str]:
    words = REMEDIES[name] if low > 0 else KEEP[name] if high < 0 else UNCLEAR
    return {"loss": loss, "low": low, "high": high, "remedy": words}
