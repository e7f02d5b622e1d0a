# SPDX-License-Identifier: Apache-2.0
"""Where are the optic disc and its cup? Drawn eyes, photographed by the different cameras of six sites."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from fairflare.core.seeds import derive
from fairflare.core.validation import Images
from fairflare.datasets.kinds.device_shift import DeviceShift
from fairflare.datasets.simulated import fundus
from fairflare.tasks.base import Preset
from fairflare.tasks.kinds.masks import PAPER, SMALL


@dataclass(frozen=True)
class FundusPhantom(DeviceShift):
    """Segmentation under domain shift as on the retina data of FedCE (arXiv:2303.16520) and Fed-LWR; all of it drawn.

    Every site has one camera and a number of patients of its own. The options are those of ``DeviceShift``, with six
    cameras. The smallest sites have about 1/20 of all images, the largest nearly half of them.
    """

    name = "fundus-phantom"
    title = "Optic disc and cup in simulated fundus photographs from different cameras"
    real = "nothing"
    simulated = "everything: the eyes with their discs, cups and vessels, the sites and their cameras"
    classes = fundus.CHANNELS
    presets = {
        "small": Preset(
            "6 sites with a camera each, 64 pixels, a small U-Net; a minute on a laptop",
            {},
            dataclasses.replace(SMALL, weight_decay=0.0),
        ),
        "paper": Preset(
            "FedCE's setting and site sizes: 256 pixels, its U-Net with BatchNorm, 200 rounds; for a GPU",
            {"images": 1810, "size": 256, "model": "unet", "norm": "batch"},
            dataclasses.replace(PAPER, weight_decay=0.0),
        ),
    }

    devices = fundus.CAMERAS
    shares = (50, 98, 47, 230, 80, 400)  # training images of FedCE's six retina sites
    held_out = (0.25, 0.25)
    mean = (0.52, 0.29, 0.20)
    std = (0.27, 0.17, 0.13)

    images: Images = 600

    def image(self, i: int, device: fundus.Camera) -> tuple[np.ndarray, np.ndarray]:
        """uint8 (3, size, size) red, green and blue, and masks of disc and cup, uint8 (2, size, size)."""
        image, masks = fundus.eye(self.size, np.random.default_rng(derive(self.data_seed, self.name, "patient", i)))
        return fundus.photographed(image, device, derive(self.data_seed, self.name, "photograph", i)), masks
