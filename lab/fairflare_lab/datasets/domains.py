# SPDX-License-Identifier: Apache-2.0
"""Sites dealt over domains (kinds of images): each domain in turn at as many sites; and how FedHEAL moves and flips
their training images."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairflare.core.errors import DataError
from fairflare.core.execution import moved
from fairflare.core.seeds import derive
from fairflare.core.types import Batch, Training
from fairflare.data.readers.geometry import NATURAL
from fairflare.data.tensors import TensorData, normalised
from fairflare.datasets.partition import redrawn
from fairflare.networks import images as networks
from fairflare.tasks.base import PARTITION, SPLIT, Task, expect, expect_choices, site_index

SMALL = Training(rounds=20, epochs=2, batch_size=32, optimizer="sgd", lr=0.02, momentum=0.9, weight_decay=1e-5)
"""FedHEAL's rate of 0.001 is for 2,000 local epochs; this is its optimizer at 40 of them."""
PAPER = Training(rounds=200, epochs=10, batch_size=64, optimizer="sgd", lr=1e-3, momentum=0.9, weight_decay=1e-5)
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and standard deviation per channel on [0, 1], which FedHEAL takes, too."""


@dataclass(frozen=True)
class OverDomains(Task):
    """A task whose sites hold one domain each, as many sites every domain.

    Args:
        n_sites: a multiple of 4 in 4..40; the paper has 20.
        alpha: concentration of a Dirichlet label skew between the sites of a domain; 0: none.
        model: "small-cnn", "small-cnn-bn" (BatchNorm), "resnet10" (the paper's) or "resnet18".
        data_seed: of who has which image, 0..2**32-1.
    """

    headline = "accuracy"
    domain_names: ClassVar[Sequence[str]]
    """In the order of the sites."""
    most_sites: ClassVar[int] = 40
    alpha = 0.0  # no field: a task that has the option declares it

    n_sites: int = 20
    model: Literal["small-cnn", "small-cnn-bn", "resnet10", "resnet18"] = "small-cnn"
    data_seed: int = 2024

    def __post_init__(self) -> None:
        expect_choices(self)
        fits = len(self.domain_names) <= self.n_sites <= self.most_sites and self.n_sites % len(self.domain_names) == 0
        multiple = f"a multiple of {len(self.domain_names)} in {len(self.domain_names)}..{self.most_sites}"
        expect("n_sites", fits, multiple, self.n_sites)
        expect("alpha", 0 <= self.alpha < math.inf, "a number above 0, or 0 for no label skew", self.alpha)
        expect("data_seed", 0 <= self.data_seed < 2**32, "0..2**32-1", self.data_seed)

    def network(self) -> nn.Module:
        return networks.build(self.model, len(IMAGENET[0]), len(self.classes))

    def drawn(self) -> tuple[str, ...]:
        return PARTITION, SPLIT

    @property
    def _per_domain(self) -> int:
        return self.n_sites // len(self.domain_names)

    def sites(self) -> dict[str, str]:
        skew = f"; label skew, alpha {self.alpha:g}" if self.alpha else ""
        kinds = [domain + skew for domain in self.domain_names for _ in range(self._per_domain)]
        return {f"site-{k}": kind for k, kind in enumerate(kinds, start=1)}

    def domains(self) -> dict[str, str]:
        return {site: self.domain(site) for site in self.sites()}

    def domain(self, site: str) -> str:
        return self.domain_names[site_index(site, self.sites()) // self._per_domain]

    def dealt(self, domain: str, labels: np.ndarray) -> np.ndarray:
        """int64 (N,): which of its sites, from 0, has each image of a domain with such ``labels``, by a label skew."""
        seed = derive(self.data_seed, self.name, "skew", domain) % 2**32
        return redrawn(labels, self._per_domain, self.alpha, seed)

    def parts(self, site: str, members: np.ndarray) -> dict[str, np.ndarray]:
        """Split -> those of ``members``, what the site has of its domain, in random order: 10, 30 and 60 per cent."""
        seed = derive(self.data_seed, self.name, "split", site_index(site, self.sites()))
        n_val, n_test = round(0.1 * len(members)), round(0.3 * len(members))
        shuffled = np.split(np.random.default_rng(seed).permutation(members), (n_val, n_val + n_test))
        return dict(zip(("val", "test", "train"), shuffled))


def images_in(folders: Sequence[Path]) -> tuple[np.ndarray, np.ndarray]:
    """The PNG and JPEG files of ``folders``, one class each, by name: paths (N,) as objects, and int64 (N,) classes.

    Raises DataError "missing_file" for a folder without an image.
    """
    found = [sorted(p for p in folder.iterdir() if p.suffix.lower() in NATURAL) for folder in folders]
    for folder, paths in zip(folders, found):
        if not paths:
            raise DataError("missing_file", f"{folder}: expected {', '.join(NATURAL)} images, found none")
    labels = np.repeat(np.arange(len(folders)), [len(paths) for paths in found])
    return np.array([path for paths in found for path in paths], dtype=object), labels


PAD = 4
"""Black pixels around an image before a piece of its own size is cut out."""


class CroppedData(TensorData):
    """``TensorData`` of colour images, each of which is moved by -4..4 pixels along either axis in training."""

    def training(self, batch_size: int, seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(derive(seed, "crop"))
        black = normalised(torch.zeros(1, 3, 1, 1, device=self.device), self.mean, self.std)
        for batch in super().training(batch_size, seed):
            yield batch._replace(inputs=cropped(batch.inputs, black, generator))


def cropped(images: Tensor, fill: Tensor, generator: torch.Generator) -> Tensor:
    """Each image of float32 (N, C, H, W) moved by 2 N random offsets of up to ``PAD`` pixels along either axis.

    ``fill``: (1, C, 1, 1), the colour beyond an image's border.
    """
    (n, _, height, width), device = images.shape, images.device
    # Where nothing is padded the images keep their bits: adding and taking away ``fill`` would not see to that.
    inside = F.pad(torch.ones(1, 1, height, width, device=device), (PAD,) * 4).bool()
    canvas = torch.where(inside, F.pad(images, (PAD,) * 4), fill)
    y, x = moved(torch.randint(2 * PAD + 1, (2, n, 1), generator=generator), device)
    rows, columns = y + torch.arange(height, device=device), x + torch.arange(width, device=device)
    which = torch.arange(n, device=device)[:, None, None]
    return canvas[which, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


class FlippedData(TensorData):
    """``TensorData`` of images with a class each, half of which are mirrored left to right in training."""

    def training(self, batch_size: int, seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(derive(seed, "flip"))
        for batch in super().training(batch_size, seed):
            yield batch._replace(inputs=flipped(batch.inputs, generator))


def flipped(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image of (N, C, H, W) mirrored left to right with probability 1/2."""
    chosen = moved(torch.rand(len(images), generator=generator) < 0.5, images.device)
    return torch.where(chosen.view(-1, 1, 1, 1), images.flip(-1), images)
