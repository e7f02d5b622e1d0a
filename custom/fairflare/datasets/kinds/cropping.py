# SPDX-License-Identifier: Apache-2.0
"""Site images whose training batches are randomly cropped, as FedHEAL and most work on digits of 32 pixels does."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from fairflare.core.execution import moved
from fairflare.core.seeds import derive
from fairflare.core.types import Batch
from fairflare.data.tensors import TensorData, normalised

PAD = 4
"""Black pixels around an image before a piece of its own size is cut out."""


class CroppedData(TensorData):
    """``TensorData`` of colour images, each of which is moved by -4..4 pixels along either axis in training."""

    def training(self, batch_size: int, seed: int) -> Iterator[Batch]:
        """As ``TensorData.training``, then one random crop per image; bit for bit a function of ``seed``."""
        generator = torch.Generator().manual_seed(derive(seed, "crop"))
        black = normalised(torch.zeros(1, 3, 1, 1, device=self.device), self.mean, self.std)
        for batch in super().training(batch_size, seed):
            yield batch._replace(inputs=cropped(batch.inputs, black, generator))


def cropped(images: Tensor, fill: Tensor, generator: torch.Generator) -> Tensor:
    """Each image of (N, C, H, W) moved at random by up to ``PAD`` pixels along either axis.

    Args:
        images: float32.
        fill: (1, C, 1, 1), the colour beyond an image's border.
        generator: of the 2 N offsets.
    """
    (n, _, height, width), device = images.shape, images.device
    # Where nothing is padded the images keep their bits: adding and taking away ``fill`` would not see to that.
    inside = F.pad(torch.ones(1, 1, height, width, device=device), (PAD,) * 4).bool()
    canvas = torch.where(inside, F.pad(images, (PAD,) * 4), fill)
    y, x = moved(torch.randint(2 * PAD + 1, (2, n, 1), generator=generator), device)
    rows, columns = y + torch.arange(height, device=device), x + torch.arange(width, device=device)
    which = torch.arange(n, device=device)[:, None, None]
    return canvas[which, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
