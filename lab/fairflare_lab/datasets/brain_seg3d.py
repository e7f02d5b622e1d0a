# SPDX-License-Identifier: Apache-2.0
"""Where are grey matter, white matter and ventricles in a whole head? ``brain_seg`` in three dimensions.

Heads have the shape of the MNI ICBM152 brain, each warped into another "patient"; see ``phantoms``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

import numpy as np
from torch import Tensor, nn

from fairflare.core.validation import Images, Range
from fairflare.data.readers.volumes import VolumeData, VolumeReader
from fairflare.data.tensors import ImageInputs, TensorData
from fairflare.networks import volumes
from fairflare.tasks.base import Preset, expect
from fairflare.tasks.kinds.masks import VOLUME_MASKS, of_volumes, structure_values
from fairflare.tasks.own.volume_segmentation import LARGE, SMALL
from fairflare_lab.datasets.brain_seg import BrainSeg, weighted
from fairflare_lab.datasets.phantoms import DEEP, FIELD_OF_VIEW, MOST_PIXELS, bumps, soft, template, ventricle_region

EDGE = 2
"""Millimetres of a voxel of the atlas as it is kept, whose template has 1 mm."""
LEVELS = (60, 112)
"""Axial slices of the template between which deep CSF is a ventricle and not a cistern below or a sulcus above."""


@cache
def atlas() -> tuple[np.ndarray, np.ndarray]:
    """The template at ``EDGE`` millimetres, read once per process; UserError where nilearn is not installed.

    Returns:
        float32 (4, X, Y, Z): grey matter and white matter in [0, 1]; millimetres below the brain's surface and below
        the ventricles' wall, negative outside of them. And (x, y, z) of the brain's centre in voxels.
    """
    from scipy.ndimage import binary_fill_holes

    t1, grey, white = (_volume(kind) for kind in ("t1", "gm", "wm"))
    brain = binary_fill_holes(t1 > 0.02)
    depth = _signed_distance(brain)
    region = ventricle_region((t1.shape[0] * EDGE, t1.shape[1] * EDGE, 1))[::EDGE, ::EDGE]
    level = np.arange(t1.shape[2]) * EDGE
    within = region & ((level >= LEVELS[0]) & (level <= LEVELS[1]))[None, None]
    ventricle = _signed_distance((grey + white < 0.5) & (depth > DEEP) & within)
    places = np.nonzero(brain)
    centre = np.array([(found.min() + found.max()) / 2 for found in places])
    return np.stack((grey, white, depth, ventricle)).astype(np.float32), centre


def patient(voxels: int, rng: np.random.Generator) -> list[np.ndarray]:
    """A random head on a grid of so many voxels along each edge: turned, scaled, shifted, mirrored and bent.

    Returns:
        The four maps of ``atlas``, float64 (P, P, P) each; the axes point to the right, the front and above.
    """
    from scipy.ndimage import map_coordinates

    maps, centre = atlas()
    places = centre[:, None, None, None] + _warped_grid(voxels, rng) / EDGE
    return [map_coordinates(one, places, order=1, mode="nearest", output=np.float64) for one in maps]


def smooth_field(voxels: int, knots: int, rng: np.random.Generator) -> np.ndarray:
    """(voxels, voxels, voxels) smooth noise of about unit spread with ``knots`` bumps along each edge."""
    basis, found = bumps(voxels, knots), rng.standard_normal((knots, knots, knots))
    for _ in range(3):  # one axis after the other; not @: the same bits however many threads BLAS has
        found = np.einsum("ik,klm->lmi", basis, found)
    return found


def _warped_grid(voxels: int, rng: np.random.Generator) -> np.ndarray:
    """(3, P, P, P) millimetres from the brain's centre of the template."""
    ticks = ((np.arange(voxels) + 0.5) / voxels - 0.5) * FIELD_OF_VIEW
    right, front, above = np.meshgrid(ticks, ticks, ticks, indexing="ij")
    turn = np.radians(rng.uniform(-8, 8))
    sx, sy, sz = rng.uniform(0.95, 1.08, size=3) * (rng.choice((-1, 1)), 1, 1)
    shift = rng.uniform(-5, 5, size=3)
    straight = (
        sx * (np.cos(turn) * right - np.sin(turn) * front),
        sy * (np.sin(turn) * right + np.cos(turn) * front),
        sz * above,
    )
    return np.stack([one + by + 2.5 * smooth_field(voxels, 6, rng) for one, by in zip(straight, shift)])


def _signed_distance(inside: np.ndarray) -> np.ndarray:
    """Millimetres to the edge, positive inside."""
    from scipy.ndimage import distance_transform_edt

    return np.asarray(EDGE * (distance_transform_edt(inside) - distance_transform_edt(~inside)))


def _volume(kind: str) -> np.ndarray:
    """The "t1", "gm" or "wm" map, means of blocks of ``EDGE`` voxels, float32 (X, Y, Z) in [0, 1]."""
    found = template(kind)
    x, y, z = (n // EDGE for n in found.shape)
    blocks = found[: x * EDGE, : y * EDGE, : z * EDGE].reshape(x, EDGE, y, EDGE, z, EDGE)
    return np.asarray(blocks.mean((1, 3, 5), dtype=np.float32) / 255)


LEAST, LARGEST = 32, 128
"""Voxels along an edge."""
FAST = dataclasses.replace(SMALL, rounds=40, lr=1e-2)
"""Chosen by one run of FedAvg each: the ventricles, 2 in 1,000 voxels, take long (docs/benchmarks/README.md)."""


def subject(size: int, proton: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """What ``brain_seg.subject`` gives, of a whole head: (size, size, size), and masks (3, size, size, size)."""
    grey, white, depth, ventricle = patient(size, rng)
    ventricles = soft(ventricle + rng.uniform(0, 2.5))  # wider with age
    shares = np.stack((grey * (1 - ventricles), white * (1 - ventricles), ventricles))
    image = weighted(depth, shares, proton, rng) * (1 + 0.03 * smooth_field(size, 8, rng))
    return image, (shares >= 0.5).astype(np.uint8)


@dataclass(frozen=True)
class BrainSeg3D(BrainSeg):
    """Segmentation of whole heads under domain shift: the patients' anatomy and the scanners of ``BrainSeg``.

    Every site has one scanner and a number of patients of its own, whose heads are cubes of 216 mm. The options are
    those of ``DeviceShift``, without ``augment``, and those below.

    Args:
        size: voxels along an edge, 32..128, a multiple of 16; 48 of them are 4.5 mm each.
        patch: voxels along an edge of the patches that training is on, a multiple of 4, at most ``size``.
        patches: of each training volume in an epoch.
        model: "small-unet3d", "unet3d" (whose patches are a multiple of 16), or "small-unet-slices", whose
            convolutions see one axial slice.
    """

    name = "brain-seg3d"
    title = "Brain tissue segmentation of whole heads across scanners"
    kind = VOLUME_MASKS
    presets = {
        "small": Preset("3 sites with a scanner each, 48 voxels along an edge; minutes on a laptop", {}, FAST),
        "large": Preset(
            "6 sites, 96 voxels along an edge and a U-Net of 4.8 million parameters; for a GPU",
            {"n_sites": 6, "images": 300, "size": 96, "patch": 64, "model": "unet3d"},
            LARGE,
        ),
    }

    n_sites: int = 3
    images: Images = 80
    site_test_images: Images = 10
    size: int = 48
    patch: int = 32
    patches: Annotated[int, Range(1, 64)] = 4
    model: Literal["small-unet3d", "unet3d", "small-unet-slices"] = "small-unet3d"  # type: ignore[assignment]  # other networks

    def __post_init__(self) -> None:
        super().__post_init__()
        expect("size", LEAST <= self.size <= LARGEST, f"{LEAST}..{LARGEST}", self.size)
        expect("patch", 16 <= self.patch <= self.size and self.patch % 4 == 0, f"16..{self.size}, by 4", self.patch)
        expect("augment", not self.augment, "no", self.augment)
        most = MOST_PIXELS // (4 * self.size**3)  # with its masks
        expect("images", self.images + self.n_sites * self.site_test_images <= most, f"at most {most}", self.images)

    @property
    def edge(self) -> float:
        """Millimetres of a voxel."""
        return FIELD_OF_VIEW / self.size

    subject = staticmethod(subject)

    def network(self) -> nn.Module:
        return volumes.segmenter(self.model, (self.patch,) * 3, len(self.classes), self.norm)

    def image_inputs(self) -> ImageInputs:
        reader = VolumeReader((self.edge,) * 3, (self.size,) * 3, *structure_values("", self.classes))
        return ImageInputs(reader, tuple(self.mean), tuple(self.std), volumes=True)

    def condense(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Outlines may differ by a voxel's edge."""
        return of_volumes(outputs, targets, (self.edge,) * 3, self.edge)

    def made(self, **splits: Any) -> TensorData:
        about: dict[str, Any] = {"n_classes": 0, "mean": self.mean, "std": self.std}
        return VolumeData(patch=(self.patch,) * 3, patches=self.patches, **splits, **about)
