# SPDX-License-Identifier: Apache-2.0
"""One thing that preflight found at a site, and what of it may leave."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

from fairflare.core.errors import UserError

if TYPE_CHECKING:
    from fairflare.core.types import SplitName

Level = Literal["error", "accepted", "warning"]
LEVELS = ("error", "accepted", "warning")
"""The worst first. "accepted" is an error that whoever runs the federation has accepted by its code."""
SPLIT_NAMES: tuple[SplitName, ...] = ("train", "val", "test")
CODES = {
    "attribute": "an attribute is missing for some examples",
    "bundle": "the bundle's transforms do not fit the image",
    "code": "the user's code is not there or differs",
    "column": "the table lacks a column",
    "copies": "images or rows of one split are copies of another's",
    "data": "the data cannot be read",
    "datalist": "the datalist is not of the expected form",
    "empty_split": "a split has no example",
    "encoder": "the features are of another encoder than the federation's",
    "entry": "an entry of the datalist is not of the expected form",
    "far": "numbers of a table lie far outside of the others",
    "few_examples": "a split has too few examples",
    "gpu_memory": "the batch does not fit into the GPU's memory at once",
    "label": "a label is no class of the task",
    "levels": "most values of a category are unknown to the federation",
    "link_outside": "a symbolic link leads out of the data root",
    "mask_share": "the masks fill most of the images, or nothing",
    "mask_cut": "masks reach beyond the grid of the volumes",
    "mask_values": "a mask has pixel values of no structure",
    "missing_file": "a file that the datalist names is not there",
    "missing_key": "an entry of the datalist lacks a key",
    "missing_labels": "some examples do not say each of several labels",
    "no_label": "examples without a label are left out",
    "no_min_count": "min_count is not set, so no number of a group leaves",
    "no_datalist": "there is no datalist",
    "nonfinite": "an input is not finite",
    "not_2d": "an image is not one 2D slice, or a file of several without the slice that is meant",
    "not_3d": "a file is not one volume of three axes",
    "number": "a cell that should hold a number does not",
    "one_outcome": "all outcomes of a split are the same",
    "one_class": "a split has examples of one class only",
    "outsized": "the site declares many times more examples than the others",
    "patient_overlap": "a patient is in two splits",
    "path_outside": "a path leads out of the data root",
    "series": "slices of a DICOM series do not make up one volume",
    "shape": "an image and its mask differ in shape, or lie in different places",
    "site": "the run knows no site of this name",
    "small_group": "a group is below min_count; its numbers stay at the site",
    "spacing": "voxels of a volume have no size that can be",
    "split": "the split column has an unknown value",
    "unreadable": "a file cannot be read",
    "unseen_label": "a label of several at once is the same for all examples of a split, or said by none",
    "versions": "a version differs from the server's",
}
"""Code -> what it says; nothing else that preflight finds may leave a site."""

LITTLE = SPLIT_NAMES[1:]
ACCEPTABLE = {"empty_split": LITTLE, "few_examples": LITTLE, "one_class": SPLIT_NAMES, "outsized": SPLIT_NAMES}
"""Codes of errors that may be accepted, and in which splits: data that say little. Everything else is a danger: data
that cannot be read, do not fit together or leak from one split into another, paths that lead out, other software."""

BANDS = (10, 20, 50, *(k * 10**e for e in range(2, 8) for k in (1, 2, 5)), 10**8)
"""Where the bands begin in which counts leave a site; fewer than the first never leave."""

UNCOUNTED = ("small_group", "no_min_count", "gpu_memory", "outsized", "versions")
"""Codes whose count is no number of examples that anyone else needs."""


def may_go_on(rest: int, small: int) -> bool:
    """Whether ``rest`` sites go on without ``small`` that have too few patients: two or more, and most of all."""
    return rest >= 2 and rest > small


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong ("error": no run; "accepted": run all the same) or doubtful ("warning").

    Attributes:
        code: a key of ``CODES``, the same for the same cause.
        split: "train", "val", "test" or "".
        count: how many examples it concerns; what leaves is the band that it lies in, see ``band``.
        text: for people at the site; may name files.
        band: the band of the count, of a finding that has travelled; at the site itself empty.
        example: whether ``text`` is about the first of ``count`` examples alone.
    """

    level: Level
    code: str
    split: str
    count: int
    text: str
    band: str = ""
    example: bool = False

    def __str__(self) -> str:
        """For people at the site."""
        return f"{self.level}: {self.split + ': ' if self.split else ''}{self.text}"

    @property
    def public(self) -> dict[str, str]:
        """What the report may show."""
        return {"level": self.level, "code": self.code, "split": self.split, "count": self.band}


KINDS = frozenset(
    "/".join((level, split, code))
    for level, split, code in product(LEVELS, ("", *SPLIT_NAMES), CODES)
    if level != "accepted" or split in ACCEPTABLE.get(code, ())
)
"""Names under which findings travel: "level/split/code"."""


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Errors, then accepted errors, then warnings, otherwise in the order they came."""
    return sorted(findings, key=lambda f: LEVELS.index(f.level))


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for each level and code, the worst first: what a person reads, where every split had its own."""
    kinds: dict[tuple[Level, str], list[Finding]] = {}
    for one in findings:
        kinds.setdefault((one.level, one.code), []).append(one)
    return worst_first(map(_merged, kinds.values()))


def _merged(found: list[Finding]) -> Finding:
    first, count = found[0], sum(one.count for one in found)
    if len(found) == 1 and not (first.example and first.count > 1):
        return first
    if first.example:
        where = ", ".join(f"{one.split} {one.count}" for one in found)
        text = f"{count} examples ({where}), e.g. {first.text}"
    elif all(one.split for one in found) and len({one.split for one in found}) == len(found):
        text = "; ".join(f"{one.split}: {one.text}" for one in found)
    else:
        text = f"{len(found)} of this kind, e.g. {first.text}"
    return replace(first, split="", count=count, text=text, example=False)


def accepted_codes(value: Any) -> list[str]:
    """Codes from a list, or from text that separates them by commas; sorted. UserError for one that is a danger."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise UserError(f"accept: expected codes among {', '.join(sorted(ACCEPTABLE))}, got {type(value).__name__}")
    codes = sorted({part.strip() for part in parts if part.strip()})
    for code in codes:
        if code not in ACCEPTABLE:
            raise UserError(f"accept: expected codes among {', '.join(sorted(ACCEPTABLE))}, got {code!r}")
    return codes


def accept(findings: Iterable[Finding], codes: Collection[str]) -> list[Finding]:
    """``findings`` with errors of these codes as "accepted", where they are no danger."""
    where = {code: ACCEPTABLE.get(code, ()) for code in codes}
    may = ((f, f.level == "error" and f.split in where.get(f.code, ())) for f in findings)
    return [replace(f, level="accepted") if is_so else f for f, is_so in may]


def band(count: int, min_count: int | None) -> int:
    """Which band ``count`` lies in, 1 being 10 to 19; 0 where no count leaves.

    No count leaves without a ``min_count``, and of a band that begins below it: a job may ask for a larger minimum, and
    stepping through minima must not tell a count more finely than the bands do.
    """
    number = bisect_right(BANDS, count)
    return number if number and min_count is not None and BANDS[number - 1] >= min_count else 0


def band_text(number: int) -> str:
    """10-19, 20-49, ...; empty for a count that does not leave."""
    if not number:
        return ""
    return f"{BANDS[number - 1]}-{BANDS[number] - 1}" if number < len(BANDS) else f"{BANDS[-1]}+"


def packed(findings: Iterable[Finding], min_count: int | None) -> dict[str, float]:
    """What leaves a site: "level/split/code" -> the band of the number of examples in all; 0 without ``min_count``."""
    counts: dict[str, int] = {}
    for f in findings:
        name = f"{f.level}/{f.split}/{f.code}"
        counts[name] = counts.get(name, 0) + (0 if f.code in UNCOUNTED else f.count)
    return {name: float(band(count, min_count)) for name, count in counts.items()}


def unpacked(bands: Mapping[str, float]) -> list[Finding]:
    """``packed`` read back, in words that every site may read, the worst first."""
    found = []
    for name in sorted(bands):
        level, split, code = name.split("/")
        band = band_text(int(bands[name]))
        text = CODES[code] + (f" ({band})" if band else "")
        found.append(Finding(level, code, split, 0, text, band))  # type: ignore[arg-type]  # one of the literal's values
    return worst_first(found)
