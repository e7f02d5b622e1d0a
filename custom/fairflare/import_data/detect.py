# SPDX-License-Identifier: Apache-2.0
"""What a folder holds, whatever its layout: lists come before tables, tables before names and folders.

Lists are the Decathlon's ``dataset.json``, and others of the same form named by site.

Splits go by patient: nobody is in two, classes are spread evenly, and the same folder gives the same splits.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fairflare.core.errors import UserError
from fairflare.core.findings import may_go_on
from fairflare.core.validation import flag, natural, shown, some, unlisted
from fairflare.data.readers.cases import patient_key
from fairflare.data.readers.datalist import DESCRIPTION, MOST_CONTRASTS, PREFIX, read_lists
from fairflare.data.readers.formats import boxes_in, unread
from fairflare.data.readers.geometry import form_of, is_image
from fairflare.data.readers.nifti import segments_in
from fairflare.import_data.columns import outcome_of, telling
from fairflare.import_data.folders import (
    by_headers,
    images_in_folders,
    level_table,
    patients_of,
    structures_in,
    with_masks,
)
from fairflare.import_data.labels import groups_of, with_agreed_labels
from fairflare.import_data.levels import as_volumes, check_volume, contrasts_of, flat, pixels, structures, with_slices
from fairflare.import_data.proposal import (
    SPLITS,
    Choices,
    Example,
    Files,
    Found,
    Tell,
    check_texts,
    is_missing,
    nothing,
    root_name,
    site_name,
    walk,
)
from fairflare.import_data.segments import masks_of
from fairflare.import_data.tables import examples_in_tables, tables_in, unnamed_tables
from fairflare.tasks.forms import FORMS

PATIENTS = ("patient_id", "patient", "subject_id", "subject", "case_id", "PatientID", "patientID", "patientId")
CHUNK = 2**12
"""Bytes that are compared, three times in a file."""
EDGE, ALIKE, MOST_PIXELS = 16, 1.5, 10**9
"""Of a small picture; grey levels by which two of one picture differ in the mean; pixels that are read for them."""
UNNAMED = "{}: a table that is not read: to have it read, call it .csv and put it beside the others"
KNOWN = ("image", "label", "frame", *PATIENTS)


def lists_in(root: Path) -> dict[str, Path]:
    """Site -> its list: ``<site>/dataset.json``, ``<site>.json``, or a ``dataset.json`` of one site."""
    found = {
        site_name(path.parent.name): path
        for path in sorted(root.glob(f"*/{DESCRIPTION}.json"), key=lambda path: natural(path.parent.name))
        if _is_list(path) and not path.parent.name.startswith(".")
    }
    for path in sorted(root.glob("*.json"), key=lambda path: natural(path.name)):
        if _is_list(path):
            name = root_name(root) if path.stem == DESCRIPTION else site_name(path.stem.removeprefix(PREFIX))
            found.setdefault(name, path)
    return found


def _is_list(path: Path) -> bool:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and isinstance(content.get("training"), list) and "kind" not in content


def images_in_lists(files: Files, lists: Mapping[str, Path], chosen: Choices) -> Found:
    """What the lists say.

    Raises:
        UserError: a list is of another form, or no entry has a label.
    """
    examples: list[Example] = []
    gone: list[str] = []
    unlabelled = 0
    for site, path in lists.items():
        for split, entries in read_lists(path).items():
            for number, entry in enumerate(entries):
                example = _example(files.root, path, site, split, entry, f"{path.name}: {split}[{number}]")
                unlabelled += not example.label
                lacking = [one for one in (example.image, *example.contrasts) if not (files.root / one).is_file()]
                if example.label and lacking:
                    gone.append(lacking[0])
                elif example.label:
                    examples.append(example)
    if not examples:
        raise UserError(f"init: no entry of {next(iter(lists.values())).name} has a label and a file that is there")
    keys = dict.fromkeys(key for one in examples for key in one.about)
    told = {key: [one.about.get(key, "") for one in examples] for key in keys}
    suspects = telling(told, [one.label for one in examples], [one.site for one in examples])
    # Keys by which patients may be grouped stay alone: any other may be a name or a number of a patient.
    table = pd.DataFrame({key: list(map(str.strip, cells)) for key, cells in told.items()}, dtype=object)
    groups = groups_of(table, [], chosen.groups) if told else [{} for _ in examples]
    examples = [replace(one, about=about) for one, about in zip(examples, groups, strict=True)]
    notes: tuple[str, ...] = (f"{unlabelled} entries have no label and are left out",) if unlabelled else ()
    notes += (f"{len(gone)} images of the lists are not there and left out, e.g. {gone[0]}",) if gone else ()
    examples, whence = _with_patients(files, examples, chosen)
    if all(is_image(one.label) for one in examples):
        missing = [one for one in examples if not (files.root / one.label).is_file()]
        if missing:
            text = f"{len(missing)} masks of the lists are not there and their images left out"
            notes += (f"{text}, e.g. {missing[0].label}",)
            examples = [one for one in examples if one not in missing]
        return Found("segmentation", "datalists with masks", examples, patients=whence, notes=notes, suspects=suspects)
    outcome = outcome_of("label", [one.label for one in examples], chosen, table=False)
    examples = [replace(one, label=label) for one, label in zip(examples, outcome.labels, strict=True)]
    layout, notes = f"datalists with {outcome.kind} labels", (*notes, *outcome.notes)
    layout = "datalists with classes" if outcome.kind == "classification" else layout
    return Found(outcome.kind, layout, examples, outcome.classes, outcome.options, whence, notes, suspects)


def _with_patients(files: Files, examples: list[Example], chosen: Choices) -> tuple[list[Example], str]:
    """``examples`` with patients by headers and names at sites whose lists say none; and where they are known from."""
    told = {one.site for one in examples if one.patient}
    loose = [one for one in examples if one.site not in told]
    if chosen.patient == "none":
        return examples, ""
    if not loose:
        return examples, "patient_id of the lists"
    levels = level_table(files, [one.image for one in loose], chosen)
    if chosen.patient not in ("", *levels.columns):
        raise UserError(f"--patient: {unlisted('level', chosen.patient, list(levels.columns[2:]))}")
    patients, whence = patients_of(levels, [one.site for one in loose], "", chosen)
    found = iter(patients)
    examples = [one if one.site in told else replace(one, patient=next(found)) for one in examples]
    return examples, " and ".join(filter(None, ["patient_id of the lists" if told else "", whence]))


def _example(root: Path, path: Path, site: str, split: str, entry: Any, where: str) -> Example:
    given = entry.get("image") if isinstance(entry, dict) else None
    images: list[Any] = given if isinstance(given, list) else [given]
    if not 0 < len(images) <= MOST_CONTRASTS or not all(isinstance(one, str) for one in images):
        text = f"with one file, or up to {MOST_CONTRASTS} contrasts"
        raise UserError(f'init: {where}: expected {{"image": ..., "label": ...}} {text}')
    label = entry.get("label")
    text = "" if label is None or is_missing(str(label)) else str(label)
    if is_image(text):
        text = _relative(root, path, text)
    patient = next((str(entry[key]) for key in PATIENTS if entry.get(key) is not None), "")
    others = {key: value for key, value in entry.items() if key not in KNOWN}
    about = {key: str(value) for key, value in others.items() if isinstance(value, (str, int, float))}
    # The Decathlon's training list is all there is to divide: its test images have no labels.
    split = "" if path.stem == DESCRIPTION and split == SPLITS[0] else split
    frame = entry.get("frame")
    if frame is not None and (type(frame) is not int or frame < 0):
        raise UserError(f"init: {where}: frame: expected a whole number from 0, got {frame!r}")
    first, *rest = (_relative(root, path, one) for one in images)
    return Example(site, first, text, split, patient, about, frame=frame, contrasts=rest)


def _relative(root: Path, path: Path, text: str) -> str:
    found = Path(os.path.normpath(path.parent.relative_to(root) / text)).as_posix()
    if found.startswith("..") or Path(text).is_absolute():
        raise UserError(f"init: {path.name}: expected paths inside {root}, got {shown(text)}")
    return found


def look(root: Path, chosen: Choices, tell: Tell = nothing) -> Found:
    """What is to be written of ``root``, every example in a split; ``tell`` how far it is.

    Reads one image of each site, all masks' values and all tables.

    Raises:
        UserError: nothing can be made of it, in one line that says why.
    """
    files, plain = walk(root, tell), flat(chosen)
    found = _found(files, plain)
    check_texts(found)
    found = by_headers(files, found)
    if plain.kind and found.kind != plain.kind:
        raise UserError(f"--kind: expected {found.kind}, which is what {root} holds, got {chosen.kind}")
    if not found.examples:
        raise UserError(f"init: nothing in {root} has a label")
    for site in chosen.without:
        if site not in (*found.sites, *found.unread):
            raise UserError(f"--without: {unlisted('site', site, found.sites)}")
    if chosen.without:
        found = replace(found, examples=[one for one in found.examples if one.site not in chosen.without])
    if found.form.masks and not found.masks:
        lists = [root / f"{DESCRIPTION}.json", *lists_in(root).values()] if root.is_dir() else []
        named = {value: name for path in lists for value, name in structures_in(path).items()}
        masks = {site: [one.label for one in found.of(site)] for site in found.sites}
        named = named or segments_in(files.root / next(iter(masks.values()))[0])
        classes, options = structures(files, masks, chosen.classes, named)
        found = replace(found, classes=classes, options={**found.options, **options})
    elif found.form.classes:
        found = with_agreed_labels(found, chosen)
    of_volumes = bool(chosen.kind) and FORMS[chosen.kind].volumes
    found = as_volumes(files, found, chosen.kind) if of_volumes else with_slices(files, found, chosen)
    held = [contrasts_of(files.root, one) for one in found.examples]
    if (n := max(held)) > 1:
        if n != min(held):
            odd, other = (found.examples[held.index(one(held))].image for one in (min, max))
            raise UserError(f"init: {odd}: expected {n} contrasts as of {other}: leave one of them out")
        found = replace(found, options={**found.options, "channels": str(n)})
    notes = found.notes + _linked(root)
    if files.others:
        text = f"e.g. {files.others[0]} is {unread(files.others[0])}"
        notes += (f"{len(files.others)} files of other formats are not read, {text}",)
    if files.dead:
        notes += (f"{len(files.dead)} symbolic links lead nowhere and are left out, e.g. {files.dead[0]}",)
    if texts := unnamed_tables(files):
        notes += (UNNAMED.format(some(texts, 3)),)
    if chosen.patient == "none":
        found = replace(found, patients="", examples=[replace(one, patient="") for one in found.examples])
    people = Counter(patient for patient, _ in {(patient_key(one.patient), one.site) for one in found.examples})
    if shared := sum(n > 1 for patient, n in people.items() if patient):
        notes += (f"{shared} names of patients stand at several sites and are taken for different people there",)
    unknown = [site for site in found.sites if not all(one.patient for one in found.of(site))]
    if found.patients and unknown:
        text = f"every {found.form.example} without one is taken for a patient of its own"
        notes += (f"{some(unknown)}: patients are not known of all: {text}",)
    notes += _copied(files.root, found)
    found = with_splits(replace(found, notes=notes), chosen.new_splits)
    for site in found.sites:
        one = found.of(site)[0]
        if found.form.volumes:
            check_volume(root, one)
        elif one.image:
            pixels(root, one.image, one.frame)
    used = {path for one in found.examples for path in (one.image, one.label, *one.contrasts)}
    return replace(found, links=tuple(path for path in files.links_out if path in used))


def _copied(root: Path, found: Found) -> tuple[str, ...]:
    """What to say where two sites, or two patients of one, have the same file or nearly the same picture."""
    own = list({one.image: one for one in found.examples if one.image}.values())
    first: dict[tuple[int, bytes], Example] = {}
    pairs = {one.image: first.setdefault(_file_key(root / one.image), one) for one in own}
    small = [(one, icon) for one, icon in zip(own, _icons([root / one.image for one in own])) if icon is not None]
    small.sort(key=lambda pair: float(pair[1].mean()))  # as means of two that are alike are, too
    icons = np.array([icon for _, icon in small]).reshape(len(small), EDGE**2)
    starts = np.searchsorted(icons.mean(axis=1), icons.mean(axis=1) - ALIKE)
    for k, ((one, icon), start) in enumerate(zip(small, starts)):
        near = start + np.flatnonzero(np.abs(icons[start:k] - icon).mean(axis=1) < ALIKE)
        pairs[one.image] = small[near[0]][0] if len(near) else pairs[one.image]
    twins = [(one, other) for one in own if (other := pairs[one.image]) is not one]
    apart = [(one, other) for one, other in twins if one.site != other.site]
    inside = [(one, other) for one, other in twins if one.site == other.site]
    inside = [  # of which nothing says that they are one patient's, and no list has both in one split
        (one, other)
        for one, other in inside
        if not (one.patient and patient_key(one.patient) == patient_key(other.patient))
        and not (one.split and one.split == other.split)
    ]
    way = ": leave out one of each, or name the patient (--patient LEVEL), or they may lie in two splits"
    texts = ((apart, "files of another site, too", ""), (inside, "files or pictures of another patient, too", way))
    return tuple(
        f"{len(two)} images are {text}, e.g. {two[0][0].image} and {two[0][1].image}{more}"
        for two, text, more in texts
        if two
    )


def _file_key(path: Path) -> tuple[int, bytes]:
    """Size, and what stands at the beginning, middle and end."""
    with path.open("rb") as file:
        size, parts = os.fstat(file.fileno()).st_size, b""
        for place in (0, size // 2, max(0, size - CHUNK)):
            file.seek(place)
            parts += file.read(CHUNK)
    return size, hashlib.blake2b(parts, digest_size=16).digest()


def _icons(paths: Sequence[Path]) -> Iterator[np.ndarray | None]:
    """Small grey pictures (``EDGE``**2,) on 0 to 255; None of other files, of what shows nothing, and of too many."""
    from PIL import Image

    left = MOST_PIXELS
    for path in paths:
        icon = None
        if form_of(path) == "picture" and left > 0:
            with contextlib.suppress(OSError, ValueError, Image.DecompressionBombError), Image.open(path) as file:
                file.draft("L", (4 * EDGE, 4 * EDGE))  # JPEG is read at a smaller size
                if (left := left - file.width * file.height) > 0:
                    grey = file.convert("L").resize((EDGE, EDGE), Image.Resampling.BOX)
                    icon = np.asarray(grey, dtype=np.float32).ravel()
        yield icon if icon is not None and icon.std() > 2 * ALIKE else None


def _linked(root: Path) -> tuple[str, ...]:
    """What to say of lists and tables whose content comes from outside of ``root``, by a symbolic link."""
    if root.is_file():
        return ()
    home, read = root.resolve(), list(lists_in(root).values()) or tables_in(root)
    out = [path.relative_to(root).as_posix() for path in read if not path.resolve().is_relative_to(home)]
    if not out:
        return ()
    which = f"{len(out)} of {len(read)} lists or tables are symbolic links out of {root}, e.g. {out[0]}"
    return (f"{which}: what they hold is copied into the folder",)


def _found(files: Files, chosen: Choices) -> Found:
    if not files.root.is_file() and (lists := lists_in(files.root)):
        return images_in_lists(files, lists, chosen)
    paths = tables_in(files.root)
    if not (paths or files.images) and (texts := unnamed_tables(files)):
        raise UserError(f"init: {UNNAMED.format(some(texts, 3))}")
    if paths:
        return examples_in_tables(files, paths, chosen)
    try:
        paired, masks, names = masks_of(files)
        found = with_masks(files, paired, [], chosen) if masks else images_in_folders(files, chosen)
        return replace(found, layout="images with DICOM segmentations", classes=names, masks=masks) if masks else found
    except UserError as error:
        boxes = "" if files.root.is_file() else boxes_in(files.root, files.images)
        other = f"{files.others[0]} is {unread(files.others[0])}" if files.others and files.images else ""
        raise UserError("; ".join(filter(None, (str(error), boxes or other)))) from None


SHARES = {"training": 0.6, "validation": 0.15, "testing": 0.25}


def with_splits(found: Found, anew: bool) -> Found:
    """``found`` with every example in a split.

    What the layout says stands unless ``anew``; a split that a site lacks is drawn from its training examples.

    Raises:
        UserError: the layout has a patient in two splits, or a site has too few patients to divide.
    """
    examples: list[Example] = []
    drawn: list[str] = []
    few = _too_few(found, anew)
    for site in [site for site in found.sites if site not in few]:
        own = [replace(one, split="") for one in found.of(site)] if anew else found.of(site)
        _check_apart(site, own, found.patients)
        missing = [split for split in SPLITS[1:] if not any(one.split == split for one in own)]
        loose = [k for k, one in enumerate(own) if not one.split or (missing and one.split == SPLITS[0])]
        if loose:
            drawn.append(site)
            settled = {patient_key(one.patient): one.split for one in own if one.split in SPLITS[1:] and one.patient}
            splits, labelled = [SPLITS[0], *missing], not found.form.masks and "regression" not in found.kind
            for k, split in zip(loose, _drawn([own[k] for k in loose], splits, labelled)):
                own[k] = replace(own[k], split=settled.get(patient_key(own[k].patient), split))
        examples += own
    kept = [site for site in found.sites if site not in (*drawn, *few)]
    held = {one.site for one in examples if one.split == SPLITS[2]}
    small = [site for site in drawn if site not in held]
    if small and not held:
        n = len({patient_key(one.patient) or (one.image, k) for k, one in enumerate(found.of(small[0]))})
        raise UserError(f"init: {small[0]}: expected at least {len(SPLITS)} patients or examples to divide, got {n}")
    if small:
        text = "too few patients to hold any back: all train, and there is no result of their own"
        found = replace(found, notes=(*found.notes, f"{some(small)}: {text} ({flag('without', *small)} leaves out)"))
    words: tuple[str, ...] = (
        (f"drawn by {'patient' if found.patients else 'example'} at {some(drawn)}",) if drawn else ()
    )
    words += (f"as they are at {some(kept)}",) if kept else ()
    words += (f"left out: {some(few)}, fewer patients than splits",) if few else ()
    return replace(found, examples=examples, splits=words)


def _too_few(found: Found, anew: bool) -> list[str]:
    """Sites without a patient for each split, where two others or more, and most of all, remain; else none."""
    few = []
    for site in found.sites:
        own = found.of(site)
        known = {patient_key(one.patient) or f"\0{one.image or number}" for number, one in enumerate(own)}
        few += [site] if len(known) < len(SPLITS) and (anew or not all(one.split for one in own)) else []
    return few if may_go_on(len(found.sites) - len(few), len(few)) else []


def _check_apart(site: str, own: Sequence[Example], whence: str) -> None:
    told = [one for one in own if one.split]
    images = Counter(place for place, _ in dict.fromkeys(((one.image, one.frame), one.split) for one in told))
    patients = Counter(who for who, _ in {(patient_key(one.patient), one.split) for one in told if one.patient})
    if twice := [image for (image, _), n in images.items() if n > 1 and image]:
        raise UserError(
            f"init: {site}: {len(twice)} images are in two splits, e.g. {twice[0]}; --new-splits draws them anew"
        )
    if both := sum(n > 1 for n in patients.values()):
        text = f"{both} patients are in two splits, by {whence}; --new-splits draws them anew"
        raise UserError(f"init: {site}: {text}, --patient COLUMN or none says who they are")


def _drawn(loose: Sequence[Example], splits: Sequence[str], labelled: bool) -> list[str]:
    """The split of each example: patients, stratified by class, are dealt to splits by shares.

    Examples without a patient are patients of their own; slices of one file belong together.
    """
    names = [patient_key(one.patient) or f"\0{one.image or number}" for number, one in enumerate(loose)]
    patients, labels = (pd.factorize(np.array(one, dtype=object))[0] for one in (names, [e.label for e in loose]))
    n = int(patients.max()) + 1
    if n < len(splits):  # too few to hold any back: all train
        return [splits[0]] * len(loose)
    counts = np.bincount(labels) if labelled else np.array([len(labels)])
    labels = labels if labelled else np.zeros_like(labels)
    rarest = np.lexsort((counts[labels], patients))  # the stratum of a patient with several classes
    strata = pd.factorize(labels[rarest[np.unique(patients[rarest], return_index=True)[1]]])[0]
    # Places of each split lie evenly among all, so that every stratum, which takes a run of them, has its shares.
    sizes = _sizes([SHARES[split] for split in splits], n)
    places = sorted(((k + 0.5) / size, split) for split, size in zip(splits, sizes) for k in range(size))
    where, random, start = np.empty(n, dtype=object), np.random.RandomState(0), 0
    for stratum in range(strata.max() + 1):
        own = strata == stratum
        dealt = np.array([split for _, split in places[start : start + own.sum()]], dtype=object)
        random.shuffle(dealt)
        where[own], start = dealt, start + len(dealt)
    return list(where[patients])


def _sizes(shares: Sequence[float], n: int) -> list[int]:
    """``n`` parts by ``shares``, at least one each, the largest remainders first."""
    exact = [share / sum(shares) * n for share in shares]
    sizes = [max(1, int(value)) for value in exact]
    while sum(sizes) > n:
        sizes[sizes.index(max(sizes))] -= 1
    for k in sorted(range(len(sizes)), key=lambda k: sizes[k] - exact[k])[: n - sum(sizes)]:
        sizes[k] += 1
    return sizes
