# SPDX-License-Identifier: Apache-2.0
"""Sites dealt over domains (kinds of images): each domain in turn at as many sites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from fairflare.data.checks import site_index


class OverDomains:
    """What a task's sites hold, for a frozen dataclass whose ``n_sites`` is a multiple of its domains.

    Attributes:
        domain_names: in the order of the sites.
        n_sites: in all.
        alpha: concentration of a Dirichlet label skew between the sites of a domain; 0: none.
    """

    domain_names: ClassVar[Sequence[str]]
    alpha: float = 0.0
    n_sites: int

    @property
    def _per_domain(self) -> int:
        return self.n_sites // len(self.domain_names)

    def sites(self) -> dict[str, str]:
        """The domain of each site, with the label skew if there is one."""
        skew = f"; label skew, alpha {self.alpha:g}" if self.alpha else ""
        kinds = [domain + skew for domain in self.domain_names for _ in range(self._per_domain)]
        return {f"site-{k}": kind for k, kind in enumerate(kinds, start=1)}

    def domains(self) -> dict[str, str]:
        """What each site holds."""
        return {site: self.domain(site) for site in self.sites()}

    def domain(self, site: str) -> str:
        """The one of ``domain_names`` that ``site`` holds."""
        return self.domain_names[site_index(site, self.sites()) // self._per_domain]
