# SPDX-License-Identifier: Apache-2.0
"""What a user names as a hospital's labelled data: a folder with lists, one site's configuration, a list or a table."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairflare.core.errors import UserError
from fairflare.core.validation import SITE, expected, in_order, shown
from fairflare.data.readers.datalist import read_lists
from fairflare.data.site_config import SiteConfig, read_site_config
from fairflare.inference.loaded_run import Opened
from fairflare.tasks.forms import FORMS, IMAGES, VOLUMES
from fairflare.tasks.kinds.own import PREFIX, folder_of_lists, read_description, root_of, sites_in
from fairflare.tasks.own.tabular import Tabular

CONFIGURATIONS = (".yaml", ".yml")
LISTS = (".json",)
CLASSES_SHOWN = 80


def hospitals(opened: Opened, data: Path, name: str = "") -> dict[str, SiteConfig]:
    """Name -> where its data are, in natural order.

    Args:
        data: a folder that ``fairflare init`` has written lists for, a folder of lists or of sites' configurations, one
            such configuration, one list, or one table.
        name: what one hospital is called, or of several the one that is meant; empty: as its file, or all.

    Raises:
        UserError: there is nothing of the kind, or it is of other classes than the run's.
    """
    suffixes = Tabular.suffixes if opened.task.table_inputs() is not None else LISTS
    if data.is_dir():
        found = _in_folder(opened, data, suffixes)
        if name:
            if len(found) > 1 and name not in found:
                raise UserError(f"--name: expected one of {shown(', '.join(found))}, got {shown(name)}")
            found = {name: found.get(name) or next(iter(found.values()))}
    elif not data.is_file():
        raise UserError(f"{data}: no such file or folder")
    elif data.suffix in CONFIGURATIONS:
        found = {name or data.parent.name: read_site_config(data)}
    else:
        if data.suffix.lower() not in suffixes:
            raise UserError(f"{data.name}: expected a folder of lists, or a file {' or '.join(suffixes)}, for this run")
        _same_classes(opened, read_description(data.parent), data.parent)
        found = {name or data.stem.removeprefix(PREFIX): _of_file(data)}
    for site in found:
        expected("--name", bool(SITE.fullmatch(site)), "letters, digits, spaces, - . and _", site)
    return {site: dataclasses.replace(found[site], site=site) for site in in_order(found)}


def _in_folder(opened: Opened, data: Path, suffixes: tuple[str, ...]) -> dict[str, SiteConfig]:
    """One for each list, or for each configuration where there are no lists."""
    folder = folder_of_lists(data)
    _same_classes(opened, read_description(folder), data)
    if names := sites_in(folder, suffixes):
        return {site: _of_file(_files(folder, site, suffixes)[0]) for site in names}
    found = {path.stem: read_site_config(path) for path in sorted(data.iterdir()) if path.suffix in CONFIGURATIONS}
    if not found:
        lists = f"expected a list (<SITE>{suffixes[0]}) for each hospital in it, or a table"
        raise UserError(f"{data}: {lists}; `fairflare init {data}` writes them")
    return found


def _files(folder: Path, site: str, suffixes: Sequence[str]) -> list[Path]:
    return [path for p in ("", PREFIX) for s in suffixes if (path := folder / f"{p}{site}{s}").is_file()]


def _of_file(path: Path) -> SiteConfig:
    root, links = root_of(path.parent)
    return SiteConfig(data_root=str(root), datalist=str(path.relative_to(root)), links=links, min_count=0)


def _same_classes(opened: Opened, described: Mapping[str, Any], data: Path) -> None:
    """Raise UserError where ``dataset.json`` says that the data are of another kind, or of other classes."""
    if not described:
        return
    kind, task, form = described["kind"], opened.config.task, FORMS.get(described["kind"])
    images = opened.task.image_inputs()
    takes = opened.task.table_inputs() is not None, opened.task.kind.has_masks, images is not None and images.volumes
    other = task in FORMS and form is not None and FORMS[task].classes != form.classes
    if form is None or (form.table, form.masks, form.volumes) != takes or other:
        raise UserError(f"{data}: holds data of kind {shown(kind)}, expected what task {task} takes")
    theirs, ours = described["classes"], list(opened.task.classes)
    named = not getattr(opened.task, "numbered", False)
    same = theirs == ours if form.masks or not named else set(theirs) <= set(ours)
    if theirs and not same and (named or len(theirs) != len(ours)):
        raise UserError(f"{data}: classes: expected {_some(ours)}, as the run has them, got {_some(theirs)}")
    values, own = (options.get("mask_values") or "" for options in (described["options"], opened.config.options))
    if form.masks and values != own:
        raise UserError(f"{data}: mask_values: expected {shown(own)}, as the run has them, got {shown(values)}")
    if form in (IMAGES, VOLUMES) and named and theirs and theirs != ours:
        _refuse_numbers(data)


def _refuse_numbers(data: Path) -> None:
    """Raise UserError where a list says classes by numbers, which count other classes than the run's."""
    folder = folder_of_lists(data)
    for site in sites_in(folder, LISTS):
        path = _files(folder, site, LISTS)[0]
        entries = [entry for part in read_lists(path).values() for entry in part if isinstance(entry, dict)]
        if any(type(entry.get("label")) is int for entry in entries):
            text = "expected classes by name, since their numbers are other classes' in the run"
            raise UserError(f"{path.name}: label: {text}, got a number")


def _some(names: list[str]) -> str:
    text = ", ".join(names)
    return shown(text if len(text) <= CLASSES_SHOWN else f"{text[:CLASSES_SHOWN]} ...")


def refuse_trained(opened: Opened, found: Mapping[str, SiteConfig]) -> None:
    """Raise UserError where a hospital took part in the training: by its name, or by its list's content.

    A site that a run left out of the training is none of them.
    """
    trained = [site for site in opened.about["sites"] if site != opened.config.leave_out]
    lists = _lists_of(opened, trained)
    for site, own in found.items():
        same = next((one for one in trained if one.lower() == site.lower()), None)
        file = Path(own.data_root, own.datalist)
        same_list = lists.get(_hash(file)) if file.is_file() else None
        if same_list or same:
            way = "--split test takes its test patients alone"
            other = "" if same_list else "; --name NAME if it is another hospital"
            raise UserError(f"{site}: took part in the run's training as {shown(same_list or same)}: {way}{other}")


def _lists_of(opened: Opened, sites: list[str]) -> dict[str, str]:
    """Hash of a list -> the site that trained with it, as far as the run's lists are on this machine."""
    folder = Path(str(opened.config.options.get("datalists") or ""))
    if not folder.name or not folder.is_dir():
        return {}
    return {_hash(path): site for site in sites for path in _files(folder, site, (*Tabular.suffixes, *LISTS))}


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
