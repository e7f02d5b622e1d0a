# SPDX-License-Identifier: Apache-2.0
"""Which folders are hospitals, which are classes and which are patients, by their names and by how they nest.

Two levels of folders that cross (every inner name below several outer ones) may be hospitals of classes or classes of
hospitals; a model that learns to tell hospitals apart looks like a good one. So names have to decide, or the user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import pandas as pd

from fairflare.core.errors import UserError
from fairflare.core.order import in_order, some
from fairflare.core.suggest import unlisted
from fairflare.import_data import labels as naming
from fairflare.import_data.proposal import MOST_CLASSES, Choices, Reading

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
    free = _above(table, free, named.get("patient", ""))
    if chosen.site == "none":
        named["site"] = ""
    free = _without_views(table, free, named, chosen)
    if not labelled:
        return _site_alone(table, free, named, chosen)
    return _site_and_label(table, free, named, chosen)


def _without_views(table: pd.DataFrame, free: list[str], named: Mapping[str, str], chosen: Choices) -> list[str]:
    """Without modalities, views and years, which are neither hospitals nor classes unless the user says so."""
    for name in free:
        names = [one for one in table[name].unique() if one]
        if any(naming.says_mask(one) for one in names):
            odd = next(one for one in names if naming.says_mask(one))
            text = f"{name} ({some(in_order(names), 3)}) may hold masks: expected x_mask.png beside x.png"
            raise UserError(f"init: {text}, or folders called images and masks, got {odd!r}")
        if naming.mostly([naming.says_view(one) for one in names]) and "site" not in named:
            readings = [
                Reading("these are no hospitals", f"--site {next((other for other in free if other != name), 'none')}"),
                Reading("these are hospitals", f"--site {name}"),
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
        readings = [Reading(f"{some(in_order(table[name]), 3)} are hospitals", f"--site {name}") for name in free]
        return Roles(free[chosen.ask("several levels of folders may be the hospitals", readings)], "", patient)
    return Roles((sites or free or [""])[0], "", patient)


def _site_and_label(table: pd.DataFrame, free: Sequence[str], named: Mapping[str, str], chosen: Choices) -> Roles:
    patient = named.get("patient", "")
    if "site" in named and "label" in named:
        return Roles(named["site"], named["label"], patient)
    if "label" in named:
        return Roles(free[0] if len(free) == 1 else _one("site", free, table), named["label"], patient)
    if "site" in named:
        return Roles(named["site"], _one("label", [name for name in free if name != named["site"]], table), patient)
    score = {name: _score(table, name) for name in free}
    if len(free) < 2:
        label = free[0] if free else ""
        text = some(in_order(table[label])) if label else ""
        readings = [
            Reading("they are the classes of one hospital", f"--label {label}"),
            Reading("they are hospitals, and nothing says the labels", f"--site {label}"),
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
                    f"init: {words}: expected patients, classes or hospitals; --patient {rest} or none says it"
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
        readings.append(Reading(text, f"--site {site} --label {label}"))
    return Roles(*ways[chosen.ask("folders may be read in two ways", readings)], patient)


def _score(table: pd.DataFrame, name: str) -> int:
    """1: the names are those of hospitals; -1: of classes; 0: neither, or both."""
    names = table[name].unique()
    return naming.mostly([naming.says_site(one) for one in names]) - naming.mostly(
        [naming.says_class(one) for one in names]
    )


def _above(table: pd.DataFrame, free: list[str], patient: str) -> list[str]:
    """Without the folders inside a patient's that are no classes: visits, series."""
    if not patient.startswith(FOLDER):
        return free
    depth = {name: int(name.removeprefix(FOLDER)) for name in (*free, patient)}
    kept = [name for name in free if depth[name] < depth[patient] or _score(table, name) < 0]
    return kept or free


def _one(role: str, free: Sequence[str], table: pd.DataFrame) -> str:
    if len(free) == 1 or (role == "site" and not free):
        return free[0] if free else ""
    found = "; ".join(f"{name}: {some(in_order(table[name]), 3)}" for name in free) or "none"
    raise UserError(f"init: --{role}: expected a level of folders, got none, and there are: {found}")


def is_patient_level(table: pd.DataFrame, name: str, free: Sequence[str]) -> bool:
    """Whether a level's folders are patients (or studies): by their names, or many with few images each."""
    names = [one for one in table[name].unique() if one]
    if naming.mostly([naming.says_patient(one) for one in names]):
        return True
    if any(
        naming.mostly([says(one) for one in names]) for says in (naming.says_site, naming.says_class, naming.says_view)
    ):
        return False
    others = [other for other in free if other != name]
    # Below several combinations of the other levels the same name stands for something that these share.
    nested = bool(others) and (table.groupby(name, sort=False)[others].nunique() == 1).all(axis=None)
    few = median(table.groupby([*others, name] if others else name, sort=False).size()) <= FEW
    if naming.looks_numbered(names) and len(names) >= SEVERAL:
        return True
    return (len(names) > MOST_CLASSES or (nested and len(names) >= MANY)) and few
