# SPDX-License-Identifier: Apache-2.0
"""What a site minimises, and what probes measure."""

from __future__ import annotations

from typing import Protocol

import torch


class Objective(Protocol):
    """Logits (N, C) and targets (N,) -> the mean loss, or the (N,) losses with ``reduction="none"``."""

    def __call__(self, logits: torch.Tensor, targets: torch.Tensor, *, reduction: str = "mean") -> torch.Tensor:
        """The loss."""


def local_objective(class_counts: torch.Tensor, tau: float) -> Objective:
    """Cross-entropy of z + tau log(n_c / n), logit adjustment (Menon et al., ICLR 2021, arXiv:2007.07314, Eq. 10).

    Args:
        class_counts: (C,) the site's own training examples per class. An absent class gets a logit of -inf, which is
            harmless on data without that class: never use this objective on other data.
        tau: temperature >= 0; 0 is plain cross-entropy.
    """
    shift = tau * torch.log(class_counts / class_counts.sum()) if tau else None

    def objective(logits: torch.Tensor, targets: torch.Tensor, *, reduction: str = "mean") -> torch.Tensor:
        if shift is not None:
            logits = logits + shift.to(logits.dtype)
        return torch.nn.functional.cross_entropy(logits, targets, reduction=reduction)

    return objective
