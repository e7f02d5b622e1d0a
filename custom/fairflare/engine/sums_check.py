# SPDX-License-Identifier: Apache-2.0
"""What an exact regression's sums cannot be, whoever the patients are: the server refuses it before Newton's step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fairflare.core.types import StateDict

SLACK = 1e-6
"""Of rounding: masks round at 1e-9."""
SUMS = ("score", "information", "value", "between", "own")
BY_PATIENTS = ("between", "own")
"""Entries that grow with a site's patients: other sites' are no measure for them, and ``doubt`` checks them."""


@dataclass(frozen=True)
class SumsCheck:
    """See ``networks.builtin.Regression`` for the entries, all of which are means over a site's patients.

    Attributes:
        family: of the outcome, see ``TaskKind.family``.
        intercept: of the trainer, see ``trainers.newton.Newton``.
    """

    family: str
    intercept: str

    def doubt(self, model: StateDict, update: Mapping[str, torch.Tensor], examples: int | None = None) -> str:
        """Why no patients have these sums, in one line; "" where some can.

        Args:
            model: what the site was sent.
            update: what it sent back, less that; or what all sites sent, weighed and added.
            examples: patients of the site; None of all sites' sums.
        """
        moved = [key for key, value in update.items() if key not in SUMS and float(value.abs().max()) > SLACK]
        if moved:
            return f"{moved[0]}: expected no change, since a site sends sums"
        found = {key: (model[key] + update[key]).double() for key in SUMS}
        return self._of_likelihood(model, found) or ("" if examples is None else _of_site(found, examples))

    def _of_likelihood(self, model: StateDict, found: StateDict) -> str:
        score, information, value = found["score"], found["information"], float(found["value"])
        diagonal = information.diagonal()
        slack = SLACK * (1 + float(diagonal.abs().max()))
        if value > SLACK:
            return f"value: expected a log-likelihood of at most 0, got {value:.3g}"
        if float((information - information.T).abs().max()) > slack:
            return "information: expected a symmetric matrix"
        of_coefficients = information[:-1, :-1]  # a spread's or a dispersion's own may be indefinite on the way
        if self.intercept != "random" and float(torch.linalg.eigvalsh(of_coefficients)[0]) < -slack:
            return "information: expected no negative eigenvalue"
        if self.family != "bernoulli" or self.intercept == "site":
            return ""
        if abs(float(score[-2])) > 1 + SLACK or float(diagonal[-2]) > 0.25 + SLACK:
            return "score, information: expected at most 1 and 1/4 for the intercept of outcomes 0 and 1"
        first = not bool(model["weight"].any() or model["bias"].any())  # every risk is 1/2, every error is -/+ 1/2
        if self.intercept == "shared" and first and bool((score.square() > diagonal * (1 + SLACK) + slack).any()):
            return "score: expected at most the root of the information, in the first round"
        return ""


def _of_site(found: StateDict, examples: int) -> str:
    score, between, own = found["score"], found["between"], found["own"]
    outer = examples * torch.outer(score, score)
    if float((between - outer).abs().max()) > SLACK * (1 + float(outer.abs().max())):
        return "between: expected the outer product of the score"
    fits, weight, first, second, square = own * examples
    ones = (fits.abs() < SLACK) | ((fits - 1).abs() < SLACK)
    fit = (first.square() - weight * second).abs() <= SLACK * (1 + first.square())
    if bool((ones & fit & ((weight.square() - square).abs() <= SLACK * (1 + square.abs())) & (weight >= 0)).all()):
        return ""
    return "own: expected at most one fit for each coefficient"
