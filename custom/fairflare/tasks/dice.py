# SPDX-License-Identifier: Apache-2.0
"""Dice overlap of predicted and true masks: the loss that sites minimise and the metric that they report.

A channel of an example whose true mask is empty scores 1 when nothing is predicted there and 0 otherwise, in the metric
and nearly so in the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, nn

SMOOTH = 1e-5
"""Added to both sides of the soft ratio, in squared pixels of nothing: MONAI's default, far below one pixel."""


def dice_loss(logits: Tensor, targets: Tensor, *, reduction: str = "mean") -> Tensor:
    """1 - (2 sum(p t) + s) / (sum p + sum t + s) of p = sigmoid(logits), averaged over channels (``monai``'s DiceLoss).

    Args:
        logits: (N, C, H, W).
        targets: (N, C, H, W) masks of 0 and 1, any dtype; channels may overlap.
        reduction: "mean" over examples, or "none".

    Returns:
        A scalar, or (N,) with "none", each in [0, 1].
    """
    if reduction not in ("mean", "none"):
        raise ValueError(f"reduction: expected mean or none, got {reduction!r}")
    losses = _monai_loss()(logits, targets.to(logits.dtype)).flatten(1).mean(1)
    return losses.mean() if reduction == "mean" else losses


def condensed(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The pixel sums from which ``hard_dice``, ``soft_loss`` and ``summary`` follow, in place of full-size outputs.

    Args:
        logits: (N, C, H, W); a pixel is predicted where its logit is > 0, that is where p > 1/2.
        targets: (N, C, H, W) masks of 0 and 1.

    Returns:
        float64 (N, C, 4): predicted and true, predicted, sum of p t, sum of p (both nan where a logit is not finite).
        float64 (N, C): true pixels.
    """
    truth, predicted = targets > 0.5, logits > 0
    share = logits.sigmoid().masked_fill(~logits.isfinite(), float("nan"))
    parts = (predicted & truth, predicted, share * truth, share)
    sums = torch.stack([part.flatten(2).sum(2, dtype=torch.float64) for part in parts], dim=2)
    return sums, truth.flatten(2).sum(2, dtype=torch.float64)


def hard_dice(sums: Tensor, truth: Tensor) -> Tensor:
    """2 |A and B| / (|A| + |B|) per example and channel, 1 where both masks are empty.

    Args:
        sums: (N, C, 4) of ``condensed``.
        truth: (N, C) of ``condensed``.

    Returns:
        float64 (N, C) in [0, 1].
    """
    both, size = sums[..., 0], sums[..., 1] + truth
    return torch.where(size > 0, 2 * both / size.clamp(min=1), torch.ones_like(size))


def soft_loss(sums: Tensor, truth: Tensor) -> Tensor:
    """``dice_loss`` per example from the sums of ``condensed``: float64 (N,), nan where a logit was not finite."""
    return (1 - (2 * sums[..., 2] + SMOOTH) / (sums[..., 3] + truth + SMOOTH)).mean(1)


def summary(sums: Tensor, truth: Tensor, channels: Sequence[str]) -> dict[str, float]:
    """Mean hard Dice over all examples, and the mean loss.

    Args:
        sums: (N, C, 4) of ``condensed``.
        truth: (N, C) of ``condensed``.
        channels: C names.

    Returns:
        dice: mean over the channels of dice_<channel>, in [0, 1].
        dice_<channel>: mean over the examples, in [0, 1].
        loss: mean of ``soft_loss``, in [0, 1].

        Without examples: nothing. With a logit that is not finite: loss = nan only.
    """
    if not len(truth):
        return {}
    loss = float(soft_loss(sums, truth).mean())
    if loss != loss:
        return {"loss": loss}
    means = hard_dice(sums, truth).mean(0)
    each = {f"dice_{name}": float(value) for name, value in zip(channels, means)}
    return {"dice": float(means.mean()), **each, "loss": loss}


@cache
def _monai_loss() -> nn.Module:
    from monai.losses import DiceLoss  # takes seconds to import

    return DiceLoss(sigmoid=True, reduction="none", smooth_nr=SMOOTH, smooth_dr=SMOOTH)
