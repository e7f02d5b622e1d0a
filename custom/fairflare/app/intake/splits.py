# SPDX-License-Identifier: Apache-2.0
"""Splits by patient: nobody is in two, classes are spread evenly, and the same folder gives the same splits."""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fairflare.app.intake.found import SPLITS, Example, Found
from fairflare.core.errors import UserError
from fairflare.core.order import some

SHARES = {"training": 0.6, "validation": 0.15, "testing": 0.25}
FOLDS = 20
"""Most parts that patients are dealt into; splits are made of whole parts."""


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
        _check_apart(site, own, found.patients)
        missing = [split for split in SPLITS[1:] if not any(one.split == split for one in own)]
        loose = [k for k, one in enumerate(own) if not one.split or (missing and one.split == SPLITS[0])]
        if loose:
            drawn.append(site)
            settled = {patient_key(one.patient): one.split for one in own if one.split in SPLITS[1:] and one.patient}
            splits = [SPLITS[0], *missing]
            for k, split in zip(loose, _drawn(site, [own[k] for k in loose], splits, not found.form.masks)):
                own[k] = replace(own[k], split=settled.get(patient_key(own[k].patient), split))
        examples += own
    kept = [site for site in found.sites if site not in drawn]
    words: tuple[str, ...] = (
        (f"drawn by {'patient' if found.patients else 'example'} at {some(drawn)}",) if drawn else ()
    )
    words += (f"as they are at {some(kept)}",) if kept else ()
    return replace(found, examples=examples), words


def patient_key(patient: str) -> str:
    """``patient`` as spellings of one agree: without case, spaces and leading zeros."""
    plain = "".join(patient.casefold().split())
    return plain.lstrip("0") or plain[:1] if plain.isdigit() else plain


def _check_apart(site: str, own: Sequence[Example], whence: str) -> None:
    splits: dict[str, set[str]] = defaultdict(set)
    images: dict[tuple[str, int | None], set[str]] = defaultdict(set)
    for one in own:
        if one.patient and one.split:
            splits[patient_key(one.patient)].add(one.split)
        if one.image and one.split:
            images[one.image, one.frame].add(one.split)
    if twice := [image for (image, _), where in images.items() if len(where) > 1]:
        raise UserError(
            f"init: {site}: {len(twice)} images are in two splits, e.g. {twice[0]}; --new-splits draws them anew"
        )
    if both := [patient for patient, where in splits.items() if len(where) > 1]:
        text = f"{len(both)} patients are in two splits, by {whence}; --new-splits draws them anew"
        raise UserError(f"init: {site}: {text}, --patient COLUMN or none says who they are")


def _drawn(site: str, loose: Sequence[Example], splits: Sequence[str], labelled: bool) -> list[str]:
    """The split of each example: folds of patients, stratified by class, are dealt to the splits by their shares."""
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    if len(splits) == 1:
        return [splits[0]] * len(loose)
    # Examples without a patient are patients of their own; slices of one file belong together.
    names = [patient_key(one.patient) or f"\0{one.image or number}" for number, one in enumerate(loose)]
    patients = np.unique(names, return_inverse=True)[1]
    n = int(patients.max()) + 1
    if n < len(splits):
        raise UserError(
            f"init: {site}: expected at least {len(splits)} patients or examples to divide, got {n} "
            f"(--without {site} leaves it out)"
        )
    labels = np.unique([one.label if labelled else "" for one in loose], return_inverse=True)[1]
    most = max(Counter(labels.tolist()).values())
    k = max(len(splits), min(FOLDS, n, most))
    plain = n == len(loose)  # grouping costs time that grows with the patients
    if most < k:  # no class can be spread over the folds
        labels = np.zeros_like(labels)
    folds = (StratifiedKFold if plain else StratifiedGroupKFold)(k, shuffle=True, random_state=0)
    fold_of = np.empty(len(loose), dtype=int)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class with fewer patients than folds: spread as far as it goes
        for number, (_, rows) in enumerate(folds.split(labels, labels, patients)):
            fold_of[rows] = number
    # A fold may be empty where patients have many examples each.
    order = [number for number in range(k) if (fold_of == number).any()]
    if len(order) < len(splits):
        raise UserError(f"init: {site}: expected patients for {len(splits)} splits, got {len(order)} parts of them")
    sizes = _sizes([SHARES[split] for split in splits], len(order))[1:]
    where = dict.fromkeys(order, splits[0])
    taken = iter(order)
    for split, size in zip(splits[1:], sizes):
        where |= {next(taken): split for _ in range(size)}
    return [where[number] for number in fold_of.tolist()]


def _sizes(shares: Sequence[float], n: int) -> list[int]:
    """``n`` parts by ``shares``, at least one each, the largest remainders first."""
    exact = [share / sum(shares) * n for share in shares]
    sizes = [max(1, int(value)) for value in exact]
    while sum(sizes) > n:
        sizes[sizes.index(max(sizes))] -= 1
    for k in sorted(range(len(sizes)), key=lambda k: sizes[k] - exact[k])[: n - sum(sizes)]:
        sizes[k] += 1
    return sizes
