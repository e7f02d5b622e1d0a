# SPDX-License-Identifier: Apache-2.0
"""One thing that preflight found at a site, and what of it may leave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Literal

Level = Literal["error", "warning"]
LEVELS = ("error", "warning")
SPLIT_NAMES = ("train", "val", "test")
CODES = {
    "attribute": "an attribute is missing for some examples",
    "build_data": "the site's own build_data failed",
    "code": "the user's code is not there or differs",
    "column": "the table lacks a column",
    "data": "the data cannot be read",
    "datalist": "the datalist is not of the expected form",
    "empty_split": "a split has no example",
    "entry": "an entry of the datalist is not of the expected form",
    "few_examples": "a split has too few examples",
    "gpu_memory": "the batch does not fit into the GPU's memory at once",
    "label": "a label is no class of the task",
    "mask_values": "a mask has pixel values of no structure",
    "missing_file": "a file that the datalist names is not there",
    "missing_key": "an entry of the datalist lacks a key",
    "no_min_count": "min_count is not set, so no number of a group leaves",
    "no_datalist": "there is no datalist",
    "nonfinite": "an input is not finite",
    "not_2d": "an image is not one 2D slice",
    "number": "a cell that should hold a number does not",
    "one_class": "a split has examples of one class only",
    "patient_overlap": "a patient is in two splits",
    "path_outside": "a path leads out of the data root",
    "shape": "an image and its mask differ in shape",
    "site": "the run knows no site of this name",
    "small_group": "a group is below min_count; its numbers stay at the site",
    "split": "the split column has an unknown value",
    "unreadable": "a file cannot be read",
    "versions": "a version differs from the server's",
}
"""Code -> what it says; nothing else that preflight finds may leave a site."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong ("error": no run) or doubtful ("warning").

    Attributes:
        level: see above.
        code: a key of ``CODES``, the same for the same cause.
        split: "train", "val", "test" or "".
        count: how many examples it concerns.
        text: for people at the site; may name files.
    """

    level: Level
    code: str
    split: str
    count: int
    text: str

    def __str__(self) -> str:
        """For people at the site."""
        return f"{self.level}: {self.split + ': ' if self.split else ''}{self.text}"

    @property
    def public(self) -> dict[str, str | int]:
        """What may leave the site."""
        return {"level": self.level, "code": self.code, "split": self.split, "count": self.count}


KINDS = frozenset("/".join(kind) for kind in product(LEVELS, ("", *SPLIT_NAMES), CODES))
"""Names under which findings travel: "level/split/code"."""


def packed(findings: Iterable[Finding]) -> dict[str, float]:
    """What leaves a site: "level/split/code" -> number of examples."""
    counts: dict[str, float] = {}
    for f in findings:
        name = f"{f.level}/{f.split}/{f.code}"
        counts[name] = counts.get(name, 0) + f.count
    return counts


def unpacked(counts: Mapping[str, float]) -> list[Finding]:
    """``packed`` read back at the server, in words that every site may read, errors first."""
    found = []
    for name in sorted(counts):
        level, split, code = name.split("/")
        text = f"{CODES[code]} ({counts[name]:g})"
        found.append(Finding(level, code, split, int(counts[name]), text))  # type: ignore[arg-type]
    return found
