# SPDX-License-Identifier: Apache-2.0
"""Writes site editions: ``SITE.html`` and ``SITE.json`` for each hospital, from a run's folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairflare.core.errors import UserError
from fairflare.federation.files import AUDIT
from fairflare.federation.state import json_text, save_text
from fairflare.report.edition import edition, names_of, require_site
from fairflare.report.page import render_edition
from fairflare.report.summary import counted_trail, summarise
from fairflare.report.write import read_run


def write_editions(folder: Path, sites: Sequence[str], out: Path) -> dict[str, dict[str, Any]]:
    """Write the pages of ``sites``, or of all with none named, into ``out``, and return site -> content of its JSON.

    The log is read and not written: an edition is a view of it, and ``fairflare report`` writes it again in the same
    bytes.

    Raises:
        UserError: the folder holds no run, its audit chain is broken, a file does not fit to it, it has no such site.
    """
    config, entries = read_run(folder)
    try:
        summary, trail = summarise(config, entries), counted_trail(config, entries)
        names = list(sites) or list(names_of(summary))
        for site in names:
            require_site(summary, site)
        found = {site: edition(summary, trail, site) for site in names}
        pages = {site: render_edition(one) for site, one in found.items()}
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # The chain holds, and its lines say what no run writes: whoever can write the folder made them.
        raise UserError(f"{AUDIT}: holds values that no edition can be made of ({type(error).__name__})") from error
    out.mkdir(parents=True, exist_ok=True)
    for site, one in found.items():
        save_text(out / f"{site}.json", json_text(one))
        save_text(out / f"{site}.html", pages[site])
    return found
