# SPDX-License-Identifier: Apache-2.0
"""Recalibration at a hospital that did not train: fitted to one half of its patients and shown on the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fairflare.core.errors import UserError
from fairflare.core.seeds import derive
from fairflare.functional.calibration import Array
from fairflare.functional.recalibration import UNCHANGED, recalibrated, temperature

HALVES = 2
PENALTY = 2.0
"""How strongly what is fitted is drawn to leaving the model as it is, in cases' worth of information."""
LEAST = 20
"""Cases below which nothing is fitted."""
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Refit:
    """What came of it.

    Attributes:
        kind: "intercept", "slope" or "temperature".
        outputs: float64 (N, C) logits of every case after the fit to the half that it is not in.
        folds: what was fitted to each half.
        fitted: the same, fitted to all cases: what a hospital that uses the model would use.
        words: a sentence on it.
    """

    kind: str
    outputs: Array
    folds: Sequence[Mapping[str, float]]
    fitted: Mapping[str, float]
    words: str

    @property
    def log_probabilities(self) -> Array:
        """(N, C)."""
        from scipy.special import log_softmax

        found: Array = log_softmax(self.outputs, axis=1)
        return found


def cross_fitted(outputs: Array, targets: Ints, patients: Sequence[str], kind: str, seed: int) -> Refit:
    """Fit to each half of the patients and apply to the other half.

    Two classes: an intercept, or intercept and slope, on the logit; more: a temperature.

    Args:
        outputs: float64 (N, C), finite logits.
        targets: (N,).
        patients: (N,) whose cases they are; empty, or "" for one: each such case is a patient of its own.
        kind: "intercept" or "slope".
        seed: of the halves.

    Raises:
        UserError: the cases are too few, of one class, or of too few patients.
    """
    halves = _halves(targets, patients, seed)
    kind = kind if outputs.shape[1] == 2 else "temperature"
    changed, folds = np.empty_like(outputs), []
    for fit, held_out in halves:
        found = _fitted(outputs[fit], targets[fit], kind)
        changed[held_out] = _applied(outputs[held_out], found)
        folds.append(found)
    whole = _fitted(outputs, targets, kind)
    said = ", ".join(f"{name} {value:.3f}" for name, value in whole.items())
    words = (
        "Recalibrated: each case's risk comes from a fit to the other half of the patients; "
        f"fitted to all of them: {said}."
    )
    return Refit(kind, changed, folds, whole, words)


def _halves(targets: Ints, patients: Sequence[str], seed: int) -> list[tuple[Ints, Ints]]:
    """Two pairs of case numbers, nobody in both of a pair, the classes as even as that allows."""
    from sklearn.model_selection import StratifiedGroupKFold

    n = len(targets)
    if n < LEAST or len(np.unique(targets)) < HALVES:
        got = f"{n}" if n < LEAST else f"{n} of one class"
        raise UserError(f"--recalibrate: expected at least {LEAST} labelled cases of more than one class, got {got}")
    named = list(patients) or [""] * n
    groups = np.array([f"patient {one}" if one else f"case {k}" for k, one in enumerate(named)])
    if len(np.unique(groups)) < HALVES:
        raise UserError("--recalibrate: expected more than one patient, got one")
    folds = StratifiedGroupKFold(HALVES, shuffle=True, random_state=derive(seed, "recalibration") % 2**32)
    found = [(fit.astype(np.int64), rest.astype(np.int64)) for fit, rest in folds.split(targets, targets, groups)]
    if any(not len(part) or len(np.unique(targets[fit])) < HALVES for fit, rest in found for part in (fit, rest)):
        raise UserError("--recalibrate: expected patients of more than one class in either half")
    return found


def _fitted(outputs: Array, targets: Ints, kind: str) -> dict[str, float]:
    if kind == "temperature":
        return {"temperature": temperature(outputs, targets, PENALTY)}
    logits = outputs[:, 1] - outputs[:, 0]
    line, _ = recalibrated(logits, targets.astype(np.float64), UNCHANGED, PENALTY, slope=kind == "slope")
    return {"intercept": line.intercept, "slope": line.slope}


def _applied(outputs: Array, found: Mapping[str, float]) -> Array:
    if "temperature" in found:
        return np.asarray(outputs / found["temperature"])
    moved = found["intercept"] + found["slope"] * (outputs[:, 1] - outputs[:, 0])
    return np.stack((np.zeros_like(moved), moved), axis=1)
