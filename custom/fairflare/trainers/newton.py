# SPDX-License-Identifier: Apache-2.0
"""Exact regression: sites send sums of the log-likelihood's derivatives, the server makes Newton's step on them.

Negative binomial regression of counts has its own trainer: coefficients and dispersion from one step per round.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch

from fairflare.core.registry import method, trainer
from fairflare.core.types import Batch, Info, LocalWork, Objective, Offer, StateDict
from fairflare.core.validation import Range
from fairflare.functional import likelihood as ml
from fairflare.trainers.base import Optimizer, ServerState, Trainer

BIAS, SPREAD, OWN = "bias", "log_sd", "own_fit"
SETTLING = 3
"""Rounds before the intercepts' spread moves: far from the maximum it would be thrown about."""
WORSE = 0.05
"""Share by which the likelihood may fall before half of a step is taken back; a rule's weights move it as well."""
HALVINGS = 5
"""Of one step; what is still worse then is so by the weights."""


@trainer("newton")
@dataclass(frozen=True)
class Newton(Trainer):
    """Newton's method (iteratively reweighted least squares) on the federation's log-likelihood.

    Logistic regression of two classes, linear regression of amounts, Poisson regression of counts with a log link.

    McCullagh and Nelder, Generalized Linear Models, 1989, section 2.5; the sums over sites are those of Wu et al.,
    "Grid Binary LOgistic REgression (GLORE)", JAMIA 19, 2012. With weights n_k / n the result is the pooled fit's;
    other weights of a rule weigh the mean log-likelihoods of sites. Of times to an event it is Cox's model stratified
    by hospital, from each one's partial likelihood: its baseline hazard, and every time, stays there.

    Args:
        intercept: "shared"; "site": every site has its own, a fixed effect that stays there, and the likelihood is
            maximised over it; "random": sites' own are normal about the shared one and integrated out. Cox's model has
            none, whatever is said here.
        ridge: penalty ridge / 2 times the squared coefficients, subtracted from the mean log-likelihood of a patient;
            intercepts are free.
    """

    model: ClassVar[str] = "regression"
    alone: ClassVar[str] = "newton-alone"
    sums_only: ClassVar[bool] = True
    few: ClassVar[str] = "sums over fewer patients could be solved for single ones"

    intercept: Literal["shared", "site", "random"] = "shared"
    ridge: Annotated[float, Range(0, 1e6)] = 0.0

    def train(self, work: LocalWork) -> float:
        """Fill the network's sums at the coefficients that were received; returns the mean loss there."""
        inputs, targets = [], []
        for batch in work.data.fixed("train", work.training.batch_size):
            work.stop_if_aborted()
            inputs.append(batch.inputs.double().cpu())
            targets.append(batch.targets.double().cpu())
        design, outcome = torch.cat(inputs), torch.cat(targets)
        found = self._sums(work, design, outcome)
        entries = {
            "score": found.score,
            "information": found.information,
            "value": found.value.reshape(1),
            "between": torch.outer(found.score, found.score),
            "own": self._own_fit(work, design, outcome),
        }
        if work.family != "gaussian":  # whose sums say the same whatever the coefficients are
            work.support = self._support(work, design, outcome)
        state = work.network.state_dict()
        for name, total in entries.items():
            state[name].copy_(total / found.examples)
        work.steps = 1
        return -float(found.value) / found.examples

    def _own_fit(self, work: LocalWork, design: torch.Tensor, outcome: torch.Tensor) -> Any:
        """What the site's own fit adds, see ``Regression.own``; it is made once in a run."""
        if OWN not in work.memory:
            work.memory[OWN] = _own_sums(design, outcome, work.family)
        return work.memory[OWN]

    def fewest(self, model: StateDict, min_count: int | None) -> int:
        """Sums over fewer patients than there are parameters could be solved for these."""
        return max(len(model["score"]), min_count or 0)

    def _sums(self, work: LocalWork, design: torch.Tensor, outcome: torch.Tensor) -> ml.Sums:
        network: Any = work.network
        weight, bias = network.weight.detach().cpu(), network.bias.detach().cpu()
        if work.family == COX:
            return _padded(_cox_sums(design, outcome, weight), len(weight))
        family, outcome = family_of(work.family, outcome)
        both = torch.cat((weight, bias))
        if self.intercept == "random":
            return ml.marginal(family, _with_ones(design), outcome, both, float(network.log_sd.detach()))
        if self.intercept == "shared":
            first = not float(network.best[1]) and not bool(both.any())
            return _padded(ml.sums(_start(family) if first else family, _with_ones(design), outcome, both), len(weight))
        alone = ml.own_intercept(family, design @ weight, outcome)
        if alone is None:  # whatever the coefficients, the site's own intercept explains its outcomes
            p = len(weight)
            return _padded(ml.Sums(design.new_zeros(()), design.new_zeros(p), design.new_zeros(p, p), len(outcome)), p)
        network.bias.data.fill_(alone)
        return _padded(ml.profiled(family, design, outcome, weight, alone), len(weight))

    def _support(self, work: LocalWork, design: torch.Tensor, outcome: torch.Tensor) -> dict[str, torch.Tensor]:
        """Kind of sum -> the weight of each patient in it (N,), at the coefficients that were received."""
        network: Any = work.network
        predictor = design @ network.weight.detach().cpu() + network.bias.detach().cpu()
        if work.family == COX:
            cox: Any = importlib.import_module(ml.COX_SUMS)
            return dict(zip(("score", "expected"), cox.patient_weights(outcome, predictor), strict=True))
        family, outcome = family_of(work.family, outcome)
        terms = family(predictor, outcome)
        return {"score": terms.slope, "information": terms.curvature}

    def correct(self, model: StateDict, combined: StateDict, state: ServerState, info: Info) -> StateDict:
        """Newton's next parameters, or, where the last step made the likelihood much worse, half of that step."""
        here = torch.cat([combined[name] for name in ("weight", BIAS, SPREAD)])
        last, best = combined["last"], combined["best"]
        penalty = torch.full_like(here, self.ridge)
        penalty[-2:] = 0.0
        value = float(combined["value"]) - float((penalty * here.square()).sum()) / 2
        worse = value < float(best[0]) - WORSE * abs(float(best[0])) and not torch.equal(here, last)
        if 0 < float(best[1]) <= HALVINGS and worse:
            there, best = (here + last) / 2, best + best.new_tensor([0.0, 1.0])
        else:
            score, information = combined["score"] - penalty * here, combined["information"] + penalty.diag()
            dropped = self.dropped(information)
            dropped[-1] |= info.round.number <= SETTLING
            there = here + ml.newton_step(score, information, dropped)
            last, best = here, torch.tensor([value, 1.0], dtype=torch.float64)
        moved = {"weight": there[:-2], BIAS: there[-2:-1], SPREAD: there[-1:], "last": last, "best": best}
        return {key: moved.get(key, value).clone() for key, value in combined.items()}

    def dropped(self, information: torch.Tensor) -> torch.Tensor:
        """bool (P,): parameters that do not move, since others explain them or this fit does not have them."""
        p = len(information) - 2
        found = torch.ones(p + 2, dtype=torch.bool)
        free = p if self.intercept == "site" else p + 1
        found[:free] = ml.aliased(information[:free, :free], first=p if free > p else None)
        found[-1] = self.intercept != "random"
        return found

    def personal_entries(self, model: StateDict) -> frozenset[str]:
        return frozenset({BIAS}) if self.intercept == "site" else frozenset()

    def missing(self, offer: Offer) -> str:
        if not offer.family and not offer.has_classes:
            return "it needs two classes, an amount, a count, or times to an event"
        random = self.intercept == "random" and offer.family == "gaussian"
        return "intercept: expected shared or site for amounts, got random" if random else ""

    def unsuited(self, network: torch.nn.Module) -> str:
        fits = {"weight", BIAS, "score", "information"} <= set(network.state_dict())
        return "" if fits else "it needs model=regression"

    def step(self, work: LocalWork, optimizer: Optimizer, objective: Objective, batch: Batch) -> torch.Tensor:
        raise NotImplementedError("Newton's method has no steps on batches")


@trainer("newton-alone")
@dataclass(frozen=True)
class NewtonAlone(Newton):
    """Newton's method at one site on its own patients: what exact regression gives a site without a federation."""

    alone: ClassVar[str] = ""
    sums_only: ClassVar[bool] = False
    for_one_site: ClassVar[bool] = True

    def train(self, work: LocalWork) -> float:
        loss = super().train(work)
        moved = Newton.correct(self, {}, work.network.state_dict(), {}, Info(work.round))
        if float(moved["weight"].abs().max()) <= FARTHEST:  # else its outcomes are separated: it stays where it is
            work.network.load_state_dict(moved)
        return loss

    correct = Trainer.correct
    personal_entries = Trainer.personal_entries

    def fewest(self, model: StateDict, min_count: int | None) -> int:
        """Nothing of it leaves but means of models."""
        return 0

    def _own_fit(self, work: LocalWork, design: torch.Tensor, outcome: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(work.network.own)  # type: ignore[arg-type]  # a buffer


COX = "cox"
FAMILIES: dict[str, ml.Family] = {"bernoulli": ml.bernoulli, "gaussian": ml.gaussian, "poisson": ml.poisson}


def family_of(name: str, targets: torch.Tensor) -> tuple[ml.Family, torch.Tensor]:
    """The family ``name``, and the outcomes (N,) of ``targets``; of counts these may be (N, 2) with exposures."""
    if name == "poisson" and targets.dim() > 1:
        return partial(ml.poisson, offset=targets[:, 1].log()), targets[:, 0]
    return FAMILIES[name], targets


def _start(family: ml.Family) -> ml.Family:
    """What takes the family's place in the first round."""
    if isinstance(family, partial):
        return partial(ml.poisson_start, **family.keywords)
    return ml.poisson_start if family is ml.poisson else family


FARTHEST = 15.0
"""A coefficient of a scaled feature that says no more than a larger one would: odds of 3 million."""


def _cox_sums(design: torch.Tensor, outcome: torch.Tensor, coefficients: torch.Tensor) -> ml.Sums:
    """A site's own sums of Cox's model; ``outcome`` holds times and events (N, 2)."""
    cox: Any = importlib.import_module(ml.COX_SUMS)
    value, score, information = cox.partial_likelihood(design, outcome[:, 0], outcome[:, 1], coefficients)
    return ml.Sums(value, score, information, len(outcome))


def _with_ones(design: torch.Tensor) -> torch.Tensor:
    return torch.cat((design, torch.ones_like(design[:, :1])), dim=1)


def _padded(found: ml.Sums, p: int) -> ml.Sums:
    """The sums with a place for each of the p + 2 parameters, 0 for those that they are not of."""
    more = p + 2 - len(found.score)
    pad = torch.nn.functional.pad
    score, information = pad(found.score, (0, more)), pad(found.information, (0, more, 0, more))
    return ml.Sums(found.value, score, information, found.examples)


def _variance(design: torch.Tensor, outcome: torch.Tensor, estimate: torch.Tensor) -> float:
    """Of amounts about a site's own line; infinite where it has as many coefficients as patients."""
    errors = outcome - _with_ones(design) @ estimate.nan_to_num(0.0)
    degrees = len(outcome) - int(estimate.isfinite().sum())
    return float(errors.square().sum()) / degrees if degrees > 0 else float("inf")


def _own_sums(design: torch.Tensor, outcome: torch.Tensor, name: str) -> torch.Tensor:
    """(5, p) what the site adds to the sums over sites' own fits, see ``Regression.own``."""
    if name == COX:
        alone = ml.fitted(partial(_cox_sums, design, outcome), design.shape[1], far=FARTHEST)
    else:
        family, outcome = family_of(name, outcome)
        whole, p = _with_ones(design), design.shape[1]
        alone = ml.fitted(partial(ml.sums, family, whole, outcome), p + 1, first=p)
        if alone is not None and name == "gaussian":
            alone = alone[0], alone[1] * _variance(design, outcome, alone[0])
    if alone is None:
        return design.new_zeros(5, design.shape[1])
    estimate, variance = alone if name == COX else (each[:-1] for each in alone)
    precision = 1 / variance
    rows = (torch.ones_like(estimate), precision, precision * estimate, precision * estimate**2, precision**2)
    return torch.stack(rows).nan_to_num(0.0) * estimate.isfinite()


GLORE = (
    "Wu et al.: Grid Binary LOgistic REgression (GLORE): building shared models without sharing data. JAMIA 2012. "
    "https://doi.org/10.1136/amiajnl-2012-000862"
)

method(
    "glm",
    title="Exact regression",
    summary="Logistic regression by Newton's method on sums from the sites: the fit that pooled patients would give.",
    rule="fedavg",
    trainer="newton",
    paper=GLORE,
)


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
    """Counts ``outcome`` (N,) of mean mu = exp(``logarithm``), (N,), and variance mu + alpha mu^2 ("NB2").

    Hilbe, Negative Binomial Regression, 2nd ed., 2011, chapter 8; with r = 1 / alpha.
    """
    mean = logarithm.clamp(max=ml.LARGEST_LOG).exp()
    r = torch.tensor(min(-log_alpha, SMALLEST), dtype=torch.float64).exp()
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

    def _sums(self, work: LocalWork, design: torch.Tensor, outcome: torch.Tensor) -> ml.Sums:
        network: Any = work.network
        weight, bias = network.weight.detach().cpu(), network.bias.detach().cpu()
        log_alpha = float(network.log_sd.detach())
        offset = outcome[:, 1].log() if outcome.dim() > 1 else torch.zeros_like(outcome)
        if not float(network.best[1]):  # a first round as Poisson's, from which one step leads near the maximum
            return super()._sums(work, design, outcome)
        _, counts = family_of("poisson", outcome)
        if self.intercept == "site":
            alone = ml.own_intercept(_terms(offset, log_alpha), design @ weight, counts)
            if alone is None:  # no event at all, whatever the coefficients
                p = len(weight) + 2
                return ml.Sums(weight.new_zeros(()), weight.new_zeros(p), weight.new_zeros(p, p), len(counts))
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
        return ml.Sums(found.value.sum(), score, information, len(counts))

    def _support(self, work: LocalWork, design: torch.Tensor, outcome: torch.Tensor) -> dict[str, torch.Tensor]:
        network: Any = work.network
        if not float(network.best[1]):
            return super()._support(work, design, outcome)
        offset = outcome[:, 1].log() if outcome.dim() > 1 else torch.zeros_like(outcome)
        counts = family_of("poisson", outcome)[1]
        predictor = design @ network.weight.detach().cpu() + network.bias.detach().cpu()
        terms = _terms(offset, float(network.log_sd.detach()))(predictor, counts)
        return {"score": terms.slope, "information": terms.curvature}

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


def _terms(offset: torch.Tensor, log_alpha: float) -> Callable[[torch.Tensor, torch.Tensor], ml.Terms]:
    """What ``own_intercept`` maximises."""

    def family(predictor: torch.Tensor, counts: torch.Tensor) -> ml.Terms:
        found = negative_binomial(predictor + offset, counts, log_alpha)
        return ml.Terms(found.value, found.slope, found.curvature)

    return family
