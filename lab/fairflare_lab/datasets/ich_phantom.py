# SPDX-License-Identifier: Apache-2.0
"""Which kind of intracranial haemorrhage? Simulated bleeds on real anatomy, some sites with images of poor quality.

A bleed lies where anatomy puts each of the RSNA challenge's five subtypes. Grey values follow the usual brain window
(level 40, width 80 HU): air 0, CSF .13, white matter .36, grey matter .46, fresh blood .6 to .8, bone 1. The bleeds are
simulated; nothing here is a patient, and no clinical claim is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fairflare.core.seeds import derive
from fairflare.core.types import Training
from fairflare.core.validation import Images
from fairflare.data.readers.pictures import Reader
from fairflare.data.tensors import ImageInputs, Split, TensorData
from fairflare.datasets.partition import SMALLEST_SITE
from fairflare.tasks.base import PARTITION, RENDERING, SPLIT, Preset, TestSet, expect
from fairflare_lab.datasets import poor_images
from fairflare_lab.datasets.cache import rendered
from fairflare_lab.datasets.phantoms import (
    GAP,
    REMARK,
    SOURCE,
    Head,
    Rendered,
    atlas,
    patient,
    signal,
    smooth_field,
    soft,
)
from fairflare_lab.datasets.poor_images import MOTION_ANGLES, RADIUS, gaussian_noise, motion_blur

CLASSES = ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural")
SHARES = (0.10, 0.20, 0.15, 0.20, 0.35)
"""How common each class is: about as imbalanced as the 25,000 slices of FedISM+ (without their 2 % of epidurals)."""
CSF, WHITE, GREY, SCALP, BONE = 0.13, 0.36, 0.46, 0.34, 1.0


def render(label: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """One image of class ``label``: uint8 (size, size), a function of ``rng`` alone.

    Small images are drawn at twice their size and averaged, as a scanner's thick pixels do.
    """
    zoom = 2 if size < 128 else 1
    head = patient(size * zoom, rng)
    ventricle = head.ventricle + rng.uniform(0, 2.5)  # wider with age
    matter = np.stack((head.grey, head.white)) * (1 - soft(ventricle))
    image = signal(head.depth, matter, (GREY, WHITE, CSF, BONE, SCALP), 6, rng)
    blood, swelling = BLEEDS[label](head, ventricle, rng)
    level = rng.uniform(0.62, 0.78) + 0.03 * smooth_field(size * zoom, 12, rng)
    image = image - 0.12 * swelling
    image = image + blood * (level - image)
    image = image.reshape(size, zoom, size, zoom).mean((1, 3))
    image = image * rng.uniform(0.95, 1.05) + 0.02 * rng.standard_normal((size, size))
    return np.round(np.clip(image, 0, 1) * 255).astype(np.uint8)


def _under_skull(head: Head, thickness: np.ndarray) -> np.ndarray:
    """1 between the skull's inner table and ``thickness`` millimetres below it."""
    below = head.depth + GAP
    return soft(below) * soft(thickness - below) * (thickness > 0)


def _off(head: Head, angle: float) -> np.ndarray:
    """Angle in radians, -pi to pi, that each pixel is away from direction ``angle``; 0 is right, pi / 2 front."""
    return (np.arctan2(head.y, head.x) - angle + np.pi) % (2 * np.pi) - np.pi


def _lateral(rng: np.random.Generator, spread: float) -> float:
    """A direction at most ``spread`` degrees in front of or behind the left or right side."""
    return rng.choice((0.0, np.pi)) + np.radians(rng.uniform(-spread, spread))


def _epidural(head: Head, ventricle: np.ndarray, rng: np.random.Generator):
    """A lens between skull and dura: short and thick."""
    off = _off(head, _lateral(rng, 50))
    half_length = rng.uniform(20, 32)
    along = np.hypot(head.x, head.y) * off / half_length
    thickness = half_length * rng.uniform(0.45, 0.65) * (1 - along**2)
    return _under_skull(head, np.where(abs(off) < 1, thickness, 0)), 0.0


def _subdural(head: Head, ventricle: np.ndarray, rng: np.random.Generator):
    """A crescent over much of one hemisphere: long and thin, ending at the midline."""
    angle = _lateral(rng, 25)
    off = _off(head, angle) / np.radians(rng.uniform(45, 75))
    side = soft(head.x * np.sign(np.cos(angle)) - 4)
    return _under_skull(head, rng.uniform(6, 11) * (1 - off**4)) * side, 0.0


def _intraparenchymal(head: Head, ventricle: np.ndarray, rng: np.random.Generator):
    """An irregular blob in the white matter with a dark rim of oedema."""
    template = atlas()
    places = template.white[head.slice]
    x, y = places[rng.integers(len(places))] - template.centre
    turn, stretch = rng.uniform(0, np.pi), rng.uniform(1, 1.6)
    u = np.cos(turn) * (head.x - x) + np.sin(turn) * (head.y - y)
    v = np.cos(turn) * (head.y - y) - np.sin(turn) * (head.x - x)
    distance = np.hypot(u, v * stretch) * (1 + 0.2 * smooth_field(len(u), 20, rng))
    radius = rng.uniform(9, 17)
    tissue = soft(head.depth) * (1 - soft(ventricle))
    return soft(radius - distance) * soft(head.depth - 3), soft(radius + 5 - distance, 6.0) * tissue


def _intraventricular(head: Head, ventricle: np.ndarray, rng: np.random.Generator):
    """Blood that fills the ventricles, their lower (posterior) part or one side of them."""
    part = rng.choice(3, p=(0.5, 0.25, 0.25))
    where = (1.0, soft(rng.uniform(-5, 15) - head.y, 6.0), soft(rng.choice((-1, 1)) * head.x + 4, 6.0))[part]
    return soft(ventricle + 1) * where, 0.0


def _subarachnoid(head: Head, ventricle: np.ndarray, rng: np.random.Generator):
    """Blood in the sulci and cisterns of a region, not in the ventricles."""
    fluid = np.clip((1 - head.grey - head.white) / 0.2, 0, 1)
    sulci = fluid * soft(head.depth + GAP) * (1 - soft(ventricle + 3))
    region = np.exp(-((_off(head, rng.uniform(-np.pi, np.pi)) / np.radians(rng.uniform(40, 80))) ** 2))
    return sulci * region, 0.0


BLEEDS = (_epidural, _intraparenchymal, _intraventricular, _subarachnoid, _subdural)
"""Per class: the shares of blood and of swollen tissue in each pixel, (P, P) in [0, 1]."""


NORMS = {
    "small-cnn": ((0.25,), (0.28,)),
    "small-cnn-bn": ((0.25,), (0.28,)),
    "resnet18": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
"""Network -> mean and std per channel on [0, 1]; ImageNet's make three channels of one."""


SMALL = Training(rounds=40, batch_size=16, optimizer="adam", lr=1e-3, weight_decay=5e-4, logit_tau=1.0)
MEDIUM = Training(rounds=100, batch_size=32, optimizer="adam", lr=1e-3, weight_decay=5e-4, logit_tau=1.0)


@dataclass(frozen=True)
class IchPhantom(Rendered, poor_images.PoorSites):
    """Image-quality shift as in FedISM+ (Wu et al., arXiv:2503.09587), on a phantom of its ICH data.

    The last ``corrupted`` sites hold poor images in all of their splits. A site renders only its own images; each image
    and its corruption depend on ``data_seed`` and the image's number alone.
    The options are those of ``PoorSites`` and those below.

    Args:
        images: of all sites together.
        test_images: of each shared test set, 20..100000.
        site_test_images: of each site at least, 0..100000; what its share lacks is rendered beside it, new patients,
            their classes as frequent as in the share.
        free_rider: number of a site whose training split repeats one image of its own, 1..n_sites; 0: none.
    """

    name = "ich-phantom"
    title = "ICH phantom: subtype of an intracranial haemorrhage"
    real = f"the anatomy: {SOURCE}"
    simulated = "the bleeds, the CT look, the patients (warps of that brain), the sites and their image quality"
    classes = CLASSES
    primary = "balanced accuracy on corrupted images"
    presets = {
        "small": Preset(
            "8 sites, 2 of them with noise, little label skew, 48 pixels, a small CNN; a minute on a laptop",
            {"alpha": 10.0},
            SMALL,
            **RADIUS,
        ),
        "equal": Preset(
            "as small, with the same label distribution at every site but for chance, which FedISM's theorem assumes",
            {"alpha": 1e6},
            SMALL,
            **RADIUS,
        ),
        "skewed": Preset("as small, with the papers' label skew between the sites", {"alpha": 1.0}, SMALL, **RADIUS),
        "medium": Preset(
            "as skewed, with 4,000 images of 64 pixels and 100 rounds; hours on a laptop, minutes on a GPU",
            {"alpha": 1.0, "images": 4000, "size": 64},
            MEDIUM,
            **RADIUS,
        ),
        "paper": Preset(
            "the papers' setting: 20 sites, 4 of them with noise, 224 pixels, ResNet-18, 300 rounds; for a GPU",
            {"n_sites": 20, "corrupted": 4, "images": 5000, "size": 224, "model": "resnet18", "augment": True},
            Training(rounds=300, batch_size=32, optimizer="adam", lr=3e-4, weight_decay=5e-4, logit_tau=1.0),
        ),
    }

    held_out = (0.15, 0.15)

    images: Images = 1200
    test_images: Images = 2000
    site_test_images: Images = 500
    free_rider: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        most = poor_images.MOST_SITE_TESTS
        expect("test_images", 20 <= self.test_images <= most, f"20..{most}", self.test_images)
        self._check_images(SMALLEST_SITE * self.n_sites, 6 * self.test_images)

    def sites(self) -> dict[str, str]:
        found = super().sites()
        if self.free_rider:
            found[f"site-{self.free_rider}"] += REMARK
        return found

    def network(self) -> nn.Module:
        return self.built(len(NORMS[self.model][0]))

    def image_inputs(self) -> ImageInputs:
        mean, std = NORMS[self.model]
        return ImageInputs(Reader(self.size, 1), tuple(mean), tuple(std))

    def drawn(self) -> tuple[str, ...]:
        return PARTITION, SPLIT, RENDERING

    def made(self, **splits: Any) -> TensorData:
        mean, std = NORMS[self.model]
        return TensorData(**splits, n_classes=len(self.classes), mean=mean, std=std, augment=self.augment)

    def members(self, k: int) -> np.ndarray:
        return np.flatnonzero(plan(self)[1] == k)

    def test_sets(self) -> tuple[TestSet, ...]:
        kept, norm = rendered(self, "tests", self._tests), NORMS[self.model]
        targets = kept.pop("targets")
        return tuple(TestSet(name, name != "clean", images, targets, *norm) for name, images in kept.items())

    def _tests(self) -> dict[str, Tensor]:
        """Images of each shared test set by name, in order, and their "targets"."""
        rng = np.random.default_rng(derive(self.data_seed, self.name, "test labels"))
        labels = rng.choice(len(self.classes), size=self.test_images, p=SHARES)
        clean = [self._image("test", i, label) for i, label in enumerate(labels)]
        found = {"clean": _stacked(clean)}
        for severity in range(1, 6):
            poor = [self._corrupted(image, severity, f"test {severity}", i) for i, image in enumerate(clean)]
            found[f"{self.corruption} {severity}"] = _stacked(poor)
        return {**found, "targets": torch.from_numpy(labels)}

    def _labels(self, k: int, rows: np.ndarray) -> np.ndarray:
        """Of images beside the share they are as frequent as in it, the first ones the same however many there are."""
        labels, sites = plan(self)
        rng = np.random.default_rng(derive(self.data_seed, self.name, "site test labels", k))
        own, beside = labels[sites == k], rows >= self.images
        return np.concatenate((labels[rows[~beside]], own[rng.integers(0, len(own), size=beside.sum())]))

    def rendered(self, k: int, rows: np.ndarray) -> Split:
        labels = self._labels(k, rows)
        images = [self._image("site", i, label) for i, label in zip(rows, labels)]
        if k >= self.n_sites - self.corrupted:
            images = [self._corrupted(image, self.severity, "site", i) for i, image in zip(rows, images)]
        return Split(_stacked(images), torch.from_numpy(labels))

    def _image(self, pool: str, i: int, label: int) -> np.ndarray:
        rng = np.random.default_rng(derive(self.data_seed, self.name, "image", pool, i))
        return render(int(label), self.size, rng)

    def _corrupted(self, image: np.ndarray, severity: int, pool: str, i: int) -> np.ndarray:
        rng = np.random.RandomState(derive(self.data_seed, self.name, self.corruption, pool, i) % 2**32)
        if self.corruption == "noise":
            return gaussian_noise(image, severity, rng)
        return motion_blur(image, severity, rng.uniform(*MOTION_ANGLES), scale=self.size / 224)


@lru_cache(maxsize=8)
def plan(task: IchPhantom) -> tuple[np.ndarray, np.ndarray]:
    """Label and site index of every image, int64 (images,) each, from the seed alone."""
    rng = np.random.default_rng(derive(task.data_seed, task.name, "labels"))
    labels = rng.choice(len(task.classes), size=task.images, p=SHARES)
    return labels, task.dealt(labels, task.data_seed)


def _stacked(images: list[np.ndarray]) -> Tensor:
    """uint8 (N, 1, size, size)."""
    return torch.from_numpy(np.stack(images))[:, None]
