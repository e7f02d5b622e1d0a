# SPDX-License-Identifier: Apache-2.0
"""Decision sheets of a finished ``fairflare join``, a page and a JSON file per hospital."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairflare.core.errors import UserError
from fairflare.core.validation import SITE, shown
from fairflare.engine.files import read_json
from fairflare.engine.state import save_json, save_text
from fairflare.report.sheet import sheet, sheet_page
from fairflare.studies.describe import leaving
from fairflare.studies.folders import JOIN, SHEETS


def sheets_of(folder: Path, sites: Sequence[str] = (), language: str = "en") -> list[Path]:
    """Write the sheets of ``sites``, or of all, of the join in ``folder``, and return the pages.

    Raises:
        UserError: the folder holds no join of this version, or not this hospital.
    """
    found = read_json(folder / JOIN)
    known = found.get("sites")
    if not isinstance(known, dict) or not isinstance(found.get("candidates"), dict):
        raise UserError(f"{folder / JOIN}: expected what `fairflare join` writes")
    if strange := [site for site in sites if site not in known]:
        raise UserError(f"--site: expected one of {shown(', '.join(known))}, got {shown(strange[0])}")
    try:
        return write_sheets(found, folder, sites, language)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(f"{folder / JOIN}: expected what `fairflare join` writes ({type(error).__name__})") from None


def write_sheets(found: Mapping[str, Any], folder: Path, sites: Sequence[str] = (), language: str = "en") -> list[Path]:
    """As ``sheets_of``, of the content of join.json; in English SITE.html, else SITE.LANGUAGE.html."""
    leaves = _leaves(found["methods"])
    made = {site: sheet(found, site, leaves, language) for site in sites or found["sites"]}
    pages = []
    for site, one in made.items():
        name = site if SITE.fullmatch(site) else f"hospital-{list(found['sites']).index(site) + 1}"
        name += "" if language == "en" else f".{language}"
        (folder / SHEETS).mkdir(exist_ok=True)
        save_json(folder / SHEETS / f"{name}.json", one)
        save_text(folder / SHEETS / f"{name}.html", sheet_page(one))
        pages.append(folder / SHEETS / f"{name}.html")
    return pages


def _leaves(labels: Sequence[str]) -> list[dict[str, str]]:
    """What leaves a hospital in training with any of the methods."""
    found = {}
    for label in labels:
        secure = "secure_sum=" in label and "secure_sum=none" not in label
        for row in leaving(label.partition(":")[0], secure=secure, after=False, solo=False):
            found[row["name"], row["meaning"]] = row
    return list(found.values())
