# SPDX-License-Identifier: Apache-2.0
"""The tables of a folder as one, with what their names and folders say of sites and splits."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from fairflare.app.intake.found import Choices, site_name
from fairflare.app.intake.words import split_word
from fairflare.core.errors import DataError, UserError
from fairflare.core.order import natural, some
from fairflare.data.readers.tables import SUFFIXES, read_table

KINDS = tuple(suffix for suffix in SUFFIXES if suffix != ".txt")
"""A text beside images is seldom a table; one that is named is read."""
HOME, SITE, SPLIT = "@home", "@site", "@split"
"""Columns beside a table's own: the folder it lies in, and what its name says."""


def tables_in(root: Path) -> list[Path]:
    """Tables in ``root``, or else in its folders, in natural order; ``root`` itself where it is one."""
    if root.is_file():
        return [root]
    for pattern in ("*", "*/*"):
        paths = [p for p in root.glob(pattern) if p.suffix.lower() in KINDS and not p.name.startswith((".", "~$"))]
        paths = [path for path in paths if path.is_file() and not path.parent.name.startswith(".")]
        paths = [path for path in paths if pattern == "*" or path.parent.name != "fairflare"]
        if paths:
            return sorted(paths, key=lambda path: natural(str(path)))
    return []


def rows_of(root: Path, paths: Sequence[Path], chosen: Choices) -> pd.DataFrame:
    """All rows; tables called by sites or lying in their folders have a site, those called by splits a split."""
    base = root if root.is_dir() else root.parent
    named = _named(base, paths)
    found: list[pd.DataFrame] = []
    for path, (site, split) in zip(paths, named, strict=True):
        try:
            table = read_table(path)
        except DataError as error:
            raise UserError(f"init: {error}") from None
        if table.empty:
            raise UserError(f"init: {path.name}: expected rows, got none")
        if found and set(table.columns) != set(found[0].columns) - {HOME, SITE, SPLIT}:
            odd = sorted(set(table.columns) ^ (set(found[0].columns) - {HOME, SITE, SPLIT}))
            raise UserError(f"init: {path.name}: expected the columns of {paths[0].name}; differs in {some(odd, 3)}")
        table = table.map(lambda cell: "" if cell in chosen.missing else unicodedata.normalize("NFC", cell))
        home = path.parent.relative_to(base).as_posix()
        found.append(table.assign(**{HOME: home, SITE: site, SPLIT: split}))
    return pd.concat(found, ignore_index=True)


def _named(base: Path, paths: Sequence[Path]) -> list[tuple[str, str]]:
    """The site and the split that each table's name and folder say; "" where they say none.

    Raises:
        UserError: some names are splits and others are not, or two tables differ in their endings alone.
    """
    stems = [path.stem for path in paths]
    if twins := [name for name, n in Counter(str(path.with_suffix("")) for path in paths).items() if n > 1]:
        raise UserError(f"init: {Path(twins[0]).name} is there in two formats: leave one of them")
    parts = [_split_in(stem) for stem in stems]
    nested = paths[0].parent != base
    if nested:
        above = [path.parent.name for path in paths]
        splits = [split_word(name) for name in above]
        if all(splits):
            return [(site_name(stem), split) for stem, split in zip(stems, splits, strict=True)]
        return [(site_name(name), split_word(stem)) for name, stem in zip(above, stems, strict=True)]
    if len(paths) == 1:
        return [("", split_word(stems[0]))]
    with_split = [bool(split) for _, split in parts]
    if all(with_split):
        return [(site_name(rest) if rest else "", split) for rest, split in parts]
    if any(with_split):
        odd = next(path.name for path, has in zip(paths, with_split, strict=True) if not has)
        other = next(path.name for path, has in zip(paths, with_split, strict=True) if has)
        raise UserError(
            f"init: {other} is named by a split and {odd} is not: expected tables named by sites or by splits"
        )
    return [(site_name(stem), "") for stem in stems]


def _split_in(stem: str) -> tuple[str, str]:
    """ "charite_train" -> ("charite", "training"); ("", split) of a split's name alone; (stem, "") of another."""
    if word := split_word(stem):
        return "", word
    match = re.fullmatch(r"(.+)[_\-. ]([^_\-. ]+)", stem)
    if match and (word := split_word(match[2])):
        return match[1], word
    match = re.fullmatch(r"([^_\-. ]+)[_\-. ](.+)", stem)
    if match and (word := split_word(match[1])):
        return match[2], word
    return stem, ""
