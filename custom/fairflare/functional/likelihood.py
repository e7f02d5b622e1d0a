# SPDX-License-Identifier: Apache-2.0
"""Log-likelihoods of generalised linear models as sums over patients, and Newton's step on such sums.

McCullagh and Nelder, Generalized Linear Models, 2nd ed., 1989. Everything is float64. Everywhere the family is that of
the outcome (N,), N at least 1, a design is (N, p), coefficients and scores (p,), and an information (p, p).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

MOST_STEPS = 50
"""Of an intercept's own Newton iteration, which needs about five."""
CLOSE = 1e-12
"""Mean score of an intercept that is at its maximum."""
FLAT = 1e-8
"""Mean curvature below which the likelihood goes on rising without end."""
LARGEST_LOG = 50.0
"""Of an expected count; a step that goes beyond it makes the likelihood fall, and is halved."""
STARTING = 0.1
"""Added to counts where their logarithm is a first guess."""
NODES = 25
"""Of the quadrature over a site's own intercept."""
FAR = 50.0
"""A coefficient of a scaled feature beyond which the outcome is separated: odds of e^50 for one standard deviation."""
UNTOLD, FLOOR = 1e-6, 1e-2
"""Share of the information of a direction that is not told, and the least that it is a share of."""
SETTLED = 1e-9
"""Largest change of a coefficient in a step that is the last one."""
SINGULAR = 1e-7
"""Share of a coefficient's information, given the ones before, that tells it apart from these; masks round at 1e-9."""


COX_SUMS = "fairflare.functional.survival"
"""Of outcomes that are times, by a name that no reader of imports follows."""


class Terms(NamedTuple):
    """What a patient adds: log-likelihood, its first derivative in the linear predictor, and minus its second; (N,)."""

    value: torch.Tensor
    slope: torch.Tensor
    curvature: torch.Tensor


Family = Callable[[torch.Tensor, torch.Tensor], Terms]
"""Linear predictors (N,) and outcomes (N,) -> terms."""


def bernoulli(predictor: torch.Tensor, outcome: torch.Tensor) -> Terms:
    """Outcomes 0 and 1, logit link."""
    risk = predictor.sigmoid()
    of_one, of_none = (torch.nn.functional.logsigmoid(sign * predictor) for sign in (1, -1))
    return Terms(outcome * of_one + (1 - outcome) * of_none, outcome - risk, risk * (1 - risk))


def gaussian(predictor: torch.Tensor, outcome: torch.Tensor) -> Terms:
    """Amounts, identity link; the variance is 1 and cancels in the estimate."""
    error = outcome - predictor
    return Terms(-error.square() / 2, error, torch.ones_like(error))


def poisson(predictor: torch.Tensor, outcome: torch.Tensor, offset: torch.Tensor | float = 0.0) -> Terms:
    """Counts, log link; ``offset`` (N,) is the logarithm of what the count grows with."""
    logarithm = predictor + offset
    mean = logarithm.clamp(max=LARGEST_LOG).exp()
    return Terms(outcome * logarithm - mean - torch.lgamma(outcome + 1), outcome - mean, mean)


def poisson_start(predictor: torch.Tensor, outcome: torch.Tensor, offset: torch.Tensor | float = 0.0) -> Terms:
    """As ``poisson``, with slope and curvature from which one Newton step at 0 leads near the maximum.

    McCullagh and Nelder, 1989, section 2.5: the working response at means near the counts themselves.
    """
    mean = outcome + STARTING
    return Terms(poisson(predictor, outcome, offset).value, mean * (mean.log() - offset - predictor), mean)


@dataclass(frozen=True)
class Sums:
    """What one site adds to a federation's log-likelihood: value, gradient, minus its second derivatives; patients."""

    value: torch.Tensor
    score: torch.Tensor
    information: torch.Tensor
    examples: int


def sums(family: Family, design: torch.Tensor, outcome: torch.Tensor, coefficients: torch.Tensor) -> Sums:
    """A site's sums."""
    terms = family(design @ coefficients, outcome)
    information = design.T @ (terms.curvature[:, None] * design)
    return Sums(terms.value.sum(), design.T @ terms.slope, information, len(outcome))


def own_intercept(family: Family, predictor: torch.Tensor, outcome: torch.Tensor) -> float | None:
    """The intercept that maximises the likelihood given the rest of the linear predictor (N,).

    None where no finite one does, as where all outcomes are alike.
    """
    intercept, step = 0.0, 0.0
    best = float(family(predictor, outcome).value.sum())
    for _ in range(MOST_STEPS):
        terms = family(predictor + intercept, outcome)
        slope, curvature = float(terms.slope.sum()), float(terms.curvature.sum())
        if curvature <= FLAT * len(outcome):
            return None
        if abs(slope) <= CLOSE * len(outcome):
            return intercept
        step = slope / curvature
        while (value := float(family(predictor + intercept + step, outcome).value.sum())) < best and abs(step) > CLOSE:
            step /= 2
        intercept, best = intercept + step, max(best, value)
    return intercept if abs(step) < 1e-9 else None


def profiled(
    family: Family, design: torch.Tensor, outcome: torch.Tensor, coefficients: torch.Tensor, intercept: float
) -> Sums:
    """A site's sums of the log-likelihood that is maximised over the site's own intercept.

    The information is Schur's complement, so that Newton's steps and standard errors are those of the fit that has
    every intercept as a coefficient. The design has no column for the intercept, which is ``own_intercept`` at the
    coefficients.
    """
    terms = family(design @ coefficients + intercept, outcome)
    across, total = design.T @ terms.curvature, terms.curvature.sum()
    information = design.T @ (terms.curvature[:, None] * design) - torch.outer(across, across) / total
    return Sums(terms.value.sum(), design.T @ terms.slope, information, len(outcome))


def aliased(information: torch.Tensor, first: int | None = None) -> torch.Tensor:
    """bool (p,): coefficients that follow from those before them, such as the last level of a category's indicators.

    Args:
        first: index that counts as before all others: an intercept, which stands at the end.
    """
    p = len(information)
    order = [k for k in range(p) if k != first]
    order = order if first is None else [first, *order]
    left, found = information[order][:, order].clone(), torch.zeros(p, dtype=torch.bool)
    whole = left.diagonal().clone()
    for k in range(p):  # Gaussian elimination: what is left on the diagonal is what the ones before do not explain
        if float(left[k, k]) <= SINGULAR * float(whole[k]) or float(whole[k]) <= 0:
            found[order[k]] = True
            continue
        row = left[k] / left[k, k]
        left[k + 1 :] -= torch.outer(left[k + 1 :, k], row)
    return found


def inverted(information: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Its inverse (p, p) along what patients tell; bool (p,): coefficients in other directions, which have no error.

    Such a direction is one in which some feature tells the outcome, so that its information is used up.
    """
    scale = information.diagonal().clamp_min(FLOOR).sqrt()
    scaled = information / torch.outer(scale, scale)
    inverse = torch.linalg.pinv(scaled, rtol=UNTOLD, hermitian=True)
    return inverse / torch.outer(scale, scale), 1 - (scaled @ inverse).diagonal() > UNTOLD


def newton_step(score: torch.Tensor, information: torch.Tensor, dropped: torch.Tensor) -> torch.Tensor:
    """(p,) the solution of ``information`` times step = ``score``; 0 where ``dropped``, see ``aliased``.

    Where the information is not positive definite its eigenvalues count with their size, so that the step goes up.
    """
    kept = ~dropped
    diagonal = information.diagonal()[kept]
    scale = torch.where(diagonal > 0, diagonal, diagonal.abs() + 1).sqrt()
    scaled = information[kept][:, kept] / torch.outer(scale, scale)
    step = torch.zeros_like(score)
    if not bool(kept.any()):
        return step
    values, vectors = torch.linalg.eigh(scaled)
    if float(values[0]) <= 0:
        along = vectors.T @ (score[kept] / scale) / values.abs().clamp_min(SINGULAR)
        step[kept] = vectors @ along / scale
    else:
        step[kept] = torch.linalg.solve(scaled, score[kept] / scale) / scale
    return step


def marginal(
    family: Family, design: torch.Tensor, outcome: torch.Tensor, coefficients: torch.Tensor, log_sd: float
) -> Sums:
    """A site's sums of the log-likelihood from which its own intercept, normal with mean 0, is integrated out.

    By adaptive Gauss-Hermite quadrature (Pinheiro and Bates, J. Comput. Graph. Stat. 4, 1995); score by Fisher's
    identity, information by Louis' formula (J. R. Stat. Soc. B 44, 1982). The design has the shared intercept's
    column; the last parameter is ``log_sd``, the logarithm of the intercepts' standard deviation.
    """
    fixed, variance = design @ coefficients, math.exp(2 * log_sd)
    mode = 0.0
    for _ in range(MOST_STEPS):  # the penalty makes the curvature positive, and a full step may overshoot: halve it
        terms = family(fixed + mode, outcome)
        step = (float(terms.slope.sum()) - mode / variance) / (float(terms.curvature.sum()) + 1 / variance)
        mode += max(min(step, 2.0), -2.0)
        if abs(step) < CLOSE:
            break
    width = 1 / math.sqrt(float(family(fixed + mode, outcome).curvature.sum()) + 1 / variance)
    nodes, weights = (torch.from_numpy(each) for each in np.polynomial.hermite.hermgauss(NODES))
    own = mode + math.sqrt(2) * width * nodes
    found = [family(fixed + b, outcome) for b in own.tolist()]
    slope, curvature = (torch.stack([getattr(one, name) for one in found]) for name in ("slope", "curvature"))
    whole = torch.stack([one.value.sum() for one in found]) - own.square() / (2 * variance) - log_sd
    parts = weights.log() + nodes.square() + whole + math.log(width) - 0.5 * math.log(math.pi)
    value = parts.logsumexp(0)
    posterior = (parts - value).exp()
    scores = torch.cat((slope @ design, (own.square() / variance - 1)[:, None]), dim=1)
    score = posterior @ scores
    information = torch.zeros(len(score), len(score), dtype=score.dtype)
    information[:-1, :-1] = design.T @ ((posterior @ curvature)[:, None] * design)
    information[-1, -1] = 2 * (posterior @ own.square()) / variance
    centred = scores - score
    return Sums(value, score, information - centred.T @ (posterior[:, None] * centred), len(outcome))


def fitted(
    sums_at: Callable[[torch.Tensor], Sums], p: int, *, first: int | None = None, far: float = FAR
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """One site's own estimate (p,) and its variances (p,), nan where aliased or flat, see ``inverted``.

    None where the likelihood has no maximum, as where one feature tells who has the outcome.

    Args:
        sums_at: coefficients -> the site's sums there.
        first: see ``aliased``; an intercept, without which there is no fit.
        far: the largest coefficient that still is an estimate.
    """
    at = torch.zeros(p, dtype=torch.float64)
    best = float("-inf")
    for _ in range(MOST_STEPS):
        found = sums_at(at)
        dropped = aliased(found.information, first=first)
        if bool(dropped.all() if first is None else dropped[first]) or float(at.abs().max()) > far:
            return None
        step = newton_step(found.score, found.information, dropped)
        best = max(best, float(found.value))
        while float(sums_at(at + step).value) < best and float(step.abs().max()) > CLOSE:
            step = step / 2
        at = at + step
        if float(step.abs().max()) < SETTLED:
            variances = torch.full_like(at, float("nan"))
            kept = ~dropped | (at != 0)  # or moved before its information was used up
            inverse, flat = inverted(found.information[kept][:, kept])
            variances[kept] = torch.where(flat, float("nan"), inverse.diagonal())
            return torch.where(variances.isnan(), float("nan"), at), variances
    return None
