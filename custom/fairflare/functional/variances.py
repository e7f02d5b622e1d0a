# SPDX-License-Identifier: Apache-2.0
"""Running variances of a model's normalisation layers."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


def without_negative_variances(model: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``model`` with running variances of at least 0: differences that leave a rounding error below it are accepted."""
    return {k: v.clamp(min=0) if k.endswith("running_var") and bool((v < 0).any()) else v for k, v in model.items()}
