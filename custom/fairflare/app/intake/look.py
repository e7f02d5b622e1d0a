# SPDX-License-Identifier: Apache-2.0
"""What a folder holds, whatever its layout: lists come before tables, tables before names and folders."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from fairflare.app.intake.folders import images_in_folders
from fairflare.app.intake.found import Choices, Files, Found, Tell, check_texts, nothing, walk
from fairflare.app.intake.labels import check_sites_agree
from fairflare.app.intake.lists import images_in_lists, lists_in
from fairflare.app.intake.masks import check_sites, pixels, with_slices
from fairflare.app.intake.splits import patient_key, with_splits
from fairflare.app.intake.tables import examples_in_tables, tables_in
from fairflare.core.errors import UserError
from fairflare.core.suggest import unlisted


@dataclass(frozen=True)
class Proposal:
    """What is to be written.

    Attributes:
        found: what the folder holds, every example in a split.
        splits: in words, where the splits are from.
        links: images that are symbolic links whose files lie outside of the folder.
    """

    found: Found
    splits: tuple[str, ...]
    links: tuple[str, ...]


def look(root: Path, chosen: Choices, tell: Tell = nothing) -> Proposal:
    """Look at ``root`` and read one image of each site, all masks' values and all tables; ``tell`` how far it is.

    Raises:
        UserError: nothing can be made of it, in one line that says why.
    """
    files = walk(root, tell)
    found = _found(files, chosen)
    check_texts(found)
    if chosen.kind and found.kind != chosen.kind:
        raise UserError(f"--kind: expected {found.kind}, which is what {root} holds, got {chosen.kind}")
    if not found.examples:
        raise UserError(f"init: nothing in {root} has a label")
    for site in chosen.without:
        if site not in found.sites:
            raise UserError(f"--without: {unlisted('site', site, found.sites)}")
    if chosen.without:
        found = replace(found, examples=[one for one in found.examples if one.site not in chosen.without])
    if found.form.masks:
        check_sites(files.root, {site: [one.label for one in found.of(site)] for site in found.sites})
    else:
        check_sites_agree(found.examples, chosen)
    found = with_slices(files, found, chosen)
    notes = found.notes + _linked(root)
    if files.others:
        notes += (f"{len(files.others)} images of other formats are not read, e.g. {files.others[0]}",)
    if files.dead:
        notes += (f"{len(files.dead)} symbolic links lead nowhere and are left out, e.g. {files.dead[0]}",)
    if chosen.window and found.form.table:
        raise UserError("--window: goes with images, got a table")
    if chosen.window:
        found = replace(found, options={**found.options, "window": chosen.window})
    if chosen.patient == "none":
        found = replace(found, patients="", examples=[replace(one, patient="") for one in found.examples])
    notes += _shared_ids(found)
    divided, splits = with_splits(replace(found, notes=notes), chosen.new_splits)
    for site in divided.sites:
        one = divided.of(site)[0]
        if one.image:
            pixels(root, one.image, one.frame)
    used = {path for one in divided.examples for path in (one.image, one.label)}
    return Proposal(divided, splits, tuple(path for path in files.links_out if path in used))


def _shared_ids(found: Found) -> tuple[str, ...]:
    """What to say where the same patient stands at several sites."""
    sites: dict[str, set[str]] = {}
    for one in found.examples:
        if one.patient:
            sites.setdefault(patient_key(one.patient), set()).add(one.site)
    shared = sum(len(own) > 1 for own in sites.values())
    text = f"{shared} names of patients stand at several sites and are taken for different people there"
    return (text,) if shared else ()


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
    if files.root.is_file():
        return examples_in_tables(files, tables_in(files.root), chosen)
    if lists := lists_in(files.root):
        return images_in_lists(files, lists, chosen)
    if paths := tables_in(files.root):
        return examples_in_tables(files, paths, chosen)
    return images_in_folders(files, chosen)
