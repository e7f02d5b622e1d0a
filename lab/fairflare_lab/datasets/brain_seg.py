# SPDX-License-Identifier: Apache-2.0
"""Where are grey matter, white matter and ventricles? Real anatomy, seen by the different scanners of six sites.

Tissues lie where the MNI maps have them. Contrast, shading, noise and blur are simulated; no clinical claim is made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairflare.core.seeds import derive
from fairflare.tasks.base import Preset
from fairflare.tasks.kinds.masks import PAPER, SMALL
from fairflare_lab.datasets import phantoms
from fairflare_lab.datasets.phantoms import Device, DeviceShift, smooth_field, soft

CHANNELS = ("grey", "white", "ventricles")
"""Grey matter, white matter and the fluid deep in the brain, nearly all of it in the ventricles: one mask each."""
LEVELS = {
    "fluid": (0.14, 0.46),
    "grey": (0.46, 0.78),
    "white": (0.74, 0.62),
    "bone": (0.04, 0.05),
    "scalp": (0.85, 0.60),
}
"""Signal of each tissue with T1 and with proton density weighting."""


@dataclass(frozen=True)
class Scanner(Device):
    """How one site's images look.

    Attributes:
        proton: share of proton density in the weighting of its sequence, 0 (all T1) to 1; grey and white matter look
            alike at .64, and beyond it grey matter is the brighter one.
        gamma: exponent of the grey values, > 0; 1 leaves them.
        shading: largest coefficient of the logarithm of a smooth bias field, >= 0.
        noise: spread of the complex noise of which images show the magnitude (Rician), for images in [0, 1].
        blur: standard deviation of a Gaussian in millimetres, >= 0.
        ringing: how much of k-space is cut off, in [0, 1).
        pixel: edge of its pixels in millimetres; below the image's own it changes nothing.
    """

    factors = ("gamma",)

    proton: float = 0.0
    gamma: float = 1.0
    shading: float = 0.0
    noise: float = 0.02
    blur: float = 0.0
    ringing: float = 0.0
    pixel: float = 0.0


SCANNERS = (
    Scanner("T1"),
    Scanner("T1, surface coil: uneven brightness", shading=0.6),
    Scanner("T1, dark and of high contrast", gamma=1.8),
    Scanner("T1, fast: noisy", noise=0.11),
    Scanner("T1, large pixels and ringing", proton=0.15, blur=1.2, ringing=0.5, pixel=5.0),
    Scanner("T1 with proton density, low field: little contrast", proton=0.5, gamma=0.7, noise=0.07),
)
"""One per site, the commonest first."""


def subject(size: int, proton: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A patient's slice without any scanner's flaws, and where its tissues are, whatever ``proton`` (``Scanner``) is.

    Small images are drawn at twice their size and averaged, as a scanner's thick pixels do.

    Returns:
        image: float64 (size, size), about [0, 1].
        masks: uint8 (3, size, size), 1 where at least half of the pixel is the channel's tissue.
    """
    zoom = 2 if size < 128 else 1
    head = phantoms.patient(size * zoom, rng)
    ventricles = soft(head.ventricle + rng.uniform(0, 2.5))  # wider with age
    shares = np.stack((head.grey * (1 - ventricles), head.white * (1 - ventricles), ventricles))
    image = weighted(head.depth, shares, proton, rng) * (1 + 0.03 * smooth_field(size * zoom, 8, rng))
    shares = shares.reshape(3, size, zoom, size, zoom).mean((2, 4))
    return image.reshape(size, zoom, size, zoom).mean((1, 3)), (shares >= 0.5).astype(np.uint8)


def scanned(image: np.ndarray, scanner: Scanner, seed: int) -> np.ndarray:
    """What ``scanner`` makes of an image of ``subject``: uint8 of the same shape, a function of the arguments alone.

    Args:
        image: (size, size), or (size, size, size) of a whole head; about [0, 1].
        scanner: its ``proton`` is in the image already.
        seed: of what differs from image to image: the gain, the bias field's coefficients and the noise.
    """
    shown = torch.from_numpy(np.clip(image, 0, 1).astype(np.float32))[None]
    mode = "bilinear" if image.ndim == 2 else "trilinear"
    for step in _flaws(scanner, phantoms.FIELD_OF_VIEW / len(image), seed, mode):
        shown = torch.as_tensor(step(shown)).float()
    gain = np.random.default_rng(derive(seed, "gain")).uniform(0.92, 1.08)
    return (shown[0] * gain * 255).round().clamp(0, 255).to(torch.uint8).numpy()


def weighted(depth: np.ndarray, shares: np.ndarray, proton: float, rng: np.random.Generator) -> np.ndarray:
    """What tissues look like by the weighting of the scanner's sequence; arguments as of ``phantoms.signal``."""
    plain = [(1 - proton) * t1 + proton * density for t1, density in LEVELS.values()]
    fluid, *matter, bone, scalp = (level * (1 + 0.04 * rng.standard_normal()) for level in plain)
    return phantoms.signal(depth, shares[:2], (*matter, fluid, bone, scalp), 5, rng)


def _as_bright(image: Tensor, before: Tensor) -> Tensor:
    """``image`` with the mean of ``before``; NumPy's mean is the same however many threads torch has."""
    return image * float(before.numpy().mean() / image.numpy().mean())


def _flaws(scanner: Scanner, pixel: float, seed: int, mode: str) -> Iterator[Callable[[Any], Any]]:
    """The scanner's steps in the order in which they happen, each (1, size, ...) -> the same; ``pixel`` is in mm."""
    from monai import transforms as mt  # takes seconds to import

    def seeded(step: Any) -> Callable[[Any], Any]:
        return step.set_random_state(seed=derive(seed, type(step).__name__) % 2**32)

    if scanner.gamma != 1:
        yield mt.AdjustContrast(scanner.gamma)
    if scanner.shading:
        field = seeded(mt.RandBiasField(prob=1, coeff_range=(scanner.shading / 2, scanner.shading)))
        yield lambda x: _as_bright(field(x), x)
    if scanner.blur:
        yield mt.GaussianSmooth(scanner.blur / pixel)
    if scanner.ringing:
        yield mt.GibbsNoise(scanner.ringing)
    if scanner.pixel > pixel:
        zoom = pixel / scanner.pixel
        yield seeded(mt.RandSimulateLowResolution(prob=1, upsample_mode=mode, zoom_range=(zoom, zoom)))
    yield seeded(mt.RandRicianNoise(prob=1, std=scanner.noise, sample_std=False))


MEDIUM = dataclasses.replace(SMALL, rounds=40)


@dataclass(frozen=True)
class BrainSeg(DeviceShift):
    """Segmentation under domain shift as in FedCE (arXiv:2303.16520) and Fed-LWR, on MR-like slices of the MNI brain.

    Every site has one scanner and a number of patients of its own. The options are those of ``DeviceShift``, with six
    scanners.
    """

    name = "brain-seg"
    title = "Brain tissue segmentation across scanners"
    real = f"the anatomy: tissue maps of {phantoms.SOURCE}"
    simulated = "the MR look, the patients (warps of that brain), the sites and their scanners"
    classes = CHANNELS
    primary = "Dice score of the worst site"
    presets = {
        "small": Preset("6 sites with a scanner each, 64 pixels, a small U-Net; a minute on a laptop", {}, SMALL),
        "medium": Preset(
            "as small, with 1,200 images and 40 rounds; an hour on a laptop, minutes on a GPU", {"images": 1200}, MEDIUM
        ),
        "paper": Preset(
            "the papers' setting: 384 pixels, their U-Net with BatchNorm, 200 rounds; for a GPU",
            {"images": 600, "size": 384, "model": "unet", "norm": "batch"},
            PAPER,
        ),
    }

    devices = SCANNERS
    shares = (0.28, 0.20, 0.16, 0.14, 0.12, 0.10)  # about as uneven as the prostate and retina data of the papers
    held_out = (0.2, 0.2)  # as in Fed-LWR
    mean = (0.25,)
    std = (0.25,)

    subject = staticmethod(subject)

    def image(self, i: int, device: Scanner) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(derive(self.data_seed, self.name, "patient", i))
        image, masks = self.subject(self.size, device.proton, rng)
        return scanned(image, device, derive(self.data_seed, self.name, "scan", i))[None], masks
