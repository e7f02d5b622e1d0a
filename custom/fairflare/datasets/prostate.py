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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fairflare.core.errors import DataError
from fairflare.core.seeds import derive
from fairflare.data.readers.datalist import Item, read_datalist
from fairflare.data.readers.pictures import Reader
from fairflare.datasets.kinds.masks_on_disk import MasksOnDisk, complete, dealt
from fairflare.datasets.readers import volumes
from fairflare.tasks.base import Preset
from fairflare.tasks.kinds.masks import PAPER, SMALL

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
SPLITS = ("train", "val", "test")


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
        "small": Preset(
            "64 pixels and a small U-Net; minutes on a laptop; needs the files",
            {},
            SMALL,
        ),
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
        return (0.5 / volumes.SPAN,) if self.layout == "saml" else (1.0,)

    def sites(self) -> dict[str, str]:
        """The institutions or collections of the layout."""
        return dict(SAML if self.layout == "saml" else FED_CE)

    def reader(self) -> Reader:
        """Of slices of volumes, or of 2D images with grey masks."""
        values = {"prostate": (1,)}
        if self.layout == "saml":
            return volumes.SliceReader(self.size, self.channels, values, foreground=self.slices == "foreground")
        return GreyMaskReader(self.size, self.channels, values)

    def check_data(self) -> None:
        """Look for every site's files, without opening volumes or images."""
        if self.layout == "fed-ce":
            return super().check_data()
        for site in self.sites():
            self._cases(self.root(), site)

    def items(self, root: Path, site: str) -> Mapping[str, Sequence[Item]]:
        """The site's slices; with layout=saml its segmentations are opened to find those with prostate."""
        return complete(site, self._of_volumes(root, site) if self.layout == "saml" else self._of_lists(root, site))

    def _of_volumes(self, root: Path, site: str) -> dict[str, list[Item]]:
        cases = self._cases(root, site)
        drawn = dealt(cases, self.val_fraction, self.test_fraction, derive(self.data_seed, self.name, site))
        foreground = self.slices == "foreground"
        return {
            split: [item for name in names for item in volumes.slices_of(cases[name], foreground)]
            for split, names in drawn.items()
        }

    def _cases(self, root: Path, site: str) -> dict[str, volumes.Case]:
        """Name -> case; DataError when there are too few to split."""
        found = {case.name: case for case in volumes.cases(self.needed(root / site))}
        if len(found) < FEWEST_CASES:
            raise DataError("few_examples", f"{site}: expected at least {FEWEST_CASES} cases, got {len(found)}")
        return found

    def _of_lists(self, root: Path, site: str) -> dict[str, list[Item]]:
        images = self.needed(root / "dataset_2D")
        path = self.needed(root / "datalist_2D" / f"client_{site}.json")
        lists = read_datalist(path, images, masks=True, classes=())
        found = {split: [with_case(item) for item in lists[split]] for split in SPLITS}
        if not found["test"]:
            found["val"], found["test"] = halved(found["val"], derive(self.data_seed, self.name, site))
        for a, b in (("train", "val"), ("train", "test"), ("val", "test")):
            both = sorted({case_of(item) for item in found[a]} & {case_of(item) for item in found[b]} - {""})
            if both:
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


def case_of(item: Item) -> str:
    """The attribute that ``with_case`` set."""
    return item.attributes["patient_id"]


def halved(items: Sequence[Item], seed: int) -> tuple[list[Item], list[Item]]:
    """Two halves of a validation list, by case where all of its cases are known, else every other image.

    Raises:
        DataError: "empty_split" when the one case there is cannot be halved.
    """
    cases = {case_of(item) for item in items}
    if "" in cases:
        return list(items[::2]), list(items[1::2])
    if len(cases) < 2:
        text = f"expected a testing list, or at least 2 cases in the validation list, got {len(cases)}"
        raise DataError("empty_split", text)
    test = set(dealt(cases, 0.0, 0.5, seed)["test"])
    return [i for i in items if case_of(i) not in test], [i for i in items if case_of(i) in test]
