# SPDX-License-Identifier: Apache-2.0
"""The proximal term mu/2 ||w - w^t||^2, which keeps a model near another one while it trains.

Li et al., "Federated Optimization in Heterogeneous Networks" (FedProx), MLSys 2020, https://arxiv.org/abs/1812.06127,
Eq. 2; with a personal model in place of w it is the regulariser of Ditto, https://arxiv.org/abs/2012.04221, Eq. 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fairflare.core.execution import no_grad


@no_grad
def add_proximal(parameters: Sequence[torch.Tensor], anchor: Sequence[torch.Tensor], mu: float) -> torch.Tensor:
    """Add the term's gradient mu (w - w^t) to the parameters' gradients.

    Args:
        parameters: w, with gradients; a parameter without one (frozen) is passed over.
        anchor: w^t, in the same order, shapes and on the same device.
        mu: >= 0; 0 adds nothing.

    Returns:
        The term's value mu/2 ||w - w^t||^2 over the parameters that have gradients.
    """
    pairs = [(w, w.grad, a) for w, a in zip(parameters, anchor, strict=True) if w.grad is not None]
    total = torch.zeros((), dtype=torch.float64, device=parameters[0].device if parameters else None)
    for w, gradient, a in pairs:
        away = w - a
        gradient.add_(away, alpha=mu)
        total += away.double().square().sum()
    return mu / 2 * total
