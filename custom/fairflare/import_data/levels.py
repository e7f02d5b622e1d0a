# SPDX-License-Identifier: Apache-2.0
"""Which folders are hospitals, which classes and which patients, by names and by how they nest, and which hold masks.

Two levels of folders that cross (every inner name below several outer ones) may be hospitals of classes or classes of
hospitals; a model that learns to tell hospitals apart looks like a good one. So names have to decide, or the user.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd

from fairflare.core.errors import DataError, UserError
from fairflare.core.validation import flag, in_order, some, unlisted
from fairflare.data.readers import nifti
from fairflare.data.readers.datalist import MOST_CONTRASTS, Contrasts, Frame
from fairflare.data.readers.dicom import told
from fairflare.data.readers.geometry import FLAT, NIFTI, form_of, frames, geometry_of, series_in, volumes_in
from fairflare.import_data import labels as naming
from fairflare.import_data.proposal import MOST_CLASSES, Choices, Example, Files, Found, Reading
from fairflare.tasks.forms import FORMS, IMAGES, MASKED_IMAGES, MASKED_VOLUMES, VOLUMES

FOLDER = "folder"
FEW = 12
"""Images of a patient, at most, where a folder's name does not say whose it is."""
SEVERAL = 5
"""Folders of one pattern with a long number that are patients."""
MANY = 10
"""Folders from which on they may be patients by their number alone."""


@dataclass(frozen=True)
class Roles:
    """Levels by their names ("folder1", "PatientID" ...); empty: there is none."""

    site: str = ""
    label: str = ""
    patient: str = ""


def roles(table: pd.DataFrame, chosen: Choices, labelled: bool) -> Roles:
    """The levels that are the site, the class and the patient.

    Args:
        table: one row per image, one column per level of folders ("folder1" is the outermost) or header; all text.
        chosen: levels that the user names win.
        labelled: whether folders may say the class (False: masks are the labels).

    Raises:
        UserError: two readings are possible and nobody can be asked, or a level is named that is not there.
    """
    given = {role: getattr(chosen, role) for role in ("site", "label", "patient")}
    named = {role: level for role, level in given.items() if level and level != "none"}
    for role, level in named.items():
        if level not in table.columns:
            raise UserError(f"--{role}: {unlisted('level', level, list(table.columns) or ['none'])}")
    free = [name for name in table.columns if name.startswith(FOLDER) and name not in named.values()]
    free = [name for name in free if table[name].nunique() > 1] or (free if labelled and len(free) == 1 else [])
    if chosen.classes and labelled and "label" not in named:
        fits = [name for name in free if set(table[name]) <= set(chosen.classes)]
        named |= {"label": fits[-1]} if fits else {}
    of_patients = [name for name in free if name not in named.values() and is_patient_level(table, name, free)]
    if "patient" not in named and of_patients and chosen.patient != "none":
        named["patient"] = of_patients[0]
    free = [name for name in free if name not in (*named.values(), *of_patients)]
    if (patient := named.get("patient", "")).startswith(FOLDER):  # inside one's lie visits or series, or classes
        depth = {name: int(name.removeprefix(FOLDER)) for name in (*free, patient)}
        free = [name for name in free if depth[name] < depth[patient] or _score(table, name) < 0] or free
    if chosen.site == "none":
        named["site"] = ""
    free = _without_views(table, free, named, chosen)
    if not labelled:
        return _site_alone(table, free, named, chosen)
    return _site_and_label(table, free, named, chosen)


def _without_views(table: pd.DataFrame, free: list[str], named: Mapping[str, str], chosen: Choices) -> list[str]:
    """Without modalities, views and years, which are neither hospitals nor classes unless the user says so."""
    for name in list(free):
        names = [one for one in table[name].unique() if one]
        if "site" not in named and naming.are_parts(names):
            free = [other for other in free if other != name]
            continue
        if any(naming.says_mask(one) for one in names):
            odd = next(one for one in names if naming.says_mask(one))
            text = f"{name} ({some(in_order(names), 3)}) may hold masks: expected x_mask.png beside x.png"
            raise UserError(f"init: {text}, or folders called images and masks, got {odd!r}")
        if naming.mostly([naming.says_view(one) for one in names]) and "site" not in named:
            other = next((one for one in free if one != name), "none")
            readings = [
                Reading("these are no hospitals", flag("site", other)),
                Reading("these are hospitals", flag("site", name)),
            ]
            what = f"{name} ({some(in_order(names), 3)}) looks like modalities, views or years"
            if chosen.ask(what, readings):
                return [name, *(other for other in free if other != name)]
            free = [other for other in free if other != name]
    return free


def _site_alone(table: pd.DataFrame, free: Sequence[str], named: Mapping[str, str], chosen: Choices) -> Roles:
    patient = named.get("patient", "")
    if "site" in named:
        return Roles(named["site"], "", patient)
    score = {name: _score(table, name) for name in free}
    free, sites = ([name for name in free if score[name] >= least] for least in (0, 1))
    if len(free) > 1 and len(sites) != 1:
        readings = [Reading(f"{some(in_order(table[name]), 3)} are hospitals", flag("site", name)) for name in free]
        return Roles(free[chosen.ask("several levels of folders may be the hospitals", readings)], "", patient)
    return Roles((sites or free or [""])[0], "", patient)


def _site_and_label(table: pd.DataFrame, free: Sequence[str], named: Mapping[str, str], chosen: Choices) -> Roles:
    patient = named.get("patient", "")
    if {"site", "label"} & {*named}:
        of_site = named["site"] if "site" in named else _one("site", free, table)
        others = [name for name in free if name != of_site]
        return Roles(of_site, named["label"] if "label" in named else _one("label", others, table), patient)
    score = {name: _score(table, name) for name in free}
    if len(free) < 2:
        label = free[0] if free else ""
        text = some(in_order(table[label])) if label else ""
        readings = [
            Reading("they are the classes of one hospital", flag("label", label)),
            Reading("they are hospitals, and nothing says the labels", flag("site", label)),
        ]
        way = f"the folders {text} may be read in two ways"
        if label and (score[label] > 0 or (not score[label] and chosen.ask(way, readings))):
            raise UserError(f"init: the folders {text} are sites, and nothing says the labels")
        return Roles("", label, patient)
    if len(free) > 2:
        sites, classes = ([name for name in free if score[name] == sign] for sign in (1, -1))
        if len(sites) == len(classes) == 1:
            rest = next(name for name in free if not score[name])
            few = median(table.groupby([*sites, *classes, rest], sort=False).size()) <= FEW
            if not few and not patient:
                words = f"{rest}: {some(in_order(table[rest]), 3)}"
                raise UserError(
                    f"init: {words}: expected patients, classes or hospitals; {flag('patient', rest)} or none says it"
                )
            return Roles(sites[0], classes[0], patient or rest)
        text = "; ".join(f"{name}: {some(in_order(table[name]), 3)}" for name in free)
        raise UserError(
            f"init: {len(free)} levels of folders, and names do not say which are hospitals and which are classes "
            f"({text}); --site LEVEL --label LEVEL say it"
        )
    outer, inner = free
    if score[outer] > score[inner]:  # as folders usually lie: one side's word is enough
        return Roles(outer, inner, patient)
    if score[outer] < 0 < score[inner]:
        return Roles(inner, outer, patient)
    ways, readings = [(outer, inner), (inner, outer)], []
    for site, label in ways:
        of_sites, of_labels = (some(in_order(table[name]), 3) for name in (site, label))
        text = f"{of_sites} are hospitals and {of_labels} are classes"
        readings.append(Reading(text, f"{flag('site', site)} {flag('label', label)}"))
    return Roles(*ways[chosen.ask("folders may be read in two ways", readings)], patient)


def _score(table: pd.DataFrame, name: str) -> int:
    """1: the names are those of hospitals; -1: of classes; 0: neither, or both."""
    names = table[name].unique()
    return naming.mostly([naming.says_site(one) for one in names]) - naming.mostly(
        [naming.says_class(one) for one in names]
    )


def _one(role: str, free: Sequence[str], table: pd.DataFrame) -> str:
    if len(free) == 1 or (role == "site" and not free):
        return free[0] if free else ""
    found = "; ".join(f"{name}: {some(in_order(table[name]), 3)}" for name in free) or "none"
    raise UserError(f"init: --{role}: expected a level of folders, got none, and there are: {found}")


def is_patient_level(table: pd.DataFrame, name: str, free: Sequence[str]) -> bool:
    """Whether a level's folders are patients (or studies): by their names, or many with few images each."""
    names = [one for one in table[name].unique() if one]
    if naming.mostly([bool(naming.PATIENT.fullmatch(one)) and not naming.says_site(one) for one in names]):
        return True
    if any(
        naming.mostly([says(one) for one in names]) for says in (naming.says_site, naming.says_class, naming.says_view)
    ):
        return False
    others = [other for other in free if other != name]
    # Below several combinations of the other levels the same name stands for something that these share.
    nested = bool(others) and (table.groupby(name, sort=False)[others].nunique() == 1).all(axis=None)
    few = median(table.groupby([*others, name] if others else name, sort=False).size()) <= FEW
    numbered = len({re.sub(r"\d+", "#", one) for one in names}) == 1 and all(re.search(r"\d{3,}", one) for one in names)
    if numbered and len(names) >= SEVERAL:  # as TCGA_CS_4900, 1020
        return True
    return (len(names) > MOST_CLASSES or (nested and len(names) >= MANY)) and few


MOST_STRUCTURES = 8
SLICES = 9
"""Of a mask's TIFF or DICOM file that are looked at, as each opens the file anew; of NIfTI all are."""
OF_A_SITE = 20
LOOKED_AT = 300
"""Masks whose pixel values are read, unless all of these are empty; preflight reads all."""
OFTEN = 10
"""Masks after which it is told how many have been read."""


def structures(
    files: Files, masks: Mapping[str, Sequence[str]], chosen: Sequence[str], named: Mapping[int, str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The structures that the masks show, and the task's option for their pixel values, if it needs one.

    Args:
        masks: of each site.
        chosen: names that the user gives, in the order of the pixel values.
        named: pixel value -> name, where a list says so.

    Raises:
        UserError: a mask cannot be read or holds too many values, the names are fewer or more than these, or two sites'
            masks share no value but 0: one site writes 1 and another 255.
    """
    most = max(OF_A_SITE, LOOKED_AT // len(masks))
    found = {site: _values(files, own[:: max(1, len(own) // most)]) for site, own in masks.items()}
    if not any(found.values()):
        found = {site: _values(files, own) for site, own in masks.items()}
    present = sorted(set().union(*found.values()))
    if not present:
        raise UserError("init: the masks are empty: every pixel is 0")
    if len(present) > MOST_STRUCTURES or any(v != int(v) for v in present):
        text = f"expected masks of at most {MOST_STRUCTURES} whole pixel values beside 0, got {len(present)}"
        odd = next((v for v in present if v != int(v)), present[len(present) // 2])
        raise UserError(f"init: {text}, such as {odd:g}; masks kept as JPEG lose their values")
    known = {site: values for site, values in found.items() if values}
    first = next(iter(known))
    for site, values in known.items():
        if not values & known[first]:
            ours, theirs = (", ".join(f"{value:g}" for value in sorted(own)[:4]) for own in (known[first], values))
            text = f"masks of {first} have the pixel values {ours}, those of {site} {theirs}"
            raise UserError(f"init: {text}: expected the same values for the same structures")
    numbers = sorted({*named, *map(int, present)})
    names = list(chosen) or [named.get(v, f"structure {k}") for k, v in enumerate(numbers, start=1)]
    if len(names) != len(numbers):
        text = ", ".join(map(str, numbers))
        raise UserError(f"--classes: expected {len(numbers)} names, for the pixel values {text}; got {len(names)}")
    plain = numbers == list(range(1, len(numbers) + 1)) or numbers in ([255], [1])
    option = {} if plain else {"mask_values": "; ".join(f"{name}={v}" for name, v in zip(names, numbers))}
    return tuple(names), option


def _values(files: Files, masks: Iterable[str]) -> set[float]:
    """Of all pixels, other than 0."""
    found: set[float] = set()
    for number, mask in enumerate(masks):
        if number % OFTEN == 0:
            files.tell("masks", number)
        found |= set(_values_of(files.root, mask).tolist()) - {0.0}
        if len(found) > 10 * MOST_STRUCTURES:
            break
    return found


def _values_of(root: Path, mask: str) -> np.ndarray:
    n = 1 if mask.lower().endswith(FLAT) else slices_of(root, mask)
    if n > 1 and form_of(Path(mask)) == "nifti":
        with _refused(mask):
            return nifti.values_in(root / mask)
    evenly = sorted({round(k * (n - 1) / (SLICES - 1)) for k in range(SLICES)})
    slices = [pixels(root, mask, frame) for frame in (evenly if n > 1 else [None])]
    if any(len(one) > 1 and (one != one[:1]).any() for one in slices):
        raise UserError(f"init: {mask}: expected a mask of one number per pixel, got colours")
    return np.unique(np.concatenate([np.unique(one) for one in slices]))


def pixels(root: Path, path: str, frame: int | None = None) -> np.ndarray:
    """The stored pixels (C, H, W) of a file or one of its slices; UserError where that is no 2D image."""
    from fairflare.data.readers.pictures import stored

    with _refused(path):
        return stored(root / path if frame is None else Frame(root / path, frame))


def slices_of(root: Path, path: str) -> int:
    """How many slices a file holds, as its header says; UserError where that cannot be read."""
    with _refused(path):
        return frames(root / path)


@contextlib.contextmanager
def _refused(path: str) -> Iterator[None]:
    """Within: what is wrong with a file is said as ``fairflare init`` says it."""
    try:
        yield
    except DataError as error:
        raise UserError(f"init: {path}: {str(error).partition(': ')[2]}") from None


def _axes(files: Files, found: Found) -> tuple[str, ...]:
    """A note where images of two sites, or of one, run along other axes: mirrored, turned or of another plane."""
    if not (images := [one for site in found.sites for one in found.of(site)[:OF_A_SITE] if one.image]):
        return ()
    from nibabel.orientations import aff2axcodes

    held: dict[str, str] = {}
    for one in images:
        place = geometry_of(files.root / one.image)
        if place is not None and place.placed and place.affine is not None:
            held.setdefault("".join(code or "?" for code in aff2axcodes(place.affine)), f"{one.image} ({one.site})")
    text = ", ".join(f"{axes} of {path}" for axes, path in held.items())
    how = "slices are read as stored, so between these they are mirrored, turned or of another plane"
    return (f"axes {text}: {how} (whole volumes are turned alike: --kind)",) if len(held) > 1 else ()


def with_slices(files: Files, found: Found, chosen: Choices) -> Found:
    """``found`` with every ``chosen.slices``-th slice of each volume or multi-frame file, which stay one patient's.

    Raises:
        UserError: there are such files and the user has not said how many slices to take; a mask has other slices; or
            a header cannot be read.
    """
    whole = (MASKED_VOLUMES if found.form.masks else VOLUMES).name
    if odd := next((one.image for one in found.examples if contrasts_of(files.root, one) > len(one.contrasts) + 1), ""):
        text = "several volumes in one file: expected 2D images, or contrasts, which become channels"
        raise UserError(f"init: {odd}: {text} (--kind {whole})")
    found = replace(found, notes=(*found.notes, *_axes(files, found)))
    held = [
        1
        if not one.image or one.frame is not None or one.image.lower().endswith(FLAT)
        else slices_of(files.root, one.image)
        for one in found.examples
    ]
    volumes = [one.image for one, n in zip(found.examples, held, strict=True) if n != 1]
    if not volumes:
        return found
    if not (step := chosen.slices):
        text = f"{len(volumes)} files hold up to {max(held)} slices, e.g. {volumes[0]}: expected 2D images"
        how = f"--slices 1 takes every slice as an image, --slices 4 every fourth, --kind {whole} whole volumes"
        raise UserError(f"init: {text}; {how}")
    several: list[Example] = []
    for one, n in zip(found.examples, held, strict=True):
        beside = n > 1 and found.form.masks and one.label not in found.masks
        if beside and (of_mask := slices_of(files.root, one.label)) != n:
            raise UserError(f"init: {one.label}: expected {n} slices as of {one.image}, got {of_mask}")
        several += [one] if n == 1 else [replace(one, frame=k) for k in range(step // 2, n, step)]
    every = "every slice" if step == 1 else f"every slice number {step}"
    note = f"{len(volumes)} volumes: {every} is an image with the volume's label"
    return replace(found, examples=several, notes=(*found.notes, note))


def flat(chosen: Choices) -> Choices:
    """``chosen`` for 2D images of the same kind: sites, classes, patients and masks are found alike.

    Raises:
        UserError: slices are asked for too.
    """
    if not chosen.kind or not FORMS[chosen.kind].volumes:
        return chosen
    if chosen.slices:
        raise UserError(f"--slices: goes with images, got --kind {chosen.kind}")
    return replace(chosen, kind=MASKED_IMAGES.name if FORMS[chosen.kind].masks else IMAGES.name)


def as_volumes(files: Files, found: Found, kind: str) -> Found:
    """``found`` with one example for each NIfTI file and each series of DICOM, named by its first file.

    Raises:
        UserError: an example is a picture, or a slice of DICOM with a mask.
    """
    paths: dict[str, Path] = {}
    for one in found.examples:
        form = form_of(Path(one.image))
        if form == "picture" or (form == "dicom" and (found.form.masks or one.contrasts)):
            raise UserError(f"init: {one.image}: expected NIfTI, or DICOM series with classes, for --kind {kind}")
        paths[one.image] = files.root / one.image
    volumes = volumes_in(paths)
    groups, lacking = series_in({name: path for name, path in volumes.items() if name in files.dicom})
    first = {one.image: one for one in reversed(found.examples)}
    kept = [one for one in volumes if one in groups or not (groups and one in files.dicom)]
    several = [replace(first[one], contrasts=groups.get(one, ["", *first[one].contrasts])[1:]) for one in kept]
    notes = [f"{len(volumes)} volumes of {len(found.examples)} files"] * (len(volumes) < len(found.examples))
    if groups:
        series = some([str(told(files.root / one, "SeriesDescription")) for one in next(iter(groups.values()))], 8)
        notes.append(f"{len(groups)} studies have the series {series}, which become channels")
    if lacking:
        notes.append(f"{len(lacking)} series lie in no such study and are left out, e.g. {lacking[0]}")
    return replace(found, kind=kind, examples=several, notes=(*found.notes, *notes))


def contrasts_of(root: Path, one: Example) -> int:
    """How many an example has: files, or places on the fourth axis of a NIfTI file, by its header."""
    if one.contrasts or not one.image.lower().endswith(NIFTI):
        return len(one.contrasts) + 1
    with _refused(one.image):
        *edges, contrasts = nifti.axes(nifti.checked(root / one.image))
    contrasts = contrasts if len(edges) == 3 and edges[2] > 1 else 1
    if contrasts > MOST_CONTRASTS:
        text = f"{contrasts} volumes in one file, as of a time series; expected {MOST_CONTRASTS} contrasts at most"
        raise UserError(f"init: {one.image}: {text}: write one of them, or their mean, to a file of its own")
    return contrasts


def check_volume(root: Path, one: Example) -> None:
    """Read a volume with its contrasts; UserError where it is none."""
    from fairflare.data.readers import volumes

    paths = [root / path for path in (one.image, *one.contrasts)]
    with _refused(one.image):
        volumes.contrasts_of(Contrasts(tuple(paths)) if one.contrasts else paths[0])
