# SPDX-License-Identifier: Apache-2.0
"""Images in folders: masks beside them, or a folder for each class; sites, patients and splits by folders, names and
DICOM headers, of which nothing is meant to leave a site."""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from fairflare.core.errors import UserError
from fairflare.core.extras import need
from fairflare.core.validation import flag, in_order, natural, some, unlisted
from fairflare.data.readers import geometry
from fairflare.data.readers.dicom import DEFERRED, is_dicom, pydicom_quietly
from fairflare.data.readers.formats import unread
from fairflare.data.readers.geometry import stem
from fairflare.import_data.columns import telling
from fairflare.import_data.labels import HEADERS as HEADERS_OF
from fairflare.import_data.labels import PATIENT, WORDS, event_last, groups_of, mostly, says_class, split_word
from fairflare.import_data.levels import FOLDER, Roles, roles
from fairflare.import_data.proposal import (
    Choices,
    Files,
    Found,
    Reading,
    as_examples,
    class_names,
    root_name,
    site_name,
    site_names,
)
from fairflare.tasks.forms import FORMS, IMAGE_GRADES, MASKED_IMAGES

KEYWORDS = (
    "PatientID", "StudyInstanceUID", "SeriesInstanceUID", "PatientSex", "PatientAge", "Manufacturer",
    "ManufacturerModelName", "StationName", "InstitutionName", "Modality", "PhotometricInterpretation",
)  # fmt: skip
"""Those that patients, groups and series are known from."""
NO_TEXT = ("SQ", "OB", "OW", "OF", "OD", "OL", "OV", "UN", "OB or OW")
"""Kinds of attributes that are no cell of a table."""
LONGEST = 1024
"""Characters of a cell."""
THREADS = 8
OFTEN = 100
"""Files after which it is told how many have been read."""


def headers(
    paths: Sequence[Path],
    keywords: Sequence[str] = KEYWORDS,
    tell: Callable[[str, int], None] = lambda part, done: None,
) -> pd.DataFrame:
    """A row for each of ``paths``, which are its index, and a column of text for each of ``keywords``.

    A cell is "" where the file is no DICOM or does not say; several values are joined by a backslash, as DICOM does.
    Pixels are not read.

    Args:
        keywords: of DICOM's dictionary.
        tell: called now and then with what is counted, and how many there are so far.

    Raises:
        UserError: a keyword is none of the DICOM dictionary's, or its values are no text.
    """
    need("images", "images")
    from pydicom.datadict import dictionary_VR, keyword_dict, tag_for_keyword

    for keyword in keywords:
        if (tag := tag_for_keyword(keyword)) is None:
            one = "expected one such as PatientID or StationName"
            raise UserError(unlisted("DICOM keyword", keyword, keyword_dict, one))
        if dictionary_VR(tag) in NO_TEXT:
            raise UserError(f"DICOM keyword {keyword}: expected one whose values are text or numbers")
    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
        rows = []
        for row in pool.map(lambda path: _row(path, keywords), paths):
            rows.append(row)
            if len(rows) % OFTEN == 0:
                tell("headers", len(rows))
    return pd.DataFrame(rows, index=pd.Index(list(paths), dtype=object), columns=list(keywords), dtype=object)


def _row(path: Path, keywords: Sequence[str]) -> list[str]:
    if not is_dicom(path):
        return [""] * len(keywords)
    pydicom = pydicom_quietly()
    try:
        found = pydicom.dcmread(path, stop_before_pixels=True, defer_size=DEFERRED, specific_tags=list(keywords))
        return [_cell(found.get(keyword)) for keyword in keywords]
    except Exception:  # pydicom raises whatever it meets; who reads the pixels says what is wrong
        return [""] * len(keywords)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    several = isinstance(value, (list, tuple)) or type(value).__name__ == "MultiValue"
    text = "\\".join(str(one) for one in value) if several else str(value)
    return text.strip().strip("\0")[:LONGEST]


SCOUT = re.compile(
    r"locali[sz]er|scout|topogram|surview|scanogram|screen ?save|dose ?(report|info)|patient protocol", re.IGNORECASE
)
"""What ImageType, or the series' description, says of an image that plans the others, or of a page of text."""
NO_PICTURES = ("SEG", "RTDOSE", "RTSTRUCT", "RTPLAN", "SR", "PR", "KO")
"""Modalities of what is no picture of anybody: masks, doses, contours, reports."""
MOST_LOOKED_AT = 2000
"""Images whose size is read."""
TOLD = (
    "ImageType", "SeriesDescription", "Modality", "Manufacturer", "ManufacturerModelName", "StationName", "PatientSex",
    "BodyPartExamined", "Laterality", "ImageLaterality", "ViewPosition", "PhotometricInterpretation",
)  # fmt: skip


def by_headers(files: Files, found: Found) -> Found:
    """``found`` without localizers, reports and masks among other images; a note where modalities differ, and what of
    headers, format or size alone tells the class at a site."""
    if found.form.table:
        return found
    paths = list(dict.fromkeys(one.image for one in found.examples if one.image in files.dicom))
    head = headers([files.root / path for path in paths], TOLD, files.tell)
    head.index = pd.Index(paths)
    odd = head.ImageType.add(" ").add(head.SeriesDescription).map(lambda text: bool(SCOUT.search(text)))
    odd |= head.Modality.isin(NO_PICTURES)
    kept = [one for one in found.examples if one.image not in {*head.index[odd]}]
    if odd.any() and kept:
        what = f"localizers, reports, contours or masks by their headers ({some(in_order({*head.Modality[odd]}), 4)})"
        text = f"{odd.sum()} images are {what} and are left out, e.g. {head.index[odd][0]}"
        found = replace(found, examples=kept, notes=(*found.notes, text))
        head = head[~odd]
    if len(several := head.Modality.value_counts()) > 1:
        text = ", ".join(f"{name or 'none'} ({n})" for name, n in several.items())
        found = replace(found, notes=(*found.notes, f"modalities differ: {text}; images of all are read alike"))
    few = found.examples[:: -(-len(found.examples) // MOST_LOOKED_AT)]
    if not found.form.classes or not few:
        return found
    own = head.reindex([one.image for one in few]).fillna("")
    columns = {name: list(own[name]) for name in TOLD[2:]}
    columns["the files' format"] = [geometry.suffix_of(Path(one.image)) for one in few]
    places = [geometry.geometry_of(files.root / one.image) for one in few]
    columns["the images' size"] = [f"{one.height} x {one.width} x {one.channels}" if one else "" for one in places]
    labels, sites = zip(*((one.label, one.site) for one in few))
    return replace(found, suspects=(*found.suspects, *telling(columns, labels, sites)))


PARTS = re.compile(r"[_. ()-]+")
"""What stands between the parts of a file's name."""
NAME = "name"
"""The level of the part of files' names that says the patient."""
LEAST_PATIENTS = 5
"""Fewer beginnings of names are series or scanners rather than patients, unless they are called like patients."""
LARGEST_SHARE = 1 / 3
"""Of a site's images that one patient may have, where names alone say who it is."""
OTHER_DEPTH = 0.1
"""Share of the images that may lie at another depth of folders than the others."""
INSTITUTION = "InstitutionName"
PATIENT_HEADERS = ("PatientID", "StudyInstanceUID")
SPLIT = "@split"
DECATHLON = {"imagestr": "training", "imagesval": "validation", "imagests": "testing"}


def images_in_folders(files: Files, chosen: Choices) -> Found:
    """What ``files`` without any list or table say by their names, folders and headers.

    Raises:
        UserError: there are no images, nothing says their class and no mask lies beside them, or what is there may be
            read in two ways and nobody can be asked.
    """
    if not files.images:
        first = files.others[0] if files.others else ""
        others = f"; {len(files.others)} of other formats: {first} is {unread(first)}" if first else ""
        raise UserError(f"init: {files.root} holds no image that can be read, no table and no datalist{others}")
    if twice := {f"{path}.gz" for path in files.images} & {*files.images}:
        raise UserError(f"init: {min(twice)} is there without .gz, too: leave one of them")
    groups, lacking = geometry.contrasts_in([path for path in files.images if not geometry.is_mask(path)])
    if groups:
        masks = [path for path in files.images if geometry.is_mask(path)]
        found = _images(replace(files, images=(*groups, *masks)), chosen, True)
        whole = [replace(one, contrasts=groups[one.image][1:]) for one in found.examples]
        contrasts = next(iter(groups.values()))
        text = (
            f"{len(groups)} images have {len(contrasts)} contrasts each, which become channels, as {some(contrasts, 8)}"
        )
        notes = (*found.notes, text, *_note(lacking, "lack a contrast and are left out"))
        return replace(found, examples=whole, notes=notes)
    return _images(files, chosen, False)


def _images(files: Files, chosen: Choices, contrasts: bool) -> Found:
    """Of ``files`` whose images are the first of several ``contrasts``, or all there are."""
    paired, alone = geometry.pairs(files.images, contrasts)
    masked = chosen.kind == MASKED_IMAGES.name
    if masked and not any(paired.values()):
        text = "expected masks beside the images (x_mask.png) or in a folder of their own (masks/x.png)"
        raise UserError(f"init: {text}, found none")
    if masked or (not chosen.kind and any(paired.values()) and not _masks_or_classes(paired, chosen)):
        return with_masks(files, paired, alone, chosen)
    beside = geometry.masks_beside(files.images, contrasts)  # a name alone is none, as P101_seg4 of a liver's segment
    images = [path for path in files.images if path not in beside and not geometry.in_masks(path)] or files.images
    masks = sorted({*files.images} - {*images}, key=natural)
    found = _classification(files, images, chosen)
    return replace(found, notes=(*found.notes, *_note(masks, "are called like masks and are left out")))


def _masks_or_classes(paired: Mapping[str, str], chosen: Choices) -> bool:
    """Whether images with masks, in folders that are called like classes, are taken for images of classes."""
    last = {folders[-1] for path in paired if (folders := _plain_folders(path))}
    if chosen.classes or len(last) < 2 or not mostly([says_class(name) for name in last]):
        return False
    readings = [
        Reading("the masks are the labels", "--kind segmentation"),
        Reading(f"the folders {some(in_order(last), 3)} are the classes", "--kind classification"),
    ]
    return bool(chosen.ask("images have masks and lie in folders that are called like classes", readings))


def with_masks(files: Files, paired: Mapping[str, str], alone: Sequence[str], chosen: Choices) -> Found:
    """Images with the masks that ``paired`` has for them, "" where none; ``alone``: masks without an image."""
    images = [path for path, mask in paired.items() if mask]
    if second := next(((one, mask) for one, mask in geometry.pairs([*images, *alone])[0].items() if mask), None):
        raise UserError(f"init: {second[0]} has two masks, {paired[second[0]]} and {second[1]}: leave one of them")
    table = level_table(files, images, chosen)
    role = _by_institution(table, roles(table.drop(columns=["image", SPLIT]), chosen, labelled=False), chosen)
    sites = _sites(files, table, role, chosen)
    patients, whence = patients_of(table, sites, role.patient, chosen)
    masks = map(paired.__getitem__, images)
    examples = as_examples(sites, images, masks, table[SPLIT], patients, groups_of(table, list(table), chosen.groups))
    if not examples:
        raise UserError("init: expected masks beside the images, found none")
    without = [path for path, mask in paired.items() if not mask]
    notes = _note(without, "have no mask and are left out") + _note(alone, "are masks without an image")
    layout = "images, with masks beside them or in a folder of their own"
    return Found("segmentation", layout, examples, patients=whence, notes=notes)


def structures_in(path: Path) -> dict[int, str]:
    """Pixel value -> name, from a list's "labels" without the background, as the Decathlon and nnU-Net write them."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    labels = content.get("labels", {}) if isinstance(content, dict) else {}
    if not isinstance(labels, dict):
        return {}
    pairs = [(key, name) if str(key).isdigit() else (name, key) for key, name in labels.items()]  # nnU-Net: name first
    return {int(value): str(name) for value, name in pairs if str(value).isdigit() and int(value)}


def _classification(files: Files, images: Sequence[str], chosen: Choices) -> Found:
    table = level_table(files, images, chosen)
    depths = Counter(len(_plain_folders(path)) for path in images)
    usual = depths.most_common(1)[0][0]
    odd = [path for path in images if len(_plain_folders(path)) != usual]
    text = f"expected a folder for each class, masks beside the images, a table or a datalist{_contours(files)}"
    unlabelled = UserError(f"init: {len(images)} images and nothing that says their labels; {text}")
    if not usual and chosen.label in ("", "none"):
        raise unlabelled
    if len(odd) > OTHER_DEPTH * len(images):
        text = f"{usual} folders deep, but {len(odd)} of {len(images)} are not, e.g. {odd[0]}"
        raise UserError(f"init: expected all images in as many folders; most are {text}")
    inside = table[~table["image"].isin(odd)].reset_index(drop=True)
    role = roles(inside.drop(columns=["image", SPLIT]), chosen, labelled=True)
    if not role.label:
        raise unlabelled
    role = _by_institution(inside, role, chosen)
    sites = _sites(files, inside, role, chosen)
    patients, whence = patients_of(inside, sites, role.patient, chosen)
    kind = IMAGE_GRADES.name if chosen.kind == IMAGE_GRADES.name else "classification"
    if chosen.kind and not FORMS[chosen.kind].classes:
        text = "expected a table or a datalist beside the images, as a folder says one class"
        raise UserError(f"--kind {chosen.kind}: {text}")
    if kind == IMAGE_GRADES.name and not chosen.classes:
        names = in_order(inside[role.label].unique())
        raise UserError(f"--kind {kind}: expected the order from the lowest to the highest: {flag('classes', *names)}")
    classes = class_names(inside[role.label], chosen.classes)
    classes = classes if chosen.classes else event_last(classes)[0]
    parts = (inside[name] for name in ("image", role.label, SPLIT))
    examples = as_examples(sites, *parts, patients, groups_of(inside, list(inside), chosen.groups))
    notes = _note(odd, "lie at another depth than the others and are left out")
    of_site = f"{role.site} is the hospital" if role.site else "all of one hospital"
    layout = f"images in a folder for each class; {of_site}, {role.label} the class"
    return Found(kind, layout, examples, classes, {}, whence, notes)


def _contours(files: Files) -> str:
    """What to say of DICOM files that hold contours; "" where there are none."""
    paths = list(files.dicom)[:MOST_LOOKED_AT]
    of = headers([files.root / path for path in paths], ["Modality"])["Modality"] if paths else []
    first = next((path for path, one in zip(paths, of, strict=True) if one == "RTSTRUCT"), "")
    way = "which are not read: 3D Slicer with SlicerRT exports them as DICOM SEG or NRRD masks"
    return f"; {first} holds contours (RTSTRUCT), {way}" if first else ""


def _by_institution(table: pd.DataFrame, role: Roles, chosen: Choices) -> Roles:
    """``role``, with the hospitals that DICOM headers name where folders name none: asks."""
    if role.site or chosen.site or INSTITUTION not in table.columns:
        return role
    names = in_order(filter(None, table[INSTITUTION].unique()))
    if len(names) < 2:
        return role
    readings = [
        Reading(f"each is a hospital, such as {some(names, 3)}", flag("site", INSTITUTION)),
        Reading("all images are one hospital's", flag("site", "none")),
    ]
    other = chosen.ask(f"DICOM headers name {len(names)} institutions, and folders no hospital", readings)
    return role if other else replace(role, site=INSTITUTION)


def level_table(files: Files, images: Sequence[str], chosen: Choices) -> pd.DataFrame:
    """One row per image: its path, "folder1" (outermost) ..., its split where a folder says it, DICOM headers, "name".

    Headers are read where an image is DICOM: those that say the patient, and those that ``chosen`` names.
    """
    folders = [_plain_folders(path) for path in images]
    deepest = max(map(len, folders), default=0)
    splits = [
        [word for name in geometry.folders_of(path) if (word := split_word(name))]
        + [DECATHLON[part] for part in path.lower().split("/")[:-1] if part in DECATHLON]
        for path in images
    ]
    content: dict[str, list[str]] = {"image": list(images), SPLIT: [(own or [""])[0] for own in splits]}
    content |= {f"{FOLDER}{k + 1}": [own[k] if k < len(own) else "" for own in folders] for k in range(deepest)}
    if any(found := _patients_in([stem(path) for path in images], chosen)):
        content[NAME] = found
    table = pd.DataFrame(content, dtype=object)
    known = {HEADERS_OF.get(name, name): name for name in (*chosen.levels, *chosen.groups)}
    own = [path for path in images if path in files.dicom]
    if own:
        wanted = dict.fromkeys(
            [*PATIENT_HEADERS, INSTITUTION, *(level for level in known if level not in table.columns)]
        )
        head = headers([files.root / path for path in own], list(wanted), files.tell)
        head.index = pd.Index(own)
        head = head.rename(columns={header: name for header, name in known.items() if header in wanted})
        table = table.join(head.reindex(images).fillna("").reset_index(drop=True))
    return table


def _patients_in(stems: Sequence[str], chosen: Choices) -> list[str]:
    """The part of each name that may be the patient: with a digit, no number of a picture, and the same for several.

    Raises:
        UserError: two parts may be, and nobody can be asked.
    """
    parts = [[part for part in PARTS.split(name) if part] for name in stems]
    if mostly([len(own) > 1 and own[-1].lower() in WORDS["side"] for own in parts]):  # both eyes of one
        names = ["_".join(own[:-1] if own[-1].lower() in WORDS["side"] else own) for own in parts]
        return names if len({*names}) < len(names) else [""] * len(stems)
    fits: dict[int, list[str]] = {}
    for place in range(max((len(own) for own in parts), default=0)):
        found = [own[place] if len(own) > max(place, 1) and _may_be_patient(own, place) else "" for own in parts]
        filled = [part for part in found if part]
        enough = len(set(filled)) >= LEAST_PATIENTS or _called_patients(set(filled))
        if enough and 2 * len(filled) >= len(found) and len(set(filled)) < len(filled):
            fits[place] = found
    if len(fits) > 1 and chosen.patient == "":
        first, other = (fits[place] for place in list(fits)[:2])
        pairs = {(a, b) for a, b in zip(first, other, strict=True) if a and b}
        nests = len(pairs) == len({b for _, b in pairs})  # as a study with its patient
        if all(len(set(found)) > 1 for found in (first, other)) and not nests:
            readings = [
                Reading(f"the first part, {some(in_order(filter(None, first)), 3)}", "--patient name"),
                Reading(
                    f"another part, as {some(in_order(filter(None, other)), 3)}", "rename the files, or --patient none"
                ),
            ]
            if chosen.ask("two parts of the files' names may be the patient", readings):
                return other
    return next(iter(fits.values()), [""] * len(stems))


def _may_be_patient(parts: Sequence[str], place: int) -> bool:
    """Whether part number ``place`` has a digit and is no number of a picture, no date and no last plain number."""
    part = parts[place].lower()
    word = part.rstrip("0123456789")
    last_number = place > 0 and place == len(parts) - 1 and part.isdigit()
    return (
        any(sign.isdigit() for sign in part)
        and (word not in WORDS["counted"] or (place == 0 and len(word) == 1))
        and not last_number
    )


def _plain_folders(path: str) -> tuple[str, ...]:
    """The folders of an image that may say site, class or patient."""
    return tuple(unicodedata.normalize("NFC", name) for name in geometry.folders_of(path) if not split_word(name))


def _sites(files: Files, table: pd.DataFrame, role: Roles, chosen: Choices) -> list[str]:
    """The site of each image; one that no level says is called by the one folder that all lie in, or by the root."""
    if role.site:
        if empty := int((table[role.site] == "").sum()):
            raise UserError(f"{flag('site', role.site)}: expected a value for every image, {empty} have none")
        return site_names(table[role.site])
    outer = f"{FOLDER}1"
    alone = outer in table.columns and table[outer].nunique() == 1 and role.label != outer and chosen.site != "none"
    name = site_name(str(table[outer].iloc[0])) if alone else root_name(files.root)
    return [name] * len(table)


def patients_of(table: pd.DataFrame, sites: Sequence[str], level: str, chosen: Choices) -> tuple[list[str], str]:
    """The patient of each image, "" where unknown, and in words where that is known from; "" where nothing says it.

    A level that the user names comes first, then a DICOM header (unless all files have the same, as after
    anonymisation), then a folder, then the beginning of the files' names.
    """
    unknown = [""] * len(table)
    if chosen.patient == "none":
        return unknown, ""
    if chosen.patient:
        return list(table[chosen.patient]), chosen.patient
    others = [name for name in (level, NAME, PATIENT_HEADERS[1]) if name in table.columns]
    of_sites = {site: _header_of(own, others) for site, own in table.groupby(list(sites))}
    if any(sure for sure, _ in of_sites.values()) and all(header for _, header in of_sites.values()):
        headers_of = [of_sites[site][1] for site in sites]
        first, *more = [header for header in PATIENT_HEADERS if header in headers_of]
        text = f" ({more[0]} at {some([site for site, (_, own) in of_sites.items() if own in more])})" if more else ""
        cells = {header: list(table[header]) for header in (first, *more)}
        return [cells[header][k] for k, header in enumerate(headers_of)], f"the DICOM header {first}{text}"
    dicom = [name for name in PATIENT_HEADERS if name in table.columns and (table[name] != "").any()]
    if dicom and len(none := table["image"][(table[dicom] == "").all(axis=1)]):
        text = f"images have no DICOM header that says the patient, e.g. {none.iloc[0]}; --patient none or LEVEL"
        raise UserError(f"init: {len(none)} of {len(table)} {text}")
    if level:
        return list(table[level]), "their folders"
    if NAME in table.columns and _may_be_patients(table[NAME], sites, chosen):
        return list(table[NAME]), "the beginning of the files' names"
    return unknown, ""


def _header_of(own: pd.DataFrame, others: Sequence[str]) -> tuple[bool, str]:
    """Whether a header tells the patients of a site's images apart, and which; "" where none is in all of them.

    After anonymisation all files of a site may have the same, or some of them none: the study tells them apart.
    """
    whole = [name for name in PATIENT_HEADERS if name in own.columns and (own[name] != "").all()]
    for header in whole:
        n = own[header].nunique()
        each = n == len(own) and any(own[name].nunique() < len(own) for name in others)
        if n > 1 and not each:
            return True, header
    return False, (whole or [""])[0]


def _may_be_patients(names: pd.Series, sites: Sequence[str], chosen: Choices) -> bool:
    """Whether the parts of names that repeat at a site are patients: many, none with most of its images, or called so.

    Raises:
        UserError: they may be, and nobody can be asked.
    """
    told = pd.DataFrame({NAME: names, "site": list(sites)})[names != ""]
    if 2 * len(told) < len(names) or not told.duplicated().any():
        return False
    different = in_order(told[NAME].unique())
    shares = [own.value_counts().iloc[0] <= max(LARGEST_SHARE * len(own), 2) for _, own in told.groupby("site")[NAME]]
    if (len(different) >= LEAST_PATIENTS and mostly(shares)) or _called_patients(different):
        return True
    readings = [
        Reading(f"each is a patient, as {some(different, 3)}", "--patient name"),
        Reading("every image is another patient's", "--patient none"),
    ]
    return not chosen.ask("a part of the files' names repeats and may be the patient", readings)


def _called_patients(names: Collection[str]) -> bool:
    return len(names) > 1 and all(PATIENT.fullmatch(name) for name in names)


def _note(paths: Sequence[str], says: str) -> tuple[str, ...]:
    return (f"{len(paths)} images {says}, e.g. {paths[0]}",) if paths else ()
