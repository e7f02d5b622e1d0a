# SPDX-License-Identifier: Apache-2.0
"""Splits by patient: nobody is in two, classes are spread evenly, and the same folder gives the same splits."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fairflare.app.intake.found import SPLITS, Example, Found
from fairflare.core.errors import UserError
from fairflare.core.order import some

SHARES = {"training": 0.6, "validation": 0.15, "testing": 0.25}
FEWEST = 3
"""Patients of a site: one for each split."""


def with_splits(found: Found, anew: bool) -> tuple[Found, tuple[str, ...]]:
    """``found`` with every example in a split, and in words what was drawn.

    What the layout says stands unless ``anew``; a split that a site lacks is drawn from its training examples.

    Raises:
        UserError: the layout has a patient in two splits, or a site has too few patients to divide.
    """
    examples: list[Example] = []
    drawn: list[str] = []
    for site in found.sites:
        own = [replace(one, split="") for one in found.of(site)] if anew else found.of(site)
        _check_apart(site, own)
        missing = [split for split in SPLITS[1:] if not any(one.split == split for one in own)]
        loose = [one for one in own if one.split in ("", SPLITS[0])] if missing else []
        loose += [one for one in own if not one.split and one not in loose]
        if loose:
            drawn.append(site)
            given = _drawn(site, loose, [SPLITS[0], *missing], labelled=found.kind != "segmentation")
            own = [replace(one, split=given[id(one)]) if id(one) in given else one for one in own]
        examples += own
    kept = [site for site in found.sites if site not in drawn]
    words: tuple[str, ...] = (
        (f"drawn by {'patient' if found.patients else 'example'} at {some(drawn)}",) if drawn else ()
    )
    words += (f"as they are at {some(kept)}",) if kept else ()
    return replace(found, examples=examples), words


def _check_apart(site: str, own: Sequence[Example]) -> None:
    splits: dict[str, set[str]] = defaultdict(set)
    for one in own:
        if one.patient and one.split:
            splits[one.patient].add(one.split)
    if both := [patient for patient, where in splits.items() if len(where) > 1]:
        raise UserError(f"init: {site}: {len(both)} patients are in two splits; --new-splits draws them anew")


def _drawn(site: str, loose: Sequence[Example], splits: Sequence[str], labelled: bool) -> dict[int, str]:
    """id of an example -> its split."""
    patients: dict[str, list[Example]] = defaultdict(list)
    for number, one in enumerate(loose):
        patients[one.patient or f"\0{one.image or number}"].append(one)
    if len(patients) < max(FEWEST, len(splits)):
        n = max(FEWEST, len(splits))
        raise UserError(f"init: {site}: expected at least {n} patients or examples to divide, got {len(patients)}")
    strata: dict[str, list[str]] = defaultdict(list)
    for patient, own in patients.items():
        usual = Counter(one.label for one in own).most_common(1)[0][0] if labelled else ""
        strata[usual].append(patient)
    order = {patient: hashlib.sha256(f"{site}/{patient}".encode()).digest() for patient in patients}
    where: dict[str, str] = {}
    for label in sorted(strata):
        where |= _dealt(sorted(strata[label], key=order.__getitem__), splits, where)
    _fill(where, splits)
    return {id(one): where[patient] for patient, own in patients.items() for one in own}


def _dealt(patients: Sequence[str], splits: Sequence[str], before: Mapping[str, str]) -> dict[str, str]:
    """Each in turn goes to the split that lacks most of its share, over all that were dealt."""
    total = sum(SHARES[split] for split in splits)
    counts = Counter(before.values())
    found: dict[str, str] = {}
    own: Counter[str] = Counter()
    for number, patient in enumerate(patients, start=1):
        whole = len(before) + number

        def lacks(split: str, number: int = number, whole: int = whole) -> float:
            share = SHARES[split] / total
            return share * number - own[split] + 0.01 * (share * whole - counts[split])

        chosen = max(splits, key=lacks)
        found[patient] = chosen
        own[chosen] += 1
        counts[chosen] += 1
    return found


def _fill(where: dict[str, str], splits: Sequence[str]) -> None:
    """No split stays empty: it takes a patient of the training split."""
    for split in splits:
        if split not in where.values():
            patient = next(patient for patient, other in where.items() if other == splits[0])
            where[patient] = split
