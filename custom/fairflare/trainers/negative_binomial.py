# SPDX-License-Identifier: Apache-2.0
"""Exact negative binomial regression of counts: coefficients and dispersion from one Newton step on sums per round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from fairflare.core.registry import trainer
from fairflare.core.types import LocalWork, Offer
from fairflare.functional.likelihood import LARGEST_LOG, Sums, Terms, own_intercept
from fairflare.trainers.newton import Newton, _with_ones, family_of

SMALLEST = 15.0
"""Minus the logarithm of a dispersion that is as good as none; beyond it the gamma functions cancel."""


class Dispersed(NamedTuple):
    """Per patient (N,): value, its first derivatives in the predictor and in log alpha, and minus the second ones."""

    value: torch.Tensor
    slope: torch.Tensor
    slope_alpha: torch.Tensor
    curvature: torch.Tensor
    across: torch.Tensor
    curvature_alpha: torch.Tensor


def negative_binomial(logarithm: torch.Tensor, outcome: torch.Tensor, log_alpha: float) -> Dispersed:
    """Counts of mean mu = exp(logarithm) and variance mu + alpha mu^2 ("NB2").

    Hilbe, Negative Binomial Regression, 2nd ed., 2011, chapter 8; with r = 1 / alpha.

    Args:
        logarithm: (N,) linear predictor and offset.
        outcome: (N,) counts.
        log_alpha: logarithm of the dispersion.
    """
    mean, r = logarithm.clamp(max=LARGEST_LOG).exp(), torch.tensor(min(-log_alpha, SMALLEST), dtype=torch.float64).exp()
    both, size = r + mean, outcome + r
    value = torch.lgamma(size) - torch.lgamma(r) - torch.lgamma(outcome + 1)
    value = value + outcome * logarithm - outcome * both.log() - r * torch.log1p(mean / r)
    in_r = size.digamma() - r.digamma() - torch.log1p(mean / r) + (mean - outcome) / both
    twice = torch.polygamma(1, size) - torch.polygamma(1, r) + mean / (r * both) + (outcome - mean) / both**2
    off = r * (outcome - mean) / both
    return Dispersed(value, off, -r * in_r, r * mean * size / both**2, off * mean / both, -(r * r * twice + r * in_r))


@trainer("negative-binomial")
@dataclass(frozen=True)
class NegativeBinomial(Newton):
    """Newton's method on counts that vary more than Poisson's: their variance is mu + alpha mu^2.

    The dispersion alpha is estimated together with the coefficients; its logarithm stands where random intercepts have
    that of their spread, and moves from the fourth round on. Sites' own fits are not made.
    """

    def _sums(self, work: LocalWork, design: torch.Tensor, outcome: torch.Tensor) -> Sums:
        network: Any = work.network
        weight, bias = network.weight.detach().cpu(), network.bias.detach().cpu()
        log_alpha = float(network.log_sd.detach())
        offset = outcome[:, 1].log() if outcome.dim() > 1 else torch.zeros_like(outcome)
        if not float(network.best[1]):  # a first round as Poisson's, from which one step leads near the maximum
            return super()._sums(work, design, outcome)
        _, counts = family_of("poisson", outcome)
        if self.intercept == "site":
            alone = own_intercept(_terms(offset, log_alpha), design @ weight, counts)
            if alone is None:  # no event at all, whatever the coefficients
                p = len(weight) + 2
                return Sums(weight.new_zeros(()), weight.new_zeros(p), weight.new_zeros(p, p), len(counts))
            network.bias.data.fill_(alone)
            bias = bias.new_full((1,), alone)
        found = negative_binomial(design @ weight + bias + offset, counts, log_alpha)
        rows = _with_ones(design)
        score = torch.cat((rows.T @ found.slope, found.slope_alpha.sum()[None]))
        across = (rows.T @ found.across)[:, None]
        top = torch.cat((rows.T @ (found.curvature[:, None] * rows), across), 1)
        information = torch.cat((top, torch.cat((across, found.curvature_alpha.sum()[None, None])).T))
        if self.intercept == "site":  # Schur's complement of the site's own intercept, whose place stays empty
            with_own = information[:, -2]
            information = information - torch.outer(with_own, with_own) / with_own[-2]
            information[-2], information[:, -2], score[-2] = 0.0, 0.0, 0.0
        return Sums(found.value.sum(), score, information, len(counts))

    def dropped(self, information: torch.Tensor) -> torch.Tensor:
        found = super().dropped(information)
        found[-1] = not float(information[-1, -1])
        return found

    def missing(self, offer: Offer) -> str:
        if offer.family != "poisson":
            return "it needs counts"
        both = "expected shared or site, as dispersion and spread of intercepts are not fitted together, got random"
        return f"intercept: {both}" if self.intercept == "random" else ""

    def _own_fit(self, work: LocalWork, design: torch.Tensor, outcome: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(work.network.own)  # type: ignore[arg-type]  # a buffer


def _terms(offset: torch.Tensor, log_alpha: float) -> Callable[[torch.Tensor, torch.Tensor], Terms]:
    """What ``own_intercept`` maximises."""

    def family(predictor: torch.Tensor, counts: torch.Tensor) -> Terms:
        found = negative_binomial(predictor + offset, counts, log_alpha)
        return Terms(found.value, found.slope, found.curvature)

    return family
