# SPDX-License-Identifier: Apache-2.0
"""Metrics of a predicted risk: how well it ranks patients, and whether so many fall ill as it says."""

from __future__ import annotations

from torch import Tensor

from fairflare.clinic import scores


def metrics(logits: Tensor, targets: Tensor) -> dict[str, float]:
    """``scores.binary``, the Brier score and calibration in the large; what is not defined is left out.

    Args:
        logits: (N, 2) finite.
        targets: int64 (N,) of 0 and 1.

    Returns:
        what ``scores.binary`` returns, and
        brier_loss: mean of (p - y)^2, in [0, 1] (Brier, Monthly Weather Review 78, 1950);
        calibration_error: |mean of p - mean of y|, in [0, 1]: calibration in the large, without its sign.

        Without examples: nothing. With a logit that is not finite: loss = nan only.
    """
    values = scores.binary(logits, targets)
    if "accuracy" not in values:
        return values
    p, y = logits.detach().double().cpu().softmax(1)[:, 1], targets.cpu().double()
    brier, error = float(((p - y) ** 2).mean()), float((p.mean() - y.mean()).abs())
    return values | {"brier_loss": brier, "calibration_error": error}
