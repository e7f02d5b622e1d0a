# SPDX-License-Identifier: Apache-2.0
"""What a file's name and folders say: whether it is an image, or the mask of which image."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

IMAGES = (".png", ".jpg", ".jpeg", ".nii", ".nii.gz", ".dcm", ".dicom")
"""Suffixes of images that are read."""
MASK_WORDS = """mask masks label labels labelstr labelsts labelsval seg segs segmentation segmentations gt groundtruth
    ground_truth annotation annotations"""
IMAGE_WORDS = "image images img imgs imagestr imagests imagesval scan scans picture pictures"
FOLDERS = frozenset(MASK_WORDS.split())
IMAGE_FOLDERS = frozenset(IMAGE_WORDS.split())
"""Folder names, in lower case, that say what lies in them and nothing of site or class."""
WORDS = r"(masks?|segs?|segmentations?|labels?|gt|groundtruth|annotations?)"
AFTER = re.compile(rf"(.+?)[_\-. ]{WORDS}(?:[_\-. ]?\d+)?", re.IGNORECASE)
BEFORE = re.compile(r"(masks?|segs?|segmentations?|gt)[_\-. ](.+)", re.IGNORECASE)
IMAGE_AFTER = re.compile(r"(.+?)([_\-. ](image|img)|_0000)", re.IGNORECASE)


def is_mask(path: str) -> bool:
    """Whether folder or name say that the file is a mask."""
    *folders, _ = PurePosixPath(path).parts
    name = stem(path)
    by_folder = any(folder.lower() in FOLDERS for folder in folders)
    return by_folder or bool(AFTER.fullmatch(name) or BEFORE.fullmatch(name))


def folders_of(path: str) -> tuple[str, ...]:
    """The folders that a file lies in, without those that say "images" or "masks"."""
    *folders, _ = PurePosixPath(path).parts
    return tuple(folder for folder in folders if folder.lower() not in FOLDERS | IMAGE_FOLDERS)


def pairs(images: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Image -> its mask, "" where it has none; and masks without an image.

    A mask has its image's name, with a word such as "_mask" or in a folder such as "masks".
    """
    masks = {_key(path): path for path in images if is_mask(path)}
    found = {path: masks.get(_key(path), "") for path in images if not is_mask(path)}
    return found, sorted(set(masks.values()) - set(found.values()))


def _key(path: str) -> tuple[tuple[str, ...], str]:
    name = stem(path)
    for pattern, group in ((AFTER, 1), (BEFORE, 2), (IMAGE_AFTER, 1)):
        match = pattern.fullmatch(name)
        if match and (pattern is IMAGE_AFTER or is_mask(path)):
            name = match[group]
            break
    return folders_of(path), name.lower()


def is_image(name: str) -> bool:
    return name.lower().endswith(IMAGES)


def stem(path: str) -> str:
    """The file's name without its suffix, ".nii.gz" as a whole."""
    name = PurePosixPath(path).name
    return name[: -len(next((end for end in (".nii.gz", *IMAGES) if name.lower().endswith(end)), "")) or None]
