# SPDX-License-Identifier: Apache-2.0
"""SCAFFOLD's control variates: estimates of the gradients at the sites and of their mean.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020,
https://arxiv.org/abs/1910.06378, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fairflare.core.layers import parameters
from fairflare.core.types import StateDict, TensorSpec

CONTROL = TensorSpec("control", parameters, "the server's control variate c")
CHANGE = TensorSpec("control_change", parameters, "change of the site's control variate, c_i+ - c_i")


def steps_taken(steps: int, momentum: float = 0.0) -> float:
    """By how many learning rates K steps of SGD along one constant gradient move the model.

    K without momentum m; with it the j-th last gradient counts (1 - m^j) / (1 - m) times, so that K becomes the sum of
    that over j = 1..K. The optimizer starts without velocity. K >= 1, m in [0, 1].
    """
    if momentum == 1:
        return steps * (steps + 1) / 2
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def mean_gradients(start: Mapping[str, torch.Tensor], end: Mapping[str, torch.Tensor], length: float) -> StateDict:
    """Entry -> (w^t - y) / length: the (weighted) mean of the directions that SGD has gone from w^t to y.

    Args:
        start: w^t, on the device of ``end``.
        end: y, the parameters after training.
        length: learning rate times ``steps_taken``, > 0.
    """
    return {key: (start[key] - y.detach()) / length for key, y in end.items()}
