# SPDX-License-Identifier: Apache-2.0
"""What segmentation tasks under domain shift have in common: sites with a device each, masks, and Dice."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from torch import nn

from fairflare.core.seeds import derive
from fairflare.core.validation import Images
from fairflare.data.inputs import ImageInputs
from fairflare.data.readers.pictures import Reader
from fairflare.data.tensors import Split, TensorData
from fairflare.datasets.kinds import partition
from fairflare.datasets.kinds.cache import kept_splits
from fairflare.networks import builtin as networks
from fairflare.tasks.base import RENDERING, SPLIT, Task, expect, expect_choices, expect_pixels, site_index
from fairflare.tasks.kinds.masks import MASKS

if TYPE_CHECKING:
    from typing_extensions import Self

SMALLEST_SITE = 16
"""Images that every site has at least."""


@dataclass(frozen=True)
class Device:
    """A scanner or camera: how one site's images look; without arguments beside ``words`` it is the plain one.

    Attributes:
        words: for reports.
    """

    factors: ClassVar[tuple[str, ...]] = ()
    """Attributes whose plain value is a factor, or an exponent, of 1."""

    words: str

    def at(self, shift: float) -> Self:
        """This device, its distance from the plain one scaled by ``shift``: 0 is the plain one, 1 this one itself."""
        plain = type(self)(self.words)
        names = [one.name for one in fields(self) if one.name != "words"]
        mixed = {name: (1 - shift) * getattr(plain, name) + shift * getattr(self, name) for name in names}
        return replace(plain, **mixed | {name: getattr(self, name) ** shift for name in self.factors})


@dataclass(frozen=True)
class DeviceShift(Task):
    """A segmentation task whose sites differ in their device and in how many patients they have.

    A site renders only its own images; each image depends on ``data_seed`` and its number alone. A concrete task names
    its devices and draws one image; its fields are the options below.

    Args:
        n_sites: the first 2.. of the task's devices.
        images: of all sites together, dealt out unevenly.
        site_test_images: of each site at least, 0..100000; what its share lacks is rendered beside it, new patients.
        size: pixels along an edge, 32..512, a multiple of 16.
        shift: how far the devices are apart, 0 (all alike) to 1.
        model: "small-unet" or "unet" (the papers').
        norm: the network's normalisation; averaged "batch" statistics of different devices fit none of them.
        augment: random rotation, shift and flip of training images and their masks.
        free_rider: number of a site whose training split repeats one image of its own, 1..n_sites; 0: none.
        data_seed: 0..2**32-1.
    """

    kind = MASKS
    devices: ClassVar[Sequence[Device]]
    """One per site."""
    shares: ClassVar[Sequence[float]]
    """How much of all images the site with each device has, relative to the others."""
    held_out: ClassVar[tuple[float, float]]
    """Shares of a site's images in its validation and test splits."""
    mean: ClassVar[Sequence[float]]
    """Per channel of values on [0, 1]; as many as the images have channels."""
    std: ClassVar[Sequence[float]]
    """Likewise."""

    n_sites: int = 6
    images: Images = 400
    site_test_images: Images = 500
    size: int = 64
    shift: float = 1.0
    model: Literal["small-unet", "unet"] = "small-unet"
    norm: Literal["instance", "group", "batch"] = "instance"
    augment: bool = False
    free_rider: int = 0
    data_seed: int = 2024

    def __post_init__(self) -> None:
        expect_choices(self)
        expect("n_sites", 2 <= self.n_sites <= len(self.devices), f"2..{len(self.devices)}", self.n_sites)
        least = int(np.ceil(SMALLEST_SITE / min(self._shares())))
        expect("images", self.images >= least, f"at least {least} for {self.n_sites} sites", self.images)
        partition.check_site_tests(self.site_test_images)
        expect("size", 32 <= self.size <= 512 and self.size % 16 == 0, "a multiple of 16 in 32..512", self.size)
        expect_pixels(self.images + self.n_sites * self.site_test_images, self.size)
        expect("shift", 0 <= self.shift <= 1, "a number in [0, 1]", self.shift)
        expect("free_rider", 0 <= self.free_rider <= self.n_sites, f"0..{self.n_sites}", self.free_rider)
        expect("data_seed", 0 <= self.data_seed < 2**32, "0..2**32-1", self.data_seed)

    @abstractmethod
    def image(self, i: int, device: Any) -> tuple[np.ndarray, np.ndarray]:
        """What ``device`` makes of patient ``i``: uint8 (channels, size, size), and the masks uint8 (C, size, size)."""

    def sites(self) -> dict[str, str]:
        words = [device.words for device in self.devices[: self.n_sites]]
        if self.free_rider:
            words[self.free_rider - 1] += f"; {partition.REMARK}"
        return {f"site-{k}": kind for k, kind in enumerate(words, start=1)}

    def network(self) -> nn.Module:
        return networks.build(self.model, len(self.mean), len(self.classes), norm=self.norm)

    def image_inputs(self) -> ImageInputs:
        values: dict[str, tuple[int, ...]] = {name: (k,) for k, name in enumerate(self.classes, start=1)}
        return ImageInputs(Reader(self.size, len(self.mean), values), tuple(self.mean), tuple(self.std))

    def drawn(self) -> tuple[str, ...]:
        return SPLIT, RENDERING

    def site_data(self, site: str) -> TensorData:
        k, rows = site_index(site, self.sites()), self.rows(site)
        if k == self.free_rider - 1:
            rows = partition.with_one_image(rows)
        device = self.devices[k].at(self.shift)
        splits = kept_splits(self, site, lambda part: self._rendered(rows[part], device))
        return self.made(**splits, n_classes=0, mean=self.mean, std=self.std, augment=self.augment)

    def made(self, **splits: Any) -> TensorData:
        """A site's data of its splits."""
        return TensorData(**splits)

    def rows(self, site: str) -> dict[str, np.ndarray]:
        """Split -> numbers of the site's images, sorted; each number is one patient, in one split of one site.

        Those of at least ``images`` are test patients beside the site's share.
        """
        k = site_index(site, self.sites())
        ends = np.round(np.cumsum((0, *self._shares())) * self.images).astype(int)
        members = np.arange(ends[k], ends[k + 1])
        seed = derive(self.data_seed, self.name, "split", k)
        return partition.own_rows(members, self.held_out, k, self.site_test_images, seed)

    def _shares(self) -> np.ndarray:
        shares = np.array(self.shares[: self.n_sites])
        return shares / shares.sum()

    def _rendered(self, rows: np.ndarray, device: Device) -> Split:
        images, masks = zip(*(self.image(i, device) for i in rows))
        return Split(torch.from_numpy(np.stack(images)), torch.from_numpy(np.stack(masks)))
