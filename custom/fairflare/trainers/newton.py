# SPDX-License-Identifier: Apache-2.0
"""Exact regression: sites send sums of the log-likelihood's derivatives, the server makes Newton's step on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch

from fairflare.core.errors import RunFailed
from fairflare.core.objectives import Objective
from fairflare.core.registry import method, trainer
from fairflare.core.types import Batch, Cost, Info, LocalWork, Paper, StateDict
from fairflare.core.validation import Range
from fairflare.functional.likelihood import (
    Sums,
    aliased,
    bernoulli,
    newton_step,
    own_intercept,
    profiled,
    sums,
)
from fairflare.trainers.base import ServerState, Trainer

BIAS = "bias"
LARGEST = 50.0
"""A coefficient of a scaled feature beyond which the outcome is separated: odds of e^50 for one standard deviation."""


@trainer("newton")
@dataclass(frozen=True)
class Newton(Trainer):
    """Newton's method (iteratively reweighted least squares) on the federation's log-likelihood.

    McCullagh and Nelder, Generalized Linear Models, 1989, section 2.5; the sums over sites are those of Wu et al.,
    "Grid Binary LOgistic REgression (GLORE)", JAMIA 19, 2012. With weights n_k / n the result is the pooled fit's;
    other weights of a rule weigh the sites' log-likelihoods.

    Args:
        intercept: "shared", or "site": every site has its own, which stays there; the likelihood is maximised over it.
        ridge: penalty ridge / 2 times the squared coefficients, subtracted from the mean log-likelihood of a patient;
            intercepts are free.
    """

    cost: ClassVar[Cost] = Cost(forward=1, backward=0)

    intercept: Literal["shared", "site"] = "shared"
    ridge: Annotated[float, Range(0, 1e6)] = 0.0

    def train(self, work: LocalWork) -> float:
        """Fill the network's sums at the coefficients that were received; returns the mean loss there."""
        network = work.network
        design, outcome = _patients(work)
        weight = network.weight.detach().cpu()
        found = self._sums(network, design, outcome, weight)
        entries = {
            "score": found.score,
            "information": found.information,
            "value": found.value.reshape(1),
            "between": torch.outer(found.score, found.score),
        }
        state = network.state_dict()
        for name, total in entries.items():
            state[name].copy_(total / found.examples)
        work.steps = 1
        return -float(found.value) / found.examples

    def _sums(self, network: Any, design: torch.Tensor, outcome: torch.Tensor, weight: torch.Tensor) -> Sums:
        if self.intercept == "shared":
            whole = torch.cat((design, torch.ones_like(design[:, :1])), dim=1)
            return sums(bernoulli, whole, outcome, torch.cat((weight, network.bias.detach().cpu())))
        alone = own_intercept(bernoulli, design @ weight, outcome)
        p = len(weight)
        if alone is None:  # whatever the coefficients, the site's own intercept explains its outcomes: it tells nothing
            zero = design.new_zeros
            return Sums(zero(()), zero(p + 1), zero(p + 1, p + 1), len(outcome))
        network.bias.data.fill_(alone)
        found = profiled(bernoulli, design, outcome, weight, alone)
        score, information = design.new_zeros(p + 1), design.new_zeros(p + 1, p + 1)
        score[:p], information[:p, :p] = found.score, found.information
        return Sums(found.value, score, information, found.examples)

    def correct(self, model: StateDict, combined: StateDict, state: ServerState, info: Info) -> StateDict:
        """Newton's next coefficients, or, where the last step made the likelihood worse, half of that step.

        Raises:
            RunFailed: a coefficient has no finite estimate.
        """
        here = torch.cat((combined["weight"], combined[BIAS]))
        p = len(here) - 1
        free = p + (self.intercept == "shared")
        penalty = torch.full_like(here, self.ridge)
        penalty[-1] = 0.0
        value = float(combined["value"]) - float((penalty * here.square()).sum()) / 2
        before, reached_before = combined["best"].tolist()
        if reached_before and value < before - 1e-12 * abs(before) and not torch.equal(here, combined["last"]):
            there, reached = (here + combined["last"]) / 2, combined["best"]
            last = combined["last"]
        else:
            score = combined["score"] - penalty * here
            information = combined["information"] + penalty.diag()
            known = information[:free, :free]
            there, last = here.clone(), here
            there[:free] += newton_step(score[:free], known, aliased(known, first=p if free > p else None))
            reached = torch.tensor([value, 1.0], dtype=torch.float64)
        if float(there.abs().max()) > LARGEST:
            raise RunFailed(_words(int(there.abs().argmax()), len(here)))
        moved = {"weight": there[:-1].clone(), BIAS: there[-1:].clone(), "last": last.clone(), "best": reached.clone()}
        return {key: moved.get(key, value) for key, value in combined.items()}

    def personal_entries(self, model: StateDict) -> frozenset[str]:
        """The intercept, where every site has its own."""
        return frozenset({BIAS}) if self.intercept == "site" else frozenset()

    def unsuited(self, network: torch.nn.Module) -> str:
        """It trains a ``Regression``."""
        fits = {"weight", BIAS, "score", "information"} <= set(network.state_dict())
        return "" if fits else "it needs model=regression"

    def step(
        self, work: LocalWork, optimizer: torch.optim.Optimizer, objective: Objective, batch: Batch
    ) -> torch.Tensor:
        raise NotImplementedError("Newton's method has no steps on batches")


def _patients(work: LocalWork) -> tuple[torch.Tensor, torch.Tensor]:
    """Features float64 (N, p) and outcomes float64 (N,) of all training patients, in stored order, on the CPU."""
    batches = list(work.data.fixed("train", work.training.batch_size))
    inputs, targets = (torch.cat([getattr(batch, name) for batch in batches]) for name in ("inputs", "targets"))
    return inputs.double().cpu(), targets.double().cpu()


def _words(coefficient: int, p: int) -> str:
    which = "the intercept" if coefficient == p - 1 else f"feature {coefficient + 1} of {p - 1}"
    why = "has no finite coefficient; it tells who has the outcome without exception"
    return f"{which}: {why}. Leave it out, or set a ridge"


GLORE = Paper(
    authors="Wu et al.",
    title="Grid Binary LOgistic REgression (GLORE): building shared models without sharing data",
    venue="JAMIA",
    year=2012,
    url="https://doi.org/10.1136/amiajnl-2012-000862",
)

method(
    "glm",
    title="Exact regression",
    summary="Logistic regression by Newton's method on sums from the sites: the fit that pooled patients would give.",
    rule="fedavg",
    trainer="newton",
    paper=GLORE,
)
