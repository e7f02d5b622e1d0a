# SPDX-License-Identifier: Apache-2.0
"""Where is the prostate? T2-weighted MR images of six sources, which the user brings, in one of two layouts.

layout=saml: the multi-site collection of Liu et al. (https://liuquande.github.io/SAML), as downloaded:

    BIDMC/Case00.nii.gz, Case00_segmentation.nii.gz, ...
    BMC/ HK/ I2CVB/ RUNMC/ UCL/    likewise

layout=fed-ce: what data_preparation of NVIDIA FLARE's research/prostate writes:

    datalist_2D/client_I2CVB.json    training, validation and testing lists of {"image": ..., "label": ...}
    datalist_2D/client_MSD.json, client_NCI_ISBI_3T.json, client_NCI_ISBI_Dx.json, client_Promise12.json,
                client_PROSTATEx.json
    dataset_2D/I2CVB/Image/<case>/<slice>.png
    dataset_2D/I2CVB/Mask/<case>/<slice>.png
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fairflare.core.errors import DataError
from fairflare.core.findings import SPLIT_NAMES
from fairflare.core.seeds import derive
from fairflare.data.readers.datalist import Item, read_datalist
from fairflare.data.readers.pictures import Reader
from fairflare.tasks.base import Preset
from fairflare.tasks.kinds.masks import PAPER, SMALL
from fairflare_lab.datasets.on_disk import MasksOnDisk, complete, dealt

SUFFIXES = (".nii.gz", ".nii")
SEGMENTATION = "_segmentation"
LOW, HIGH = 0.5, 99.5
"""Percentiles of a volume beyond which its values are clipped."""
SPAN = 5.0
"""Standard deviations from a volume's mean that 0 and 255 stand for."""
MOST_LABELS = 8
"""Different values of a segmentation; one with more is likely an image."""
KEPT = 32
"""Volumes whose slices a reader keeps: more than any of the known sites has, so that each is opened once."""


class Case(NamedTuple):
    """One patient's volume and its segmentation."""

    name: str
    image: Path
    label: Path


@dataclass(frozen=True)
class Slice(Item):
    """One axial slice of the volumes ``image`` and ``label``.

    Attributes:
        index: its number, from 0.
    """

    index: int = 0


@dataclass(frozen=True)
class SliceReader(Reader):
    """Turns a ``Slice`` into tensors; every labelled voxel belongs to the one structure.

    The first slice of a volume that is asked for opens it; the other slices are kept, resampled, for the last 32
    volumes.

    Args:
        foreground: whether only slices with a labelled voxel are asked for.
    """

    foreground: bool = True

    def __call__(self, item: Slice) -> tuple[Tensor, Tensor]:  # type: ignore[override]  # takes slices of volumes alone
        """uint8 (1, size, size), z-scores as ``standardised`` stores them, and uint8 (1, size, size) of 0 and 1.

        Raises:
            DataError: "unreadable", "data" (no volume of axial slices), "nonfinite", "mask_values" or "shape".
        """
        return self._opened(item.image, item.label)[item.index]

    @cached_property
    def _opened(self) -> Callable[[Any, Any], dict[int, tuple[Tensor, Tensor]]]:
        return lru_cache(maxsize=KEPT)(self._examples)

    def _examples(self, image: Path, label: Path) -> dict[int, tuple[Tensor, Tensor]]:
        masks, pixels = segmentation(label), standardised(image)
        if masks.shape != pixels.shape:
            shapes = ("x".join(map(str, reversed(stack.shape))) for stack in (pixels, masks))
            raise DataError("shape", "{}: {} voxels, its segmentation has {}".format(_named(image), *shapes))
        chosen = chosen_slices(masks, self.foreground)
        return {i: (self.image(pixels[i]), self.mask(masks[i].astype(np.uint8))) for i in chosen}


def cases_in(folder: Path) -> list[Case]:
    """The cases of ``folder``, sorted by name: Case00.nii.gz with Case00_segmentation.nii.gz, in any letter case.

    Raises:
        DataError: "missing_file" when one of a pair is missing, "data" when two files claim the same place.
    """
    images: dict[str, Path] = {}
    labels: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        name = path.name.lower()
        suffix = next((s for s in SUFFIXES if name.endswith(s)), None)
        if suffix is None or name.startswith("."):
            continue
        stem = name.removesuffix(suffix)
        key, kind = stem.removesuffix(SEGMENTATION), labels if stem.endswith(SEGMENTATION) else images
        if key in kind:
            raise DataError("data", f"{_named(path)}: expected one such file, got {kind[key].name} too")
        kind[key] = path
    for key in sorted(set(images) ^ set(labels)):
        found = images.get(key) or labels[key]
        other = f"{key}{SEGMENTATION if key in images else ''}{SUFFIXES[0]}"
        raise DataError("missing_file", f"{_named(found)}: expected {other} beside it, found none")
    return [Case(key, images[key], labels[key]) for key in sorted(images)]


def slices_of(case: Case, foreground: bool) -> list[Slice]:
    """The slices of ``case`` in order, or those with a labelled voxel; its name becomes the attribute "patient_id".

    Opens the segmentation only. Raises DataError, see ``segmentation``; "mask_values" where no voxel is labelled.
    """
    chosen = chosen_slices(segmentation(case.label), foreground)
    if not chosen:
        raise DataError("mask_values", f"{_named(case.label)}: expected voxels above 0, got none")
    return [Slice(case.image, case.label, {"patient_id": case.name}, i) for i in chosen]


def chosen_slices(masks: np.ndarray, foreground: bool) -> Sequence[int]:
    """Numbers of the slices of bool (slices, H, W) with a labelled voxel, or of all."""
    return np.flatnonzero(masks.any(axis=(1, 2))).tolist() if foreground else range(len(masks))


def segmentation(path: Path) -> np.ndarray:
    """bool (slices, H, W): where the volume is above 0, whatever structure within the organ it tells apart.

    Raises:
        DataError: "unreadable", "data", "nonfinite", or "mask_values" when it is not made of a few whole numbers >= 0.
    """
    stored = _stored(path)
    values = np.unique(stored)
    if len(values) > MOST_LABELS or values[0] < 0 or (values != np.round(values)).any():
        shown = ", ".join(f"{v:g}" for v in values[: MOST_LABELS + 1])
        raise DataError("mask_values", f"{_named(path)}: expected labels such as 0, 1, 2, got {shown}")
    return stored > 0


def standardised(path: Path) -> np.ndarray:
    """uint8 (slices, H, W): the volume clipped to its percentiles 0.5 and 99.5, then z-scored.

    A z-score z, clipped to -5..5, is stored as round((z + 5) / 10 * 255), so that steps of 0.04 remain; from v / 255,
    subtracting 0.5 and dividing by 0.1 gives z back. Raises DataError "unreadable", "data" or "nonfinite".
    """
    values = _stored(path)
    values = np.clip(values, *np.percentile(values, (LOW, HIGH)))
    mean, std = float(values.mean(dtype=np.float64)), float(values.std(dtype=np.float64))
    z = (values - mean) / max(std, 1e-6)
    return np.rint((np.clip(z, -SPAN, SPAN) + SPAN) / (2 * SPAN) * 255).astype(np.uint8)


def _stored(path: Path) -> np.ndarray:
    """float32 (slices, H, W): the file's third, second and first axis, as SimpleITK gives them."""
    import nibabel

    try:
        found = np.asarray(cast(Any, nibabel.load(path)).dataobj, dtype=np.float32)
    except Exception as error:  # nibabel raises whatever its decoders do
        text = f"{_named(path)}: cannot be read as a NIfTI volume ({type(error).__name__})"
        raise DataError("unreadable", text) from None
    if found.ndim != 3 or not 0 < found.shape[2] <= min(found.shape[:2]):
        expected = "expected axial slices along the third of three axes"
        raise DataError("data", f"{_named(path)}: {expected}, got an array of shape {found.shape}")
    if not np.isfinite(found).all():
        raise DataError("nonfinite", f"{_named(path)}: expected finite numbers")
    return found.T


def _named(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


SAML = {
    "BIDMC": "Beth Israel Deaconess Medical Center",
    "BMC": "Boston Medical Center",
    "HK": "Haukeland University Hospital",
    "I2CVB": "I2CVB, Dijon University Hospital",
    "RUNMC": "Radboud University Nijmegen Medical Centre",
    "UCL": "University College London",
}
FED_CE = {
    "I2CVB": "I2CVB, Dijon University Hospital",
    "MSD": "Medical Segmentation Decathlon",
    "NCI_ISBI_3T": "NCI-ISBI 2013, 3 T",
    "NCI_ISBI_Dx": "NCI-ISBI 2013, diagnosis",
    "Promise12": "PROMISE12 challenge",
    "PROSTATEx": "PROSTATEx challenge",
}
FEWEST_CASES = 3


@dataclass(frozen=True)
class Prostate(MasksOnDisk):
    """Segmentation of the whole prostate in axial slices, the data of FedCE (arXiv:2303.16520) and Fed-LWR.

    The options are those of ``MasksOnDisk`` and those below. A patient's slices are all in one split.

    With layout=saml a site's cases are drawn into splits. A volume is clipped to its percentiles 0.5 and 99.5 and
    z-scored; z is kept as uint8, -5..5 as 0..255, and given back to the network, so that values are exact to 0.02 and
    those beyond 5 are cut. Every label above 0 is prostate, whatever zone it marks.

    With layout=fed-ce the lists name the splits. A list without "testing" gets one: half of the validation cases,
    drawn with the seed; where the paths do not tell cases apart (no <case> folder), every other image. Images are on
    [0, 1] as in NVIDIA FLARE's example; a mask is 0..255, resampled linearly, and prostate where it is at least half
    of 255. Unlike there, resampling to fewer pixels smooths first.

    Args:
        layout: which files there are, see above.
        slices: "foreground": slices with prostate only; "all". The files of layout=fed-ce are such slices already.
    """

    name = "prostate"
    title = "Prostate in MR images of six sources"
    real = "T2-weighted MR images of patients and experts' outlines, files that you bring"
    simulated = "nothing; some sites of layout=fed-ce are public collections rather than hospitals"
    classes = ("prostate",)
    presets = {
        "small": Preset("64 pixels and a small U-Net; minutes on a laptop; needs the files", {}, SMALL),
        "paper": Preset(
            "Fed-LWR's setting: 384 pixels, U-Net with BatchNorm, splits 6:2:2; needs the files and a GPU",
            {"size": 384, "model": "unet", "norm": "batch"},
            PAPER,
        ),
        "paper-fedce": Preset(
            "FedCE's setting: 256 pixels, U-Net with BatchNorm; needs layout=fed-ce's files and a GPU",
            {"layout": "fed-ce", "size": 256, "model": "unet", "norm": "batch"},
            dataclasses.replace(PAPER, weight_decay=0.0),
        ),
    }
    channels = 1

    layout: Literal["saml", "fed-ce"] = "saml"
    slices: Literal["foreground", "all"] = "foreground"

    @property
    def mean(self) -> tuple[float, ...]:  # type: ignore[override]  # depends on an option
        """What stands for a z-score of 0; nothing is subtracted with layout=fed-ce."""
        return (0.5,) if self.layout == "saml" else (0.0,)

    @property
    def std(self) -> tuple[float, ...]:  # type: ignore[override]  # depends on an option
        """What stands for a z-score of 1."""
        return (0.5 / SPAN,) if self.layout == "saml" else (1.0,)

    def sites(self) -> dict[str, str]:
        return dict(SAML if self.layout == "saml" else FED_CE)

    def reader(self) -> Reader:
        values = {"prostate": (1,)}
        if self.layout == "saml":
            return SliceReader(self.size, self.channels, values, foreground=self.slices == "foreground")
        return GreyMaskReader(self.size, self.channels, values)

    def check_data(self) -> None:
        if self.layout == "fed-ce":
            return super().check_data()
        for site in self.sites():
            self._cases(self.root(), site)

    def items(self, root: Path, site: str) -> Mapping[str, Sequence[Item]]:
        return complete(site, self._of_volumes(root, site) if self.layout == "saml" else self._of_lists(root, site))

    def _of_volumes(self, root: Path, site: str) -> dict[str, list[Item]]:
        cases = self._cases(root, site)
        drawn = dealt(cases, self.val_fraction, self.test_fraction, derive(self.data_seed, self.name, site))
        foreground = self.slices == "foreground"
        return {
            split: [item for name in names for item in slices_of(cases[name], foreground)]
            for split, names in drawn.items()
        }

    def _cases(self, root: Path, site: str) -> dict[str, Case]:
        """Name -> case; DataError when there are too few to split."""
        found = {case.name: case for case in cases_in(self.needed(root / site))}
        if len(found) < FEWEST_CASES:
            raise DataError("few_examples", f"{site}: expected at least {FEWEST_CASES} cases, got {len(found)}")
        return found

    def _of_lists(self, root: Path, site: str) -> dict[str, list[Item]]:
        images = self.needed(root / "dataset_2D")
        path = self.needed(root / "datalist_2D" / f"client_{site}.json")
        lists = read_datalist(path, images, masks=True, classes=())
        found: dict[str, list[Item]] = {split: [with_case(item) for item in lists[split]] for split in SPLIT_NAMES}
        if not found["test"]:
            found["val"], found["test"] = halved(found["val"], derive(self.data_seed, self.name, site))
        cases = {split: {item.attributes["patient_id"] for item in found[split]} - {""} for split in SPLIT_NAMES}
        for a, b in combinations(SPLIT_NAMES, 2):
            if both := sorted(cases[a] & cases[b]):
                text = f"datalist {path.name}: expected each case in one list, got {both[0]} in {a} and {b}"
                raise DataError("patient_overlap", text)
        return found


class GreyMaskReader(Reader):
    """Masks of 0..255 that may have been resampled before: prostate where at least half of 255."""

    def _mask(self, pixels: np.ndarray, name: str) -> Tensor:
        top = float(pixels.max())
        if 0 < top < 128:  # 0 and 1, say, would leave no prostate without a word
            raise DataError("mask_values", f"mask {name}: expected pixel values 0..255, got at most {top:g}")
        share, edges = torch.from_numpy(pixels).float()[None, None] / 255, (self.size, self.size)
        if share.shape[2:] != edges:
            share = F.interpolate(share, edges, mode="bilinear", antialias=True, align_corners=False)
        return (share[0] >= 0.5).to(torch.uint8)


def with_case(item: Item) -> Item:
    """``item`` with the attribute "patient_id": the folder of its image where that lies in a folder Image, else ""."""
    assert isinstance(item.image, Path)  # this task reads files
    folder = item.image.parent
    case = folder.name if folder.parent.name == "Image" else ""
    return dataclasses.replace(item, attributes={**item.attributes, "patient_id": case})


def halved(items: Sequence[Item], seed: int) -> tuple[list[Item], list[Item]]:
    """Two halves of a validation list, by case where all of its cases are known, else every other image.

    Raises:
        DataError: "empty_split" when the one case there is cannot be halved.
    """
    cases = {item.attributes["patient_id"] for item in items}
    if "" in cases:
        return list(items[::2]), list(items[1::2])
    if len(cases) < 2:
        text = f"expected a testing list, or at least 2 cases in the validation list, got {len(cases)}"
        raise DataError("empty_split", text)
    test = set(dealt(cases, 0.0, 0.5, seed)["test"])
    parts = ([item for item in items if (item.attributes["patient_id"] in test) is wanted] for wanted in (False, True))
    return next(parts), next(parts)
