# SPDX-License-Identifier: Apache-2.0
"""Where are the optic disc and its cup? Retina photographs of several cameras, which the user brings.

layout=dofe: the four domains of DoFE (Wang et al., IEEE TMI 2020), also used by FedDG and Fed-LWR, as downloaded:

    Fundus/Domain1/train/ROIs/image/*.png
    Fundus/Domain1/train/ROIs/mask/*.png    the same file names
    Fundus/Domain1/test/ROIs/image/ mask/   likewise
    Fundus/Domain2/ Domain3/ Domain4/       likewise

layout=sites: a folder per site, named in the option site_names:

    Fundus/<site>/image/*.png, *.jpg
    Fundus/<site>/mask/*.png                the same names, ending in .png
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fairflare.core.errors import DataError
from fairflare.core.seeds import derive
from fairflare.data.readers.datalist import Item
from fairflare.data.readers.geometry import NATURAL
from fairflare.data.readers.pictures import Reader
from fairflare.tasks.base import Preset, expect
from fairflare.tasks.kinds.masks import PAPER, SMALL
from fairflare.tasks.own.segmentation import Segmentation
from fairflare_lab.datasets.on_disk import MasksOnDisk, complete, dealt

FOLDER = "Fundus"
DOMAINS = {
    "Domain1": "Drishti-GS",
    "Domain2": "RIM-ONE r3",
    "Domain3": "REFUGE, training set",
    "Domain4": "REFUGE, validation set",
}


@dataclass(frozen=True)
class Fundus(MasksOnDisk):
    """Segmentation of disc (cup included) and cup around the optic nerve head.

    The options are those of ``MasksOnDisk`` and those below. With layout=dofe the test images are the data set's own
    and ``val_fraction`` is a share of its training images; with layout=sites both fractions are shares of a site's
    images. An image counts as a patient of its own: the files do not say whose second eye one shows.

    Args:
        layout: which files there are, see above.
        site_names: folders of layout=sites, separated by commas, at least two.
        mask_values: structure -> pixel values in the masks; a value that is not named is an error.
    """

    name = "fundus"
    title = "Optic disc and cup in retina photographs"
    real = "photographs of patients' retinas and experts' outlines, files that you bring"
    simulated = "nothing; sites are public collections, each with its camera, rather than hospitals"
    classes = ("disc", "cup")
    presets = {
        "small": Preset("64 pixels and a small U-Net; minutes on a laptop; needs the files", {}, SMALL),
        "paper": Preset(
            "Fed-LWR's setting: 384 pixels, U-Net with BatchNorm; needs the files and a GPU",
            {"size": 384, "model": "unet", "norm": "batch"},
            PAPER,
        ),
    }
    channels = 3

    layout: Literal["dofe", "sites"] = "dofe"
    site_names: str = ""
    mask_values: str = "disc=128|0; cup=0; background=255"

    def __post_init__(self) -> None:
        super().__post_init__()
        names = self._names()
        if self.layout == "sites":
            expect("site_names", len(set(names)) == len(names) >= 2, "at least two different folders", self.site_names)
            for name in names:
                safe = name not in ("", ".", "..") and not set(name) & set("/\\")
                expect("site_names", safe, f"names of folders in {FOLDER}", self.site_names)
        else:
            expect("site_names", not self.site_names, "none with layout=dofe", self.site_names)
        expect("mask_values", bool(self.mask_values), "values of disc and cup", self.mask_values)
        self.reader()

    def sites(self) -> dict[str, str]:
        if self.layout == "dofe":
            return dict(DOMAINS)
        return dict.fromkeys(self._names(), "a folder of photographs")

    def _names(self) -> list[str]:
        return [name.strip() for name in self.site_names.split(",")]

    def domains(self) -> dict[str, str]:
        return {site: site for site in self.sites()}

    def reader(self) -> Reader:
        values = Segmentation(labels=",".join(self.classes), mask_values=self.mask_values).values()
        return Reader(self.size, self.channels, *values)

    def items(self, root: Path, site: str) -> Mapping[str, Sequence[Item]]:
        seed, folder = derive(self.data_seed, self.name, site), root / FOLDER / site
        if self.layout == "sites":
            pairs = self._pairs(root, folder)
            drawn = dealt(pairs, self.val_fraction, self.test_fraction, seed)
            return complete(site, {split: [pairs[name] for name in names] for split, names in drawn.items()})
        pairs, test = (self._pairs(root, folder / part / "ROIs") for part in ("train", "test"))
        drawn = dealt(pairs, self.val_fraction, 0.0, seed)
        found = {split: [pairs[name] for name in drawn[split]] for split in ("train", "val")}
        return complete(site, {**found, "test": [test[name] for name in sorted(test)]})

    def _pairs(self, root: Path, folder: Path) -> dict[str, Item]:
        """Name without its ending -> image and mask.

        Raises:
            MissingData: a folder or a mask is missing.
            DataError: "missing_file" for a mask without an image, "data" for two files of one name, "empty_split".
        """
        images, masks = (_files(self.needed(folder / kind)) for kind in ("image", "mask"))
        where = folder.relative_to(root).as_posix()
        if not images:
            raise DataError("empty_split", f"{where}/image: expected images ({', '.join(NATURAL)}), found none")
        for name in images:
            if name not in masks:
                self.needed(folder / "mask" / f"{name}.png")
        strange = [masks[name].name for name in masks if name not in images]
        if strange:
            raise DataError("missing_file", f"{where}/mask/{strange[0]}: expected an image of that name, found none")
        return {name: Item(image, masks[name]) for name, image in images.items()}


def _files(folder: Path) -> dict[str, Path]:
    """Name without its ending -> image file, sorted."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() not in NATURAL or path.name.startswith("."):
            continue
        if path.stem in found:
            other = found[path.stem].name
            raise DataError("data", f"{folder.name}/{path.name}: expected one such file, got {other} too")
        found[path.stem] = path
    return found
