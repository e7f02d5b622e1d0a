# SPDX-License-Identifier: Apache-2.0
"""Which digit? Handwritten, coarse, over photographs and in print: sites whose images look different."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from fairflare.core.seeds import derive
from fairflare.core.types import Training
from fairflare.data.checks import expect, expect_choices, site_index
from fairflare.data.inputs import ImageInputs
from fairflare.data.readers.pictures import Reader
from fairflare.data.tensors import Split, TensorData
from fairflare.datasets.kinds.cropping import CroppedData
from fairflare.datasets.kinds.domains import OverDomains
from fairflare.datasets.kinds.partition import dirichlet_by_label, redrawn
from fairflare.datasets.simulated import more_images, numerals
from fairflare.datasets.simulated.cache import kept_splits, rendered
from fairflare.datasets.simulated.numerals import DOMAINS
from fairflare.networks import builtin as networks
from fairflare.tasks.base import PARTITION, RENDERING, SPLIT, Preset, Task, TestSet

SMALLEST_SITE = 24
"""Images that every site has at least."""
VAL, TEST = 0.1, 0.3
"""Shares of a site's images in its validation and test splits."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Per channel on [0, 1]; ImageNet's, as in FedHEAL."""


@dataclass(frozen=True)
class Digits(OverDomains, Task):
    """Domain shift as in FedHEAL's Digits (Chen et al., arXiv:2405.16585), with data that installed packages bring.

    A quarter of the sites holds each domain, in the order of ``numerals.DOMAINS``. Which images a site has, and how a
    generated one looks, depends on ``data_seed`` alone; no two sites and no test set share a handwritten digit.

    Args:
        n_sites: a multiple of 4 in 4..40; the paper has 20.
        images_per_site: train, validation and test together; the mean over a domain's sites where ``alpha`` > 0.
        test_images: of each domain's shared test set; 500 are 2,000 for the four domains.
        site_test_images: of each site, 0..100000; what its share lacks comes from the handwriting that nobody has, as
            far as that goes: 368 at a site of 8 with optdigits, 84 of 20. With a label skew fewer, as its classes are.
        alpha: concentration of a Dirichlet label skew between the sites of a domain; 0: none.
        model: "small-cnn", "small-cnn-bn" (BatchNorm), "resnet10" (the paper's) or "resnet18".
        augment: training images moved by up to 4 pixels, the paper's random crop.
        data_seed: 0..2**32-1.
    """

    name = "digits"
    title = "Digits in four looks"
    real = numerals.SOURCE
    simulated = "the blend with the photographs, the printed digits, and the sites"
    classes = numerals.CLASSES
    primary = "accuracy of the worst look"
    headline = "accuracy"
    presets = {
        "small": Preset(
            "8 sites, 2 per look, a small CNN; about a minute on a laptop",
            {},
            # The paper's rate of 0.001 is for 2,000 local epochs; this is its optimizer at 40 of them.
            Training(rounds=20, epochs=2, batch_size=32, optimizer="sgd", lr=0.02, momentum=0.9, weight_decay=1e-5),
        ),
        "paper": Preset(
            "the paper's setting: 20 sites, 5 per look, ResNet-10, 200 rounds of 10 epochs; for a GPU",
            {"n_sites": 20, "images_per_site": 250, "model": "resnet10", "augment": True},
            Training(rounds=200, epochs=10, batch_size=64, optimizer="sgd", lr=1e-3, momentum=0.9, weight_decay=1e-5),
        ),
    }

    domain_names = DOMAINS
    n_sites: int = 8
    images_per_site: int = 400
    test_images: int = 500
    site_test_images: int = 500
    alpha: float = 0.0
    model: Literal["small-cnn", "small-cnn-bn", "resnet10", "resnet18"] = "small-cnn"
    augment: bool = False
    data_seed: int = 2024

    def __post_init__(self) -> None:
        expect_choices(self)
        fits = 4 <= self.n_sites <= 40 and self.n_sites % len(DOMAINS) == 0
        expect("n_sites", fits, "a multiple of 4 in 4..40", self.n_sites)
        smallest = min(numerals.SIZES.values())
        most = smallest - SMALLEST_SITE * self._per_domain
        expect("test_images", 20 <= self.test_images <= most, f"20..{most} for {self.n_sites} sites", self.test_images)
        most = (smallest - self.test_images) // self._per_domain
        expect(
            "images_per_site",
            SMALLEST_SITE <= self.images_per_site <= most,
            f"{SMALLEST_SITE}..{most} for {self.n_sites} sites and {self.test_images} test images",
            self.images_per_site,
        )
        more_images.check(self.site_test_images)
        expect("alpha", 0 <= self.alpha < math.inf, "a number above 0, or 0 for no label skew", self.alpha)
        expect("data_seed", 0 <= self.data_seed < 2**32, "0..2**32-1", self.data_seed)

    def check_data(self) -> None:
        """See ``numerals.check``."""
        numerals.check()

    def network(self) -> nn.Module:
        """Images (N, 3, 32, 32) -> logits (N, 10)."""
        return networks.build(self.model, len(MEAN), len(self.classes))

    def image_inputs(self) -> ImageInputs:
        """Files of 8 bits, resampled to 32 pixels."""
        return ImageInputs(Reader(32, len(MEAN)), MEAN, STD)

    def table_sets(self) -> dict[str, str]:
        """Every look's test set: FedHEAL's tables take the mean of the last five rounds."""
        return {domain: domain for domain in DOMAINS}

    def drawn(self) -> tuple[str, ...]:
        """Who has which handwriting, and how the generated images look."""
        return PARTITION, SPLIT, RENDERING

    def site_data(self, site: str) -> TensorData:
        """The site's images, drawn now or before, see ``simulated.cache``."""
        domain, rows = self.domain(site), self.rows(site)
        splits = kept_splits(self, site, lambda part: Split(*self._drawn(domain, rows[part])))
        kind = CroppedData if self.augment else TensorData
        return kind.of(splits, n_classes=len(self.classes), mean=MEAN, std=STD)

    def rows(self, site: str) -> dict[str, np.ndarray]:
        """Split -> numbers of the site's images within its domain, sorted; each number is in one split of one site."""
        k = site_index(site, self.sites())
        numbers, sites = plan(self, self.domain(site))
        members = numbers[sites == k % self._per_domain]
        shuffled = np.random.default_rng(derive(self.data_seed, self.name, "split", k)).permutation(members)
        n_val, n_test = round(VAL * len(members)), round(TEST * len(members))
        val, test, train = np.split(shuffled, (n_val, n_val + n_test))
        test = np.concatenate((np.sort(test), self._spare(k, members, self.site_test_images - len(test))))
        return {"train": np.sort(train), "val": np.sort(val), "test": test}

    def _spare(self, k: int, members: np.ndarray, n: int) -> np.ndarray:
        """Up to ``n`` numbers of images that nobody has, sorted; classes as frequent as in ``members`` if skewed."""
        domain, n_sites = DOMAINS[k // self._per_domain], self._per_domain
        spare = numerals.order(domain, self.data_seed)[self.test_images + self.images_per_site * n_sites :]
        spare = spare[k % n_sites :: n_sites]
        if self.alpha:
            labels = numerals.labels(domain)
            spare = more_images.alike(spare, labels[spare], labels[members])
        return np.sort(spare[: max(0, n)])

    def test_rows(self, domain: str) -> np.ndarray:
        """Numbers of the images in the shared test set of ``domain``, (test_images,); they are at no site."""
        return numerals.order(domain, self.data_seed)[: self.test_images]

    def test_sets(self) -> tuple[TestSet, ...]:
        """One per domain, named after it."""
        kept = rendered(self, "tests", self._tests)
        return tuple(TestSet(d, False, kept[d], kept[f"{d} targets"], MEAN, STD) for d in DOMAINS)

    def _tests(self) -> dict[str, Tensor]:
        """Images of each domain's shared test set by its name, and their "... targets"."""
        drawn = {domain: self._drawn(domain, self.test_rows(domain)) for domain in DOMAINS}
        images = {domain: part for domain, (part, _) in drawn.items()}
        return images | {f"{domain} targets": targets for domain, (_, targets) in drawn.items()}

    def _drawn(self, domain: str, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """uint8 (N, 3, 32, 32) and int64 (N,)."""
        images = np.stack([numerals.draw(domain, i, self.data_seed) for i in rows])
        return torch.from_numpy(images), torch.from_numpy(numerals.labels(domain)[rows])


@lru_cache(maxsize=16)
def plan(task: Digits, domain: str) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the images that the sites of ``domain`` hold, and which of these sites holds each, from 0.

    Both int64 (images_per_site * sites of the domain,); drawn without replacement, from the seed and the labels alone.
    """
    n_sites = task.n_sites // len(DOMAINS)
    numbers = numerals.order(domain, task.data_seed)[task.test_images :][: task.images_per_site * n_sites]
    if not task.alpha:
        return numbers, np.arange(len(numbers)) % n_sites
    labels = numerals.labels(domain)[numbers]
    sites = redrawn(
        lambda seed: dirichlet_by_label(labels, n_sites, task.alpha, seed),
        labels,
        n_sites,
        derive(task.data_seed, task.name, "skew", domain) % 2**32,
        minimum=SMALLEST_SITE,
    )
    return numbers, sites
