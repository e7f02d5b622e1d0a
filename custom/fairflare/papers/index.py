# SPDX-License-Identifier: Apache-2.0
"""All exhibits by the name of their command."""

from __future__ import annotations

from fairflare.core.errors import UserError
from fairflare.core.validation import shown
from fairflare.papers import fedce, fedheal, fedism, fedlwr, fedufo, flamby
from fairflare.papers.declaration import Exhibit, Paper

PAPERS: tuple[Paper, ...] = (fedism.PAPER, fedlwr.PAPER, fedheal.PAPER, fedufo.PAPER, fedce.PAPER, flamby.PAPER)


def exhibits() -> dict[str, Exhibit]:
    return {exhibit.name: exhibit for paper in PAPERS for exhibit in paper.exhibits}


def named(name: str) -> Exhibit:
    """The exhibit of this name.

    Raises:
        UserError: there is none.
    """
    found = exhibits()
    if name not in found:
        raise UserError(f"paper: expected one of {', '.join(found)}, got {shown(name)}")
    return found[name]
