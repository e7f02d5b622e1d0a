# SPDX-License-Identifier: Apache-2.0
"""The network that server and sites share."""

from torch import nn


class Network(nn.Sequential):
    """30 measurements of a cell nucleus to 2 classes."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(30, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
