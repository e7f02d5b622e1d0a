# SPDX-License-Identifier: Apache-2.0
"""Site images that are flipped at random in training, as FedHEAL does with photographs of objects."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fairflare.core.execution import moved
from fairflare.core.seeds import derive
from fairflare.core.types import Batch
from fairflare.data.tensors import TensorData


class FlippedData(TensorData):
    """``TensorData`` of images with a class each, half of which are mirrored left to right in training."""

    def training(self, batch_size: int, seed: int) -> Iterator[Batch]:
        """As ``TensorData.training``, then a flip of each image or none; bit for bit a function of ``seed``."""
        generator = torch.Generator().manual_seed(derive(seed, "flip"))
        for batch in super().training(batch_size, seed):
            yield batch._replace(inputs=flipped(batch.inputs, generator))


def flipped(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image of (N, C, H, W) mirrored left to right with probability 1/2.

    Args:
        images: of any type, on any device.
        generator: of the N draws, on the CPU.
    """
    chosen = moved(torch.rand(len(images), generator=generator) < 0.5, images.device)
    return torch.where(chosen.view(-1, 1, 1, 1), images.flip(-1), images)
