# SPDX-License-Identifier: Apache-2.0
"""A network with one layer and BatchNorm, whose integer counter FLARE's own averaging stumbles over."""

from torch import nn


class TinyNet(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(3, 2), nn.BatchNorm1d(2))
