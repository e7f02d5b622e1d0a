# SPDX-License-Identifier: Apache-2.0
"""Where are grey matter, white matter and ventricles? Real anatomy, seen by the different scanners of six sites."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from fairflare.core.seeds import derive
from fairflare.datasets.kinds.device_shift import DeviceShift
from fairflare.datasets.simulated import mr
from fairflare.datasets.simulated.anatomy import SOURCE
from fairflare.tasks.base import Preset
from fairflare.tasks.kinds.masks import PAPER, SMALL

MEDIUM = dataclasses.replace(SMALL, rounds=40)


@dataclass(frozen=True)
class BrainSeg(DeviceShift):
    """Segmentation under domain shift as in FedCE (arXiv:2303.16520) and Fed-LWR, on MR-like slices of the MNI brain.

    Every site has one scanner and a number of patients of its own. The options are those of ``DeviceShift``, with six
    scanners.
    """

    name = "brain-seg"
    title = "Brain tissue segmentation across scanners"
    real = f"the anatomy: tissue maps of {SOURCE}"
    simulated = "the MR look, the patients (warps of that brain), the sites and their scanners"
    classes = mr.CHANNELS
    primary = "Dice score of the worst site"
    presets = {
        "small": Preset(
            "6 sites with a scanner each, 64 pixels, a small U-Net; a minute on a laptop",
            {},
            SMALL,
        ),
        "medium": Preset(
            "as small, with 1,200 images and 40 rounds; an hour on a laptop, minutes on a GPU",
            {"images": 1200},
            MEDIUM,
        ),
        "paper": Preset(
            "the papers' setting: 384 pixels, their U-Net with BatchNorm, 200 rounds; for a GPU",
            {"images": 600, "size": 384, "model": "unet", "norm": "batch"},
            PAPER,
        ),
    }

    devices = mr.SCANNERS
    shares = (0.28, 0.20, 0.16, 0.14, 0.12, 0.10)  # about as uneven as the prostate and retina data of the papers
    held_out = (0.2, 0.2)  # as in Fed-LWR
    mean = (0.25,)
    std = (0.25,)

    def image(self, i: int, device: mr.Scanner) -> tuple[np.ndarray, np.ndarray]:
        """uint8 (1, size, size) and masks of the three tissues, uint8 (3, size, size)."""
        rng = np.random.default_rng(derive(self.data_seed, self.name, "patient", i))
        image, masks = mr.subject(self.size, device.proton, rng)
        return mr.scanned(image, device, derive(self.data_seed, self.name, "scan", i))[None], masks
