# SPDX-License-Identifier: Apache-2.0
"""A generalised linear model whose state holds what a Newton step needs beside its coefficients."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WITHIN = 0.5
"""Standard deviation of sites' own intercepts from which their estimate starts."""


class Regression(nn.Module):
    """Logistic regression in float64: (N, features) -> logits float32 (N, 2), of which the first is 0.

    With P = features + 2 parameters: coefficients, intercept, and ``log_sd``, which only random intercepts use. Sites
    fill the sums, which are means over the patients of a federation once they are weighed by n_k / n; the server alone
    changes ``last`` and ``best``.

    Attributes:
        weight: (features,) coefficients, 0 at first.
        bias: (1,) intercept.
        log_sd: (1,) logarithm of the standard deviation of sites' own intercepts.
        score: (P,) gradient of the mean log-likelihood.
        information: (P, P) minus its second derivatives.
        value: (1,) mean log-likelihood.
        between: (P, P) sum over sites of their scores' outer products, divided by patients.
        own: (5, features) sums over sites, divided by patients, of 1, w, w b, w b^2 and w^2, where b is a coefficient
            of a site's own fit and w one over its variance; 0 of a site that has no such fit.
        last: (P,) parameters of the round before.
        best: (2,) value there, and where there was such a round 1 and the halvings of the step since.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        p = features + 2
        self.weight = nn.Parameter(torch.zeros(features, dtype=torch.float64))
        self.bias = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.log_sd = nn.Parameter(torch.full((1,), WITHIN, dtype=torch.float64).log())
        shapes = {"score": (p,), "information": (p, p), "value": (1,), "between": (p, p)}
        shapes |= {"own": (5, features), "last": (p,), "best": (2,)}
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """(N, features) -> (N, 2)."""
        logit = (x.double() @ self.weight + self.bias).to(torch.float32)
        return torch.stack((torch.zeros_like(logit), logit), dim=1)


class Line(Regression):
    """A line in float64: (N, features) -> float32 (N, 1), an amount, the logarithm of a rate, or Cox's log risk.

    A hospital's baseline hazard cancels in its partial likelihood: the intercept and its place in the sums stay 0.
    """

    def forward(self, x: Tensor) -> Tensor:
        return (x.double() @ self.weight + self.bias).to(torch.float32)[:, None]
