# SPDX-License-Identifier: Apache-2.0
"""Where are grey matter, white matter and ventricles? Real anatomy, seen by the different scanners of six sites."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from fairflare.clinic import dice, mr, networks
from fairflare.clinic.base import Preset, Task
from fairflare.clinic.checks import expect, expect_choices, site_index
from fairflare.clinic.free_rider import REMARK, with_one_image
from fairflare.clinic.tensors import Split, TensorData
from fairflare.contracts import Training
from fairflare.objectives import Objective
from fairflare.seeds import derive

SHARES = (0.28, 0.20, 0.16, 0.14, 0.12, 0.10)
"""How much of all images each site has: about as uneven as the prostate and retina data of FedCE and Fed-LWR."""
VAL, TEST = 0.2, 0.2
"""Shares of a site's images in its validation and test splits, as in Fed-LWR."""
SMALLEST_SITE = 16
"""Images that every site has at least."""
MEAN, STD = (0.25,), (0.25,)
"""Of grey values on [0, 1]."""


@dataclass(frozen=True)
class BrainSeg(Task):
    """Segmentation under domain shift as in FedCE (arXiv:2303.16520) and Fed-LWR, on MR-like slices of the MNI brain.

    Every site has one scanner and a number of patients of its own. A site renders only its own images; each image
    depends on ``data_seed`` and its number alone.

    Args:
        n_sites: the first 2..6 of the six scanners.
        images: of all sites together, dealt out unevenly.
        size: pixels along an edge, 32..512, a multiple of 16.
        shift: how far the scanners are apart, 0 (all alike) to 1.
        model: "small-unet" or "unet" (the papers').
        norm: the network's normalisation; averaged "batch" statistics of different scanners fit none of them.
        augment: random rotation, shift and flip of training images and their masks.
        free_rider: number of a site whose training split repeats one image of its own, 1..n_sites; 0: none.
        data_seed: 0..2**32-1.
    """

    name = "brain-seg"
    title = "Brain tissue segmentation across scanners"
    real = "the anatomy: tissue maps of one averaged MNI152 brain of 152 people"
    simulated = "the MR look, the patients (warps of that brain), the sites and their scanners"
    classes = mr.CHANNELS
    headline = "dice"
    metrics = ("dice", *(f"dice_{channel}" for channel in mr.CHANNELS))
    class_labels = False
    presets = {
        "small": Preset(
            "6 sites with a scanner each, 64 pixels, a small U-Net; a minute on a laptop",
            {},
            Training(rounds=12, epochs=2, batch_size=8, optimizer="adam", lr=5e-3, weight_decay=1e-4, adam_beta2=0.99),
            settings={"logit_tau": 0.0},
        ),
        "paper": Preset(
            "the papers' setting: 384 pixels, their U-Net with BatchNorm, 200 rounds; for a GPU",
            {"images": 600, "size": 384, "model": "unet", "norm": "batch"},
            Training(
                rounds=200,
                batch_size=8,
                optimizer="adam",
                lr=1e-3,
                weight_decay=1e-4,
                adam_beta2=0.99,
                keep_optimizer=True,
            ),
            settings={"logit_tau": 0.0},
        ),
    }

    n_sites: int = 6
    images: int = 400
    size: int = 64
    shift: float = 1.0
    model: Literal["small-unet", "unet"] = "small-unet"
    norm: Literal["instance", "group", "batch"] = "instance"
    augment: bool = False
    free_rider: int = 0
    data_seed: int = 2024

    def __post_init__(self) -> None:
        expect_choices(self)
        expect("n_sites", 2 <= self.n_sites <= len(mr.SCANNERS), f"2..{len(mr.SCANNERS)}", self.n_sites)
        least = int(np.ceil(SMALLEST_SITE / min(self._shares())))
        expect("images", self.images >= least, f"at least {least} for {self.n_sites} sites", self.images)
        expect("size", 32 <= self.size <= 512 and self.size % 16 == 0, "a multiple of 16 in 32..512", self.size)
        expect("shift", 0 <= self.shift <= 1, "a number in [0, 1]", self.shift)
        expect("free_rider", 0 <= self.free_rider <= self.n_sites, f"0..{self.n_sites}", self.free_rider)
        expect("data_seed", 0 <= self.data_seed < 2**32, "0..2**32-1", self.data_seed)

    def sites(self) -> dict[str, str]:
        """The scanner of each site, and which one is the free rider."""
        words = [scanner.words for scanner in mr.SCANNERS[: self.n_sites]]
        if self.free_rider:
            words[self.free_rider - 1] += f"; {REMARK}"
        return {f"site-{k}": kind for k, kind in enumerate(words, start=1)}

    def network(self) -> nn.Module:
        """Images (N, 1, size, size) -> logits (N, 3, size, size)."""
        return networks.build(self.model, len(MEAN), len(self.classes), norm=self.norm)

    def site_data(self, site: str) -> TensorData:
        """The site's images and masks, rendered now."""
        k, rows = site_index(site, self.sites()), self.rows(site)
        if k == self.free_rider - 1:
            rows = with_one_image(rows)
        scanner = mr.SCANNERS[k].at(self.shift)
        splits = {name: self._rendered(part, scanner) for name, part in rows.items()}
        return TensorData(**splits, n_classes=0, mean=MEAN, std=STD, augment=self.augment)

    def rows(self, site: str) -> dict[str, np.ndarray]:
        """Split -> numbers of the site's images, sorted; each number is one patient, in one split of one site."""
        k = site_index(site, self.sites())
        ends = np.round(np.cumsum((0, *self._shares())) * self.images).astype(int)
        members = np.arange(ends[k], ends[k + 1])
        shuffled = np.random.default_rng(derive(self.data_seed, self.name, "split", k)).permutation(members)
        n_val, n_test = round(VAL * len(members)), round(TEST * len(members))
        val, test, train = np.split(shuffled, (n_val, n_val + n_test))
        return {"train": np.sort(train), "val": np.sort(val), "test": np.sort(test)}

    def objective(self, class_counts: Tensor, logit_tau: float) -> Objective:
        """``dice.dice_loss``, whatever the arguments: masks have no class prior to adjust logits by."""
        return dice.dice_loss

    def condense(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """See ``dice.condensed``."""
        return dice.condensed(outputs, targets)

    def evaluate(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """See ``dice.summary``."""
        return dice.summary(outputs, targets, self.classes)

    def hits(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """float64 (N,): each example's Dice, averaged over the channels."""
        return dice.hard_dice(outputs, targets).mean(1) if len(targets) else torch.empty(0, dtype=torch.float64)

    def _shares(self) -> np.ndarray:
        shares = np.array(SHARES[: self.n_sites])
        return shares / shares.sum()

    def _rendered(self, rows: np.ndarray, scanner: mr.Scanner) -> Split:
        images, masks = zip(*(self._image(i, scanner) for i in rows))
        return Split(torch.from_numpy(np.stack(images))[:, None], torch.from_numpy(np.stack(masks)))

    def _image(self, i: int, scanner: mr.Scanner) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(derive(self.data_seed, self.name, "patient", i))
        image, masks = mr.subject(self.size, scanner.proton, rng)
        return mr.scanned(image, scanner, derive(self.data_seed, self.name, "scan", i)), masks
