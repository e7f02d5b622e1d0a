# SPDX-License-Identifier: Apache-2.0
"""A generalised linear model whose state holds what a Newton step needs beside its coefficients."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SUMS = ("score", "information", "value", "between")
"""Entries that sites fill: a mean over the patients of a federation, once they are weighed by n_k / n."""
STANDING = ("last", "best")
"""Entries that the server alone changes: the coefficients of the round before, and the value there."""


class Regression(nn.Module):
    """Logistic regression in float64: (N, features) -> logits float32 (N, 2), of which the first is 0.

    Attributes:
        weight: (features,) coefficients, 0 at first.
        bias: (1,) intercept.
        score: (features + 1,) gradient of the mean log-likelihood in weight and bias.
        information: (features + 1, features + 1) minus its second derivatives.
        value: (1,) mean log-likelihood.
        between: (features + 1, features + 1) sum over sites of their scores' outer products, divided by patients.
        last: (features + 1,) weight and bias of the round before.
        best: (2,) value there, and 1 where there was such a round.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        p = features + 1
        self.weight = nn.Parameter(torch.zeros(features, dtype=torch.float64))
        self.bias = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        shapes = {"score": (p,), "information": (p, p), "value": (1,), "between": (p, p), "last": (p,), "best": (2,)}
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """(N, features) -> (N, 2)."""
        logit = (x.double() @ self.weight + self.bias).to(torch.float32)
        return torch.stack((torch.zeros_like(logit), logit), dim=1)
