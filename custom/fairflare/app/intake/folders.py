# SPDX-License-Identifier: Apache-2.0
"""Images in folders: masks beside them, or a folder for each class; sites and splits by folder."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

from fairflare.app.intake import masks
from fairflare.app.intake.found import SITE_WORD, SPLIT_OF, Choices, Example, Found, class_names, root_name, site_name
from fairflare.app.intake.walk import Files
from fairflare.clinic.readers import naming
from fairflare.clinic.readers.naming import stem
from fairflare.core.errors import UserError
from fairflare.core.order import some

PATIENT = re.compile(r"([^\W_]*\d[^\W_]*|(?:patient|pat|subject|subj|sub|case|p)[_-]?\d+)[_-].*\d.*", re.IGNORECASE)
"""A name that begins with a word that holds a number, and goes on with another: "P07_slice3"."""
FEW = 3
"""Fewer images than these in most folders are those of a patient, not of a site."""
Levels = Mapping[str, tuple[str, ...]]


def images_in_folders(files: Files, chosen: Choices) -> Found:
    """What ``files`` without any list or table say by their names and folders.

    Raises:
        UserError: there are no images, or nothing says their class and no mask lies beside them.
    """
    if not files.images:
        raise UserError(f"init: {files.root} holds no image that can be read, no table and no datalist{_others(files)}")
    paired, alone = naming.pairs(files.images)
    with_masks = chosen.kind != "classification" and any(paired.values())
    if not with_masks and chosen.kind == "segmentation":
        text = "expected masks beside the images (x_mask.png) or in a folder of their own (masks/x.png)"
        raise UserError(f"init: {text}, found none")
    if with_masks:
        return _segmentation(files, paired, alone, chosen)
    return _classification(files, chosen)


def _segmentation(files: Files, paired: Mapping[str, str], alone: Sequence[str], chosen: Choices) -> Found:
    levels, splits = _levels(list(paired))
    sites = _sites(files, levels, chosen)
    rest = {
        path: folders[1:] if sites[path] == site_name(folders[0]) else folders
        for path, folders in levels.items()
        if folders
    }
    patients, whence = _patients(list(paired), rest, sites, chosen)
    examples = [
        Example(sites[path], path, mask, splits[path], patients.get(path, "")) for path, mask in paired.items() if mask
    ]
    classes, options = masks.structures(files.root, [one.label for one in examples], chosen.classes, {})
    without = [path for path, mask in paired.items() if not mask]
    notes = _note(without, "have no mask and are left out") + _note(alone, "are masks without an image")
    layout = "images, with masks beside them or in a folder of their own"
    return Found("segmentation", layout, examples, classes, options, whence, notes)


def _classification(files: Files, chosen: Choices) -> Found:
    levels, splits = _levels(files.images)
    usual = Counter(map(len, levels.values())).most_common(1)[0][0]
    if not usual:
        text = "expected a folder for each class, masks beside the images, a table or a datalist"
        raise UserError(f"init: {len(files.images)} images and nothing that says their labels; {text}")
    inside = {path: folders for path, folders in levels.items() if len(folders) == usual}
    by_level = [[folders[k] for folders in inside.values()] for k in range(usual)]
    of_class = _class_level(by_level, chosen)
    if of_class == 0 and usual == 1 and all(SITE_WORD.match(name) for name in by_level[0]):
        raise UserError(f"init: the folders {some(sorted(set(by_level[0])))} are sites, and nothing says the labels")
    others = {path: folders[:of_class] + folders[of_class + 1 :] for path, folders in inside.items()}
    sites = _sites(files, others, chosen)
    rest = {path: folders[1:] for path, folders in others.items() if folders}
    patients, whence = _patients(list(inside), rest, sites, chosen)
    classes = class_names(by_level[of_class], chosen.classes)
    examples = [
        Example(sites[path], path, folders[of_class], splits[path], patients.get(path, ""))
        for path, folders in inside.items()
    ]
    odd = [path for path in files.images if path not in inside]
    notes = _note(odd, "lie at another depth than the others and are left out")
    return Found("classification", "images in a folder for each class", examples, classes, {}, whence, notes)


def _levels(paths: Sequence[str]) -> tuple[Levels, dict[str, str]]:
    """Path -> folders that may say site, class or patient; path -> split, where a folder says it."""
    levels, splits = {}, {}
    for path in paths:
        folders = naming.folders_of(path)
        words = [SPLIT_OF[name.lower()] for name in folders if name.lower() in SPLIT_OF]
        words += [found for part in path.lower().split("/")[:-1] if (found := _by_decathlon(part))]
        splits[path] = words[0] if words else ""
        levels[path] = tuple(name for name in folders if name.lower() not in SPLIT_OF)
    return levels, splits


def _by_decathlon(folder: str) -> str:
    return {"imagestr": "training", "imagesval": "validation", "imagests": "testing"}.get(folder, "")


def _class_level(by_level: Sequence[Sequence[str]], chosen: Choices) -> int:
    """Which folder from the top is the class: that with the names the user gives, else few names, all over."""
    numbers = range(len(by_level))
    if chosen.classes:
        fits = [k for k in numbers if set(by_level[k]) <= set(chosen.classes)]
        if fits:
            return fits[-1]
    # A level of patients has many names, one of sites has names that say so; one name alone tells no classes apart.
    allowed = [k for k in numbers if len(set(by_level[k])) > 1] or list(numbers)
    allowed = [k for k in allowed if not all(SITE_WORD.match(name) for name in by_level[k])] or allowed
    spread = {k: _spread(by_level, k) for k in allowed}
    return max(allowed, key=lambda k: (spread[k], k))


def _spread(by_level: Sequence[Sequence[str]], k: int) -> float:
    """Below how many combinations of the other levels a name of level ``k`` occurs, on average."""
    others = list(zip(*(names for j, names in enumerate(by_level) if j != k))) or [()] * len(by_level[k])
    return len(set(zip(by_level[k], others))) / len(set(by_level[k]))


def _sites(files: Files, levels: Levels, chosen: Choices) -> dict[str, str]:
    """Path -> site: its first folder where these hold several images each, else one site for all."""
    counts = Counter(folders[0] for folders in levels.values() if folders)
    one = chosen.site == "none" or not counts or (not _say_sites(counts) and median(counts.values()) < FEW)
    name = root_name(files.root)
    return {path: name if one or not folders else site_name(folders[0]) for path, folders in levels.items()}


def _say_sites(names: Mapping[str, int]) -> bool:
    return all(SITE_WORD.match(name) for name in names)


def _patients(
    paths: Sequence[str], rest: Levels, sites: Mapping[str, str], chosen: Choices
) -> tuple[dict[str, str], str]:
    """Path -> patient, and where that is known from: a folder below the site's, or the beginning of the names."""
    if chosen.patient == "none":
        return {}, ""
    if any(rest.values()):
        return {path: "/".join(folders) for path, folders in rest.items() if folders}, "their folders"
    named = {path: match[1] for path in paths if (match := PATIENT.fullmatch(stem(path)))}
    per_site = Counter(sites[path] for path in named)
    several = {site: len({named[path] for path in named if sites[path] == site}) for site in per_site}
    fits = (
        len(named) == len(paths)
        and all(several[site] > 2 for site in per_site)
        and len(set(named.values())) < len(named)
    )
    return (named, "the beginning of the files' names") if fits else ({}, "")


def _note(paths: Sequence[str], says: str) -> tuple[str, ...]:
    return (f"{len(paths)} images {says}, e.g. {paths[0]}",) if paths else ()


def _others(files: Files) -> str:
    return f"; {len(files.others)} of other formats, e.g. {files.others[0]}" if files.others else ""
