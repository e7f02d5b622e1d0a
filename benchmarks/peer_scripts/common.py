# SPDX-License-Identifier: Apache-2.0
"""A peer's site in a round, in plain torch: the same tensors, network, optimizer and passes as FairFLARE's."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

BATCH, LR, DECAY = 16, 1e-3, 5e-4
torch.set_num_threads(1)


class Network(nn.Sequential):
    """FairFLARE's small CNN written out: four blocks, the mean over the image, a linear head."""

    def __init__(self, channels: int = 1, classes: int = 5) -> None:
        widths = (channels, 16, 32, 64, 128)
        layers: list[nn.Module] = []
        for block, (narrow, wide) in enumerate(zip(widths, widths[1:])):
            kernel = 3 if block else 5
            convolution = nn.Conv2d(narrow, wide, kernel, padding=kernel // 2, bias=False)
            layers += [convolution, nn.GroupNorm(8, wide), nn.ReLU(), nn.MaxPool2d(2)]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


@cache
def tensors(site: str) -> dict[str, torch.Tensor]:
    """The site's "train" and "val" inputs (N, C, H, W) and targets (N,), read once in a process."""
    return torch.load(Path(os.environ["PEER_DATA"]) / f"{site}.pt", weights_only=True)


@torch.no_grad()
def evaluate(network: nn.Module, site: str) -> float:
    """Accuracy on the validation split."""
    data, hits = tensors(site), 0
    network.eval()
    for inputs, targets in zip(data["val_inputs"].split(BATCH), data["val_targets"].split(BATCH)):
        hits += int((network(inputs).argmax(1) == targets).sum())
    return hits / max(len(data["val_targets"]), 1)


def train(network: nn.Module, site: str, seed: int) -> None:
    """One epoch of fused Adam."""
    data = tensors(site)
    network.train()
    optimizer = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=DECAY, fused=True)
    order = torch.randperm(len(data["train_targets"]), generator=torch.Generator().manual_seed(seed))
    for batch in order.split(BATCH):
        if len(batch) > 1:
            optimizer.zero_grad(set_to_none=True)
            cross_entropy(network(data["train_inputs"][batch]), data["train_targets"][batch]).backward()
            optimizer.step()
