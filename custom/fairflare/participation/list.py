# SPDX-License-Identifier: Apache-2.0
"""A fixed set of sites takes part; the others are only evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fairflare.core.registry import selector
from fairflare.core.types import Round
from fairflare.core.validation import Names
from fairflare.participation.base import Selector


@selector("list")
@dataclass(frozen=True)
class Named(Selector):
    """The sites of a list, in every round.

    Args:
        sites: their names, separated by commas.
    """

    sites: Names = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the list."""
        return tuple(name.strip() for name in self.sites.split(",") if name.strip())

    def select(self, sites: Sequence[str], round: Round, seed: int, least: int) -> tuple[str, ...]:
        """Those of the sites that are in the list."""
        return self.ever(sites)

    def ever(self, sites: Sequence[str]) -> tuple[str, ...]:
        """Those of the sites that are in the list."""
        return tuple(site for site in sites if site in self.names)

    def missing(self, sites: Sequence[str]) -> str:
        """A list that is empty or names a site that does not train."""
        if not self.names:
            return f"select.sites: expected names among {', '.join(sites)}, got none"
        unknown = next((name for name in self.names if name not in sites), "")
        return f"select.sites: expected names among {', '.join(sites)}, got {unknown!r}" if unknown else ""
