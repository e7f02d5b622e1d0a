# SPDX-License-Identifier: Apache-2.0
"""What a user writes: a network."""

NETWORK = """
from torch import nn


class Net(nn.Module):
    def __init__(self, width=4, classes=2):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.body(x))


class Plain:
    pass


def made():
    return Net()
"""


def write_code(folder):
    """my_net.py in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "my_net.py").write_text(NETWORK.lstrip())
    return folder / "my_net.py"
